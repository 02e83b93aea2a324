"""A kernel of some of the features: sums of these give every block of features a kernel and a weight of its own."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.blocks import Columns
from extremegp.engine.kernels import InnerProductKernel, Kernel, KernelAt
from extremegp.engine.part import TrainingData
from extremegp.engine.points import Points, as_points
from extremegp.engine.sparse import Inputs, mean_square_distance


class OnColumns(Kernel):
    """s2 k(x_b, z_b), with x_b the columns `start` to `stop` of x, and s2 learnt.

    Args:
        kernel: k.
        start: the first column.
        stop: the one after the last.
        dense: whether every row has all of them: k then gets them as an array, of sparse rows too.
        variance: s2 at the start.
        rescale: whether weights of the kernel start at the scale of the training data, where rows are at a mean squared
            distance of 2.
    """

    def __init__(
        self,
        kernel: Kernel,
        start: int,
        stop: int,
        *,
        dense: bool = False,
        variance: float = 1.0,
        rescale: bool = False,
    ) -> None:
        super().__init__()
        self.kernel, self.columns, self.rescale = kernel, Columns(start, stop, dense), rescale
        self.log_variance = nn.Parameter(torch.tensor(math.log(variance)))
        self.per_function = kernel.per_function
        self.needs_dense = kernel.needs_dense and not dense

    def at(self, z: Points | Float[Tensor, "M D"], functions: Int[Tensor, " L"] | None = None) -> KernelAt:
        points = as_points(z).between(self.columns.start, self.columns.stop)
        return _OnColumnsAt(self.log_variance.exp(), self.columns, self.kernel.at(points, functions))

    @torch.no_grad()
    def start(self, data: TrainingData) -> None:
        distance = mean_square_distance(self.columns.of(data.sample))
        if self.rescale and distance > 0 and isinstance(self.kernel, InnerProductKernel):
            self.kernel.log_weights.add_(math.log(2 / distance))


class _OnColumnsAt(KernelAt):
    def __init__(self, variance: Tensor, columns: Columns, of_block: KernelAt) -> None:
        self.variance, self.columns, self.of_block = variance, columns, of_block

    def gram(self) -> Float[Tensor, "*P M M"]:
        return self.variance.double() * self.of_block.gram()

    def __call__(self, x: Inputs) -> tuple[Float[Tensor, "*P B M"], Float[Tensor, "*Q B"]]:
        cross, diagonal = self.of_block(self.columns.of(x))
        variance = self.variance.to(x.dtype)
        return variance * cross, variance * diagonal
