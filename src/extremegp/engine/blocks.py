"""Blocks of features beside each other, such as words and vectors: ranges of the columns of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import scipy.sparse
from torch import Tensor

from extremegp.engine.sparse import Inputs, SparseRows


class Block(NamedTuple):
    """Features of one kind.

    Attributes:
        n_features: how many.
        dense: whether every row has all of them: they then are computed with as an array, however they are held.
        unit: whether they are of unit norm in every row.
    """

    n_features: int
    dense: bool
    unit: bool = False


class Columns(NamedTuple):
    """Consecutive columns of the inputs.

    Attributes:
        start: the first.
        stop: the one after the last.
        dense: as of `Block`.
    """

    start: int
    stop: int
    dense: bool

    @property
    def range(self) -> slice:
        return slice(self.start, self.stop)

    def of(self, x: Inputs) -> Inputs:
        """These columns of a batch."""
        if isinstance(x, SparseRows):
            return x.between(self.start, self.stop, dense=self.dense)
        part: Tensor = x[..., self.range]
        return part

    def of_matrix(self, x: Any) -> Any:
        """These columns of a matrix held by SciPy or NumPy, or of a batch."""
        if (self.start, self.stop) == (0, x.shape[1]):
            return x
        if isinstance(x, (Tensor, SparseRows)):
            return self.of(x)
        part: Any = x[:, self.range]
        sparse: bool = scipy.sparse.issparse(part)
        return part.toarray() if self.dense and sparse else part


def columns_of(blocks: Sequence[Block]) -> list[Columns]:
    """Where blocks that stand beside each other have their columns."""
    stops = accumulate(block.n_features for block in blocks)
    return [Columns(stop - block.n_features, stop, block.dense) for stop, block in zip(stops, blocks, strict=True)]
