"""A mean function for the utilities: Gaussian process regression of the label indicators on many points.

What the mean of a classifier lacks where inducing inputs are few, regression can afford: with squared loss all K labels
share one factorisation. Its leave-one-out predictions, known in closed form (Rasmussen and Williams 2006, section
5.4.2), show the classifier in training what the regression says of rows that it has not seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import scipy.sparse
import torch
from jaxtyping import Float
from torch import Tensor, nn

from extremegp.engine.blocks import Block, Columns, columns_of
from extremegp.engine.kept_rows import KeptRows
from extremegp.engine.kernel_choice import learn_kernel
from extremegp.engine.lengthscales import Learnt, chosen, frequencies_of, noises
from extremegp.engine.linalg import cholesky, inverse_cholesky, inverse_diagonal
from extremegp.engine.links import Link
from extremegp.engine.part import TrainingData
from extremegp.engine.sparse import Inputs, Matrix, fill

_FLOOR = 5e-3


class RegressionMean(KeptRows):
    """c link t_k(x), with t_k(x) = mu_k + k(x, X) a_k the regression of label k, and c learnt with the classifier.

    The kernel is of one of `FAMILIES`. The link is the logit for labels that are present or not, with t
    kept from 0.005 to 0.995, and the logarithm for one class out of K, with t kept above 0.005.

    Args:
        n_points: rows of X that are kept.
        n_stored: their stored entries; None to keep them as an array.
        n_features: D.
        n_labels: K.
        link: "logit" or "log".
        blocks: blocks of the features, each of which then has a kernel of its own; the regression's is their sum
            weighted by `shares`, which add up to one. Dense blocks are kept as an array, others by their stored
            entries.
        lone: as `KeptRows` takes it.
        anchored: c (link t_k - link mu_k) instead, which is zero far from all rows whatever c is.
    """

    coefficients: Float[Tensor, "n_points K"]
    frequencies: Float[Tensor, " K"]
    noise: Float[Tensor, ""]

    def __init__(
        self,
        n_points: int,
        n_stored: int | None,
        n_features: int,
        n_labels: int,
        *,
        link: Link = "logit",
        blocks: Sequence[Block] = (),
        lone: bool = False,
        anchored: bool = False,
    ) -> None:
        super().__init__(n_points, n_stored, n_features, blocks=blocks, lone=lone)
        self.slope = nn.Parameter(torch.ones(1))
        self.register_buffer("coefficients", torch.zeros(n_points, n_labels))
        self.register_buffer("frequencies", torch.zeros(n_labels))
        self.register_buffer("noise", torch.ones(()))
        self.value_limits = {**self.value_limits, "noise": (1e-30, 1e30)}
        self.link, self.anchored = link, anchored

    def expect(self, names: Collection[str]) -> None:
        super().expect(names)
        if "noise" not in names:
            self._buffers.pop("noise", None)

    def learnt(self, data: TrainingData) -> Learnt:
        """Kernel and noise for training data."""
        return learn_kernel(data.x, data.y, rng=data.rng, weights=data.weights, blocks=self.blocks)

    @torch.no_grad()
    def regress(self, data: TrainingData, learnt: Learnt) -> Regressed:
        """Become the regression of the labels of all rows, with this kernel and noise.

        With fewer points than rows it is that of the features k_Z(x) of as many rows Z (subset of regressors), which
        has closed leave-one-out predictions too. Weights of rows are precisions: the noise variance of each row is
        divided by its own.
        """
        x, y = data.x, data.y
        data.selections.extend(learnt.selections(with_noise=True))
        precisions = None if data.weights is None else torch.from_numpy(data.weights)
        self.keep(x[chosen(x.shape[0], len(self))])
        self.set_kernel(learnt)
        self.noise.fill_(learnt.noise)
        fill(self.frequencies, frequencies_of(y, data.weights))
        solve = _solve_all if len(self) == x.shape[0] else _solve_subset
        coefficients, left_out = solve(self, x, y, learnt.noise, precisions)
        self.coefficients.copy_(coefficients)
        return Regressed(left_out, learnt.noise)

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
        return self.linked(self.regressed(x))

    def regressed(self, x: Inputs) -> Float[Tensor, "B K"]:
        """t_k(x_i) of new inputs."""
        blocks = [block.to(self.coefficients) @ self.coefficients for block in self.covariances(x)]
        return self.frequencies + torch.cat(blocks)

    def prior_variances(self, amplitudes: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
        """Var c link g_k with g_k ~ N(mu_k, s_k^2), where amplitudes are s^2: far from all rows."""
        # On a grid, for the link has kinks.
        z = torch.linspace(-6.0, 6.0, 241).to(amplitudes).unsqueeze(1)
        weights = torch.exp(-0.5 * z.square())
        weights = weights / weights.sum()
        values = self._link(self.frequencies + z * amplitudes.sqrt())
        return self.slope.square() * (weights * (values - (weights * values).sum(0)).square()).sum(0)

    def linked(self, t: Tensor) -> Tensor:
        """The link of regressions t."""
        return self._link(t) - self._link(self.frequencies) if self.anchored else self._link(t)

    def _link(self, t: Tensor) -> Tensor:
        return torch.logit(t, eps=_FLOOR) if self.link == "logit" else t.clamp(min=_FLOOR).log()


class Regressed(NamedTuple):
    """What a regression says of its own training rows.

    Attributes:
        left_out: its predictions of every row without that row, N x K.
        noise: variance of the noise, beside covariances of 1.
    """

    left_out: Float[Tensor, "N K"]
    noise: float


def points_kept(x: Matrix, n_points: int | None = None, blocks: Sequence[Block] = ()) -> tuple[int, int | None]:
    """How many rows of X a regression on it keeps, and the stored entries of these rows, None if X is an array.

    Those of dense blocks do not count.
    """
    kept = x[chosen(x.shape[0], n_points)]
    n_dense = sum(block.n_features for block in blocks if block.dense)
    if not scipy.sparse.issparse(kept) or n_dense == x.shape[1]:
        return kept.shape[0], None
    parts = columns_of(blocks) or [Columns(0, x.shape[1], dense=False)]
    return kept.shape[0], sum(part.of_matrix(kept).nnz for part in parts if not part.dense)


def _solve_all(
    mean: RegressionMean,
    x: Matrix,
    y: scipy.sparse.csr_matrix,
    noise: float,
    precisions: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Coefficients a = (K + S)^-1 (y - mu), S = s2 I or diag s2 / w_i, and y - a / diag (K + S)^-1."""
    targets = torch.from_numpy(y.toarray()).float()
    covariance = mean.gram().float()
    covariance.diagonal().add_(noise if precisions is None else noises(noise, precisions).float())
    factor = cholesky(covariance)
    del covariance
    coefficients = torch.cholesky_solve(targets - mean.frequencies, factor)
    return coefficients, targets - coefficients / inverse_diagonal(factor).unsqueeze(1)


def _solve_subset(
    mean: RegressionMean,
    x: Matrix,
    y: scipy.sparse.csr_matrix,
    noise: float,
    precisions: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Ridge regression on L^-1 k_Z(x), K_Z = L L', weighted; with hat values h, (fit - h y) / (1 - h)."""
    points, frequencies, size = mean.scaled_points(), mean.frequencies, len(mean)
    covariance = mean.gram().double()
    covariance.diagonal().add_(1e-6)
    inverse_root = inverse_cholesky(covariance, relative_jitter=0.0, dtype=torch.float32)
    rows = points.of_rows(x)

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
