"""Learning rows, and forgetting them, one at a time and in milliseconds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from extremegp.data import FloatCSR, LabelSpace
from extremegp.data.frames import lists_of
from extremegp.data.labels import refuse_nested_indicator
from extremegp.engine.matrices import column_counts
from extremegp.errors import DataError, ModelFormatError
from extremegp.estimators.fitting import check_lengths
from extremegp.estimators.multilabel_estimator import MultiLabelEstimator
from extremegp.estimators.replay import LearntRows
from extremegp.estimators.row_ids import RowIds, checked_ids
from extremegp.estimators.weights import without_absent
from extremegp.label_tree import LabelTreeModel, LabelTreePredictor
from extremegp.label_tree.rows import Rows
from extremegp.prediction.novelty import KeptRowSerials, NewRow, Novelty
from extremegp.settings.domains import choice
from extremegp.storage.journal import Journal
from extremegp.storage.models import read_config

_IDS, _NOVELTY_ROWS, _NOVELTY_LEFT_OUT = "learning.ids", "learning.novelty_rows", "learning.novelty_left_out"
_STALE_ROWS, _LEAST_PROBABILITY = 512, 1e-9


class Staleness(NamedTuple):
    """How far a model has come from the one that was trained.

    Attributes:
        n_learnt: rows that were learnt since.
        n_forgotten: rows that were forgotten since.
        log_loss: mean log-loss of the candidates of rows that were learnt, in nats a row, each predicted without
            itself; NaN where there are none.
        log_loss_then: the same of rows that training held out, which is what can be expected of rows like those of
            training.
    """

    n_learnt: int
    n_forgotten: int
    log_loss: float
    log_loss_then: float

    @property
    def drift(self) -> float:
        """By which share the log-loss of learnt rows is above that of rows held out: a refit pays where it is large."""
        return self.log_loss / self.log_loss_then - 1


class LearnsRows(MultiLabelEstimator):
    """An estimator that keeps its training rows, and can take in more or let go of some at any time.

    Attributes:
        ids_: what the training rows are called.
    """

    model_: LabelTreeModel
    ids_: RowIds
    n_forgotten_: int
    # Rows that training had, which have the serial numbers below.
    _trained: int
    _journal: Journal | None = None
    _novelty_serials: KeptRowSerials | None
    _novelty_new: list[NewRow]
    _gone_features: set[int]
    _gone_labels: set[int]

    @abstractmethod
    def predictor(self) -> LabelTreePredictor:
        """What predicts, a block of rows at a time."""

    def learn(
        self,
        X: Any,
        Y: Any,
        ids: Iterable[Any] | None = None,
        *,
        sample_weight: Any = None,
        new_labels: Literal["add", "error", "ignore"] = "add",
    ) -> Self:
        """Take in more rows, at once: nearest rows and regressions know them from then on.

        Predictions are those of a model with the same trees and the same last stage whose training rows have these
        after them. Trees, exclusions and the last stage know nothing of them until `refit`. Words that training never
        saw are left out. No other thread may predict meanwhile.

        Args:
            X: inputs, as in `fit`.
            Y: labels, as in `fit`. Lists may have new names.
            ids: what the rows are called, to forget them by; by default numbers that go on from those of training.
            sample_weight: what each row counts; 0 leaves a row out.
            new_labels: what to do with names that the model has not: "add" them, refuse ("error"), or "ignore" them.

        Raises:
            DataError: X, Y, weights or ids cannot be used; nothing is learnt then.
        """
        check_is_fitted(self, "model_")
        choice("new_labels", new_labels, ("add", "error", "ignore"))
        X, Y, weights, ids = without_absent_ids(X, Y, sample_weight, ids)
        x = _sorted(self._transform(X))
        space = self._extended_space(Y, new_labels)
        y = self._labels(Y, space)
        check_lengths(x, y)
        own = None if weights is None else weights.astype(np.float32)
        new = [] if space is None else list(space.names[self.settings_.n_labels :])
        self.learn_rows(LearntRows(x, y, self.ids_.new(ids, x.shape[0]), own, self.features_.unknown_shares(X), new))
        return self

    def partial_fit(self, X: Any, Y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train on the first rows, and `learn` all others.

        Args:
            X: as in `fit`.
            Y: as in `fit`.
            classes: names of the K columns of an indicator, or labels beyond those of the first rows; for the first
                call.
            sample_weight: as in `fit`.
        """
        if hasattr(self, "model_"):
            return self.learn(X, Y, sample_weight=sample_weight)
        if classes is not None and lists_of(Y) is None:
            return self.fit(X, Y, sample_weight, label_names=classes)  # type: ignore[no-any-return]
        self.fit(X, Y, sample_weight)
        if classes is not None:
            self.add_labels([name for name in classes if name not in self._space().columns])
        return self

    def forget(self, ids: Iterable[Any]) -> Self:
        """Let go of rows: predictions are those of a model that never kept them as neighbours, at once.

        Once the model is saved, no number of its files comes from these rows alone: their inputs, labels and distances
        are gone, and so are the weights of features and labels that no other row has, and words that no other text
        has. Weights that trees learnt from them together with other rows stay until `refit`.

        Args:
            ids: the names of the rows, as `fit` and `learn` were given them; by default those of training are called
                "0" to N - 1.

        Raises:
            DataError: there is no such row, one is named twice, or fewer than two rows with labels would stay.
        """
        check_is_fitted(self, "model_")
        names = checked_ids(ids)
        if missing := [name for name in names if name not in self.ids_]:
            raise DataError(f"the model has no row with the id {missing[0]!r} ({len(missing)} of {len(names)})")
        model, starts = self.model_, self.model_.rows.array("label_indptr")
        places = [self.ids_.place(name) for name in names]
        with_labels = np.diff(starts) > 0
        if np.count_nonzero(with_labels) - np.count_nonzero(with_labels[places]) < 2:
            raise DataError("fewer than two rows with labels would stay: train a new model instead")
        self._write_down(lambda: {"call": "forget", "ids": names})
        for name in names:
            serial = int(self.ids_.serials()[self.ids_.place(name)])
            place = self.ids_.remove(name)
            features, labels = model.rows.features_of(place).copy(), model.rows.labels_of(place).copy()
            model.remove(place)
            self.label_counts_[labels] -= 1
            columns = model.rows.columns()
            self._gone_features |= set(features[columns.starts[features] == columns.ends[features]].tolist())
            self._gone_labels |= set(labels[self.label_counts_[labels] == 0].tolist())
            self._novelty_new = [each for each in self._novelty_new if each.serial != serial]
            if self._novelty_serials is not None:
                self._novelty_serials.gone.add(serial)
        self.n_forgotten_ += len(names)
        self.n_rows_, self.settings_ = len(self.ids_), model.settings
        return self

    def add_labels(self, names: Sequence[Any]) -> Self:
        """Know more labels, which no row has yet: each is suggested once a row is learnt that has it.

        Args:
            names: of the labels.

        Raises:
            DataError: the model's labels have no names, or a name is none, known already or comes twice.
        """
        check_is_fitted(self, "model_")
        space = self._space()
        extended = LabelSpace([*space.names, *names])
        self._write_down(lambda: {"call": "add_labels", "names": list(extended.names[len(space) :])})
        self._extend(extended)
        return self

    def rename_label(self, old: Any, new: Any) -> Self:
        """Call a label by another name.

        Raises:
            DataError: there is no label of the old name, or one of the new name.
        """
        check_is_fitted(self, "model_")
        space = self._space()
        if old not in space.columns:
            raise DataError(f"the model has no label {old!r}")
        names = list(space.names)
        names[space.columns[old]] = new
        renamed = LabelSpace(names)
        self._write_down(lambda: {"call": "rename_label", "old": old, "new": new})
        self._name(renamed)
        return self

    def staleness(self) -> Staleness:
        """What has changed since training, and how well rows that came since are predicted without themselves."""
        check_is_fitted(self, "model_")
        rows = self.model_.rows
        seen = rows.array("seen") if rows.settings.marked else np.ones(self.n_rows_)
        of_training = self.ids_.serials() < self._trained
        learnt, held_out = np.flatnonzero(~of_training), np.flatnonzero(of_training & (seen == 0))
        return Staleness(len(learnt), self.n_forgotten_, *map(self._left_out_loss, (learnt, held_out)))

    @abstractmethod
    def refit(self) -> Self:
        """Train anew on the rows that the model has now, with the features and the settings of its training."""

    def novelty_of(self, X: Any, x: Any) -> NDArray[Any]:
        self._settle_novelty()
        return super().novelty_of(X, x)

    def _kept_novelty(self) -> Novelty:
        self._settle_novelty()
        return super()._kept_novelty()

    def _begin_learning(self, ids: RowIds, *, trained: int | None = None, n_forgotten: int = 0) -> None:
        """Be ready to learn, once trained or loaded."""
        self.ids_, self.n_forgotten_ = ids, n_forgotten
        # Where the model was loaded from, and how many calls have changed it since that was saved.
        self._loaded_from: str | None = None
        self._n_calls = 0
        self._trained = len(ids) if trained is None else trained
        self._novelty_new, self._gone_features, self._gone_labels = [], set(), set()
        self._novelty_serials = None if self.novelty_ is None else KeptRowSerials.of_fit(self.model_.rows.inputs())

    def learn_rows(self, rows: LearntRows) -> None:
        """Learn rows that were checked."""
        self._write_down(rows.to_call)
        if rows.new_labels:
            self._extend(LabelSpace([*self._space().names, *rows.new_labels]))
        self.model_.add(rows.x, rows.y, rows.weights)
        first, shares = len(self.ids_), rows.shares
        self.ids_.add(rows.ids)
        self.label_counts_ = self.label_counts_ + column_counts(rows.y)
        self.n_rows_, self.settings_ = len(self.ids_), self.model_.settings
        for row, serial in enumerate(self.ids_.serials()[first:].tolist()):
            self._novelty_new.append(NewRow(serial, rows.x[row], None if shares is None else shares[row : row + 1]))

    def keep_journal(self, folder: str | Path | Journal) -> Journal:
        """Make every change durable before its call returns, in a journal beside the model that was loaded from there.

        `extremegp.load` does again what the journal says, and `save` to the same folder makes a new model without
        one. While the journal is held, until its `close`, no other process can change the model.

        Args:
            folder: that the model was loaded from, and not changed since; or the journal itself, if the model was
                loaded once that was held.

        Raises:
            DataError: the model is not that of the folder, or another process holds it.
            ModelFormatError: the folder is no model, or its journal is damaged.
        """
        journal = folder if isinstance(folder, Journal) else Journal(folder)
        if (self._loaded_from, self._n_calls) != (journal.digest, journal.n_calls):
            journal.close()
            raise DataError("the model is not the one of this folder any more: load it again", path=journal.folder)
        self._journal = journal
        return journal

    def save(self, folder: str | Path) -> None:
        super().save(folder)
        self._loaded_from, self._n_calls = str(read_config(folder)["sha256"]), 0
        if self._journal is not None and self._journal.folder.resolve() == Path(folder).resolve():
            self._journal.renewed()

    def __getstate__(self) -> Any:
        # A copy is not what the journal is about.
        return {name: value for name, value in super().__getstate__().items() if name != "_journal"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "model_" in state and "ids_" not in state:
            # It was pickled by an earlier version.
            self._begin_learning(RowIds.numbered(self.n_rows_))

    def _write_down(self, call: Callable[[], Mapping[str, Any]]) -> None:
        """Make a change durable, if there is a journal, before it is made."""
        if self._journal is not None:
            self._journal.append(call())
        self._n_calls += 1

    def _space(self) -> LabelSpace:
        if self.label_space_ is None:
            raise DataError(
                "the labels of the model are columns of an indicator and have no names: train it with names"
            )
        return self.label_space_

    def _extended_space(self, Y: Any, new_labels: str) -> LabelSpace | None:
        """The labels with those that lists have beside them; None where nothing changes."""
        lists, space = lists_of(Y), self.label_space_
        if lists is None or space is None:
            return None
        refuse_nested_indicator(lists, "Y")
        found = [name for name in LabelSpace.from_lists([*lists, space.names[:1]]).names if name not in space.columns]
        if found and new_labels == "error":
            raise DataError(
                f"Y has {len(found)} labels that the model has not, such as {found[0]!r}: add them by add_labels, or "
                "say new_labels='add'"
            )
        return LabelSpace([*space.names, *found]) if found and new_labels == "add" else None

    def _labels(self, Y: Any, space: LabelSpace | None) -> FloatCSR:
        if space is None:
            return _sorted(self.encode_labels(Y))
        lists = lists_of(Y)
        assert lists is not None
        return _sorted(space.encode(lists))

    def _extend(self, space: LabelSpace) -> None:
        """Have the labels of a space that begins as that of today does."""
        n_new = len(space) - len(self._space())
        if n_new:
            self.model_.add_labels(n_new)
            self.settings_ = self.model_.settings
            self.label_counts_ = np.append(self.label_counts_, np.zeros(n_new, np.int64))
            self._name(space)

    def _name(self, space: LabelSpace) -> None:
        titles = self.label_titles_
        if titles is not None:
            kept = zip(self._space().names, space.names, titles, strict=False)
            self.label_titles_ = [title if old == new else str(new) for old, new, title in kept]
            self.label_titles_ += map(str, space.names[len(titles) :])
        self.label_space_, self.classes_ = space, np.array(space.names, dtype=object)

    def _left_out_loss(self, rows: NDArray[np.int64]) -> float:
        """Mean log-loss of some rows, each predicted without itself, over the labels that are candidates or theirs."""
        if not len(rows):
            return float("nan")
        some = rows[np.linspace(0, len(rows) - 1, min(len(rows), _STALE_ROWS)).round().astype(np.int64)]
        inputs = self.model_.rows.inputs()[some]
        losses = 0.0
        for block, evidence, _, chances in self.predictor().candidates(inputs, own=some):
            for row in range(block.stop - block.start):
                own, of_row = self.model_.rows.labels_of(int(some[block.start + row])), evidence.rows == row
                labels = evidence.labels[of_row]
                p = np.clip(chances[of_row], _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
                hit = np.isin(labels, own)
                n_missed = len(own) - np.count_nonzero(hit)
                losses -= np.log(np.where(hit, p, 1 - p)).sum()
                losses -= n_missed * np.log(max(float(self.model_.background), _LEAST_PROBABILITY))
        return float(losses / len(some))

    def _settle_novelty(self) -> None:
        kept = self._novelty_serials
        if self.novelty_ is None or kept is None or not (self._novelty_new or kept.gone):
            return
        self.novelty_ = kept.apply(self.novelty_, self._novelty_new)
        self._novelty_new = []
        if self.novelty_ is None:
            self._novelty_serials = None

    def _settle(self) -> None:
        """Leave nothing of rows that were forgotten, before the model is saved."""
        self._settle_novelty()
        self.model_.settle()
        features, labels = (np.array(sorted(gone), dtype=np.int64) for gone in (self._gone_features, self._gone_labels))
        if len(features) or len(labels):
            for tree in self.model_.trees:
                tree.scrub(features, labels)
            columns = self.model_.rows.columns()
            empty = features[columns.starts[features] == columns.ends[features]]
            self.features_.forget_columns(empty)
            self._gone_features, self._gone_labels = set(), set()
            self._kept.clear()

    def _rows_to_refit(self) -> tuple[Rows, Novelty | None, KeptRowSerials | None]:
        """The rows that there are, and which of them tell what is new, with nothing left of those that are gone."""
        self._settle()
        kept = self._novelty_serials
        return self.model_.rows, self.novelty_, None if kept is None else kept.renumbered(self.ids_.serials())

    def _more(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """What `save` writes beside what all estimators have."""
        config: dict[str, Any] = {
            "learning": {"next": self.ids_.next_number, "trained": 0, "forgotten": self.n_forgotten_}
        }
        serials = self.ids_.serials()
        config["learning"]["trained"] = int(np.searchsorted(serials, self._trained))
        tensors = {_IDS: torch.from_numpy(self.ids_.to_bytes().copy())}
        if self._novelty_serials is not None:
            kept = self._novelty_serials.renumbered(serials)
            tensors |= {_NOVELTY_ROWS: torch.from_numpy(kept.rows), _NOVELTY_LEFT_OUT: torch.from_numpy(kept.left_out)}
        return config, tensors

    def _resume_learning(
        self, folder: str | Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        """Be ready to learn, with what `_more` gave; models of earlier versions have nothing of it.

        Raises:
            ModelFormatError: it is altered.
        """
        learning, stored = config.get("learning"), tensors.get(_IDS)
        self._begin_from(folder, learning, stored, tensors)
        self._loaded_from = config.get("sha256")

    def _begin_from(
        self, folder: str | Path, learning: Any, stored: torch.Tensor | None, tensors: Mapping[str, torch.Tensor]
    ) -> None:
        if learning is None:
            self._begin_learning(RowIds.numbered(self.n_rows_))
            return
        numbers = [learning.get(name) for name in ("trained", "forgotten")] if isinstance(learning, dict) else [None]
        sound = all(type(number) is int and 0 <= number < 2**62 for number in numbers)
        if not sound or stored is None or stored.dtype != torch.uint8 or stored.ndim != 1:
            raise ModelFormatError(f"{folder}: what it says of its rows is damaged")
        try:
            ids = RowIds.from_bytes(stored.numpy(), learning.get("next"), self.n_rows_)
        except ModelFormatError as error:
            raise ModelFormatError(f"{folder}: {error}") from error
        self._begin_learning(ids, trained=numbers[0], n_forgotten=numbers[1] or 0)
        if self.novelty_ is not None:
            sizes = {_NOVELTY_ROWS: self.novelty_.n_rows, _NOVELTY_LEFT_OUT: len(self.novelty_.left_out)}
            for name, size in sizes.items():
                part = tensors.get(name)
                fits = part is not None and part.dtype == torch.int64 and part.shape == (size,)
                if part is None or not fits or part.min() < 0 or part.max() >= self.n_rows_:
                    raise ModelFormatError(f"{folder}: the rows that novelty is told by are not those of the model")
            self._novelty_serials = KeptRowSerials(*(tensors[name].numpy().copy() for name in sizes))


def without_absent_ids(
    X: Any, Y: Any, sample_weight: Any, ids: Iterable[Any] | None
) -> tuple[Any, Any, NDArray[np.float64] | None, list[Any] | None]:
    """As `without_absent`, and the names of the rows that stay."""
    names = None if ids is None else checked_ids(ids)
    if names is not None and sample_weight is not None and not np.isscalar(sample_weight):
        counted = np.asarray(sample_weight, dtype=np.float64).ravel()
        if len(counted) != len(names):
            raise DataError(f"there are {len(names)} ids for {len(counted)} rows")
        names = [name for name, weight in zip(names, counted, strict=True) if weight]
    return *without_absent(X, Y, sample_weight), names


def _sorted(matrix: Any) -> FloatCSR:
    found = scipy.sparse.csr_matrix(matrix, dtype=np.float32)
    return found if found.has_sorted_indices else found.sorted_indices()
