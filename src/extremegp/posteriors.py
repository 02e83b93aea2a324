"""Variational distributions q(u) over the inducing variables of P functions (T 2.19-2.21, ML 9-13).

With K_Z = L L' and u = L v, a posterior sees an input x through a = L^-1 k_Z(x): it gives a'E[v] and a'Cov[v]a for each
of the P functions, and KL[q(v) || N(0, I)], which equals KL[q(u) || p(u)].
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extremegp.linalg import lower_triangular


class Posterior(nn.Module, ABC):
    """q(u) for P functions and M inducing inputs; `inverse_factor` is L^-1 (M x M) throughout."""

    @abstractmethod
    def marginals(
        self, a: Float[Tensor, "B M"], inverse_factor: Float[Tensor, "M M"]
    ) -> tuple[Float[Tensor, "B P"], Float[Tensor, "B P"]]:
        """Mean a'E[v_p] and variance a'Cov[v_p]a of every function at every input."""

    @abstractmethod
    def kl(self, inverse_factor: Float[Tensor, "M M"]) -> Float[Tensor, ""]:
        """sum_p KL[q(u_p) || p(u_p)]."""


def _start_mean(n_functions: int, n_inducing: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(n_functions, n_inducing))


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

    def marginals(
        self, a: Float[Tensor, "B M"], inverse_factor: Float[Tensor, "M M"]
    ) -> tuple[Float[Tensor, "B P"], Float[Tensor, "B P"]]:
        rotated = a @ lower_triangular(self.raw_basis)
        return a @ self.q_mean.T, rotated.square() @ self.log_scales.exp().T

    def kl(self, inverse_factor: Float[Tensor, "M M"]) -> Float[Tensor, ""]:
        basis = lower_triangular(self.raw_basis)
        trace = basis.square().sum(0) @ self.log_scales.exp().sum(0)
        log_det = self.log_scales.sum() + 2 * len(self.q_mean) * self.raw_basis.diagonal().sum()
        return 0.5 * (trace + self.q_mean.square().sum() - self.q_mean.numel() - log_det)


class MeanField(Posterior):
    """v_p ~ N(w_p, diag(d_p)). Arguments as `SharedBasis`."""

    def __init__(self, n_functions: int, n_inducing: int, *, variance: float = 0.25) -> None:
        super().__init__()
        self.q_mean = _start_mean(n_functions, n_inducing)
        self.log_scales = nn.Parameter(torch.full((n_functions, n_inducing), math.log(variance)))

    def marginals(
        self, a: Float[Tensor, "B M"], inverse_factor: Float[Tensor, "M M"]
    ) -> tuple[Float[Tensor, "B P"], Float[Tensor, "B P"]]:
        return a @ self.q_mean.T, a.square() @ self.log_scales.exp().T

    def kl(self, inverse_factor: Float[Tensor, "M M"]) -> Float[Tensor, ""]:
        log_scales, mean = self.log_scales, self.q_mean
        return 0.5 * (log_scales.exp().sum() + mean.square().sum() - mean.numel() - log_scales.sum())


class Full(Posterior):
    """A Gaussian with its own Cholesky factor for every function: N(w_p, L_p L_p') (T 2.19-2.21), O(B M^2 P) per step.

    Args:
        n_functions: P.
        n_inducing: M.
        whitened: whether mean and factor are those of v (True) or of u itself (False, as in the papers).
        variance: start of the diagonal of L_p L_p'.
    """

    def __init__(self, n_functions: int, n_inducing: int, *, whitened: bool = True, variance: float = 0.25) -> None:
        super().__init__()
        self.whitened = whitened
        self.q_mean = _start_mean(n_functions, n_inducing)
        diagonal = torch.eye(n_inducing) * (0.5 * math.log(variance))
        self.raw_factors = nn.Parameter(diagonal.repeat(n_functions, 1, 1))

    def marginals(
        self, a: Float[Tensor, "B M"], inverse_factor: Float[Tensor, "M M"]
    ) -> tuple[Float[Tensor, "B P"], Float[Tensor, "B P"]]:
        if not self.whitened:
            a = a @ inverse_factor
        rotated = torch.matmul(a, lower_triangular(self.raw_factors))
        return a @ self.q_mean.T, rotated.square().sum(-1).T

    def kl(self, inverse_factor: Float[Tensor, "M M"]) -> Float[Tensor, ""]:
        factors: Tensor = lower_triangular(self.raw_factors)
        mean: Tensor = self.q_mean
        log_det = self.raw_factors.diagonal(dim1=-2, dim2=-1).sum()
        if not self.whitened:
            factors, mean = inverse_factor @ factors, mean @ inverse_factor.T
            log_det = log_det + len(mean) * inverse_factor.diagonal().log().sum()
        return 0.5 * (factors.square().sum() + mean.square().sum() - mean.numel()) - log_det
