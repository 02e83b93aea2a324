"""Sparse variational Gaussian processes: kernel + inducing inputs + q(u) (T 2.13-2.21)."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor

from extremegp.engine.inducing import InducingInputs
from extremegp.engine.kernels import Kernel
from extremegp.engine.latents.base import ConditionedLatents, Latents, Marginals
from extremegp.engine.linalg import inverse_cholesky
from extremegp.engine.part import StepSizes
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

    def condition(self, seed: int = 0, functions: Int[Tensor, " L"] | None = None) -> ConditionedLatents:
        return _ConditionedGP(self, functions)

    def step_elements(self, sizes: StepSizes) -> int:
        # A posterior with a matrix for each function counts this itself.
        if not self._own_covariances or self.posterior.own_covariances:
            return 0
        return 6 * (sizes.labels if sizes.partial else self.n_functions) * sizes.rows * len(self.inducing)

    def step_bytes(self, sizes: StepSizes) -> int:
        # K_Z, its factors and their gradients.
        return 8 * 8 * len(self.inducing) ** 2 * (self.n_functions if self._own_covariances else 1)

    @property
    def _own_covariances(self) -> bool:
        """Whether every function has a K_Z of its own."""
        return self.kernel.per_function or self.inducing.per_function


class _ConditionedGP(ConditionedLatents):
    def __init__(self, latents: SparseGP, functions: Int[Tensor, " L"] | None) -> None:
        z, posterior = latents.inducing.points(functions), latents.posterior
        self.kernel = latents.kernel.at(z, functions)
        self.inverse_factor: Float[Tensor, "*P M M"] = inverse_cholesky(
            self.kernel.gram(),
            relative_jitter=latents.relative_jitter,
            dtype=torch.float64 if posterior.needs_float64 else z.dtype,
        )
        self.conditioned, self._kl = posterior.condition(self.inverse_factor, functions)
        self.functions: Int[Tensor, " L"] | None = None
        # M numbers of an input serve all functions, unless each has a kernel or a covariance of its own.
        own = self.inverse_factor.ndim == 3 or posterior.own_covariances
        self.width = self.inverse_factor.shape[-1] * (len(self.conditioned.mean) if own else 1)

    def marginals(self, x: Inputs) -> Marginals:
        """Mean a'E[v] and variance k(x, x) - a'a + a'Cov[v]a, a = L^-1 k_Z(x)."""
        a, remainder = self._whitened(x)
        mean, variance = self.conditioned.marginals(a)
        return Marginals(mean, variance + remainder)

    def _whitened(self, x: Inputs) -> tuple[Float[Tensor, "*P B M"], Float[Tensor, "B P"] | Float[Tensor, "B 1"]]:
        """a = L^-1 k_Z(x), and what k(x, x) exceeds a'a by."""
        cross, prior_variance = self.kernel(x)
        if self.functions is not None:
            # Of what the functions share there is no dimension P.
            cross = cross if cross.ndim == 2 else cross.index_select(0, self.functions)
            prior_variance = prior_variance if prior_variance.ndim == 1 else prior_variance[self.functions]
        a = cross @ self.inverse_factor.mT.to(cross.dtype)
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
        mean, _ = self.conditioned.marginals(a)
        drawn = mean + self.conditioned.noise(a, lengths, n_draws, generator)
        noise = torch.randn(drawn.shape, generator=generator, device=drawn.device, dtype=drawn.dtype)
        # Nothing remains of an inducing input, and at zero a root has no finite gradient.
        return drawn + remainder.clamp(min=torch.finfo(remainder.dtype).tiny).sqrt() * noise

    def kl(self) -> Float[Tensor, ""]:
        return self._kl()

    def select(self, functions: Int[Tensor, " L"]) -> ConditionedLatents:
        part = copy.copy(self)
        part.functions = functions if self.functions is None else self.functions[functions]
        part.conditioned = self.conditioned.select(functions)
        if self.inverse_factor.ndim == 3:
            part.inverse_factor = self.inverse_factor.index_select(0, functions)
        return part
