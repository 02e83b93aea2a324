"""What every part of a model knows of itself, so that nothing else has to ask which part it is.

A part that a user writes overrides what differs from the defaults here, and needs no change anywhere else.
"""

from __future__ import annotations

import inspect
from abc import ABC
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.engine.matrices import column_means
from extremegp.engine.selection import Selection
from extremegp.engine.sparse import Inputs, Matrix, row_block

_SAMPLE_ROWS = 2000


@dataclass(frozen=True)
class TrainingData:
    """What parts start from.

    Attributes:
        x: inputs, N x D.
        y: labels, N x K, in (0, 1] where they are soft; of classes, 1 in the column of the class, or probabilities.
        rng: decides the start.
        inducing_start: where inducing inputs start: centres of a mini-batch k-means, or rows drawn at random.
        loadings_start: loadings are drawn at random, or "spectral": the principal directions of the labels.
        propensities: with which probability labels that apply are recorded, K; None for 1.
        weights: what each row counts, N, positive; None for 1.
        selections: what was tried for hyper-parameters on these data; what chooses any adds to it.
    """

    x: Matrix
    y: scipy.sparse.csr_matrix
    rng: np.random.Generator
    inducing_start: Literal["kmeans", "rows"] = "kmeans"
    loadings_start: Literal["random", "spectral"] = "random"
    propensities: NDArray[np.float64] | None = None
    weights: NDArray[np.float64] | None = None
    selections: list[Selection] = field(default_factory=list)

    @property
    def n_rows(self) -> int:
        return int(self.x.shape[0])

    @property
    def n_counted(self) -> int:
        """How many rows these count as: the sum of their weights, at least one."""
        return self.n_rows if self.weights is None else max(1, round(float(self.weights.sum())))

    def some(self, rows: NDArray[np.int64]) -> TrainingData:
        """Some of the rows by themselves."""
        weights = None if self.weights is None else self.weights[rows]
        return replace(self, x=self.x[rows], y=self.y[rows], weights=weights, selections=[])

    @cached_property
    def frequencies(self) -> NDArray[np.float64]:
        """Weighted mean of each label as recorded, K: the share of the rows with it, or the mean count."""
        return column_means(self.y, self.weights)

    @property
    def applies(self) -> NDArray[np.float64]:
        """How often labels apply, K: the recorded frequencies over the propensities."""
        return self.frequencies if self.propensities is None else self.frequencies / self.propensities

    @cached_property
    def sample(self) -> Inputs:
        """Some of the inputs, for scales."""
        return row_block(self.x, np.sort(self.rng.permutation(self.n_rows)[:_SAMPLE_ROWS]))


class StepSizes(NamedTuple):
    """The sizes that decide what a step of training takes.

    Attributes:
        rows: B, of the batch.
        labels: L, that the step looks at.
        stored: stored entries of the inputs of the batch.
        sequences: S, of the batch; 0 where rows stand alone.
        draws: R, of the functions.
        partial: whether functions of other labels are left out of the step.
        classes: that a row may have; 1 unless labels are soft.
    """

    rows: int
    labels: int
    stored: int
    sequences: int = 0
    draws: int = 1
    partial: bool = False
    classes: int = 1


class Part(nn.Module, ABC):
    """A part of a model: a module that knows how it starts, moves, and what it takes.

    Attributes:
        index_limits: exclusive upper bounds of the entries of integer buffers, by name.
        value_limits: least and largest entries of other buffers that are limited, by name.
        needs_dense: whether inputs must be arrays.
        starts_parts: whether it starts the parts that it is made of itself.
    """

    needs_dense: bool = False
    index_limits: Mapping[str, int] = {}
    value_limits: Mapping[str, tuple[float, float]] = {}
    starts_parts: ClassVar[bool] = False
    _arguments: tuple[Any, ...]
    _keywords: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        part = super().__new__(cls)
        object.__setattr__(part, "_arguments", tuple(map(_plain, args)))
        object.__setattr__(part, "_keywords", {name: _plain(value) for name, value in kwargs.items()})
        return part

    def arguments(self) -> dict[str, Any]:
        """What the part was made with, by which a saved model makes it again.

        Raises:
            TypeError: an argument is neither a number, a string, a truth value, None, nor another part.
        """
        made = inspect.signature(type(self).__init__).bind(self, *self._arguments, **self._keywords).arguments
        bound = dict([*made.items()][1:])
        odd = [name for name, value in bound.items() if value is _Unsaved]
        if odd:
            raise TypeError(
                f"{type(self).__name__} was made with {odd[0]!r} that is no number, string or part, so that a saved "
                "model could not make it again"
            )
        return bound

    def start(self, data: TrainingData) -> None:
        """Take the values that training starts from, in place."""

    def project(self) -> None:
        """Restore constraints on the parameters; called after every optimiser step."""

    def kl(self) -> Tensor | float:
        """KL divergence of the part's own parameters from their prior, beside that of the latent functions."""
        return 0.0

    def step_scales(self) -> dict[nn.Parameter, float]:
        """Factors on the learning rate, where they are not 1, as Adam's steps are absolute."""
        return {}

    def late(self) -> dict[nn.Parameter, Literal["frequencies", "hyperparameters"]]:
        """Parameters that may keep still at first, by which setting says how long."""
        return {}

    def row_sparse(self) -> list[nn.Parameter]:
        """Parameters whose gradients are sparse in rows where the inputs are sparse."""
        return []

    def natural_parameters(self) -> list[nn.Parameter]:
        """The parameters that `natural_step` moves; none where there are no natural gradients in closed form."""
        return []

    def natural_step(self, step: float, scale: float) -> None:
        """A step along the natural gradient of the bound, see `Posterior.natural_step`."""
        raise TypeError(f"{type(self).__name__} has no natural gradient in closed form")

    def expect(self, names: Collection[str]) -> None:
        """Get ready to load tensors of these names, where an earlier version of the part has had others."""

    def step_elements(self, sizes: StepSizes) -> int:
        """Numbers of the training precision that a step takes for the part, its parameters and their moments aside."""
        return 0

    def fit_bytes(self, n_rows: int) -> int:
        """What it takes to fit the part to N rows before training, or to hold what was worked out of them, in bytes."""
        return 0

    def step_bytes(self, sizes: StepSizes) -> int:
        """What it takes beside `step_elements` in another precision, in bytes."""
        return 0


def parts_of(module: nn.Module) -> Iterator[Part]:
    """The module and all in it that are parts, in the order of their registration."""
    return (part for part in module.modules() if isinstance(part, Part))


def expect_tensors(module: nn.Module, names: Collection[str]) -> None:
    """Get all parts of a module ready to load tensors of these names."""
    for path, part in module.named_modules():
        if isinstance(part, Part):
            prefix = f"{path}." if path else ""
            part.expect({name.removeprefix(prefix) for name in names if name.startswith(prefix)})


def start_parts(module: nn.Module, data: TrainingData) -> None:
    """Start the module and all in it that are parts, each before those that it is made of."""
    if isinstance(module, Part):
        module.start(data)
        if module.starts_parts:
            return
    for child in module.children():
        start_parts(child, data)


class _Unsaved:
    """Stands for an argument that cannot be saved: a class, for copies of it are itself."""


def _plain(value: Any) -> Any:
    """An argument that can be saved, NumPy's numbers as Python's; of others, as start values, no reference is kept."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, (str, int, float, type(None), Part)) else _Unsaved
