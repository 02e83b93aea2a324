"""Natural gradients of variational posteriors as an optimiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from extremegp.posteriors import Posterior
from torch.optim import Optimizer


class NaturalGradient(Optimizer):
    """Moves q(u) along natural gradients (Salimbeni, Eleftheriadis and Hensman 2018); it keeps no state.

    Args:
        posteriors: what to move; each has natural parameters, and is a group whose rate is the length of its steps.
        scale: the loss is -bound / scale.
    """

    def __init__(self, posteriors: Sequence[Posterior], *, scale: float) -> None:
        self.posteriors, self.scale = posteriors, scale
        super().__init__([{"params": posterior.natural_parameters()} for posterior in posteriors], {"lr": 0.0})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every posterior, after a backward pass."""
        for posterior, group in zip(self.posteriors, self.param_groups, strict=True):
            posterior.natural_step(group["lr"], self.scale)
