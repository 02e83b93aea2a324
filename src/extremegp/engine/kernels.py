"""Covariance functions on dense and CSR inputs (T 1.3-1.9, 2.29; D 2.26-2.29).

Every kernel here but white noise is a function of three weighted inner products, x.z, x.x and z.z with
x.z = sum_d w_d x_d z_d, so that sparse inputs cost one sparse-dense product and are never made dense. A new kernel is
one method, `from_products`, of an `InnerProductKernel`; one of another kind two of a `DenseKernel`, for dense inputs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.part import Part
from extremegp.engine.points import InnerProducts, Points, as_points
from extremegp.engine.sparse import Inputs


class KernelAt(ABC):
    """A kernel with one of its arguments, the inducing inputs z, fixed: what depends on z alone is computed once.

    Where the kernel differs between P latent functions, covariances have a leading dimension P.
    """

    @abstractmethod
    def gram(self) -> Float[Tensor, "*P M M"]:
        """k(z_i, z_j) in float64, which its factorisation needs, from inputs of any precision."""

    @abstractmethod
    def __call__(self, x: Inputs) -> tuple[Float[Tensor, "*P B M"], Float[Tensor, "*Q B"]]:
        """k(x_i, z_j) and k(x_i, x_i), in the dtype of the inputs."""


class Kernel(Part):
    """A positive semi-definite function k(x, z); kernels add and multiply with + and *.

    Attributes:
        per_function: whether it differs between the latent functions.
        needs_dense: whether inputs must be arrays, as they are where it is no function of inner products.
    """

    per_function: bool = False

    @abstractmethod
    def at(self, z: Points | Float[Tensor, "M D"], functions: Int[Tensor, " L"] | None = None) -> KernelAt:
        """The kernel with its second argument fixed, for all latent functions or for some."""

    def forward(self, x: Inputs, z: Points | Float[Tensor, "M D"]) -> Float[Tensor, "*P B M"]:
        """k(x_i, z_j), in the dtype of the inputs."""
        return self.at(z)(x)[0]

    def gram(self, z: Points | Float[Tensor, "M D"]) -> Float[Tensor, "*P M M"]:
        """k(z_i, z_j) in float64."""
        return self.at(z).gram()

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

    def weights(self, dtype: torch.dtype) -> Tensor:
        """The weights of the inner products."""
        return self.log_weights.to(dtype).exp()

    def at(self, z: Points | Float[Tensor, "M D"], functions: Int[Tensor, " L"] | None = None) -> KernelAt:
        z = as_points(z)
        return _InnerProductAt(z.inner_products(self.weights(z.dtype)), self.from_products)


class DenseKernel(Kernel):
    """A kernel of dense inputs that need not be a function of inner products: `covariance` and `variance` are all."""

    needs_dense = True

    @abstractmethod
    def covariance(self, x: Float[Tensor, "*P B D"], z: Float[Tensor, "*P M D"]) -> Float[Tensor, "*P B M"]:
        """k(x_i, z_j), in the dtype of the inputs."""

    @abstractmethod
    def variance(self, x: Float[Tensor, "*P B D"]) -> Float[Tensor, "*P B"]:
        """k(x_i, x_i)."""

    def at(self, z: Points | Float[Tensor, "M D"], functions: Int[Tensor, " L"] | None = None) -> KernelAt:
        return _DenseAt(self, as_points(z).dense())


class _DenseAt(KernelAt):
    def __init__(self, kernel: DenseKernel, z: Float[Tensor, "*P M D"]) -> None:
        self.kernel, self.z = kernel, z

    def gram(self) -> Float[Tensor, "*P M M"]:
        z = self.z.double()
        return self.kernel.covariance(z, z)

    def __call__(self, x: Inputs) -> tuple[Float[Tensor, "*P B M"], Float[Tensor, "*Q B"]]:
        assert isinstance(x, Tensor)
        return self.kernel.covariance(x, self.z.to(x.dtype)), self.kernel.variance(x)


class _InnerProductAt(KernelAt):
    def __init__(self, products: InnerProducts, from_products: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        self.products, self.from_products = products, from_products

    def gram(self) -> Float[Tensor, "*P M M"]:
        norms = self.products.gram.diagonal(dim1=-2, dim2=-1)
        return self.from_products(self.products.gram, norms.unsqueeze(-1), norms.unsqueeze(-2))

    def __call__(self, x: Inputs) -> tuple[Float[Tensor, "*P B M"], Float[Tensor, "*Q B"]]:
        xz, xx = self.products(x)
        zz = self.products.gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-2).to(x.dtype)
        return self.from_products(xz, xx.unsqueeze(-1), zz), self.from_products(xx, xx, xx)


class Linear(InnerProductKernel):
    """sum_d w_d x_d z_d. Fixed unit weights by default (LINEAR); learn one or D of them for LINEAR-ell."""

    def __init__(self, weight: float = 1.0, *, n_features: int | None = None, learn: bool = False) -> None:
        super().__init__(weight, n_features=n_features, learn=learn)

    def from_products(self, xz: Tensor, xx: Tensor, zz: Tensor) -> Tensor:
        return xz


def squared_exponential(xz: Tensor, xx: Tensor, zz: Tensor) -> Tensor:
    """exp(-|x - z|^2 / 2) from inner products that broadcast against each other."""
    return (xz - 0.5 * (xx + zz)).clamp(max=0.0).exp()


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
        return self.log_variance.to(xz.dtype).exp() * squared_exponential(xz, xx, zz)


class SquaredExponentialPerLatent(InnerProductKernel):
    """exp(-1/2 w_p ||x - z||^2), its own weight for each of P latent functions (SE-p-ell, T 4.5.2).

    Every function has its own K_Z, and so its own factorisation: P M^3 + P B M^2 a step.

    Args:
        weight: start of every w_p.
        n_functions: P.
    """

    per_function = True

    def __init__(self, weight: float = 1.0, *, n_functions: int) -> None:
        super().__init__(weight, n_features=n_functions)

    def weights(self, dtype: torch.dtype) -> Tensor:
        return self.log_weights.new_ones(1, dtype=dtype)

    def at(self, z: Points | Float[Tensor, "M D"], functions: Int[Tensor, " L"] | None = None) -> KernelAt:
        z = as_points(z)
        own = self.log_weights if functions is None else self.log_weights.index_select(0, functions)
        return _InnerProductAt(z.inner_products(self.weights(z.dtype)), partial(_per_latent, own))

    def from_products(self, xz: Tensor, xx: Tensor, zz: Tensor) -> Tensor:
        return _per_latent(self.log_weights, xz, xx, zz)


def _per_latent(log_weights: Tensor, xz: Tensor, xx: Tensor, zz: Tensor) -> Tensor:
    # Inner products with points that each function has of its own come with the dimension P already.
    weights = log_weights.to(xz.dtype).exp().reshape(-1, *[1] * min(xz.ndim, 2))
    return (weights * (xz - 0.5 * (xx + zz)).clamp(max=0.0)).exp()


class Matern(InnerProductKernel):
    """The Matern kernel of smoothness 1/2, 3/2 or 5/2 at r^2 = sum_d w_d (x_d - z_d)^2, of unit variance (T 1.6-1.8).

    Args:
        order: twice the smoothness: 1, 3 or 5.
        weight: start of every w_d, an inverse squared lengthscale.
        n_features: as for `InnerProductKernel`.
        learn: whether the weights are learnt.
    """

    def __init__(
        self, order: Literal[1, 3, 5], weight: float = 1.0, *, n_features: int | None = None, learn: bool = True
    ) -> None:
        super().__init__(weight, n_features=n_features, learn=learn)
        self.order = order

    def from_products(self, xz: Tensor, xx: Tensor, zz: Tensor) -> Tensor:
        square = xx + zz - 2 * xz
        # Up to rounding an input is at distance zero from itself; the root has no gradient there.
        apart = square > 1e-14 * (xx + zz)
        r = math.sqrt(self.order) * torch.where(apart, square, 1.0).sqrt() * apart
        decay = (-r).exp()
        if self.order == 1:
            return decay
        return (1 + r) * decay if self.order == 3 else (1 + r + r.square() / 3) * decay


class ArcCosine(InnerProductKernel):
    """The arc-cosine kernel of order 0 or 1, the limit of infinitely many step or rectified units (D 2.28).

    With t the angle between the weighted inputs: 1 - t / pi, or |x| |z| (sin t + (pi - t) cos t) / pi (Cho and Saul
    2009, "Kernel methods for deep learning"). An input of norm zero is at a right angle to all others.

    Args:
        order: 0 or 1.
        weight: start of every weight.
        n_features: as for `InnerProductKernel`.
        learn: whether the weights are learnt.
    """

    def __init__(
        self, order: Literal[0, 1], weight: float = 1.0, *, n_features: int | None = None, learn: bool = True
    ) -> None:
        super().__init__(weight, n_features=n_features, learn=learn)
        self.order = order

    def from_products(self, xz: Tensor, xx: Tensor, zz: Tensor) -> Tensor:
        square = xx * zz
        defined = square > 0
        norms = torch.where(defined, square, 1.0).sqrt() * defined
        cosine = xz / torch.where(defined, norms, 1.0)
        # The angle has no finite gradient where inputs coincide or oppose each other.
        bent = cosine.abs() < 1 - 1e-14
        inside = torch.where(bent, cosine, 0.0)
        angle = torch.where(bent, inside.acos(), torch.where(cosine > 0, 0.0, math.pi))
        if self.order == 0:
            return 1 - angle / math.pi
        sine = torch.where(bent, (1 - inside.square()).sqrt(), 0.0)
        return norms * (sine + (math.pi - angle) * cosine.clamp(-1.0, 1.0)) / math.pi


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
        return torch.lerp(xz, squared_exponential(xz, xx, zz), a)


class WhiteNoise(Kernel):
    """s2 where both arguments are the same observation, 0 elsewhere: an input never is an inducing input.

    Args:
        variance: s2 at the start; it is learnt.
    """

    def __init__(self, variance: float = 0.01) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.tensor(math.log(variance)))

    def at(self, z: Points | Float[Tensor, "M D"], functions: Int[Tensor, " L"] | None = None) -> KernelAt:
        return _WhiteAt(self.log_variance.exp(), as_points(z))


class _WhiteAt(KernelAt):
    def __init__(self, variance: Tensor, z: Points) -> None:
        self.variance, self.z = variance, z

    def gram(self) -> Float[Tensor, "M M"]:
        return self.variance.double() * torch.eye(len(self.z), dtype=torch.float64, device=self.z.device)

    def __call__(self, x: Inputs) -> tuple[Float[Tensor, "B M"], Float[Tensor, " B"]]:
        variance = self.variance.to(x.dtype)
        return variance.new_zeros(x.shape[0], len(self.z)), variance.expand(x.shape[0])


class _Pair(Kernel):
    combine: ClassVar[Callable[[Tensor, Tensor], Tensor]]

    def __init__(self, left: Kernel, right: Kernel) -> None:
        super().__init__()
        self.left, self.right = left, right
        self.per_function = left.per_function or right.per_function
        self.needs_dense = left.needs_dense or right.needs_dense

    def at(self, z: Points | Float[Tensor, "M D"], functions: Int[Tensor, " L"] | None = None) -> KernelAt:
        return _PairAt(type(self).combine, self.left.at(z, functions), self.right.at(z, functions))


class _PairAt(KernelAt):
    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor], left: KernelAt, right: KernelAt) -> None:
        self.combine, self.left, self.right = combine, left, right

    def gram(self) -> Float[Tensor, "*P M M"]:
        return self.combine(self.left.gram(), self.right.gram())

    def __call__(self, x: Inputs) -> tuple[Float[Tensor, "*P B M"], Float[Tensor, "*Q B"]]:
        (cross, diagonal), (other_cross, other_diagonal) = self.left(x), self.right(x)
        return self.combine(cross, other_cross), self.combine(diagonal, other_diagonal)


class Sum(_Pair):
    """k1 + k2."""

    combine = torch.add


class Product(_Pair):
    """k1 k2."""

    combine = torch.mul
