"""What figures are called, and what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from extremegp.report.intervals import Interval
from extremegp.report.markup import Cell, Column, Markup, details, element, joined, number, share, table


class Figure(NamedTuple):
    """A figure that the report explains.

    Attributes:
        name: as the metrics have it; @k stands for each of the ranks.
        says: what it says.
        is_share: whether it is shown in percent.
        better: which is better.
    """

    name: str
    says: str
    is_share: bool = True
    better: str = "higher"


LABELS = (
    Figure("P@k", "share of the k labels ranked first that is true"),
    Figure("nDCG@k", "as P@k, but a hit counts less the lower it is ranked"),
    Figure("R@k", "share of a row's true labels that is among the k ranked first"),
    Figure("PSP@k", "as P@k, with rare labels weighted up"),
    Figure("micro_f1", "F1 of all labels predicted at the threshold, over pairs of row and label"),
    Figure("micro_precision", "share of these that are true"),
    Figure("micro_recall", "share of the true labels that are predicted"),
    Figure("example_f1", "F1 of each row's set, mean over rows"),
    Figure("macro_f1", "F1 of each label, mean over labels"),
    Figure("log_loss", "minus log probability of what happened, summed over labels, in nats a row", False, "lower"),
    Figure("log_loss_top20", "the same, mean over the 20 best labels of each row, in nats", False, "lower"),
    Figure("brier", "squared error of the probabilities, summed over labels, a row", False, "lower"),
    Figure("ece_top", "calibration error over the 10 best labels of each row", better="lower"),
    Figure("ece_top20", "calibration error over the 20 best labels of each row", better="lower"),
    Figure("ece", "calibration error over all labels, most of which are near 0", better="lower"),
    Figure("ECE@k", "calibration error over the k best labels of each row", better="lower"),
)
CLASSES = (
    Figure("accuracy", "share of rows whose most probable class is theirs"),
    Figure("topk_accuracy", "share of rows whose class is among the k most probable"),
    Figure("macro_f1", "F1 of each class, mean over classes"),
    Figure("nlpd", "minus log probability of the true class, in nats a row", False, "lower"),
    Figure("brier", "squared error of the probabilities, summed over classes, a row", False, "lower"),
    Figure("ece", "calibration error of the predicted class", better="lower"),
)
SEQUENCES = (
    Figure("token_error", "share of tokens with a wrong label", better="lower"),
    Figure("sequence_error", "share of sequences with any", better="lower"),
    Figure("marginal_error", "share of tokens whose most probable label is wrong", better="lower"),
    Figure("span_f1", "F1 of spans, whose ends and type must be right"),
    Figure("span_precision", "share of the predicted spans that are true"),
    Figure("span_recall", "share of the true spans that are found"),
    Figure("nll_unstruct_per_token", "minus log probability of a token's label, in nats a token", False, "lower"),
    Figure("nll_struct_per_token", "minus log probability of all labels of a sequence, a token", False, "lower"),
    Figure("brier", "squared error of the marginals, summed over labels, a token", False, "lower"),
    Figure("ece", "calibration error of the most probable label", better="lower"),
)


def spelt(figures: Sequence[Figure], ks: Sequence[int]) -> list[Figure]:
    """Figures for each of the ranks."""
    found = []
    for each in figures:
        if each.name.endswith("@k"):
            found += [each._replace(name=f"{each.name[:-1]}{k}", says=_at(each.says, k)) for k in ks]
        elif each.name.startswith("topk_"):
            found += [each._replace(name=f"top{k}_accuracy", says=_at(each.says, k)) for k in ks if k > 1]
        else:
            found.append(each)
    return found


def _at(says: str, k: int) -> str:
    if k == 1:
        says = says.replace("k labels", "label").replace("k best labels", "best label").replace("among the k ", "")
    return says.replace(" k ", f" {k} ").replace("P@k", f"P@{k}")


def cell(figure: Figure, value: float) -> Cell:
    """A figure as it is shown."""
    return share(value) if figure.is_share else number(value)


def _between(figure: Figure, ends: Interval) -> str:
    if figure.is_share:
        return f"{100 * ends[0]:.2f} to {100 * ends[1]:.2f}\N{NO-BREAK SPACE}%"
    return f"{ends[0]:.4g} to {ends[1]:.4g}"


def metric_table(figures: Sequence[Figure], metrics: Mapping[str, float], intervals: Mapping[str, Interval]) -> Markup:
    """The figures that there are, with their intervals, and what they say."""
    rows = []
    for each in figures:
        if each.name not in metrics or math.isnan(metrics[each.name]):
            continue
        ends = intervals.get(each.name)
        shown = "–" if ends is None else _between(each, ends)
        called = joined([each.name, " ", element("small", each.says)])
        rows.append((called, cell(each, metrics[each.name]), shown, each.better))
    columns = (Column("figure", False), Column("value"), Column("95 % interval"), Column("better", False))
    return table("Figures of the test data, with intervals from resampled rows", columns, rows, name="figures")


def all_metrics(metrics: Mapping[str, float]) -> Markup:
    """Everything that `extremegp evaluate` says, folded away."""
    rows = [(name, number(value, 6)) for name, value in metrics.items()]
    columns = Column("figure", False), Column("value")
    return details(
        f"All {len(rows)} figures, as extremegp evaluate has them",
        table("All figures, shares from 0 to 1", columns, rows, name="all-figures"),
    )


def cards(figures: Sequence[Figure], metrics: Mapping[str, float], intervals: Mapping[str, Interval]) -> Markup:
    """The most important figures at a glance."""
    shown = []
    for each in figures:
        if each.name not in metrics or math.isnan(metrics[each.name]):
            continue
        ends = intervals.get(each.name)
        between = "" if ends is None else _between(each, ends)
        shown.append(
            element(
                "li",
                each.name.replace("_", " "),
                element("b", cell(each, metrics[each.name]).shown),
                element("small", between or "\N{NO-BREAK SPACE}"),
            )
        )
    return element("ul", *shown, class_="cards")
