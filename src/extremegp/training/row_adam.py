"""Adam for wide parameters of which a step touches few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

_GOLDEN = 40503  # (sqrt(5) - 1) / 2 in units of 2^-16


class RowAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba 2015) on rows: a row without a gradient keeps its value, its moments and its step count.

    Every row is corrected for the bias of its own moments by its own number of steps. (`torch.optim.SparseAdam` counts
    the steps of the whole parameter, so that a row touched late starts with a step three times too long.) With a
    gradient for every row at every step this is Adam. A step costs time and temporary memory for the touched rows only.

    State "half" keeps the moments of matrices in bfloat16, in half the memory. A step adds a tenth to a first moment,
    against which rounding to 8 bits is small. To a second moment it adds a thousandth, which rounding to the nearest
    would lose: it rounds up from a threshold that goes through [0, 1) evenly as a row's steps are counted, so that over
    steps nothing is lost. (One second moment for a row, or factors for rows and columns, keep still less but end at
    lower bounds.)

    Args:
        params: parameters or groups of them; the gradient of each is a sparse COO tensor with one sparse dimension.
        lr: learning rate.
        betas: decay of the first and the second moment.
        eps: added to the root of the second moment.
        state: "full" or "half".
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        state: Literal["full", "half"] = "full",
    ) -> None:
        self._brief = state == "half"
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def layout(self, parameter: Tensor) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of what is kept of a parameter."""
        shape, dtype = parameter.shape, parameter.dtype
        kept = torch.bfloat16 if self._brief and len(shape) > 1 else dtype
        return {"step": (shape[:1], torch.int32), "exp_avg": (shape, kept), "exp_avg_sq": (shape, kept)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over moments and step counts; not as other optimisers do, which bring all to the parameters' dtype."""
        super().load_state_dict({**state_dict, "state": {}})
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, held in state_dict["state"].items():
            parameter = parameters[number]
            self.state[parameter] = {name: tensor.to(parameter.device) for name, tensor in held.items()}

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
            for name, (shape, dtype) in self.layout(parameter).items():
                state[name] = torch.zeros(shape, dtype=dtype, device=parameter.device)
        steps = state["step"].index_select(0, rows).add_(1)
        mean = state["exp_avg"].index_select(0, rows).to(gradient.dtype).lerp_(gradient, 1 - beta1)
        square = state["exp_avg_sq"].index_select(0, rows).to(gradient.dtype).mul_(beta2)
        square.addcmul_(gradient, gradient, value=1 - beta2)
        column = (-1, *[1] * (gradient.ndim - 1))
        kept = _dithered(square, steps.view(column)) if state["exp_avg_sq"].dtype == torch.bfloat16 else square
        for name, values in (("step", steps), ("exp_avg", mean), ("exp_avg_sq", kept)):
            state[name].index_copy_(0, rows, values.to(state[name].dtype))
        first, second = ((1 - beta ** steps.double()).to(gradient.dtype).view(column) for beta in (beta1, beta2))
        change = mean.div_(square.div_(second).sqrt_().add_(group["eps"])).div_(first)
        parameter.index_add_(0, rows, change, alpha=-group["lr"])


def _dithered(values: Float[Tensor, "L *P"], steps: Int[Tensor, "L *1"]) -> Float[Tensor, "L *P"]:
    """Positive numbers in bfloat16, rounded up where what is cut off passes a threshold; the same for every process."""
    # Multiples of the golden ratio, modulo 1, are spread more evenly than random numbers.
    thresholds = (steps * _GOLDEN) & 0xFFFF
    return (values.float().view(torch.int32).add_(thresholds) & ~0xFFFF).view(torch.float32).bfloat16()
