"""The pictures of `multilabel_methods.py`: a column wide, colours that colour-blind readers can tell apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from extremegp.plots import COLOURS, DASHES, panels, zoom

AXIS = {"P@1": "P@1 on test rows (%)", "bound": "-ELBO (nats per row)"}


class Line(NamedTuple):
    """The runs of a method, one for each seed.

    Attributes:
        label: the method's name.
        curves: records of the epochs.
        finals: the values at the end.
        n_rows: N, that bounds are divided by.
        thesis: P@1 in percent after the thesis' 50 epochs, if it is printed there.
    """

    label: str
    curves: list[list[dict[str, float]]]
    finals: list[dict[str, float]]
    n_rows: int
    thesis: float | None = None

    def along(self, metric: str) -> tuple[list[float], NDArray[np.float64]]:
        """Epochs, and values of the metric, seeds x epochs."""
        key = "elbo" if metric == "bound" else metric
        by_epoch = [{record["epoch"]: record[key] for record in curve if key in record} for curve in self.curves]
        epochs = sorted(set.intersection(*map(set, by_epoch)))
        return epochs, self._scaled(metric) * np.array([[values[epoch] for epoch in epochs] for values in by_epoch])

    def at_the_end(self, metric: str) -> NDArray[np.float64]:
        return self._scaled(metric) * np.array([final[metric] for final in self.finals])

    def _scaled(self, metric: str) -> float:
        return -1.0 / self.n_rows if metric == "bound" else 100.0


def methods(path: Path, lines: Sequence[Line]) -> None:
    """Bound and P@1 by epoch, and P@1 at the end beside the thesis'."""
    printed = any(line.thesis is not None for line in lines)
    with _picture(path, n_panels=3, height=6.6 + 0.14 * len(lines), ratios=(1, 1, 0.3 + 0.14 * len(lines))) as axes:
        styles = list(zip(lines, itertools.cycle(COLOURS), itertools.cycle(DASHES)))
        for axis, metric in zip(axes, ("bound", "P@1"), strict=False):
            for line, colour, dash in styles:
                _curve(axis, metric, line, colour, dash)
            axis.set(ylabel=AXIS[metric])
            _zoom(axis, metric, lines)
        axes[1].set_xlabel("epoch")
        axes[0].set_xlim(axes[1].get_xlim())
        axes[0].tick_params(labelbottom=False)
        _legend(axes[0], 3)
        bars = axes[2]
        width = 0.4 if printed else 0.7
        for row, (line, colour, _) in enumerate(styles):
            shift = width / 2 if printed else 0.0
            _bar(bars, row - shift, line.at_the_end("P@1"), width, colour, horizontal=True)
            if line.thesis is not None:
                _thesis_bar(bars, row + shift, line.thesis, width, colour, horizontal=True)
        bars.set_yticks(range(len(lines)), [line.label for line in lines])
        bars.invert_yaxis()
        bars.grid(axis="y", visible=False)
        shown = [v for line in lines for v in (*line.at_the_end("P@1"), *([line.thesis] if line.thesis else []))]
        low, high = _range(shown)
        label = "P@1 at the end (%)" + ("; axis cut" if low > 0 else "") + ("; hatched: thesis" if printed else "")
        bars.set(xlabel=label, xlim=(low, high))


def grid_curves(path: Path, metric: str, groups: Mapping[str, Sequence[Line]]) -> None:
    """A metric by epoch, a panel for each group, whose lines are in a meaningful order."""
    with _picture(path, n_panels=len(groups), height=2.4 * len(groups) + 0.6) as axes:
        for axis, letter, (title, lines) in zip(axes, "ab", groups.items(), strict=False):
            colours = matplotlib.colormaps["viridis"](np.linspace(0.88, 0.0, len(lines)))
            for line, colour, dash in zip(lines, colours, itertools.cycle(DASHES)):
                _curve(axis, metric, line, colour, dash)
            axis.set(ylabel=AXIS[metric])
            axis.set_title(f"({letter}) {title}", loc="left", fontsize=9)
            _zoom(axis, metric, lines)
        axes[-1].set_xlabel("epoch")
        _legend(axes[0], 4)


def grid_bars(path: Path, metric: str, groups: Mapping[str, Sequence[Line]]) -> None:
    """A metric at the end, a cluster of bars for each position in the groups."""
    with _picture(path, n_panels=1, height=2.6) as (axis,):
        width = 0.8 / len(groups)
        labels = list(dict.fromkeys(line.label for lines in groups.values() for line in lines))
        for number, (title, lines) in enumerate(groups.items()):
            for line in lines:
                where = labels.index(line.label) + (number - (len(groups) - 1) / 2) * width
                label = title if line is lines[0] else None
                _bar(axis, where, line.at_the_end(metric), 0.94 * width, COLOURS[number], label=label)
        axis.set_xticks(range(len(labels)), [label.rpartition(" ")[2] for label in labels])
        axis.grid(axis="x", visible=False)
        shown = [float(value) for lines in groups.values() for line in lines for value in line.at_the_end(metric)]
        what = {"M": "M, inducing inputs", "P": "P, latent functions"}[labels[0][0]]
        low, high = _range(shown)
        axis.set(xlabel=what + ("; vertical axis cut" if low > 0 else ""), ylabel=AXIS[metric], ylim=(low, high))
        _legend(axis, 4)


def seconds(path: Path, ours: Mapping[str, float], thesis: Mapping[str, float]) -> None:
    """Seconds per epoch beside the thesis', on a logarithmic scale."""
    with _picture(path, n_panels=1, height=0.9 + 0.3 * len(ours)) as (axis,):
        for row, name in enumerate(ours):
            _bar(axis, row - 0.2, np.array([ours[name]]), 0.4, COLOURS[0], horizontal=True)
            _thesis_bar(axis, row + 0.2, thesis[name], 0.4, COLOURS[0], horizontal=True)
            axis.text(ours[name] * 1.06, row - 0.2, f"{ours[name]:.3g}", va="center", fontsize=7)
            axis.text(thesis[name] * 1.06, row + 0.2, f"{thesis[name]:.3g}", va="center", fontsize=7)
        axis.set_yticks(range(len(ours)), list(ours))
        axis.invert_yaxis()
        axis.grid(axis="y", visible=False)
        axis.set(xscale="log", xlabel="seconds per epoch; hatched: thesis")
        least, most = (choose([*ours.values(), *thesis.values()]) for choose in (min, max))
        axis.set_xlim(0.5 * least, 2.5 * most)


@contextmanager
def _picture(
    path: Path, *, n_panels: int, height: float, ratios: Sequence[float] | None = None
) -> Iterator[list[Axes]]:
    with panels(n_panels, width=4.5, height=height, ratios=ratios) as (figure, axes):
        yield axes
        figure.savefig(path, dpi=160)


def _curve(axis: Axes, metric: str, line: Line, colour: Any, dash: str) -> None:
    epochs, values = line.along(metric)
    mean = values.mean(axis=0)
    axis.plot(epochs, mean, color=colour, linestyle=dash, label=line.label)
    if len(values) > 1:
        sd = values.std(axis=0, ddof=1)
        axis.fill_between(epochs, mean - sd, mean + sd, color=colour, alpha=0.2, linewidth=0)
    if metric == "P@1" and line.thesis is not None:
        beyond = 1.03 * epochs[-1]
        axis.plot(beyond, line.thesis, "D", markerfacecolor="none", markeredgecolor=colour, markersize=5, clip_on=False)


def _zoom(axis: Axes, metric: str, lines: Sequence[Line]) -> None:
    curves = [values for line in lines for values in line.along(metric)[1]]
    zoom(axis, curves, [line.thesis for line in lines if metric == "P@1" and line.thesis is not None])


def _bar(
    axis: Axes,
    where: float,
    values: NDArray[np.float64],
    width: float,
    colour: Any,
    *,
    horizontal: bool = False,
    label: str | None = None,
) -> None:
    error = values.std(ddof=1) if len(values) > 1 else None
    style = {"color": colour, "label": label, "ecolor": "0.3", "capsize": 2}
    if horizontal:
        axis.barh(where, values.mean(), height=width, xerr=error, **style)
    else:
        axis.bar(where, values.mean(), width=width, yerr=error, **style)


def _thesis_bar(axis: Axes, where: float, value: float, width: float, colour: Any, *, horizontal: bool) -> None:
    style = {"facecolor": "none", "edgecolor": colour, "hatch": "//////", "linewidth": 1.0}
    if horizontal:
        axis.barh(where, value, height=width, **style)
    else:
        axis.bar(where, value, width=width, **style)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From zero, unless that would hide the differences."""
    low, high = min(values), max(values)
    return (
        0.0 if low < 0.6 * high else low - 0.3 * (high - low) - 0.01 * high,
        high + 0.05 * (high - low) + 0.005 * high,
    )


def _legend(axis: Axes, n_columns: int) -> None:
    """The axis' names, above the whole picture."""
    handles, labels = axis.get_legend_handles_labels()
    axis.figure.legend(
        handles, labels, loc="outside upper center", ncols=min(n_columns, len(labels)), columnspacing=1.0, fontsize=8
    )
