"""SVMlight (LIBSVM) text with several labels per row: ``l1,l2 f:v f:v``, no header, ``#`` starts a comment."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.datasets import load_svmlight_file

from extremegp.data._files import line_blocks
from extremegp.data.validation import FloatCSR, check_inputs
from extremegp.data.xc import Dataset
from extremegp.errors import DataError, SettingsError


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
    if zero_based not in (True, False, "auto"):
        raise SettingsError(f"zero_based must be True, False or 'auto', not {zero_based!r}")
    path = Path(path)
    content = b"".join(line_blocks(path))
    try:
        X, rows = _load(content, zero_based)
    except (ValueError, OverflowError) as error:
        line = _first_bad_line(content, zero_based)
        raise DataError(f"not a row 'l1,l2 f:v f:v': {error}", path=path, line=line) from error
    if not rows:
        raise DataError("the file has no rows, only comments or blank lines", path=path)
    lengths = [len(labels) for labels in rows]
    labels = np.fromiter((label for labels in rows for label in labels), dtype=np.float64, count=sum(lengths))
    row_of = np.repeat(np.arange(len(rows)), lengths)
    bad = np.flatnonzero(~((labels >= 0) & (labels % 1 == 0) & (labels < np.iinfo(np.int32).max)))
    if bad.size:
        raise DataError(
            f"the label {labels[bad[0]]:g} is not a column number counted from 0; is this a binary or regression file?",
            path=path,
            line=_line_of_row(content, int(row_of[bad[0]])),
        )
    K = n_labels or int(labels.max(initial=0)) + 1
    D = n_features or X.shape[1]
    if X.shape[1] > D:
        row = int(np.searchsorted(X.indptr, int(X.indices.argmax()), side="right")) - 1
        raise DataError(
            f"the file has {X.shape[1]} features but {D} were expected; use data made with the same features",
            path=path,
            line=_line_of_row(content, row),
        )
    if labels.size and labels.max() >= K:
        raise DataError(
            f"the label {labels.max():g} is out of range: {K} labels were expected, so they are 0 to {K - 1}",
            path=path,
            line=_line_of_row(content, int(row_of[labels.argmax()])),
        )
    X = csr_matrix((X.data, X.indices, X.indptr), shape=(len(rows), D))
    Y = _targets(labels, row_of, (len(rows), K), content, path)
    return Dataset(_features(X, content, path), Y, first_labels=_first_labels(content))


def _features(X: csr_matrix[Any], content: bytes, path: Path) -> FloatCSR:
    with np.errstate(over="ignore"):
        bad = np.flatnonzero(~np.isfinite(X.data.astype(np.float32)))
    if bad.size:
        row = int(np.searchsorted(X.indptr, bad[0], side="right")) - 1
        raise DataError(
            f"the value {X.data[bad[0]]:g} is not a finite float32 number; correct or remove it",
            path=path,
            line=_line_of_row(content, row),
        )
    X.eliminate_zeros()
    return csr_matrix(check_inputs(X))


def _targets(labels: Any, row_of: Any, shape: tuple[int, int], content: bytes, path: Path) -> FloatCSR:
    ones = np.ones(len(labels), dtype=np.float32)
    Y: FloatCSR = csr_matrix((ones, (row_of, labels.astype(np.int32))), shape=shape)
    twice = np.flatnonzero(Y.data > 1)
    if twice.size:
        row = int(np.searchsorted(Y.indptr, twice[0], side="right")) - 1
        raise DataError(
            f"label {Y.indices[twice[0]]} comes twice in the row; remove one",
            path=path,
            line=_line_of_row(content, row),
        )
    return Y


def _first_labels(content: bytes) -> NDArray[np.int32]:
    """The first label of every row, which scikit-learn's reader forgets by sorting; -1 for rows without any."""
    heads = (line.split(b"#", 1)[0].split(None, 1)[:1] for line in BytesIO(content))
    firsts = [-1 if b":" in head[0] else int(float(head[0].split(b",", 1)[0])) for head in heads if head]
    return np.asarray(firsts, dtype=np.int32)


def _load(content: bytes, zero_based: bool | str) -> tuple[csr_matrix[Any], list[tuple[float, ...]]]:
    X, rows = load_svmlight_file(BytesIO(content), multilabel=True, zero_based=zero_based)
    return csr_matrix(X), rows


def _first_bad_line(content: bytes, zero_based: bool | str) -> int:
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


def _line_of_row(content: bytes, row: int) -> int:
    rows = (number for number, line in enumerate(content.split(b"\n"), 1) if line.split(b"#")[0].split())
    return next(number for i, number in enumerate(rows) if i == row)
