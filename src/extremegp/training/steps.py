"""What a step of training takes: a batch, the gradients of the bound on it, and what moves the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.engine.batch import Batch
from extremegp.engine.linalg import NotPositiveDefiniteError
from extremegp.engine.matrices import column_counts
from extremegp.engine.mixing import FactorMixing, Mixing
from extremegp.engine.model import ELBO, VariationalModel
from extremegp.engine.part import Part, parts_of
from extremegp.engine.sparse import Matrix, SparseRows, row_block
from extremegp.errors import ExtremeGPError
from extremegp.settings.training import LabelSampling, TrainingSettings
from extremegp.training.class_pairs import ClassPairSampler
from extremegp.training.hard_labels import HardLabels
from extremegp.training.label_sampling import LabelBatch, LabelSampler
from extremegp.training.natural import NaturalGradient
from extremegp.training.row_adam import RowAdam
from extremegp.training.shards import GatheredLatents, Shards


class TrainingDivergedError(ExtremeGPError):
    """The bound or a covariance stopped being finite."""


@dataclass(frozen=True)
class Step:
    """What a step looks at, ready on the device. Of several processes, each has its inputs, and its labels if shared.

    Attributes:
        number: of the step.
        n_batch: B, rows of the batch in all processes.
        batch: the inputs and labels.
        sampled: the labels of the step and their weights, where they are sampled.
    """

    number: int
    n_batch: int
    batch: Batch
    sampled: LabelBatch | None


class Steps:
    """Batches of the training data and the gradients of the bound on them.

    Args:
        x: inputs, N x D.
        y: labels that are 1, or soft, N x K.
        settings: how to train.
        lengths: of the sequences that the rows are.
        weights: what each row counts, or each sequence.
        mean_logits: what a mean function scales at every row, N x K.
        shards: the model, and how it is shared out.
    """

    def __init__(
        self,
        x: Matrix,
        y: scipy.sparse.csr_matrix,
        settings: TrainingSettings,
        *,
        lengths: NDArray[np.int64] | None,
        weights: NDArray[np.float64] | None = None,
        mean_logits: NDArray[np.float32] | None,
        shards: Shards,
    ) -> None:
        self.model, self.x, self.y, self.settings, self.mean_logits = shards.model, x, y, settings, mean_logits
        self.shards, self.world = shards, shards.world
        self.lengths, self.weights = lengths, weights
        self.ends = None if lengths is None else np.cumsum(lengths)
        self.n_units = x.shape[0] if lengths is None else len(lengths)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.shared = [parameter for parameter in shards.shared if parameter.requires_grad]
        by_pairs = settings.label_sampling == "pair"
        self.pairs = ClassPairSampler(y, settings.batch_size, seed=settings.seed) if by_pairs else None
        self.sampler = None if by_pairs else _sampler(y, settings)
        self.hard: HardLabels | None = None
        if self.sampler is not None and settings.label_sampling == "hard":
            n_hard, n_labels = min(settings.n_hard_labels, y.shape[1]), y.shape[1]
            options: dict[str, Any] = {"batch_size": settings.batch_size, "seed": settings.seed}
            self.hard = HardLabels(n_labels, n_hard, world=self.world, labels=shards.labels, **options)

    def load(self, units: NDArray[np.int64], number: int) -> Step:
        """The batch of some rows or sequences; of a pair of classes, the step decides the rows."""
        like = self.parameters[0]
        to: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
        pair = None if self.pairs is None else self.pairs.draw(number)
        rows = self._rows(units) if pair is None else pair.rows
        n_rows, sampled, seed = float(self.x.shape[0]), None, self.settings.seed + number
        if self.lengths is not None:
            # A sequence stands for others whatever its length.
            n_rows = self.n_units / len(units) * len(rows)
        own_units = units[self.shards.own(len(units))]
        own = self._rows(own_units) if pair is None else rows
        # Of these rows a process has the labels: of all, or of its own.
        labelled = rows if self.shards.by_labels else own
        if pair is not None:
            sampled, n_rows = pair.batch(self.y.shape[1], **to), pair.n_rows
        elif self.sampler is not None:
            sampled = self.sampler.batch(self.y[rows], self.sampler.draw(number), within=self.shards.labels, **to)
        if self.world.size > 1 and not self.shards.by_labels:
            sampled = None if sampled is None else sampled.of_rows(self.shards.own(len(rows)))
            # The noise of one process is none of the others'.
            seed += self.world.rank << 32
        return Step(
            number,
            len(rows),
            Batch(
                row_block(self.x, own, **to),
                SparseRows.from_scipy(self._labels(labelled), **to) if sampled is None else sampled.y,
                scale=n_rows / len(rows),
                rows=torch.from_numpy(own).to(like.device),
                lengths=None if self.lengths is None else torch.from_numpy(self.lengths[own_units]).to(like.device),
                weights=self._weights(labelled if self.lengths is None else own_units, like),
                mean_logits=self._logits(labelled, like),
                seed=seed,
            ),
            sampled,
        )

    def _labels(self, rows: NDArray[np.int64]) -> scipy.sparse.csr_matrix:
        return self.y[rows][:, self.shards.labels] if self.shards.by_labels else self.y[rows]

    def _logits(self, rows: NDArray[np.int64], like: Tensor) -> Float[Tensor, "B K"] | None:
        if self.mean_logits is None:
            return None
        return torch.from_numpy(self.mean_logits[rows, self.shards.labels]).to(like)

    def _weights(self, units: NDArray[np.int64], like: Tensor) -> Float[Tensor, " n"] | None:
        return None if self.weights is None else torch.from_numpy(self.weights[units]).to(like)

    def _rows(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.lengths is None or self.ends is None:
            return units
        lengths = self.lengths[units]
        first = np.repeat(self.ends[units] - lengths, lengths)
        within = np.arange(len(first)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return np.asarray(first + within)

    def gradients(self, step: Step, *, n_draws: int) -> ELBO:
        """Leave the objective's gradient in the parameters, in those of the mixing row-sparse if labels are sampled."""
        model, sampled, batch = self.model, step.sampled, replace(step.batch, n_draws=n_draws)
        try:
            conditioned = None
            if self.shards.by_labels or self.hard is not None:
                conditioned = GatheredLatents(model.latents.condition(batch.seed), self.world, step.n_batch)
                sampled = self._with_hard(step, conditioned)
            if sampled is not None:
                model = model.select(sampled.labels, partial=self.pairs is not None)
                logits = batch.mean_logits
                logits = None if logits is None else logits.index_select(1, sampled.labels)
                batch = replace(batch, y=sampled.y, label_weights=sampled.weights, mean_logits=logits)
            elbo = model.elbo(batch, conditioned)
        except NotPositiveDefiniteError as error:
            raise TrainingDivergedError(str(error)) from error
        self.model.zero_grad()
        # The KL term is of what every process holds: each takes its share.
        (-elbo.tempered(self.settings.kl_weight / self.world.size) / self.x.shape[0]).backward()
        if sampled is not None:
            self._spread_gradients(model.mixing, sampled.labels)
        if self.world.size == 1:
            return elbo
        data = elbo.data.detach()
        self._add_gradients(data)
        return elbo._replace(data=data)

    def _spread_gradients(self, part: Mixing, labels: Int[Tensor, " L"]) -> None:
        """Gradients of the rows of some labels, as sparse ones of all."""
        for whole, own in zip(self.model.mixing.parameters(), part.parameters(), strict=True):
            if own.grad is not None:
                if not self.shards.by_labels:
                    self.world.add([own.grad])
                whole.grad = torch.sparse_coo_tensor(
                    labels[None], own.grad, whole.shape, is_coalesced=True, check_invariants=False
                )

    def _add_gradients(self, data: Tensor) -> None:
        """Sums over the processes of the data term and of the gradients of what all processes hold."""
        # Those of sampled labels have been added up, and are the same everywhere.
        sampled = self.sampler is not None and not self.shards.by_labels
        done = set(self.model.mixing.parameters()) if sampled else set()
        sums = [data]
        for parameter in self.shared:
            if parameter in done:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad.is_sparse:
                parameter.grad = self.world.sparse_sum(parameter.grad)
            else:
                sums.append(parameter.grad)
        self.world.add(sums)

    def _with_hard(self, step: Step, conditioned: GatheredLatents) -> LabelBatch | None:
        """The labels of the step with those that the model ranks high for its rows."""
        model, sampled, batch = self.model, step.sampled, step.batch
        if self.hard is None or sampled is None:
            return sampled
        mixing = cast(FactorMixing, model.mixing)  # as settings have seen to
        self.hard.prepare(step.number, mixing)
        offset = None
        if model.mean_function is not None and batch.mean_logits is not None:
            offset = model.mean_function.scaled(batch.mean_logits).detach()
        known = sampled.labels[torch.unique(sampled.y.columns)]
        means = conditioned.marginals(batch.x).mean.detach()
        return sampled.including(self.hard.find(mixing, means, known, offset, batch.weights))


def make_optimizers(
    model: VariationalModel, settings: TrainingSettings, *, n_rows: int, sparse_inputs: bool
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
        by_rows |= {parameter for part in parts_of(model) for parameter in part.row_sparse()}
    natural = natural_parts(model) if settings.optimizer == "natural" else []
    by_nature = {parameter for part in natural for parameter in part.natural_parameters()}
    narrow = [parameter for parameter in parameters if parameter not in by_rows | by_nature]
    optimizers: list[torch.optim.Optimizer] = []
    if narrow:
        groups = [{"params": [parameter]} for parameter in narrow]
        optimizers.append(torch.optim.Adam(groups, lr=settings.learning_rate, fused=True))
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


def moving_later(model: VariationalModel, settings: TrainingSettings) -> dict[nn.Parameter, float]:
    """From which share of the steps on parameters move, of those that keep still at first."""
    shares = {"frequencies": settings.frequencies_from, "hyperparameters": settings.hyperparameters_from}
    return {parameter: shares[kind] for part in parts_of(model) for parameter, kind in part.late().items()}


def natural_parts(model: VariationalModel) -> list[Part]:
    """The parts that have natural gradients."""
    return [part for part in parts_of(model) if part.natural_parameters()]


def step_scales(model: VariationalModel, parameters: Sequence[nn.Parameter], settings: TrainingSettings) -> list[float]:
    """Factors on the learning rate, as Adam's steps are absolute: see `Part.step_scales`."""
    scales = {parameter: scale for part in parts_of(model) for parameter, scale in part.step_scales().items()}
    if settings.optimizer == "natural":
        for part in natural_parts(model):
            scales |= dict.fromkeys(part.natural_parameters(), settings.natural_step / settings.learning_rate)
    return [scales.get(parameter, 1.0) for parameter in parameters]
