"""A model and its batches shared out over several processes.

Every process computes the latent functions at its part of the rows of a batch. Their marginals are gathered, and every
process adds up the data term of the whole batch over the labels that it owns, so that loadings and biases, their
gradients and the optimiser's moments exist once in all. The gradients of the marginals then go back to where the rows
are, and those of what all processes hold are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from extremegp.engine.latents.base import Marginals
from extremegp.engine.likelihoods import BatchContext, BernoulliLabels
from extremegp.engine.mean import RegressionMean
from extremegp.engine.mixing import FactorMixing
from extremegp.engine.model import ELBO, VariationalModel
from extremegp.engine.sparse import Inputs, SparseRows
from extremegp.errors import SettingsError
from extremegp.training.distributed import World


def check_shareable(model: nn.Module, world: World) -> None:
    """Refuse a model that several processes cannot train.

    Raises:
        SettingsError: its labels depend on each other beyond shared latent functions, or there are fewer labels than
            processes.
    """
    if world.size == 1:
        return
    problem, instead = None, "start it as one process, without torchrun"
    if not isinstance(model, VariationalModel):
        problem = "sequences of labels"
    elif not isinstance(model.likelihood, BernoulliLabels):
        problem = f"a likelihood that compares classes ({type(model.likelihood).__name__})"
        instead += ", or set likelihood='independent' and mixing='factor'"
    elif not isinstance(model.mixing, FactorMixing):
        problem = "a latent function for every label (mixing='identity')"
        instead += ", or set mixing='factor'"
    elif not isinstance(model.mean_function, RegressionMean | None):
        problem = f"this mean function ({type(model.mean_function).__name__})"
        instead += ", or set mean_function='zero'"
    elif model.mixing.n_labels < world.size:
        problem = f"{model.mixing.n_labels} labels"
    if problem is not None:
        raise SettingsError(f"{problem} cannot be shared out over {world.size} processes: {instead}")


class LabelShards:
    """A model of which this process holds the labels that it owns: loadings, biases and propensities of those alone.

    Args:
        model: the whole model, with the same parameters on every process; it becomes that of the own labels.
        world: the processes.

    Attributes:
        labels: which are owned.
        n_labels: K.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        self.model, self.world = model, world
        self.n_labels = 0
        self.labels = slice(None)
        self.per_label: set[str] = set()
        if world.size == 1:
            return
        assert isinstance(model, VariationalModel)
        for tensor in [*model.latents.parameters(), *model.latents.buffers()]:
            world.of_first(tensor.data)
        self.n_labels = model.mixing.n_labels
        self.labels = world.own(self.n_labels)
        own = torch.arange(self.labels.start, self.labels.stop, device=model.mixing.bias.device)
        model.mixing, model.likelihood = model.mixing.restricted(own), model.likelihood.restricted(own)
        self.per_label = {name for name in model.state_dict() if name.startswith(("mixing.", "likelihood."))}

    @property
    def shared(self) -> list[nn.Parameter]:
        """The parameters that every process holds."""
        owned = set(self.model.mixing.parameters()) if self.per_label else set()  # type: ignore[union-attr]
        return [parameter for parameter in self.model.parameters() if parameter not in owned]

    def per_label_of(self, optimizers: Sequence[torch.optim.Optimizer]) -> set[str]:
        """Which entries of a checkpoint, as `save_checkpoint` names them, have a row for each label."""
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
        if self.world.size == 1:
            return validate()
        assert isinstance(self.model, VariationalModel)
        own, score = self.model.mixing, 0.0
        loadings, bias = (self.world.rows_at_first(part, self.n_labels) for part in (own.loadings, own.bias))
        if loadings is not None and bias is not None:
            self.model.mixing = FactorMixing(loadings.to(own.loadings), bias.to(own.bias)).requires_grad_(False)
            score = validate()
            self.model.mixing = own
        return self.world.said_by_first(score)

    def align(self) -> None:
        """Undo what rounding on processors of several kinds made of parameters that every process holds."""
        if self.world.size > 1:
            for parameter in self.shared:
                self.world.of_first(parameter.data)

    def join(self) -> None:
        """Give every process the whole model back."""
        if self.world.size == 1:
            return
        model = self.model
        assert isinstance(model, VariationalModel)
        assert isinstance(model.likelihood, BernoulliLabels)
        model.mixing = FactorMixing(
            *(self.world.rows(part.detach(), self.n_labels) for part in (model.mixing.loadings, model.mixing.bias))
        )
        if model.likelihood.propensities is not None:
            model.likelihood = BernoulliLabels(self.world.rows(model.likelihood.propensities, self.n_labels))


class SharedLatents(NamedTuple):
    """The latent functions at all rows of a batch, on every process, and their KL.

    Attributes:
        mean: their means, B x P.
        variance: their variances, B x P.
        kl: KL[q || p].
    """

    mean: Float[Tensor, "B P"]
    variance: Float[Tensor, "B P"]
    kl: Float[Tensor, ""]


def shared_latents(model: VariationalModel, world: World, x: Inputs, *, n_batch: int) -> SharedLatents:
    """The latent functions at B rows, of which every process gives those that it has the inputs of."""
    conditioned = model.latents.condition()
    own = conditioned.marginals(x)
    mean, variance = own.mean, own.variance
    if world.size > 1:
        both = world.differentiable_rows(torch.cat([mean, variance], dim=1), n_batch)
        mean, variance = (part.contiguous() for part in both.chunk(2, dim=1))
    return SharedLatents(mean, variance, conditioned.kl())


def shared_elbo(
    model: VariationalModel,
    latents: SharedLatents,
    y: SparseRows,
    *,
    n_batch: int,
    n_rows: float,
    label_weights: Float[Tensor, " L"] | None = None,
    mean_logits: Float[Tensor, "B L"] | None = None,
    context: BatchContext | None = None,
) -> ELBO:
    """`VariationalModel.elbo` with the data term of the own labels alone: those of all processes add up to it.

    Args:
        model: of the own labels.
        latents: the latent functions at all rows of the batch.
        y: own labels of all rows of the batch, B x L.
        n_batch: B.
        n_rows: N.
        label_weights: as in `VariationalModel.elbo`.
        mean_logits: what a mean function scales, of all rows and own labels.
        context: the batch in training.
    """
    offset = None
    if model.mean_function is not None and mean_logits is not None:
        offset = model.mean_function.scaled(mean_logits)
    data = model.likelihood.expected_log_prob(
        Marginals(latents.mean, latents.variance, offset),
        model.mixing,
        y,
        label_weights=label_weights,
        context=context,
    )
    return ELBO(data, latents.kl, n_rows / n_batch)
