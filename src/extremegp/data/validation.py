"""Checks on feature matrices at the doors of the library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse
from sklearn.utils.validation import check_array

from extremegp.errors import DataError

FloatCSR: TypeAlias = "csr_matrix[np.float32]"
"""A float32 CSR matrix with sorted, unique column indices in every row."""

_BLOCK_ENTRIES = 1 << 22

FloatMatrix: TypeAlias = "csr_matrix[np.float32] | NDArray[np.float32]"


def check_inputs(
    X: Any, n_features: int | None = None, name: str = "X", *, expected_by: str = "the model"
) -> FloatMatrix:
    """Check a feature matrix and bring it into one of the two forms that the library computes on.

    Args:
        X: N x D numbers: any scipy sparse format, or whatever NumPy makes a 2-D array of bool, int or float. An array
            of objects passes if all of them are numbers, as in scikit-learn.
        n_features: the D that X must have, if known.
        name: what to call X in messages.
        expected_by: who wants `n_features` columns, in messages.

    Returns:
        Sparse X as float32 CSR, N x D, column indices sorted, entries of the same position summed; other X as
        C-contiguous float32 array, N x D. The memory is X's own where nothing had to change, so treat it as
        read-only; X itself is never changed. Where `is_mapped(X)`, it is looked through in blocks and never copied,
        unless columns are out of order.

    Raises:
        DataError: X is not 2-D, has no rows or columns, another number of columns than `n_features`, a type that is
            not a real number, or a NaN, an infinity or a value outside float32 (at a row and column that are named).
        TypeError: X holds objects that are not numbers.
    """
    if is_mapped(X) and _sound(X, name):
        _check_width(X, n_features, name, expected_by)
        mapped: FloatCSR = X
        return mapped
    try:
        checked = check_array(X, accept_sparse="csr", dtype="numeric", ensure_all_finite=False, input_name=name)
        sparse: bool = issparse(checked)
        if sparse:
            # A hand-made matrix may point outside its own columns; nothing below would notice.
            checked.check_format(full_check=True)
    except ValueError as error:
        # scikit-learn's message for one dimension prints the array, over several lines.
        raise DataError(" ".join(str(error).split())) from error
    if checked.dtype.kind not in "biuf":
        raise DataError(f"{name} has dtype {checked.dtype}; pass bool, integer or float numbers")
    _check_width(checked, n_features, name, expected_by)
    # What overflows is refused, and infinities of both signs have no sum.
    with np.errstate(over="ignore", invalid="ignore"):
        return _sparse(checked, name) if sparse else _dense(checked, name)


def is_mapped(X: Any) -> bool:
    """Whether X is a float32 CSR matrix whose entries are mapped from files, so that it may be larger than memory."""
    if not isinstance(X, csr_matrix) or X.dtype != np.float32:
        return False
    base: Any = X.data
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return False


def csr_of(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], shape: tuple[int, int]) -> FloatCSR:
    """A CSR matrix over arrays that are known to be sound and of one index type: nothing is copied or looked at."""
    of_shape: Any = csr_matrix
    matrix: FloatCSR = of_shape(shape, dtype=np.float32)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    matrix.has_canonical_format = True
    return matrix


def row_blocks(indptr: NDArray[Any], n_entries: int | None = None) -> Iterator[slice]:
    """Consecutive rows of a CSR matrix with about `n_entries` stored entries each, in which whole data are worked on.

    Args:
        indptr: N + 1 row starts.
        n_entries: by default 4 million.
    """
    n_entries = n_entries or _BLOCK_ENTRIES
    start, n_rows, n_stored = 0, len(indptr) - 1, int(indptr[-1])
    while start < n_rows:
        # Of the array's own type, for a number of another would make searchsorted convert the whole array.
        limit = indptr.dtype.type(min(int(indptr[start]) + n_entries, n_stored))
        stop = int(np.searchsorted(indptr, limit, side="right")) - 1
        stop = min(max(stop, start + 1), start + n_entries, n_rows)
        yield slice(start, stop)
        start = stop


def column_counts(X: FloatCSR) -> NDArray[np.int64]:
    """How many entries of every column are stored and not zero, D."""
    counts = np.zeros(X.shape[1], dtype=np.int64)
    for rows in row_blocks(X.indptr):
        entries = slice(int(X.indptr[rows.start]), int(X.indptr[rows.stop]))
        columns = X.indices[entries][X.data[entries] != 0]
        if len(columns) * 8 >= X.shape[1]:
            counts += np.bincount(columns, minlength=X.shape[1])
        else:
            np.add.at(counts, columns, 1)
    return counts


def increasing(row_ends: NDArray[Any], indices: NDArray[Any]) -> bool:
    """Whether the indices of every row increase; `row_ends` counts from the first of the indices."""
    steps = np.diff(indices, prepend=-1) > 0
    row_starts = row_ends[:-1]
    steps[row_starts[row_starts < len(steps)]] = True
    return bool(steps.all())


class Fault(NamedTuple):
    """What is wrong with a CSR matrix: row starts, the columns of rows (after a row), or the value of an entry."""

    where: Literal["indptr", "range", "order", "value"]
    at: int = 0


def first_fault(X: FloatCSR, *, zeros: bool = True, ones: bool = False) -> Fault | None:
    """The first fault of a CSR matrix, by one pass over its arrays in blocks.

    Args:
        X: N x D; nothing is known of its arrays but that they have N + 1 row starts.
        zeros: whether stored zeros are sound.
        ones: whether only ones are.
    """
    indptr, n_stored = X.indptr, len(X.indices)
    if len(X.data) != n_stored or indptr[0] != 0 or indptr[-1] != n_stored:
        return Fault("indptr")
    for start in range(0, len(indptr) - 1, _BLOCK_ENTRIES):
        if (np.diff(indptr[start : start + _BLOCK_ENTRIES + 1]) < 0).any():
            return Fault("indptr", start)
    for rows in row_blocks(indptr):
        first = int(indptr[rows.start])
        entries = slice(first, int(indptr[rows.stop]))
        columns, values = X.indices[entries], X.data[entries]
        if columns.size and not 0 <= columns.min() <= columns.max() < X.shape[1]:
            return Fault("range", first + int(np.argmin((columns >= 0) & (columns < X.shape[1]))))
        if not increasing(indptr[rows.start + 1 : rows.stop + 1] - first, columns):
            return Fault("order", rows.start)
        sound = values == 1 if ones else np.isfinite(values)
        if not zeros:
            sound &= values != 0
        if not sound.all():
            return Fault("value", first + int(np.argmin(sound)))
    return None


def _sound(X: FloatCSR, name: str) -> bool:
    """Whether a mapped matrix can be used as it is; else it must be put in order, which copies it."""
    if min(X.shape) < 1:
        return False
    fault = first_fault(X)
    if fault is not None and fault.where == "value":
        _refuse(X.data[fault.at], *entry_position(X, fault.at), name)
    return fault is None


def _check_width(X: Any, n_features: int | None, name: str, expected_by: str) -> None:
    if n_features is not None and X.shape[1] != n_features:
        raise DataError(
            f"{name} has {X.shape[1]} features, but {expected_by} is expecting {n_features} features as input; "
            "build it with the same feature columns as in training"
        )


def entry_position(matrix: csr_matrix[Any], entry: int) -> tuple[int, int]:
    """Row and column of the stored entry number `entry` of a CSR matrix."""
    return int(np.searchsorted(matrix.indptr, entry, side="right")) - 1, int(matrix.indices[entry])


def _dense(checked: NDArray[Any], name: str) -> NDArray[np.float32]:
    X = np.ascontiguousarray(checked, dtype=np.float32)
    # The sum needs no mask of the size of X; it also is non-finite wherever an entry is.
    if not np.isfinite(X.sum(dtype=np.float64)):
        for row in range(X.shape[0]):
            bad = np.flatnonzero(~np.isfinite(X[row]))
            if bad.size:
                _refuse(checked[row, bad[0]], row, int(bad[0]), name)
    return X


def _sparse(checked: csr_matrix[Any], name: str) -> FloatCSR:
    X: FloatCSR = csr_matrix(checked, dtype=np.float32)
    _check_entries(X, checked.data, name)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
        _check_entries(X, X.data, name)
    return X


def _check_entries(X: FloatCSR, original: NDArray[Any], name: str) -> None:
    bad = np.flatnonzero(~np.isfinite(X.data))
    if bad.size:
        _refuse(original[bad[0]], *entry_position(X, int(bad[0])), name)


def _refuse(value: Any, row: int, column: int, name: str) -> None:
    if np.isnan(value):
        what, remedy = "NaN", "impute or drop missing values first"
    elif np.isinf(value):
        what, remedy = "infinity (inf)", "clip it or drop the row"
    else:
        what, remedy = f"{value}, which is too large for float32 (inf)", "scale the column down"
    raise DataError(f"{name} contains {what} at row {row}, column {column} (counted from 0); {remedy}")
