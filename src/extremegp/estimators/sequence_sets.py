"""Sets of labels of tokens, and of labellings of sequences, that keep a promise."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremegp.estimators.classes import ClassEstimator
from extremegp.estimators.distances import read_once
from extremegp.estimators.guarantees import Guarantee
from extremegp.prediction.guarantees import HeldOut, scores_of
from extremegp.settings.domains import choice, number

_MOST_LABELLINGS = 50


class SequenceDecisions(NamedTuple):
    """Sets for S sequences.

    Attributes:
        labels: of every sequence a list: of its tokens' sets, T arrays of labels, or of labellings, each T labels; the
            most probable first.
        abstained: which sequences are left to people, S; their lists are empty.
    """

    labels: list[list[NDArray[Any]]]
    abstained: NDArray[np.bool_]


class DecidesSequences(ClassEstimator):
    """A classifier of tokens that promises what sets hold."""

    @abstractmethod
    def predict_marginals(self, X: Any) -> list[NDArray[np.float32]]:
        """p(y_t = v), for every sequence T x V."""

    @abstractmethod
    def predict_k_best(self, X: Any, k: int = 5) -> list[list[tuple[NDArray[Any], float]]]:
        """The k best labellings of every sequence with their log-probabilities."""

    def guarantee(
        self, X: Any, y: Any, promise: Literal["tokens", "labelling"] = "tokens", level: float = 0.9
    ) -> Guarantee:
        """A promise that sets of sequences like these will keep: give it to `decide`.

        It holds in the mean over sequences that are exchangeable with these, whatever the probabilities are worth; see
        `extremegp.prediction.guarantees`.

        Args:
            X: S sequences that the model was not trained on, as in `fit`.
            y: their labels; ones that training never saw count as labels that sets miss.
            promise: "tokens": the labels of at least `level` of the tokens of a sequence are in their sets, in
                expectation; "labelling": the labels of a whole sequence are, with that probability, one of the
                labellings of its set, of up to 50; where that is too few, for the surest sequences alone.
            level: how much.

        Raises:
            DataError: X or y cannot be used, or it cannot be promised by these sequences.
            SettingsError: an argument is outside its domain.
        """
        choice("promise", promise, ("tokens", "labelling"))
        level = number("level", level, low=0, high=1, open_low=True)
        X = read_once(X)
        truth = self._codes_of(X, y)
        held_out = self._tokens(X, truth) if promise == "tokens" else self._labellings(X, truth)
        return Guarantee.of_held_out([held_out], np.zeros(len(self.label_space_), np.int64), promise, level)

    def decide(self, X: Any, by: Guarantee) -> SequenceDecisions:
        """Sets that keep what `guarantee` promised.

        Args:
            X: as in `fit`.
            by: the guarantee.

        Raises:
            SettingsError: it is for another model.
            DataError: X cannot be used.
        """
        by.check(len(self.label_space_), ("tokens", "labelling"))
        cut, sets = by.cuts[0], []
        if by.promise == "tokens":
            for p in self.predict_marginals(X):
                order = np.argsort(-p, axis=1, kind="stable")
                taken = np.take_along_axis(p, order, axis=1) >= cut.threshold
                own = [self.label_space_.decode(row[of_row]) for row, of_row in zip(order, taken, strict=True)]
                sets.append(own if float(p.max(axis=1).mean()) >= cut.least_sureness else [])
        else:
            for best in self.predict_k_best(X, _MOST_LABELLINGS):
                p = np.exp([log_prob for _, log_prob in best])
                scores = scores_of("labelling", p[None], np.zeros(1))[0]
                sure = p.max(initial=0) >= cut.least_sureness
                sets.append(
                    [labels for (labels, _), s in zip(best, scores, strict=True) if sure and s >= cut.threshold]
                )
        return SequenceDecisions(sets, np.array([not own for own in sets], np.bool_))

    @abstractmethod
    def _codes_of(self, X: Any, y: Any) -> list[NDArray[np.int64]]:
        """Labels of sequences by number, -1 where training had none such.

        Raises:
            DataError: y does not fit X.
        """

    def _tokens(self, X: Any, truth: list[NDArray[np.int64]]) -> HeldOut:
        scores, rows, sureness = [], [], []
        for place, (p, codes) in enumerate(zip(self.predict_marginals(X), truth, strict=True)):
            known = np.flatnonzero(codes >= 0)
            scores.append(p[known, codes[known]].astype(np.float64))
            rows.append(np.full(len(known), place, np.int64))
            sureness.append(float(p.max(axis=1).mean()))
        lengths = np.array([len(codes) for codes in truth], np.int64)
        return _held_out(np.concatenate(scores), np.concatenate(rows), lengths, np.array(sureness))

    def _labellings(self, X: Any, truth: list[NDArray[np.int64]]) -> HeldOut:
        scores, rows, sureness = [], [], []
        for place, (best, codes) in enumerate(zip(self.predict_k_best(X, _MOST_LABELLINGS), truth, strict=True)):
            p = np.exp([log_prob for _, log_prob in best])
            sureness.append(float(p.max(initial=0)))
            for (labels, _), score in zip(best, scores_of("labelling", p[None], np.zeros(1))[0], strict=True):
                if np.array_equal(self.label_space_.encode(labels), codes):
                    scores.append(float(score))
                    rows.append(place)
        return _held_out(np.array(scores), np.array(rows, np.int64), np.ones(len(truth), np.int64), np.array(sureness))


def _held_out(
    scores: NDArray[np.float64], rows: NDArray[np.int64], n_true: NDArray[np.int64], sureness: NDArray[np.float64]
) -> HeldOut:
    none = np.zeros((0, 0), np.int64)
    return HeldOut(scores, rows, n_true, sureness, none, none)
