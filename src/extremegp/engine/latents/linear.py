"""The linear kernel exactly, in feature space: h_p(x) = v_p'x with a Gaussian posterior on v_p."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.draws import sequence_noise
from extremegp.engine.latents.base import ConditionedLatents, ConditionedWeights, Marginals, WeightedLatents
from extremegp.engine.part import StepSizes
from extremegp.engine.sparse import Inputs, matmul, squared, weighted_square_norms

LinearPosterior = Literal["shared", "mean-field", "point"]


class LinearFunctions(WeightedLatents):
    """P functions v_p'x, v_p ~ N(0, t2 I): a GP with kernel t2 x'z, without inducing inputs.

    The posterior is q(v_pd) = N(mean_pd, t2 r_pd), r the ratio of posterior to prior variance. "shared" has one ratio
    per feature for all functions, so that the variance costs one sparse product for all of them; "mean-field" has one
    for each; "point" is the mean alone, penalised by its prior, whose variance stays fixed (T 3.22). Once they are
    trained they may share a covariance matrix in place of ratios, see `WeightCovariance`.

    Args:
        n_features: D.
        n_functions: P.
        prior_variance: t2 at the start; it is learnt.
        variance_ratio: start of every r.
        posterior: the family.
        stays_point: whether it is a point that is never given a covariance.
    """

    def __init__(
        self,
        n_features: int,
        n_functions: int,
        *,
        prior_variance: float = 1.0,
        variance_ratio: float = 0.25,
        posterior: LinearPosterior = "shared",
        stays_point: bool = False,
    ) -> None:
        super().__init__()
        self.n_functions, self.stays_point = n_functions, stays_point
        self.q_mean = nn.Parameter(torch.zeros(n_features, n_functions))
        self.log_ratio: nn.Parameter | None = None
        if posterior != "point":
            shape = (n_features,) if posterior == "shared" else (n_features, n_functions)
            self.log_ratio = nn.Parameter(torch.full(shape, math.log(variance_ratio)))
        self.log_prior_variance = nn.Parameter(
            torch.tensor(math.log(prior_variance)), requires_grad=posterior != "point"
        )

    def with_weights(self) -> Iterator[tuple[int, WeightedLatents]]:
        if not self.stays_point:
            yield 0, self

    @property
    def n_weights(self) -> int:
        return self.q_mean.shape[0]

    @property
    def prior_scale(self) -> Float[Tensor, ""]:
        return self.log_prior_variance.exp()

    def weight_features(self, x: Inputs) -> Inputs:
        return x

    def unseen_prior(self, squares: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        return self.prior_scale * squares

    def forget_own(self) -> None:
        self.log_ratio = None

    def condition(self, seed: int = 0, functions: Int[Tensor, " L"] | None = None) -> ConditionedLatents:
        ratio = self.log_ratio
        if self.covariance is not None:
            shared = self.q_mean if functions is None else _columns(self.q_mean, functions)
            return ConditionedWeights(self, shared, lambda: self._kl(shared, None))
        log_variance = None if ratio is None else ratio + self.log_prior_variance
        if functions is None:
            return _ConditionedLinear(self.q_mean, log_variance, lambda: self._kl(self.q_mean, ratio))
        mean = _columns(self.q_mean, functions)
        own_ratio = None if ratio is None else _columns(ratio, functions)
        log_variance = None if log_variance is None else _columns(log_variance, functions)
        return _ConditionedLinear(mean, log_variance, lambda: self._kl(mean, own_ratio))

    def at_mode(self) -> ConditionedLatents:
        return _ConditionedLinear(self.q_mean, None, lambda: self._kl(self.q_mean, None))

    def _kl(self, mean: Float[Tensor, "D L"], log_ratio: Tensor | None) -> Float[Tensor, ""]:
        """1/2 sum_pd [r_pd + mean_pd^2 / t2 - 1 - log r_pd]; of a point, 1/2 sum_pd mean_pd^2 / t2."""
        energy = mean.square().sum() * (-self.log_prior_variance).exp()
        if log_ratio is None:
            return 0.5 * energy
        repeats = mean.numel() // log_ratio.numel()
        ratio = (log_ratio.exp() - 1 - log_ratio).sum()
        return 0.5 * (repeats * ratio + energy)

    def step_scales(self) -> dict[nn.Parameter, float]:
        # As loadings: too fast, they fit noise.
        return {self.q_mean: 0.3}

    def step_elements(self, sizes: StepSizes) -> int:
        if not sizes.sequences or self.log_ratio is None:
            return 0
        # Of sparse inputs, sequences draw weights of the features that they have.
        drawn = min(self.q_mean.shape[0], sizes.stored // sizes.sequences)
        return 3 * sizes.sequences * drawn * sizes.draws * self.n_functions


class _ConditionedLinear(ConditionedLatents):
    def __init__(
        self,
        mean: Float[Tensor, "D P"],
        log_variance: Float[Tensor, "D P"] | Float[Tensor, " D"] | None,
        kl: Callable[[], Float[Tensor, ""]],
    ) -> None:
        self.mean, self.log_variance, self._kl, self.width = mean, log_variance, kl, mean.shape[1]
        # A point draws nothing.
        self.alike = log_variance is None

    def marginals(self, x: Inputs) -> Marginals:
        mean = matmul(x, self.mean)
        if self.log_variance is None:
            return Marginals(mean, torch.zeros_like(mean))
        variances = self.log_variance.exp()
        if variances.ndim == 1:
            return Marginals(mean, weighted_square_norms(x, variances).unsqueeze(-1).expand_as(mean))
        return Marginals(mean, matmul(squared(x), variances))

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        mean = matmul(x, self.mean)
        if self.log_variance is None:
            return mean.expand(n_draws, *mean.shape)
        deviations = (0.5 * self.log_variance).exp()
        return mean + sequence_noise(x, deviations, lengths, (n_draws, self.width), generator)

    def kl(self) -> Float[Tensor, ""]:
        return self._kl()

    def select(self, functions: Int[Tensor, " L"]) -> ConditionedLatents:
        log_variance = None if self.log_variance is None else _columns(self.log_variance, functions)
        return _ConditionedLinear(_columns(self.mean, functions), log_variance, self._kl)


def _columns(values: Tensor, functions: Int[Tensor, " L"]) -> Tensor:
    """Those of some functions; what all functions share has one dimension."""
    return values if values.ndim == 1 else values.index_select(1, functions)
