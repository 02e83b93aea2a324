"""What a step of training takes: a batch, the gradients of the bound on it, and what moves the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.data.validation import column_counts
from extremegp.engine.inducing import InducingInputs
from extremegp.engine.latents import DeepRandomFeatures, LinearFunctions
from extremegp.engine.latents.random_features import RandomFeatures
from extremegp.engine.likelihoods import BatchContext
from extremegp.engine.linalg import NotPositiveDefiniteError
from extremegp.engine.mixing import FactorMixing
from extremegp.engine.model import ELBO, VariationalModel
from extremegp.engine.posteriors import Posterior
from extremegp.engine.sequence_model import SequenceModel
from extremegp.engine.sparse import Inputs, SparseRows, row_block
from extremegp.errors import ExtremeGPError
from extremegp.settings.training import LabelSampling, TrainingSettings
from extremegp.training.class_pairs import ClassPairSampler
from extremegp.training.hard_labels import HardLabels
from extremegp.training.label_sampling import LabelBatch, LabelSampler
from extremegp.training.natural import NaturalGradient
from extremegp.training.row_adam import RowAdam
from extremegp.training.shards import LabelShards, SharedLatents, shared_elbo, shared_latents

Model = VariationalModel | SequenceModel
Matrix = scipy.sparse.csr_matrix | NDArray[Any]


class TrainingDivergedError(ExtremeGPError):
    """The bound or a covariance stopped being finite."""


@dataclass(frozen=True)
class Batch:
    """What a step looks at, ready on the device. Of several processes, each has its inputs and its labels.

    Attributes:
        step: number of the step.
        size: B, rows of the batch.
        n_rows: how many rows they stand for.
        x: the inputs, of this process's rows.
        y: the labels that are 1, B x K.
        rows: the numbers of the inputs among all training rows.
        sampled: the labels of the step and their weights, where they are sampled; `y` is then theirs.
        mean_logits: what a mean function scales, B x K.
        lengths: of sequences.
    """

    step: int
    size: int
    n_rows: float
    x: Inputs
    y: SparseRows
    rows: Int[Tensor, " B"]
    sampled: LabelBatch | None
    mean_logits: Float[Tensor, "B K"] | None
    lengths: Int[Tensor, " S"] | None


class Steps:
    """Batches of the training data and the gradients of the bound on them.

    Args:
        model: the model, or the part of it that `shards` leave to this process.
        x: inputs, N x D.
        y: labels that are 1, N x K.
        settings: how to train.
        lengths: of the sequences that the rows are.
        mean_logits: what a mean function scales at every row, N x K.
        shards: how labels are shared out.
    """

    def __init__(
        self,
        model: Model,
        x: Matrix,
        y: scipy.sparse.csr_matrix,
        settings: TrainingSettings,
        *,
        lengths: NDArray[np.int64] | None,
        mean_logits: NDArray[np.float32] | None,
        shards: LabelShards,
    ) -> None:
        self.model, self.x, self.y, self.settings, self.mean_logits = model, x, y, settings, mean_logits
        self.shards, self.world = shards, shards.world
        self.lengths = lengths
        self.ends = None if lengths is None else np.cumsum(lengths)
        self.n_units = x.shape[0] if lengths is None else len(lengths)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.shared = [parameter for parameter in shards.shared if parameter.requires_grad]
        self.pairs = (
            ClassPairSampler(y, settings.batch_size, seed=settings.seed) if settings.label_sampling == "pair" else None
        )
        self.sampler = None if self.pairs is not None else _sampler(y, settings)
        self.hard: HardLabels | None = None
        if self.sampler is not None and settings.label_sampling == "hard":
            n_hard, n_labels = min(settings.n_hard_labels, y.shape[1]), y.shape[1]
            options: dict[str, Any] = {"batch_size": settings.batch_size, "seed": settings.seed}
            self.hard = HardLabels(n_labels, n_hard, world=self.world, labels=shards.labels, **options)

    def load(self, units: NDArray[np.int64], step: int) -> Batch:
        """The batch of some rows or sequences; of a pair of classes, the step decides the rows."""
        like = self.parameters[0]
        to: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
        pair = None if self.pairs is None else self.pairs.draw(step)
        rows = self._rows(units) if pair is None else pair.rows
        own, labels = rows[self.world.own(len(rows))], self.shards.labels
        n_rows, sampled = float(self.x.shape[0]), None
        if pair is not None:
            sampled, n_rows = pair.batch(self.y.shape[1], **to), pair.n_rows
        elif self.sampler is not None:
            sampled = self.sampler.batch(self.y[rows], self.sampler.draw(step), within=labels, **to)
        elif self.lengths is not None:
            # A sequence stands for others whatever its length.
            n_rows = self.n_units / len(units) * len(rows)
        return Batch(
            step,
            len(rows),
            n_rows,
            row_block(self.x, own, **to),
            sampled.y if sampled is not None else SparseRows.from_scipy(self._labels(rows), **to),
            torch.from_numpy(own).to(like.device),
            sampled,
            None if self.mean_logits is None else torch.from_numpy(self.mean_logits[rows, labels]).to(like),
            None if self.lengths is None else torch.from_numpy(self.lengths[units]).to(like.device),
        )

    def _labels(self, rows: NDArray[np.int64]) -> scipy.sparse.csr_matrix:
        return self.y[rows] if self.world.size == 1 else self.y[rows][:, self.shards.labels]

    def _rows(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.lengths is None or self.ends is None:
            return units
        lengths = self.lengths[units]
        first = np.repeat(self.ends[units] - lengths, lengths)
        within = np.arange(len(first)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return np.asarray(first + within)

    def gradients(self, batch: Batch, *, n_draws: int) -> ELBO:
        """Leave the objective's gradient in the parameters, in those of the mixing row-sparse if labels are sampled."""
        total, model, logits, sampled = self.x.shape[0], self.model, batch.mean_logits, batch.sampled
        context = BatchContext(batch.x, batch.rows, self.settings.seed + batch.step, batch.lengths, n_draws)
        try:
            latents = None
            if self.world.size > 1 or self.hard is not None:
                assert isinstance(model, VariationalModel)
                latents = shared_latents(model, self.world, batch.x, n_batch=batch.size)
                sampled = self._with_hard(batch, latents)
            if sampled is not None:
                assert isinstance(model, VariationalModel)
                model = model.restricted(sampled.labels, partial=self.pairs is not None)
                logits = None if logits is None else logits.index_select(1, sampled.labels)
            elbo = self._bound(model, batch, sampled, latents, logits, context)
        except NotPositiveDefiniteError as error:
            raise TrainingDivergedError(str(error)) from error
        self.model.zero_grad()
        # The KL term is of what every process holds: each takes its share.
        (-elbo.tempered(self.settings.kl_weight / self.world.size) / total).backward()
        if sampled is not None:
            for whole, part in zip(self.model.mixing.parameters(), model.mixing.parameters(), strict=True):
                if part.grad is not None:
                    whole.grad = torch.sparse_coo_tensor(
                        sampled.labels[None], part.grad, whole.shape, is_coalesced=True, check_invariants=False
                    )
        if self.world.size == 1:
            return elbo
        data = elbo.data.detach()
        for parameter in self.shared:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.world.add([data, *(parameter.grad for parameter in self.shared if parameter.grad is not None)])
        return elbo._replace(data=data)

    def _with_hard(self, batch: Batch, latents: SharedLatents) -> LabelBatch | None:
        """The labels of the step with those that the model ranks high for its rows."""
        model, sampled = self.model, batch.sampled
        if self.hard is None or sampled is None:
            return sampled
        assert isinstance(model, VariationalModel)
        assert isinstance(model.mixing, FactorMixing)
        self.hard.prepare(batch.step, model.mixing)
        offset = None
        if model.mean_function is not None and batch.mean_logits is not None:
            offset = model.mean_function.scaled(batch.mean_logits).detach()
        known = sampled.labels[torch.unique(sampled.y.columns)]
        return sampled.including(self.hard.find(model.mixing, latents.mean.detach(), known, offset))

    def _bound(
        self,
        model: Model,
        batch: Batch,
        sampled: LabelBatch | None,
        latents: SharedLatents | None,
        logits: Tensor | None,
        context: BatchContext,
    ) -> ELBO:
        y, weights = (batch.y, None) if sampled is None else (sampled.y, sampled.weights)
        if latents is not None:
            assert isinstance(model, VariationalModel)
            return shared_elbo(
                model,
                latents,
                y,
                n_batch=batch.size,
                n_rows=batch.n_rows,
                label_weights=weights,
                mean_logits=logits,
                context=context,
            )
        options = {} if weights is None else {"label_weights": weights}
        return model.elbo(batch.x, y, n_rows=batch.n_rows, mean_logits=logits, context=context, **options)


def make_optimizers(
    model: Model, settings: TrainingSettings, *, n_rows: int, sparse_inputs: bool
) -> list[torch.optim.Optimizer]:
    """What moves the parameters: every one is a group of one optimiser.

    Args:
        model: whose parameters.
        settings: how.
        n_rows: N; the loss is -bound / N.
        sparse_inputs: whether gradients of what multiplies inputs are sparse in rows.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    sampled = settings.n_sampled_labels is not None or settings.label_sampling == "pair"
    by_rows = {parameter for parameter in model.mixing.parameters() if sampled and parameter.requires_grad}
    if sparse_inputs:
        by_rows |= set(_reducers(model))
    natural = natural_posteriors(model) if settings.optimizer == "natural" else []
    by_nature = {parameter for posterior in natural for parameter in posterior.natural_parameters()}
    narrow = [parameter for parameter in parameters if parameter not in by_rows | by_nature]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adam([{"params": [parameter]} for parameter in narrow], lr=settings.learning_rate, fused=True)
    ]
    if by_rows:
        wide = [{"params": [parameter]} for parameter in parameters if parameter in by_rows]
        optimizers.append(RowAdam(wide, settings.learning_rate, state=settings.optimizer_state))
    if natural:
        optimizers.append(NaturalGradient(natural, scale=n_rows))
    return optimizers


def _sampler(y: scipy.sparse.csr_matrix, settings: TrainingSettings) -> LabelSampler | None:
    if settings.n_sampled_labels is None or settings.label_sampling == "pair":
        return None
    drawing: LabelSampling = "uniform" if settings.label_sampling == "uniform" else "frequency"
    return LabelSampler(column_counts(y), settings.n_sampled_labels, drawing, seed=settings.seed)


def _reducers(model: nn.Module) -> list[nn.Parameter]:
    """Parameters whose gradients are sparse in rows where inputs are sparse."""
    modules = [module for module in model.modules() if isinstance(module, DeepRandomFeatures)]
    return [module.reducer for module in modules if module.reducer is not None]


def moving_later(model: nn.Module, settings: TrainingSettings) -> dict[Tensor, float]:
    """From which share of the steps on parameters move, of those that keep still at first."""
    later: dict[Tensor, float] = {}
    for module in model.modules():
        if isinstance(module, RandomFeatures):
            later |= dict.fromkeys((module.log_weights, module.log_amplitude), settings.hyperparameters_from)
            if module.q_mean is not None:
                later |= dict.fromkeys((module.q_mean, module.log_ratio), settings.frequencies_from)
    return later


def natural_posteriors(model: nn.Module) -> list[Posterior]:
    """The posteriors that have natural gradients."""
    posteriors = [module for module in model.modules() if isinstance(module, Posterior)]
    return [posterior for posterior in posteriors if posterior.natural_parameters()]


def step_scales(model: Model, parameters: Sequence[Tensor], settings: TrainingSettings) -> list[float]:
    """Factors on the learning rate, as Adam's steps are absolute.

    Inducing inputs move in units of their entries. Loadings and linear coefficients move slower than the rest, which on
    real data gives better held-out log-loss: too fast, they fit noise before the inducing inputs find their places.
    """
    scales: dict[Tensor, float] = {}
    if isinstance(model.mixing, FactorMixing):
        scales[model.mixing.loadings] = 0.3
    for module in model.modules():
        if isinstance(module, InducingInputs):
            coordinates = module.coordinates()
            scales[coordinates] = float(coordinates.detach().square().mean().sqrt())
        elif isinstance(module, LinearFunctions):
            scales[module.q_mean] = 0.3
    if settings.optimizer == "natural":
        for posterior in natural_posteriors(model):
            scales |= dict.fromkeys(posterior.natural_parameters(), settings.natural_step / settings.learning_rate)
    return [scales.get(parameter, 1.0) for parameter in parameters]
