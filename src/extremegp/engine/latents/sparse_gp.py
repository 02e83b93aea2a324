"""Sparse variational Gaussian processes: kernel + inducing inputs + q(u) (T 2.13-2.21)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from extremegp.engine.inducing import InducingInputs
from extremegp.engine.kernels import Kernel
from extremegp.engine.latents.base import ConditionedLatents, Latents, Marginals, functions_of
from extremegp.engine.linalg import inverse_cholesky
from extremegp.engine.posteriors import Posterior
from extremegp.engine.sparse import Inputs


class SparseGP(Latents):
    """P functions h_p ~ GP(0, k), or GP(0, k_p) where the kernel has a parameter for each, with M inducing inputs.

    Args:
        kernel: k.
        inducing: the inducing inputs Z, M x D.
        posterior: q(u) for the P functions.
        n_functions: P.
        relative_jitter: added to K_Z before it is factorised, as a fraction of its mean diagonal.
    """

    def __init__(
        self,
        kernel: Kernel,
        inducing: InducingInputs,
        posterior: Posterior,
        *,
        n_functions: int,
        relative_jitter: float = 1e-6,
    ) -> None:
        super().__init__()
        self.kernel, self.inducing, self.posterior = kernel, inducing, posterior
        self.n_functions = n_functions
        self.relative_jitter = relative_jitter

    def condition(self, seed: int = 0) -> ConditionedLatents:
        return _ConditionedGP(self)

    def project(self) -> None:
        self.inducing.project()


class _ConditionedGP(ConditionedLatents):
    def __init__(self, latents: SparseGP) -> None:
        z = latents.inducing.points()
        self.kernel, self.posterior = latents.kernel.at(z), latents.posterior
        self.inverse_factor: Float[Tensor, "*P M M"] = inverse_cholesky(
            self.kernel.gram(),
            relative_jitter=latents.relative_jitter,
            dtype=torch.float64 if self.posterior.needs_float64 else z.dtype,
        )
        self.conditioned = self.posterior.condition(self.inverse_factor)
        # M numbers of an input serve all functions, unless each has a kernel or a covariance of its own.
        matrices = (self.inverse_factor, self.conditioned, *self.posterior.parameters())
        own = any(matrix.ndim == 3 for matrix in matrices)
        self.width = self.inverse_factor.shape[-1] * (latents.n_functions if own else 1)

    def marginals(self, x: Inputs, functions: Int[Tensor, " L"] | None = None) -> Marginals:
        """Mean a'E[v] and variance k(x, x) - a'a + a'Cov[v]a, a = L^-1 k_Z(x)."""
        a, remainder = self._whitened(x, functions)
        conditioned = self.conditioned
        if functions is not None and conditioned.ndim > 2:
            conditioned = conditioned.index_select(0, functions)
        mean, variance = functions_of(self.posterior, functions).marginals(a, conditioned)
        return Marginals(mean, variance + remainder)

    def _whitened(
        self, x: Inputs, functions: Int[Tensor, " L"] | None = None
    ) -> tuple[Float[Tensor, "*P B M"], Float[Tensor, "B P"] | Float[Tensor, "B 1"]]:
        """a = L^-1 k_Z(x), and what k(x, x) exceeds a'a by."""
        cross, prior_variance = self.kernel(x)
        inverse_factor = self.inverse_factor
        if functions is not None:
            # Of what the functions share there is no dimension P.
            cross, inverse_factor = (
                part if part.ndim == 2 else part.index_select(0, functions) for part in (cross, inverse_factor)
            )
            prior_variance = prior_variance if prior_variance.ndim == 1 else prior_variance.index_select(0, functions)
        a = cross @ inverse_factor.mT.to(cross.dtype)
        # Rounding may leave the prior's remainder slightly below zero where x is an inducing input.
        remainder = (prior_variance - a.square().sum(-1)).clamp(min=0.0)
        return a, remainder.T if remainder.ndim > 1 else remainder.unsqueeze(-1)

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        """Draws of a'v plus a remainder that is drawn for every input by itself.

        The prior whose posterior this is has the covariance a(x)'a(z) between inputs, and k(x, x) at each: that of
        fully independent training conditionals (Quinonero-Candela and Rasmussen 2005, section 6). Where every input is
        an inducing input, that is k.
        """
        a, remainder = self._whitened(x)
        mean, _ = self.posterior.marginals(a, self.conditioned)
        drawn = mean + self.posterior.noise(a, self.conditioned, lengths, n_draws, generator)
        noise = torch.randn(drawn.shape, generator=generator, device=drawn.device, dtype=drawn.dtype)
        # Nothing remains of an inducing input, and at zero a root has no finite gradient.
        return drawn + remainder.clamp(min=torch.finfo(remainder.dtype).tiny).sqrt() * noise

    def kl(self) -> Float[Tensor, ""]:
        return self.posterior.kl(self.conditioned)
