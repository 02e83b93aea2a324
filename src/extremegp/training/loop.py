"""Stochastic maximisation of the bound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.errors import ExtremeGPError
from extremegp.files import copy_state
from extremegp.inducing import InducingInputs
from extremegp.latents import DeepRandomFeatures, LinearFunctions
from extremegp.latents.random_features import RandomFeatures
from extremegp.likelihoods import BatchContext
from extremegp.linalg import NotPositiveDefiniteError
from extremegp.mixing import FactorMixing
from extremegp.model import ELBO, VariationalModel
from extremegp.posteriors import Posterior
from extremegp.sequence_model import SequenceModel
from extremegp.sparse import Inputs, SparseRows, row_block
from extremegp.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from extremegp.training.class_pairs import ClassPairSampler, ClassSampling
from extremegp.training.interrupts import GracefulInterrupt, TrainingInterrupted
from extremegp.training.label_sampling import LabelSampler
from extremegp.training.natural import NaturalGradient
from extremegp.training.progress import Reporter
from extremegp.training.row_adam import RowAdam
from extremegp.training.schedule import batches_per_epoch, epoch_batches, one_cycle

Matrix = scipy.sparse.csr_matrix | NDArray[Any]


class TrainingDivergedError(ExtremeGPError):
    """The bound or a covariance stopped being finite."""


@dataclass(frozen=True)
class TrainingSettings:
    """How to maximise the bound.

    Attributes:
        epochs: passes over the rows; fewer where `time_budget` asks for it.
        batch_size: B, rows per step.
        learning_rate: peak of the one-cycle schedule of Adam.
        optimizer: "natural" moves what q(u) has natural parameters for along natural gradients and all else by Adam,
            "adam" everything by Adam.
        natural_step: peak of the same schedule of the natural steps, in (0, 1].
        kl_weight: weight of the KL term in the objective; 1 is the bound, less a cold posterior.
        n_draws: draws that an expectation without closed form is estimated from in the second half of the steps; one
            draw in the first (D A.4).
        frequencies_from: share of the steps after which the spectral frequencies of random features move (D 4.5.3).
        hyperparameters_from: the same of their lengthscales and amplitudes.
        n_sampled_labels: labels that stand for all that no row of a batch has, drawn anew at every step; None takes all
            labels. Only the rows of loadings and biases that a step looks at then move in it.
        label_sampling: what makes a label likely to be drawn, see `LabelSampler`; or "pair": the rows of a step are of
            one class, which is compared with one other, see `ClassPairSampler`.
        seed: decides the order of the rows and the sampled labels.
        patience: stop after so many epochs without a better validation score; None never stops early.
        time_budget: seconds to plan for, or None.
        checkpoint_seconds: seconds between checkpoints.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    optimizer: Literal["natural", "adam"] = "natural"
    natural_step: float = 0.05
    kl_weight: float = 1.0
    n_draws: int = 1
    frequencies_from: float = 0.0
    hyperparameters_from: float = 0.0
    n_sampled_labels: int | None = None
    label_sampling: ClassSampling = "frequency"
    seed: int = 0
    patience: int | None = None
    time_budget: float | None = None
    checkpoint_seconds: float = 20.0


def train(
    model: VariationalModel | SequenceModel,
    x: Matrix,
    y: scipy.sparse.csr_matrix,
    settings: TrainingSettings,
    *,
    reporter: Reporter,
    lengths: NDArray[np.int64] | None = None,
    mean_logits: NDArray[np.float32] | None = None,
    validate: Callable[[], float] | None = None,
    score_name: str = "P@1",
    checkpoint: str | Path | None = None,
    fingerprint: str = "",
) -> list[dict[str, float]]:
    """Train in place.

    A run with a `checkpoint` that exists goes on from it, and ends at the same parameters as one never interrupted.

    Args:
        model: the model, on the device and in the dtype to train in.
        x: inputs, N x D.
        y: labels that are 1, N x K.
        settings: how.
        reporter: told of every step and epoch.
        lengths: of the S sequences that the rows are, one after the other: batches are then of sequences, and
            `batch_size` is their number.
        mean_logits: of a model with a mean function, what that function scales at every row, N x K: as `initialise`
            returns it.
        validate: score of the current parameters, higher is better; with it the best epoch's parameters are kept.
        score_name: what that score is called in records.
        checkpoint: file to save progress to and to resume from.
        fingerprint: identifies data and settings, so that a checkpoint of another run is refused.

    Returns:
        One record per epoch: epoch, elbo (full data, mean over the epoch's batches; an unbiased estimate where labels
        are sampled), kl, learning_rate, seconds and, with `validate`, the score, as validation_P@1 say.

    Raises:
        TrainingInterrupted: on Ctrl-C, after the step and the checkpoint are complete.
        TrainingDivergedError: the bound is no longer finite.
        ModelFormatError: the checkpoint is damaged or belongs to another run.
    """
    return _Run(
        model, x, y, settings, reporter, lengths, mean_logits, validate, score_name, checkpoint, fingerprint
    ).run()


class _Run:
    def __init__(
        self,
        model: VariationalModel | SequenceModel,
        x: Matrix,
        y: scipy.sparse.csr_matrix,
        settings: TrainingSettings,
        reporter: Reporter,
        lengths: NDArray[np.int64] | None,
        mean_logits: NDArray[np.float32] | None,
        validate: Callable[[], float] | None,
        score_name: str,
        checkpoint: str | Path | None,
        fingerprint: str,
    ) -> None:
        self.model, self.x, self.y, self.settings = model, x, y, settings
        self.reporter, self.mean_logits, self.validate = reporter, mean_logits, validate
        self.lengths = lengths
        self.ends = None if lengths is None else np.cumsum(lengths)
        self.n_units = x.shape[0] if lengths is None else len(lengths)
        self.score_name, self.checkpoint, self.fingerprint = score_name, checkpoint, fingerprint
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.sampler = _sampler(y, settings)
        self.pairs = (
            ClassPairSampler(y, settings.batch_size, seed=settings.seed) if settings.label_sampling == "pair" else None
        )
        sampled = self.sampler is not None or self.pairs is not None
        by_rows = {parameter for parameter in model.mixing.parameters() if sampled and parameter.requires_grad}
        if scipy.sparse.issparse(x):
            by_rows |= set(_reducers(model))
        natural = _natural_posteriors(model) if settings.optimizer == "natural" else []
        by_nature = {parameter for posterior in natural for parameter in posterior.natural_parameters()}
        narrow = [parameter for parameter in self.parameters if parameter not in by_rows | by_nature]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam([{"params": [parameter]} for parameter in narrow], lr=settings.learning_rate, fused=True)
        ]
        if by_rows:
            wide = [{"params": [parameter]} for parameter in self.parameters if parameter in by_rows]
            self.optimizers.append(RowAdam(wide, settings.learning_rate))
        if natural:
            self.optimizers.append(NaturalGradient(natural, scale=x.shape[0]))
        self.steps_per_epoch = batches_per_epoch(self.n_units, settings.batch_size)
        self.later = _moving_later(model, settings)
        self.best: dict[str, Tensor] = {}
        self.last_kl = math.nan

    def run(self) -> list[dict[str, float]]:
        if self.checkpoint is not None and Path(self.checkpoint).exists():
            self.progress, self.best = load_checkpoint(
                self.checkpoint, model=self.model, optimizers=self.optimizers, fingerprint=self.fingerprint
            )
        else:
            self.progress = Progress(
                step=0,
                total_steps=self._planned_steps(),
                step_scales=_step_scales(self.model, self.parameters, self.settings),
            )
        self.scales = dict(zip(self.parameters, self.progress.step_scales, strict=True))
        self.started = self.saved_at = time.monotonic()
        self.seconds_before = self.progress.seconds
        try:
            with GracefulInterrupt() as interrupt:
                self._epochs(interrupt)
        finally:
            self.reporter.close()
        if self.best:
            copy_state(self.model, self.best, source="best parameters")
        return self.progress.history

    def _planned_steps(self) -> int:
        steps = self.settings.epochs * self.steps_per_epoch
        if self.settings.time_budget is None:
            return steps
        # Some of the budget is left for validation and for a machine that slows down.
        affordable = 0.85 * self.settings.time_budget / self._seconds_per_step()
        return max(1, min(steps, int(affordable)))

    def _seconds_per_step(self) -> float:
        """Measured on gradients that are thrown away, and so is what the likelihood has stored of rows meanwhile."""
        state = {name: tensor.clone() for name, tensor in self.model.likelihood.state_dict().items()}
        batches = epoch_batches(self.n_units, self.settings.batch_size, seed=self.settings.seed, epoch=0)
        seconds = []
        for batch in [batches[0], *batches[:4]]:
            started = time.monotonic()
            self._gradients(batch, step=0, n_draws=self.settings.n_draws)
            seconds.append(time.monotonic() - started)
        self._forget_gradients()
        self.model.likelihood.load_state_dict(state)
        return 1.2 * float(np.median(seconds[1:]))

    def _epochs(self, interrupt: GracefulInterrupt) -> None:
        progress = self.progress
        while progress.step < progress.total_steps and not self._stopped():
            epoch, first = divmod(progress.step, self.steps_per_epoch)
            batches = epoch_batches(self.n_units, self.settings.batch_size, seed=self.settings.seed, epoch=epoch)
            for batch in batches[first:]:
                self._step(batch)
                done = progress.step == progress.total_steps or self._out_of_time()
                if done or progress.step == (epoch + 1) * self.steps_per_epoch:
                    self._end_epoch(epoch)
                if interrupt.requested:
                    self._save()
                    raise TrainingInterrupted(None if self.checkpoint is None else str(self.checkpoint))
                if time.monotonic() - self.saved_at > self.settings.checkpoint_seconds:
                    self._save()
                if done:
                    return

    def _stopped(self) -> bool:
        """Whether patience has run out."""
        progress, patience = self.progress, self.settings.patience
        return patience is not None and len(progress.history) - 1 - progress.best_epoch >= patience

    def _out_of_time(self) -> bool:
        budget = self.settings.time_budget
        return budget is not None and self._seconds() > budget

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _gradients(self, units: NDArray[np.int64], *, step: int, n_draws: int) -> ELBO:
        """Leave the objective's gradient in the parameters, in those of the mixing row-sparse if labels are sampled."""
        like = self.parameters[0]
        pair = None if self.pairs is None else self.pairs.draw(step)
        rows = self._rows(units) if pair is None else pair.rows
        x = row_block(self.x, rows, dtype=like.dtype, device=like.device)
        logits = None if self.mean_logits is None else torch.from_numpy(self.mean_logits[rows]).to(like)
        lengths = None if self.lengths is None else torch.from_numpy(self.lengths[units]).to(like.device)
        numbers = torch.from_numpy(rows).to(like.device)
        context = BatchContext(x, numbers, self.settings.seed + step, lengths, n_draws)
        if pair is not None:
            batch = pair.batch(self.y.shape[1], dtype=like.dtype, device=like.device)
        elif self.sampler is not None:
            batch = self.sampler.batch(self.y[rows], self.sampler.draw(step), dtype=like.dtype, device=like.device)
        else:
            y = SparseRows.from_scipy(self.y[rows], dtype=like.dtype, device=like.device)
            # A sequence stands for others whatever its length.
            n_rows = None if lengths is None else self.n_units / len(units) * len(rows)
            return self._backward(self.model.elbo, x, y, mean_logits=logits, context=context, n_rows=n_rows)
        assert isinstance(self.model, VariationalModel)
        model = self.model.restricted(batch.labels, partial=pair is not None)
        logits = None if logits is None else logits.index_select(1, batch.labels)
        bound = partial(model.elbo, label_weights=batch.weights)
        n_rows = None if pair is None else pair.n_rows
        elbo = self._backward(bound, x, batch.y, mean_logits=logits, context=context, n_rows=n_rows)
        for whole, part in zip(self.model.mixing.parameters(), model.mixing.parameters(), strict=True):
            if part.grad is not None:
                whole.grad = torch.sparse_coo_tensor(
                    batch.labels[None], part.grad, whole.shape, is_coalesced=True, check_invariants=False
                )
        return elbo

    def _rows(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.lengths is None or self.ends is None:
            return units
        lengths = self.lengths[units]
        first = np.repeat(self.ends[units] - lengths, lengths)
        within = np.arange(len(first)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return np.asarray(first + within)

    def _backward(
        self,
        bound: Callable[..., ELBO],
        x: Inputs,
        y: SparseRows,
        *,
        mean_logits: Tensor | None,
        context: BatchContext,
        n_rows: float | None = None,
    ) -> ELBO:
        total = self.x.shape[0]
        try:
            elbo = bound(x, y, n_rows=n_rows or total, mean_logits=mean_logits, context=context)
        except NotPositiveDefiniteError as error:
            raise TrainingDivergedError(str(error)) from error
        self._forget_gradients()
        (-elbo.tempered(self.settings.kl_weight) / total).backward()
        return elbo

    def _forget_gradients(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _step(self, units: NDArray[np.int64]) -> None:
        progress = self.progress
        rate, share = self._learning_rate(), progress.step / progress.total_steps
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                parameter = group["params"][0]
                still = share < self.later.get(parameter, 0.0)
                group["lr"] = 0.0 if still else rate * self.scales[parameter]
        n_draws = self.settings.n_draws if share >= 0.5 else 1
        elbo = self._gradients(units, step=progress.step, n_draws=n_draws)
        bound = float(elbo.bound.detach())
        if not math.isfinite(bound):
            raise TrainingDivergedError(
                f"the bound is {bound} at step {progress.step}: lower learning_rate "
                f"(now {self.settings.learning_rate:g}), or scale the features"
            )
        for optimizer in self.optimizers:
            optimizer.step()
        self.model.latents.project()
        self.last_kl = float(elbo.kl.detach())
        progress.step += 1
        progress.bound_sum += bound
        self.reporter.step(progress.step, progress.total_steps, bound / self.x.shape[0])

    def _learning_rate(self) -> float:
        return self.settings.learning_rate * one_cycle(self.progress.step / self.progress.total_steps)

    def _end_epoch(self, epoch: int) -> None:
        progress = self.progress
        steps = progress.step - epoch * self.steps_per_epoch
        record = {
            "epoch": epoch + 1.0,
            "elbo": progress.bound_sum / steps,
            "kl": self.last_kl,
            "learning_rate": self._learning_rate(),
            "seconds": self._seconds(),
        }
        progress.bound_sum = 0.0
        if self.validate is not None:
            record[f"validation_{self.score_name}"] = score = self.validate()
            if progress.best_score is None or score > progress.best_score:
                progress.best_score, progress.best_epoch = score, epoch
                self.best = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        progress.history.append(record)
        self.reporter.epoch(record)

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        self.progress.seconds = self._seconds()
        save_checkpoint(
            self.checkpoint,
            model=self.model,
            optimizers=self.optimizers,
            best=self.best,
            progress=self.progress,
            fingerprint=self.fingerprint,
        )
        self.saved_at = time.monotonic()


def _sampler(y: scipy.sparse.csr_matrix, settings: TrainingSettings) -> LabelSampler | None:
    if settings.n_sampled_labels is None or settings.label_sampling == "pair":
        return None
    counts = np.bincount(y.indices, minlength=y.shape[1])
    return LabelSampler(counts, settings.n_sampled_labels, settings.label_sampling, seed=settings.seed)


def _reducers(model: nn.Module) -> list[nn.Parameter]:
    """Parameters whose gradients are sparse in rows where inputs are sparse."""
    modules = [module for module in model.modules() if isinstance(module, DeepRandomFeatures)]
    return [module.reducer for module in modules if module.reducer is not None]


def _moving_later(model: nn.Module, settings: TrainingSettings) -> dict[Tensor, float]:
    """From which share of the steps on parameters move, of those that keep still at first."""
    later: dict[Tensor, float] = {}
    for module in model.modules():
        if isinstance(module, RandomFeatures):
            later |= dict.fromkeys((module.log_weights, module.log_amplitude), settings.hyperparameters_from)
            if module.q_mean is not None:
                later |= dict.fromkeys((module.q_mean, module.log_ratio), settings.frequencies_from)
    return later


def _natural_posteriors(model: nn.Module) -> list[Posterior]:
    posteriors = [module for module in model.modules() if isinstance(module, Posterior)]
    return [posterior for posterior in posteriors if posterior.natural_parameters()]


def _step_scales(
    model: VariationalModel | SequenceModel, parameters: Sequence[Tensor], settings: TrainingSettings
) -> list[float]:
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
        for posterior in _natural_posteriors(model):
            scales |= dict.fromkeys(posterior.natural_parameters(), settings.natural_step / settings.learning_rate)
    return [scales.get(parameter, 1.0) for parameter in parameters]
