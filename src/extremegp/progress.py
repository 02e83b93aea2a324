"""The one progress bar, of training and of the command line."""

from __future__ import annotations

import importlib
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from html import escape
from typing import IO, Any

from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.text import Text

_SLOW_STEPS = 3  # the first, which compile and warm up
_LEAST_STEPS, _LEAST_SECONDS = 4, 1.0
_SMOOTHING_SECONDS = 4.0
_NARROWEST_BAR, _WIDEST_BAR = 5, 40
_PAINT_SECONDS = 0.25


class TimeLeft:
    """How long work will still take, from how fast it went in the later half of the time that it has taken.

    The first steps do not count, and there is no answer before enough others are done; after that answers change
    smoothly.
    """

    def __init__(self) -> None:
        self._n_seen = 0
        self._marks: deque[tuple[float, float]] = deque()
        self._started = 0.0
        self._end: float | None = None
        self._asked = 0.0

    def observe(self, now: float, done: float) -> None:
        """Look at the work at a moment, in seconds on any clock."""
        self._n_seen += 1
        if self._n_seen <= _SLOW_STEPS:
            self._marks.clear()
            self._started = now
        self._marks.append((now, done))
        middle = (self._started + now) / 2
        while len(self._marks) > _LEAST_STEPS + 1 and self._marks[1][0] <= middle:
            self._marks.popleft()

    def seconds(self, total: float) -> float | None:
        """Until so much is done; None before there is a basis for an answer."""
        if len(self._marks) <= _LEAST_STEPS or self._marks[-1][0] - self._started < _LEAST_SECONDS:
            return None
        (start, before), (now, done) = self._marks[0], self._marks[-1]
        if done <= before:
            return None
        end = now + (now - start) / (done - before) * max(0.0, total - done)
        if self._end is not None:
            share = min(1.0, (now - self._asked) / _SMOOTHING_SECONDS)
            end = self._end + share * (end - self._end)
        self._end, self._asked = end, now
        return max(0.0, end - now)


def spoken(seconds: float) -> str:
    """A time as people say it: 0.3 s, 8 s, 3 min 20 s, 1 h 20 min, 2 d 5 h."""
    if 0 < seconds < 1:
        return f"{seconds:.1g} s"
    whole = round(seconds)
    for unit, name, below, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        # Seconds beside many minutes would be more than anyone knows.
        rounded = round(whole / 60) * 60 if whole >= 600 else whole
        if rounded >= unit:
            rest = rounded % unit // below
            return f"{rounded // unit} {name} {rest} {part}" if rest else f"{rounded // unit} {name}"
    return f"{whole} s"


class ProgressBar:
    """A bar on a terminal or in a notebook, or a line every `interval` seconds elsewhere; nothing before `patience`.

    Args:
        stream: where to write; standard error, or the output of a notebook's cell, by default.
        patience: seconds to stay silent at first, so that short work prints nothing.
        interval: seconds between lines where there is no terminal.
        quiet: show nothing at all.
    """

    def __init__(
        self, stream: IO[str] | None = None, *, patience: float = 2.0, interval: float = 10.0, quiet: bool = False
    ) -> None:
        self.console = Console(file=stream or sys.stderr, force_jupyter=None if stream is None else False)
        self._patience, self._interval, self._quiet = patience, interval, quiet
        self._bar: _Bar | None = None
        self._begin()

    def _begin(self) -> None:
        self._start = self._last_line = time.monotonic()
        self._first: tuple[float, float] | None = None
        self._left = TimeLeft()

    def restart(self) -> None:
        """Go on with other work: the time left is of what follows."""
        self.close()
        self._begin()

    def show(
        self,
        name: str,
        done: float,
        total: float,
        line: str,
        text: str = "",
        *,
        until: float | None = None,
        limit: float | None = None,
    ) -> None:
        """How far the work is.

        Args:
            name: what is being done.
            done: how much of it.
            total: how much there is in all.
            line: what a line says before the time.
            text: what the bar says beside the name, parts with two blanks between.
            until: how much will be done, where that is less than all.
            limit: seconds that the work may take, since it was first shown.
        """
        now = time.monotonic()
        self._left.observe(now, done)
        self._first = self._first or (now, done)
        if self._quiet or not done or now - self._start < self._patience:
            return
        drawn = self.console.is_terminal or self.console.is_jupyter
        if not drawn and (done <= self._first[1] or now - self._last_line < self._interval):
            return
        self._last_line = now
        left = self._left.seconds(total if until is None else until)
        if left is not None and limit is not None:
            left = min(left, max(0.0, self._first[0] + limit - now))
        elapsed = now - self._start
        if drawn:
            self._draw(name, done / total, text, elapsed, left)
        else:
            self.say(line + _times(elapsed, left)[-1])

    def _draw(self, name: str, share: float, text: str, elapsed: float, left: float | None) -> None:
        if self._bar is None:
            self._bar = _NotebookBar() if self.console.is_jupyter else _TerminalBar(self.console)
        self._bar.update(_Line(name, share, text, _times(elapsed, left)))

    def say(self, text: str) -> None:
        """A line of text, above the bar if there is one."""
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _times(elapsed: float, left: float | None) -> tuple[str, ...]:
    """The same in full, and shorter."""
    so_far = f"{spoken(elapsed)} so far"
    if left is None:
        return (so_far,)
    return f"{so_far}, {spoken(left)} left", f"{spoken(left)} left"


class _Line:
    """A bar with its texts, laid out for any width down to 40 columns."""

    def __init__(self, name: str, share: float, text: str, times: tuple[str, ...]) -> None:
        self.name, self.share, self.times = name, min(1.0, max(0.0, share)), times
        self.parts = text.split("  ") if text else []

    def laid_out(self, width: int) -> tuple[str, int, str]:
        """What stands before the bar, the bar's width, and what stands after it."""
        # What matters least goes first: the time so far, then texts from the last on.
        choices = [(self.times[0], self.parts)] + [
            (self.times[-1], self.parts[:n]) for n in range(len(self.parts), -1, -1)
        ]
        for times, parts in choices:
            after = "  ".join([f"{100 * self.share:3.0f} %", *parts, times])
            room = width - len(self.name) - len(after) - 2
            if room >= _NARROWEST_BAR:
                return self.name, min(room, _WIDEST_BAR), after
        return self.name[: max(0, width - len(after) - 1)], 0, after

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        before, width, after = self.laid_out(options.max_width)
        full, empty = ("#", "-") if options.ascii_only or options.legacy_windows else ("━", "─")
        n_full = round(self.share * width)
        line = Text(f"{before} ", no_wrap=True, overflow="crop")
        if width:
            line.append(full * n_full, "bar.complete").append(empty * (width - n_full), "bar.back").append(" ")
        yield line.append(after)

    def __str__(self) -> str:
        return "  ".join([self.name, f"{100 * self.share:.0f} %", *self.parts, self.times[0]])


class _Bar(ABC):
    @abstractmethod
    def update(self, line: _Line) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class _TerminalBar(_Bar):
    """Drawn over and over on the last line of a terminal, and gone at the end."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, transient=True, refresh_per_second=1 / _PAINT_SECONDS)
        self._live.start()

    def update(self, line: _Line) -> None:
        self._live.update(line)

    def close(self) -> None:
        self._live.stop()


class _NotebookBar(_Bar):
    """One output of a notebook's cell that changes; it needs no widgets, and keeps its last state."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._painted, self._line = 0.0, None

    _line: _Line | None

    def update(self, line: _Line) -> None:
        self._line = line
        if time.monotonic() - self._painted >= _PAINT_SECONDS:
            self._paint()

    def close(self) -> None:
        self._paint()

    def _paint(self) -> None:
        # Not a dependency: whoever has a notebook has it.
        display: Any = importlib.import_module("IPython.display").display
        line, self._painted = self._line, time.monotonic()
        if line is None:
            return
        bar = f'<progress value="{line.share:.4f}" max="1" style="width: 16em"></progress>'
        after = escape(str(line).removeprefix(line.name))
        shown = {"text/plain": str(line), "text/html": f"{escape(line.name)} {bar}{after}"}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)
