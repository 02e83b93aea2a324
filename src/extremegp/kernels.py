"""Covariance functions on dense and CSR inputs (T 1.3-1.9, 2.29).

Every kernel here is a function of three weighted inner products, x.z, x.x and z.z with x.z = sum_d w_d x_d z_d, so that
sparse inputs cost one sparse-dense product and are never made dense. A new kernel is one method.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extremegp.sparse import Inputs, matmul, weighted_square_norms


class Kernel(nn.Module, ABC):
    """A positive semi-definite function k(x, z); kernels add and multiply with + and *."""

    @abstractmethod
    def forward(self, x: Inputs, z: Float[Tensor, "M D"]) -> Float[Tensor, "B M"]:
        """k(x_i, z_j), in the dtype of the inputs."""

    @abstractmethod
    def diagonal(self, x: Inputs) -> Float[Tensor, " B"]:
        """k(x_i, x_i)."""

    def __add__(self, other: Kernel) -> Kernel:
        return Sum(self, other)

    def __mul__(self, other: Kernel) -> Kernel:
        return Product(self, other)


class InnerProductKernel(Kernel):
    """A kernel of the weighted inner products of its inputs.

    Args:
        weight: start of every weight w_d; for stationary kernels an inverse squared lengthscale.
        n_features: D for one learnt weight per feature (ARD), or None for a single weight.
        learn: whether the weights are learnt.
    """

    def __init__(self, weight: float = 1.0, *, n_features: int | None = None, learn: bool = True) -> None:
        super().__init__()
        start = torch.full((n_features or 1,), math.log(weight))
        self.log_weights = nn.Parameter(start, requires_grad=learn)

    @abstractmethod
    def from_products(self, xz: Tensor, xx: Tensor, zz: Tensor) -> Tensor:
        """The covariance, from tensors x.z, x.x and z.z that broadcast against each other."""

    def forward(self, x: Inputs, z: Float[Tensor, "M D"]) -> Float[Tensor, "B M"]:
        weights = self.log_weights.to(z.dtype).exp()
        weighted = z * weights
        xz = matmul(x, weighted.T)
        zz = (weighted * z).sum(-1)
        xx = zz if x is z else weighted_square_norms(x, weights)
        return self.from_products(xz, xx.unsqueeze(-1), zz)

    def diagonal(self, x: Inputs) -> Float[Tensor, " B"]:
        norms = weighted_square_norms(x, self.log_weights.to(x.dtype).exp())
        return self.from_products(norms, norms, norms)


class Linear(InnerProductKernel):
    """sum_d w_d x_d z_d. Fixed unit weights by default (LINEAR); learn one or D of them for LINEAR-ell."""

    def __init__(self, weight: float = 1.0, *, n_features: int | None = None, learn: bool = False) -> None:
        super().__init__(weight, n_features=n_features, learn=learn)

    def from_products(self, xz: Tensor, xx: Tensor, zz: Tensor) -> Tensor:
        return xz


class SquaredExponential(InnerProductKernel):
    """s2 exp(-1/2 sum_d w_d (x_d - z_d)^2): SE with one weight, ARD with D.

    Args:
        weight: start of the inverse squared lengthscale(s).
        n_features: D for ARD, None for one lengthscale.
        learn: whether the weights are learnt.
        variance: s2 at the start.
        learn_variance: whether s2 is learnt; under factor mixing the loadings carry the scale and it stays fixed.
    """

    def __init__(
        self,
        weight: float = 1.0,
        *,
        n_features: int | None = None,
        learn: bool = True,
        variance: float = 1.0,
        learn_variance: bool = False,
    ) -> None:
        super().__init__(weight, n_features=n_features, learn=learn)
        self.log_variance = nn.Parameter(torch.tensor(math.log(variance)), requires_grad=learn_variance)

    def from_products(self, xz: Tensor, xx: Tensor, zz: Tensor) -> Tensor:
        exponent = xz - 0.5 * (xx + zz)
        return self.log_variance.to(xz.dtype).exp() * exponent.clamp(max=0.0).exp()


class SEPlusLinear(InnerProductKernel):
    """a exp(-1/2 sum_d w_d (x_d - z_d)^2) + (1 - a) sum_d w_d x_d z_d, with the same weights in both (T 2.29, ARD/LINEAR).

    Args:
        weight: start of the weights.
        n_features: D for one weight per feature, None for a single weight.
        learn: whether weights and mixture are learnt.
        mixture: a at the start, in (0, 1).
    """

    def __init__(
        self, weight: float = 1.0, *, n_features: int | None = None, learn: bool = True, mixture: float = 0.5
    ) -> None:
        super().__init__(weight, n_features=n_features, learn=learn)
        self.mixture_logit = nn.Parameter(torch.tensor(math.log(mixture / (1 - mixture))), requires_grad=learn)

    def from_products(self, xz: Tensor, xx: Tensor, zz: Tensor) -> Tensor:
        a = self.mixture_logit.to(xz.dtype).sigmoid()
        stationary = (xz - 0.5 * (xx + zz)).clamp(max=0.0).exp()
        return torch.lerp(xz, stationary, a)


class _Pair(Kernel):
    def __init__(self, left: Kernel, right: Kernel) -> None:
        super().__init__()
        self.left, self.right = left, right


class Sum(_Pair):
    """k1 + k2."""

    def forward(self, x: Inputs, z: Float[Tensor, "M D"]) -> Float[Tensor, "B M"]:
        return self.left(x, z) + self.right(x, z)  # type: ignore[no-any-return]

    def diagonal(self, x: Inputs) -> Float[Tensor, " B"]:
        return self.left.diagonal(x) + self.right.diagonal(x)


class Product(_Pair):
    """k1 k2."""

    def forward(self, x: Inputs, z: Float[Tensor, "M D"]) -> Float[Tensor, "B M"]:
        return self.left(x, z) * self.right(x, z)  # type: ignore[no-any-return]

    def diagonal(self, x: Inputs) -> Float[Tensor, " B"]:
        return self.left.diagonal(x) * self.right.diagonal(x)
