"""Gaussian process regression of all labels at once, for every input on some of the training rows.

The regression of label k on m rows is t_k(x) = mu_k + sum_i w_i(x) (y_ik - mu_k), with row weights w = (K + S)^-1 k(x)
that are the same for all labels (Rasmussen and Williams 2006, 2.2): whatever the number of labels, it costs one m x m
factorisation. Only some rows are taken (Vecchia 1988; Gramacy and Apley 2015), the nearest and those that these leave
unexplained, so that nothing grows with the number of rows either, and leaving a training row out is to take others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, NamedTuple, no_type_check

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn.utils.extmath import row_norms
from torch import Tensor, nn

from extremegp.engine.compiled import in_lanes
from extremegp.engine.lengthscales import noises
from extremegp.engine.selection import Selection
from extremegp.threads import alone

PRECISIONS, NOISES = (0.25, 0.5, 1.0, 2.0, 4.0), (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Inverse squared lengthscales, beside that of the spread of the rows, and variances of the noise that are tried."""
LEAST_NOISE = 1e-3
_CHOOSING_ROWS = 250
_ENTRIES = 1 << 20  # of the covariances that are held at once


class Neighbourhoods(NamedTuple):
    """Inputs, and training rows that say something of each.

    Attributes:
        x: inputs, B x D.
        nearest: training rows, the nearest first, B x at least m.
        sizes: how many there are, B.
        rows: inputs of the training rows, N x D.
        counts: what each of these counts, N.
    """

    x: scipy.sparse.csr_matrix
    nearest: NDArray[np.int32]
    sizes: NDArray[np.int64]
    rows: scipy.sparse.csr_matrix
    counts: NDArray[np.float32]

    def of(self, inputs: slice | NDArray[np.int64]) -> Neighbourhoods:
        """Those of some of the inputs."""
        return self._replace(x=self.x[inputs], nearest=self.nearest[inputs], sizes=self.sizes[inputs])


class RowWeights(NamedTuple):
    """What rows count in the regression at each of B inputs.

    Attributes:
        weights: w, B x m; 0 where there are fewer rows.
        variance: v = k(x, x) - k' (K + S)^-1 k, B, in [0, 1]: 1 where the regression knows nothing.
    """

    weights: NDArray[np.float32]
    variance: NDArray[np.float32]


class _Products(NamedTuple):
    """Inner products of some inputs: with themselves, with their m nearest rows, and of these with each other."""

    own: Float[Tensor, " B"]
    across: Float[Tensor, "B m"]
    among: Float[Tensor, "B m m"]
    taken: Float[Tensor, "B m"]
    counts: Float[Tensor, "B m"]


@in_lanes
@no_type_check
def inner_products(
    lane: int, n_lanes: int, indptr: Any, indices: Any, data: Any, nearest: Any, sizes: Any, row_indptr: Any,
    row_indices: Any, row_data: Any, n_features: int, across: Any, among: Any,
) -> None:  # fmt: skip
    """Inner products of inputs with their nearest rows, and of these with each other.

    Args:
        lane: which part of the work.
        n_lanes: of how many.
        indptr: with `indices` and `data` the inputs, CSR, B x D.
        indices: see `indptr`.
        data: see `indptr`.
        nearest: training rows, B x m.
        sizes: how many there are.
        row_indptr: with `row_indices` and `row_data` the training rows, CSR, N x D.
        row_indices: see `row_indptr`.
        row_data: see `row_indptr`.
        n_features: D.
        across: results from here on, zero before: x'z_a, B x m.
        among: z_a'z_b for b <= a, B x m x m.
    """
    # The rows by their features: products then are sums of contiguous columns.
    m, counts, place = across.shape[1], np.zeros(n_features, np.int32), np.empty(n_features, np.int32)
    columns = np.empty((0, m), np.float32)
    for i in range(lane, len(nearest), n_lanes):
        n_columns, n_rows = 0, sizes[i]
        for a in range(n_rows):
            for j in range(row_indptr[nearest[i, a]], row_indptr[nearest[i, a] + 1]):
                if counts[row_indices[j]] == 0:
                    place[row_indices[j]] = n_columns
                    n_columns += 1
                counts[row_indices[j]] += 1
        if n_columns > len(columns):
            columns = np.empty((n_columns, m), np.float32)
        columns[:n_columns] = 0
        for a in range(n_rows):
            products = among[i, a]
            for j in range(row_indptr[nearest[i, a]], row_indptr[nearest[i, a] + 1]):
                value, column = row_data[j], columns[place[row_indices[j]]]
                column[a] = value
                if counts[row_indices[j]] == 1:
                    products[a] += value * value
                else:
                    for b in range(a + 1):
                        products[b] += value * column[b]
        products = across[i]
        for j in range(indptr[i], indptr[i + 1]):
            if counts[indices[j]] > 0:
                column = columns[place[indices[j]]]
                for b in range(n_rows):
                    products[b] += data[j] * column[b]
        for a in range(n_rows):
            for j in range(row_indptr[nearest[i, a]], row_indptr[nearest[i, a] + 1]):
                counts[row_indices[j]] = 0


class LocalRegression(nn.Module):
    """The regression of the labels on m rows, with the kernel exp(-p |x - z|^2 / 2) and noise s^2.

    Rows that count w_i have noise s^2 / w_i.

    Args:
        n_nearest: m.
    """

    precision: Tensor
    noise: Tensor

    def __init__(self, n_nearest: int) -> None:
        super().__init__()
        self.n_nearest = n_nearest
        self.register_buffer("precision", torch.ones(()))
        self.register_buffer("noise", torch.ones(()))

    def of(self, near: Neighbourhoods, n_rows: int | None = None) -> RowWeights:
        """Weights and variances at inputs, of a regression on the first `n_rows`, m by default."""
        m = self.n_nearest if n_rows is None else n_rows
        kernel = float(self.precision), float(self.noise)
        # Several threads take longer than one to solve one system.
        with alone(len(near.nearest) == 1):
            parts = [self._solved(products, *kernel) for products in self._products(near, m)]
        weights, variance = zip(*parts, strict=True) if parts else ((np.zeros((0, m)),), (np.zeros(0),))
        return RowWeights(np.concatenate(weights).astype(np.float32), np.concatenate(variance).astype(np.float32))

    def choose(
        self,
        near: Neighbourhoods,
        own: NDArray[np.int64],
        y: scipy.sparse.csr_matrix,
        frequencies: NDArray[np.float32],
    ) -> Selection:
        """Take the kernel and the noise with the least squared error at training rows, each left out.

        The noise is the best one for the kernel and the kernel the best one for the noise: of the grid, which has both,
        only some pairs are looked at.

        Args:
            near: the rows to look at, with the nearest of the other rows to each of them.
            own: which training rows they are.
            y: labels of the training rows, N x K.
            frequencies: mu, K.

        Returns:
            What was tried.
        """
        some = np.linspace(0, len(own) - 1, min(len(own), _CHOOSING_ROWS)).round().astype(np.int64)
        near, own = near.of(some), own[some]
        norms = row_norms(near.rows, squared=True).astype(np.float64)
        spread = float(norms.mean() - np.square(np.asarray(near.rows.mean(axis=0), dtype=np.float64)).sum())
        scale = 1 / max(spread, 1e-12)
        squares = float(np.square(frequencies, dtype=np.float64).sum())
        m = min(self.n_nearest, near.nearest.shape[1])
        pieces, truth, voters = list(self._products(near, m)), y[own], near.nearest[:, :m].ravel()

        tried: list[tuple[tuple[float, float], float]] = []

        @cache
        def error(precision: float, noise: float) -> float:
            weights = np.concatenate([self._solved(products, scale * precision, noise)[0] for products in pieces])
            starts = np.arange(0, weights.size + 1, m)
            voting = scipy.sparse.csr_matrix((weights.ravel(), voters, starts), shape=(len(own), y.shape[0]))
            left, rest = truth - voting @ y, 1 - weights.sum(axis=1)
            each = np.asarray(left.multiply(left).sum(axis=1)).ravel() - 2 * rest * (left @ frequencies)
            tried.append(((scale * precision, noise), float(near.counts[own] @ (each + rest**2 * squares))))
            return tried[-1][1]

        precision, noise, before = 1.0, 1.0, (math.nan, math.nan)
        while before != (precision, noise):
            before = precision, noise
            noise = min(NOISES, key=partial(error, precision))
            precision = min(PRECISIONS, key=lambda each: error(each, noise))
        self.precision.fill_(scale * precision)
        self.noise.fill_(noise)
        return Selection.of(
            "squared error of training rows left out, least", {"precision": scale * precision, "noise": noise}, tried
        )

    @staticmethod
    def _products(near: Neighbourhoods, m: int) -> Iterator[_Products]:
        rows = near.rows
        for start in range(0, near.x.shape[0], max(1, _ENTRIES // m**2)):
            part = slice(start, start + max(1, _ENTRIES // m**2))
            some = near if part.stop >= near.x.shape[0] and start == 0 else near.of(part)
            x, nearest, sizes = some.x, some.nearest[:, :m], np.minimum(some.sizes, m)
            n = x.shape[0]
            across, among = np.zeros((n, m), np.float32), np.zeros((n, m, m), np.float32)
            inner_products(
                n, x.indptr, x.indices, x.data, nearest, sizes, rows.indptr, rows.indices, rows.data, rows.shape[1],
                across, among,
            )  # fmt: skip
            own = row_norms(x, squared=True)
            taken = (np.arange(m) < sizes[:, None]).astype(np.float32)
            arrays = (own, across, among, taken, np.where(taken > 0, near.counts[nearest], np.float32(1)))
            yield _Products(*map(torch.from_numpy, arrays))

    @staticmethod
    def _solved(products: _Products, precision: float, noise: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        own, across, among, taken, counts = products
        norms = among.diagonal(dim1=1, dim2=2)

        def kernel(exponents: Tensor) -> Tensor:
            return (precision * exponents).clamp_(max=0.0).exp_()

        # Rows that are missing have no covariance with any other. Of `among` the lower triangle is there.
        covariance = kernel(among - 0.5 * norms.unsqueeze(2) - 0.5 * norms.unsqueeze(1))
        covariance *= taken.unsqueeze(2) * taken.unsqueeze(1)
        covariance.diagonal(dim1=1, dim2=2).copy_(1 + noises(noise, counts))
        with_input = kernel(across - 0.5 * norms - 0.5 * own.unsqueeze(1)) * taken
        # In float64, or the number of threads would show: rows may be nearly alike.
        factor = torch.linalg.cholesky(covariance.double())
        weights = torch.cholesky_solve(with_input.double().unsqueeze(2), factor).squeeze(2).float()
        variance = (1 - (weights * with_input).sum(1)).clamp(min=0.0)
        return weights.numpy(), variance.numpy()
