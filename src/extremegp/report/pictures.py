"""Pictures as SVG that stands in the page, takes its colours, and is a few kilobytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from extremegp.report.markup import Markup, element, text

_WIDTH, _HEIGHT = 360.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 10.0, 8.0, 36.0
_MOST_POINTS = 200
N_COLOURS = 5


class Line(NamedTuple):
    """A curve.

    Attributes:
        name: in the legend; "" for none.
        x: finite numbers.
        y: as many.
        points: whether points are marked.
        faint: whether it is there to compare with.
    """

    name: str
    x: NDArray[Any]
    y: NDArray[Any]
    points: bool = False
    faint: bool = False


class _Scale(NamedTuple):
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def line_chart(
    what: str,
    lines: Sequence[Line],
    *,
    x: str,
    y: str,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
) -> Markup:
    """Curves over one axis.

    Args:
        what: it shows, for those who do not see it.
        lines: one or more, not all of them without points.
        x: what the horizontal axis is.
        y: what the vertical axis is.
        x_range: from where to where; by default all of the lines.
        y_range: likewise.
    """
    xs, ys = (np.concatenate([np.asarray(part, np.float64) for part in parts]) for parts in _parts(lines))
    across = _Scale(*(x_range or _range(xs)), _LEFT, _WIDTH - _RIGHT)
    up = _Scale(*(y_range or _range(ys)), _HEIGHT - _BOTTOM, _TOP)
    drawn, colour = [], 0
    for line in lines:
        style = "faint" if line.faint else f"c{colour % N_COLOURS}"
        colour += not line.faint
        kept = np.unique(np.linspace(0, len(line.x) - 1, min(len(line.x), _MOST_POINTS)).round().astype(int))
        places = [
            f"{across(float(line.x[i])):.1f},{_clamped(up(float(line.y[i]))):.1f}" for i in kept.tolist() if len(line.x)
        ]
        drawn.append(element("polyline", points=" ".join(places), class_=f"line {style}"))
        if line.points:
            drawn += [
                element("circle", cx=place.split(",")[0], cy=place.split(",")[1], r="3", class_=f"dot {style}")
                for place in places
            ]
    return _figure(what, [*_axes(across, up, x, y), *drawn], lines)


def histogram(what: str, heights: ArrayLike, *, x: str, y: str, expected: float | None = None) -> Markup:
    """Bars of equal width from 0 to 1.

    Args:
        what: it shows, for those who do not see it.
        heights: of the bars.
        x: what the horizontal axis is.
        y: what the vertical axis is.
        expected: the height of a dashed line.
    """
    values = np.asarray(heights, np.float64)
    top = max(float(values.max(initial=0)), expected or 0.0) * 1.05 or 1.0
    across, up = _Scale(0, 1, _LEFT, _WIDTH - _RIGHT), _Scale(0, top, _HEIGHT - _BOTTOM, _TOP)
    bars = []
    for i, value in enumerate(values.tolist()):
        left, right = across(i / len(values)), across((i + 1) / len(values))
        height = up(0) - up(value)
        bars.append(
            element(
                "rect",
                x=f"{left + 0.5:.1f}",
                y=f"{up(value):.1f}",
                width=f"{max(0.5, right - left - 1):.1f}",
                height=f"{height:.1f}",
                class_="area c0",
            )
        )
    if expected is not None:
        ends = f"{across(0):.1f},{up(expected):.1f} {across(1):.1f},{up(expected):.1f}"
        bars.append(element("polyline", points=ends, class_="line faint"))
    return _figure(what, [*_axes(across, up, x, y), *bars], [])


def share_bar(value: float, most: float) -> Markup:
    """A bar in a cell, as long as a share is of the largest."""
    width = 0 if not most else 100 * min(1.0, abs(value) / most)
    return element("i", class_="less" if value < 0 else "more", style=f"width:{width:.0f}%", aria_hidden="true")


def _parts(lines: Sequence[Line]) -> tuple[list[Any], list[Any]]:
    return [line.x for line in lines], [line.y for line in lines]


def _range(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if low == high:
        return low - 0.5, high + 0.5
    margin = 0.04 * (high - low)
    return low - margin, high + margin


def _clamped(place: float) -> float:
    return min(max(place, _TOP), _HEIGHT - _BOTTOM)


def _axes(across: _Scale, up: _Scale, x: str, y: str) -> list[Markup]:
    parts = []
    for tick in _ticks(across.low, across.high):
        place = f"{across(tick):.1f}"
        parts.append(element("line", x1=place, x2=place, y1=_TOP, y2=_HEIGHT - _BOTTOM, class_="grid"))
        parts.append(element("text", _tick(tick), x=place, y=_HEIGHT - _BOTTOM + 13, class_="middle"))
    for tick in _ticks(up.low, up.high):
        place = f"{up(tick):.1f}"
        parts.append(element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=place, y2=place, class_="grid"))
        parts.append(element("text", _tick(tick), x=_LEFT - 5, y=f"{up(tick) + 3.5:.1f}", class_="end"))
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(element("text", x, x=(_LEFT + _WIDTH - _RIGHT) / 2, y=_HEIGHT - 6, class_="middle"))
    turned = f"translate(11 {middle:.1f}) rotate(-90)"
    parts.append(element("text", y, transform=turned, class_="middle"))
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers."""
    rough = (high - low) / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _tick(value: float) -> str:
    if abs(value) >= 1e5:
        return f"{value:.2g}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.4g}".replace("-", "\N{MINUS SIGN}")


def _figure(what: str, parts: Sequence[Markup], lines: Sequence[Line]) -> Markup:
    drawing = element("svg", *parts, viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", role="img", aria_label=what)
    named, colour = [], 0
    for line in lines:
        style = "faint" if line.faint else f"c{colour % N_COLOURS}"
        colour += not line.faint
        if line.name:
            named.append(element("li", element("i", class_=f"key {style}"), " ", line.name))
    legend = element("ul", *named, class_="legend") if named else Markup("")
    return element("figure", drawing, legend, element("figcaption", text(what, None)))
