"""Natural gradients of variational posteriors as an optimiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.optim import Optimizer

from extremegp.engine.posteriors import Posterior


class NaturalGradient(Optimizer):
    """Moves q(u) along natural gradients (Salimbeni, Eleftheriadis and Hensman 2018); it keeps no state.

    Every natural parameter is a group, and the rate of a posterior's first one is the length of its steps.

    Args:
        posteriors: what to move; each has natural parameters.
        scale: the loss is -bound / scale.
    """

    def __init__(self, posteriors: Sequence[Posterior], *, scale: float) -> None:
        self.posteriors, self.scale = posteriors, scale
        parameters = [parameter for posterior in posteriors for parameter in posterior.natural_parameters()]
        super().__init__([{"params": [parameter]} for parameter in parameters], {"lr": 0.0})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every posterior, after a backward pass."""
        rates = {group["params"][0]: group["lr"] for group in self.param_groups}
        for posterior in self.posteriors:
            posterior.natural_step(rates[posterior.natural_parameters()[0]], self.scale)
