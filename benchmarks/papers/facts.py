"""What the papers report: every table and figure, from the files in `facts/`."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import NamedTuple

PAPERS = {
    "T": "Thesis: extreme multi-label learning with Gaussian processes",
    "ML": "Large scale multi-label learning using Gaussian processes",
    "S": "Fully scalable Gaussian processes using subspace inducing inputs",
    "X": "Scalable Gaussian process for extreme classification",
    "D": "Structured deep Gaussian processes",
}
"""Title by the letters that numbers begin with."""


class Value(NamedTuple):
    """A number in a paper; shares are in percent, as papers print them."""

    data: str
    method: str
    metric: str
    value: float


class Entry(NamedTuple):
    """A table or figure.

    Attributes:
        number: such as "T4.5" for a table and "X-fig1" for a figure.
        what: it shows.
        data: the sets it is about.
        setting: how the paper ran it.
        claim: what a reproduction has to show.
        illustration: whether no experiment stands behind it.
        values: its numbers on the sets that are here, and the best elsewhere.
        note: what is wrong or unclear in the paper.
    """

    number: str
    what: str
    data: tuple[str, ...]
    setting: str
    claim: str
    illustration: bool
    values: tuple[Value, ...]
    note: str

    @property
    def paper(self) -> str:
        """The letters of its paper."""
        return self.number.rstrip("0123456789.").removesuffix("-fig").removesuffix("-figA").removesuffix("A")


@functools.cache
def entries() -> dict[str, Entry]:
    """Every table and figure by its number, in the order of the papers."""
    found = {}
    for paper in PAPERS:
        with (Path(__file__).with_name("facts") / f"{paper}.toml").open("rb") as file:
            for entry in tomllib.load(file)["entry"]:
                values = tuple(Value(*map(str, where), float(value)) for *where, value in entry["values"])
                found[entry["id"]] = Entry(
                    entry["id"],
                    entry["what"],
                    tuple(entry["data"]),
                    entry.get("setting", ""),
                    entry["claim"],
                    entry["illustration"],
                    values,
                    entry.get("note", ""),
                )
    return found
