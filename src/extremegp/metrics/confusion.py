"""What was taken for what: counts of true and predicted classes over blocks of rows, and what they say of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix


@dataclass(frozen=True, eq=False)
class PerClass:
    """What was predicted of each class. Without a row to divide by, a ratio is 0.

    Args:
        support: K, number of rows of the class.
        predicted: K, number of rows predicted to be of the class, those of unknown class included.
        true_positives: K, number of rows of the class predicted to be so.
        precision: K, true_positives / predicted; 0 for a class never predicted.
        recall: K, true_positives / support; 0 for a class without rows.
        f1: K, harmonic mean of precision and recall, 2 true_positives / (support + predicted); 0 where both are 0.
    """

    support: NDArray[np.int64]
    predicted: NDArray[np.int64]
    true_positives: NDArray[np.int64]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]
    f1: NDArray[np.float64]


class Confusion:
    """Counts of true and predicted classes. Memory is O(K + number of distinct pairs of them).

    Args:
        n_classes: K.

    Attributes:
        n_unknown: number of entries so far whose true class is unknown.
    """

    def __init__(self, n_classes: int) -> None:
        self.n_classes = n_classes
        # The last row is for unknown true classes; `_pending` are pairs not yet added.
        self._counts = self._tabulate(np.empty((2, 0), dtype=np.int64))
        self._pending: list[NDArray[np.int64]] = []
        self._n_pending = 0

    @property
    def n_unknown(self) -> int:
        return int(self._all()[self.n_classes].sum())

    def add(self, truth: NDArray[np.int64], predicted: NDArray[np.int64]) -> None:
        """Add entries: their true classes, where any negative number is an unknown one, and their predicted ones."""
        self._pending.append(np.stack([np.where(truth < 0, self.n_classes, truth), predicted]))
        self._n_pending += len(truth)
        # Adding costs as much as is stored, so it waits until as much has come.
        if self._n_pending > self._counts.nnz + self.n_classes:
            self._all()

    def merge(self, other: Confusion) -> None:
        """Add what another of the same classes has counted."""
        self._counts = self._all() + other._all()

    def matrix(self) -> csr_matrix:
        """K x K counts, true classes down, predicted classes across; those of unknown class are left out."""
        return self._all()[: self.n_classes].copy()

    def per_class(self) -> PerClass:
        """The counts of each class, and its precision, recall and F1."""
        counts = self._all()
        support = np.asarray(counts.sum(axis=1)).ravel()[: self.n_classes]
        predicted = np.asarray(counts.sum(axis=0)).ravel()
        true = counts.diagonal()
        precision, recall = ratio(true, predicted), ratio(true, support)
        return PerClass(support, predicted, true, precision, recall, ratio(2 * true, support + predicted))

    def _all(self) -> csr_matrix:
        if self._pending:
            self._counts = self._counts + self._tabulate(np.concatenate(self._pending, axis=1))
            self._pending, self._n_pending = [], 0
        return self._counts

    def _tabulate(self, pairs: NDArray[np.int64]) -> csr_matrix:
        ones = np.ones(pairs.shape[1], dtype=np.int64)
        return csr_matrix((ones, (pairs[0], pairs[1])), shape=(self.n_classes + 1, self.n_classes))


def ratio(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    """`part` / `whole`, 0 where there is nothing to divide by."""
    return np.divide(part, whole, out=np.zeros(np.shape(whole)), where=np.asarray(whole) > 0)
