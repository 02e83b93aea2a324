"""What models that learn make of the targets of new rows: names of labels, or classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from extremegp.data import ClassSpace, FloatCSR, FloatMatrix, LabelSpace, one_hot
from extremegp.data.frames import lists_of
from extremegp.data.labels import refuse_nested_indicator
from extremegp.data.soft_labels import are_class_probabilities
from extremegp.errors import DataError, SettingsError
from extremegp.estimators.classes import ClassEstimator
from extremegp.estimators.learning import LearnsRows, sorted_csr
from extremegp.estimators.multilabel_estimator import MultiLabelEstimator
from extremegp.prediction.decisions import MOST_LABELS, Candidates


class LearnsLabels(LearnsRows, MultiLabelEstimator):
    """An estimator of many labels per row that learns rows."""

    _one_class = False

    def _rows_of(self, X: Any, Y: Any) -> tuple[FloatMatrix, FloatCSR]:
        y = sorted_csr(self.encode_labels(Y))
        return self._suited(self._transform(X)), y

    def _left_out_candidates(self) -> tuple[FloatCSR, Iterator[tuple[slice, Candidates]]]:
        places = self._places(None)

        def found() -> Iterator[tuple[slice, Candidates]]:
            for block in self._left_out_blocks(places, min(MOST_LABELS, self.settings_.n_labels)):
                labels, p = block.best.labels, block.best.scores
                known = np.where(labels >= 0, p, 0).astype(np.float64)
                yield block.rows, Candidates(labels, known, np.zeros(len(known)))

        return sorted_csr(self._recorded()), found()

    def _first_fit(self, X: Any, Y: Any, classes: Any, sample_weight: Any) -> Self:
        if classes is not None and lists_of(Y) is None:
            fitted: Self = self.fit(X, Y, sample_weight, label_names=list(classes))
            return fitted
        self.fit(X, Y, sample_weight)
        if classes is not None:
            self.add_labels([name for name in classes if name not in set(self._space().names)])
        return self

    def _new_names(self, Y: Any) -> list[Any]:
        lists, space = lists_of(Y), self.label_space_
        if lists is None or space is None:
            return []
        refuse_nested_indicator(lists, "Y")
        # There may be no label in any of the rows.
        every: list[Any] = [*lists, space.names[:1]]
        found = LabelSpace.from_lists(every).names
        return [name for name in found if name not in space.columns]

    def _indicator(self, Y: Any, new: Sequence[Any]) -> FloatCSR:
        lists = lists_of(Y)
        if not new or lists is None:
            return sorted_csr(self.encode_labels(Y))
        known = self.label_space_
        assert known is not None
        return sorted_csr(LabelSpace([*known.names, *new]).encode(lists))


class LearnsClasses(LearnsRows, ClassEstimator):
    """An estimator of one class per row that learns rows."""

    _one_class = True

    def _rows_of(self, X: Any, Y: Any) -> tuple[FloatMatrix, FloatCSR]:
        if are_class_probabilities(Y):
            raise DataError("soft labels are no classes: give the class of each row")
        y = sorted_csr(one_hot(self.label_space_.encode(Y, unknown="ignore"), len(self.label_space_)))
        return self._suited(self._transform(X)), y

    def _check_new(self, new_labels: str) -> None:
        super()._check_new(new_labels)
        if new_labels == "ignore":
            raise SettingsError('a row without its class says nothing: new_labels must be "add" or "error" of classes')

    def _first_fit(self, X: Any, Y: Any, classes: Any, sample_weight: Any) -> Self:
        self.fit(X, Y, sample_weight)
        if classes is not None and (more := self._new_names(classes)):
            self.add_labels(more)
        return self

    def _new_names(self, Y: Any) -> list[Any]:
        if are_class_probabilities(Y):
            raise DataError("soft labels cannot be learnt: give the class of each row")
        codes = self.label_space_.encode(Y, unknown="ignore")
        values = np.asarray(Y).ravel()[codes < 0].tolist()
        known = self.label_space_.names[0]
        return sorted({type(known)(value) for value in values})

    def _indicator(self, Y: Any, new: Sequence[Any]) -> FloatCSR:
        known = self.label_space_
        every = ClassSpace([*known.names, *new]) if new else known
        places: NDArray[np.int64] = np.array([*map([*known.names, *new].index, every.names)], np.int64)
        return sorted_csr(one_hot(places[every.encode(Y)], len(every)))
