"""Which of the labels of test rows are probably wrong."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST = 50
_KEPT, _OF_A_ROW = 4 * MOST, 2


class Issue(NamedTuple):
    """A label that a row has, or has not, and probably should not, or should.

    Attributes:
        row: its number, or that of the token among all.
        label: its column.
        present: whether the row has it.
        probability: that the row has it, as the model says; of labels that are none of a row's best, no more than it.
        instead: the column of the label that the model says instead, where a row has one label; -1 elsewhere.
        of_instead: its probability.
    """

    row: int
    label: int
    present: bool
    probability: float
    instead: int = -1
    of_instead: float = 0.0


class Surprises:
    """The present labels of the lowest probability and the absent ones of the highest, over blocks of rows."""

    def __init__(self) -> None:
        self._present: list[tuple[Any, Issue]] = []
        self._absent: list[tuple[Any, Issue]] = []

    def add(
        self,
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
        p: NDArray[Any],
        *,
        present: bool,
        instead: tuple[NDArray[np.int64], NDArray[Any]] | None = None,
        counts: NDArray[np.int64] | None = None,
    ) -> None:
        """Add pairs of a row and a label, with the probabilities that rows have these labels.

        Args:
            rows: of the pairs.
            labels: likewise, their columns.
            p: likewise.
            present: whether the rows have the labels.
            instead: of the pairs the labels that the model says instead, and their probabilities.
            counts: of the pairs training rows of the labels: of equally unlikely ones the more frequent comes first.
        """
        frequent = np.zeros(len(rows), np.int64) if counts is None else counts
        order = np.lexsort((-frequent, p if present else -p))[:_KEPT]
        found = self._present if present else self._absent
        others = (np.full(len(rows), -1), np.zeros(len(rows))) if instead is None else instead
        for place in order.tolist():
            other, of_other = int(others[0][place]), float(others[1][place])
            issue = Issue(int(rows[place]), int(labels[place]), present, float(p[place]), other, of_other)
            size = issue.probability if present else -issue.probability
            found.append(((size, -int(frequent[place]), issue.row, issue.label), issue))
        found.sort(key=lambda each: each[0])
        del found[_KEPT:]

    def likeliest(self, most: int = MOST) -> list[Issue]:
        """The most surprising ones that the model contradicts, half of each kind where there are as many of both.

        No more than two are of one row: what makes a row strange makes all of its labels so.
        """
        present = [each for _, each in self._present if each.probability < (each.of_instead or 0.5)]
        absent = [each for _, each in self._absent if each.probability >= 0.5]
        present, absent = _few_of_a_row(present), _few_of_a_row(absent)
        half = most // 2
        return [*present[: max(half, most - len(absent))], *absent[: max(half, most - len(present))]][:most]


def _few_of_a_row(issues: list[Issue]) -> list[Issue]:
    seen: Counter[int] = Counter()
    found = []
    for each in issues:
        seen[each.row] += 1
        if seen[each.row] <= _OF_A_ROW:
            found.append(each)
    return found
