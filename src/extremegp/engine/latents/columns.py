"""Latent functions of some of the features: sums of these have a term for every block of features."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from extremegp.engine.blocks import Columns
from extremegp.engine.latents.base import ConditionedLatents, Latents, Marginals
from extremegp.engine.part import Part, TrainingData, parts_of, start_parts
from extremegp.engine.sparse import Inputs


class ColumnLatents(Latents):
    """h(x_b), with x_b the columns `start` to `stop` of x.

    Args:
        latents: h.
        start: the first column.
        stop: the one after the last.
        dense: whether every row has all of them: h then gets them as an array, of sparse rows too.
    """

    starts_parts = True

    def __init__(self, latents: Latents, start: int, stop: int, *, dense: bool = False) -> None:
        super().__init__()
        self.latents, self.columns = latents, Columns(start, stop, dense)
        self.n_functions = latents.n_functions

    def start(self, data: TrainingData) -> None:
        # Columns of all rows are a copy, which few parts look at.
        if any(type(part).start is not Part.start for part in parts_of(self.latents)):
            start_parts(self.latents, replace(data, x=self.columns.of_matrix(data.x)))

    def condition(self, seed: int = 0, functions: Int[Tensor, " L"] | None = None) -> ConditionedLatents:
        return _ConditionedColumns(self.latents.condition(seed, functions), self.columns)


class _ConditionedColumns(ConditionedLatents):
    def __init__(self, conditioned: ConditionedLatents, columns: Columns) -> None:
        self.conditioned, self.columns = conditioned, columns
        self.width, self.alike = conditioned.width, conditioned.alike

    def marginals(self, x: Inputs) -> Marginals:
        return self.conditioned.marginals(self.columns.of(x))

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        return self.conditioned.draws(self.columns.of(x), lengths, n_draws, generator)

    def kl(self) -> Float[Tensor, ""]:
        return self.conditioned.kl()

    def select(self, functions: Int[Tensor, " L"]) -> ConditionedLatents:
        return _ConditionedColumns(self.conditioned.select(functions), self.columns)
