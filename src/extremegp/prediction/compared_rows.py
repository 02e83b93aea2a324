"""Training rows of one kind of features, which other rows are compared with: the mean distance to the nearest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse
from sklearn.utils.extmath import row_norms

from extremegp.engine.matrices import FloatMatrix, csr_of

NEIGHBOURS = 10
"""Rows that a row is compared with, the nearest."""
FARTHEST = float(np.finfo(np.float32).max)
"""How far is what is beyond float32."""
_BLOCK_ELEMENTS = 1 << 22
_SAME_NORM, _ROUNDING = 1e-3, 1e-6


class ComparedRows:
    """Training rows of a block, which other rows are compared with."""

    def __init__(self, matrix: FloatMatrix, directed: bool) -> None:
        self.matrix, self.directed = matrix, directed
        self._centre, self._spread = np.zeros(matrix.shape[1], np.float32), np.float32(1)
        if not directed:
            if isinstance(matrix, np.ndarray):
                self._centre = matrix.mean(axis=0, dtype=np.float64).astype(np.float32)
            # So that squares stay within what float32 can hold.
            self._spread = np.float32(_largest(matrix, self._centre) or 1)
        points = matrix if directed else self.prepared(matrix)
        self._points: Any = points.T.tocsr() if issparse(points) else points.T
        self._norms = _squares(points)

    def prepared(self, x: FloatMatrix, unknown: NDArray[np.float32] | None = None) -> FloatMatrix:
        """Rows in the form and the coordinates of these."""
        if isinstance(self.matrix, np.ndarray):
            array: NDArray[np.float32] = x.toarray() if issparse(x) else x
            return directed_rows(array, unknown) if self.directed else (array - self._centre) / self._spread
        rows = csr_matrix(x)
        return directed_rows(rows, unknown) if self.directed else csr_matrix(rows / self._spread)

    @np.errstate(over="ignore", invalid="ignore")
    def distances(
        self, queries: Callable[[slice], FloatMatrix], n: int, *, own: NDArray[np.int64] | None = None
    ) -> NDArray[np.float32]:
        """How far n rows are from the nearest of these in the mean.

        Args:
            queries: gives some of them as `prepared` makes them.
            n: how many.
            own: which of these rows they are, none of which is a neighbour of its own; None for other rows.
        """
        size = self.matrix.shape[0]
        k = min(NEIGHBOURS, size - (own is not None))
        found = np.full(n, FARTHEST, np.float32)
        for rows in _slices(n, max(1, _BLOCK_ELEMENTS // size)) if k else ():
            block = queries(rows)
            products: Any = block @ self._points
            if isinstance(products, csr_matrix):
                products = products.toarray()
            if not self.directed:
                products = 2 * products - self._norms
            if own is not None:
                products[np.arange(len(products)), own[rows]] = -np.inf
            # Many times faster than NumPy's partition.
            nearest = torch.from_numpy(products).topk(k, dim=1).values.numpy()
            if self.directed:
                apart = 1 - nearest.mean(axis=1)
                found[rows] = np.where(apart < _ROUNDING, 0, apart)
            else:
                norms = _squares(block)[:, None]
                squares = norms - nearest
                # What is less is the rounding of a difference between equal rows.
                found[rows] = np.sqrt(np.where(squares < _ROUNDING * norms, 0, squares)).mean(axis=1)
        finite: NDArray[np.float32] = np.nan_to_num(found, nan=FARTHEST, posinf=FARTHEST)
        return finite


def _slices(n: int, step: int) -> Iterator[slice]:
    for start in range(0, n, step):
        yield slice(start, min(n, start + step))


def _largest(x: FloatMatrix, centre: NDArray[np.float32]) -> float:
    values: Any = x.data if issparse(x) else x - centre
    return float(max(values.max(initial=0), -values.min(initial=0)))


def _squares(x: FloatMatrix) -> NDArray[np.float32]:
    """Squared norms of rows."""
    if issparse(x):
        return np.asarray(row_norms(x, squared=True))
    squares: NDArray[np.float32] = np.einsum("nd,nd->n", x, x)
    return squares


def _norms(x: FloatMatrix) -> NDArray[np.float64]:
    """Norms of rows, of any numbers that float32 can hold."""
    if issparse(x):
        return np.asarray(row_norms(x.astype(np.float64)))
    norms: NDArray[np.float64] = np.sqrt(np.einsum("nd,nd->n", x, x, dtype=np.float64))
    return norms


def of_one_norm(x: FloatMatrix) -> bool:
    """Whether rows are of one length, but for those of zeros."""
    norms = _norms(x)
    norms = norms[norms > 0]
    return bool(len(norms) and np.ptp(norms) <= _SAME_NORM * norms.max())


def directed_rows(x: FloatMatrix, unknown: NDArray[np.float32] | None) -> FloatMatrix:
    """Rows at unit norm, or at what is left of it beside unknown features; those of zeros stay zero."""
    norms = _norms(x)
    factors = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
    if unknown is not None:
        factors *= np.sqrt(1 - unknown)
    if issparse(x):
        return csr_of((x.data * np.repeat(factors, np.diff(x.indptr))).astype(np.float32), x.indices, x.indptr, x.shape)
    directed: NDArray[np.float32] = (x * factors[:, None]).astype(np.float32)
    return directed


def without_columns(x: FloatMatrix, columns: NDArray[np.int64]) -> FloatMatrix:
    """Rows with zeros in some columns."""
    if not len(columns):
        return x
    kept = np.ones(x.shape[1], np.float32)
    kept[columns] = 0
    if issparse(x):
        return csr_of(x.data * kept[x.indices], x.indices, x.indptr, x.shape)
    without: NDArray[np.float32] = x * kept
    return without
