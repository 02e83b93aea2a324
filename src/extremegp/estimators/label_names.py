"""What the labels of a trained model are called: more of them, and other names."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from extremegp.data import ClassSpace, LabelSpace
from extremegp.errors import DataError
from extremegp.estimators.base import GPEstimator


class NamesLabels(GPEstimator):
    """An estimator whose labels can become more, and be called by other names, at any time."""

    # Labels that no row has any more.
    _gone_labels: set[int]

    def add_labels(self, names: Sequence[Any]) -> Self:
        """Know more labels or classes, which no row has yet: each is suggested once a row is learnt that has it.

        Args:
            names: of the labels. Classes stay in increasing order, so that their columns move.

        Raises:
            DataError: the model's labels have no names, or a name is none, known already or comes twice.
            SettingsError: the model cannot learn.
        """
        self._check_learns()
        space = self._space()
        new, known = _with_more(space, list(names)).names, set(space.names)
        added = [name for name in new if name not in known]
        self._write_down(lambda: {"call": "add_labels", "names": added})
        self._extend(added)
        return self

    def rename_label(self, old: Any, new: Any) -> Self:
        """Call a label by another name; a class moves to where that is in the increasing order.

        Raises:
            DataError: there is no label of the old name, or one of the new name.
            SettingsError: the model cannot learn.
        """
        self._check_learns()
        names = list(self._space().names)
        if old not in names:
            raise DataError(f"the model has no label {old!r}")
        names[names.index(old)] = new
        renamed = _of_names(self._space(), names)
        self._write_down(lambda: {"call": "rename_label", "old": old, "new": new})
        self._call(renamed, names)
        return self

    def _space(self) -> LabelSpace | ClassSpace:
        if self.label_space_ is None:
            raise DataError(
                "the labels of the model are columns of an indicator and have no names: train it with names"
            )
        return self.label_space_

    def _extend(self, names: Sequence[Any]) -> NDArray[np.int64]:
        """Have more labels; where those of today, and then the new ones, are among all."""
        known, space = list(self._space().names), _with_more(self._space(), names)
        order = {name: column for column, name in enumerate(space.names)}
        every = np.array([order[name] for name in [*known, *names]], np.int64)
        if names:
            places = every[: len(known)]
            self._relabel(places, len(space))
            counts = np.zeros(len(space), np.int64)
            counts[places] = self.label_counts_
            self.label_counts_ = counts
            self._gone_labels = {int(places[label]) for label in self._gone_labels}
            self._call(space, [*known, *names], relabelled=True)
            self._changed()
        return every

    def _call(self, space: LabelSpace | ClassSpace, names: Sequence[Any], *, relabelled: bool = False) -> None:
        """Call labels by the names of a space, which they have in the order of today, and new ones after them."""
        known, titles = list(self._space().names), self.label_titles_
        order = {name: column for column, name in enumerate(space.names)}
        places = np.array([order[name] for name in names], np.int64)
        if not relabelled and (np.diff(places) < 0).any():
            self._relabel(places, len(space))
            counts = np.empty_like(self.label_counts_)
            counts[places] = self.label_counts_
            self.label_counts_ = counts
        if titles is not None:
            old = [*known, *[None] * (len(names) - len(known))]
            kept = [*titles, *[""] * (len(names) - len(known))]
            moved = [""] * len(space)
            for place, was, title, name in zip(places.tolist(), old, kept, names, strict=True):
                moved[place] = title if was == name else str(name)
            self.label_titles_ = moved
        self.label_space_ = space
        self.classes_ = space.classes if isinstance(space, ClassSpace) else np.array(space.names, dtype=object)

    @abstractmethod
    def _check_learns(self) -> None:
        """Refuse a model that does not keep its rows."""

    @abstractmethod
    def _write_down(self, call: Callable[[], Mapping[str, Any]]) -> None:
        """Make a change durable, if there is a journal, before it is made."""

    @abstractmethod
    def _relabel(self, places: NDArray[np.int64], n_labels: int) -> None:
        """Let the model have more labels, among which those of today have these places."""

    @abstractmethod
    def _changed(self) -> None:
        """What follows from rows or labels that came or went."""


def _of_names(space: LabelSpace | ClassSpace, names: Sequence[Any]) -> LabelSpace | ClassSpace:
    return LabelSpace(names) if isinstance(space, LabelSpace) else ClassSpace(list(names))


def _with_more(space: LabelSpace | ClassSpace, names: Sequence[Any]) -> LabelSpace | ClassSpace:
    return _of_names(space, [*space.names, *names])
