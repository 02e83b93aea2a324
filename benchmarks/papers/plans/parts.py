"""What a plan is made of."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.papers.specs import Spec

HERE = frozenset(
    ("bibtex", "delicious", "mnist", "fashion-mnist", "rings", "bibtex-first", "delicious-first", "conll2000")
) | frozenset(("basenp", "chunking", "segmentation", "japanesene"))
"""The papers' sets that are to be had."""


TIMES = frozenset(("seconds", "hours", "minutes", "s/epoch", "min/epoch", "memory GB"))
"""Metrics of cost."""


class Row(NamedTuple):
    """A method on a set.

    Attributes:
        data: the set.
        method: as the paper calls it, or what of ours stands beside.
        specs: the runs whose mean it is: seeds, or folds.
        prefix: of the names of its metrics among those of the runs.
        note: how the runs differ from the paper's.
        timed: the runs that times are of, where these are others.
        against: the paper's method that its numbers are compared with, where that has another name.
    """

    data: str
    method: str
    specs: tuple[Spec, ...]
    prefix: str = ""
    note: str = ""
    timed: tuple[Spec, ...] = ()
    against: str = ""

    def specs_of(self, metric: str) -> tuple[Spec, ...]:
        """The runs that tell a metric."""
        return self.timed if self.timed and metric in TIMES else self.specs


class Check(NamedTuple):
    """Methods of a set in the order in which a metric has to get better, or at least not worse where `level`."""

    data: str
    metric: str
    order: tuple[str, ...]
    level: bool = False


class Plan(NamedTuple):
    """What is run for a table or figure.

    Attributes:
        rows: of it.
        checks: what the paper finds, as orders of methods.
        why: what differs, and why.
        uncompared: methods whose numbers are not compared with the paper's, as the data are not the same.
    """

    rows: tuple[Row, ...]
    checks: tuple[Check, ...] = ()
    why: str = ""
    uncompared: tuple[str, ...] = ()

    @property
    def specs(self) -> tuple[Spec, ...]:
        """All its runs."""
        return tuple(dict.fromkeys(spec for row in self.rows for spec in (*row.specs, *row.timed)))
