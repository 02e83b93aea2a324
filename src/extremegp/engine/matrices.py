"""CSR matrices of features and of labels, in memory or mapped from files: their forms, and blocks of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse

FloatCSR: TypeAlias = "csr_matrix[np.float32]"
"""A float32 CSR matrix with sorted, unique column indices in every row."""

FloatMatrix: TypeAlias = "csr_matrix[np.float32] | NDArray[np.float32]"

# Stored entries of the blocks in which whole data are worked on.
_BLOCK_ENTRIES = 1 << 22

# Shares of entries that are not zero up to which products of stored entries are faster than those of arrays: less where
# what they are multiplied with is too wide for the caches.
_WIDE, _FEW_ENTRIES, _FEW_OF_WIDE = 8192, 0.2, 0.07
_SMALL = 1 << 24


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


def mostly_zero(X: csr_matrix[Any] | NDArray[Any], n_rows: int | None = None) -> bool:
    """Whether so few entries are not zero that products take less time as CSR than as an array.

    It is a fact of the numbers, however they are held: what goes by it rounds alike for CSR and arrays.

    Args:
        X: N x D.
        n_rows: how many rows to look at, spread evenly; None for all.
    """
    if n_rows is not None and n_rows < X.shape[0]:
        X = X[np.linspace(0, X.shape[0] - 1, n_rows).astype(np.int64)]
    n_entries = np.count_nonzero(X.data if issparse(X) else X)
    share = _FEW_ENTRIES if X.shape[1] <= _WIDE else _FEW_OF_WIDE
    return bool(n_entries <= share * X.shape[0] * X.shape[1])


def suited_form(X: FloatMatrix) -> FloatMatrix:
    """X as CSR where `mostly_zero`, else as an array, unless that would take several times the memory of CSR.

    X that is mapped from files stays there, unless it is small.
    """
    if (issparse(X) and X.shape[1] > _WIDE) or (is_mapped(X) and X.shape[0] * X.shape[1] > _SMALL):
        return X
    if mostly_zero(X):
        return X if issparse(X) else csr_matrix(X)
    array: NDArray[np.float32] = X.toarray() if issparse(X) else X
    return array


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


def column_sums(X: FloatCSR, row_weights: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """The sum of every column, D, of rows that count as much as their weights say; 1 by default."""
    sums = np.zeros(X.shape[1])
    for rows in row_blocks(X.indptr):
        entries = slice(int(X.indptr[rows.start]), int(X.indptr[rows.stop]))
        values: NDArray[Any] = X.data[entries]
        if row_weights is not None:
            values = values * np.repeat(row_weights[rows], np.diff(X.indptr[rows.start : rows.stop + 1]))
        sums += np.bincount(X.indices[entries], weights=values, minlength=X.shape[1])
    return sums


def column_means(X: FloatCSR, row_weights: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """The weighted mean of every column, D."""
    total = X.shape[0] if row_weights is None else float(row_weights.sum())
    return column_sums(X, row_weights) / total


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


def entry_position(matrix: csr_matrix[Any], entry: int) -> tuple[int, int]:
    """Row and column of the stored entry number `entry` of a CSR matrix."""
    return int(np.searchsorted(matrix.indptr, entry, side="right")) - 1, int(matrix.indices[entry])
