"""Options, files and tables that several commands share."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from extremegp.errors import DataError, SettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from extremegp.data import Dataset, TextDataset
    from extremegp.estimators import MultiLabelGPClassifier

FormatName: TypeAlias = Literal["auto", "xc", "svmlight", "jsonl"]

FormatOption = Annotated[
    FormatName,
    typer.Option(
        "--format",
        help="Format of the data: 'xc' (a header 'N D K', then rows 'l1,l2 f:v f:v', counted from 0), 'svmlight' (such "
        "rows without header; features count from 1 unless a feature 0 occurs) or 'jsonl' (lines like "
        '{"text": "...", "labels": ["a"]}); \'auto\' looks at the suffix and the first line. Files may be compressed '
        "(.gz, .bz2, .xz, .zst).",
    ),
]
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
        from extremegp.data._files import atomic_writer

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


def load_model(folder: Path) -> MultiLabelGPClassifier:
    """The model in a folder.

    Raises:
        ModelFormatError: it is no intact model of this version.
    """
    from extremegp.errors import ModelFormatError
    from extremegp.estimators import MultiLabelGPClassifier, load

    model = load(folder)
    if not isinstance(model, MultiLabelGPClassifier):
        raise ModelFormatError(f"{folder}: a {type(model).__name__}, which this command cannot use")
    return model


def read_for(
    model: MultiLabelGPClassifier, path: Path, format: FormatName, *, labels: bool
) -> tuple[Any, Any, Dataset | TextDataset]:
    """Data for a trained model: inputs that it accepts, labels or None, and the data as read.

    Args:
        model: the model.
        path: the file.
        format: its format.
        labels: whether its labels will be used.

    Raises:
        DataError: the file cannot be read, or is not for this model; names the file.
    """
    from extremegp.data import TextDataset, read_dataset, recognise_format

    settings, kind = model.settings_, model.features_.kind
    if format == "auto":
        format = recognise_format(path)
    if (format == "jsonl") != (kind == "text"):
        wanted = "texts (jsonl)" if kind == "text" else "feature vectors (xc or svmlight)"
        raise DataError(f"holds {format} data, but the model was trained on {wanted}", path=path)
    svmlight = format == "svmlight"
    data = read_dataset(
        path,
        format,
        n_features=settings.n_features if svmlight else None,
        n_labels=settings.n_labels if svmlight and labels else None,
    )
    if isinstance(data, TextDataset):
        return data.texts, data.labels, data
    for what, found, wanted_size in (
        ("features", data.X.shape[1], settings.n_features),
        ("labels", data.Y.shape[1] if labels else settings.n_labels, settings.n_labels),
    ):
        if found != wanted_size:
            raise DataError(f"has {found} {what}, but the model has {wanted_size}", path=path)
    return data.X, data.Y, data


def label_names(model: MultiLabelGPClassifier) -> list[str]:
    """The K names of the labels; their numbers where they have none."""
    return [str(name) for name in model.classes_]


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
