"""The text format of the Extreme Classification Repository (http://manikvarma.org/downloads/XC/XMLRepository.html).

The first line is ``N D K``: rows, features, labels. Each further line is a row ``l1,l2,... f:v f:v ...`` with labels
and features counted from 0. A row without labels starts with a space; a row may have no features.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from extremegp.data.blocks import (
    BEGINNING,
    MAX_COLUMNS,
    Dataset,
    Part,
    Position,
    RowBlock,
    RowStream,
    Sizes,
    assemble,
    first_of_rows,
)
from extremegp.data.labels import encode_targets
from extremegp.data.validation import check_inputs
from extremegp.engine.matrices import FloatCSR
from extremegp.errors import DataError, located
from extremegp.storage.streams import atomic_writer, text_blocks

# Possessive, so that what is no row is found out in one pass.
_NUMBER = rb"[+-]?+(?:[0-9]++\.?+[0-9]*+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+"
_LABELS = rb"[0-9]++(?:,[0-9]++)*+"
_ROWS = re.compile(rb"(?:(?:%s)?+(?:[ \t]++(?:[0-9]++:%s)?+)*+\n)*+" % (_LABELS, _NUMBER))
_NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_HEADER = "the header must be three integers 'N D K' (rows, features, labels)"


def read_xc(path: str | Path, *, n_features: int | None = None, n_labels: int | None = None) -> Dataset:
    """Read a file in the repository's text format.

    The header decides the size of the matrices and must agree with the rows. Features of a row may come in any order;
    zeros are dropped. The same feature or the same label twice in a row is an error, since summing and overwriting
    are both guesses. Blank lines beyond the N rows are ignored.

    Args:
        path: the file; .gz, .bz2, .xz and .zst are decompressed.
        n_features: the D of the model that the data are for; the result has D columns. The header may not exceed it.
        n_labels: the same for the K labels.

    Raises:
        DataError: the file cannot be read, or breaks the format; names the file and the line.
    """
    return assemble(XCStream(path, n_features=n_features, n_labels=n_labels))


class XCStream(RowStream):
    """A file in the repository's text format in blocks of rows; the arguments are those of `read_xc`.

    Raises:
        DataError: the file cannot be read, or its header is wrong.
    """

    def __init__(self, path: str | Path, *, n_features: int | None = None, n_labels: int | None = None) -> None:
        self._path = Path(path)
        self._blocks = text_blocks(self._path)
        self._first = next(self._blocks)
        header, _, rest = self._first.lines.partition(b"\n")
        self._first = self._first._replace(lines=rest)
        with located(self._path, 1):
            self._n_rows, self._D, self._K = _header(header, n_features, n_labels)
        self._sizes = Sizes(n_features or self._D, n_labels or self._K)
        self.n_rows = self._n_rows
        self.learnt = {}

    def parts(self, start: Position = BEGINNING) -> Iterator[Part]:
        path, D, K, n_read = self._path, self._D, self._K, start.row
        blocks = text_blocks(path, offset=start.offset) if start.offset else chain([self._first], self._blocks)
        for block in blocks:
            lines = _within(block.lines, self._n_rows - n_read, n_read + 2, path)
            if lines:
                rows = _parse(lines, D, K) or _refuse(lines, D, K, path, n_read + 2)
                n_read += len(rows.n_features)
                yield Part(rows, Position(block.end, n_read + 1, n_read), block.read)
        if n_read < self._n_rows:
            raise DataError(
                f"the header says {self._n_rows} rows but only {n_read} follow; the file is cut short or its header is "
                "wrong",
                path=path,
            )

    def sizes(self) -> Sizes:
        return self._sizes


def write_xc(path: str | Path, X: Any, Y: Any) -> None:
    """Write a data set in the repository's text format, so that `read_xc` returns exactly the same matrices.

    The file appears complete or not at all. Stored zeros of X are not written.

    Args:
        path: the file; compressed if it ends in .gz, .bz2, .xz or .zst.
        X: features, N x D, sparse or dense.
        Y: 0/1 label indicators, N x K, sparse or dense.

    Raises:
        DataError: X or Y cannot be used, their rows differ, or the file cannot be written.
    """
    features: FloatCSR = csr_matrix(check_inputs(X))
    targets, label_space = encode_targets(Y)
    if label_space is not None:
        raise DataError("the format has label numbers, not names; pass Y as indicator: LabelSpace.encode makes it")
    if features.shape[0] != targets.shape[0]:
        raise DataError(f"X has {features.shape[0]} rows but Y has {targets.shape[0]}; give both the same rows")
    if not features.data.all():
        features = features.copy()
        features.eliminate_zeros()
    n_rows = features.shape[0]
    with atomic_writer(path) as stream:
        stream.write(b"%d %d %d\n" % (n_rows, features.shape[1], targets.shape[1]))
        step = 10_000
        for start in range(0, n_rows, step):
            stream.write(_text(features[start : start + step], targets[start : start + step]))


def _text(X: FloatCSR, Y: FloatCSR) -> bytes:
    pairs = [f"{j}:{v}" for j, v in zip(X.indices.tolist(), _shortest(X.data), strict=True)]
    labels = [str(k) for k in Y.indices.tolist()]
    lines = [
        ",".join(labels[Y.indptr[i] : Y.indptr[i + 1]]) + " " + " ".join(pairs[X.indptr[i] : X.indptr[i + 1]])
        for i in range(X.shape[0])
    ]
    return ("\n".join(lines) + "\n").encode("ascii")


def _shortest(values: NDArray[np.float32]) -> list[str]:
    text = values.astype(str)
    # Readers go through float64, and rounding twice misses a few float32 (7.038531e-26 is one): spell those out.
    missed = np.flatnonzero(text.astype(np.float64).astype(np.float32) != values)
    shortest: list[str] = [number.removesuffix(".0") for number in text.tolist()]
    for i in missed:
        shortest[i] = repr(float(values[i]))
    return shortest


def _header(line: bytes, n_features: int | None, n_labels: int | None) -> tuple[int, int, int]:
    tokens = line.split()
    if len(tokens) == 2 and all(token.isdigit() for token in tokens):
        raise DataError(
            f"{_HEADER}; two make a matrix of the format with X and Y in separate files, which must be joined first"
        )
    if len(tokens) != 3 or not all(re.fullmatch(rb"[0-9]{1,18}", token) for token in tokens):
        raise DataError(f"{_HEADER}; found {_shown(line)}")
    n_rows, D, K = (int(token) for token in tokens)
    if min(n_rows, D, K) < 1 or max(D, K) > MAX_COLUMNS:
        raise DataError(f"{_HEADER}, at least 1 and D and K at most {MAX_COLUMNS}; found {_shown(line)}")
    for what, found, limit in (("features", D, n_features), ("labels", K, n_labels)):
        if limit is not None and found > limit:
            raise DataError(
                f"the header says {found} {what} but the model has {limit}; use data made with the same {what}"
            )
    return n_rows, D, K


def _within(block: bytes, n_wanted: int, first_line: int, path: Path) -> bytes:
    """The first `n_wanted` lines of the block; whatever comes after them must be blank."""
    if block.count(b"\n") <= n_wanted:
        return block
    lines = block.split(b"\n")
    for i, line in enumerate(lines[n_wanted:]):
        if line.strip():
            raise DataError(
                "more rows than the header says; correct the header or remove the extra rows",
                path=path,
                line=first_line + n_wanted + i,
            )
    return b"".join(line + b"\n" for line in lines[:n_wanted])


_TO_SPACES = bytes.maketrans(b",:\n\t", b"    ")


def _parse(block: bytes, D: int, K: int) -> RowBlock | None:
    """Whole lines by array operations; None if any is wrong, for `_refuse` to say how."""
    if not _ROWS.fullmatch(block):
        return None
    characters = np.frombuffer(block, np.uint8)
    commas, colons, newlines = (np.flatnonzero(characters == ord(character)) for character in ",:\n")
    starts = np.concatenate([[0], newlines[:-1] + 1])
    labelled = (characters[starts] >= ord("0")) & (characters[starts] <= ord("9"))
    n_labels = np.diff(np.searchsorted(commas, newlines), prepend=0) + labelled
    n_features = np.diff(np.searchsorted(colons, newlines), prepend=0)
    numbers = np.fromstring(block.translate(_TO_SPACES), dtype=np.float64, sep=" ")
    is_label = np.repeat(np.tile([True, False], len(newlines)), np.stack([n_labels, 2 * n_features], axis=1).ravel())
    labels, pairs = numbers[is_label], numbers[~is_label].reshape(-1, 2)
    with np.errstate(over="ignore"):
        values = pairs[:, 1].astype(np.float32)
    if (labels >= K).any() or (pairs[:, 0] >= D).any() or not np.isfinite(values).all():
        return None
    X = _sorted_rows(n_features, pairs[:, 0], values, D)
    Y = _sorted_rows(n_labels, labels, np.ones(len(labels), np.float32), K)
    if X is None or Y is None:
        return None
    return RowBlock.of(X, Y, first_of_rows(labels, n_labels))


def _sorted_rows(
    lengths: NDArray[np.int64], columns: NDArray[np.float64], data: NDArray[np.float32], n_columns: int
) -> FloatCSR | None:
    """Rows sorted by column; None if one has a column twice."""
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    rows: FloatCSR = csr_matrix((data, columns.astype(np.int32), indptr), shape=(len(lengths), n_columns))
    rows.sort_indices()
    return rows if rows.has_canonical_format else None


def _refuse(block: bytes, D: int, K: int, path: Path, first_line: int) -> NoReturn:
    """Go through the lines to say exactly what is wrong and where."""
    for number, line in enumerate(block.split(b"\n")[:-1], first_line):
        with located(path, number):
            _check_line(line, D, K)
    raise AssertionError("every line is right by itself")


def _check_line(line: bytes, D: int, K: int) -> None:
    def fail(problem: str) -> NoReturn:
        raise DataError(problem)

    def index(token: bytes, limit: int, what: str) -> int:
        if not token.isdigit():
            negative = token[:1] == b"-" and token[1:].isdigit()
            fail(f"{what} {_shown(token)} is {'negative' if negative else 'not an integer'}; {what}s count from 0")
        digits = token.lstrip(b"0") or b"0"
        if len(digits) > 18 or int(digits) >= limit:
            fail(
                f"{what} {_shown(token)} is out of range: the header says {limit} {what}s, so they are "
                f"0 to {limit - 1}; correct the header, or subtract 1 if the file counts from 1"
            )
        return int(digits)

    head, *tokens = re.split(rb"[ \t]", line)
    labels: set[int] = set()
    if b":" in head:
        fail(f"{_shown(head)} stands where labels are expected; start a row without labels with a space")
    for token in head.split(b",") if head else ():
        label = index(token, K, "label")
        if label in labels:
            fail(f"label {label} comes twice in the row; remove one")
        labels.add(label)
    features: set[int] = set()
    for token in filter(None, tokens):
        column, colon, text = token.partition(b":")
        if not colon:
            fail(f"{_shown(token)} is not a 'feature:value' pair; write '{_shown(token, quote='')}:1' for an indicator")
        feature = index(column, D, "feature")
        if not re.fullmatch(_NUMBER, text):
            problem = "is not finite" if _NOT_FINITE.fullmatch(text) else "is not a number"
            fail(f"the value {_shown(text)} of feature {feature} {problem}; correct or remove it")
        with np.errstate(over="ignore"):
            finite = np.isfinite(np.float32(float(text)))
        if not finite:
            fail(f"the value {_shown(text)} of feature {feature} is too large for float32; scale the feature down")
        if feature in features:
            fail(f"feature {feature} comes twice in the row; merge the two values or remove one")
        features.add(feature)


def _shown(token: bytes, quote: str = "'") -> str:
    text = token.decode("utf-8", errors="backslashreplace")
    return f"{quote}{text if len(text) <= 40 else text[:40] + '...'}{quote}"
