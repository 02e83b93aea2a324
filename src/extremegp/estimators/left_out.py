"""What a model says of its own training rows, each as if it had not been trained on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from extremegp.data import FloatCSR
from extremegp.errors import DataError
from extremegp.estimators.row_ids import RowIds, checked_ids
from extremegp.metrics import TopK
from extremegp.settings.domains import number


class LeftOutBlock(NamedTuple):
    """Some of the training rows that are asked for, each left out.

    Attributes:
        rows: which of them.
        best: their most probable labels, B x k, with probabilities as scores.
        recorded: the labels that they have, B x K.
        probabilities: of these, in the order of the entries of `recorded`.
    """

    rows: slice
    best: TopK
    recorded: FloatCSR
    probabilities: NDArray[np.float32]


class LeftOutRows(NamedTuple):
    """What a model says of N of its training rows, each as if it had not been trained on.

    Attributes:
        ids: what the rows are called.
        best: their most probable labels, N x k (column indices), with probabilities as scores; padded where fewer than
            k are candidates.
        recorded: the labels that the rows have, N x K.
        probabilities: those of the recorded labels, N x K, in the same places as the entries of `recorded`.
    """

    ids: list[str]
    best: TopK
    recorded: FloatCSR
    probabilities: FloatCSR


class LeavesRowsOut:
    """An estimator that keeps its training rows and can tell what it would say of each without it."""

    ids_: RowIds

    def predict_left_out(self, ids: Iterable[str | int] | None = None, k: int = 5) -> LeftOutRows:
        """The most probable labels of training rows, each as if it had not been trained on; nothing is trained again.

        Regressions on rows leave a row out exactly. What was trained by steps has learnt from the row: functions beside
        a regression, and trees, say nothing here. A last stage of its own, learnt on the left-out rows themselves,
        makes probabilities of what the regression, or nearest rows and regressions, say without the row: two numbers
        and a floor with landmarks, the Gaussian process of the evidence in label trees (seconds, once). Functions
        without a regression lose the row's own site in their posterior. So these are probabilities of a simpler model
        than that of `predict_proba`, of labels that are recorded, whatever the propensities. Kernels, noise and weights
        of features stay those that all rows have chosen, which makes them a little better than those of new rows.

        Args:
            ids: names of the rows, in this order (see `fit`); None for all.
            k: how many labels of each.

        Raises:
            DataError: there is no such row, or one is named twice.
            SettingsError: the model keeps no rows (see `can_learn`), or k is no positive integer.
        """
        k = number("k", k, low=1, integer=True)
        places = self._places(ids)
        blocks = [*self._left_out_blocks(places, k)]
        recorded: FloatCSR = scipy.sparse.csr_matrix(scipy.sparse.vstack([block.recorded for block in blocks]))
        p = np.concatenate([block.probabilities for block in blocks])
        probabilities = scipy.sparse.csr_matrix((p, recorded.indices, recorded.indptr), shape=recorded.shape)
        names = self.ids_.names
        best = TopK.concatenate([block.best for block in blocks])
        return LeftOutRows([names[place] for place in places.tolist()], best, recorded, probabilities)

    def _places(self, ids: Iterable[str | int] | None) -> NDArray[np.int64]:
        """Which rows these are among those that the model has."""
        self._check_learns()
        if ids is None:
            return np.arange(len(self.ids_))
        names = checked_ids(ids)
        if missing := [name for name in names if name not in self.ids_]:
            raise DataError(f"the model has no row with the id {missing[0]!r} ({len(missing)} of {len(names)})")
        if not names:
            raise DataError("ids names no row")
        return np.array([self.ids_.place(name) for name in names], np.int64)

    @abstractmethod
    def _check_learns(self) -> None:
        """Refuse a model that does not keep its rows."""

    @abstractmethod
    def _left_out_blocks(self, places: NDArray[np.int64], k: int) -> Iterator[LeftOutBlock]:
        """Some training rows, a block at a time, each left out."""
