"""A mean function for the utilities: Gaussian process regression of the label indicators on many points.

What the mean of a classifier lacks where inducing inputs are few, regression can afford: with squared loss all K labels
share one factorisation. Its leave-one-out predictions, known in closed form (Rasmussen and Williams 2006, section
5.4.2), show the classifier in training what the regression says of rows that it has not seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.engine.kernels import squared_exponential
from extremegp.engine.linalg import inverse, inverse_cholesky
from extremegp.engine.matrices import column_means
from extremegp.engine.part import Part, TrainingData
from extremegp.engine.sparse import Inputs, Matrix, SparseRows

Link = Literal["logit", "log"]

EXACT_ROWS, SUBSET_POINTS = 16384, 4096
"""More rows than the first are represented by as many of them as the second says, unless told otherwise."""
_FLOOR = 5e-3
_LEAST_NOISE, _MOST_NOISE = 1e-4, 1e8
"""Of the noise variance of a row with a weight, beside covariances of 1."""
_BLOCK_ELEMENTS = 1 << 24
_SUBSET, _STEPS, _RATE = 800, 100, 0.05


class RegressionMean(Part):
    """c link t_k(x), with t_k(x) = mu_k + k(x, X) a_k the regression of label k, and c learnt with the classifier.

    The kernel is exp(-1/2 sum_d w_d (x_d - z_d)^2). The link is the logit for labels that are present or not, with t
    kept from 0.005 to 0.995, and the logarithm for one class out of K, with t kept above 0.005.

    Args:
        n_points: rows of X that are kept.
        n_stored: their stored entries; None to keep them as an array.
        n_features: D.
        n_labels: K.
        link: "logit" or "log".
    """

    points: Float[Tensor, "n_points D"]
    rows: Int[Tensor, " n_stored"]
    columns: Int[Tensor, " n_stored"]
    values: Float[Tensor, " n_stored"]
    weights: Float[Tensor, " D"]
    coefficients: Float[Tensor, "n_points K"]
    frequencies: Float[Tensor, " K"]

    def __init__(
        self, n_points: int, n_stored: int | None, n_features: int, n_labels: int, *, link: Link = "logit"
    ) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(1))
        if n_stored is None:
            self.register_buffer("points", torch.zeros(n_points, n_features))
        else:
            self.register_buffer("rows", torch.zeros(n_stored, dtype=torch.int64))
            self.register_buffer("columns", torch.zeros(n_stored, dtype=torch.int64))
            self.register_buffer("values", torch.zeros(n_stored))
        self.register_buffer("weights", torch.ones(n_features))
        self.register_buffer("coefficients", torch.zeros(n_points, n_labels))
        self.register_buffer("frequencies", torch.zeros(n_labels))
        self.index_limits = {"rows": n_points, "columns": n_features}
        self.dense, self.link = n_stored is None, link
        self._scaled: tuple[_ScaledRows, tuple[Any, ...]] | None = None

    def fit(self, data: TrainingData) -> NDArray[np.float32]:
        """Become the regression of the labels; what it says of its own training rows when each is left out (logits)."""
        fitted = fit_regression(
            data.x, data.y, rng=data.rng, link=self.link, n_points=len(self.coefficients), weights=data.weights
        )
        self.load_state_dict(fitted.mean.state_dict())
        return fitted.logits

    def fit_bytes(self, n_rows: int) -> int:
        """What `fit` takes: square matrices of its points, predictions of all rows for all labels."""
        points, n_labels = self.coefficients.shape
        # A subset of the rows is worked out in float64.
        squares = 3 if points == n_rows else 10
        return 4 * (squares * points * points + 3 * n_rows * n_labels + 800 * len(self.weights))

    def forward(self, x: Inputs) -> Float[Tensor, "B K"]:
        """c link t_k(x_i) of new inputs."""
        return self.scaled(self.logits(x))

    def scaled(self, logits: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        """c times what the link gave."""
        return self.slope * logits

    def logits(self, x: Inputs) -> Float[Tensor, "B K"]:
        """link t_k(x_i) of new inputs."""
        points = self.scaled_points()
        blocks = [
            block.to(self.coefficients) @ self.coefficients for block in _scaled(x, points.scale).covariances(points)
        ]
        return self.linked(self.frequencies + torch.cat(blocks))

    def linked(self, t: Tensor) -> Tensor:
        """The link of regressions t."""
        return torch.logit(t, eps=_FLOOR) if self.link == "logit" else t.clamp(min=_FLOOR).log()

    @torch.no_grad()
    def keep(self, points: Matrix) -> None:
        """Set the rows of X."""
        if self.dense:
            self.points.copy_(torch.from_numpy(np.ascontiguousarray(points)))
            return
        kept = scipy.sparse.coo_matrix(points)
        for buffer, values in ((self.rows, kept.row), (self.columns, kept.col), (self.values, kept.data)):
            buffer.copy_(torch.from_numpy(values))

    def scaled_points(self) -> _ScaledRows:
        """The rows of X in the coordinates of the kernel."""
        # Loading replaces or overwrites the buffers; a copy of what the points were made of tells.
        values = self.points if self.dense else self.values
        source = (values, values._version, self.weights, self.weights._version)
        if self._scaled is None or not all(a is b for a, b in zip(self._scaled[1], source, strict=True)):
            if self.dense:
                kept: Any = self.points
            else:
                shape = (len(self.coefficients), len(self.weights))
                entries = (self.values.cpu().numpy(), (self.rows.cpu().numpy(), self.columns.cpu().numpy()))
                kept = scipy.sparse.csr_matrix(entries, shape=shape)
            self._scaled = _scaled(kept, self.weights.sqrt().cpu()), source
        return self._scaled[0]


class Fitted(NamedTuple):
    """A regression, and what it says of its own training rows when each is left out.

    Attributes:
        mean: the mean function.
        logits: link of the leave-one-out predictions, N x K.
    """

    mean: RegressionMean
    logits: NDArray[np.float32]


def points_kept(x: Matrix, n_points: int | None = None) -> tuple[int, int | None]:
    """How many rows of X a regression on it keeps, and the stored entries of these rows, None if X is an array."""
    chosen = x[_chosen(x.shape[0], n_points)]
    return chosen.shape[0], chosen.nnz if scipy.sparse.issparse(chosen) else None


def fit_regression(
    x: Matrix,
    y: scipy.sparse.csr_matrix,
    *,
    rng: np.random.Generator,
    link: Link = "logit",
    n_points: int | None = None,
    weights: NDArray[np.float64] | None = None,
) -> Fitted:
    """Learn the lengthscales and the noise, then regress the labels of all rows.

    With fewer points than rows the regression is that of the features k_Z(x) of as many rows Z (subset of regressors),
    which has closed leave-one-out predictions too.

    Args:
        x: inputs, N x D.
        y: labels, N x K, in (0, 1].
        rng: decides the subsets that lengthscales are learnt on.
        link: what the mean function makes of the regression.
        n_points: rows to keep; by default all rows up to `EXACT_ROWS`, and `SUBSET_POINTS` of more.
        weights: precisions of the rows, N: the noise variance of each is divided by its own. None for 1.
    """
    log_weights, noise = learn_lengthscales(x, y, rng=rng, weights=weights)
    precisions = None if weights is None else torch.from_numpy(weights)
    kept, n_stored = points_kept(x, n_points)
    mean = RegressionMean(kept, n_stored, x.shape[1], y.shape[1], link=link)
    with torch.no_grad():
        mean.keep(x[_chosen(x.shape[0], n_points)])
        mean.weights.copy_(torch.from_numpy(np.exp(log_weights)))
        mean.frequencies.copy_(torch.from_numpy(_frequencies(y, weights)))
        solve = _solve_all if kept == x.shape[0] else _solve_subset
        coefficients, left_out = solve(mean.scaled_points(), x, y, mean.frequencies, noise, precisions)
        mean.coefficients.copy_(coefficients)
        return Fitted(mean, mean.linked(left_out).float().numpy())


@torch.enable_grad()
def learn_lengthscales(
    x: Matrix, y: scipy.sparse.csr_matrix, *, rng: np.random.Generator, weights: NDArray[np.float64] | None = None
) -> tuple[NDArray[np.float32], float]:
    """Log of the weights w (D) and the noise variance that predict rows left out of random subsets best.

    The criterion is the squared error of the leave-one-out predictions, over all labels. Weights start alike for an
    array; else rare features start with more than common ones. Where rows have `weights`, of mean one in the criterion,
    a row is left out with all of its own, and the noise variance is that of a row of weight one.
    """
    n_rows, n_features = x.shape
    if isinstance(x, scipy.sparse.csr_matrix):
        seen = np.bincount(x.indices, minlength=n_features)
        start = np.log1p(np.log((1 + n_rows) / (1 + seen)))
        spread = float(np.mean(x.multiply(x) @ np.exp(start)))
    else:
        start, spread = np.zeros(n_features), float(x.var(axis=0, dtype=np.float64).sum())
    log_weights = torch.from_numpy(start + math.log(2 / max(spread, 1e-12))).float().requires_grad_()
    log_noise = torch.tensor(math.log(0.2 * (1.0 if weights is None else weights.mean())), requires_grad=True)
    frequencies = torch.from_numpy(_frequencies(y, weights))
    optimizer = torch.optim.Adam([log_weights, log_noise], lr=_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, _STEPS, pct_start=0.2, cycle_momentum=False)
    for _ in range(_STEPS):
        rows = np.sort(rng.choice(n_rows, size=min(_SUBSET, n_rows), replace=False))
        chosen = x[rows]
        if isinstance(chosen, scipy.sparse.csr_matrix):
            used = np.flatnonzero(np.bincount(chosen.indices, minlength=n_features))
            scale = (0.5 * log_weights.index_select(0, torch.from_numpy(used))).exp()
            chosen = chosen[:, used].toarray()
        else:
            scale = (0.5 * log_weights).exp()
        inputs = torch.from_numpy(chosen).float() * scale
        targets = torch.from_numpy(y[rows].toarray()).float() - frequencies
        norms = inputs.square().sum(1)
        covariance = squared_exponential(inputs @ inputs.T, norms.unsqueeze(1), norms)
        precisions = None if weights is None else torch.from_numpy(weights[rows]).float()
        noise = log_noise.exp() if precisions is None else _noises(log_noise.exp(), precisions)
        noisy = covariance + noise * torch.eye(len(rows))
        precision = torch.cholesky_inverse(torch.linalg.cholesky(noisy))
        residual = (precision @ targets) / precision.diagonal().unsqueeze(1)
        optimizer.zero_grad()
        squares = residual.square()
        if weights is not None and precisions is not None:
            squares = squares * (precisions / weights.mean()).unsqueeze(1)
        squares.mean(0).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return log_weights.detach().numpy(), float(log_noise.detach().exp())


class _ScaledRows:
    """Rows in the coordinates where the kernel is exp(-1/2 ||x - z||^2), as CSR or as an array."""

    def __init__(self, x: Any, norms: Tensor, scale: Tensor) -> None:
        self.x, self.norms, self.scale = x, norms, scale

    def covariances(self, points: _ScaledRows) -> Iterator[Tensor]:
        """k(x_i, z_j), a block of rows at a time."""
        step = max(1, _BLOCK_ELEMENTS // max(1, len(points.norms)))
        sparse = scipy.sparse.issparse(points.x)
        own = _as_csr(self.x) if sparse else _as_array(self.x).to(points.x.dtype)
        transposed = points.x.T.tocsr() if sparse else points.x.T
        for start in range(0, max(1, own.shape[0]), step):
            rows = slice(start, start + step)
            exponent = own[rows] @ transposed
            exponent = torch.from_numpy(exponent.toarray()) if sparse else exponent
            exponent -= 0.5 * self.norms[rows, None]
            exponent -= 0.5 * points.norms
            yield exponent.clamp_(max=0.0).exp_()


def _scaled(x: Matrix | Inputs, scale: Tensor) -> _ScaledRows:
    if isinstance(x, Tensor) or not (isinstance(x, SparseRows) or scipy.sparse.issparse(x)):
        array = _as_array(x).to(scale.device) * scale
        return _ScaledRows(array, array.square().sum(1), scale)
    matrix = scipy.sparse.csr_matrix(_as_csr(x).multiply(scale.numpy()))
    return _ScaledRows(matrix, torch.from_numpy(np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel()), scale)


def _frequencies(y: scipy.sparse.csr_matrix, weights: NDArray[np.float64] | None) -> NDArray[np.float32]:
    means = y.mean(axis=0) if weights is None else column_means(y, weights)
    return np.asarray(means, dtype=np.float32).ravel()


def _noises(noise: Tensor | float, precisions: Tensor) -> Tensor:
    """s2 / w_i, where a row of any weight is neither certain nor unknown to single precision."""
    least = min(float(torch.as_tensor(noise).detach()), _LEAST_NOISE)
    return (noise / precisions).clamp(min=least, max=_MOST_NOISE)


def _solve_all(
    points: _ScaledRows,
    x: Matrix,
    y: scipy.sparse.csr_matrix,
    frequencies: Tensor,
    noise: float,
    precisions: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Coefficients a = (K + S)^-1 (y - mu), S = s2 I or diag s2 / w_i, and y - a / diag (K + S)^-1."""
    targets = torch.from_numpy(y.toarray()).float()
    covariance = torch.cat(list(points.covariances(points))).float()
    covariance.diagonal().add_(noise if precisions is None else _noises(noise, precisions).float())
    precision = inverse(covariance)
    coefficients = precision @ (targets - frequencies)
    return coefficients, targets - coefficients / precision.diagonal().unsqueeze(1)


def _solve_subset(
    points: _ScaledRows,
    x: Matrix,
    y: scipy.sparse.csr_matrix,
    frequencies: Tensor,
    noise: float,
    precisions: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Ridge regression on L^-1 k_Z(x), K_Z = L L', weighted; with hat values h, (fit - h y) / (1 - h)."""
    size = len(points.norms)
    covariance = torch.cat(list(points.covariances(points))).double()
    covariance.diagonal().add_(1e-6)
    inverse_root = inverse_cholesky(covariance, relative_jitter=0.0, dtype=torch.float32)
    rows = _scaled(x, points.scale)

    def blocks() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Features of a block of rows, these times their weights, and the labels."""
        start = 0
        for block in rows.covariances(points):
            own = slice(start, start + len(block))
            features, targets = block.float() @ inverse_root.T, torch.from_numpy(y[own].toarray()).float()
            yield features, features if precisions is None else features * precisions[own, None].float(), targets
            start += len(block)

    # Sums over many rows: in float32 their rounding would reach the size of the noise.
    precision, projected = noise * torch.eye(size, dtype=torch.float64), torch.zeros(size, y.shape[1])
    for features, weighted, targets in blocks():
        precision += weighted.T @ features
        projected.addmm_(weighted.T, targets - frequencies)
    whitener = inverse_cholesky(precision, relative_jitter=0.0, dtype=torch.float32)
    del precision
    solution = whitener.T @ (whitener @ projected)
    left_out = []
    for features, weighted, targets in blocks():
        whitened = features @ whitener.T
        hats = whitened.square() if precisions is None else whitened * (weighted @ whitener.T)
        hat = hats.sum(1, keepdim=True).clamp(max=1 - 1e-4)
        left_out.append((frequencies + features @ solution - hat * targets) / (1 - hat))
    return inverse_root.T @ solution, torch.cat(left_out)


def _chosen(n_rows: int, n_points: int | None = None) -> NDArray[np.int64]:
    """All rows, or some spread evenly over them."""
    if n_points is None:
        n_points = n_rows if n_rows <= EXACT_ROWS else SUBSET_POINTS
    return np.linspace(0, n_rows - 1, min(n_points, n_rows)).round().astype(np.int64)


def _as_csr(x: Matrix | Inputs) -> scipy.sparse.csr_matrix:
    if isinstance(x, SparseRows):
        arrays = (x.values.cpu().numpy(), x.columns.cpu().numpy(), x.offsets.cpu().numpy())
        return scipy.sparse.csr_matrix(arrays, shape=x.shape)
    return scipy.sparse.csr_matrix(x.cpu().numpy() if isinstance(x, Tensor) else x)


def _as_array(x: Matrix | Inputs) -> Tensor:
    if isinstance(x, Tensor):
        return x.float()
    return torch.from_numpy(
        _as_csr(x).toarray() if isinstance(x, SparseRows) or scipy.sparse.issparse(x) else x
    ).float()
