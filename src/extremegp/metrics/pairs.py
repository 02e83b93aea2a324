"""Pairs of a row and a label in the order of their probability: what thresholds find, label by label and over all.

A pair is one unsigned integer: its label above, below it the bits of its float32 probability, turned round. So integers
in ascending order are labels in ascending order and of each label the probabilities in descending order. A threshold
matters only where a true pair lies, so that all curves take memory in proportion to the true pairs that are kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


class Steps(NamedTuple):
    """The probabilities that true pairs have: of each label in descending order, labels in ascending order.

    Attributes:
        label: of the pairs.
        probability: float32; a threshold that takes all pairs with this probability or more.
        new: true pairs with this very probability.
        true: true pairs that the threshold takes.
        taken: all pairs that it takes.
    """

    label: NDArray[np.int64]
    probability: NDArray[np.float32]
    new: NDArray[np.int64]
    true: NDArray[np.int64]
    taken: NDArray[np.int64]

    def average_precision(self, support: NDArray[Any], n_rows: int) -> NDArray[np.float64]:
        """The average precision of every label: sum over steps of precision times the growth of recall.

        Args:
            support: L, true pairs of each label, those not kept too: they come last, at the precision of taking all.
            n_rows: rows that each label has.

        Returns:
            L numbers; 0 for a label without true pairs.
        """
        found = np.bincount(self.label, weights=self.new, minlength=len(support))
        total = np.bincount(self.label, weights=self.new * self.true / self.taken, minlength=len(support))
        total = total + (support - found) * support / n_rows
        return np.divide(total, support, out=np.zeros(len(support)), where=support > 0)

    def best(self, support: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The step with the highest F1 of every label that has steps, the first of equal ones.

        Args:
            support: L, true pairs of each label.

        Returns:
            The labels, and the numbers of their steps.
        """
        f1 = 2 * self.true / (self.taken + support[self.label])
        order = np.lexsort((np.arange(len(f1)), -f1, self.label))
        labels, first = np.unique(self.label[order], return_index=True)
        return labels, order[first]


class RankedPairs:
    """The most probable pairs of all rows and labels, a block at a time.

    Args:
        most: pairs to keep at most. Beyond it the less probable half goes.

    Attributes:
        floor: pairs with a greater probability are all kept, others none. At first 0: a pair of probability 0 is never
            predicted.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.floor = np.float32(0)
        self._all: list[NDArray[np.uint64]] = []
        self._true: list[NDArray[np.uint64]] = []
        self._n = 0

    def add(self, labels: NDArray[np.int64], probabilities: NDArray[np.float32], true: NDArray[np.bool_]) -> None:
        """Add pairs.

        Args:
            labels: their labels, at least 0 where the probability is above 0.
            probabilities: in [0, 1], of the same shape.
            true: whether the label is one of the row's.
        """
        kept = probabilities > self.floor
        keys = labels[kept].astype(np.uint64) << _SHIFT
        keys |= _LOW - probabilities[kept].view(np.uint32)
        self._all.append(keys)
        self._true.append(keys[true[kept]])
        self._n += len(keys)
        if self._n > self.most:
            self._drop_half()

    def _drop_half(self) -> None:
        [pairs], [true] = self._joined()
        bits = (pairs & _LOW).astype(np.uint32)
        half = self.most // 2
        last = np.partition(bits, half)[half]
        self.floor = _probability(last)
        self._all, self._true = [pairs[bits < last]], [true[(true & _LOW) < last]]
        self._n = len(self._all[0])

    def _joined(self) -> tuple[list[NDArray[np.uint64]], list[NDArray[np.uint64]]]:
        empty = np.empty(0, np.uint64)
        self._all, self._true = [np.concatenate([empty, *self._all])], [np.concatenate([empty, *self._true])]
        return self._all, self._true

    def of_labels(self) -> Steps:
        """The steps of every label by itself."""
        for [keys] in self._joined():
            keys.sort()
        return _steps(self._all[0], self._true[0])

    def of_all(self) -> Steps:
        """The steps of all labels together, as if they were one, of number 0."""
        return _steps(*(np.sort(keys & _LOW) for [keys] in self._joined()))


def _steps(pairs: NDArray[np.uint64], true: NDArray[np.uint64]) -> Steps:
    keys, new = np.unique(true, return_counts=True)
    label = keys >> _SHIFT
    taken = np.searchsorted(pairs, keys, side="right") - np.searchsorted(pairs, label << _SHIFT)
    found = new.cumsum()
    before = np.searchsorted(label, label)
    return Steps(
        label.astype(np.int64),
        _probability((keys & _LOW).astype(np.uint32)),
        new,
        found - (found - new)[before],
        taken,
    )


def _probability(bits: Any) -> Any:
    return (np.uint32(_LOW) - bits).view(np.float32)
