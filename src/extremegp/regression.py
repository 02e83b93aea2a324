"""A mean function for the utilities: Gaussian process regression of the label indicators on many points.

What the mean of a classifier lacks where inducing inputs are few, regression can afford: with squared loss all K labels
share one factorisation. Its leave-one-out predictions, known in closed form (Rasmussen and Williams 2006, section
5.4.2), show the classifier in training what the regression says of rows that it has not seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.sparse import Inputs, SparseRows

Matrix = scipy.sparse.csr_matrix | NDArray[Any]

EXACT_ROWS, SUBSET_POINTS = 16384, 4096
"""More rows than the first are represented by as many of them as the second says."""
_FLOOR = 5e-3
_BLOCK_ELEMENTS = 1 << 24
_SUBSET, _STEPS, _RATE = 800, 100, 0.05


class RegressionMean(nn.Module):
    """c logit t_k(x), with t_k(x) = mu_k + k(x, X) a_k the regression of label k, and c learnt with the classifier.

    The kernel is exp(-1/2 sum_d w_d (x_d - z_d)^2). t is kept from 0.005 to 0.995 before the logit.

    Args:
        n_points: rows of X that are kept.
        n_stored: their stored entries.
        n_features: D.
        n_labels: K.
    """

    rows: Int[Tensor, " n_stored"]
    columns: Int[Tensor, " n_stored"]
    values: Float[Tensor, " n_stored"]
    weights: Float[Tensor, " D"]
    coefficients: Float[Tensor, "n_points K"]
    frequencies: Float[Tensor, " K"]

    def __init__(self, n_points: int, n_stored: int, n_features: int, n_labels: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(1))
        self.register_buffer("rows", torch.zeros(n_stored, dtype=torch.int64))
        self.register_buffer("columns", torch.zeros(n_stored, dtype=torch.int64))
        self.register_buffer("values", torch.zeros(n_stored))
        self.register_buffer("weights", torch.ones(n_features))
        self.register_buffer("coefficients", torch.zeros(n_points, n_labels))
        self.register_buffer("frequencies", torch.zeros(n_labels))
        self.index_limits = {"rows": n_points, "columns": n_features}
        self._points: _ScaledRows | None = None

    def forward(self, x: Inputs) -> Float[Tensor, "B K"]:
        """c logit t_k(x_i) of new inputs."""
        return self.scaled(self.logits(x))

    def scaled(self, logits: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        """c times logits."""
        return self.slope * logits

    def logits(self, x: Inputs) -> Float[Tensor, "B K"]:
        """logit t_k(x_i) of new inputs."""
        points = self._scaled_points()
        rows = _ScaledRows(_as_csr(x), points.scale)
        blocks = [torch.from_numpy(block).to(self.values) @ self.coefficients for block in rows.covariances(points)]
        return _logits(self.frequencies + torch.cat(blocks))

    def _scaled_points(self) -> _ScaledRows:
        # Loading replaces or overwrites the buffers; a copy of what the points were made of tells.
        source = (self.values, self.values._version, self.weights, self.weights._version)
        if self._points is None or not all(a is b for a, b in zip(self._points.source, source, strict=True)):
            shape = (len(self.coefficients), len(self.weights))
            rows, columns = self.rows.cpu().numpy(), self.columns.cpu().numpy()
            matrix = scipy.sparse.csr_matrix((self.values.cpu().numpy(), (rows, columns)), shape=shape)
            self._points = _ScaledRows(matrix, self.weights.sqrt().cpu().numpy(), source)
        return self._points


class Fitted(NamedTuple):
    """A regression, and what it says of its own training rows when each is left out.

    Attributes:
        mean: the mean function.
        logits: logit of the leave-one-out predictions, N x K.
    """

    mean: RegressionMean
    logits: NDArray[np.float32]


def points_kept(x: Matrix) -> tuple[int, int]:
    """How many rows of X a regression on it keeps, and the stored entries of these rows."""
    chosen = _as_csr(x)[_chosen(x.shape[0])]
    return chosen.shape[0], chosen.nnz


def fit_regression(x: Matrix, y: scipy.sparse.csr_matrix, *, rng: np.random.Generator) -> Fitted:
    """Learn the lengthscales and the noise, then regress the labels of all rows.

    With more than `EXACT_ROWS` rows the regression is that of the features k_Z(x) of `SUBSET_POINTS` rows Z (subset of
    regressors), which has closed leave-one-out predictions too.

    Args:
        x: inputs, N x D.
        y: labels that are 1, N x K.
        rng: decides the subsets that lengthscales are learnt on.
    """
    x = _as_csr(x)
    log_weights, noise = learn_lengthscales(x, y, rng=rng)
    chosen = _chosen(x.shape[0])
    kept = x[chosen].tocoo()
    mean = RegressionMean(len(chosen), kept.nnz, x.shape[1], y.shape[1])
    with torch.no_grad():
        for buffer, values in (
            (mean.rows, kept.row),
            (mean.columns, kept.col),
            (mean.values, kept.data),
            (mean.weights, np.exp(log_weights)),
            (mean.frequencies, np.asarray(y.mean(axis=0)).ravel()),
        ):
            buffer.copy_(torch.from_numpy(values))
        solve = _solve_all if len(chosen) == x.shape[0] else _solve_subset
        coefficients, left_out = solve(mean._scaled_points(), x, y, mean.frequencies, noise)
        mean.coefficients.copy_(coefficients)
    return Fitted(mean, _logits(left_out).float().numpy())


@torch.enable_grad()
def learn_lengthscales(
    x: scipy.sparse.csr_matrix, y: scipy.sparse.csr_matrix, *, rng: np.random.Generator
) -> tuple[NDArray[np.float32], float]:
    """Log of the weights w (D) and the noise variance that predict rows left out of random subsets best.

    The criterion is the squared error of the leave-one-out predictions, over all labels.
    """
    n_rows = x.shape[0]
    seen = np.bincount(x.indices, minlength=x.shape[1])
    start = np.log1p(np.log((1 + n_rows) / (1 + seen)))
    spread = float(np.mean(x.multiply(x) @ np.exp(start)))
    log_weights = torch.from_numpy(start + math.log(2 / max(spread, 1e-12))).float().requires_grad_()
    log_noise = torch.tensor(math.log(0.2), requires_grad=True)
    frequencies = torch.from_numpy(np.asarray(y.mean(axis=0), dtype=np.float32).ravel())
    optimizer = torch.optim.Adam([log_weights, log_noise], lr=_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, _STEPS, pct_start=0.2, cycle_momentum=False)
    for _ in range(_STEPS):
        rows = np.sort(rng.choice(n_rows, size=min(_SUBSET, n_rows), replace=False))
        chosen = x[rows]
        used = np.flatnonzero(np.bincount(chosen.indices, minlength=x.shape[1]))
        scale = (0.5 * log_weights.index_select(0, torch.from_numpy(used))).exp()
        inputs = torch.from_numpy(chosen[:, used].toarray()).float() * scale
        targets = torch.from_numpy(y[rows].toarray()).float() - frequencies
        norms = inputs.square().sum(1)
        covariance = (inputs @ inputs.T - 0.5 * (norms.unsqueeze(1) + norms)).clamp(max=0.0).exp()
        noisy = covariance + log_noise.exp() * torch.eye(len(rows))
        precision = torch.cholesky_inverse(torch.linalg.cholesky(noisy))
        residual = (precision @ targets) / precision.diagonal().unsqueeze(1)
        optimizer.zero_grad()
        residual.square().mean(0).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return log_weights.detach().numpy(), float(log_noise.detach().exp())


class _ScaledRows:
    """Rows in the coordinates where the kernel is exp(-1/2 ||x - z||^2)."""

    def __init__(self, x: scipy.sparse.csr_matrix, scale: NDArray[Any], source: tuple[Any, ...] = ()) -> None:
        self.scale, self.source = scale, source
        self.x = scipy.sparse.csr_matrix(x.multiply(scale))
        self.norms = np.asarray(self.x.multiply(self.x).sum(axis=1)).ravel()

    def covariances(self, points: _ScaledRows) -> Iterator[NDArray[Any]]:
        """k(x_i, z_j), a block of rows at a time."""
        step = max(1, _BLOCK_ELEMENTS // max(1, len(points.norms)))
        transposed = points.x.T.tocsr()
        for start in range(0, max(1, self.x.shape[0]), step):
            rows = slice(start, start + step)
            exponent = (self.x[rows] @ transposed).toarray()
            exponent -= 0.5 * self.norms[rows, None]
            exponent -= 0.5 * points.norms
            yield np.exp(np.minimum(exponent, 0.0, out=exponent), out=exponent)


def _solve_all(
    points: _ScaledRows, x: scipy.sparse.csr_matrix, y: scipy.sparse.csr_matrix, frequencies: Tensor, noise: float
) -> tuple[Tensor, Tensor]:
    """Coefficients a = (K + s2 I)^-1 (y - mu), and y - a / diag (K + s2 I)^-1."""
    targets = torch.from_numpy(y.toarray()).float()
    covariance = torch.from_numpy(np.concatenate(list(points.covariances(points)))).float()
    covariance.diagonal().add_(noise)
    precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
    coefficients = precision @ (targets - frequencies)
    return coefficients, targets - coefficients / precision.diagonal().unsqueeze(1)


def _solve_subset(
    points: _ScaledRows, x: scipy.sparse.csr_matrix, y: scipy.sparse.csr_matrix, frequencies: Tensor, noise: float
) -> tuple[Tensor, Tensor]:
    """Ridge regression on L^-1 k_Z(x), K_Z = L L'; with hat values h, (fit - h y) / (1 - h)."""
    size = len(points.norms)
    covariance = torch.from_numpy(np.concatenate(list(points.covariances(points)))).double()
    covariance.diagonal().add_(1e-6)
    root = torch.linalg.cholesky(covariance)
    inverse_root = torch.linalg.solve_triangular(root, torch.eye(size, dtype=root.dtype), upper=False).float()
    rows = _ScaledRows(x, points.scale)

    def blocks() -> Iterator[tuple[Tensor, Tensor]]:
        start = 0
        for block in rows.covariances(points):
            targets = torch.from_numpy(y[start : start + len(block)].toarray()).float()
            yield torch.from_numpy(block).float() @ inverse_root.T, targets
            start += len(block)

    precision, projected = noise * torch.eye(size), torch.zeros(size, y.shape[1])
    for features, targets in blocks():
        precision.addmm_(features.T, features)
        projected.addmm_(features.T, targets - frequencies)
    factor = torch.linalg.cholesky(precision)
    solution = torch.cholesky_solve(projected, factor)
    left_out = []
    for features, targets in blocks():
        whitened = torch.linalg.solve_triangular(factor, features.T, upper=False)
        hat = whitened.square().sum(0).clamp(max=1 - 1e-4).unsqueeze(1)
        left_out.append((frequencies + features @ solution - hat * targets) / (1 - hat))
    return inverse_root.T @ solution, torch.cat(left_out)


def _chosen(n_rows: int) -> NDArray[np.int64]:
    """All rows, or `SUBSET_POINTS` spread evenly over them."""
    return np.linspace(0, n_rows - 1, n_rows if n_rows <= EXACT_ROWS else SUBSET_POINTS).round().astype(np.int64)


def _as_csr(x: Matrix | Inputs) -> scipy.sparse.csr_matrix:
    if isinstance(x, SparseRows):
        arrays = (x.values.cpu().numpy(), x.columns.cpu().numpy(), x.offsets.cpu().numpy())
        return scipy.sparse.csr_matrix(arrays, shape=x.shape)
    return scipy.sparse.csr_matrix(x.cpu().numpy() if isinstance(x, Tensor) else x)


def _logits(t: Tensor) -> Tensor:
    return torch.logit(t, eps=_FLOOR)
