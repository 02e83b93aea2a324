"""Rows to annotate in files: CSV, JSON lines, or tasks for Label Studio, with the labels that a model suggests."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from extremegp.__about__ import __version__
from extremegp.cli.pipes import STANDARD
from extremegp.errors import SettingsError

TaskFormat: TypeAlias = Literal["csv", "jsonl", "label-studio"]
_SUFFIXES: dict[str, TaskFormat] = {".csv": "csv", ".jsonl": "jsonl", ".json": "label-studio"}
# Names of the tags, as `extremegp serve` has them.
_CONTROL, _OBJECT = "labels", "text"


class ToAnnotate(NamedTuple):
    """A row that is to be annotated.

    Attributes:
        row: its number in the pool, from 0.
        id: what it is called; None where rows have no names.
        score: that it was chosen by.
        labels: the most probable ones, best first.
        titles: what these are called; None where they have no names beside what they are.
        probabilities: of these.
        text: None where rows are feature vectors alone.
    """

    row: int
    id: str | None
    score: float
    labels: list[str]
    titles: list[str] | None
    probabilities: list[float]
    text: str | None


def format_of(out: Path, to: TaskFormat | None) -> TaskFormat:
    """The format of a file, by its name unless it is said.

    Raises:
        SettingsError: nothing says it.
    """
    if to is not None:
        return to
    if out == STANDARD:
        return "jsonl"
    from extremegp.storage.streams import base_suffix

    found = _SUFFIXES.get(base_suffix(out))
    if found is None:
        raise SettingsError(f"--out must end in {', '.join(_SUFFIXES)}, or --to say the format; it is {out}")
    return found


def content(rows: Sequence[ToAnnotate], format: TaskFormat) -> bytes:
    """What a file of them holds."""
    if format == "csv":
        return _table(rows).encode()
    if format == "jsonl":
        return "".join(json.dumps(_record(row), ensure_ascii=False) + "\n" for row in rows).encode()
    tasks = [_task(row) for row in rows]
    return (json.dumps(tasks, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()


def _record(row: ToAnnotate) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if value is not None}


def _table(rows: Sequence[ToAnnotate]) -> str:
    """A line for each row; lists are written as JSON."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_record(rows[0]))
    for row in rows:
        writer.writerow(
            json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value
            for value in _record(row).values()
        )
    return text.getvalue()


def _task(row: ToAnnotate) -> dict[str, Any]:
    """A task of Label Studio: what is shown, and the labels that apply rather than not, or the best alone."""
    likely = [label for label, p in zip(row.labels, row.probabilities, strict=True) if p >= 0.5] or row.labels[:1]
    score = sum(row.probabilities[: len(likely)]) / max(1, len(likely))
    result = {
        "from_name": _CONTROL,
        "to_name": _OBJECT,
        "type": "choices",
        "value": {"choices": likely},
        "score": score,
    }
    data = {_OBJECT: row.text, **{name: value for name, value in _record(row).items() if name != "text"}}
    prediction = {"model_version": f"extremegp {__version__}", "score": score, "result": [result] if likely else []}
    return {"data": data, "predictions": [prediction]}
