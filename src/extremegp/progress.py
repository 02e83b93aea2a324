"""The one progress bar, of training and of the command line."""

from __future__ import annotations

import sys
import time
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class ProgressBar:
    """A bar on a terminal, or a line every `interval` seconds elsewhere; nothing before `patience` seconds.

    Args:
        stream: where to write; standard error by default.
        patience: seconds to stay silent at first, so that short work prints nothing.
        interval: seconds between lines where there is no terminal.
        quiet: show nothing at all.
    """

    def __init__(
        self, stream: IO[str] | None = None, *, patience: float = 2.0, interval: float = 10.0, quiet: bool = False
    ) -> None:
        self.console = Console(file=stream or sys.stderr)
        self._patience, self._interval, self._quiet = patience, interval, quiet
        self._start = self._last_line = time.monotonic()
        self._first = 0.0
        self._bar: Progress | None = None

    def restart(self, first: float) -> None:
        """Go on with other work, of which `first` is done already: the time left is of what follows."""
        self.close()
        self._start = self._last_line = time.monotonic()
        self._first = first

    def show(self, name: str, done: float, total: float, line: str, text: str = "") -> None:
        """How far the work is.

        Args:
            name: what is being done.
            done: how much of it.
            total: how much there is in all.
            line: what a line says before the time that is left.
            text: what the bar says beside the name.
        """
        now = time.monotonic()
        if self._quiet or not done or now - self._start < self._patience:
            return
        if self.console.is_terminal:
            self._show_bar(name, done, total, text)
        elif done > self._first and now - self._last_line >= self._interval:
            self._last_line = now
            left = (now - self._start) / (done - self._first) * (total - done)
            self.say(f"{line}{left:.0f} s left")

    def _show_bar(self, name: str, done: float, total: float, text: str) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self._bar.add_task(name, total=total, text="")
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=name, completed=done, total=total, text=text)

    def say(self, text: str) -> None:
        """A line of text, above the bar if there is one."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
