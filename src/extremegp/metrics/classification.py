"""How good predictions of one class out of K are: error, log-loss, coverage of the classes, calibration.

Blocks of rows stream through `ClassMetrics`. The order of a row's classes is that of `TopK`: probability in float32
descending, then class ascending; the first is the predicted class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix

from extremegp.errors import DataError, SettingsError
from extremegp.metrics.confusion import Confusion, PerClass
from extremegp.metrics.probability import Bins, Reliability
from extremegp.metrics.topk import TopK, check_positive_int

UNKNOWN = -1
"""The class of a row whose class was never seen in training."""

SMALLEST = 2.0**-149
"""The smallest positive float32: probabilities below it count as it, so that one wrong certainty costs 103.3 nats."""

SUM_TOLERANCE = 1e-3
"""How far from 1 the probabilities of a row may sum."""


class ClassMetrics:
    """Accumulates the metrics of multi-class classification over blocks of rows.

    Beside the block at hand, memory is O(K + number of distinct pairs of true and predicted class).

    Args:
        n_classes: K.
        n_bins: number of equal-width bins of the calibration error; the last bin includes probability 1.
        ks: a row is right at k if its class is among the k most probable; k beyond K is K.

    Raises:
        SettingsError: n_classes, n_bins or one of `ks` is not a positive integer.
    """

    def __init__(self, n_classes: int, *, n_bins: int = 15, ks: Sequence[int] = (1, 3, 5)) -> None:
        check_positive_int(n_classes, "n_classes")
        check_positive_int(n_bins, "n_bins")
        for k in ks:
            check_positive_int(k, "k")
        self.n_classes = int(n_classes)
        self.n_bins = int(n_bins)
        self.ks = tuple(int(k) for k in ks)
        self._n_rows = 0
        self._negative_log = 0.0
        self._squares = 0.0
        # Right rows at k = 1, 2, ...
        self._right = np.zeros(min(max((1, *self.ks)), self.n_classes), dtype=np.int64)
        self._bins = Bins(self.n_bins)
        self._confusion = Confusion(self.n_classes)

    @property
    def n_unknown(self) -> int:
        """Number of rows so far whose class was never seen in training."""
        return self._confusion.n_unknown

    def update(self, probabilities: ArrayLike, truth: ArrayLike) -> None:
        """Add a block of rows.

        Args:
            probabilities: B x K, dense; rows sum to 1 within 1e-3.
            truth: B integers, class of each row; -1 for a class never seen in training. Such a row is always an error,
                of probability 0.

        Raises:
            DataError: a row of probabilities holds NaN or a negative number or does not sum to 1, a class is not in
                -1 .. K - 1, or shapes differ. The block then leaves no trace.
        """
        block, classes = np.asarray(probabilities), np.asarray(truth)
        check_class_block(block, classes, self.n_classes)
        classes = classes.astype(np.int64)
        best = TopK.from_scores(block, len(self._right)).labels
        hits = best == classes[:, None]
        rows = np.arange(len(block))
        own = np.where(classes == UNKNOWN, 0.0, block[rows, classes]).astype(np.float64)
        self._n_rows += len(block)
        self._right += hits.sum(axis=0).cumsum()
        self._negative_log -= float(np.log(np.maximum(own, SMALLEST)).sum())
        # Without a copy of the block: only the true class's term (p - 1)^2 differs from p^2.
        squares = np.einsum("bk,bk->", block, block, dtype=np.float64, casting="same_kind")
        self._squares += float(squares + (1.0 - 2.0 * own).sum())
        self._bins.add(block[rows, best[:, 0]].astype(np.float64), hits[:, 0])
        self._confusion.add(classes, best[:, 0])

    def merge(self, other: ClassMetrics) -> None:
        """Add what another accumulator has seen, as if its blocks had come here.

        Args:
            other: accumulator of the same n_classes, n_bins and ks; it is left as it was.

        Raises:
            SettingsError: n_classes, n_bins or ks differ.
        """
        if (self.n_classes, self.n_bins, self.ks) != (other.n_classes, other.n_bins, other.ks):
            raise SettingsError(
                f"cannot merge metrics of other settings: n_classes {self.n_classes} and {other.n_classes}, "
                f"n_bins {self.n_bins} and {other.n_bins}, ks {self.ks} and {other.ks}"
            )
        self._n_rows += other._n_rows
        self._right += other._right
        self._negative_log += other._negative_log
        self._squares += other._squares
        self._bins.sums += other._bins.sums
        self._confusion.merge(other._confusion)

    def compute(self) -> dict[str, float]:
        """Give the metrics of all rows so far.

        The classes present are those with rows; rows of unknown class are no class. A mean over no class is 0.

        Returns:
            "accuracy", and for each k > 1 of `ks` "top3_accuracy" and so on, the share of rows whose class is among the
            k most probable; "error", 1 - accuracy (T 3.42); "nlpd", mean over rows of -ln p(true class), in nats (T
            3.43, which omits the minus and the logarithm), p at least 2^-149; "brier", mean over rows of the sum over
            classes of (probability - outcome)^2, in [0, 2]; "ece", expected calibration error of the predicted class's
            probability (Guo et al., "On calibration of modern neural networks", ICML 2017, eq. 3); "coverage", share
            of the classes present with a true positive (X 18); "balanced_accuracy" and "macro_f1", means over the
            classes present of recall and F1.

        Raises:
            DataError: no rows have been added.
        """
        if self._n_rows == 0:
            raise DataError("no rows have been added; call update with a block of probabilities first")
        accuracy = self._right / self._n_rows
        each = self.per_class()
        present = each.support > 0
        n_present = max(1, int(present.sum()))
        return {
            "accuracy": float(accuracy[0]),
            "error": float(1.0 - accuracy[0]),
            **{f"top{k}_accuracy": float(accuracy[min(k, self.n_classes) - 1]) for k in self.ks if k > 1},
            "nlpd": self._negative_log / self._n_rows,
            # Rounding must not make it negative.
            "brier": max(0.0, self._squares / self._n_rows),
            "ece": self.reliability().calibration_error,
            "coverage": np.count_nonzero(each.true_positives) / n_present,
            "balanced_accuracy": float(each.recall[present].sum() / n_present),
            "macro_f1": float(each.f1[present].sum() / n_present),
        }

    def reliability(self) -> Reliability:
        """Give the reliability diagram of the predicted class's probability over all rows so far."""
        return self._bins.reliability()

    def per_class(self) -> PerClass:
        """Give the counts of each class and its precision, recall and F1 over all rows so far."""
        return self._confusion.per_class()

    def confusion(self) -> csr_matrix:
        """Give the number of rows of each true and predicted class so far.

        Returns:
            K x K counts, true classes down, predicted classes across; rows of unknown class are left out.
        """
        return self._confusion.matrix()


def evaluate_classes(
    truth: ArrayLike, probabilities: ArrayLike, *, n_bins: int = 15, ks: Sequence[int] = (1, 3, 5)
) -> dict[str, float]:
    """Compute every metric of multi-class classification.

    Arguments, result and errors are those of `ClassMetrics` and its `update` with N rows and `compute`.
    """
    block = np.asarray(probabilities)
    if block.ndim != 2:
        raise DataError(f"probabilities must be rows x classes; got shape {block.shape}")
    metrics = ClassMetrics(block.shape[1], n_bins=n_bins, ks=ks)
    metrics.update(block, truth)
    return metrics.compute()


def check_class_block(block: NDArray[Any], classes: NDArray[Any], n_classes: int) -> None:
    """Check a block of probabilities, B x K, and the class of each row.

    Raises:
        DataError: as `ClassMetrics.update`.
    """
    if block.ndim != 2 or block.dtype.kind != "f" or block.shape[1] != n_classes:
        raise DataError(
            f"probabilities must be a dense float block of rows x {n_classes} classes; "
            f"got {block.dtype} of shape {block.shape}"
        )
    if classes.shape != block.shape[:1] or classes.dtype.kind not in "iu":
        raise DataError(
            f"truth must hold an integer class for each of {len(block)} rows; got {classes.dtype} of shape "
            f"{classes.shape}"
        )
    for row in np.flatnonzero((classes < UNKNOWN) | (classes >= n_classes))[:1]:
        raise DataError(
            f"row {row} of this block has class {classes[row]}; classes are 0 to {n_classes - 1}, or -1 for "
            "one never seen in training"
        )
    with np.errstate(invalid="ignore"):
        lowest, total = block.min(axis=1), block.sum(axis=1, dtype=np.float64)
    # Written so that NaN fails it too.
    for row in np.flatnonzero(~((lowest >= 0) & (np.abs(total - 1.0) <= SUM_TOLERANCE)))[:1]:
        raise DataError(
            f"row {row} of this block sums to {total[row]:.6g}, its least probability is {lowest[row]:.6g}: the "
            "probabilities of a row must be at least 0 and sum to 1; pass probabilities, not logits"
        )
