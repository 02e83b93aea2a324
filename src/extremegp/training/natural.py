"""Natural gradients of variational posteriors as an optimiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.optim import Optimizer

from extremegp.engine.part import Part


class NaturalGradient(Optimizer):
    """Moves q(u) along natural gradients (Salimbeni, Eleftheriadis and Hensman 2018); it keeps no state.

    Every natural parameter is a group, and the rate of a part's first one is the length of its steps.

    Args:
        parts: what to move; each has natural parameters.
        scale: the loss is -bound / scale.
    """

    def __init__(self, parts: Sequence[Part], *, scale: float) -> None:
        self.parts, self.scale = parts, scale
        parameters = [parameter for part in parts for parameter in part.natural_parameters()]
        super().__init__([{"params": [parameter]} for parameter in parameters], {"lr": 0.0})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every part, after a backward pass."""
        rates = {group["params"][0]: group["lr"] for group in self.param_groups}
        for part in self.parts:
            part.natural_step(rates[part.natural_parameters()[0]], self.scale)
