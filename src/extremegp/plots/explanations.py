"""Pictures of why a label is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from extremegp.errors import DataError
from extremegp.plots.figures import COLOURS, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from extremegp.estimators import Explanation, Share

_WIDTH, _BAR, _REST, _LONGEST = 5.5, 0.22, 0.75, 40


def explanation_bars(explanation: Explanation, *, title: str | None = None) -> Figure:
    """The shares of training documents, and of features, in the regression of a label: bars from the largest.

    Args:
        explanation: what `explain` gave for a label of a row.
        title: text above; by default the label, its probability and what the regression says.

    Returns:
        Two panels, documents above features, with bars to the right for shares that are added, and to the left for
        those that are taken away; grey is the sum of all that are not named.

    Raises:
        DataError: it names neither documents nor features.
    """
    parts = [("documents", explanation.documents), ("features", explanation.features)]
    if not all(shares for _, shares in parts):
        raise DataError("an explanation to draw needs shares of documents and of features")
    heights = [_BAR * len(shares) + _REST for _, shares in parts]
    with panels(2, width=_WIDTH, height=sum(heights), ratios=heights) as (figure, axes):
        for axis, (name, shares) in zip(axes, parts, strict=True):
            _draw_shares(axis, name, shares)
        axes[-1].set_xlabel(f"share of {explanation.regression - explanation.frequency:+.3f}")
        axes[0].set_title(_plain(title) if title is not None else _title(explanation))
    return figure


def _title(explanation: Explanation) -> str:
    label = _plain(_shortened(str(explanation.label)))
    return (
        f"{label}: p {explanation.probability:.3f}\n{100 * explanation.frequency:.1f} % of all documents, "
        f"{100 * explanation.regression:.1f} % of those like this one"
    )


def _draw_shares(axis: Axes, name: str, shares: Sequence[Share]) -> None:
    places, values = range(len(shares)), [each.share for each in shares]
    colours = ["0.6" if each.name == "others" else COLOURS[each.share < 0] for each in shares]
    axis.barh(places, values, color=colours, height=0.7)
    axis.axvline(0, color="0.4", linewidth=0.8)
    axis.set_yticks(places, [_plain(_shortened(each.name)) for each in shares])
    axis.invert_yaxis()
    axis.set_ylabel(name)
    axis.grid(visible=False, axis="y")
    axis.margins(x=0.05)


def _shortened(name: str) -> str:
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _plain(text: str) -> str:
    """What Matplotlib would take for a formula, as it is written."""
    return text.replace("$", r"\$")
