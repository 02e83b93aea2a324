"""How P latent functions become K utilities: mixed by loadings (T 4.1, ML 1), or one function for each."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.latents.base import Marginals
from extremegp.engine.sparse import SparseRows, matmul


class Mixing(nn.Module, ABC):
    """f_k = phi_k'h + b_k, plus what a mean function adds.

    Attributes:
        loadings: Phi, K x P.
        bias: b, K.
    """

    loadings: Float[Tensor, "K P"]
    bias: nn.Parameter

    @property
    def n_labels(self) -> int:
        return len(self.bias)

    @abstractmethod
    def restricted(self, labels: Int[Tensor, " L"]) -> Mixing:
        """The mixing of L of the labels, with parameters of its own that start as these rows: gradients are L x P."""

    @abstractmethod
    def utilities(self, latents: Marginals, labels: slice = slice(None)) -> Marginals:
        """Means and variances of the utilities of some labels, B x |labels| each."""

    @abstractmethod
    def mean_utilities(self, latents: Marginals, labels: slice = slice(None)) -> Float[Tensor, "B L"]:
        """Means alone, where variances are not needed."""

    @abstractmethod
    def differences(self, latents: Marginals, classes: Int[Tensor, " B"]) -> Marginals:
        """Means and variances of f_c - f_l, B x K, for the class c of each row; zero at l = c."""

    def weighted_mean_sum(self, latents: Marginals, y: SparseRows) -> Float[Tensor, ""]:
        """sum_ik y_ik E[f_ik] over the stored entries of y (B x K), without forming any other utility."""
        total = (latents.mean * matmul(y, self.loadings)).sum() + y.values @ self.bias.index_select(0, y.columns)
        return total if latents.offset is None else total + y.values @ latents.offset[y.rows, y.columns]

    def sample(self, latents: Marginals, noise: Float[Tensor, "S B P"]) -> Float[Tensor, "S B K"]:
        """Utilities at draws of the latent functions, made of standard normal noise."""
        h = latents.mean + latents.variance.sqrt() * noise
        f = h @ self.loadings.T + self.bias
        return f if latents.offset is None else f + latents.offset


class FactorMixing(Mixing):
    """f = Phi h + b, so that f_k ~ N(Phi_k mean_h + b_k, (Phi_k * Phi_k) var_h).

    Args:
        loadings: start of Phi, K x P.
        bias: start of b, K.
    """

    def __init__(self, loadings: Float[Tensor, "K P"], bias: Float[Tensor, " K"]) -> None:
        super().__init__()
        self.loadings = nn.Parameter(loadings)
        self.bias = nn.Parameter(bias)

    def restricted(self, labels: Int[Tensor, " L"]) -> FactorMixing:
        return FactorMixing(self.loadings.detach().index_select(0, labels), self.bias.detach().index_select(0, labels))

    def utilities(self, latents: Marginals, labels: slice = slice(None)) -> Marginals:
        loadings = self.loadings[labels]
        mean = torch.addmm(self.bias[labels], latents.mean, loadings.T)
        if latents.offset is not None:
            mean = mean + latents.offset[:, labels]
        return Marginals(mean, latents.variance @ loadings.square().T)

    def mean_utilities(self, latents: Marginals, labels: slice = slice(None)) -> Float[Tensor, "B L"]:
        mean = torch.addmm(self.bias[labels], latents.mean, self.loadings[labels].T)
        return mean if latents.offset is None else mean + latents.offset[:, labels]

    def utilities_at(self, latents: Marginals, labels: Int[Tensor, "B C"]) -> Marginals:
        """Means and variances of the utilities of C labels of each row, which differ from row to row, B x C each.

        It takes B x C x P numbers at once.
        """
        loadings = torch.nn.functional.embedding(labels, self.loadings)
        mean = (loadings @ latents.mean.unsqueeze(2)).squeeze(2) + self.bias[labels]
        if latents.offset is not None:
            mean = mean + latents.offset.gather(1, labels)
        return Marginals(mean, (loadings.square() @ latents.variance.unsqueeze(2)).squeeze(2))

    def differences(self, latents: Marginals, classes: Int[Tensor, " B"]) -> Marginals:
        mean, variance, _ = self.utilities(latents)
        # Utilities share latent functions, so that they are correlated.
        covariance = (self.loadings.index_select(0, classes) * latents.variance) @ self.loadings.T
        return _differences(mean, variance, classes, covariance)


class IdentityMixing(Mixing):
    """f_k = s_k h_k + b_k, a latent function for every label: s_k^2 is the variance of its kernel.

    Args:
        log_scales: start of log s, K.
        bias: start of b, K.
    """

    def __init__(self, log_scales: Float[Tensor, " K"], bias: Float[Tensor, " K"]) -> None:
        super().__init__()
        self.log_scales = nn.Parameter(log_scales)
        self.bias = nn.Parameter(bias)

    @property
    def loadings(self) -> Float[Tensor, "K K"]:  # type: ignore[override]
        """diag(s)."""
        return torch.diag(self.log_scales.exp())

    def restricted(self, labels: Int[Tensor, " L"]) -> IdentityMixing:
        """The mixing of L of the labels; it takes the marginals of their L functions."""
        return IdentityMixing(
            self.log_scales.detach().index_select(0, labels), self.bias.detach().index_select(0, labels)
        )

    def at(self, h: Float[Tensor, "*R B K"]) -> Float[Tensor, "*R B K"]:
        """Utilities of known values of the functions."""
        return torch.addcmul(self.bias, h, self.log_scales.exp())

    def utilities(self, latents: Marginals, labels: slice = slice(None)) -> Marginals:
        scales = self.log_scales[labels].exp()
        mean = torch.addcmul(self.bias[labels], latents.mean[:, labels], scales)
        if latents.offset is not None:
            mean = mean + latents.offset[:, labels]
        return Marginals(mean, latents.variance[:, labels] * scales.square())

    def mean_utilities(self, latents: Marginals, labels: slice = slice(None)) -> Float[Tensor, "B L"]:
        return self.utilities(latents, labels).mean

    def differences(self, latents: Marginals, classes: Int[Tensor, " B"]) -> Marginals:
        mean, variance, _ = self.utilities(latents)
        return _differences(mean, variance, classes)

    def sample(self, latents: Marginals, noise: Float[Tensor, "S B K"]) -> Float[Tensor, "S B K"]:
        mean, variance, _ = self.utilities(latents)
        return mean + variance.sqrt() * noise


def _differences(
    mean: Float[Tensor, "B K"],
    variance: Float[Tensor, "B K"],
    classes: Int[Tensor, " B"],
    covariance: Float[Tensor, "B K"] | None = None,
) -> Marginals:
    own = classes.unsqueeze(1)
    total = variance.gather(1, own) + variance
    if covariance is not None:
        # Rounding may leave less than nothing where utilities nearly coincide.
        total = (total - 2 * covariance).clamp(min=0.0)
    return Marginals(mean.gather(1, own) - mean, total.scatter(1, own, 0.0))
