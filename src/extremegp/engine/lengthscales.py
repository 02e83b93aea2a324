"""Lengthscales of a kernel by what the regression of the labels says of rows left out, for all labels at once.

With squared loss all labels share one factorisation, and leave-one-out predictions are known in closed form (Rasmussen
and Williams 2006, section 5.4.2), and so are the gradients of their error. Of sparse rows nothing is made dense but the
covariances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn.utils.extmath import row_norms
from torch import Tensor
from torch.autograd.function import once_differentiable

from extremegp.engine.blocks import Block, Columns, columns_of
from extremegp.engine.families import covariances_of
from extremegp.engine.matrices import column_means
from extremegp.engine.scaled_rows import as_csr
from extremegp.engine.selection import Selection
from extremegp.engine.sparse import Matrix

EXACT_ROWS, SUBSET_POINTS = 16384, 4096
"""More rows than the first are represented by as many of them as the second says, unless told otherwise."""
_LEAST_NOISE, _MOST_NOISE = 1e-4, 1e8
"""Of the noise variance of a row with a weight, beside covariances of 1."""
_SUBSET, _STEPS, _MORE_STEPS, _RATE = 800, 70, 30, 0.06
_SCALE_ROWS = 2000
_MOST_TARGETS = 128
_COLUMNS = 4096  # whose products with a gradient are held at once
_BY = "the squared error of the regression of the labels, each row left out, by gradients"
_SPREAD = 1.5  # standard deviation of log weights around what they have in common


class Learnt(NamedTuple):
    """What `learn_lengthscales` learns.

    Attributes:
        log_weights: logarithms of the weights w, D.
        noise: the variance of the noise.
        shares: the weights of the kernels of the blocks, which add up to one.
        family: of the kernels, its number among `FAMILIES`.
        tried: what was tried for the family; None where nothing was.
    """

    log_weights: NDArray[np.float32]
    noise: float
    shares: NDArray[np.float32]
    family: int = 0
    tried: Selection | None = None

    def selections(self, *, with_noise: bool) -> list[Selection]:
        """What of it a model takes, the noise as well or not."""
        found = -0.5 * self.log_weights.astype(np.float64)
        names = ("shortest_lengthscale", "median_lengthscale", "longest_lengthscale")
        chosen: dict[str, float | str] = {}
        chosen |= zip(names, np.exp(np.quantile(found, (0, 0.5, 1))).tolist(), strict=True)
        if with_noise:
            chosen["noise_variance"] = self.noise
        if len(self.shares) > 1:
            chosen |= {f"share_of_block_{i}": share for i, share in enumerate(self.shares.tolist(), start=1)}
        return [*([] if self.tried is None else [self.tried]), Selection(_BY, chosen)]


@torch.enable_grad()
def learn_lengthscales(
    x: Matrix,
    y: scipy.sparse.csr_matrix,
    *,
    rng: np.random.Generator,
    weights: NDArray[np.float64] | None = None,
    blocks: Sequence[Block] = (),
    start: Learnt | None = None,
) -> Learnt:
    """What predicts rows left out of random subsets best.

    The criterion is the logarithm of the squared error of the leave-one-out predictions, over all labels, or over
    random projections of many. Weights start alike for an array; else rare features start with more than common ones.
    A log-normal prior keeps them together where few rows tell them apart. Where rows have `weights`, of mean one in the
    criterion, a row is left out with all of its own, and the noise variance is that of a row of weight one. Of blocks,
    shares and one scale for the weights of each are learnt: weights of all features of many kinds fit the rows left out
    too, and then overrate words.

    From a `start` on, they are learnt for its family, in fewer steps.
    """
    n_rows, n_features = x.shape
    parts = columns_in(x, blocks)
    of_blocks = len(parts) > 1
    if start is None:
        n_steps, family, shares = _STEPS, 0, np.full(len(parts), 1 / len(parts), dtype=np.float32)
        first_noise = 0.2 * (1.0 if weights is None else weights.mean())
        starts = [torch.from_numpy(_weights_start(part, x)).float() for part in parts]
    else:
        n_steps, family, shares, first_noise = _MORE_STEPS, start.family, start.shares, start.noise
        starts = [torch.from_numpy(start.log_weights)[part.range] for part in parts]
    # What all weights of a part have in common moves by itself: it has far to go.
    common = torch.zeros(len(parts), requires_grad=True)
    single = torch.zeros(n_features, requires_grad=not of_blocks)
    # Words are many, and what a few rows say of each adds up; numbers that all rows have are to be told apart by more.
    held = torch.tensor([float(part.dense) for part in parts]).repeat_interleave(torch.tensor([*map(len, starts)]))
    log_noise = torch.tensor(math.log(first_noise), requires_grad=True)
    logits = torch.from_numpy(shares).log().requires_grad_(of_blocks)
    projection = label_projection(y.shape[1], rng)
    frequencies = torch.from_numpy(frequencies_of(y, weights))
    moved = [common, log_noise, logits if of_blocks else single]
    optimizer = torch.optim.Adam(moved, lr=_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, n_steps, pct_start=0.2, cycle_momentum=False)

    def log_weights(b: int) -> Tensor:
        return starts[b] + common[b] + single[parts[b].range]

    for _ in range(n_steps):
        rows = np.sort(rng.choice(n_rows, size=min(_SUBSET, n_rows), replace=False))
        some = x[rows]
        exponents = [exponents_of(part.of_matrix(some), log_weights(b)) for b, part in enumerate(parts)]
        kernels = [covariances_of(each, family) for each in exponents]
        covariance = kernels[0]
        if of_blocks:
            covariance = (torch.stack(kernels) * logits.softmax(0)[:, None, None]).sum(0)
        targets = torch.from_numpy(y[rows].toarray()).float() - frequencies
        targets = targets if projection is None else targets @ projection
        precisions = None if weights is None else torch.from_numpy(weights[rows]).float()
        noise = log_noise.exp() if precisions is None else noises(log_noise.exp(), precisions)
        counts = torch.ones(len(rows))
        if weights is not None and precisions is not None:
            counts = precisions / weights.mean()
        error: Tensor = _LeftOutError.apply(covariance + noise * torch.eye(len(rows)), targets, counts)
        # As the log-likelihood of all rows would be, beside which a prior has its usual meaning.
        loss = 0.5 * n_rows * error.clamp(min=1e-12).log() + 0.5 * (single * held).square().sum() / _SPREAD**2
        optimizer.zero_grad()
        (loss / n_rows).backward()
        optimizer.step()
        schedule.step()
    learnt = torch.cat([log_weights(b) for b in range(len(parts))]).detach().numpy()
    return Learnt(learnt, float(log_noise.detach().exp()), logits.detach().softmax(0).numpy(), family)


def columns_in(x: Matrix, blocks: Sequence[Block]) -> list[Columns]:
    return columns_of(blocks) or [Columns(0, x.shape[1], dense=not scipy.sparse.issparse(x))]


def label_projection(n_labels: int, rng: np.random.Generator) -> Float[Tensor, "K R"] | None:
    """Random signs, by which squares of many numbers keep their sum in the mean; None for few labels."""
    if n_labels <= 2 * _MOST_TARGETS:
        return None
    signs = rng.integers(0, 2, size=(n_labels, _MOST_TARGETS), dtype=np.int8)
    return torch.from_numpy(2 * signs - 1).float() / math.sqrt(_MOST_TARGETS)


def _weights_start(part: Columns, x: Matrix) -> NDArray[np.float64]:
    """Where the log weights of some columns start."""
    if part.dense and scipy.sparse.issparse(x):
        # As many rows as a variance needs: of all, the array might not fit into memory.
        x = x[chosen(x.shape[0], _SCALE_ROWS)]
    x = part.of_matrix(x)
    n_rows, n_features = x.shape
    if isinstance(x, scipy.sparse.csr_matrix):
        seen = np.bincount(x.indices, minlength=n_features)
        start = np.log1p(np.log((1 + n_rows) / (1 + seen)))
        spread = float(np.mean(x.multiply(x) @ np.exp(start)))
    else:
        start, spread = np.zeros(n_features), float(x.var(axis=0, dtype=np.float64).sum())
    weights: NDArray[np.float64] = start + math.log(2 / max(spread, 1e-12))
    return weights


def exponents_of(x: Any, log_weights: Float[Tensor, " D"]) -> Float[Tensor, "B B"]:
    """-1/2 sum_d w_d (x_id - x_jd)^2 of rows, CSR or an array."""
    sparse: bool = scipy.sparse.issparse(x)
    if sparse:
        exponents: Tensor = _SparseExponents.apply(log_weights, as_csr(x))
    else:
        scaled = torch.from_numpy(np.asarray(x)).float() * (0.5 * log_weights).exp()
        norms = scaled.square().sum(1)
        exponents = scaled @ scaled.T - 0.5 * norms.unsqueeze(1) - 0.5 * norms
    # Rounding puts rows at a distance from themselves, which rough kernels tell.
    return exponents.clamp(max=0.0).fill_diagonal_(0.0)


class _SparseExponents(torch.autograd.Function):
    """-1/2 sum_d w_d (x_id - x_jd)^2 of sparse rows."""

    @staticmethod
    def forward(ctx: Any, log_weights: Tensor, x: scipy.sparse.csr_matrix) -> Tensor:
        weights = log_weights.exp()
        scaled = scipy.sparse.csr_matrix(x.multiply(weights.sqrt().numpy()[None]))
        norms = row_norms(scaled, squared=True).astype(np.float32)
        exponents = (scaled @ scaled.T).toarray().astype(np.float32, copy=False)
        exponents -= 0.5 * norms[:, None]
        exponents -= 0.5 * norms
        ctx.x, ctx.weights = x, weights
        return torch.from_numpy(exponents)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """By w_d: -1/2 sum_i (r_i + c_i) x_id^2 + sum_ij G_ij x_id x_jd, with r, c the sums of G's rows and columns."""
        x, gradient = ctx.x, grad.numpy()
        squares = x.multiply(x).T @ (gradient.sum(0) + gradient.sum(1))
        crossed, by_column = np.zeros(x.shape[1]), x.tocsc()
        used = np.flatnonzero(np.diff(by_column.indptr))
        for start in range(0, len(used), _COLUMNS):
            columns = used[start : start + _COLUMNS]
            part = by_column[:, columns]
            crossed[columns] = np.asarray(part.multiply((part.T @ gradient.T).T).sum(axis=0)).ravel()
        return torch.from_numpy((crossed - 0.5 * squares).astype(np.float32)) * ctx.weights, None


class _LeftOutError(torch.autograd.Function):
    """sum_ik c_i r_ik^2 / B, with r = (A^-1 y) / diag A^-1 the errors of leave-one-out predictions under A = K + S."""

    @staticmethod
    def forward(ctx: Any, noisy: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
        precision = torch.cholesky_inverse(torch.linalg.cholesky(noisy))
        weighed, diagonal = precision @ targets, precision.diagonal()
        errors = weighed / diagonal.unsqueeze(1)
        ctx.save_for_backward(precision, weighed, errors, counts)
        return (counts @ errors.square()).sum() / len(noisy)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        precision, weighed, errors, counts = ctx.saved_tensors
        scale = (2 * grad / len(precision)) * counts / precision.diagonal()
        # By A^-1: scale e y' + diag(-scale sum_k e^2); by A: minus that between two A^-1.
        of_diagonal = scale * errors.square().sum(1)
        by_noisy = (precision * of_diagonal) @ precision
        by_noisy -= (precision @ (errors * scale.unsqueeze(1))) @ weighed.T
        return by_noisy, None, None


def frequencies_of(y: scipy.sparse.csr_matrix, weights: NDArray[np.float64] | None) -> NDArray[np.float32]:
    """Weighted means of labels, K."""
    means = y.mean(axis=0) if weights is None else column_means(y, weights)
    return np.asarray(means, dtype=np.float32).ravel()


def noises(noise: Tensor | float, precisions: Tensor) -> Tensor:
    """s2 / w_i, where a row of any weight is neither certain nor unknown to single precision."""
    least = min(float(torch.as_tensor(noise).detach()), _LEAST_NOISE)
    return (noise / precisions.clamp(min=torch.finfo(torch.float32).tiny)).clamp(min=least, max=_MOST_NOISE)


def chosen(n_rows: int, n_points: int | None = None) -> NDArray[np.int64]:
    """Numbers of all rows, or of some spread evenly over them."""
    if n_points is None:
        n_points = n_rows if n_rows <= EXACT_ROWS else SUBSET_POINTS
    return np.linspace(0, n_rows - 1, min(n_points, n_rows)).round().astype(np.int64)
