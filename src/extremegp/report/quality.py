"""Sections on how good predictions are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremegp.metrics import PerLabel, Reliability, RiskCoverage
from extremegp.report.findings import Findings
from extremegp.report.markup import (
    Column,
    Markup,
    count,
    details,
    element,
    joined,
    number,
    paragraph,
    share,
    table,
    text,
)
from extremegp.report.pictures import Line, line_chart

MOST_LINES = 50
_DIAGONAL = Line("perfect", np.array([0.0, 1.0]), np.array([0.0, 1.0]), faint=True)


def calibration(findings: Findings, what: tuple[str, str]) -> Markup:
    """Whether what has a probability of 30 % happens in 30 of 100 cases."""
    pictures = [
        _reliability("Reliability: how often what was predicted came true, by its probability", findings.reliability)
    ]
    if len(findings.bands) > 1:
        pictures.append(
            _reliability(
                f"The same by how many training rows a {what[0]} has, of the most probable ones of each row",
                findings.bands,
            )
        )
    numbers = _bins(
        {**findings.reliability, **{f"{band} training rows": each for band, each in findings.bands.items()}}
    )
    return joined(
        [
            paragraph(
                "On the diagonal probabilities are right. Below it the model is too sure, above it not sure enough. "
                "ECE is the mean distance, weighted by how many probabilities there are."
            ),
            element("div", *pictures, class_="pictures"),
            details("The numbers", numbers),
        ]
    )


def _reliability(what: str, diagrams: Mapping[str, Reliability]) -> Markup:
    lines = [_DIAGONAL]
    for name, each in diagrams.items():
        filled = each.count > 0
        called = f"{name} (ECE {100 * each.calibration_error:.2f} %)"
        lines.append(Line(called, each.confidence[filled], each.frequency[filled], points=True))
    return line_chart(what, lines, x="predicted probability", y="share that came true", x_range=(0, 1), y_range=(0, 1))


def _bins(diagrams: Mapping[str, Reliability]) -> Markup:
    rows = []
    for name, each in diagrams.items():
        for i in np.flatnonzero(each.count).tolist():
            rows.append(
                (name, count(int(each.count[i])), share(float(each.confidence[i])), share(float(each.frequency[i])))
            )
    columns = Column("of", False), Column("number"), Column("mean probability"), Column("share that came true")
    return table("Reliability, bin by bin", columns, rows)


def selective(findings: Findings, unit: str) -> Markup:
    """What is lost where only the surest rows are predicted."""
    pictures, rows = [], []
    for loss, curves in findings.risks.items():
        called = loss.replace("_", " ")
        pictures.append(_risk(f"Mean {called} of the surest {unit}, by the share that is kept", called, curves))
        for by, curve in curves.items():
            rows.append(
                (
                    called,
                    by.replace("_", " "),
                    *map(number, (_at(curve, 0.5), _at(curve, 0.9), _at(curve, 1.0), curve.area)),
                )
            )
        best = next(iter(curves.values()))
        rows.append(
            (
                called,
                "the best order",
                *map(number, (_at(best, 0.5, best=True), _at(best, 0.9, best=True), _at(best, 1.0), best.best_area)),
            )
        )
    columns = (
        Column("loss", False),
        Column("ordered by", False),
        Column("half kept"),
        Column("90 % kept"),
        Column("all"),
        Column("mean over shares"),
    )
    return joined(
        [
            paragraph(
                f"If a person sees to the {unit} that the model is least sure of, this is what is left to lose. The "
                "dashed line is the best that any order could do."
            ),
            element("div", *pictures, class_="pictures"),
            table(f"Losses of the surest {unit}", columns, rows),
        ]
    )


def _at(curve: RiskCoverage, kept: float, *, best: bool = False) -> float:
    risk = curve.best_risk if best else curve.risk
    return float(risk[max(0, math.ceil(kept * len(risk)) - 1)])


def _risk(what: str, loss: str, curves: Mapping[str, RiskCoverage]) -> Markup:
    first = next(iter(curves.values()))
    # The first tenth is of few rows.
    start = len(first.risk) // 10
    lines = [
        Line(f"by {by.replace('_', ' ')}", each.coverage[start:], each.risk[start:]) for by, each in curves.items()
    ]
    lines.append(Line("the best order", first.coverage[start:], first.best_risk[start:], faint=True))
    top = max(float(line.y.max()) for line in lines) * 1.05 or 1.0
    return line_chart(what, lines, x="share kept", y=loss, x_range=(0, 1), y_range=(0, top))


def worst(
    findings: Findings, names: Sequence[str], counts: NDArray[np.int64], what: tuple[str, str], rows: str
) -> Markup:
    """The labels that are told apart least."""
    each = findings.each
    occurring = np.flatnonzero(each.support)
    order = np.lexsort((occurring, -each.support[occurring], each.f1[occurring]))
    chosen = occurring[order[:MOST_LINES]].tolist()
    columns = [
        Column(what[0], False),
        *map(Column, (f"{rows} here", "in training", "predicted", "precision", "recall", "F1")),
    ]
    if isinstance(each, PerLabel):
        columns += map(Column, ("mean p", "share true", "average precision"))
    lines = []
    for code in chosen:
        line: list[Any] = [
            text(names[code]),
            *(count(int(part[code])) for part in (each.support, counts, each.predicted)),
        ]
        line += [share(float(part[code])) for part in (each.precision, each.recall, each.f1)]
        if isinstance(each, PerLabel):
            parts = each.mean_probability, each.frequency, each.average_precision
            line += [number(float(part[code]), 3) for part in parts]
        lines.append(line)
    n = len(chosen)
    left = len(occurring) - n
    told = f"{what[1].capitalize()} with the lowest F1, {n} of {len(occurring):,} that any row has"
    absent = len(each.support) - len(occurring)
    return joined(
        [
            paragraph(
                "Among equal ones the most frequent come first."
                + (f" {left:,} more do better." if left else "")
                + (f" {absent:,} {what[1]} of the model have no row here." if absent else "")
                + " Headings sort the table."
            ),
            table(told, columns, lines, name="worst"),
        ]
    )


def confusions(findings: Findings, names: Sequence[str], what: tuple[str, str], rows: str) -> Markup:
    """Which labels are taken for which."""
    cells = findings.confusion.tocoo()
    support = np.asarray(findings.confusion.sum(axis=1)).ravel()
    wrong = np.flatnonzero((cells.row != cells.col) & (cells.data > 0))
    if not len(wrong):
        return paragraph(f"No {what[0]} is taken for another.")
    order = wrong[np.lexsort((cells.col[wrong], cells.row[wrong], -cells.data[wrong]))][:MOST_LINES]
    lines = [
        (
            text(names[cells.row[i]]),
            text(names[cells.col[i]]),
            count(int(cells.data[i])),
            share(float(cells.data[i] / support[cells.row[i]])),
        )
        for i in order.tolist()
    ]
    columns = (
        Column(f"true {what[0]}", False),
        Column(f"predicted {what[0]}", False),
        Column(rows),
        Column(f"of the {what[0]}'s {rows}"),
    )
    return table(f"Largest confusions, {len(order)} of {len(wrong):,}", columns, lines, name="confusions")


def spans(findings: Findings) -> Markup:
    """How many spans are found, by type."""
    lines = [
        (
            text(kind),
            count(each.support),
            count(each.predicted),
            *map(share, (each.precision, each.recall, each.f1)),
        )
        for kind, each in findings.spans.items()
    ]
    columns = [Column("type", False), *map(Column, ("spans", "predicted", "precision", "recall", "F1"))]
    return table("Spans by type", columns, lines, name="spans")
