"""Inducing inputs whose blocks of features are held in a way of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.blocks import Block, Columns, columns_of
from extremegp.engine.centres import distinct_centres, in_memory, sparse_centres
from extremegp.engine.inducing.base import InducingInputs, vector_norms
from extremegp.engine.part import TrainingData
from extremegp.engine.points import InnerProducts, Points
from extremegp.engine.sparse import Inputs, mean_square_distance


class BlockInducingInputs(InducingInputs):
    """M points of which every block of features is a set of inducing inputs: free, on sparse supports, of unit norm.

    Args:
        members: M inducing inputs for every block.
        blocks: the blocks, in the order of their columns.
    """

    normalise = False
    starts_parts = True

    def __init__(self, members: Sequence[InducingInputs], blocks: Sequence[Block]) -> None:
        super().__init__()
        self.members, self.columns = nn.ModuleList(members), columns_of(blocks)

    def __len__(self) -> int:
        return len(self._members[0])

    def points(self, functions: Int[Tensor, " L"] | None = None) -> Points:
        return _BlockPoints([member.points(functions) for member in self._members], self.columns)

    def forward(self) -> Float[Tensor, "M D"]:
        return torch.cat([member() for member in self._members], dim=1)

    def start(self, data: TrainingData) -> None:
        """Centres of the inputs with every block at its own scale, so that none decides alone which are alike."""
        x = in_memory(data, len(self))
        scale = np.ones(x.shape[1], dtype=np.float32)
        for columns in self.columns:
            distance = mean_square_distance(columns.of(data.sample))
            scale[columns.range] = (2 / distance) ** 0.5 if distance > 0 else 1.0
        if scipy.sparse.issparse(x):
            scaled = scipy.sparse.csr_matrix((x.data * scale[x.indices], x.indices, x.indptr), shape=x.shape)
            centres: Any = sparse_centres(scaled, len(self), data)
            centres.data /= scale[centres.indices]
        else:
            centres = distinct_centres(x * scale, len(self), data) / scale
        for member, columns in zip(self._members, self.columns, strict=True):
            member.start_at(centres[:, columns.range], data.rng)

    def project(self) -> None:
        """Nothing: the members do so."""

    def step_scales(self) -> dict[nn.Parameter, float]:
        return {}

    def coordinates(self) -> nn.Parameter:
        raise TypeError("every block has coordinates of its own")

    def norms(self) -> Tensor:
        return vector_norms(self(), dim=1)

    @property
    def _members(self) -> list[InducingInputs]:
        return [*self.members]


class _BlockPoints(Points):
    def __init__(self, parts: Sequence[Points], columns: Sequence[Columns]) -> None:
        self.parts, self.columns = parts, columns
        self.dtype, self.device = parts[0].dtype, parts[0].device

    def __len__(self) -> int:
        return len(self.parts[0])

    def between(self, start: int, stop: int) -> Points:
        for part, columns in zip(self.parts, self.columns, strict=True):
            if (columns.start, columns.stop) == (start, stop):
                return part
        return super().between(start, stop)

    def inner_products(self, weights: Tensor) -> InnerProducts:
        own = [weights[columns.range] if len(weights) > 1 else weights for columns in self.columns]
        products = [part.inner_products(weight) for part, weight in zip(self.parts, own, strict=True)]
        return _SummedProducts(products, self.columns)

    def dense(self) -> Float[Tensor, "M D"]:
        return torch.cat([part.dense() for part in self.parts], dim=1)


class _SummedProducts(InnerProducts):
    def __init__(self, products: Sequence[InnerProducts], columns: Sequence[Columns]) -> None:
        self.products, self.columns = products, columns
        self.gram = torch.stack([product.gram for product in products]).sum(0)

    def __call__(self, x: Inputs) -> tuple[Tensor, Tensor]:
        parts = [product(columns.of(x)) for product, columns in zip(self.products, self.columns, strict=True)]
        crosses, norms = zip(*parts, strict=True)
        return torch.stack(crosses).sum(0), torch.stack(norms).sum(0)
