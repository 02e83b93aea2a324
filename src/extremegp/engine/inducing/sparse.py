"""Inducing inputs on sparse supports."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.centres import in_memory, largest_entries, sparse_centres
from extremegp.engine.inducing.base import InducingInputs, vector_norms
from extremegp.engine.part import StepSizes, TrainingData
from extremegp.engine.points import InnerProducts, Points
from extremegp.engine.sparse import Inputs, Matrix, SparseRows, fill, weighted_square_norms


class SparseInducingInputs(InducingInputs):
    """M points with S entries each at fixed places, so that a step costs the same however large D is (ML section 7).

    Only the entries on the supports are parameters. Both X Z' and Z Z' gather, for every entry of Z, one row of a table
    of the supports' columns, (M S) B and (M S) M multiplications; nothing of width D is touched.

    Args:
        columns: the features of every point, M x S, distinct within a row.
        start: the entries at the start, M x S.
        n_features: D.
        learn: whether the entries are learnt.
        normalise: keep every row at unit norm.
    """

    columns: Int[Tensor, "M S"]

    def __init__(
        self,
        columns: Int[Tensor, "M S"],
        start: Float[Tensor, "M S"],
        *,
        n_features: int,
        learn: bool = True,
        normalise: bool = True,
    ) -> None:
        super().__init__()
        self.register_buffer("columns", columns.clone())
        self.entries = nn.Parameter(start.clone(), requires_grad=learn)
        self.normalise, self.n_features = normalise, n_features
        self.index_limits = {"columns": n_features}
        self._layout: _Layout | None = None
        if not start.is_meta:
            self.project()

    def __len__(self) -> int:
        return len(self.entries)

    def points(self, functions: Int[Tensor, " L"] | None = None) -> Points:
        if self._layout is None or not self._layout.is_of(self.columns):
            self._layout = _Layout(self.columns)
        return _SparsePoints(self, self._layout)

    def forward(self) -> Float[Tensor, "M D"]:
        return self.entries.new_zeros(len(self), self.n_features).scatter(1, self.columns, self.entries)

    def start(self, data: TrainingData) -> None:
        centres = sparse_centres(in_memory(data, len(self)), len(self), data)
        self.start_at(centres, data.rng)

    def start_at(self, centres: Matrix, rng: np.random.Generator) -> None:
        columns, entries = largest_entries(scipy.sparse.csr_matrix(centres), self.columns.shape[1], rng)
        fill(self.columns, columns)
        fill(self.entries, self.unit(entries))

    def step_elements(self, sizes: StepSizes) -> int:
        used = min(self.n_features, self.entries.numel())
        # Of inputs that stay put no gradient is taken.
        arrays = 3 if self.entries.requires_grad else 1
        return 5 * self.entries.numel() + arrays * used * (sizes.rows + len(self))

    def coordinates(self) -> nn.Parameter:
        return self.entries

    def norms(self) -> Tensor:
        return vector_norms(self.entries, dim=1)


class _Layout:
    """The columns that occur in any support, numbered 0 to U - 1."""

    def __init__(self, columns: Int[Tensor, "M S"]) -> None:
        self._source = (columns, columns._version)
        self.columns = columns.reshape(-1)
        self.used, self.slots = torch.unique(self.columns, return_inverse=True)
        self.offsets = torch.arange(0, columns.numel() + 1, columns.shape[1], device=columns.device)
        self.rows = torch.arange(len(columns), device=columns.device).repeat_interleave(columns.shape[1])

    def is_of(self, columns: Tensor) -> bool:
        source, version = self._source
        return source is columns and version == columns._version

    def gathered(self, entries: Float[Tensor, " MS"], table: Float[Tensor, "U B"]) -> Float[Tensor, "M B"]:
        """sum_s entries_ms table[slot_ms], differentiable in the entries."""
        return nn.functional.embedding_bag(
            self.slots, table, self.offsets, mode="sum", per_sample_weights=entries, include_last_offset=True
        )

    def table_of_points(self, entries: Float[Tensor, " MS"]) -> Float[Tensor, "U M"]:
        """Z', the used columns of it, as a constant."""
        table = entries.new_zeros(len(self.used), len(self.offsets) - 1)
        table[self.slots, self.rows] = entries.detach()
        return table

    def table_of_inputs(self, x: Inputs) -> Float[Tensor, "U B"]:
        """X', the used columns of it."""
        if not isinstance(x, SparseRows):
            return x.T[self.used].contiguous()
        slots = torch.searchsorted(self.used, x.columns).clamp_(max=len(self.used) - 1)
        kept = self.used[slots] == x.columns
        table = x.values.new_zeros(len(self.used), x.shape[0])
        table[slots[kept], x.rows[kept]] = x.values[kept]
        return table


class _SparsePoints(Points):
    def __init__(self, inducing: SparseInducingInputs, layout: _Layout) -> None:
        self.inducing, self.layout = inducing, layout
        self.dtype, self.device = inducing.entries.dtype, inducing.entries.device

    def __len__(self) -> int:
        return len(self.inducing)

    def inner_products(self, weights: Tensor) -> InnerProducts:
        return _SparseProducts(self.inducing.entries.reshape(-1), self.layout, weights)

    def dense(self) -> Float[Tensor, "M D"]:
        return self.inducing.forward()


class _SparseProducts(InnerProducts):
    def __init__(self, entries: Float[Tensor, " MS"], layout: _Layout, weights: Tensor) -> None:
        self.layout, self.weights = layout, weights
        self.weighted = entries * (weights.index_select(0, layout.columns) if len(weights) > 1 else weights)
        product = layout.gathered(self.weighted, layout.table_of_points(entries))
        # The same product with the factors exchanged carries the gradient of what is a constant table above.
        exchanged = layout.gathered(entries, layout.table_of_points(self.weighted))
        self.gram = (product + (exchanged - exchanged.detach()).T).double()

    def __call__(self, x: Inputs) -> tuple[Tensor, Tensor]:
        product = self.layout.gathered(self.weighted, self.layout.table_of_inputs(x))
        return product.T, weighted_square_norms(x, self.weights)
