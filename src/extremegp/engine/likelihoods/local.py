"""Local variational parameters, a few numbers for every instance: a function of its inputs, or stored one by one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.sparse import Inputs, matmul, weighted_square_norms

HIDDEN_UNITS = 64


class AmortisedLocals(nn.Module):
    """A network u(x) with two hidden layers (X section 3.3, "AMO"); its outputs start at constants, whatever x.

    Inputs are scaled to x / sqrt(1 + |x|^2), one to one and inside the unit ball, so that the hidden units start in
    their range for dense standardised features and for sparse rows of unit norm alike. Sparse rows stay sparse.

    Args:
        n_features: D; the first layer has D x hidden weights.
        start: what the outputs start at, one number for each.
        hidden: units of each hidden layer.
        generator: draws the weights of the hidden layers; by default the same ones always.
    """

    def __init__(
        self,
        n_features: int,
        start: Sequence[float],
        *,
        hidden: int = HIDDEN_UNITS,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        self.input_weights = nn.Parameter(torch.randn(n_features, hidden, generator=generator))
        self.input_bias = nn.Parameter(torch.zeros(hidden))
        self.hidden_weights = nn.Parameter(torch.randn(hidden, hidden, generator=generator) * hidden**-0.5)
        self.hidden_bias = nn.Parameter(torch.zeros(hidden))
        self.output_weights = nn.Parameter(torch.zeros(hidden, len(start)))
        self.output_bias = nn.Parameter(torch.tensor(start, dtype=self.input_bias.dtype))

    def forward(self, x: Inputs) -> Float[Tensor, "B n_outputs"]:
        one = self.input_bias.new_ones(1)
        scale = (1.0 + weighted_square_norms(x, one)).rsqrt().unsqueeze(1)
        h = torch.tanh(matmul(x, self.input_weights) * scale + self.input_bias)
        h = torch.tanh(h @ self.hidden_weights + self.hidden_bias)
        return h @ self.output_weights + self.output_bias


class StoredLocals(nn.Module):
    """A row of numbers for each of N instances, which an inner loop moves whenever it sees the instance (X "IL").

    Args:
        n_rows: N.
        start: what they start at, one number for each output.
        least_step: by how much a sampled target moves an instance that has been seen often.

    Attributes:
        values: the numbers, N x n_outputs.
        visits: how often each instance has moved, N.
    """

    values: Float[Tensor, "N n_outputs"]
    visits: Int[Tensor, " N"]

    def __init__(self, n_rows: int, start: Sequence[float], *, least_step: float = 0.1) -> None:
        super().__init__()
        self.least_step = least_step
        self.register_buffer("values", torch.tensor(start, dtype=torch.get_default_dtype()).repeat(n_rows, 1))
        self.register_buffer("visits", torch.zeros(n_rows, dtype=torch.int64))
        self.index_limits = {"visits": 2**62}

    def forward(self, rows: Int[Tensor, " B"]) -> Float[Tensor, "B n_outputs"]:
        return self.values.index_select(0, rows)

    def steps(self, rows: Int[Tensor, " B"]) -> Float[Tensor, "B 1"]:
        """1 / n at the n-th visit, the mean of all targets so far; at least `least_step`, as the targets move."""
        visits = self.visits.index_select(0, rows).to(self.values.dtype) + 1.0
        return visits.reciprocal_().clamp_(min=self.least_step).unsqueeze(1)

    @torch.no_grad()
    def store(self, rows: Int[Tensor, " B"], values: Float[Tensor, "B n_outputs"]) -> None:
        """New numbers for some rows: one more visit of each."""
        self.values[rows] = values.to(self.values.dtype)
        self.visits[rows] += 1
