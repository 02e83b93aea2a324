"""Adam for wide parameters of which a step touches few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class RowAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba 2015) on rows: a row without a gradient keeps its value, its moments and its step count.

    Every row is corrected for the bias of its own moments by its own number of steps. (`torch.optim.SparseAdam` counts
    the steps of the whole parameter, so that a row touched late starts with a step three times too long.) With a
    gradient for every row at every step this is Adam. A step costs time and temporary memory for the touched rows only.

    Args:
        params: parameters or groups of them; the gradient of each is a sparse COO tensor with one sparse dimension.
        lr: learning rate.
        betas: decay of the first and the second moment.
        eps: added to the root of the second moment.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move the rows that have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = parameter.grad.coalesce()
                    self._move(parameter, gradient.indices()[0], gradient.values(), group)
        return loss

    def _move(self, parameter: Tensor, rows: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = torch.zeros(len(parameter), dtype=torch.int32, device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        steps = state["step"].index_select(0, rows).add_(1)
        mean = state["exp_avg"].index_select(0, rows).lerp_(gradient, 1 - beta1)
        square = state["exp_avg_sq"].index_select(0, rows).mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        for name, values in (("step", steps), ("exp_avg", mean), ("exp_avg_sq", square)):
            state[name].index_copy_(0, rows, values)
        column = (-1, *[1] * (gradient.ndim - 1))
        first, second = ((1 - beta ** steps.double()).to(gradient.dtype).view(column) for beta in (beta1, beta2))
        change = mean.div_(square.div_(second).sqrt_().add_(group["eps"])).div_(first)
        parameter.index_add_(0, rows, change, alpha=-group["lr"])
