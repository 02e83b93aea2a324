"""How P latent functions become K utilities: mixed by loadings (T 4.1, ML 1), or one function for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, aslinearoperator, svds
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from extremegp.engine.latents.base import Marginals
from extremegp.engine.linalg import tensor_float32
from extremegp.engine.matrices import column_counts, row_blocks
from extremegp.engine.part import Part, StepSizes, TrainingData
from extremegp.engine.sparse import SparseRows, fill, matmul

Moments = Callable[[Tensor, Tensor, slice], tuple[Tensor, Tensor, Tensor]]

_CHUNK_ELEMENTS = 1 << 20
_START_ROWS = 1 << 16


class Mixing(Part):
    """f_k = phi_k'h + b_k.

    Attributes:
        independent: whether the utilities of an input are independent of each other.
        bias: b, K.
    """

    independent: ClassVar[bool]
    bias: nn.Parameter

    @property
    def n_utilities(self) -> int:
        """K."""
        return len(self.bias)

    @abstractmethod
    def select(self, labels: Int[Tensor, " L"]) -> Mixing:
        """The mixing of L of the labels, with parameters of its own that start as these rows: gradients are L x P."""

    @abstractmethod
    def prior_variances(self) -> Float[Tensor, " K"]:
        """Of the utilities, where the latent functions have variance 1."""

    @abstractmethod
    def functions(self, labels: Int[Tensor, " L"]) -> Int[Tensor, " L"] | None:
        """Which latent functions the utilities of L labels are mixed of; None for all."""

    @abstractmethod
    def marginals(self, latents: Marginals, labels: slice = slice(None)) -> Marginals:
        """Means and variances of the utilities of some labels, B x |labels| each."""

    @abstractmethod
    def of_labels(self, latents: Marginals, labels: Int[Tensor, "B C"]) -> Marginals:
        """Those of C labels of each row, which differ from row to row, B x C each."""

    @abstractmethod
    def at(self, h: Float[Tensor, "*R B P"]) -> Float[Tensor, "*R B K"]:
        """Utilities of known values of the functions."""

    @abstractmethod
    def weighted_mean_sum(self, latents: Marginals, y: SparseRows) -> Float[Tensor, ""]:
        """sum_ik y_ik E[f_ik] over the stored entries of y, B x K."""

    def means(self, latents: Marginals, labels: slice = slice(None)) -> Float[Tensor, "B L"]:
        """Means alone."""
        return self.marginals(latents, labels).mean

    def covariances(self, latents: Marginals, classes: Int[Tensor, " B"]) -> Float[Tensor, "B K"] | None:
        """Of the utility of one class of each row with all others; None where they are independent."""
        return None

    def sample(self, latents: Marginals, noise: Float[Tensor, "S B P"]) -> Float[Tensor, "S B K"]:
        """Utilities at draws of the latent functions, made of standard normal noise."""
        return self.at(latents.mean + latents.variance.sqrt() * noise)

    def expectation_sum(
        self,
        latents: Marginals,
        offset: Float[Tensor, "B K"] | None,
        moments: Moments,
        weights: Float[Tensor, " K"] | None,
    ) -> Float[Tensor, ""]:
        """See `Utilities.expectation_sum`."""
        mean, variance = self.marginals(latents)
        total: Tensor = _ExpectationSum.apply(mean if offset is None else mean + offset, variance, moments, weights)
        return total

    def start_loadings(self, data: TrainingData) -> None:
        """Start what mixes; `bias` is started by the model, which knows the likelihood."""


class _ExpectationSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, moments: Moments, weights: Tensor | None) -> Tensor:
        value, *gradients = moments(mean.clone(), variance, slice(0, mean.shape[1]))
        if weights is not None:
            value, *gradients = (moment * weights for moment in (value, *gradients))
        ctx.save_for_backward(*gradients)
        return value.sum(dim=1).sum(dtype=torch.float64).to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        by_mean, by_variance = ctx.saved_tensors
        return grad * by_mean, grad * by_variance, None, None


class Prior(ABC):
    """What keeps biases such that the prior expects every label as often as it is: far from all data."""

    @abstractmethod
    def follow(self, bias: Float[Tensor, " K"], variance: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
        """The biases under variances of the utilities that are a little different from those of `bias`."""

    @abstractmethod
    def select(self, labels: Int[Tensor, " L"]) -> Prior:
        """That of L of the labels."""


class FactorMixing(Mixing):
    """f = Phi h + b, so that f_k ~ N(Phi_k mean_h + b_k, (Phi_k * Phi_k) var_h).

    Args:
        loadings: start of Phi, K x P.
        bias: start of b, K.
    """

    independent = False

    def __init__(self, loadings: Float[Tensor, "K P"], bias: Float[Tensor, " K"], *, learn_bias: bool = True) -> None:
        super().__init__()
        self.loadings = nn.Parameter(loadings)
        self.bias = nn.Parameter(bias, requires_grad=learn_bias)
        self.prior: Prior | None = None

    def select(self, labels: Int[Tensor, " L"]) -> FactorMixing:
        loadings, bias = (part.detach().index_select(0, labels) for part in (self.loadings, self.bias))
        part = FactorMixing(loadings, bias, learn_bias=self.bias.requires_grad)
        part.prior = self.prior and self.prior.select(labels)
        return part

    @torch.no_grad()
    def project(self) -> None:
        """Keep what the prior says of the labels, as loadings move: see `Prior`."""
        if self.prior is not None:
            self.bias.copy_(self.prior.follow(self.bias, self.prior_variances()))

    def prior_variances(self) -> Float[Tensor, " K"]:
        return self.loadings.square().sum(1)

    def functions(self, labels: Int[Tensor, " L"]) -> None:
        return None

    def marginals(self, latents: Marginals, labels: slice = slice(None)) -> Marginals:
        loadings = self.loadings[labels]
        mean = torch.addmm(self.bias[labels], latents.mean, loadings.T)
        return Marginals(mean, latents.variance @ loadings.square().T)

    def means(self, latents: Marginals, labels: slice = slice(None)) -> Float[Tensor, "B L"]:
        return torch.addmm(self.bias[labels], latents.mean, self.loadings[labels].T)

    def of_labels(self, latents: Marginals, labels: Int[Tensor, "B C"]) -> Marginals:
        """It takes B x C x P numbers at once."""
        loadings = nn.functional.embedding(labels, self.loadings)
        mean = (loadings @ latents.mean.unsqueeze(2)).squeeze(2) + self.bias[labels]
        return Marginals(mean, (loadings.square() @ latents.variance.unsqueeze(2)).squeeze(2))

    def at(self, h: Float[Tensor, "*R B P"]) -> Float[Tensor, "*R B K"]:
        return h @ self.loadings.T + self.bias

    def covariances(self, latents: Marginals, classes: Int[Tensor, " B"]) -> Float[Tensor, "B K"]:
        return (self.loadings.index_select(0, classes) * latents.variance) @ self.loadings.T

    def weighted_mean_sum(self, latents: Marginals, y: SparseRows) -> Float[Tensor, ""]:
        return (latents.mean * matmul(y, self.loadings)).sum() + y.values @ self.bias.index_select(0, y.columns)

    def expectation_sum(
        self,
        latents: Marginals,
        offset: Float[Tensor, "B K"] | None,
        moments: Moments,
        weights: Float[Tensor, " K"] | None,
    ) -> Float[Tensor, ""]:
        """Nothing of size B x K outlives a chunk of labels but the gradient of the offset.

        On a GPU the products over labels round their factors to TF32.
        """
        # The backward pass has no product of its own: all of them are in this block.
        with tensor_float32(latents.mean.device):
            total: Tensor = _FactorExpectationSum.apply(*latents, self.loadings, self.bias, offset, weights, moments)
        return total

    def start_loadings(self, data: TrainingData) -> None:
        """N(0, 1/P), or the principal directions of the labels."""
        n_latent = self.loadings.shape[1]
        if data.loadings_start == "spectral":
            fill(self.loadings, _principal_loadings(data, n_latent))
            return
        # In blocks, for the draws are float64 and a wide model should not need several times its own memory to start.
        for start in range(0, self.n_utilities, _START_ROWS):
            rows = self.loadings[start : start + _START_ROWS]
            fill(rows, data.rng.normal(scale=1.0 / np.sqrt(n_latent), size=rows.shape))

    def step_scales(self) -> dict[nn.Parameter, float]:
        # Too fast, loadings fit noise before the inducing inputs find their places: held-out log-loss is worse.
        return {self.loadings: 0.3}

    def step_elements(self, sizes: StepSizes) -> int:
        return 2 * 6 * sizes.rows * self.loadings.shape[1]


class _FactorExpectationSum(torch.autograd.Function):
    """sum_ik w_k E g(f_ik) over all labels in chunks, with the gradients computed in the same pass.

    What is saved for backward has the shapes of the first five inputs.
    """

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        variance: Tensor,
        loadings: Tensor,
        bias: Tensor,
        offset: Tensor | None,
        weights: Tensor | None,
        moments: Moments,
    ) -> Tensor:
        needs_grad = any(ctx.needs_input_grad)
        chunk = max(1, _CHUNK_ELEMENTS // max(1, len(mean)))
        total = mean.new_zeros((), dtype=torch.float64)
        grad_mean, grad_variance = torch.zeros_like(mean), torch.zeros_like(variance)
        grad_loadings, grad_bias = torch.empty_like(loadings), torch.empty_like(bias)
        grad_offset = None if offset is None else torch.empty_like(offset)
        for start in range(0, len(bias), chunk):
            labels = slice(start, min(start + chunk, len(bias)))
            phi = loadings[labels]
            phi2 = phi.square()
            f_mean, f_variance = torch.addmm(bias[labels], mean, phi.T), variance @ phi2.T
            if offset is not None:
                f_mean += offset[:, labels]
            value, dm, dv = moments(f_mean, f_variance, labels)
            if weights is not None:
                value, dm, dv = (moment * weights[labels] for moment in (value, dm, dv))
            total += value.sum(dim=1).sum(dtype=torch.float64)
            if needs_grad:
                grad_mean.addmm_(dm, phi)
                grad_variance.addmm_(dv, phi2)
                torch.mm(dv.T, variance, out=grad_loadings[labels])
                grad_loadings[labels].mul_(phi).mul_(2.0).addmm_(dm.T, mean)
                torch.sum(dm, 0, out=grad_bias[labels])
                if grad_offset is not None:
                    grad_offset[:, labels] = dm
        if needs_grad:
            ctx.save_for_backward(grad_mean, grad_variance, grad_loadings, grad_bias, grad_offset)
        return total.to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (None if saved is None else saved * grad for saved in ctx.saved_tensors)
        return (*gradients, None, None)


class IdentityMixing(Mixing):
    """f_k = s_k h_k + b_k, a latent function for every label: s_k^2 is the variance of its kernel.

    Args:
        log_scales: start of log s, K.
        bias: start of b, K.
        learn_scales: whether s is learnt; not where the latent functions have a variance of their own.
        learn_bias: whether b is learnt.
        bias_variance: b_k ~ N(0, bias_variance), of which the most probable is found; None has no prior.
    """

    independent = True

    def __init__(
        self,
        log_scales: Float[Tensor, " K"],
        bias: Float[Tensor, " K"],
        *,
        learn_scales: bool = True,
        learn_bias: bool = True,
        bias_variance: float | None = None,
    ) -> None:
        super().__init__()
        self.log_scales = nn.Parameter(log_scales, requires_grad=learn_scales)
        self.bias = nn.Parameter(bias, requires_grad=learn_bias)
        self.bias_variance = bias_variance

    def select(self, labels: Int[Tensor, " L"]) -> IdentityMixing:
        """The mixing of L of the labels; it takes the marginals of their L functions."""
        log_scales, bias = (part.detach().index_select(0, labels) for part in (self.log_scales, self.bias))
        learn = {"learn_scales": self.log_scales.requires_grad, "learn_bias": self.bias.requires_grad}
        return IdentityMixing(log_scales, bias, **learn, bias_variance=self.bias_variance)

    def prior_variances(self) -> Float[Tensor, " K"]:
        return self.log_scales.mul(2).exp()

    def functions(self, labels: Int[Tensor, " L"]) -> Int[Tensor, " L"]:
        return labels

    def kl(self) -> Tensor | float:
        return 0.0 if self.bias_variance is None else 0.5 * self.bias.square().sum() / self.bias_variance

    def at(self, h: Float[Tensor, "*R B K"]) -> Float[Tensor, "*R B K"]:
        return torch.addcmul(self.bias, h, self.log_scales.exp())

    def marginals(self, latents: Marginals, labels: slice = slice(None)) -> Marginals:
        scales = self.log_scales[labels].exp()
        mean = torch.addcmul(self.bias[labels], latents.mean[:, labels], scales)
        return Marginals(mean, latents.variance[:, labels] * scales.square())

    def of_labels(self, latents: Marginals, labels: Int[Tensor, "B C"]) -> Marginals:
        scales = self.log_scales.exp()[labels]
        mean = torch.addcmul(self.bias[labels], latents.mean.gather(1, labels), scales)
        return Marginals(mean, latents.variance.gather(1, labels) * scales.square())

    def sample(self, latents: Marginals, noise: Float[Tensor, "S B K"]) -> Float[Tensor, "S B K"]:
        mean, variance = self.marginals(latents)
        return mean + variance.sqrt() * noise

    def weighted_mean_sum(self, latents: Marginals, y: SparseRows) -> Float[Tensor, ""]:
        scales = self.log_scales.exp().index_select(0, y.columns)
        return y.values @ torch.addcmul(self.bias[y.columns], latents.mean[y.rows, y.columns], scales)

    def step_elements(self, sizes: StepSizes) -> int:
        return 2 * 6 * sizes.rows * (sizes.labels if sizes.partial else self.n_utilities)


def _principal_loadings(data: TrainingData, n_latent: int) -> NDArray[np.float64]:
    """Principal directions of the labels times their standard deviations, K x P, of mean square 1/P.

    There are at most min(N, K) - 1 of them; other columns are small and random.
    """
    y, rng, weights = data.y, data.rng, data.weights
    n_rows, n_labels = y.shape
    means = data.frequencies
    found = min(n_latent, n_rows - 1, n_labels - 1)
    loadings = rng.normal(scale=0.1 / np.sqrt(n_latent), size=(n_labels, n_latent))
    # Labels that all rows have alike are nothing once they are centred.
    if found > 0 and _any_varies(y):
        centred: LinearOperator = _float64_operator(y) - aslinearoperator(np.ones((n_rows, 1))) @ aslinearoperator(
            means[None]
        )
        if weights is not None:
            centred = aslinearoperator(scipy.sparse.diags(np.sqrt(weights))) @ centred
        _, deviations, directions = svds(centred, k=found, random_state=int(rng.integers(2**31)))
        principal = directions.T[:, ::-1] * deviations[::-1]
        loadings[:, :found] = principal / max(np.sqrt(n_latent * np.square(principal).mean()), 1e-12)
    return loadings


def _any_varies(y: scipy.sparse.csr_matrix) -> bool:
    """Whether some label is not the same in all rows."""
    counts, first = column_counts(y), y[0].toarray().ravel()
    return bool(((counts > 0) & (counts < y.shape[0])).any() or (y.data != first[y.indices]).any())


def _float64_operator(y: scipy.sparse.csr_matrix) -> LinearOperator:
    """Products with y and its transpose in float64, a block of rows at a time: y as a whole is not converted."""
    blocks = [*row_blocks(y.indptr)]

    def product(v: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([y[rows].astype(np.float64) @ v for rows in blocks])

    def transposed(v: NDArray[np.float64]) -> NDArray[np.float64]:
        parts: Iterator[Any] = (y[rows].astype(np.float64).T @ v[rows] for rows in blocks)
        return np.asarray(sum(parts, start=np.zeros(1)))

    return LinearOperator(y.shape, product, transposed, product, np.float64, transposed)
