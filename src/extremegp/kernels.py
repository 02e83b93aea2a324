"""Covariance functions on dense and CSR inputs (T 1.3-1.9, 2.29).

Every kernel here is a function of three weighted inner products, x.z, x.x and z.z with x.z = sum_d w_d x_d z_d, so that
sparse inputs cost one sparse-dense product and are never made dense. A new kernel is one method.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extremegp.linalg import weighted_gram
from extremegp.sparse import Inputs, matmul, weighted_square_norms


class KernelAt(ABC):
    """A kernel with one of its arguments, the inducing inputs z, fixed: what depends on z alone is computed once."""

    @abstractmethod
    def gram(self) -> Float[Tensor, "M M"]:
        """k(z_i, z_j) in float64, which its factorisation needs, from inputs of any precision."""

    @abstractmethod
    def __call__(self, x: Inputs) -> tuple[Float[Tensor, "B M"], Float[Tensor, " B"]]:
        """k(x_i, z_j) and k(x_i, x_i), in the dtype of the inputs."""


class Kernel(nn.Module, ABC):
    """A positive semi-definite function k(x, z); kernels add and multiply with + and *."""

    @abstractmethod
    def at(self, z: Float[Tensor, "M D"]) -> KernelAt:
        """The kernel with its second argument fixed."""

    def forward(self, x: Inputs, z: Float[Tensor, "M D"]) -> Float[Tensor, "B M"]:
        """k(x_i, z_j), in the dtype of the inputs."""
        return self.at(z)(x)[0]

    def gram(self, z: Float[Tensor, "M D"]) -> Float[Tensor, "M M"]:
        """k(z_i, z_j) in float64."""
        return self.at(z).gram()

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

    def at(self, z: Float[Tensor, "M D"]) -> KernelAt:
        return _InnerProductAt(self, z)

    def diagonal(self, x: Inputs) -> Float[Tensor, " B"]:
        norms = weighted_square_norms(x, self.log_weights.to(x.dtype).exp())
        return self.from_products(norms, norms, norms)


class _InnerProductAt(KernelAt):
    def __init__(self, kernel: InnerProductKernel, z: Float[Tensor, "M D"]) -> None:
        self.kernel = kernel
        self.weights = kernel.log_weights.to(z.dtype).exp()
        self.weighted, self.products = weighted_gram(z, self.weights)

    def gram(self) -> Float[Tensor, "M M"]:
        norms = self.products.diagonal()
        return self.kernel.from_products(self.products, norms.unsqueeze(-1), norms)

    def __call__(self, x: Inputs) -> tuple[Float[Tensor, "B M"], Float[Tensor, " B"]]:
        xx = weighted_square_norms(x, self.weights)
        zz = self.products.diagonal().to(x.dtype)
        xz = matmul(x, self.weighted.T)
        return self.kernel.from_products(xz, xx.unsqueeze(-1), zz), self.kernel.from_products(xx, xx, xx)


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
    """a exp(-1/2 sum_d w_d (x_d - z_d)^2) + (1 - a) sum_d w_d x_d z_d, the same weights in both (T 2.29, ARD/LINEAR).

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
    combine: ClassVar[Callable[[Tensor, Tensor], Tensor]]

    def __init__(self, left: Kernel, right: Kernel) -> None:
        super().__init__()
        self.left, self.right = left, right

    def at(self, z: Float[Tensor, "M D"]) -> KernelAt:
        return _PairAt(type(self).combine, self.left.at(z), self.right.at(z))

    def diagonal(self, x: Inputs) -> Float[Tensor, " B"]:
        return type(self).combine(self.left.diagonal(x), self.right.diagonal(x))


class _PairAt(KernelAt):
    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor], left: KernelAt, right: KernelAt) -> None:
        self.combine, self.left, self.right = combine, left, right

    def gram(self) -> Float[Tensor, "M M"]:
        return self.combine(self.left.gram(), self.right.gram())

    def __call__(self, x: Inputs) -> tuple[Float[Tensor, "B M"], Float[Tensor, " B"]]:
        (cross, diagonal), (other_cross, other_diagonal) = self.left(x), self.right(x)
        return self.combine(cross, other_cross), self.combine(diagonal, other_diagonal)


class Sum(_Pair):
    """k1 + k2."""

    combine = torch.add


class Product(_Pair):
    """k1 k2."""

    combine = torch.mul
