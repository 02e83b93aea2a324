"""What a person sees while a model trains."""

from __future__ import annotations

import math
import sys
import time
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn


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
    """A progress bar on a terminal, or a line every `interval` seconds elsewhere; nothing before `patience` seconds.

    Args:
        stream: where to write; standard error by default.
        patience: seconds to stay silent at first, so that short runs print nothing.
        interval: seconds between lines where there is no terminal.
    """

    def __init__(self, stream: TextIO | None = None, *, patience: float = 2.0, interval: float = 10.0) -> None:
        self._console = Console(file=stream or sys.stderr)
        self._start = self._last_line = time.monotonic()
        self._patience, self._interval = patience, interval
        self._bar: Progress | None = None
        self._smooth_elbo = math.nan
        self._validation = ""

    def step(self, step: int, total_steps: int, elbo: float) -> None:
        self._smooth_elbo = elbo if math.isnan(self._smooth_elbo) else 0.95 * self._smooth_elbo + 0.05 * elbo
        now = time.monotonic()
        if now - self._start < self._patience:
            return
        if self._console.is_terminal:
            self._update_bar("training", step, total_steps, f"ELBO/row {self._smooth_elbo:.3f}{self._validation}")
        elif now - self._last_line >= self._interval:
            self._last_line = now
            left = (now - self._start) / step * (total_steps - step)
            self._console.print(
                f"training {100 * step / total_steps:3.0f} %  ELBO/row {self._smooth_elbo:.3f}{self._validation}"
                f"  {left:.0f} s left",
                highlight=False,
            )

    def work(self, name: str, share: float) -> None:
        now = time.monotonic()
        if now - self._start < self._patience or not share:
            return
        if self._console.is_terminal:
            self._update_bar(name, share, 1.0, "")
        elif now - self._last_line >= self._interval:
            self._last_line = now
            left = (now - self._start) / share * (1 - share)
            self.note(f"{name} {100 * share:3.0f} %  {left:.0f} s left")

    def _update_bar(self, name: str, done: float, total: float, text: str) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.add_task(name, total=total, text="")
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=name, completed=done, total=total, text=text)

    def epoch(self, record: dict[str, float]) -> None:
        for name, value in record.items():
            if name.startswith("validation_"):
                self._validation = f"  {name.replace('_', ' ')} {100 * value:.2f}"

    def phase(self, name: str) -> None:
        self.note(f"{name} ...")

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
