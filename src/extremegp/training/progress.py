"""What a person sees while a model trains."""

from __future__ import annotations

import math
from typing import IO, Protocol, runtime_checkable

from extremegp.progress import ProgressBar


@runtime_checkable
class Reporter(Protocol):
    """Told how training goes on."""

    def step(self, step: int, total_steps: int, elbo: float) -> None:
        """After every optimiser step; `elbo` is per row."""

    def epoch(self, record: dict[str, float]) -> None:
        """After every epoch: epoch, elbo, kl, learning_rate, seconds and, where there is one, a validation score."""

    def phase(self, name: str) -> None:
        """Before a part of the work that takes seconds and has no steps."""

    def note(self, text: str) -> None:
        """What a person should know about the run, in a line."""

    def work(self, name: str, share: float) -> None:
        """During a part of the work that is not made of optimiser steps: which share of it, in [0, 1], is done."""

    def close(self) -> None:
        """At the end, however training ended."""


class NoReporter:
    """Silence."""

    def step(self, step: int, total_steps: int, elbo: float) -> None: ...

    def epoch(self, record: dict[str, float]) -> None: ...

    def phase(self, name: str) -> None: ...

    def note(self, text: str) -> None: ...

    def work(self, name: str, share: float) -> None: ...

    def close(self) -> None: ...


class ProgressReporter:
    """Training on a progress bar: `ProgressBar` has the first arguments.

    Args:
        stream: where to write.
        patience: seconds to stay silent at first.
        interval: seconds between lines where there is no terminal.
        time_budget: seconds that training has, if there is a limit.
        early_stopping: epochs without a better validation score that end training, if any do.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        *,
        patience: float = 2.0,
        interval: float = 10.0,
        time_budget: float | None = None,
        early_stopping: int | None = None,
    ) -> None:
        self._bar = ProgressBar(stream, patience=patience, interval=interval)
        self._smooth_elbo = math.nan
        self._validation = ""
        self._time_budget, self._early_stopping = time_budget, early_stopping
        self._step = 0
        self._best: tuple[float, float] | None = None
        self._until: float | None = None

    def step(self, step: int, total_steps: int, elbo: float) -> None:
        self._step = step
        self._smooth_elbo = elbo if math.isnan(self._smooth_elbo) else 0.95 * self._smooth_elbo + 0.05 * elbo
        text = f"ELBO/row {self._smooth_elbo:.3f}{self._validation}"
        self._bar.show(
            "training",
            step,
            total_steps,
            f"training {100 * step / total_steps:3.0f} %  {text}  ",
            text,
            until=None if self._until is None else min(total_steps, self._until),
            limit=self._time_budget,
        )

    def work(self, name: str, share: float) -> None:
        self._bar.show(name, share, 1.0, f"{name} {100 * share:3.0f} %  ")

    def epoch(self, record: dict[str, float]) -> None:
        for name, value in record.items():
            if name.startswith("validation_"):
                self._validation = f"  {name.replace('_', ' ')} {100 * value:.2f}"
                self._foresee(record["epoch"], value)

    def _foresee(self, epoch: float, score: float) -> None:
        """Until which step training goes if the validation score never gets better."""
        if self._early_stopping is None:
            return
        if self._best is None or score > self._best[1]:
            self._best = epoch, score
        self._until = (self._best[0] + self._early_stopping) * self._step / epoch

    def phase(self, name: str) -> None:
        self.note(f"{name} ...")

    def note(self, text: str) -> None:
        self._bar.say(text)

    def close(self) -> None:
        self._bar.close()
