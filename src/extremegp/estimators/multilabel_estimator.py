"""What estimators of many labels per row share: their targets, rankings and scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from extremegp.data import Features, FloatCSR, FloatMatrix, LabelSpace, encode_targets, frames
from extremegp.data.labels import check_label_names, refuse_nested_indicator
from extremegp.errors import DataError, SettingsError
from extremegp.estimators.base import GPEstimator
from extremegp.estimators.decisions import Decisions, Per, Rule, best_thresholds, decided
from extremegp.estimators.fitting import check_lengths, named_columns
from extremegp.estimators.guarantees import Groups, Guarantee, label_groups, with_truth
from extremegp.estimators.parameters import TextParameters
from extremegp.estimators.selecting import Doubt, SelectsRows
from extremegp.estimators.weights import first_gains, weighted_mean
from extremegp.label_tree import LabelTreePredictor
from extremegp.metrics import TopK
from extremegp.prediction.decisions import MOST_LABELS, By, Candidates
from extremegp.prediction.predictor import Predictor, Ranked, RankedBy, stack
from extremegp.prediction.selection import entropies_of_labels
from extremegp.settings.domains import choice, number


class TrainingRows(NamedTuple):
    """Rows to train on.

    Attributes:
        features: the features step, fitted.
        x: inputs, N x D.
        y: labels that are 1, N x K.
        space: the names of the labels; None if they have none.
        target_kind: the form of the targets, which predictions take.
    """

    features: Features
    x: FloatMatrix
    y: FloatCSR
    space: LabelSpace | None
    target_kind: str


@dataclass(kw_only=True, repr=False, eq=False)
class MultiLabelEstimator(TextParameters, ClassifierMixin, GPEstimator, SelectsRows):
    """A classifier of rows with any number of labels.

    Args:
        features: what is done to X first, in training and prediction alike: "unit" scales rows to unit norm, "tfidf"
            weighs counts, "raw" leaves X alone, "text" takes a list of strings; "scale", "root" and "standard" as in
            `MultiClassGPClassifier`. "auto" is what suits X, as there: "unit" for sparse X, "root" or "standard" for
            arrays, "text" for strings. A mapping from names to such kinds is for blocks of features, such as {"title":
            "text", "vector": "unit"}: X then is a mapping from these names to texts or matrices, or a data frame with
            columns of these names, and every block has a kernel and a weight of its own. With "auto", X may be such a
            mapping too.

    Attributes:
        cannot_take: arguments of predictions that other estimators of this kind take and this one does not, "given" or
            "approximate", with the reason.
    """

    features: Literal["auto", "unit", "tfidf", "raw", "text", "scale", "root", "standard"] | Mapping[str, str] = "auto"
    features_: Features = field(init=False)
    label_space_: LabelSpace | None = field(init=False)
    cannot_take: ClassVar[Mapping[str, str]] = {}
    _target_kinds = ("lists", "sparse", "dense")

    @property
    def _has_counts(self) -> bool:
        """Whether the targets are counts."""
        return False

    @property
    def _takes_soft(self) -> bool:
        """Whether the targets may be probabilities of labels."""
        return False

    @abstractmethod
    def predictor(self) -> Predictor | LabelTreePredictor:
        """What predicts, a block of rows at a time."""

    def predict_topk(
        self, X: Any, k: int = 5, *, by: RankedBy = "probability", output: str = "arrays"
    ) -> TopK | FloatCSR:
        """The k best labels of every row, without ever holding N x K.

        Args:
            X: as in `fit`.
            k: how many labels.
            by: "utility" ranks by the mean utility, as in the papers; "probability" by p(y = 1).
            output: "arrays" for a `TopK` (labels and scores, N x k, best first), "csr" for a sparse N x K of scores.

        Returns:
            The labels (column indices) and the scores they are ranked by, padded where fewer than k are found.

        Raises:
            SettingsError: an argument is outside its domain.
            DataError: X cannot be used.
        """
        k, by = checked_ranking(k, by, output)
        x, predictor = self._transform(X), self.predictor()
        return self._gathered(predictor.top(x, k, by), output)

    def predict_proba(self, X: Any) -> NDArray[np.float32]:
        """p(y_ik = 1), N x K and dense: for many rows and labels prefer `predict_topk`."""
        x, predictor = self._transform(X), self.predictor()
        return stack(predictor.probabilities(x), x.shape[0], self.settings_.n_labels)

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """Mean utilities E f_ik, N x K and dense."""
        x, predictor = self._transform(X), self.predictor()
        return stack(predictor.mean_utilities(x), x.shape[0], self.settings_.n_labels)

    def predict(self, X: Any) -> Any:
        """The labels with p(y = 1) of at least one half.

        Returns:
            In the form that `fit` was given: N lists of label names, or an N x K indicator, sparse or dense (int64).
        """
        return self._as_targets(scipy.sparse.vstack([*self._likely(self._transform(X))], format="csr"))

    def decide(
        self,
        X: Any,
        by: By | Guarantee = "f1",
        *,
        cost_wrong: float = 1.0,
        cost_missed: float = 1.0,
        size: int = 5,
        threshold: Any = 0.5,
        least_f1: float | None = None,
        least_novelty: float | None = None,
    ) -> Decisions:
        """Sets of labels, chosen by what they are judged by; see `extremegp.prediction.decisions`.

        Args:
            X: as in `fit`.
            by: "f1", the set with the highest expected F1 of the row; "cost", the one with the lowest expected cost;
                "size", the most probable labels; "threshold", all labels of a probability at least that; or sets that
                keep what `guarantee` promised. Sets are chosen of the 400 most probable labels of a row.
            cost_wrong: of a label that does not apply, for "cost".
            cost_missed: of a label that is missed.
            size: how many labels, for "size".
            threshold: a probability, or one for each of the K labels, as `best_thresholds` gives them.
            least_f1: leave rows to people whose set has an expected F1 below this.
            least_novelty: leave rows to people whose `predict_novelty` is below this.

        Raises:
            SettingsError: an argument is outside its domain, or the model is one of counts.
            DataError: X cannot be used.
        """
        check_is_fitted(self, "model_")
        n_labels = self.settings_.n_labels
        costs: dict[str, Any] = {"cost_wrong": cost_wrong, "cost_missed": cost_missed}
        rule: Rule | Guarantee
        if isinstance(by, Guarantee):
            by.check(n_labels, ("recall", "precision", "all"))
            rule = by
        else:
            rule = Rule.of(by, n_labels, size=size, threshold=threshold, **costs)
        for name, value in {"least_f1": least_f1, "least_novelty": least_novelty}.items():
            if value is not None:
                number(name, value, low=0, high=1)
        x = self._transform(X)
        chosen, expected, promised = decided(self._likeliest(x), rule, n_labels)
        abstained = np.asarray(~promised.any(axis=1))
        if least_f1 is not None:
            abstained |= expected < least_f1
        if least_novelty is not None:
            abstained |= self.novelty_of(X, x) < least_novelty
        kept = scipy.sparse.diags_array((~abstained).astype(np.float64)) @ chosen
        labels = self._as_targets(scipy.sparse.csr_matrix(kept, dtype=np.int64))
        return Decisions(labels, expected, abstained, promised)

    def guarantee(
        self,
        X: Any,
        Y: Any,
        promise: Literal["recall", "precision", "all"] = "recall",
        level: float = 0.9,
        *,
        per: Groups = "all",
        confidence: float = 0.9,
    ) -> Guarantee:
        """A promise that sets of labels of rows like these will keep: give it to `decide`.

        It holds for rows that are exchangeable with these, whatever the probabilities are worth; see
        `extremegp.prediction.guarantees`. Where the candidates of rows are too few for it, it is for the surest rows
        alone, and the others are left to people.

        Args:
            X: N rows that the model was not trained on, as in `fit`.
            Y: their labels; names that training never saw count as labels that sets miss.
            promise: "recall": of the true labels of a row a set has at least `level` in expectation; "all": it has all
                of them with that probability; "precision": of the labels of a set that many are true in the mean over
                sets that are not empty.
            level: how much.
            per: for "all" labels at once, or for each "band" of them by frequency by itself: five with about as many
                training labels each, from rare to frequent.
            confidence: that a promise of precision holds.

        Raises:
            DataError: X or Y cannot be used, or too little can be promised by these rows.
            SettingsError: an argument is outside its domain, or the model is one of counts.
        """
        choice("promise", promise, ("recall", "precision", "all"))
        number("level", level, low=0, high=1, open_low=True)
        number("confidence", confidence, low=0, high=1, open_low=True)
        groups = label_groups(self.label_counts_, per)
        y, x = self.encode_labels(Y), self._transform(X)
        check_lengths(x, y)
        lists = frames.lists_of(Y)
        n_unknown = np.zeros(y.shape[0], np.int64)
        if lists is not None and self.label_space_ is not None:
            n_unknown = np.array([len(set(names)) for names in lists]) - np.diff(y.indptr)
        blocks = with_truth(self._likeliest(x), y, n_unknown, groups)
        return Guarantee.of(blocks, groups, promise=promise, level=level, confidence=confidence)

    def best_thresholds(self, X: Any = None, Y: Any = None, per: Per = "all") -> NDArray[np.float64]:
        """Thresholds for `decide` with the highest F1 on labelled rows that training has not seen, K.

        Args:
            X: as in `fit`; None for the training rows that the model keeps, each left out (`predict_left_out`).
            Y: labels, as in `fit`; None where X is.
            per: one for "all" labels, one for each of five "band"s of labels by frequency, or for each "label".

        Raises:
            DataError: X or Y cannot be used.
            SettingsError: there is no X, and the model keeps no rows; `per` is something else.
        """
        check_is_fitted(self, "model_")
        if (X is None) != (Y is None):
            raise DataError("give both X and Y, or neither for the training rows that the model keeps")
        if X is None:
            y, blocks = self._left_out_candidates()
            return best_thresholds(blocks, y, self.label_counts_, per)
        y, x = self.encode_labels(Y), self._transform(X)
        check_lengths(x, y)
        return best_thresholds(self._likeliest(x), y, self.label_counts_, per)

    @abstractmethod
    def _left_out_candidates(self) -> tuple[FloatCSR, Iterator[tuple[slice, Candidates]]]:
        """The labels of the training rows that the model keeps, N x K, and their candidates, each row left out.

        Raises:
            SettingsError: it keeps none.
        """

    def _likeliest(self, x: FloatMatrix) -> Iterator[tuple[slice, Candidates]]:
        if self._has_counts:
            raise SettingsError("counts are no sets of labels: there is nothing to decide")
        return self.predictor().likeliest(x, min(MOST_LABELS, self.settings_.n_labels))

    def _doubts(self, x: FloatMatrix) -> Iterator[Doubt]:
        if self._has_counts:
            raise SettingsError('counts have no probabilities to be unsure by: only by="random" is left')
        for _, candidates in self._likeliest(x):
            entropies = entropies_of_labels(candidates.probabilities)
            yield Doubt(entropies, entropies)

    def _as_targets(self, indicator: scipy.sparse.csr_matrix) -> Any:
        """An indicator in the form that `fit` was given."""
        if self.label_space_ is not None and self.target_kind_ == "lists":
            return self.label_space_.decode(indicator)
        return indicator.toarray() if self.target_kind_ == "dense" else indicator

    def score(self, X: Any, Y: Any, sample_weight: Any = None) -> float:
        """Precision at 1: the share of rows whose best-ranked label is one of theirs; of soft labels the expected one.

        Args:
            X: as in `fit`.
            Y: labels, as in `fit`; label names never seen in training count as labels that cannot be predicted.
            sample_weight: weights of the N rows.
        """
        y = self._encoded(Y, soft=self._takes_soft)
        x, predictor = self._transform(X), self.predictor()
        best = TopK.concatenate([best for _, best, _ in predictor.top(x, 1)])
        check_lengths(best.labels, y)
        return weighted_mean(first_gains(y, best), sample_weight)

    def encode_labels(self, Y: Any) -> FloatCSR:
        """Labels of new rows as an N x K indicator over the training labels.

        Raises:
            DataError: Y has other columns than the labels of training or soft labels, or cannot be used.
        """
        return self._encoded(Y, soft=False)

    def _encoded(self, Y: Any, *, soft: bool) -> FloatCSR:
        check_is_fitted(self, "model_")
        y = encode_as_known(Y, self.settings_.n_labels, self.label_space_, counts=self._has_counts, soft=soft)
        # Of counts, a label is present where there is any.
        return y.sign() if self._has_counts else y

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.string = self.features == "text" or isinstance(self.features, Mapping)
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = True
        return tags

    def _training_rows(self, X: Any, Y: Any, label_names: Sequence[str | int] | None) -> TrainingRows:
        """What `fit` is given, encoded.

        Raises:
            DataError: X, Y or the names cannot be used, or do not fit each other.
        """
        features = self.new_features(self.features, X).fit(X)
        x: FloatMatrix = features.transform(X)
        y, names = encode_targets(Y, counts=self._has_counts, soft=self._takes_soft)
        check_lengths(x, y)
        if label_names is None:
            label_names = frames.label_names(Y)
        space = names if label_names is None else named_columns(label_names, y, names)
        kind = "lists" if names is not None else "sparse" if frames.is_sparse(Y) else "dense"
        return TrainingRows(features, x, y, space, kind)

    def _likely(self, x: FloatMatrix) -> Iterator[scipy.sparse.csr_matrix]:
        """1 where a label has p(y = 1) of at least one half, a block of rows at a time."""
        for _, probabilities in self.predictor().probabilities(x):
            yield scipy.sparse.csr_matrix(probabilities >= 0.5, dtype=np.int64)

    def _gathered(self, ranked: Iterable[Ranked], output: str) -> TopK | FloatCSR:
        """The best labels of all rows in the form that `predict_topk` was asked for."""
        best = TopK.concatenate([best for _, best, _ in ranked])
        return best.to_csr(self.settings_.n_labels) if output == "csr" else best


def encode_as_known(
    Y: Any, n_labels: int, space: LabelSpace | None, *, counts: bool, soft: bool = False, name: str = "Y"
) -> FloatCSR:
    """Labels of other rows than those of training as an N x K indicator, or counts.

    Args:
        Y: as in `fit`; label names that training had not are left out.
        n_labels: K.
        space: the names of the labels of training, if they have any.
        counts: take counts for an indicator.
        soft: take probabilities in an indicator.
        name: what to call Y in messages.

    Raises:
        DataError: Y has other columns than the labels of training, or cannot be used.
    """
    lists = frames.lists_of(Y)
    if lists is not None and space is not None:
        refuse_nested_indicator(lists, name)
        return space.encode(lists, unknown="ignore")
    y, names = encode_targets(Y, counts=counts, soft=soft)
    if names is not None:
        raise DataError(f"{name} holds label names, but the model was trained on an indicator without names")
    check_label_names(Y, space, name)
    if y.shape[1] != n_labels:
        raise DataError(f"{name} has {y.shape[1]} labels, but the model was trained with {n_labels}")
    return y


def checked_ranking(k: Any, by: Any, output: Any) -> tuple[int, RankedBy]:
    """The arguments of `predict_topk`, checked before any work.

    Raises:
        SettingsError: one is outside its domain.
    """
    choice("output", output, ("arrays", "csr"))
    return number("k", k, low=1, integer=True), choice("by", by, ("utility", "probability"))
