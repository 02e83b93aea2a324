"""What commands show and write: tables, lines, JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremegp._lazy import importing
from extremegp.errors import DataError, SettingsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

_PICTURES = (".png", ".svg", ".pdf")


class Report:
    """Where a command's result goes: tables to standard output, or JSON, or both.

    Args:
        json_to: a file, "-" for standard output, or None.
        quiet: show no tables.

    Raises:
        DataError: the file could not be written at the end.
    """

    def __init__(self, json_to: str | None, quiet: bool) -> None:
        self._started = time.monotonic()
        self._json_to = json_to
        self.shows = not quiet and json_to != "-"
        if json_to not in (None, "-"):
            check_output(Path(str(json_to)))

    @property
    def console(self) -> Console:
        from rich.console import Console

        return Console(quiet=not self.shows, highlight=False)

    @property
    def seconds(self) -> float:
        """Since the command started."""
        return time.monotonic() - self._started

    def table(self, title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
        """Show a table: the first column as text, the others as numbers."""
        from rich import box
        from rich.markup import escape
        from rich.table import Table

        # Not as the table's own title, which would be wrapped to the width of the table.
        self.console.print(f"[bold]{escape(title)}[/bold]", soft_wrap=True)
        table = Table(box=box.SIMPLE_HEAD)
        for i, column in enumerate(columns):
            table.add_column(escape(column), justify="left" if i == 0 else "right", overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        self.console.print(table)

    def lines(self, *lines: str) -> None:
        """Show lines of text."""
        for line in lines:
            self.console.print(line, markup=False, soft_wrap=True)

    def result(self, result: dict[str, Any]) -> None:
        """Write the JSON, if it was asked for."""
        if self._json_to is None:
            return
        text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        if self._json_to == "-":
            sys.stdout.write(text if _can_write(text) else json.dumps(result, indent=2, allow_nan=False) + "\n")
            return
        from extremegp.storage.streams import atomic_writer

        with atomic_writer(self._json_to) as stream:
            stream.write(text.encode())


def _can_write(text: str) -> bool:
    """Whether standard output has all characters of a text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def load_libraries(quiet: bool) -> None:
    """Import what computes: it takes seconds, in which a person at a terminal is told so."""
    from rich.console import Console

    console = Console(stderr=True)
    told = console.status("loading PyTorch") if console.is_terminal and not quiet else nullcontext()
    with nullcontext() if "torch" in sys.modules else told, importing():
        import extremegp.estimators  # noqa: F401


def check_input(path: Path) -> None:
    """Fail now rather than after a model was loaded where there is no data.

    Raises:
        DataError: there is no such file.
    """
    if str(path) != "-" and not path.exists():
        raise DataError("no such file; check the path", path=path)


def check_output(path: Path) -> None:
    """Fail now rather than after the work where a file cannot be written.

    Raises:
        DataError: the file cannot be written.
    """
    if path.is_dir():
        raise DataError("is a directory; name a file", path=path)
    if not path.parent.is_dir():
        raise DataError(f"cannot be written: there is no folder {path.parent}", path=path)
    if not os.access(path.parent, os.W_OK):
        raise DataError(f"cannot be written: no permission to write in {path.parent}", path=path)


def percent(fraction: float) -> str:
    """A fraction as the percentage of the papers' tables."""
    return f"{100 * fraction:.2f}"


def check_plot(path: Path | None) -> None:
    """Refuse a picture that could not be drawn, before the work."""
    if path is None:
        return
    if path.suffix.lower() not in _PICTURES:
        raise SettingsError(f"--plot must end in {', '.join(_PICTURES)}; it is {path}")
    if importlib.util.find_spec("matplotlib") is None:
        raise SettingsError("--plot needs Matplotlib: pip install 'extremegp[plot]'")


def write_plot(path: Path, figure: Figure) -> None:
    """Write a picture in the format of the suffix."""
    from extremegp.storage.streams import atomic_writer

    with atomic_writer(path) as stream:
        figure.savefig(stream, format=path.suffix[1:].lower(), dpi=150)
