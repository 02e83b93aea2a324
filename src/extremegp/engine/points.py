"""Points in the input space that kernels compare inputs with, however they are held, and inner products with them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from extremegp.engine.linalg import weighted_gram
from extremegp.engine.sparse import Inputs, matmul, weighted_square_norms


class InnerProducts(ABC):
    """Weighted inner products of a set of points z with themselves, and with any inputs x.

    Where each of P latent functions has points of its own, those with z have a leading dimension P.
    """

    gram: Float[Tensor, "*P M M"]
    """z_i.z_j in float64."""

    @abstractmethod
    def __call__(self, x: Inputs) -> tuple[Float[Tensor, "*P B M"], Float[Tensor, " B"]]:
        """x_i.z_j and x_i.x_i, in the dtype of the inputs."""


class Points(ABC):
    """M points z in the D-dimensional input space, however they are held."""

    dtype: torch.dtype
    device: torch.device

    @abstractmethod
    def __len__(self) -> int:
        """M."""

    @abstractmethod
    def inner_products(self, weights: Tensor) -> InnerProducts:
        """Inner products under these weights: one for all features, or as many as the points have coordinates."""

    @abstractmethod
    def dense(self) -> Float[Tensor, "*P M D"]:
        """The points as an array: for small D."""

    def between(self, start: int, stop: int) -> Points:
        """The points in the space of the coordinates from `start` to before `stop` alone."""
        return DensePoints(self.dense()[:, start:stop])


class DensePoints(Points):
    """Points held as an array, M x D."""

    def __init__(self, z: Float[Tensor, "M D"]) -> None:
        self.z, self.dtype, self.device = z, z.dtype, z.device

    def __len__(self) -> int:
        return len(self.z)

    def inner_products(self, weights: Tensor) -> InnerProducts:
        return _DenseProducts(self.z, weights)

    def dense(self) -> Float[Tensor, "M D"]:
        return self.z


class _DenseProducts(InnerProducts):
    def __init__(self, z: Tensor, weights: Tensor) -> None:
        self.weights = weights
        self.weighted, self.gram = weighted_gram(z, weights)

    def __call__(self, x: Inputs) -> tuple[Tensor, Tensor]:
        return matmul(x, self.weighted.T), weighted_square_norms(x, self.weights)


def as_points(z: Points | Tensor) -> Points:
    """Points, or an array of them."""
    return z if isinstance(z, Points) else DensePoints(z)
