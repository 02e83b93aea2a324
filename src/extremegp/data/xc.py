"""The text format of the Extreme Classification Repository (http://manikvarma.org/downloads/XC/XMLRepository.html).

The first line is ``N D K``: rows, features, labels. Each further line is a row ``l1,l2,... f:v f:v ...`` with labels
and features counted from 0. A row without labels starts with a space; a row may have no features.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from extremegp.data.blocks import BEGINNING, MAX_COLUMNS, Part, Position, RowBlock, RowStream, Sizes, assemble
from extremegp.data.labels import encode_targets
from extremegp.data.validation import FloatCSR, check_inputs, increasing
from extremegp.errors import DataError
from extremegp.storage.streams import atomic_writer, text_blocks

_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_HEADER = "the header must be three integers 'N D K' (rows, features, labels)"


@dataclass(frozen=True, eq=False)
class Dataset:
    """A multi-label data set.

    Attributes:
        X: features, N x D, float32 CSR with sorted unique indices and no stored zeros.
        Y: labels, N x K, float32 CSR of ones with sorted unique indices; rows without labels are kept.
        label_names: the K label names, where the source has them.
        first_labels: of each row the label that the source lists first, -1 where it lists none; None if not known.
    """

    X: FloatCSR
    Y: FloatCSR
    label_names: list[str] | None = None
    first_labels: NDArray[np.int32] | None = None


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
    X, Y, first_labels = assemble(XCStream(path, n_features=n_features, n_labels=n_labels))
    return Dataset(X, Y, first_labels=first_labels)


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
        self._n_rows, self._D, self._K = _header(header, self._path, n_features, n_labels)
        self._sizes = Sizes(n_features or self._D, n_labels or self._K)
        self.n_rows = self._n_rows
        self.learnt = {}

    def parts(self, start: Position = BEGINNING) -> Iterator[Part]:
        path, D, K, n_read = self._path, self._D, self._K, start.row
        blocks = text_blocks(path, offset=start.offset) if start.offset else chain([self._first], self._blocks)
        for block in blocks:
            lines = _within(block.lines, self._n_rows - n_read, n_read + 2, path)
            if lines:
                rows = _parse_fast(lines, D, K) or _parse_lines(lines, D, K, path, n_read + 2)
                n_read += len(rows.n_features)
                yield Part(rows.without_zeros(), Position(block.end, n_read + 1, n_read), block.read)
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


def _header(line: bytes, path: Path, n_features: int | None, n_labels: int | None) -> tuple[int, int, int]:
    tokens = line.split()
    if len(tokens) == 2 and all(token.isdigit() for token in tokens):
        raise DataError(
            f"{_HEADER}; two make a matrix of the format with X and Y in separate files, which must be joined first",
            path=path,
            line=1,
        )
    if len(tokens) != 3 or not all(re.fullmatch(rb"[0-9]{1,18}", token) for token in tokens):
        raise DataError(f"{_HEADER}; found {_shown(line)}", path=path, line=1)
    n_rows, D, K = (int(token) for token in tokens)
    if min(n_rows, D, K) < 1 or max(D, K) > MAX_COLUMNS:
        raise DataError(
            f"{_HEADER}, at least 1 and D and K at most {MAX_COLUMNS}; found {_shown(line)}", path=path, line=1
        )
    for what, found, limit in (("features", D, n_features), ("labels", K, n_labels)):
        if limit is not None and found > limit:
            raise DataError(
                f"the header says {found} {what} but the model has {limit}; use data made with the same {what}",
                path=path,
                line=1,
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


# Token roles and what separators delimit them: (was the token empty, separator before, separator after) -> role.
_DIGIT, _NEWLINE, _COMMA, _SPACE, _COLON, _SIGN, _OTHER = range(7)
_BAD, _NOTHING, _LABEL, _FEATURE, _VALUE = range(5)


def _byte_classes() -> NDArray[np.uint8]:
    classes = np.full(256, _OTHER, dtype=np.uint8)
    for characters, kind in (
        (b"0123456789", _DIGIT),
        (b"\n", _NEWLINE),
        (b",", _COMMA),
        (b" \t", _SPACE),
        (b":", _COLON),
        (b"+-.eE", _SIGN),
    ):
        classes[list(characters)] = kind
    return classes


def _token_roles() -> NDArray[np.uint8]:
    roles = np.full((2, 5, 5), _BAD, dtype=np.uint8)
    for before in (_NEWLINE, _COMMA):
        for after in (_COMMA, _SPACE, _NEWLINE):
            roles[0, before, after] = _LABEL
    roles[0, _SPACE, _COLON] = _FEATURE
    roles[0, _COLON, [_SPACE, _NEWLINE]] = _VALUE
    for before in (_NEWLINE, _SPACE):
        roles[1, before, [_SPACE, _NEWLINE]] = _NOTHING
    return roles


_CLASSES = _byte_classes()
_ROLES = _token_roles()
_TO_SPACES = bytes.maketrans(b",:\n\t", b"    ")


def _parse_fast(block: bytes, D: int, K: int) -> RowBlock | None:
    """Parse whole lines with array operations; None if anything is unusual, for `_parse_lines` to judge."""
    classes = _CLASSES[np.frombuffer(block, dtype=np.uint8)]
    if (classes == _OTHER).any():
        return None
    ends = np.flatnonzero((classes != _DIGIT) & (classes != _SIGN))
    after = classes[ends]
    before = np.concatenate([[np.uint8(_NEWLINE)], after[:-1]])
    starts = np.concatenate([[0], ends[:-1] + 1])
    roles = _ROLES[(starts == ends).astype(np.uint8), before, after]
    signed = roles[np.searchsorted(ends, np.flatnonzero(classes == _SIGN))]
    if (roles == _BAD).any() or (signed != _VALUE).any():
        return None
    filled = roles[roles != _NOTHING]
    numbers = _numbers(block.translate(_TO_SPACES), len(filled))
    if numbers is None:
        return None
    labels, features, values = (numbers[filled == role] for role in (_LABEL, _FEATURE, _VALUE))
    with np.errstate(over="ignore"):
        weights = values.astype(np.float32)
    if (labels >= K).any() or (features >= D).any() or not np.isfinite(weights).all():
        return None
    newlines = after == _NEWLINE
    feature_ends = np.cumsum(roles == _FEATURE)[newlines]
    label_ends = np.cumsum(roles == _LABEL)[newlines]
    columns = _sorted_rows(feature_ends, features.astype(np.int32), weights, D)
    ones = np.ones(len(labels), dtype=np.float32)
    targets = _sorted_rows(label_ends, labels.astype(np.int32), ones, K)
    if columns is None or targets is None:
        return None
    n_labels = np.diff(label_ends, prepend=0)
    first_labels = np.full(len(n_labels), -1, dtype=np.int32)
    labelled = n_labels > 0
    first_labels[labelled] = labels[(label_ends - n_labels)[labelled]]
    return RowBlock(np.diff(feature_ends, prepend=0), *columns, n_labels, targets[0], first_labels)


def _numbers(text: bytes, count: int) -> NDArray[np.float64] | None:
    if not count:
        return np.empty(0)
    with warnings.catch_warnings():
        # Depending on its version NumPy warns or raises where it meets what is not a number.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            numbers = np.fromstring(text, dtype=np.float64, sep=" ")
        except (ValueError, DeprecationWarning):
            return None
    return numbers if len(numbers) == count else None


def _sorted_rows(
    row_ends: NDArray[np.int64], indices: NDArray[np.int32], data: NDArray[np.float32], n_columns: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]] | None:
    """Sort each row by column; None if a row has a column twice."""
    if not increasing(row_ends, indices):
        indptr = np.concatenate([[0], row_ends])
        rows = csr_matrix((data, indices, indptr), shape=(len(row_ends), n_columns))
        rows.sort_indices()
        indices, data = rows.indices, rows.data
        if not increasing(row_ends, indices):
            return None
    return indices, data


def _parse_lines(block: bytes, D: int, K: int, path: Path, first_line: int) -> RowBlock:
    """Parse line by line, slowly, to say exactly what is wrong and where."""
    columns: list[int] = []
    values: list[np.float32] = []
    labels: list[int] = []
    n_features: list[int] = []
    n_labels: list[int] = []
    first_labels: list[int] = []
    for number, line in enumerate(block.split(b"\n")[:-1], first_line):
        row_labels, row = _parse_line(line, D, K, path, number)
        labels += sorted(row_labels)
        n_labels.append(len(row_labels))
        first_labels.append(row_labels[0] if row_labels else -1)
        columns += sorted(row)
        values += [row[column] for column in sorted(row)]
        n_features.append(len(row))
    return RowBlock(
        np.asarray(n_features, dtype=np.int64),
        np.asarray(columns, dtype=np.int32),
        np.asarray(values, dtype=np.float32),
        np.asarray(n_labels, dtype=np.int64),
        np.asarray(labels, dtype=np.int32),
        np.asarray(first_labels, dtype=np.int32),
    )


def _parse_line(line: bytes, D: int, K: int, path: Path, number: int) -> tuple[list[int], dict[int, np.float32]]:
    def fail(problem: str) -> NoReturn:
        raise DataError(problem, path=path, line=number)

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
    labels: dict[int, None] = {}
    if b":" in head:
        fail(f"{_shown(head)} stands where labels are expected; start a row without labels with a space")
    for token in head.split(b",") if head else ():
        label = index(token, K, "label")
        if label in labels:
            fail(f"label {label} comes twice in the row; remove one")
        labels[label] = None
    row: dict[int, np.float32] = {}
    for token in filter(None, tokens):
        column, colon, text = token.partition(b":")
        if not colon:
            fail(f"{_shown(token)} is not a 'feature:value' pair; write '{_shown(token, quote='')}:1' for an indicator")
        feature = index(column, D, "feature")
        if not _NUMBER.fullmatch(text):
            problem = "is not finite" if _NOT_FINITE.fullmatch(text) else "is not a number"
            fail(f"the value {_shown(text)} of feature {feature} {problem}; correct or remove it")
        with np.errstate(over="ignore"):
            value = np.float32(float(text))
        if not np.isfinite(value):
            fail(f"the value {_shown(text)} of feature {feature} is too large for float32; scale the feature down")
        if feature in row:
            fail(f"feature {feature} comes twice in the row; merge the two values or remove one")
        row[feature] = value
    return list(labels), row


def _shown(token: bytes, quote: str = "'") -> str:
    text = token.decode("utf-8", errors="backslashreplace")
    return f"{quote}{text if len(text) <= 40 else text[:40] + '...'}{quote}"
