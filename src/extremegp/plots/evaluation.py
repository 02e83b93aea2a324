"""Pictures of how good predictions are, and those that `extremegp evaluate --plot` puts together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, issparse

from extremegp.errors import DataError
from extremegp.metrics.labels import PrecisionRecall
from extremegp.metrics.probability import Reliability
from extremegp.metrics.topk import check_positive_int
from extremegp.plots.figures import COLOURS, by_name, describe, empty_figure, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 4.5, 5.0
_MOST_POINTS = 2000


def reliability_diagram(reliability: Reliability | Mapping[str, Reliability], *, title: str | None = None) -> Figure:
    """Share of true outcomes against predicted probability, and how many probabilities each bin holds.

    Args:
        reliability: what `ProbabilityMetrics.reliability` or `ClassMetrics.reliability` gave, or several by name.
        title: text above; the expected calibration error (ECE) follows it, or the name of each of several.

    Returns:
        Two panels: the calibration curve beside the diagonal of perfect calibration, and the counts on a log scale.

    Raises:
        DataError: there is nothing to draw.
    """
    diagrams = _diagrams_by_name(reliability)
    with panels(2, width=_WIDTH, height=_HEIGHT, ratios=(3, 1), share_x=True) as (figure, axes):
        _draw_reliability(axes, diagrams, title)
    return figure


def confusion_matrix(matrix: Any, class_names: Sequence[str], *, largest: int = 20) -> Figure:
    """Counts of true against predicted classes, coloured by their share of the true class's rows.

    Args:
        matrix: K x K counts, true classes down, sparse or dense: as `ClassMetrics.confusion` gives it.
        class_names: K names.
        largest: number of classes to show on their own, those with most rows, in the order of the matrix. All others
            are one class "others", whose diagonal includes what is confused among them.

    Returns:
        One panel.

    Raises:
        DataError: the matrix is not K x K, or holds a negative number.
        SettingsError: `largest` is not a positive integer.
    """
    table, names = _confusion_table(matrix, class_names, largest)
    side = _confusion_side(names)
    with panels(1, width=side, height=side) as (figure, (axis,)):
        _draw_confusion(axis, table, names)
    return figure


def precision_recall_curves(
    curves: PrecisionRecall | Mapping[str, PrecisionRecall], *, title: str | None = None
) -> Figure:
    """Precision against recall as the threshold falls, with the threshold of the highest F1 marked.

    Args:
        curves: what `LabelMetrics.precision_recall` gave, or several by name.
        title: text above; the average precision (AP) follows it, or the name of each of several.

    Returns:
        One panel.

    Raises:
        DataError: a curve has no points: no true label has a probability above 0.
    """
    named = by_name(curves)
    if not named or not all(len(curve.threshold) for curve in named.values()):
        raise DataError("a curve of precision and recall needs one or more true labels of a probability above 0")
    with panels(1, width=_WIDTH, height=4.0) as (figure, (axis,)):
        _draw_precision_recall(axis, named, title)
    return figure


def label_report(
    reliability: Reliability | Mapping[str, Reliability], curve: PrecisionRecall, *, title: str | None = None
) -> Figure:
    """How good the probabilities of many labels per row are: reliability, and precision over recall.

    Args:
        reliability: what `ProbabilityMetrics.reliability` gave, or several by name.
        curve: what `LabelMetrics.precision_recall` gave; its panel stays empty if it has no points.
        title: text above.

    Returns:
        The panels of `reliability_diagram` on the left, that of `precision_recall_curves` on the right.

    Raises:
        DataError: there are no probabilities to draw.
    """
    diagrams = _diagrams_by_name(reliability)
    with empty_figure(2 * _WIDTH, _HEIGHT) as figure:
        left, right = figure.subfigures(1, 2)
        _draw_reliability(left.subplots(2, 1, height_ratios=(3, 1), sharex=True), diagrams, None)
        _draw_precision_recall(right.subplots(), by_name(curve), None)
        figure.suptitle(title or "")
    return figure


def class_report(
    reliability: Reliability, matrix: Any, class_names: Sequence[str], *, largest: int = 20, title: str | None = None
) -> Figure:
    """How good predictions of one class, or one label per token, are: reliability, and what is taken for what.

    Args:
        reliability: what `ClassMetrics.reliability` gave.
        matrix: K x K counts, as `confusion_matrix` takes them.
        class_names: K names.
        largest: number of classes to show on their own.
        title: text above.

    Returns:
        The panels of `reliability_diagram` on the left, that of `confusion_matrix` on the right.

    Raises:
        DataError, SettingsError: as these.
    """
    diagrams = _diagrams_by_name(reliability)
    table, names = _confusion_table(matrix, class_names, largest)
    side = _confusion_side(names)
    with empty_figure(_WIDTH + side, max(_HEIGHT, side)) as figure:
        left, right = figure.subfigures(1, 2, width_ratios=(_WIDTH, side))
        _draw_reliability(left.subplots(2, 1, height_ratios=(3, 1), sharex=True), diagrams, None)
        _draw_confusion(right.subplots(), table, names)
        figure.suptitle(title or "")
    return figure


def _draw_precision_recall(axis: Axes, curves: Mapping[str, PrecisionRecall], title: str | None) -> None:
    for (name, curve), colour in zip(curves.items(), cycle(COLOURS)):
        n_points = len(curve.threshold)
        if n_points:
            f1 = 2 * curve.precision * curve.recall / (curve.precision + curve.recall)
            best = int(f1.argmax())
            label = f"best F1 {f1[best]:.3f}, at {curve.threshold[best]:.3g}"
            axis.plot(curve.recall[best], curve.precision[best], "o", ms=5, color=colour, label=label)
        # What no eye can tell apart only makes the picture large.
        shown = np.unique(np.linspace(0, n_points - 1, min(n_points, _MOST_POINTS)).astype(int))
        label = f"{name} (AP {curve.average_precision:.3f})" if name else "_"
        axis.plot(curve.recall[shown], curve.precision[shown], color=colour, label=label)
    axis.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="recall", ylabel="precision")
    describe(axis, curves, title, lambda curve: f"AP {curve.average_precision:.3f}")
    if any(len(curve.threshold) for curve in curves.values()):
        axis.legend()


def _diagrams_by_name(reliability: Reliability | Mapping[str, Reliability]) -> dict[str, Reliability]:
    """One reliability diagram, of name "", or several.

    Raises:
        DataError: there is nothing to draw.
    """
    diagrams = by_name(reliability)
    if not any(diagram.count.any() for diagram in diagrams.values()):
        raise DataError("a reliability diagram needs probabilities; call update with a block of them first")
    return diagrams


def _draw_reliability(axes: Sequence[Axes], diagrams: Mapping[str, Reliability], title: str | None) -> None:
    """Draw curves and counts on two panels."""
    curve, counts = axes
    curve.plot([0, 1], [0, 1], color="0.5", linewidth=1, linestyle="--")
    for (name, diagram), colour in zip(diagrams.items(), cycle(COLOURS)):
        label = f"{name} (ECE {diagram.calibration_error:.3f})" if name else None
        filled = diagram.count > 0
        curve.plot(diagram.confidence[filled], diagram.frequency[filled], "o-", color=colour, ms=4, label=label)
        edges = np.linspace(0, 1, len(diagram.count) + 1)
        counts.stairs(diagram.count, edges, color=colour, fill=len(diagrams) == 1)
    curve.set(xlim=(0, 1), ylim=(0, 1), ylabel="share that came true")
    counts.set(xlabel="predicted probability", ylabel="number", yscale="log", ylim=(0.5, None))
    describe(curve, diagrams, title, lambda diagram: f"ECE {diagram.calibration_error:.3f}")


def _confusion_table(matrix: Any, class_names: Sequence[Any], largest: int) -> tuple[NDArray[Any], list[str]]:
    """The counts that `confusion_matrix` shows, and the names of their rows and columns."""
    check_positive_int(largest, "largest")
    given: Any = matrix if issparse(matrix) else np.asarray(matrix)
    n_classes = len(class_names)
    if given.shape != (n_classes, n_classes) or n_classes == 0 or given.dtype.kind not in "biuf":
        raise DataError(
            f"a confusion matrix of {n_classes} named classes is {n_classes} x {n_classes}; got shape {given.shape}"
        )
    counts = coo_matrix(given)
    if not np.all(counts.data >= 0):
        raise DataError("a confusion matrix holds counts, at least 0; check for negative numbers and NaN")
    support = np.asarray(counts.sum(axis=1)).ravel()
    shown = np.sort(np.argsort(-support, kind="stable")[:largest])
    names = [str(class_names[label]) for label in shown]
    if len(shown) < n_classes:
        names.append(f"others ({n_classes - len(shown)})")
    place = np.full(n_classes, len(shown))
    place[shown] = np.arange(len(shown))
    table = coo_matrix((counts.data, (place[counts.row], place[counts.col])), shape=2 * (len(names),)).toarray()
    return table, names


def _confusion_side(names: Sequence[str]) -> float:
    """How wide and high a picture of so many classes is, in inches."""
    return 1.8 + 0.34 * len(names)


def _draw_confusion(axis: Axes, table: NDArray[Any], names: Sequence[str]) -> None:
    """Draw counts, coloured by their shares of their rows, on a panel."""
    shares = table / np.maximum(1, table.sum(axis=1, keepdims=True))
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(table):
        if count:
            colour = "white" if shares[row, column] > 0.5 else "black"
            axis.text(column, row, f"{count:g}", ha="center", va="center", fontsize=6, color=colour)
    axis.set_xticks(range(len(names)), names, rotation=90)
    axis.set_yticks(range(len(names)), names)
    axis.grid(visible=False)
    axis.set(xlabel="predicted class", ylabel="true class")
