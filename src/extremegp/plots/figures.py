"""Pictures of training, of what a model has learnt and of what it may leave out; and what all pictures share."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from extremegp.errors import DataError, SettingsError
from extremegp.metrics.selective import RiskCoverage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which colour-blind readers can tell apart."""
DASHES = ("-", "--", "-.", ":")
# The type of the keys is another in every version of Matplotlib.
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "lines.linewidth": 1.5,
    "hatch.linewidth": 0.6,
}


def risk_coverage_curves(curves: RiskCoverage | Mapping[str, RiskCoverage], *, title: str | None = None) -> Figure:
    """Risk of the predictions that are kept against their share, the most confident kept first.

    The vertical range leaves out the first tenth of the predictions, whose risks are means of few.

    Args:
        curves: what `risk_coverage`, `loss_coverage` or `risk_coverage` of metrics gave, or several by name.
        title: text above; the area under the curve (AURC) follows it, or the name of each of several.

    Returns:
        One panel: each curve and, dashed, that of confidences that put the least losses first: every right prediction
        before every wrong one.

    Raises:
        DataError: there is nothing to draw.
    """
    named = by_name(curves)
    if not named or not all(len(curve.risk) for curve in named.values()):
        raise DataError("a risk-coverage curve needs one or more predictions")
    with panels(1, width=4.5, height=3.2) as (figure, (axis,)):
        for (name, curve), colour in zip(named.items(), cycle(COLOURS)):
            # What no eye can tell apart only makes the picture large.
            shown = np.unique(np.linspace(0, len(curve.risk) - 1, 2000).astype(int))
            label = f"{name} (AURC {curve.area:.3f})" if name else None
            axis.plot(curve.coverage[shown], curve.risk[shown], color=colour, label=label)
            axis.plot(curve.coverage[shown], curve.best_risk[shown], color=colour, linewidth=1, linestyle="--")
        highest = max(float(curve.risk[len(curve.risk) // 10 :].max()) for curve in named.values())
        axis.set(xlim=(0, 1), ylim=(0, 1.05 * highest or 1.0), xlabel="share kept", ylabel="risk of what is kept")
        describe(axis, named, title, lambda curve: f"AURC {curve.area:.3f}")
    return figure


def learning_curve(
    history: Sequence[Mapping[str, float]] | Mapping[str, Sequence[Mapping[str, float]]],
) -> Figure:
    """The bound by epoch and, where training was validated, the validation metric (T Figs. 3.2, 3.4-3.6).

    The vertical range leaves out the first tenth of the epochs, in which curves rise steeply.

    Args:
        history: records of the epochs, such as `classifier.history_`, or those of several models by name.

    Returns:
        A panel for the ELBO and one for each validation metric of any record.

    Raises:
        DataError: there are no records, or a record has no epoch or ELBO.
    """
    histories = by_name(history)
    records = [record for each in histories.values() for record in each]
    if not all(histories.values()) or not records or not all({"epoch", "elbo"} <= record.keys() for record in records):
        raise DataError(
            "a learning curve needs a history of one or more records, each with its epoch and elbo; what is had in "
            "closed form, as classes of few rows by default, learns in no steps"
        )
    metrics = ["elbo", *dict.fromkeys(key for record in records for key in record if key.startswith("validation"))]
    with panels(len(metrics), width=4.5, height=0.6 + 2.2 * len(metrics), share_x=True) as (figure, axes):
        for axis, metric in zip(axes, metrics, strict=True):
            curves = []
            for (name, each), colour, dash in zip(histories.items(), cycle(COLOURS), cycle(DASHES)):
                known = [record for record in each if metric in record]
                curves.append([record[metric] for record in known])
                epochs = [record["epoch"] for record in known]
                axis.plot(
                    epochs, curves[-1], dash, color=colour, label=name or None, marker="." if len(known) < 2 else ""
                )
            axis.set_ylabel("ELBO" if metric == "elbo" else metric.replace("_", " "))
            zoom(axis, curves)
        axes[-1].set_xlabel("epoch")
        if "" not in histories:
            axes[0].legend()
    return figure


def error_curve(
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    xlabel: str = "inducing inputs M",
    ylabel: str = "error rate",
    reference: Mapping[str, float] | None = None,
) -> Figure:
    """Error against the size of the model on a logarithmic scale, as T Fig. 3.3.

    Args:
        curves: for each name the sizes, positive, and the error at each, in any order.
        xlabel: what the sizes are.
        ylabel: what the errors are.
        reference: errors of models without that size, by name: horizontal lines.

    Returns:
        One panel.

    Raises:
        DataError: there are no curves, or sizes and errors are not as many finite numbers, sizes positive.
    """
    points = {name: (np.asarray(xs, dtype=float), np.asarray(errors, float)) for name, (xs, errors) in curves.items()}
    if not points:
        raise DataError("an error curve needs one or more curves")
    for name, (xs, errors) in points.items():
        if xs.ndim != 1 or len(xs) == 0 or xs.shape != errors.shape or not np.all(np.isfinite([xs, errors]) & (xs > 0)):
            raise DataError(
                f"{name} needs an error for each of one or more positive {xlabel}; got {xs.shape}, {errors.shape}"
            )
    with panels(1, width=4.5, height=3.2) as (figure, (axis,)):
        for (name, (xs, errors)), colour, dash in zip(points.items(), cycle(COLOURS), cycle(DASHES)):
            order = np.argsort(xs)
            axis.plot(xs[order], errors[order], dash, marker="o", markersize=4, color=colour, label=name)
        for (name, value), colour in zip((reference or {}).items(), cycle(COLOURS[::-1])):
            axis.axhline(value, color=colour, linewidth=1, linestyle=(0, (1, 1)), label=name)
        axis.set(xlabel=xlabel, ylabel=ylabel, xscale="log")
        axis.legend()
    return figure


def inducing_images(
    before: ArrayLike,
    after: ArrayLike | Mapping[str, ArrayLike],
    *,
    image_shape: tuple[int, int] | None = None,
    rows: Sequence[int] | None = None,
) -> Figure:
    """Inducing inputs before and after training as grey images, as T Figs. 3.7-3.9.

    Each column has a scale of its own: from its least to its greatest value, or about zero if it has values of both
    signs, so that zero is the middle grey.

    Args:
        before: M x D inducing inputs at the start.
        after: M x D of a trained model, or of several by name.
        image_shape: height and width, of product D; by default the images are square.
        rows: indices of the inducing inputs to show; the first four by default.

    Returns:
        A row of images for each inducing input: at the start, then of each model.

    Raises:
        DataError: arrays are not finite numbers of one shape M x D.
        SettingsError: D is no square and `image_shape` is None, its product is not D, or a row is not in 0 .. M - 1.
    """
    models = after if isinstance(after, Mapping) else {"trained": after}
    columns = [(name, np.asarray(inputs)) for name, inputs in (("start", before), *models.items())]
    shape = columns[0][1].shape
    for name, inputs in columns:
        if (
            inputs.ndim != 2
            or inputs.shape != shape
            or inputs.dtype.kind not in "biuf"
            or not np.isfinite(inputs).all()
        ):
            raise DataError(
                f"inducing inputs must be finite numbers, M x D, of one shape; {name} is {inputs.dtype} of shape "
                f"{inputs.shape}, the first {shape}"
            )
    height, width = _image_shape(shape[1], image_shape)
    chosen = list(range(min(4, shape[0]))) if rows is None else list(rows)
    if not chosen or not all(0 <= row < shape[0] for row in chosen):
        raise SettingsError(f"rows must be indices of the {shape[0]} inducing inputs, from 0; got {chosen}")
    size = (1.3 * len(columns), 0.4 + 1.3 * len(chosen) * height / width)
    with empty_figure(*size) as figure:
        grid = figure.subplots(len(chosen), len(columns), squeeze=False)
        for axes, (name, inputs) in zip(grid.T, columns, strict=True):
            shown = inputs[chosen].astype(np.float64)
            low, high = shown.min(), shown.max()
            if low < 0 < high:
                high = max(-low, high)
                low = -high
            axes[0].set_title(name)
            for axis, image in zip(axes, shown, strict=True):
                axis.imshow(image.reshape(height, width), cmap="gray", vmin=low, vmax=high)
                axis.set_axis_off()
    return figure


@contextmanager
def panels(
    n_panels: int, *, width: float, height: float, ratios: Sequence[float] | None = None, share_x: bool = False
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of panels one above the other, in `STYLE` while it is drawn.

    Args:
        n_panels: number of panels.
        width: of the figure, in inches.
        height: of the figure, in inches.
        ratios: heights of the panels, relative to each other.
        share_x: whether the horizontal axis is that of all panels.

    Yields:
        The figure and its panels from the top.

    """
    with empty_figure(width, height) as figure:
        axes = figure.subplots(n_panels, 1, squeeze=False, height_ratios=ratios, sharex=share_x)
        yield figure, list(axes[:, 0])


def zoom(axis: Axes, curves: Iterable[Sequence[float] | NDArray[Any]], marks: Iterable[float] = ()) -> None:
    """Leave the first tenth of the epochs, in which curves fall or rise steeply, out of the vertical range.

    Args:
        axis: where the curves are drawn, against epochs.
        curves: values by epoch.
        marks: single values to keep in the range.
    """
    from matplotlib.ticker import MaxNLocator

    shown = [*marks, *(float(value) for curve in curves for value in curve[len(curve) // 10 :])]
    low, high = min(shown), max(shown)
    if low < high:
        margin = 0.05 * (high - low)
        axis.set_ylim(low - margin, high + margin)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


@contextmanager
def empty_figure(width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches, in `STYLE` while it is drawn."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("pictures need Matplotlib: pip install 'extremegp[plot]'") from error
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        # What notebooks ask any value for; Matplotlib answers only those that pyplot drives.
        vars(figure)["_repr_png_"] = partial(_png, figure)
        yield figure


def _png(figure: Figure) -> bytes:
    written = io.BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def describe(axis: Axes, named: Mapping[str, Any], title: str | None, measure: Callable[[Any], str]) -> None:
    """Title of one curve, with its measure, or legend of several."""
    if "" in named:
        title = ", ".join(filter(None, (title, measure(named[""]))))
    else:
        axis.legend()
    axis.set_title(title or "")


def by_name(one_or_more: Any) -> dict[str, Any]:
    """What has no name is named ""."""
    return dict(one_or_more) if isinstance(one_or_more, Mapping) else {"": one_or_more}


def _image_shape(n_features: int, image_shape: tuple[int, int] | None) -> tuple[int, int]:
    if image_shape is None:
        side = math.isqrt(n_features)
        if side == 0 or side**2 != n_features:
            raise SettingsError(f"{n_features} features make no square image; pass image_shape=(height, width)")
        return side, side
    height, width = image_shape
    if height < 1 or height * width != n_features:
        raise SettingsError(
            f"an image of {height} x {width} has {height * width} pixels; there are {n_features} features"
        )
    return height, width
