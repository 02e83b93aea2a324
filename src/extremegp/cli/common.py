"""Options, results and small helpers that several commands share."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from extremegp.errors import DataError, SettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from extremegp.estimators import MultiClassGPClassifier, MultiLabelGPClassifier, SequenceGPClassifier

    Classifier: TypeAlias = MultiLabelGPClassifier | MultiClassGPClassifier | SequenceGPClassifier

JsonOption = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON to a file; '-' is standard output, alone."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show only errors and warnings.")]
ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a model that `train` wrote.")]

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


class Report:
    """Where a command's result goes: tables to standard output, or JSON, or both.

    Args:
        json_to: a file, "-" for standard output, or None.
        quiet: show no tables.

    Raises:
        DataError: the file could not be written at the end.
    """

    def __init__(self, json_to: str | None, quiet: bool) -> None:
        self._json_to = json_to
        self.shows = not quiet and json_to != "-"
        if json_to not in (None, "-"):
            check_output(Path(str(json_to)))

    @property
    def console(self) -> Console:
        from rich.console import Console

        return Console(quiet=not self.shows, highlight=False)

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
            sys.stdout.write(text)
            return
        from extremegp.storage.streams import atomic_writer

        with atomic_writer(self._json_to) as stream:
            stream.write(text.encode())


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


def duration(text: str) -> float:
    """Seconds of "90s", "10m", "1h30m" or a plain number of seconds.

    Raises:
        SettingsError: none of these, or not positive.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    try:
        if match and any(match.groups()):
            hours, minutes, seconds = (float(part or 0) for part in match.groups())
            value = 3600 * hours + 60 * minutes + seconds
        else:
            value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise SettingsError(f"--time-budget must be a time such as 90s, 10m, 1h30m or 600 (seconds); it is {text!r}")
    return value


def load_model(folder: Path) -> Classifier:
    """The model in a folder.

    Raises:
        ModelFormatError: it is no intact model of this version.
    """
    from extremegp.errors import ModelFormatError
    from extremegp.estimators import MultiClassGPClassifier, MultiLabelGPClassifier, SequenceGPClassifier, load

    model = load(folder)
    if not isinstance(model, (MultiLabelGPClassifier, MultiClassGPClassifier, SequenceGPClassifier)):
        raise ModelFormatError(f"{folder}: a {type(model).__name__}, which this command cannot use")
    return model


def label_names(model: Classifier) -> list[str]:
    """The K names of the labels or classes; their numbers where they have none."""
    return [str(name) for name in model.classes_]


def only_for_labels(options: dict[str, Any], model: Path) -> None:
    """Refuse options that a model of one class per row has no use for.

    Raises:
        SettingsError: one was given.
    """
    for option, value in options.items():
        if value is not None:
            raise SettingsError(f"{option} is for many labels per row, but {model} is for one class per row")


class Words(NamedTuple):
    """What things of a model's task are called.

    Attributes:
        score: its score on validation data.
        label: one of what it has K of.
        labels: many of them.
        rows: what has a label each, or labels.
        unit: what the evidence is a sum over.
    """

    score: str
    label: str
    labels: str
    rows: str = "rows"
    unit: str = "row"


def words_for(model: Classifier) -> Words:
    """The words of a model's task."""
    from extremegp.estimators import MultiClassGPClassifier, SequenceGPClassifier

    if isinstance(model, SequenceGPClassifier):
        return Words("accuracy", "label", "labels", "tokens", "sequence")
    classes = isinstance(model, MultiClassGPClassifier)
    return Words("accuracy", "class", "classes") if classes else Words("P@1", "label", "labels")


def percent(fraction: float) -> str:
    """A fraction as the percentage of the papers' tables."""
    return f"{100 * fraction:.2f}"


def one_of(name: str, value: str, options: Iterable[str]) -> str:
    """`value` if it is one of the options.

    Raises:
        SettingsError: it is not; suggests the nearest, or lists all.
    """
    import difflib

    options = list(options)
    if value in options:
        return value
    near = difflib.get_close_matches(value, options, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise SettingsError(f"{name} {value!r} is unknown; {hint}known are {', '.join(options)}")
