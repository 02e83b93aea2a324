"""Variational distributions q(u) over the inducing variables of P functions (T 2.19-2.25, ML 9-13).

With K_Z = L L' and u = L v, a posterior sees an input x through a = L^-1 k_Z(x): it gives a'E[v] and a'Cov[v]a for each
of the P functions, and KL[q(v) || N(0, I)], which equals KL[q(u) || p(u)]. Where each function has a K_Z of its own, a
and L^-1 have a leading dimension P.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.draws import sequence_noise
from extremegp.engine.linalg import inverse_cholesky, lower_triangular
from extremegp.engine.part import Part, StepSizes

_LEAST_GROWTH = 0.1  # of precision in one natural step; concave data terms only ever add to it


class ConditionedPosterior(NamedTuple):
    """q under the current parameters: v_p ~ N(mean_p, R_p diag(d_p) R_p'), in u where `before` takes a to u.

    Attributes:
        mean: E[v_p].
        root: R, one for all functions or one for each; None for the identity.
        log_scales: log d; None for d = 1.
        before: what a is multiplied by first, L^-1 where q is of u = L v.
    """

    mean: Float[Tensor, "P M"]
    root: Float[Tensor, "*P M M"] | None = None
    log_scales: Float[Tensor, "P M"] | None = None
    before: Float[Tensor, "*P M M"] | None = None

    def marginals(self, a: Float[Tensor, "*P B M"]) -> tuple[Float[Tensor, "B P"], Float[Tensor, "B P"]]:
        """Mean a'E[v_p] and variance a'Cov[v_p]a of every function at every input."""
        a = self._unwhitened(a)
        square = self._rotated(a).square()
        variance = square.sum(-1).T if self.log_scales is None else _dots(square, self.log_scales.exp())
        return _dots(a, self.mean), variance

    def noise(
        self, a: Float[Tensor, "*P B M"], lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        """a'(v_p - E[v_p]) at the inputs of S sequences, of R draws of every v_p for each sequence."""
        rotated = self._rotated(self._unwhitened(a))
        if rotated.ndim == 2:
            assert self.log_scales is not None
            deviations = (0.5 * self.log_scales).exp().T
            return sequence_noise(rotated, deviations, lengths, (n_draws, len(self.mean)), generator)
        if self.log_scales is not None:
            rotated = rotated * (0.5 * self.log_scales).exp().unsqueeze(1)
        unit, none = rotated.new_ones(rotated.shape[-1]), rotated.new_empty(n_draws, rotated.shape[1], 0)
        drawn = (sequence_noise(part, unit, lengths, (n_draws, 1), generator) for part in rotated)
        return torch.cat([none, *drawn], dim=-1)

    def select(self, functions: Int[Tensor, " L"]) -> ConditionedPosterior:
        """That of some of the functions."""
        mean, log_scales = (None if part is None else part[functions] for part in (self.mean, self.log_scales))
        assert mean is not None
        root, before = (of_functions(part, functions) for part in (self.root, self.before))
        return ConditionedPosterior(mean, root, log_scales, before)

    def _unwhitened(self, a: Tensor) -> Tensor:
        return a if self.before is None else a @ self.before

    def _rotated(self, a: Tensor) -> Tensor:
        return a if self.root is None else torch.matmul(a, self.root)


def of_functions(matrices: Tensor | None, functions: Int[Tensor, " L"]) -> Tensor | None:
    """Those of some of the functions, P x .. x ..; a matrix that all share, or None, is theirs too."""
    return matrices if matrices is None or matrices.ndim < 3 else matrices.index_select(0, functions)


class Posterior(Part):
    """q(u) for P functions and M inducing inputs.

    Attributes:
        needs_float64: whether L^-1 must come in float64 whatever the dtype of the rest.
        own_covariances: whether every function has a matrix of its own.
    """

    needs_float64: ClassVar[bool] = False
    own_covariances: ClassVar[bool] = False
    q_mean: nn.Parameter

    @abstractmethod
    def condition(
        self, inverse_factor: Float[Tensor, "*P M M"], functions: Int[Tensor, " L"] | None = None
    ) -> tuple[ConditionedPosterior, Callable[[], Float[Tensor, ""]]]:
        """The posterior of all functions or of some, and what gives sum_p KL[q(u_p) || p(u_p)] of them.

        Args:
            inverse_factor: L^-1, of these functions where each has its own.
            functions: which; all by default.
        """

    def natural_step(self, step: float, scale: float) -> None:
        """A step along the natural gradient of the bound (Salimbeni, Eleftheriadis and Hensman 2018), in place.

        With m and S the moments of q(v_p): S^-1 becomes S^-1 - 2 step dbound/dS, and then m becomes
        m + step S dbound/dm. A step of one reaches the optimum where the data term is quadratic.

        Args:
            step: its length, in (0, 1].
            scale: the parameters hold gradients of -bound / scale.
        """
        super().natural_step(step, scale)

    def step_elements(self, sizes: StepSizes) -> int:
        n_functions, n_inducing = self.q_mean.shape
        each = sizes.labels if sizes.partial else n_functions
        # Draws of sequences need no squares.
        own = (2 if sizes.sequences else 6) * each if self.own_covariances else 0
        of_sequences = 3 * sizes.sequences * n_inducing * sizes.draws * n_functions
        return (8 + own) * sizes.rows * n_inducing + of_sequences


def _start_mean(n_functions: int, n_inducing: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(n_functions, n_inducing))


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        raise ValueError("a natural step needs the gradients of a backward pass")
    return parameter.grad


def _natural_scales(log_scales: Tensor, step: float, scale: float) -> None:
    """1/d becomes 1/d - 2 step dbound/dd."""
    growth = 1 + 2 * step * scale * _gradient(log_scales)
    log_scales.sub_(growth.clamp_(min=_LEAST_GROWTH).log())


def _made_positive(precision: Float[Tensor, "P M M"]) -> Float[Tensor, "P M M"]:
    """The matrices themselves if all are positive definite; else with eigenvalues below a tenth raised to that."""
    _, failed = torch.linalg.cholesky_ex(precision)
    if not failed.any():
        return precision
    values, vectors = torch.linalg.eigh(precision)
    raised: Tensor = (vectors * values.clamp(min=_LEAST_GROWTH).unsqueeze(-2)) @ vectors.mT
    return raised


def _rows(values: Tensor, functions: Int[Tensor, " L"] | None) -> Tensor:
    return values if functions is None else values.index_select(0, functions)


def _dots(a: Float[Tensor, "*P B M"], v: Float[Tensor, "P M"]) -> Float[Tensor, "B P"]:
    """a.v_p for every row of a, or for every row of a_p."""
    return a @ v.T if a.ndim == 2 else (a @ v.unsqueeze(-1)).squeeze(-1).T


class SharedBasis(Posterior):
    """v_p ~ N(w_p, C diag(d_p) C'), with one lower-triangular C for all p.

    The optimal whitened covariances (I + sum_i lambda_pi a_i a_i')^-1 nearly share their eigenvectors: one basis and P
    diagonals lose little against P full matrices and cost O(M^2 + M P) instead of O(M^2 P) per input.

    Args:
        n_functions: P.
        n_inducing: M.
        variance: start of every d_pj.
    """

    def __init__(self, n_functions: int, n_inducing: int, *, variance: float = 0.25) -> None:
        super().__init__()
        self.q_mean = _start_mean(n_functions, n_inducing)
        self.log_scales = nn.Parameter(torch.full((n_functions, n_inducing), math.log(variance)))
        self.raw_basis = nn.Parameter(torch.zeros(n_inducing, n_inducing))

    def condition(
        self, inverse_factor: Float[Tensor, "*P M M"], functions: Int[Tensor, " L"] | None = None
    ) -> tuple[ConditionedPosterior, Callable[[], Float[Tensor, ""]]]:
        mean, log_scales = (_rows(part, functions) for part in (self.q_mean, self.log_scales))
        conditioned = ConditionedPosterior(mean, lower_triangular(self.raw_basis), log_scales)
        return conditioned, partial(self._kl, mean, log_scales)

    def _kl(self, mean: Float[Tensor, "P M"], log_scales: Float[Tensor, "P M"]) -> Float[Tensor, ""]:
        basis = lower_triangular(self.raw_basis)
        trace = basis.square().sum(0) @ log_scales.exp().sum(0)
        log_det = log_scales.sum() + 2 * len(mean) * self.raw_basis.diagonal().sum()
        return 0.5 * (trace + mean.square().sum() - mean.numel() - log_det)

    def natural_parameters(self) -> list[nn.Parameter]:
        """Means and diagonals; the basis, given which they are natural coordinates, is left to other optimisers."""
        return [self.q_mean, self.log_scales]

    @torch.no_grad()
    def natural_step(self, step: float, scale: float) -> None:
        basis = lower_triangular(self.raw_basis)
        _natural_scales(self.log_scales, step, scale)
        gradient = -scale * _gradient(self.q_mean)
        self.q_mean.add_(((gradient @ basis) * self.log_scales.exp()) @ basis.T, alpha=step)


class MeanField(Posterior):
    """v_p ~ N(w_p, diag(d_p)). Arguments as `SharedBasis`."""

    def __init__(self, n_functions: int, n_inducing: int, *, variance: float = 0.25) -> None:
        super().__init__()
        self.q_mean = _start_mean(n_functions, n_inducing)
        self.log_scales = nn.Parameter(torch.full((n_functions, n_inducing), math.log(variance)))

    def condition(
        self, inverse_factor: Float[Tensor, "*P M M"], functions: Int[Tensor, " L"] | None = None
    ) -> tuple[ConditionedPosterior, Callable[[], Float[Tensor, ""]]]:
        mean, log_scales = (_rows(part, functions) for part in (self.q_mean, self.log_scales))
        return ConditionedPosterior(mean, None, log_scales), partial(self._kl, mean, log_scales)

    @staticmethod
    def _kl(mean: Float[Tensor, "P M"], log_scales: Float[Tensor, "P M"]) -> Float[Tensor, ""]:
        return 0.5 * (log_scales.exp().sum() + mean.square().sum() - mean.numel() - log_scales.sum())

    def natural_parameters(self) -> list[nn.Parameter]:
        return [self.q_mean, self.log_scales]

    @torch.no_grad()
    def natural_step(self, step: float, scale: float) -> None:
        _natural_scales(self.log_scales, step, scale)
        self.q_mean.add_(_gradient(self.q_mean) * self.log_scales.exp(), alpha=-step * scale)


class Full(Posterior):
    """A Gaussian with its own Cholesky factor for every function: N(w_p, L_p L_p') (T 2.19-2.21), O(B M^2 P) per step.

    Args:
        n_functions: P.
        n_inducing: M.
        whitened: whether mean and factor are those of v (True) or of u itself (False, as in the papers).
        variance: start of the diagonal of L_p L_p'.
    """

    own_covariances = True

    def __init__(self, n_functions: int, n_inducing: int, *, whitened: bool = True, variance: float = 0.25) -> None:
        super().__init__()
        self.whitened = whitened
        self.q_mean = _start_mean(n_functions, n_inducing)
        factors = torch.zeros(n_functions, n_inducing, n_inducing)
        factors.diagonal(dim1=-2, dim2=-1).fill_(0.5 * math.log(variance))
        self.raw_factors = nn.Parameter(factors)

    def condition(
        self, inverse_factor: Float[Tensor, "*P M M"], functions: Int[Tensor, " L"] | None = None
    ) -> tuple[ConditionedPosterior, Callable[[], Float[Tensor, ""]]]:
        mean, raw = (_rows(part, functions) for part in (self.q_mean, self.raw_factors))
        before = None if self.whitened else inverse_factor
        return ConditionedPosterior(mean, lower_triangular(raw), before=before), partial(self._kl, mean, raw, before)

    @staticmethod
    def _kl(
        mean: Float[Tensor, "P M"], raw: Float[Tensor, "P M M"], inverse_factor: Float[Tensor, "*P M M"] | None
    ) -> Float[Tensor, ""]:
        factors = lower_triangular(raw)
        log_det = raw.diagonal(dim1=-2, dim2=-1).sum()
        if inverse_factor is not None:
            factors, mean = inverse_factor @ factors, (inverse_factor @ mean.unsqueeze(-1)).squeeze(-1)
            log_dets = inverse_factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            log_det = log_det + log_dets.expand(len(mean)).sum()
        return 0.5 * (factors.square().sum() + mean.square().sum() - mean.numel()) - log_det

    def natural_parameters(self) -> list[nn.Parameter]:
        return [self.q_mean, self.raw_factors] if self.whitened else []

    @torch.no_grad()
    def natural_step(self, step: float, scale: float) -> None:
        if not self.whitened:
            super().natural_step(step, scale)
        factors = lower_triangular(self.raw_factors).double()
        by_factor = -scale * _gradient(self.raw_factors).double()
        diagonal = factors.diagonal(dim1=-2, dim2=-1)
        by_factor.diagonal(dim1=-2, dim2=-1).div_(diagonal)
        # Back through S = L L' (Murray 2016, section 3), in coordinates where S is the identity.
        inner = (factors.mT @ by_factor.tril()).tril()
        inner.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        identity = torch.eye(factors.shape[-1], dtype=factors.dtype, device=factors.device)
        precision = _made_positive(identity - step * (inner + inner.mT))
        root = factors @ inverse_cholesky(precision, relative_jitter=0.0).mT
        covariance = root @ root.mT
        renewed = torch.linalg.cholesky(covariance)
        renewed.diagonal(dim1=-2, dim2=-1).log_()
        self.raw_factors.copy_(renewed)
        direction = covariance @ (-scale * _gradient(self.q_mean)).double().unsqueeze(-1)
        self.q_mean.add_(direction.squeeze(-1).to(self.q_mean.dtype), alpha=step)

    def step_bytes(self, sizes: StepSizes) -> int:
        # Natural steps are in float64; what the gradient took is gone by then.
        natural = 8 * 4 * self.raw_factors.numel() if self.whitened else 0
        return max(0, natural - 4 * self.step_elements(sizes))


class Parsimonious(Posterior):
    """S_p = (K_Z^-1 + Sigma_p^-1)^-1 with diagonal Sigma_p (T 2.22-2.25, S 8-10): 2 P M parameters, O(P M^3 + B P M^2).

    At Z = X it holds the optimal covariances (T proposition 1). Here everything is in v, where the covariance is
    B_p^-1, B_p = I + L' Sigma_p^-1 L, and no eigenvalue of B_p is below one. The mean w_p = L' mu_p spans the same
    family as the papers' m_p = K_Z mu_p and is far better conditioned.

    Args:
        n_functions: P.
        n_inducing: M.
        noise: start of every diagonal entry of Sigma_p, less the floor of 1e-6 that they keep.
    """

    needs_float64 = own_covariances = True

    def __init__(self, n_functions: int, n_inducing: int, *, noise: float = 1.0) -> None:
        super().__init__()
        self.q_mean = _start_mean(n_functions, n_inducing)
        self.log_noise = nn.Parameter(torch.full((n_functions, n_inducing), math.log(noise)))

    def condition(
        self, inverse_factor: Float[Tensor, "*P M M"], functions: Int[Tensor, " L"] | None = None
    ) -> tuple[ConditionedPosterior, Callable[[], Float[Tensor, ""]]]:
        """With R_p^-1 of B_p = R_p R_p', the covariance of v_p is R_p^-T R_p^-1."""
        mean, log_noise = (_rows(part, functions) for part in (self.q_mean, self.log_noise))
        inverse_factor = inverse_factor.double()
        identity = torch.eye(inverse_factor.shape[-1], dtype=torch.float64, device=inverse_factor.device)
        factor = torch.linalg.solve_triangular(inverse_factor, identity, upper=False)
        precision = 1.0 / (log_noise.double().exp() + 1e-6)
        root = inverse_cholesky(identity + factor.mT @ (precision.unsqueeze(-1) * factor), relative_jitter=0.0)
        return ConditionedPosterior(mean, root.mT.to(mean.dtype)), partial(self._kl, mean, root)

    @staticmethod
    def _kl(mean: Float[Tensor, "P M"], root: Float[Tensor, "P M M"]) -> Float[Tensor, ""]:
        """1/2 sum_p [tr B_p^-1 + ||w_p||^2 - M + log det B_p]."""
        log_det = -2 * root.diagonal(dim1=-2, dim2=-1).log().sum()
        return 0.5 * ((root.square().sum() + log_det).to(mean.dtype) + mean.square().sum() - mean.numel())

    def step_bytes(self, sizes: StepSizes) -> int:
        n_functions, n_inducing = self.q_mean.shape
        return 8 * 6 * n_functions * n_inducing**2
