"""HTML of what nobody trusts: every text goes through `text`."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# Control characters, halves of characters, and marks that turn the direction of what follows.
_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff]")
LONGEST = 160


class Markup(str):
    """HTML, in which all that was text is escaped."""

    __slots__ = ()


def text(value: Any, longest: int | None = LONGEST) -> Markup:
    """Any value as text, escaped, and cut where it is long."""
    if isinstance(value, Markup):
        return value
    shown = _UNSHOWN.sub("\N{REPLACEMENT CHARACTER}", str(value))
    if longest is not None and len(shown) > longest:
        shown = f"{shown[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"
    return Markup(html.escape(shown))


def joined(parts: Iterable[str], between: str = "") -> Markup:
    """Pieces of HTML, and of text, one after the other."""
    return Markup(between.join(text(part, None) for part in parts))


def element(name: str, *content: Any, **attributes: Any) -> Markup:
    """An element; underscores in names of attributes stand for hyphens, and those that are None are left out."""
    given = "".join(
        f' {key.strip("_").replace("_", "-")}="{text(value, None)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{joined(content)}</{name}>")


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        shown: text or HTML.
        value: the number to sort by; that which is shown if it is None.
    """

    shown: Any
    value: float | None = None


class Column(NamedTuple):
    """A column of a table: its heading, and whether it has numbers."""

    name: str
    numeric: bool = True


def share(value: float) -> Cell:
    """A fraction in percent."""
    return Cell("–" if math.isnan(value) else f"{100 * value:.2f}\N{NO-BREAK SPACE}%", value)


def number(value: float, digits: int = 4) -> Cell:
    """A number."""
    return Cell("–" if math.isnan(value) else f"{value:.{digits}g}", value)


def count(value: int) -> Cell:
    """A count."""
    return Cell(f"{value:,}", value)


def table(
    caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Any]], *, sortable: bool = True, name: str = ""
) -> Markup:
    """A table whose first column names its rows, and which scrolls by itself where it is too wide.

    Args:
        caption: what it shows.
        columns: from the left.
        rows: cells, or texts.
        sortable: whether headings sort it.
        name: to find it by.
    """
    heads = [
        element(
            "th",
            element("button", column.name, type="button") if sortable else column.name,
            scope="col",
            class_="n" if column.numeric else None,
            aria_sort="none" if sortable else None,
        )
        for column in columns
    ]
    lines = [
        element(
            "tr", *(_cell(cell, column, head=i == 0) for i, (cell, column) in enumerate(zip(row, columns, strict=True)))
        )
        for row in rows
    ]
    inner = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *heads)),
        element("tbody", *lines),
        class_="sortable" if sortable else None,
        id=name or None,
    )
    return element("div", inner, class_="scroll", role="region", tabindex="0", aria_label=caption)


def _cell(cell: Any, column: Column, *, head: bool) -> Markup:
    given = cell if isinstance(cell, Cell) else Cell(cell)
    value = None if given.value is None or math.isnan(given.value) else repr(float(given.value))
    numeric = "n" if column.numeric else None
    if head:
        return element("th", given.shown, scope="row", class_=numeric, data_v=value)
    return element("td", given.shown, class_=numeric, data_v=value)


def facts(caption: str, rows: Iterable[tuple[str, Any]]) -> Markup:
    """A table of names and values."""
    lines = [element("tr", element("th", name, scope="row"), element("td", value)) for name, value in rows]
    inner = element("table", element("caption", caption), element("tbody", *lines), class_="facts")
    return element("div", inner, class_="scroll", role="region", tabindex="0", aria_label=caption)


def paragraph(*content: Any, class_: str | None = None) -> Markup:
    """A paragraph."""
    return element("p", *content, class_=class_)


def details(summary: str, *content: Any) -> Markup:
    """What is folded away."""
    return element("details", element("summary", summary), *content)
