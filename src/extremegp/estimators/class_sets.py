"""Sets of classes, and classes that are left to people."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from extremegp.data import FloatMatrix
from extremegp.errors import DataError, SettingsError
from extremegp.estimators.classes import ClassEstimator
from extremegp.estimators.fitting import check_lengths
from extremegp.estimators.guarantees import Groups, Guarantee, label_groups
from extremegp.prediction.decisions import MOST_LABELS, Candidates
from extremegp.prediction.guarantees import Labelled
from extremegp.prediction.predictor import Predictor
from extremegp.settings.domains import choice, number

ClassBy = Literal["likeliest", "cost", "size"]
_MOST_COSTS = 20_000


class ClassDecisions(NamedTuple):
    """Sets of classes for N rows.

    Attributes:
        labels: N arrays of classes, the most probable first, in the type that `fit` was given.
        probability: that the class of the row is in its set, N, as the probabilities have it.
        abstained: which rows are left to people, N; their sets are empty.
    """

    labels: list[NDArray[Any]]
    probability: NDArray[np.float64]
    abstained: NDArray[np.bool_]


class DecidesClasses(ClassEstimator):
    """A classifier of rows that decides between its classes."""

    label_counts_: NDArray[np.int64]

    @abstractmethod
    def encode_labels(self, y: Any) -> NDArray[np.int64]:
        """Column of the class of every row, -1 for classes never seen in training."""

    @abstractmethod
    def predictor(self) -> Predictor:
        """What predicts with the fitted model."""

    def decide(
        self,
        X: Any,
        by: ClassBy | Guarantee = "likeliest",
        *,
        costs: Any = None,
        size: int = 5,
        least_probability: float | None = None,
        least_novelty: float | None = None,
    ) -> ClassDecisions:
        """Sets of classes, one of each row where nothing else is asked for.

        Args:
            X: as in `fit`.
            by: "likeliest", the most probable class; "cost", the one with the lowest expected cost; "size", the most
                probable ones; or sets that keep what `guarantee` promised, of the 400 most probable classes of a row.
            costs: for "cost", K x K: what it costs to decide for class j (column) where class i (row) is true, in the
                order of `classes_`; with K + 1 columns, the last is what it costs to leave the row to people.
            size: how many classes, for "size".
            least_probability: leave rows to people whose set has a probability below this.
            least_novelty: leave rows to people whose `predict_novelty` is below this.

        Raises:
            SettingsError: an argument is outside its domain.
            DataError: X cannot be used.
        """
        x, n_classes = self._transform(X), self.settings_.n_labels
        for name, value in {"least_probability": least_probability, "least_novelty": least_novelty}.items():
            if value is not None:
                number(name, value, low=0, high=1)
        if isinstance(by, Guarantee):
            by.check(n_classes, ("class",))
        else:
            choice("by", by, get_args(ClassBy))
        if by == "cost":
            found = self._cheapest(x, _checked_costs(costs, n_classes))
        else:
            size = number("size", size, low=1, integer=True) if by == "size" else 1
            found = [*self._sets(x, by if isinstance(by, Guarantee) else min(size, n_classes))]
        sets, p = [each for each, _ in found], np.array([share for _, share in found])
        abstained = np.array([not len(each) for each in sets], np.bool_)
        if least_probability is not None:
            abstained |= p < least_probability
        if least_novelty is not None:
            abstained |= self.novelty_of(X, x) < least_novelty
        labels = [
            self.label_space_.decode(each[:0] if left else each) for each, left in zip(sets, abstained, strict=True)
        ]
        return ClassDecisions(labels, p, abstained)

    def guarantee(self, X: Any, y: Any, level: float = 0.9, *, per: Groups | Literal["class"] = "all") -> Guarantee:
        """A promise that sets of classes of rows like these will keep: give it to `decide`.

        A set has the class of its row with a probability of at least `level`, for rows that are exchangeable with
        these, whatever the probabilities are worth (conformal prediction: Vovk, Gammerman and Shafer 2005); and where
        `per` says so for each group of true classes.

        Args:
            X: N rows that the model was not trained on, as in `fit`.
            y: their classes; ones that training never saw count as classes that sets miss.
            level: how much.
            per: "all"; for each "band" of classes by frequency, five with about as many training rows each; or for each
                "class" with enough of these rows for it, level / (1 - level), and for all others together.

        Raises:
            DataError: X or y cannot be used, or too little can be promised by these rows.
            SettingsError: an argument is outside its domain.
        """
        level = number("level", level, low=0, high=1, open_low=True)
        choice("per", per, ("all", "band", "class"))
        codes, x = self.encode_labels(y), self._transform(X)
        check_lengths(x, codes)
        if per == "class":
            groups = _enough(codes, self.settings_.n_labels, level)
        else:
            groups = label_groups(self.label_counts_, per)
        return Guarantee.of(self._with_truth(x, codes, groups), groups, promise="class", level=level)

    def _with_truth(self, x: FloatMatrix, codes: NDArray[np.int64], groups: NDArray[np.int64]) -> Iterator[Labelled]:
        for rows, candidates in self._class_candidates(x):
            own = codes[rows]
            n_true = np.zeros((len(own), int(groups.max()) + 1), np.int64)
            # Classes that training never saw count among the first group, the rarest.
            n_true[np.arange(len(own)), np.where(own < 0, 0, groups[own])] = 1
            yield Labelled(rows, candidates, (candidates.labels == own[:, None]) & (own >= 0)[:, None], n_true)

    def _class_candidates(self, x: FloatMatrix) -> Iterator[tuple[slice, Candidates]]:
        return self.predictor().likeliest(x, min(MOST_LABELS, self.settings_.n_labels))

    def _sets(self, x: FloatMatrix, rule: Guarantee | int) -> Iterator[tuple[NDArray[np.int64], float]]:
        for _, candidates in self._class_candidates(x):
            taken = np.zeros(candidates.labels.shape, np.bool_)
            if isinstance(rule, Guarantee):
                taken, _ = rule.chosen(candidates)
            else:
                taken[:, :rule] = candidates.labels[:, :rule] >= 0
            for labels, p, own in zip(candidates.labels, candidates.probabilities, taken, strict=True):
                yield labels[own], float(p[own].sum())

    def _cheapest(self, x: FloatMatrix, costs: NDArray[np.float64]) -> list[tuple[NDArray[np.int64], float]]:
        found, n_classes = [], len(costs)
        for _, p in self.predictor().probabilities(x):
            best = (p @ costs).argmin(axis=1)
            for row, decided in enumerate(best.tolist()):
                left = decided == n_classes
                found.append((np.array([] if left else [decided], np.int64), 0.0 if left else float(p[row, decided])))
        return found


def _checked_costs(costs: Any, n_classes: int) -> NDArray[np.float64]:
    """Raises SettingsError for what are no costs."""
    if n_classes > _MOST_COSTS:
        raise SettingsError(f"costs are a matrix of classes: there are {n_classes}, more than {_MOST_COSTS}")
    try:
        found = np.asarray(costs, np.float64)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.shape not in ((n_classes, n_classes), (n_classes, n_classes + 1)) or not np.isfinite(found).all():
        raise SettingsError(f"costs must be {n_classes} x {n_classes} numbers, or one column more; got {costs!r}")
    return found


def _enough(codes: NDArray[np.int64], n_classes: int, level: float) -> NDArray[np.int64]:
    """Groups of classes, K: the first of those with few rows, each other by itself."""
    if level == 1:
        raise DataError("100 % cannot be promised by any number of rows: ask for less")
    counts = np.bincount(codes[codes >= 0], minlength=n_classes)
    own = counts >= level / (1 - level) - 1e-9
    groups = np.zeros(n_classes, np.int64)
    groups[own] = np.arange(own.sum()) + (0 if own.all() else 1)
    return groups
