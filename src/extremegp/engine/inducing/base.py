"""Where the inducing inputs live (T 2.5; S 2.2, A.6)."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from sklearn.preprocessing import normalize
from torch import Tensor, nn

from extremegp.engine.part import Part
from extremegp.engine.points import Points
from extremegp.engine.sparse import Matrix


class InducingInputs(Part):
    """M inducing inputs z.

    Attributes:
        normalise: keep every z at unit norm, as suits unit-norm text (False is the papers' "-UN").
        per_function: whether every latent function has inducing inputs of its own.
    """

    normalise: bool
    per_function: ClassVar[bool] = False

    @abstractmethod
    def __len__(self) -> int:
        """M."""

    @abstractmethod
    def points(self, functions: Int[Tensor, " L"] | None = None) -> Points:
        """What kernels compare inputs with, for all latent functions or for some."""

    @abstractmethod
    def forward(self) -> Float[Tensor, "*P M D"]:
        """Z itself, dense: for small D and for looking at."""

    @abstractmethod
    def coordinates(self) -> nn.Parameter:
        """The parameter that moves the inducing inputs."""

    @abstractmethod
    def norms(self) -> Tensor:
        """||z||, in a shape that divides the coordinates."""

    @torch.no_grad()
    def project(self) -> None:
        """Bring every z back to unit norm where that is asked for; called after every optimiser step."""
        if self.normalise and self.coordinates().requires_grad:
            self.coordinates().div_(self.norms().clamp_(min=1e-12))

    def step_scales(self) -> dict[nn.Parameter, float]:
        # They move in units of their entries.
        coordinates = self.coordinates()
        return {coordinates: float(coordinates.detach().square().mean().sqrt())}

    def start_at(self, centres: Matrix, rng: np.random.Generator) -> None:
        """Start near M centres, M x D, that are known already.

        Raises:
            TypeError: this kind of inducing inputs starts from the data themselves.
        """
        raise TypeError(f"{type(self).__name__} starts from the data themselves")

    def unit(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(normalize(rows)) if self.normalise else rows


def vector_norms(z: Tensor, *, dim: int) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(z, dim=dim, keepdim=True)
    return norms
