"""SVMlight (LIBSVM) text with several labels per row: ``l1,l2 f:v f:v``, no header, ``#`` starts a comment."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.datasets import load_svmlight_file

from extremegp.data.blocks import BEGINNING, MAX_COLUMNS, Dataset, Part, Position, RowBlock, RowStream, Sizes, assemble
from extremegp.errors import DataError, SettingsError
from extremegp.storage.streams import text_blocks


def read_svmlight(
    path: str | Path,
    *,
    n_features: int | None = None,
    n_labels: int | None = None,
    zero_based: bool | Literal["auto"] = "auto",
) -> Dataset:
    """Read a multi-label SVMlight file by scikit-learn's reader.

    Labels are column numbers counted from 0, whatever `zero_based` says. Features of a row must be in increasing
    order. Blank lines are skipped; a row without labels starts with its first feature.

    Args:
        path: the file; .gz, .bz2, .xz and .zst are decompressed.
        n_features: D; by default the largest feature in the file decides, which differs between the files of a data
            set, so give it for test data.
        n_labels: K; by default one more than the largest label.
        zero_based: whether features count from 0. "auto" takes 1 if no feature 0 occurs, which can differ between the
            files of a data set as well.

    Raises:
        DataError: the file cannot be read or breaks the format, or its columns exceed `n_features` or `n_labels`;
            names the file, and the line where one is to blame.
        SettingsError: `zero_based` is something else.
    """
    return assemble(SvmlightStream(path, n_features=n_features, n_labels=n_labels, zero_based=zero_based))


class SvmlightStream(RowStream):
    """A multi-label SVMlight file in blocks of rows; the arguments are those of `read_svmlight`.

    Raises:
        SettingsError: `zero_based` is something else.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        n_features: int | None = None,
        n_labels: int | None = None,
        zero_based: bool | Literal["auto"] = "auto",
    ) -> None:
        if zero_based not in (True, False, "auto"):
            raise SettingsError(f"zero_based must be True, False or 'auto', not {zero_based!r}")
        self._path = Path(path)
        self._D, self._K, self._zero_based = n_features, n_labels, zero_based
        # The largest feature and label with their lines, for those are to blame where they exceed D or K.
        self.learnt = {"lowest": None, "feature": [-1, 0], "label": [-1, 0], "rows": 0}

    def parts(self, start: Position = BEGINNING) -> Iterator[Part]:
        _, n_lines, n_rows = start
        for block in text_blocks(self._path, offset=start.offset):
            rows = self._rows(block.lines, n_lines)
            n_lines += block.lines.count(b"\n")
            n_rows += len(rows.n_features)
            self.learnt["rows"] = n_rows
            yield Part(rows, Position(block.end, n_lines, n_rows), block.read)

    def sizes(self) -> Sizes:
        (feature, feature_line), (label, label_line) = self.learnt["feature"], self.learnt["label"]
        if not self.learnt["rows"]:
            raise DataError("the file has no rows, only comments or blank lines", path=self._path)
        first = int(self._zero_based == "auto" and (self.learnt["lowest"] or 0) > 0)
        D = max(feature, first) + 1 - first
        if self._D is not None and D > self._D:
            raise DataError(
                f"the file has {D} features but {self._D} were expected; use data made with the same features",
                path=self._path,
                line=feature_line,
            )
        if self._K is not None and label >= self._K:
            raise DataError(
                f"the label {label} is out of range: {self._K} labels were expected, so they are 0 to {self._K - 1}",
                path=self._path,
                line=label_line,
            )
        return Sizes(self._D or D, self._K or max(label, 0) + 1, first)

    def _rows(self, content: bytes, n_lines: int) -> RowBlock:
        def fail(problem: str, row: Any) -> NoReturn:
            raise DataError(problem, path=self._path, line=n_lines + _line_of_row(content, row))

        try:
            X, rows = _load(content, self._zero_based is not False)
        except (ValueError, OverflowError) as error:
            line = n_lines + _first_bad_line(content, self._zero_based is not False)
            raise DataError(f"not a row 'l1,l2 f:v f:v': {error}", path=self._path, line=line) from error
        n_labels = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        labels = np.fromiter(chain.from_iterable(rows), dtype=np.float64, count=n_labels.sum())
        row_of = np.repeat(np.arange(len(rows)), n_labels)
        bad = np.flatnonzero(~((labels >= 0) & (labels % 1 == 0) & (labels < MAX_COLUMNS)))
        if bad.size:
            fail(
                f"the label {labels[bad[0]]:g} is not a column number counted from 0; is this a binary or regression "
                "file?",
                row_of[bad[0]],
            )
        columns = labels.astype(np.int32)
        order = np.lexsort((columns, row_of))
        columns = columns[order]
        twice = np.flatnonzero((np.diff(columns) == 0) & (np.diff(row_of) == 0))
        if twice.size:
            fail(f"label {columns[twice[0]]} comes twice in the row; remove one", row_of[twice[0]])
        with np.errstate(over="ignore"):
            values = X.data.astype(np.float32)
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            row = _row_of_entry(X, bad[0])
            fail(f"the value {X.data[bad[0]]:g} is not a finite float32 number; correct or remove it", row)
        if X.nnz and X.indices.max() >= MAX_COLUMNS:
            fail(f"a feature is beyond {MAX_COLUMNS - 1}", _row_of_entry(X, int(X.indices.argmax())))
        self._learn(X, labels, row_of, content, n_lines)
        n_features = np.diff(X.indptr).astype(np.int64)
        features = X.indices.astype(np.int32)
        return RowBlock(n_features, features, values, n_labels, columns, _first_labels(content)).without_zeros()

    def _learn(self, X: csr_matrix[Any], labels: Any, row_of: Any, content: bytes, n_lines: int) -> None:
        if X.nnz:
            lowest, known = int(X.indices.min()), self.learnt["lowest"]
            self.learnt["lowest"] = lowest if known is None else min(lowest, known)
            if (highest := int(X.indices.max())) > self.learnt["feature"][0]:
                row = _row_of_entry(X, int(X.indices.argmax()))
                self.learnt["feature"] = [highest, n_lines + _line_of_row(content, row)]
        if labels.size and (highest := int(labels.max())) > self.learnt["label"][0]:
            row = int(row_of[labels.argmax()])
            self.learnt["label"] = [highest, n_lines + _line_of_row(content, row)]


def _row_of_entry(X: csr_matrix[Any], entry: Any) -> int:
    return int(np.searchsorted(X.indptr, entry, side="right")) - 1


def _first_labels(content: bytes) -> NDArray[np.int32]:
    """The first label of every row, which scikit-learn's reader forgets by sorting; -1 for rows without any."""
    heads = (line.split(b"#", 1)[0].split(None, 1)[:1] for line in BytesIO(content))
    firsts = [-1 if b":" in head[0] else int(float(head[0].split(b",", 1)[0])) for head in heads if head]
    return np.asarray(firsts, dtype=np.int32)


def _load(content: bytes, zero_based: bool) -> tuple[csr_matrix[Any], list[tuple[float, ...]]]:
    X, rows = load_svmlight_file(BytesIO(content), multilabel=True, zero_based=zero_based)
    return csr_matrix(X), rows


def _first_bad_line(content: bytes, zero_based: bool) -> int:
    """The 1-based line at which scikit-learn's reader stops, by bisection on the length of the beginning it accepts."""
    lines = [line + b"\n" for line in content.split(b"\n")[:-1]]
    good, bad = 0, len(lines)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _load(b"".join(lines[good:middle]), zero_based)
            good = middle
        except (ValueError, OverflowError):
            bad = middle
    return bad


def _line_of_row(content: bytes, row: Any) -> int:
    rows = (number for number, line in enumerate(content.split(b"\n"), 1) if line.split(b"#")[0].split())
    return next(number for i, number in enumerate(rows) if i == row)
