"""Functions of features that are computed beforehand: Bayesian logistic regression on them, and what they leave out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.latents.base import ConditionedLatents, ConditionedWeights, Latents, Marginals
from extremegp.engine.latents.linear import LinearFunctions
from extremegp.engine.posteriors import ConditionedPosterior, MeanField
from extremegp.engine.sparse import Inputs

_PIECE = 4096  # rows


class FeatureGP(Latents):
    """h_p(x) = a'v_p + r(x), v_p ~ N(0, I), r ~ N(0, 1 - a'a) for every x by itself, of inputs that are features a.

    With a = L^-1 k_Z(x), K_Z = L L', and k(x, x) = 1 these are Gaussian processes with covariance k whose posterior
    goes through M inducing inputs (T 2.13-2.18).

    Args:
        n_functions: P.
        n_features: M.
    """

    needs_dense = of_features = True

    def __init__(self, n_functions: int, n_features: int) -> None:
        super().__init__()
        self.n_functions = n_functions
        self.posterior = MeanField(n_functions, n_features, variance=1.0)

    @torch.no_grad()
    def spread(self, a: Float[Tensor, "N M"], curvature: NDArray[np.float64]) -> None:
        """Start variances as curvatures that are the same for all rows have them, and means at zero.

        Args:
            a: features of the training rows, whose sum of squares A'A is diagonal.
            curvature: of the log-likelihood of a row in each function, P.
        """
        squares = torch.zeros_like(a[0])
        for start in range(0, len(a), _PIECE):
            squares += a[start : start + _PIECE].square().sum(0)
        precision = torch.from_numpy(curvature).to(squares)
        self.posterior.log_scales.copy_(-torch.log1p(precision.unsqueeze(1) * squares))

    def natural_step(self, step: float, scale: float) -> None:
        self.posterior.natural_step(step, scale)

    def condition(self, seed: int = 0, functions: Int[Tensor, " L"] | None = None) -> ConditionedFeatureGP:
        return ConditionedFeatureGP(self.posterior, functions)


class LandmarkFunctions(LinearFunctions):
    """The same functions with variance t, which stays, at their most probable weights; these may share a covariance.

    Args:
        n_features: M.
        n_functions: P.
        prior_variance: t.
    """

    needs_dense = of_features = True

    def __init__(self, n_features: int, n_functions: int, *, prior_variance: float) -> None:
        super().__init__(n_features, n_functions, prior_variance=prior_variance, posterior="point")

    def unseen_prior(self, squares: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        # In units of an average row: what is far from another by as much is nearly independent of it.
        return -self.prior_scale * torch.expm1(-squares)

    def mode_of_covariances(self, unwhitened: Callable[[Tensor], Tensor]) -> ConditionedLatents:
        return _ModeOfCovariances(self.at_mode(), unwhitened(self.q_mean.detach().double()), self.q_mean.dtype)

    def condition(self, seed: int = 0, functions: Int[Tensor, " L"] | None = None) -> ConditionedLatents:
        if self.covariance is None:
            return super().condition(seed, functions)
        mean = self.q_mean if functions is None else self.q_mean.index_select(1, functions)
        return _WithRest(self, mean, lambda: self._kl(mean, None))


class _ModeOfCovariances(ConditionedLatents):
    """The most probable functions of landmarks, of covariances with these in place of features: k_Z(x)' W m.

    To whiten a few inputs would take longer than all else.

    Args:
        mode: the functions of features.
        coefficients: W m, M x P, in float64.
        dtype: of the functions.
    """

    alike = True

    def __init__(self, mode: ConditionedLatents, coefficients: Float[Tensor, "M P"], dtype: torch.dtype) -> None:
        self._mode, self._coefficients, self._dtype, self.width = mode, coefficients, dtype, mode.width

    def marginals(self, x: Inputs) -> Marginals:
        mean = self._mean(x)
        return Marginals(mean, torch.zeros_like(mean))

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        mean = self._mean(x)
        return mean.expand(n_draws, *mean.shape)

    def _mean(self, x: Inputs) -> Float[Tensor, "B P"]:
        assert isinstance(x, Tensor)
        return (x @ self._coefficients).to(self._dtype)

    def kl(self) -> Float[Tensor, ""]:
        return self._mode.kl()

    def select(self, functions: Int[Tensor, " L"]) -> ConditionedLatents:
        coefficients = self._coefficients.index_select(1, functions)
        return _ModeOfCovariances(self._mode.select(functions), coefficients, self._dtype)


class _WithRest(ConditionedWeights):
    """Functions of landmarks with a covariance of their weights, and what the landmarks leave out of the prior."""

    def marginals(self, x: Inputs) -> Marginals:
        assert isinstance(x, Tensor)
        mean, variance = super().marginals(x)
        return Marginals(mean, variance + self.latents.prior_scale * left_out(x))

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        assert isinstance(x, Tensor)
        drawn = super().draws(x, lengths, n_draws, generator)
        noise = torch.randn(drawn.shape, generator=generator, device=drawn.device, dtype=drawn.dtype)
        return drawn + (self.latents.prior_scale * left_out(x)).sqrt() * noise


class ConditionedFeatureGP(ConditionedLatents):
    """The functions under the current posterior.

    Args:
        posterior: q(v).
        functions: which of them; None for all.
    """

    def __init__(self, posterior: MeanField, functions: Int[Tensor, " L"] | None) -> None:
        # The mean-field posterior in whitened coordinates needs no factor of K_Z.
        self.conditioned: ConditionedPosterior
        self.conditioned, self._kl = posterior.condition(posterior.q_mean.new_empty(0, 0), functions)
        self.width = self.conditioned.mean.shape[1]

    def marginals(self, x: Inputs) -> Marginals:
        assert isinstance(x, Tensor)
        mean, variance = self.conditioned.marginals(x)
        return Marginals(mean, variance + left_out(x))

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        assert isinstance(x, Tensor)
        mean, _ = self.conditioned.marginals(x)
        drawn = mean + self.conditioned.noise(x, lengths, n_draws, generator)
        noise = torch.randn(drawn.shape, generator=generator, device=drawn.device, dtype=drawn.dtype)
        return drawn + left_out(x).sqrt() * noise

    def kl(self) -> Float[Tensor, ""]:
        return self._kl()

    def select(self, functions: Int[Tensor, " L"]) -> ConditionedFeatureGP:
        part = object.__new__(ConditionedFeatureGP)
        part.conditioned, part._kl, part.width = self.conditioned.select(functions), self._kl, self.width
        return part


def left_out(a: Float[Tensor, "B M"]) -> Float[Tensor, "B 1"]:
    """1 - a'a, the variance of the prior that the features do not have."""
    return (1 - a.square().sum(-1, keepdim=True)).clamp(min=0.0)
