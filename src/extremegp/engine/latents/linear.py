"""The linear kernel exactly, in feature space: h_p(x) = v_p'x with a Gaussian posterior on v_p."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.draws import sequence_noise
from extremegp.engine.latents.base import ConditionedLatents, Latents, Marginals, functions_of
from extremegp.engine.sparse import Inputs, matmul, squared, weighted_square_norms

LinearPosterior = Literal["shared", "mean-field", "point"]


class LinearFunctions(Latents):
    """P functions v_p'x, v_p ~ N(0, t2 I): a GP with kernel t2 x'z, without inducing inputs.

    The posterior is q(v_pd) = N(mean_pd, t2 r_pd), r the ratio of posterior to prior variance. "shared" has one ratio
    per feature for all functions, so that the variance costs one sparse product for all of them; "mean-field" has one
    for each; "point" is the mean alone, penalised by its prior, whose variance stays fixed (T 3.22).

    Args:
        n_features: D.
        n_functions: P.
        prior_variance: t2 at the start; it is learnt.
        variance_ratio: start of every r.
        posterior: the family.
    """

    def __init__(
        self,
        n_features: int,
        n_functions: int,
        *,
        prior_variance: float = 1.0,
        variance_ratio: float = 0.25,
        posterior: LinearPosterior = "shared",
    ) -> None:
        super().__init__()
        self.n_functions = n_functions
        self.q_mean = nn.Parameter(torch.zeros(n_features, n_functions))
        self.per_function = {"q_mean": 1}
        self.log_ratio: nn.Parameter | None = None
        if posterior != "point":
            shape = (n_features,) if posterior == "shared" else (n_features, n_functions)
            self.log_ratio = nn.Parameter(torch.full(shape, math.log(variance_ratio)))
            if posterior == "mean-field":
                self.per_function["log_ratio"] = 1
        self.log_prior_variance = nn.Parameter(
            torch.tensor(math.log(prior_variance)), requires_grad=posterior != "point"
        )

    def condition(self, seed: int = 0) -> ConditionedLatents:
        return _ConditionedLinear(self)


class _ConditionedLinear(ConditionedLatents):
    def __init__(self, latents: LinearFunctions) -> None:
        self.latents, self.width = latents, latents.n_functions
        # A point draws nothing.
        self.alike = latents.log_ratio is None

    def marginals(self, x: Inputs, functions: Int[Tensor, " L"] | None = None) -> Marginals:
        latents = functions_of(self.latents, functions)
        mean = matmul(x, latents.q_mean)
        if latents.log_ratio is None:
            return Marginals(mean, torch.zeros_like(mean))
        variances = (latents.log_ratio + latents.log_prior_variance).exp()
        if variances.ndim == 1:
            return Marginals(mean, weighted_square_norms(x, variances).unsqueeze(-1).expand_as(mean))
        return Marginals(mean, matmul(squared(x), variances))

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        latents = self.latents
        mean = matmul(x, latents.q_mean)
        if latents.log_ratio is None:
            return mean.expand(n_draws, *mean.shape)
        deviations = (0.5 * (latents.log_ratio + latents.log_prior_variance)).exp()
        return mean + sequence_noise(x, deviations, lengths, (n_draws, latents.n_functions), generator)

    def kl(self) -> Float[Tensor, ""]:
        """1/2 sum_pd [r_pd + mean_pd^2 / t2 - 1 - log r_pd]; of a point, 1/2 sum_pd mean_pd^2 / t2."""
        latents = self.latents
        energy = latents.q_mean.square().sum() * (-latents.log_prior_variance).exp()
        if latents.log_ratio is None:
            return 0.5 * energy
        repeats = latents.q_mean.numel() // latents.log_ratio.numel()
        ratio = (latents.log_ratio.exp() - 1 - latents.log_ratio).sum()
        return 0.5 * (repeats * ratio + energy)
