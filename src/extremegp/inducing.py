"""Where the inducing inputs live (T 2.5)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn


class FreeInducingInputs(nn.Module):
    """M points anywhere in the D-dimensional input space.

    Args:
        start: their start, M x D.
        learn: whether they are learnt (False is the papers' "-FX").
        normalise: keep every row at unit norm, as suits unit-norm text (False is the papers' "-UN").
    """

    def __init__(self, start: Float[Tensor, "M D"], *, learn: bool = True, normalise: bool = True) -> None:
        super().__init__()
        # The transpose is stored, so that X Z' gathers contiguous rows for every stored feature of X.
        self.transposed = nn.Parameter(start.T.contiguous(), requires_grad=learn)
        self.normalise = normalise
        if not start.is_meta:  # There are no values to scale, and on meta tensors a norm imports PyTorch's compiler.
            self.project()

    def __len__(self) -> int:
        return self.transposed.shape[1]

    def forward(self) -> Float[Tensor, "M D"]:
        return self.transposed.T

    @torch.no_grad()
    def project(self) -> None:
        """Bring the rows back to unit norm where that is asked for; called after every optimiser step."""
        if self.normalise and self.transposed.requires_grad:
            norms = torch.linalg.vector_norm(self.transposed, dim=0)
            self.transposed.div_(norms.clamp_(min=1e-12))
