"""The linear kernel exactly, in feature space: h_p(x) = v_p'x with a Gaussian posterior on v_p."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extremegp.latents.base import ConditionedLatents, Latents, Marginals
from extremegp.sparse import Inputs, matmul, weighted_square_norms


class LinearFunctions(Latents):
    """P functions v_p'x, v_p ~ N(0, t2 I): a GP with kernel t2 x'z, without inducing inputs.

    The posterior is q(v_pd) = N(mean_pd, t2 r_d): D P free means, and per feature one ratio r_d of posterior to prior
    variance that all functions share, so the variance costs one sparse product for all of them.

    Args:
        n_features: D.
        n_functions: P.
        prior_variance: t2 at the start; it is learnt.
        variance_ratio: start of every r_d.
    """

    def __init__(
        self, n_features: int, n_functions: int, *, prior_variance: float = 1.0, variance_ratio: float = 0.25
    ) -> None:
        super().__init__()
        self.n_functions = n_functions
        self.q_mean = nn.Parameter(torch.zeros(n_features, n_functions))
        self.log_ratio = nn.Parameter(torch.full((n_features,), math.log(variance_ratio)))
        self.log_prior_variance = nn.Parameter(torch.tensor(math.log(prior_variance)))

    def condition(self) -> ConditionedLatents:
        return _ConditionedLinear(self)


class _ConditionedLinear(ConditionedLatents):
    def __init__(self, latents: LinearFunctions) -> None:
        self.latents = latents

    def marginals(self, x: Inputs) -> Marginals:
        latents = self.latents
        variances = (latents.log_ratio + latents.log_prior_variance).exp()
        variance = weighted_square_norms(x, variances).unsqueeze(-1)
        mean = matmul(x, latents.q_mean)
        return Marginals(mean, variance.expand_as(mean))

    def kl(self) -> Float[Tensor, ""]:
        """1/2 sum_pd [r_d + mean_pd^2 / t2 - 1 - log r_d]."""
        latents = self.latents
        ratio = (latents.log_ratio.exp() - 1 - latents.log_ratio).sum()
        energy = latents.q_mean.square().sum() * (-latents.log_prior_variance).exp()
        return 0.5 * (latents.n_functions * ratio + energy)
