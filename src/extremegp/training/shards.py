"""A model and its batches shared out over several processes, in one of two ways.

*By labels*, where these are independent given latent functions that they share: every process computes the latent
functions at its part of the rows of a batch. Their marginals are gathered, and every process adds up the data term of
the whole batch over the labels that it owns, so that loadings and biases, their gradients and the optimiser's moments
exist once in all. The gradients of the marginals then go back to where the rows are, and those of what all processes
hold are added up.

*By rows*, where labels depend on each other: every process holds all parameters, takes its part of the rows or
sequences of a batch, and all gradients are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from extremegp.engine.latents import ConditionedLatents, Marginals
from extremegp.engine.model import VariationalModel
from extremegp.engine.sparse import Inputs
from extremegp.errors import SettingsError
from extremegp.training.distributed import World


def shares_labels(model: VariationalModel) -> bool:
    """Whether processes share the labels of a model out, not the rows."""
    return model.likelihood.labels_independent and not model.mixing.independent


def check_shareable(model: VariationalModel, world: World) -> None:
    """Refuse a model that several processes cannot train.

    Raises:
        SettingsError: it keeps numbers for every row, or there are fewer labels than processes.
    """
    if world.size == 1:
        return
    problem, instead = None, "start it as one process, without torchrun"
    if model.likelihood.stores_rows:
        problem = "parameters that are stored for every row (local='stored')"
        instead += ", or set local='amortised'"
    elif shares_labels(model) and model.mixing.n_utilities < world.size:
        problem = f"{model.mixing.n_utilities} labels"
    if problem is not None:
        raise SettingsError(f"{problem} cannot be shared out over {world.size} processes: {instead}")


def check_alike(world: World, *given: Any) -> None:
    """Refuse processes that were not given the same.

    Raises:
        SettingsError: they were not.
    """
    if any(world.any(world.said_by_first(given) != given)):
        raise SettingsError(
            "the processes of this run were given different data or settings: give all of them the same files and "
            "options, and an integer random_state"
        )


class Shards:
    """What of a model this process trains.

    Args:
        model: the whole model, with the same parameters on every process.
        world: the processes.

    Attributes:
        model: the model to train: that of the labels that this process owns, or the whole one.
        labels: which are owned.
        by_labels: whether processes share labels out, not rows.
    """

    def __init__(self, model: VariationalModel, world: World) -> None:
        self.whole, self.model, self.world = model, model, world
        self.n_labels = model.mixing.n_utilities
        self.labels = slice(None)
        self.per_label: set[str] = set()
        self.by_labels = world.size > 1 and shares_labels(model)
        if world.size == 1:
            return
        for tensor in model.latents.state_dict().values() if self.by_labels else model.state_dict().values():
            world.of_first(tensor)
        if self.by_labels:
            self.labels = world.own(self.n_labels)
            own = torch.arange(self.labels.start, self.labels.stop, device=model.mixing.bias.device)
            self.model = model.select(own)
            parts = {"mixing": self.model.mixing, "likelihood": self.model.likelihood}
            self.per_label = {f"{part}.{name}" for part, module in parts.items() for name in module.state_dict()}

    def own(self, total: int) -> slice:
        """Which of the rows or sequences of a batch this process has the inputs of."""
        return self.world.own(total)

    @property
    def shared(self) -> list[nn.Parameter]:
        """The parameters that every process holds."""
        owned = set(self.model.mixing.parameters()) if self.by_labels else set()
        return [parameter for parameter in self.model.parameters() if parameter not in owned]

    def per_label_of(self, optimizers: Sequence[torch.optim.Optimizer]) -> set[str]:
        """Which entries of a checkpoint, as `save_checkpoint` names them, have a row for each label."""
        if not self.by_labels:
            return set()
        names = {f"{part}.{name}" for part in ("model", "best") for name in self.per_label}
        shared = set(self.shared)
        for number, optimizer in enumerate(optimizers):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for index, parameter in enumerate(parameters):
                if parameter not in shared:
                    names |= {f"optimizer{number}.{index}.{moment}" for moment in ("exp_avg", "exp_avg_sq", "step")}
        return names | {"hard.clusters"}

    def collect(self, tensors: Mapping[str, Tensor], per_label: set[str]) -> dict[str, Tensor] | None:
        """Tensors of all labels on the first process; None on all others."""
        whole: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            rows = self.world.rows_at_first(tensor, self.n_labels) if name in per_label and tensor.ndim else tensor
            if rows is not None:
                whole[name] = rows
        return whole if self.world.leads else None

    def spread(self, tensors: Mapping[str, Tensor], per_label: set[str]) -> dict[str, Tensor]:
        """Tensors of all labels on the first process, as every process holds them; the opposite of `collect`."""
        if self.world.size == 1:
            return dict(tensors)
        described = self.world.said_by_first(
            {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        )
        held: dict[str, Tensor] = {}
        for name, (shape, dtype) in described.items():
            tensor = tensors[name] if self.world.leads else torch.empty(shape, dtype=dtype)
            self.world.of_first(tensor)
            held[name] = tensor[self.labels].clone() if name in per_label and shape else tensor
        return held

    def score(self, validate: Callable[[], float]) -> float:
        """What the first process finds of the whole model."""
        if self.by_labels:
            self._gather(self.world.rows_at_first)
        return self.world.said_by_first(validate() if self.world.leads else 0.0)

    def align(self) -> None:
        """Undo what rounding on processors of several kinds made of parameters that every process holds."""
        if self.world.size > 1:
            for parameter in self.shared:
                self.world.of_first(parameter.data)

    def join(self) -> None:
        """Give every process the whole model."""
        if self.by_labels:
            self._gather(self.world.rows)

    @torch.no_grad()
    def _gather(self, rows: Callable[[Tensor, int], Tensor | None]) -> None:
        for whole, own in zip(self.whole.mixing.parameters(), self.model.mixing.parameters(), strict=True):
            gathered = rows(own.detach(), self.n_labels)
            if gathered is not None:
                whole.copy_(gathered)


class GatheredLatents(ConditionedLatents):
    """Latent functions at all rows of one batch, of which every process gives those that it has the inputs of.

    Args:
        conditioned: the latent functions.
        world: the processes.
        n_batch: B, rows of the batch.
    """

    def __init__(self, conditioned: ConditionedLatents, world: World, n_batch: int) -> None:
        self.conditioned, self.world, self.n_batch = conditioned, world, n_batch
        self.width, self._found = conditioned.width, None

    _found: Marginals | None

    def marginals(self, x: Inputs) -> Marginals:
        if self._found is None:
            self._found = self.conditioned.marginals(x)
            if self.world.size > 1:
                both = self.world.differentiable_rows(torch.cat(self._found, dim=1), self.n_batch)
                mean, variance = both.chunk(2, dim=1)
                self._found = Marginals(mean.contiguous(), variance.contiguous())
        return self._found

    def draws(
        self, x: Inputs, lengths: Int[Tensor, " S"], n_draws: int, generator: torch.Generator
    ) -> Float[Tensor, "R B P"]:
        return self.conditioned.draws(x, lengths, n_draws, generator)

    def kl(self) -> Float[Tensor, ""]:
        return self.conditioned.kl()

    def select(self, functions: Int[Tensor, " L"]) -> ConditionedLatents:
        return GatheredLatents(self.conditioned.select(functions), self.world, self.n_batch)
