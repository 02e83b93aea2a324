"""What decisions about many labels per row are worth: label by label, in averages, and at which thresholds.

A label is predicted where its probability is at least a threshold. Blocks of rows stream through `LabelMetrics`, with
the probabilities of all labels or of each row's best alone; nothing of size N x K is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix

from extremegp.errors import DataError, SettingsError
from extremegp.metrics.confusion import PerClass, ratio
from extremegp.metrics.pairs import RankedPairs, Steps
from extremegp.metrics.probability import best_block, dense_block
from extremegp.metrics.topk import PAD, TopK, check_positive_int, indicator

MOST_PAIRS = 1 << 24
"""Pairs of a row and a label that are kept for curves and best thresholds, by default: 8 bytes each."""

MEASURES = ("precision", "recall", "f1", "jaccard")
AVERAGES = ("micro", "macro", "example")

# Elements of a dense block handled at once.
_CHUNK = 1 << 18


@dataclass(frozen=True, eq=False)
class PerLabel(PerClass):
    """What was predicted of each label, and how good its probabilities are; without a row to divide by, a ratio is 0.

    Besides what a class has, where `predicted`, `true_positives`, `precision`, `recall` and `f1` are those at the
    threshold of `LabelMetrics`:

    Args:
        best_threshold: K, the probability from which on predicting the label gives the highest F1 on these very rows,
            the highest of equally good ones; NaN for a label that no threshold finds in a row that has it.
        best_precision: K, precision at that threshold.
        best_recall: K, recall at it.
        best_f1: K, F1 at it.
        average_precision: K, sum over thresholds of precision times the growth of recall.
        count: K, rows whose probability of the label is known: all, or those that have it among their best.
        mean_probability: K, mean probability of the label over these rows.
        frequency: K, share of these rows that have the label.
        calibration_error: K, expected calibration error of the label over these rows.
    """

    best_threshold: NDArray[np.float64]
    best_precision: NDArray[np.float64]
    best_recall: NDArray[np.float64]
    best_f1: NDArray[np.float64]
    average_precision: NDArray[np.float64]
    count: NDArray[np.int64]
    mean_probability: NDArray[np.float64]
    frequency: NDArray[np.float64]
    calibration_error: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """Precision and recall over all pairs of a row and a label as the threshold falls.

    Args:
        threshold: probabilities that true pairs have, in descending order.
        precision: share of the pairs with that probability or more that are true.
        recall: share of the true pairs that are among these.
        average_precision: area under the curve, as scikit-learn computes it.
    """

    threshold: NDArray[np.float64]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]
    average_precision: float


class LabelMetrics:
    """Accumulates what thresholds on the probabilities of many labels give, over blocks of rows.

    What is counted at the one threshold is exact. Curves, average precision and best thresholds are computed from the
    most probable pairs of a row and a label, `most_pairs` at most; probabilities are rounded to float32 before they are
    compared. `exact_above` says down to which probability no pair is missing: precision, recall and F1 of every
    threshold above it are exact, too. What is missing counts as of probability 0, which is never predicted and comes
    last, tied. Memory beside the block is O(K n_bins + most_pairs).

    Args:
        n_labels: K.
        threshold: a label is predicted where its probability is at least this, in (0, 1].
        n_bins: number of equal-width bins of each label's calibration error; the last bin includes probability 1.
        most_pairs: pairs to keep.

    Raises:
        SettingsError: n_labels, n_bins or most_pairs is not a positive integer, or the threshold is not in (0, 1].
    """

    def __init__(
        self, n_labels: int, *, threshold: float = 0.5, n_bins: int = 15, most_pairs: int = MOST_PAIRS
    ) -> None:
        for name, value in (("n_labels", n_labels), ("n_bins", n_bins), ("most_pairs", most_pairs)):
            check_positive_int(value, name)
        if not 0 < threshold <= 1:
            raise SettingsError(f"threshold must be a probability above 0 and at most 1; got {threshold!r}")
        self.n_labels, self.threshold, self.n_bins = int(n_labels), float(threshold), int(n_bins)
        self._pairs = RankedPairs(int(most_pairs))
        self._least_listed = 0.0
        self._n_rows = self._n_exact_rows = 0
        self._support, self._predicted, self._true, self._count, self._known_true = np.zeros((5, n_labels), np.int64)
        # Of each label and bin, the sum of probabilities less the number of rows that have it.
        self._excess = np.zeros(self.n_labels * self.n_bins)
        self._of_examples = np.zeros(len(MEASURES))

    @property
    def exact_above(self) -> float:
        """The probability above which no pair is missing: 0 if none is, 1 where nothing can be said."""
        return max(float(self._pairs.floor), self._least_listed)

    def update(self, probabilities: ArrayLike, truth: Any) -> None:
        """Add a block of rows with the probabilities of all labels.

        Args:
            probabilities: B x K in [0, 1], dense.
            truth: B x K indicator, sparse or dense.

        Raises:
            DataError: a probability is NaN or outside [0, 1], `truth` is not an indicator, or shapes differ. The block
                then leaves no trace.
        """
        block, matrix = dense_block(probabilities, truth, self.n_labels)
        step = max(1, _CHUNK // self.n_labels)
        for start in range(0, len(block), step):
            p, true = block[start : start + step].astype(np.float64), matrix[start : start + step]
            labels = np.broadcast_to(np.arange(self.n_labels), p.shape)
            self._add(labels, p, true.toarray() != 0, true)
        self._count += len(block)
        self._known_true += np.bincount(matrix.indices, minlength=self.n_labels)

    def update_top(self, best: TopK, probabilities: ArrayLike, truth: Any) -> None:
        """Add a block of rows with the probabilities of each row's best labels.

        Args:
            best: the best labels of B rows; pads are no labels. `exact_above` needs them ranked by probability.
            probabilities: p(y = 1) of these labels, B x k in [0, 1].
            truth: B x K indicator, sparse or dense.

        Raises:
            DataError: a probability is NaN or outside [0, 1], `truth` is not an indicator, or shapes differ.
        """
        p, judged = best_block(best, probabilities, truth)
        if judged.truth.shape[1] != self.n_labels:
            raise DataError(f"this block has {judged.truth.shape[1]} labels, those before had {self.n_labels}")
        listed = best.labels != PAD
        self._least_listed = max(self._least_listed, self._least(best, p, listed))
        self._add(best.labels, np.where(listed, p, 0.0), judged.hits, judged.truth)
        np.add.at(self._count, best.labels[listed], 1)
        np.add.at(self._known_true, best.labels[judged.hits], 1)

    def _least(self, best: TopK, p: NDArray[np.float64], listed: NDArray[np.bool_]) -> float:
        """The probability that labels outside of the lists may have."""
        if not np.array_equal(best.scores[listed], p[listed].astype(np.float32)):
            return 1.0
        full = listed.all(axis=1) & (best.k < self.n_labels)
        return float(p[full, -1].max(initial=0.0))

    def _add(
        self, labels: NDArray[np.int64], p: NDArray[np.float64], true: NDArray[np.bool_], matrix: csr_matrix
    ) -> None:
        """Add rows: of each some labels, their probabilities, whether they are true; and all true labels."""
        decided = p >= self.threshold
        right = decided & true
        support = np.diff(matrix.indptr).astype(np.int64)
        self._support += np.bincount(matrix.indices, minlength=self.n_labels)
        np.add.at(self._predicted, labels[decided], 1)
        np.add.at(self._true, labels[right], 1)
        bins = np.minimum((p * self.n_bins).astype(np.int64), self.n_bins - 1)
        # Where pads are, label and probability are -1 and 0: what is added there is 0.
        np.add.at(self._excess, (labels * self.n_bins + bins).ravel(), (p - true).ravel())
        counts = right.sum(axis=1), decided.sum(axis=1), support
        self._of_examples += [measure.sum() for measure in _measures(*counts).values()]
        self._n_exact_rows += int(np.sum((counts[0] == counts[1]) & (counts[0] == support)))
        self._n_rows += len(p)
        self._pairs.add(labels, p.astype(np.float32), true)

    def compute(self) -> dict[str, float]:
        """Give the averages of all rows so far.

        Returns:
            At the threshold, with scikit-learn's definitions and 0 for what cannot be divided: "micro_precision",
            "micro_recall", "micro_f1" and "micro_jaccard" over all pairs; "macro_precision" and so on, means over the
            labels that any row has; "example_precision" and so on, means over rows, where a row without labels counts
            as 0; "subset_accuracy", share of rows whose labels are all predicted and no others; "hamming_loss", share
            of the pairs that are wrong. Over all thresholds: "micro_average_precision" and "macro_average_precision".
            At thresholds chosen on these very rows, and so better than on others: "best_threshold", the one for all
            labels with the highest micro F1 (NaN if none finds a true pair), "best_micro_f1" at it, and
            "best_macro_f1", with the best threshold of each label.

        Raises:
            DataError: no rows have been added.
        """
        if self._n_rows == 0:
            raise DataError("no rows have been added; call update with a block of probabilities first")
        each, steps = self.per_label(), self._pairs.of_all()
        totals = [counts.sum(keepdims=True) for counts in (self._true, self._predicted, self._support)]
        present = self._support > 0
        n_present = max(1, int(present.sum()))
        labels = _measures(self._true[present], self._predicted[present], self._support[present])
        found = {
            "micro": [float(values[0]) for values in _measures(*totals).values()],
            "macro": [float(values.sum() / n_present) for values in labels.values()],
            "example": [float(total / self._n_rows) for total in self._of_examples],
        }
        wrong = int(totals[1][0] + totals[2][0] - 2 * totals[0][0])
        best = steps.best(totals[2])[1]
        return {
            **{f"{average}_{name}": found[average][i] for average in AVERAGES for i, name in enumerate(MEASURES)},
            "subset_accuracy": self._n_exact_rows / self._n_rows,
            "hamming_loss": wrong / (self._n_rows * self.n_labels),
            "micro_average_precision": self._area(steps),
            "macro_average_precision": float(each.average_precision[present].sum() / n_present),
            "best_threshold": float(steps.probability[best[0]]) if len(best) else float("nan"),
            "best_micro_f1": float(2 * steps.true[best].sum() / max(1, steps.taken[best].sum() + totals[2][0])),
            "best_macro_f1": float(each.best_f1[present].sum() / n_present),
        }

    def per_label(self) -> PerLabel:
        """Give the report of each label over all rows so far."""
        steps = self._pairs.of_labels()
        labels, best = steps.best(self._support)
        threshold, right, taken = np.full(self.n_labels, np.nan), *np.zeros((2, self.n_labels), np.int64)
        threshold[labels], right[labels], taken[labels] = steps.probability[best], steps.true[best], steps.taken[best]
        excess = self._excess.reshape(self.n_labels, self.n_bins)
        at, at_best = (
            _measures(true, predicted, self._support)
            for true, predicted in ((self._true, self._predicted), (right, taken))
        )
        return PerLabel(
            self._support.copy(),
            self._predicted.copy(),
            self._true.copy(),
            at["precision"],
            at["recall"],
            at["f1"],
            threshold,
            at_best["precision"],
            at_best["recall"],
            at_best["f1"],
            steps.average_precision(self._support, max(1, self._n_rows)),
            self._count.copy(),
            ratio(excess.sum(axis=1) + self._known_true, self._count),
            ratio(self._known_true, self._count),
            ratio(np.abs(excess).sum(axis=1), self._count),
        )

    def precision_recall(self) -> PrecisionRecall:
        """Give the curve of precision and recall over all pairs so far (micro)."""
        steps = self._pairs.of_all()
        precision, recall = steps.true / steps.taken, steps.true / max(1, self._support.sum())
        return PrecisionRecall(steps.probability.astype(np.float64), precision, recall, self._area(steps))

    def _area(self, steps: Steps) -> float:
        """The average precision of all pairs together."""
        support = self._support.sum(keepdims=True)
        return float(steps.average_precision(support, max(1, self._n_rows) * self.n_labels)[0])


def evaluate_labels(
    truth: Any, probabilities: ArrayLike | TopK, *, threshold: float = 0.5, n_bins: int = 15
) -> dict[str, float]:
    """Compute every metric of decisions about many labels per row.

    Args:
        truth: N x K indicator, sparse or dense.
        probabilities: N x K in [0, 1], dense; or the best labels of N rows, whose scores are probabilities.
        threshold: a label is predicted where its probability is at least this, in (0, 1].
        n_bins: number of bins of the calibration errors.

    Returns:
        As `LabelMetrics.compute`.

    Raises:
        DataError, SettingsError: as `LabelMetrics` and its `update` or `update_top`.
    """
    metrics = LabelMetrics(indicator(truth).shape[1], threshold=threshold, n_bins=n_bins)
    if isinstance(probabilities, TopK):
        metrics.update_top(probabilities, np.where(probabilities.labels == PAD, 0, probabilities.scores), truth)
    else:
        metrics.update(probabilities, truth)
    return metrics.compute()


def _measures(
    true: NDArray[np.int64], predicted: NDArray[np.int64], support: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """`MEASURES` from numbers of true positives, of predictions, and of what there was to find."""
    both = support + predicted
    parts = ((true, predicted), (true, support), (2 * true, both), (true, both - true))
    return dict(zip(MEASURES, (ratio(*part) for part in parts), strict=True))
