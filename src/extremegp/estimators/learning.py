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

from extremegp.data import Features, FloatCSR, FloatMatrix
from extremegp.engine.matrices import column_counts
from extremegp.engine.part import Part
from extremegp.errors import DataError, SettingsError
from extremegp.estimators.explanations import ExplainsLabels
from extremegp.estimators.fitting import check_lengths
from extremegp.estimators.label_issues import FindsLabelIssues
from extremegp.estimators.label_names import NamesLabels
from extremegp.estimators.learning_saved import LearningState
from extremegp.estimators.replay import LearntRows
from extremegp.estimators.row_ids import RowIds, checked_ids, without_absent_ids
from extremegp.prediction.novelty import KeptRowSerials, NewRow, Novelty
from extremegp.settings.domains import choice
from extremegp.storage.journal import Journal
from extremegp.storage.models import read_config


class Staleness(NamedTuple):
    """How far a model has come from the one that was trained.

    Attributes:
        n_learnt: rows that were learnt since.
        n_forgotten: rows that were forgotten since.
        log_loss: mean log-loss of rows that were learnt, in nats a row, each predicted without itself (of label trees,
            that of the candidates); NaN where there are none.
        log_loss_then: the same of rows of training: of label trees those that were held out, of other models as the
            regression has each without itself, which is what can be expected of rows like those of training.
    """

    n_learnt: int
    n_forgotten: int
    log_loss: float
    log_loss_then: float

    @property
    def drift(self) -> float:
        """By which share the log-loss of learnt rows is above that of training: a refit pays where it is large."""
        return self.log_loss / self.log_loss_then - 1


class LearnsRows(FindsLabelIssues, ExplainsLabels, NamesLabels):
    """An estimator that keeps its training rows, and can take in more or let go of some at any time.

    Attributes:
        ids_: what the training rows are called; none where the model cannot learn (see `can_learn`).
    """

    features_: Features
    ids_: RowIds
    n_forgotten_: int
    # Rows that training had, which have the serial numbers below.
    _trained: int
    # Where the model was loaded from, and how many calls have changed it since that was saved.
    _loaded_from: str | None
    _n_calls: int
    _journal: Journal | None = None
    _novelty_serials: KeptRowSerials | None
    _novelty_new: list[NewRow]
    _gone_features: set[int]

    def can_learn(self) -> str | None:
        """Why the model can neither learn nor forget; None where it can."""
        check_is_fitted(self, "model_")
        return self._cannot_learn()

    def learn(
        self,
        X: Any,
        Y: Any,
        ids: Iterable[Any] | None = None,
        *,
        sample_weight: Any = None,
        new_labels: Literal["add", "error", "ignore"] = "add",
    ) -> Self:
        """Take in more rows, at once: regressions, nearest rows and novelty know them from then on.

        The regression is what it would be had it been fitted to these rows too, with the hyper-parameters that training
        chose. What else was trained knows nothing of them until `refit`: functions beside the regression, or trees,
        exclusions and the last stage of label trees. Words that training never saw are left out. No other thread may
        predict meanwhile.

        Args:
            X: inputs, as in `fit`.
            Y: labels or classes, as in `fit`, none of them soft. They may have new names.
            ids: what the rows are called, to forget them by; by default numbers that go on from those of training.
            sample_weight: what each row counts; 0 leaves a row out.
            new_labels: what to do with names that the model has not: "add" them, refuse ("error"), or "ignore" them,
                which is not for classes.

        Raises:
            DataError: X, Y, weights or ids cannot be used; nothing is learnt then.
            SettingsError: the model cannot learn.
        """
        self._check_learns()
        self._check_new(new_labels)
        X, Y, weights, ids = without_absent_ids(X, Y, sample_weight, ids)
        x = sorted_csr(self._transform(X))
        new = self._new_names(Y)
        if new and new_labels == "error":
            raise DataError(
                f"Y has {len(new)} labels that the model has not, such as {new[0]!r}: add them by add_labels, or say "
                "new_labels='add'"
            )
        new = new if new_labels == "add" else []
        y = self._indicator(Y, new)
        check_lengths(x, y)
        own = None if weights is None else weights.astype(np.float32)
        self.learn_rows(LearntRows(x, y, self.ids_.new(ids, x.shape[0]), own, self.features_.unknown_shares(X), new))
        return self

    def partial_fit(self, X: Any, Y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train on the first rows, and `learn` all others.

        Args:
            X: as in `fit`.
            Y: as in `fit`.
            classes: labels or classes beyond those of the first rows, or names of the K columns of an indicator; for
                the first call.
            sample_weight: as in `fit`.
        """
        if hasattr(self, "model_"):
            return self.learn(X, Y, sample_weight=sample_weight)
        return self._first_fit(X, Y, classes, sample_weight)

    def forget(self, ids: Iterable[Any]) -> Self:
        """Let go of rows, at once: the regression is what it would be had it never been fitted to them.

        Once the model is saved, no number of its files comes from these rows alone: their inputs, labels and distances
        are gone, and so are the weights of landmarks that they were, of features and labels that no other row has, and
        words that no other text has. What functions or trees learnt from them together with other rows stays until
        `refit`.

        Args:
            ids: the names of the rows, as `fit` and `learn` were given them; by default those of training are called
                "0" to N - 1.

        Raises:
            DataError: there is no such row, one is named twice, or fewer than two rows with labels would stay.
            SettingsError: the model cannot learn.
        """
        self._check_learns()
        names = checked_ids(ids)
        if missing := [name for name in names if name not in self.ids_]:
            raise DataError(f"the model has no row with the id {missing[0]!r} ({len(missing)} of {len(names)})")
        places = [self.ids_.place(name) for name in names]
        with_labels = self._labelled()
        if np.count_nonzero(with_labels) - np.count_nonzero(with_labels[places]) < 2:
            raise DataError("fewer than two rows with labels would stay: train a new model instead")
        self._write_down(lambda: {"call": "forget", "ids": names})
        for name in names:
            serial = int(self.ids_.serials()[self.ids_.place(name)])
            features, labels = self._let_go(self.ids_.place(name))
            self.ids_.remove(name)
            self.label_counts_[labels] -= 1
            self._gone_features |= set(features.tolist())
            self._gone_labels |= set(labels[self.label_counts_[labels] == 0].tolist())
            self._novelty_new = [each for each in self._novelty_new if each.serial != serial]
            if self._novelty_serials is not None:
                self._novelty_serials.gone.add(serial)
        self.n_forgotten_ += len(names)
        self.n_rows_ = len(self.ids_)
        self._changed()
        return self

    def staleness(self) -> Staleness:
        """What has changed since training, and how well rows that came since are predicted without themselves.

        Raises:
            SettingsError: the model cannot learn.
        """
        self._check_learns()
        of_training = self.ids_.serials() < self._trained
        learnt, compared = np.flatnonzero(~of_training), np.flatnonzero(of_training & self._compared())
        return Staleness(len(learnt), self.n_forgotten_, *map(self._left_out_loss, (learnt, compared)))

    @abstractmethod
    def refit(self) -> Self:
        """Train anew on the rows that the model has now, with the features and the settings of its training."""

    def novelty_of(self, X: Any, x: Any) -> NDArray[Any]:
        self._settle_novelty()
        return super().novelty_of(X, x)

    def learn_rows(self, rows: LearntRows) -> None:
        """Learn rows that were checked; new labels come after those that there are."""
        self._write_down(rows.to_call)
        if rows.new_labels:
            rows = rows._replace(y=_moved(rows.y, self._extend(rows.new_labels)))
        self._take_in(rows)
        first, shares = len(self.ids_), rows.shares
        self.ids_.add(rows.ids)
        self.label_counts_ = self.label_counts_ + column_counts(rows.y)
        self.n_rows_ = len(self.ids_)
        for row, serial in enumerate(self.ids_.serials()[first:].tolist()):
            self._novelty_new.append(NewRow(serial, rows.x[row], None if shares is None else shares[row : row + 1]))
        self._changed()

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
            SettingsError: the model cannot learn.
        """
        journal = folder if isinstance(folder, Journal) else Journal(folder)
        try:
            self._check_learns()
            if (self._loaded_from, self._n_calls) != (journal.digest, journal.n_calls):
                raise DataError("the model is not the one of this folder any more: load it again", path=journal.folder)
        except BaseException:
            journal.close()
            raise
        self._journal = journal
        return journal

    def _drop_journal(self) -> None:
        """Let go of the journal, which is that of another model once this is trained."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

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
            self._begin_learning(RowIds.numbered(0 if self._cannot_learn() else self.n_rows_))

    def _check_new(self, new_labels: str) -> None:
        choice("new_labels", new_labels, ("add", "error", "ignore"))

    @abstractmethod
    def _cannot_learn(self) -> str | None: ...

    @abstractmethod
    def _first_fit(self, X: Any, Y: Any, classes: Any, sample_weight: Any) -> Self:
        """What `partial_fit` does at first."""

    @abstractmethod
    def _new_names(self, Y: Any) -> list[Any]:
        """The names of Y that the model has not."""

    @abstractmethod
    def _indicator(self, Y: Any, new: Sequence[Any]) -> FloatCSR:
        """The labels of new rows: an indicator of those that there are, and of new ones after them."""

    @abstractmethod
    def _take_in(self, rows: LearntRows) -> None:
        """Let the model learn rows."""

    @abstractmethod
    def _let_go(self, place: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Let the model forget a row: the features that no other row has, and the labels that it had."""

    @abstractmethod
    def _suited(self, x: FloatMatrix) -> FloatMatrix:
        """Features in the form of those of the rows."""

    @abstractmethod
    def _labelled(self) -> NDArray[np.bool_]:
        """Which rows have labels."""

    @abstractmethod
    def _compared(self) -> NDArray[np.bool_]:
        """Which of the rows of training tell how well others are predicted."""

    @abstractmethod
    def _left_out_loss(self, rows: NDArray[np.int64]) -> float:
        """Mean log-loss of some rows, each predicted without itself."""

    @abstractmethod
    def _scrub(self, features: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Leave nothing in the model of features and labels that no row has; which of the features that are."""

    def _begin_learning(self, ids: RowIds, *, trained: int | None = None, n_forgotten: int = 0) -> None:
        """Be ready to learn, once trained or loaded."""
        self.ids_, self.n_forgotten_ = ids, n_forgotten
        self._loaded_from, self._n_calls = None, 0
        self._trained = len(ids) if trained is None else trained
        self._novelty_new, self._gone_features, self._gone_labels = [], set(), set()
        known = self.novelty_ is not None and self._cannot_learn() is None
        self._novelty_serials = KeptRowSerials.of_fit(self._inputs()) if known else None

    def _check_learns(self) -> None:
        if (reason := self.can_learn()) is not None:
            raise SettingsError(f"this model can neither learn nor forget rows: {reason}")

    def _write_down(self, call: Callable[[], Mapping[str, Any]]) -> None:
        """Make a change durable, if there is a journal, before it is made."""
        if self._journal is not None:
            self._journal.append(call())
        self._n_calls += 1

    def _kept_novelty(self) -> Novelty:
        self._settle_novelty()
        return super()._kept_novelty()

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
        features, labels = (np.array(sorted(gone), dtype=np.int64) for gone in (self._gone_features, self._gone_labels))
        if len(features) or len(labels):
            self.features_.forget_columns(self._scrub(features, labels))
            self._gone_features, self._gone_labels = set(), set()
            self._kept.clear()

    def _serials_to_refit(self) -> KeptRowSerials | None:
        """Which of the rows that there are tell what is new, with nothing left of those that are gone."""
        self._settle()
        kept = self._novelty_serials
        return None if kept is None else kept.renumbered(self.ids_.serials())

    def _more(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """What `save` writes beside what all estimators have."""
        if self._cannot_learn() is not None:
            return {}, {}
        serials, kept = self.ids_.serials(), self._novelty_serials
        state = LearningState(
            self.ids_,
            int(np.searchsorted(serials, self._trained)),
            self.n_forgotten_,
            None if kept is None else kept.renumbered(serials),
        )
        return state.to_saved()

    @classmethod
    def _from_saved(
        cls,
        folder: str | Path,
        config: dict[str, Any],
        tensors: dict[str, torch.Tensor],
        device: torch.device,
        parts: Sequence[type[Part]],
    ) -> Self:
        estimator = super()._from_saved(folder, config, tensors, device, parts)
        estimator._check_rows(folder)
        estimator._resume_learning(folder, config, tensors)
        return estimator

    def _check_rows(self, folder: str | Path) -> None:
        """Refuse rows of a loaded model that are none."""

    def _resume_learning(
        self, folder: str | Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
    ) -> None:
        """Be ready to learn, with what `_more` gave; models of earlier versions have nothing of it.

        Raises:
            ModelFormatError: it is altered.
        """
        state = LearningState.from_saved(config, tensors, self.n_rows_, self.novelty_, folder)
        if state is None:
            self._begin_learning(RowIds.numbered(0 if self._cannot_learn() else self.n_rows_))
        else:
            self._begin_learning(state.ids, trained=state.trained, n_forgotten=state.n_forgotten)
            self._novelty_serials = state.novelty
        self._loaded_from = config.get("sha256")


def sorted_csr(matrix: Any) -> FloatCSR:
    """A CSR matrix of float32 with ascending columns."""
    found = scipy.sparse.csr_matrix(matrix, dtype=np.float32)
    return found if found.has_sorted_indices else found.sorted_indices()


def _moved(y: FloatCSR, places: NDArray[np.int64]) -> FloatCSR:
    """Labels whose columns have other places."""
    moved = scipy.sparse.csr_matrix(
        (y.data, places[y.indices].astype(np.int32), y.indptr), shape=(y.shape[0], len(places))
    )
    return sorted_csr(moved)
