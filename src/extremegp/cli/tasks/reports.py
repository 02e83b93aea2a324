"""What evaluations tell of every label, and of which labels are taken for which: files, JSON and tables."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extremegp.cli.console import Report, percent
from extremegp.errors import SettingsError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from extremegp.metrics import PerClass, RowRisks

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LINES = 10_000
_LOWEST = 5
_LARGEST = 10


def check_per_class(path: Path | None) -> None:
    """Refuse a file that could not be written, before the work."""
    from extremegp.storage.streams import base_suffix

    if path is not None and base_suffix(path) not in _DELIMITERS:
        raise SettingsError(f"--per-class must end in .csv or .tsv, perhaps with .gz after it; it is {path}")


def write_per_class(path: Path, names: Sequence[str], each: PerClass, titles: Sequence[str] | None = None) -> None:
    """Write a line for every label, with what it is called where there are titles; what is not known is left blank."""
    from extremegp.storage.streams import atomic_writer, base_suffix

    columns = _columns(each)
    with atomic_writer(path) as stream:
        for start in range(0, max(1, len(names)), _LINES):
            part = slice(start, start + _LINES)
            text = io.StringIO()
            writer = csv.writer(text, delimiter=_DELIMITERS[base_suffix(path)], lineterminator="\n")
            if start == 0:
                writer.writerow(("class", *columns, *(["name"] * (titles is not None))))
            values = (map(_cell, column[part].tolist()) for column in columns.values())
            writer.writerows(zip(names[part], *values, *([] if titles is None else [titles[part]]), strict=True))
            stream.write(text.getvalue().encode())


def labels_by_name(
    names: Sequence[str], each: PerClass, titles: Sequence[str] | None = None
) -> dict[str, dict[str, float | str | None]]:
    """The same for JSON, by the names of the labels."""
    columns = _columns(each)
    lines = zip(*(column.tolist() for column in columns.values()), strict=True)
    told: dict[str, dict[str, float | str | None]] = {
        name: dict(zip(columns, map(or_null, line), strict=True)) for name, line in zip(names, lines, strict=True)
    }
    for name, title in zip(names, titles or (), strict=titles is not None):
        told[name]["name"] = title
    return told


def or_null(value: float) -> float | None:
    """A number as JSON has it."""
    return None if math.isnan(value) else value


def show_lowest(report: Report, what: tuple[str, str], rows: str, names: Sequence[str], each: PerClass) -> None:
    """Show the labels, which are called `what` (one and many), that are told apart least."""
    import numpy as np

    from extremegp.metrics import PerLabel

    occurring = np.flatnonzero(each.support)
    # By F1, among equal ones the most frequent first.
    order = np.lexsort((occurring, -each.support[occurring], each.f1[occurring]))
    shares = {"precision %": each.precision, "recall %": each.recall, "F1 %": each.f1}
    if isinstance(each, PerLabel):
        shares |= {"best F1 %": each.best_f1, "AP %": each.average_precision}
    report.table(
        f"{what[1].capitalize()} with the lowest F1",
        (what[0], rows, "predicted", *shares),
        [
            (
                names[code],
                str(each.support[code]),
                str(each.predicted[code]),
                *(percent(part[code]) for part in shares.values()),
            )
            for code in occurring[order[:_LOWEST]].tolist()
        ],
    )


def show_risks(report: Report, risks: RowRisks, units: Mapping[str, str]) -> None:
    """Show what is lost where the least sure rows are left out; `units` come after the names of losses."""
    from extremegp.metrics.risks import RANKINGS

    lines = []
    for loss in risks.losses:
        curves = [risks.risk_coverage(loss, by) for by in RANKINGS]
        numbers = (curves[0].risk[-1], *(curve.area for curve in curves), curves[0].best_area)
        lines.append((loss + units.get(loss, ""), *(f"{number:.4g}" for number in numbers)))
    ranked = (f"area by {by}" for by in RANKINGS)
    report.table("Risk of the surest rows, mean over coverages", ("loss", "all rows", *ranked, "least area"), lines)


def confusion_by_name(names: Sequence[str], counts: csr_matrix) -> list[dict[str, Any]]:
    """All counts of true and predicted labels that are not zero, largest first, for JSON."""
    return [
        {"true": names[true], "predicted": names[predicted], "count": count}
        for true, predicted, count in _largest(counts)
    ]


def show_confusions(report: Report, what: tuple[str, str], rows: str, names: Sequence[str], counts: csr_matrix) -> None:
    """Show which labels are most often taken for which, if any are."""
    support = counts.sum(axis=1)
    wrong = [each for each in _largest(counts) if each[0] != each[1]][:_LARGEST]
    if wrong:
        report.table(
            "Largest confusions",
            (f"true {what[0]}", f"predicted {what[0]}", rows, f"% of the {what[0]}'s"),
            [
                (names[true], names[predicted], str(count), percent(count / float(support[true, 0])))
                for true, predicted, count in wrong
            ],
        )


def _largest(counts: csr_matrix) -> list[tuple[int, int, int]]:
    cells = counts.tocoo()
    lines = zip(cells.row.tolist(), cells.col.tolist(), cells.data.tolist(), strict=True)
    return sorted(lines, key=lambda cell: (-cell[2], cell[0], cell[1]))


def _columns(each: PerClass) -> dict[str, Any]:
    """What is told of labels, by its name."""
    told: Iterator[str] = (field.name for field in fields(each) if field.name != "true_positives")
    return {name.replace("calibration_error", "ece"): getattr(each, name) for name in told}


def _cell(value: float) -> str:
    return str(value) if isinstance(value, int) else "" if math.isnan(value) else f"{value:.6g}"
