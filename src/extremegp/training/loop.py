"""Stochastic maximisation of the bound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.model import VariationalModel
from extremegp.engine.part import parts_of
from extremegp.engine.sparse import Matrix
from extremegp.errors import SettingsError
from extremegp.settings.training import TrainingSettings
from extremegp.storage.tensors import copy_state
from extremegp.threads import CrowdWatch
from extremegp.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from extremegp.training.distributed import ProcessLostError, World
from extremegp.training.distributed import world as launched
from extremegp.training.interrupts import GracefulInterrupt, TrainingInterrupted
from extremegp.training.prefetch import ahead
from extremegp.training.progress import Reporter
from extremegp.training.schedule import batches_per_epoch, epoch_batches, one_cycle
from extremegp.training.shards import Shards, check_alike, check_shareable
from extremegp.training.steps import (
    Step,
    Steps,
    TrainingDivergedError,
    make_optimizers,
    moving_later,
    step_scales,
)


def train(
    model: VariationalModel,
    x: Matrix,
    y: scipy.sparse.csr_matrix,
    settings: TrainingSettings,
    *,
    reporter: Reporter,
    lengths: NDArray[np.int64] | None = None,
    weights: NDArray[np.float64] | None = None,
    mean_logits: NDArray[np.float32] | None = None,
    validate: Callable[[], float] | None = None,
    score_name: str = "P@1",
    checkpoint: str | Path | None = None,
    fingerprint: str = "",
    world: World | None = None,
    judge: Callable[[float, float, float], None] | None = None,
    spent: float = 0.0,
) -> list[dict[str, float]]:
    """Train in place.

    A run with a `checkpoint` that exists goes on from it, and ends at the same parameters as one never interrupted.
    Several processes share the work and end with the whole model each; they need equal arguments, and of the files
    that they name only those of the first process count. Whether there are several makes no difference to the bound
    (but for the noise of what is estimated at draws), and a checkpoint of one run resumes in the other.

    Args:
        model: the model, on the device and in the dtype to train in.
        x: inputs, N x D.
        y: labels that are 1, N x K; soft ones in (0, 1], of classes probabilities that add up to 1.
        settings: how.
        reporter: told of every step and epoch, in every process.
        lengths: of the S sequences that the rows are, one after the other: batches are then of sequences, and
            `batch_size` is their number.
        weights: what the log-likelihood of each of the N rows counts, or of each sequence; None for 1. An integer is
            the same as to repeat the row as often.
        mean_logits: of a model with a mean function, what that function scales at every row, N x K: as
            `VariationalModel.start` returns it.
        validate: score of the current parameters, higher is better; with it the best epoch's parameters are kept.
        score_name: what that score is called in records.
        checkpoint: file to save progress to and to resume from.
        fingerprint: identifies data and settings, so that a checkpoint of another run is refused.
        world: the processes that train together; by default those that `torchrun` started, see `world`.
        judge: told, where there is a time budget, of the share of the steps that it is enough for, of the seconds that
            all would take, and of those that finding out took; it may raise to end training before it begins.
        spent: seconds of the time budget that are gone already.

    Returns:
        One record per epoch: epoch, elbo (full data, mean over the epoch's batches; an unbiased estimate where labels
        are sampled), kl, learning_rate, seconds and, with `validate`, the score, as validation_P@1 say.

    Raises:
        TrainingInterrupted: on Ctrl-C, after the step and the checkpoint are complete. Of several processes, each is
            then left with a model of its own labels, as after the other errors.
        TrainingDivergedError: the bound is no longer finite.
        ModelFormatError: the checkpoint is damaged or belongs to another run.
        SettingsError: several processes cannot share this model or batches this small, or were given other arguments.
        ProcessLostError: another process ended.
    """
    if world is None:
        world = launched(next(model.parameters()).device)
    return _Run(
        model,
        x,
        y,
        settings,
        reporter,
        lengths,
        weights,
        mean_logits,
        validate,
        score_name,
        checkpoint,
        fingerprint,
        world,
        judge,
        spent,
    ).run()


class _Run:
    def __init__(
        self,
        model: VariationalModel,
        x: Matrix,
        y: scipy.sparse.csr_matrix,
        settings: TrainingSettings,
        reporter: Reporter,
        lengths: NDArray[np.int64] | None,
        weights: NDArray[np.float64] | None,
        mean_logits: NDArray[np.float32] | None,
        validate: Callable[[], float] | None,
        score_name: str,
        checkpoint: str | Path | None,
        fingerprint: str,
        world: World,
        judge: Callable[[float, float, float], None] | None,
        spent: float,
    ) -> None:
        self.judge, self.spent = judge, world.most(spent)[0]
        self.n_rows, self.settings, self.world = x.shape[0], settings, world
        self.reporter, self.validate = reporter, validate
        self.score_name, self.checkpoint, self.fingerprint = score_name, checkpoint, fingerprint
        self.n_units = x.shape[0] if lengths is None else len(lengths)
        self.steps_per_epoch = batches_per_epoch(self.n_units, settings.batch_size)
        self._check_world(model)
        self.shards = Shards(model, world)
        self.model = model = self.shards.model
        of_rows: dict[str, Any] = {"lengths": lengths, "weights": weights, "mean_logits": mean_logits}
        self.steps = Steps(x, y, settings, **of_rows, shards=self.shards)
        self.optimizers = make_optimizers(model, settings, n_rows=self.n_rows, sparse_inputs=scipy.sparse.issparse(x))
        self.later = moving_later(model, settings)
        self.best: dict[str, Tensor] = {}
        self.last_kl = math.nan
        self.is_saved = False

    def _check_world(self, model: VariationalModel) -> None:
        """Refuse what several processes cannot do, before they start."""
        if self.world.size == 1:
            return
        check_shareable(model, self.world)
        smallest = self.n_units // self.steps_per_epoch
        if self.settings.label_sampling == "pair" or smallest < self.world.size:
            what = "pairs of classes" if self.settings.label_sampling == "pair" else f"batches of {smallest} rows"
            raise SettingsError(f"{what} cannot be shared out over {self.world.size} processes: start fewer")
        given = self.fingerprint, self.settings, self.score_name, self.checkpoint is None, self.validate is None
        check_alike(self.world, *given)

    def run(self) -> list[dict[str, float]]:
        try:
            self._start()
            with GracefulInterrupt(among_others=self.world.size > 1) as interrupt:
                self._steps(interrupt)
                if self.best:
                    copy_state(self.model, self.best, source="best parameters")
                self.shards.join()
        except ProcessLostError as error:
            raise ProcessLostError(error.reason, checkpoint=str(self.checkpoint) if self.is_saved else None) from error
        finally:
            self.reporter.close()
        return self.progress.history

    def _start(self) -> None:
        path = None if self.checkpoint is None else Path(self.checkpoint)
        self.is_saved = self.world.said_by_first(path is not None and path.exists())
        if path is not None and self.is_saved:
            self.progress, self.best = load_checkpoint(
                path,
                model=self.model,
                optimizers=self.optimizers,
                fingerprint=self.fingerprint,
                shards=self.shards,
                hard=self.steps.hard,
            )
        else:
            scales = step_scales(self.model, self.steps.parameters, self.settings)
            self.progress = Progress(step=0, total_steps=self._planned_steps(), step_scales=scales, seconds=self.spent)
        self.scales = dict(zip(self.steps.parameters, self.progress.step_scales, strict=True))
        self.started = self.saved_at = time.monotonic()
        self.seconds_before = self.progress.seconds

    def _planned_steps(self) -> int:
        steps = self.settings.epochs * self.steps_per_epoch
        if self.settings.time_budget is None:
            return steps
        begun = time.monotonic()
        seconds = self._seconds_per_step()
        # Some of the budget is left for validation and for a machine that slows down.
        affordable = 0.85 * max(0.0, self.settings.time_budget - self.spent) / seconds
        if self.judge is not None:
            self.judge(affordable / steps, seconds * steps, time.monotonic() - begun)
        return max(1, min(steps, int(affordable)))

    def _seconds_per_step(self) -> float:
        """Measured on gradients that are thrown away, and so is what the likelihood has stored of rows meanwhile."""
        state = {name: tensor.clone() for name, tensor in self.model.likelihood.state_dict().items()}
        batches = self._batches(0)
        seconds = []
        for batch in [batches[0], *batches[:4]]:
            started = time.monotonic()
            self.steps.gradients(self.steps.load(batch, 0), n_draws=self.settings.n_draws)
            seconds.append(time.monotonic() - started)
        self.model.zero_grad()
        self.model.likelihood.load_state_dict(state)
        return 1.2 * self.world.most(float(np.median(seconds[1:])))[0]

    def _batches(self, epoch: int) -> list[NDArray[np.int64]]:
        settings = self.settings
        return epoch_batches(
            self.n_units, settings.batch_size, seed=settings.seed, epoch=epoch, block=settings.shuffle_rows
        )

    def _upcoming(self) -> Iterator[tuple[NDArray[np.int64], int]]:
        """The rows or sequences of every step that is left."""
        step, total = self.progress.step, self.progress.total_steps
        while step < total:
            epoch, first = divmod(step, self.steps_per_epoch)
            for units in self._batches(epoch)[first : first + total - step]:
                yield units, step
                step += 1

    def _steps(self, interrupt: GracefulInterrupt) -> None:
        progress = self.progress
        if self._stopped():
            return
        watch = CrowdWatch()
        with closing(ahead(lambda item: self.steps.load(*item), self._upcoming())) as batches:
            for batch in batches:
                self._step(batch)
                watch.look()
                epoch, left = divmod(progress.step, self.steps_per_epoch)
                done = progress.step == progress.total_steps or self._out_of_time()
                if done or not left:
                    self._end_epoch(epoch if left else epoch - 1)
                late = time.monotonic() - self.saved_at > self.settings.checkpoint_seconds
                stop, late = self.world.any(interrupt.requested, late)
                if stop or late:
                    self._save()
                if stop:
                    raise TrainingInterrupted(None if self.checkpoint is None else str(self.checkpoint))
                if done or (not left and self._stopped()):
                    return

    def _stopped(self) -> bool:
        """Whether patience has run out."""
        progress, patience = self.progress, self.settings.patience
        return patience is not None and len(progress.history) - 1 - progress.best_epoch >= patience

    def _out_of_time(self) -> bool:
        budget = self.settings.time_budget
        return budget is not None and self.world.any(self._seconds() > budget)[0]

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _step(self, batch: Step) -> None:
        progress = self.progress
        rate, share = self._learning_rate(), progress.step / progress.total_steps
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                parameter = group["params"][0]
                still = share < self.later.get(parameter, 0.0)
                group["lr"] = 0.0 if still else rate * self.scales[parameter]
        elbo = self.steps.gradients(batch, n_draws=self.settings.n_draws if share >= 0.5 else 1)
        bound = float(elbo.bound.detach())
        if not math.isfinite(bound):
            raise TrainingDivergedError(
                f"the bound is {bound} at step {progress.step}: lower learning_rate "
                f"(now {self.settings.learning_rate:g}), or scale the features"
            )
        for optimizer in self.optimizers:
            optimizer.step()
        for module in (self.model.latents, self.model.mixing):
            for part in parts_of(module):
                part.project()
        self.last_kl = float(elbo.kl.detach())
        progress.step += 1
        progress.bound_sum += bound
        self.reporter.step(progress.step, progress.total_steps, bound / self.n_rows)

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
        self.shards.align()
        if self.validate is not None:
            record[f"validation_{self.score_name}"] = score = self.shards.score(self.validate)
            if progress.best_score is None or score > progress.best_score:
                progress.best_score, progress.best_epoch = score, epoch
                self._keep_best()
        progress.history.append(record)
        self.reporter.epoch(record)

    def _keep_best(self) -> None:
        """In the memory of the best before, if there was one."""
        for name, tensor in self.model.state_dict().items():
            if name in self.best:
                self.best[name].copy_(tensor)
            else:
                self.best[name] = tensor.clone()

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
            shards=self.shards,
            hard=self.steps.hard,
        )
        # A process that ends makes the launcher end the others: not before the file is there.
        self.world.any()
        self.saved_at, self.is_saved = time.monotonic(), True
