"""What a report is made of, whatever the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremegp.metrics import PerClass, Reliability, RiskCoverage, SpanScore
from extremegp.metrics.probability import Bins
from extremegp.report.intervals import RowSums
from extremegp.report.issues import Surprises

BANDS = (0, 1, 10, 100, 1000)
"""Training rows from which on a label is in each band."""

_SURE = 0.5


class Chosen(NamedTuple):
    """A row to show, and why this one."""

    row: int
    because: str


@dataclass
class Findings:
    """What measuring a model on labelled data found.

    Attributes:
        metrics: as `extremegp evaluate` has them, by name.
        sums: what intervals are made of.
        reliability: diagrams by what they are of.
        bands: the same by how frequent labels are in training.
        risks: curves by loss, and for each by what rows are ranked by.
        each: what is known of every label.
        surprises: labels that the model finds unlikely, or missing.
        chosen: rows to show.
        counts: sizes, by what they are of.
        notes: what to tell of the data, a line each.
        confusion: true against predicted classes, where rows have one.
        spans: by type, where labels are of spans.
    """

    metrics: dict[str, float]
    sums: RowSums
    reliability: dict[str, Reliability]
    bands: dict[str, Reliability]
    risks: dict[str, dict[str, RiskCoverage]]
    each: PerClass
    surprises: Surprises
    chosen: list[Chosen]
    counts: dict[str, int]
    notes: list[str] = field(default_factory=list)
    confusion: Any = None
    spans: dict[str, SpanScore] = field(default_factory=dict)


class BandBins:
    """Reliability of labels by how many training rows they have."""

    def __init__(self, counts: NDArray[np.int64], n_bins: int = 15) -> None:
        self._band = np.searchsorted(BANDS, counts, side="right") - 1
        self._bins = [Bins(n_bins) for _ in BANDS]

    def add(self, labels: NDArray[np.int64], p: NDArray[np.float64], true: NDArray[np.bool_]) -> None:
        """Add probabilities of labels, and whether these came true."""
        bands = self._band[labels]
        for band in np.unique(bands).tolist():
            own = bands == band
            self._bins[band].add(p[own], true[own])

    def diagrams(self) -> dict[str, Reliability]:
        """Those of bands that have any probabilities."""
        found = {}
        for low, high, bins in zip(BANDS, (*(each - 1 for each in BANDS[1:]), None), self._bins, strict=True):
            if bins.sums[0].any():
                name = f"{low} to {high}" if high is not None and high > low else f"{low}" if high else f"{low} or more"
                found["0" if high == 0 else name] = bins.reliability()
        return found


def chosen_rows(
    error: NDArray[Any], max_p: NDArray[Any], entropy: NDArray[Any], seed: int, n_random: int = 2
) -> list[Chosen]:
    """Rows that tell something: the surest wrong and right ones, the least sure one, and some at random.

    Args:
        error: whether the most probable label of each row is wrong, N.
        max_p: its probability, N.
        entropy: of the labels of each row, N.
        seed: decides which are drawn.
        n_random: how many are.
    """
    sure = max_p >= _SURE
    wrong, right = np.flatnonzero((error > 0) & sure), np.flatnonzero((error == 0) & sure)
    found: dict[int, str] = {}
    for rows, because, n in (
        (wrong[np.argsort(-max_p[wrong], kind="stable")], "sure, and wrong", 2),
        (np.argsort(-entropy, kind="stable"), "least sure", 1),
        (right[np.argsort(-max_p[right], kind="stable")], "sure, and right", 1),
        (np.random.default_rng(seed).permutation(len(error)), "drawn at random", n_random),
    ):
        new = [row for row in rows[: n + len(found)].tolist() if row not in found]
        found |= dict.fromkeys(new[:n], because)
    return [Chosen(row, because) for row, because in found.items()]


def named(columns: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Values by name."""
    return dict(zip(columns, values, strict=True))
