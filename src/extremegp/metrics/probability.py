"""How good the predicted probabilities are: log-loss, Brier score, calibration error and reliability.

Labels are separate yes/no events: losses are summed over the labels of a row and averaged over rows. Blocks of rows
stream through `ProbabilityMetrics`, so that nothing of size N x K is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix

from extremegp.errors import DataError, SettingsError
from extremegp.metrics.ranking import Judged, judge
from extremegp.metrics.topk import PAD, TopK, check_positive_int, indicator

CLIP = 1e-15
"""Probabilities are kept this far from 0 and 1 in the log-loss, so that one wrong certainty costs 34.5 nats."""

# Elements handled at once: the float64 copy of a block then stays in a processor's cache.
_CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: predicted probabilities in equal-width bins [j / n_bins, (j + 1) / n_bins).

    Args:
        confidence: n_bins, mean probability in each bin; NaN in an empty bin.
        frequency: n_bins, share of the bin's labels that are true; NaN in an empty bin.
        count: n_bins, number of probabilities in each bin.
    """

    confidence: NDArray[np.float64]
    frequency: NDArray[np.float64]
    count: NDArray[np.int64]

    @property
    def calibration_error(self) -> float:
        """Mean over bins, weighted by count, of |frequency - confidence|; 0 if all bins are empty."""
        gaps = np.abs(self.frequency - self.confidence)
        return float(np.nansum(self.count * gaps) / max(1, self.count.sum()))


class ProbabilityMetrics:
    """Accumulates the probability metrics over blocks of rows.

    Args:
        n_bins: number of equal-width bins of the calibration error; the last bin includes probability 1.
        top: number of best labels of each row whose calibration is measured on its own: over all labels of a large
            label set the calibration error is dominated by probabilities near 0.
        ks: further numbers of best labels, each measured on its own as ECE@k.

    Raises:
        SettingsError: n_bins, top or one of `ks` is not a positive integer.
    """

    def __init__(self, n_bins: int = 15, top: int = 10, *, ks: Sequence[int] = ()) -> None:
        check_positive_int(n_bins, "n_bins")
        check_positive_int(top, "top")
        self.n_bins = int(n_bins)
        self.top = int(top)
        self._at = _bins_at(ks, self.n_bins)
        self._n_rows = 0
        self._n_labels: int | None = None
        self._log_loss = 0.0
        self._brier = 0.0
        self._all = Bins(self.n_bins)
        self._best = Bins(self.n_bins)

    def update(self, probabilities: ArrayLike, truth: Any) -> None:
        """Add a block of rows.

        Args:
            probabilities: B x K in [0, 1], dense.
            truth: B x K indicator, sparse or dense.

        Raises:
            DataError: a probability is NaN or outside [0, 1], `truth` is not an indicator, shapes differ, or K is not
                that of the blocks before. The block then leaves no trace.
        """
        block, matrix = dense_block(probabilities, truth, self._n_labels)
        step = max(1, _CHUNK // max(1, block.shape[1]))
        for start in range(0, len(block), step):
            indptr = matrix.indptr[start : start + step + 1]
            positives = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), matrix.indices[indptr[0] : indptr[-1]]
            self._add_rows(block[start : start + step].astype(np.float64), positives)
        width = max(self.top, *self._at, 1)
        judged = judge(matrix, TopK.from_scores(block, width), (width,))
        counted = judged.topk.labels != PAD
        p = np.take_along_axis(block, judged.topk.labels, axis=1).astype(np.float64)
        for k, bins in ((self.top, self._best), *self._at.items()):
            bins.add(p[:, :k][counted[:, :k]], judged.hits[:, :k][counted[:, :k]])
        self._n_rows += len(block)
        self._n_labels = block.shape[1]

    def _add_rows(self, p: NDArray[np.float64], positives: tuple[NDArray[Any], NDArray[Any]]) -> None:
        self._all.add(p, positives)
        clipped = np.clip(p, CLIP, 1.0 - CLIP)
        log_likelihood = np.log1p(-clipped)
        log_likelihood[positives] = np.log(clipped[positives])
        self._log_loss -= float(log_likelihood.sum())
        p[positives] -= 1.0
        self._brier += float(np.square(p).sum())

    def merge(self, other: ProbabilityMetrics) -> None:
        """Add what another accumulator has seen, as if its blocks had come here.

        Args:
            other: accumulator of the same n_bins, top, ks and number of labels; it is left as it was.

        Raises:
            SettingsError: n_bins, top or ks differ.
            DataError: the numbers of labels differ.
        """
        if (self.n_bins, self.top, self._at.keys()) != (other.n_bins, other.top, other._at.keys()):
            raise SettingsError(
                f"cannot merge metrics of other settings: n_bins {self.n_bins} and {other.n_bins}, "
                f"top {self.top} and {other.top}, ks {[*self._at]} and {[*other._at]}"
            )
        if None not in (self._n_labels, other._n_labels) and self._n_labels != other._n_labels:
            raise DataError(f"cannot merge metrics over {self._n_labels} and {other._n_labels} labels")
        self._n_rows += other._n_rows
        self._n_labels = other._n_labels if self._n_labels is None else self._n_labels
        self._log_loss += other._log_loss
        self._brier += other._brier
        self._all.sums += other._all.sums
        self._best.sums += other._best.sums
        for k, bins in other._at.items():
            self._at[k].sums += bins.sums

    def compute(self) -> dict[str, float]:
        """Give the metrics of all rows so far.

        Returns:
            "log_loss": mean over rows of the sum over labels of -ln(probability of what happened), in nats;
            "brier": mean over rows of the sum over labels of (probability - outcome)^2;
            "ece": expected calibration error over all probabilities, the mean over bins, weighted by count, of
            |frequency - confidence|; "ece_top": the same over the `top` best labels of each row; for each of `ks`
            "ECE@k": the same over the k best labels of each row (Ullah et al., "Labels in extremes", arXiv:2411.04276).

        Raises:
            DataError: no rows have been added.
        """
        if self._n_rows == 0:
            raise DataError("no rows have been added; call update with a block of probabilities first")
        return {
            "log_loss": self._log_loss / self._n_rows,
            "brier": self._brier / self._n_rows,
            "ece": self._all.reliability().calibration_error,
            "ece_top": self._best.reliability().calibration_error,
            **_errors_at(self._at),
        }

    def reliability(self, *, top: bool = False) -> Reliability:
        """Give the reliability diagram of all rows so far.

        Args:
            top: take only the `top` best labels of each row.

        Returns:
            Mean confidence, frequency and count of each bin.
        """
        return (self._best if top else self._all).reliability()


class TopProbabilityMetrics:
    """Accumulates log-loss and calibration error of each row's best labels alone, where K are too many for all.

    Args:
        top: number of best labels of each row.
        n_bins: number of equal-width bins of the calibration error; the last bin includes probability 1.
        ks: numbers of most probable labels, among the given ones, whose calibration is measured as ECE@k.

    Raises:
        SettingsError: top, n_bins or one of `ks` is not a positive integer.
    """

    def __init__(self, top: int = 20, n_bins: int = 15, *, ks: Sequence[int] = ()) -> None:
        check_positive_int(top, "top")
        check_positive_int(n_bins, "n_bins")
        self.top = int(top)
        self._at = _bins_at(ks, int(n_bins))
        self._bins = Bins(int(n_bins))
        self._log_loss = 0.0

    def update(self, best: TopK, probabilities: ArrayLike, truth: Any) -> None:
        """Add a block of rows.

        Args:
            best: the best labels of B rows, of which the first `top` count; pads do not.
            probabilities: p(y = 1) of these labels, B x k in [0, 1].
            truth: B x K indicator, sparse or dense.

        Raises:
            DataError: a probability is NaN or outside [0, 1], `truth` is not an indicator, or shapes differ.
            SettingsError: one of `ks` is more than k.
        """
        p, judged = best_block(best, probabilities, truth, max(self._at, default=1))
        hits, counted = judged.hits, best.labels != PAD
        if self._at:
            self._add_most_probable(p, best.labels, hits)
        p, true = p[:, : self.top][counted[:, : self.top]], hits[:, : self.top][counted[:, : self.top]]
        self._bins.add(p, true)
        happened = np.clip(np.where(true, p, 1.0 - p), CLIP, 1.0 - CLIP)
        self._log_loss -= float(np.log(happened).sum())

    def _add_most_probable(self, p: NDArray[np.float64], labels: NDArray[np.int64], hits: NDArray[np.bool_]) -> None:
        order = np.lexsort((labels, np.where(labels == PAD, 1.0, -p)))
        for k, bins in self._at.items():
            first = order[:, :k]
            counted = np.take_along_axis(labels, first, axis=1) != PAD
            bins.add(np.take_along_axis(p, first, axis=1)[counted], np.take_along_axis(hits, first, axis=1)[counted])

    def compute(self) -> dict[str, float]:
        """Give the metrics of all rows so far.

        Returns:
            With `top` in their names: "log_loss_top20", the mean over pairs of a row and one of its best labels of
            -ln(probability of what happened), in nats; "ece_top20", the expected calibration error over these pairs;
            and "ECE@k" for each of `ks`.

        Raises:
            DataError: no labels have been added.
        """
        n_pairs = int(self._bins.sums[0].sum())
        if n_pairs == 0:
            raise DataError("no labels have been added; call update with the best labels of some rows first")
        return {
            f"log_loss_top{self.top}": self._log_loss / n_pairs,
            f"ece_top{self.top}": self._bins.reliability().calibration_error,
            **_errors_at(self._at),
        }

    def reliability(self) -> Reliability:
        """Give the reliability diagram of the best labels of all rows so far."""
        return self._bins.reliability()


def log_loss(truth: Any, probabilities: ArrayLike) -> float:
    """Log-loss summed over labels and averaged over rows, in nats; probabilities are clipped to [1e-15, 1 - 1e-15].

    Args:
        truth: N x K indicator, sparse or dense.
        probabilities: N x K in [0, 1], dense.

    Returns:
        The log-loss.

    Raises:
        DataError: as `ProbabilityMetrics.update`.
    """
    return _metrics(truth, probabilities).compute()["log_loss"]


def brier_score(truth: Any, probabilities: ArrayLike) -> float:
    """Squared error of the probabilities summed over labels and averaged over rows (one term per label, not two).

    Arguments and errors are those of `log_loss`.
    """
    return _metrics(truth, probabilities).compute()["brier"]


def expected_calibration_error(
    truth: Any, probabilities: ArrayLike, n_bins: int = 15, *, top: int | None = None
) -> float:
    """Mean over equal-width bins, weighted by count, of |frequency - confidence|.

    Args:
        truth: N x K indicator, sparse or dense.
        probabilities: N x K in [0, 1], dense.
        n_bins: number of bins.
        top: take only this many best labels of each row; all labels by default.

    Returns:
        The calibration error, in [0, 1].

    Raises:
        DataError: as `ProbabilityMetrics.update`.
        SettingsError: n_bins or top is not a positive integer.
    """
    if top is None:
        return _metrics(truth, probabilities, n_bins).compute()["ece"]
    return _metrics(truth, probabilities, n_bins, top).compute()["ece_top"]


def _metrics(truth: Any, probabilities: ArrayLike, n_bins: int = 15, top: int = 1) -> ProbabilityMetrics:
    metrics = ProbabilityMetrics(n_bins, top)
    metrics.update(probabilities, truth)
    return metrics


def dense_block(
    probabilities: ArrayLike, truth: Any, n_labels: int | None = None
) -> tuple[NDArray[np.floating[Any]], csr_matrix]:
    """Check a block of probabilities and its true labels.

    Args:
        probabilities: B x K in [0, 1], dense.
        truth: B x K indicator, sparse or dense.
        n_labels: K of the blocks before, if any.

    Returns:
        The block, and the labels as a canonical CSR indicator.

    Raises:
        DataError: a probability is NaN or outside [0, 1], `truth` is not an indicator, or shapes differ.
    """
    block = np.asarray(probabilities)
    if block.ndim != 2 or block.dtype.kind != "f":
        raise DataError(f"probabilities must be a dense float block of rows x labels; got shape {block.shape}")
    matrix = indicator(truth)
    if block.shape != matrix.shape:
        raise DataError(f"probabilities are {block.shape}, true labels {matrix.shape}; shapes must be the same")
    if n_labels not in (None, block.shape[1]):
        raise DataError(f"this block has {block.shape[1]} labels, those before had {n_labels}")
    _check_unit_interval(block)
    return block, matrix


def best_block(best: TopK, probabilities: ArrayLike, truth: Any, k: int = 1) -> tuple[NDArray[np.float64], Judged]:
    """Check the best labels of a block of rows, their probabilities and the true labels.

    Args:
        best: the best labels of B rows.
        probabilities: p(y = 1) of these labels, B x k in [0, 1].
        truth: B x K indicator, sparse or dense.
        k: how many best labels are needed.

    Returns:
        The probabilities, and the labels marked right or wrong.

    Raises:
        DataError: a probability is NaN or outside [0, 1], `truth` is not an indicator, or shapes differ.
        SettingsError: there are fewer best labels than needed.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.shape != best.labels.shape:
        raise DataError(f"probabilities are {p.shape}, the best labels {best.labels.shape}; both must be B x k")
    _check_unit_interval(p)
    return p, judge(indicator(truth), best, (k,))


def _check_unit_interval(p: NDArray[Any]) -> None:
    # Written so that NaN fails it too.
    if not (p.min(initial=0.0) >= 0 and p.max(initial=1.0) <= 1):
        raise DataError("probabilities must lie in [0, 1]; pass probabilities, not logits, and check for NaN")


def _bins_at(ks: Sequence[int], n_bins: int) -> dict[int, Bins]:
    for k in ks:
        check_positive_int(k, "k")
    return {int(k): Bins(n_bins) for k in ks}


def _errors_at(bins: dict[int, Bins]) -> dict[str, float]:
    return {f"ECE@{k}": each.reliability().calibration_error for k, each in bins.items()}


class Bins:
    """Count, sum of probabilities and number of true labels in each equal-width bin."""

    def __init__(self, n_bins: int) -> None:
        self.sums = np.zeros((3, n_bins))

    def add(self, p: NDArray[np.float64], true: Any) -> None:
        """Add probabilities `p`; `true` indexes those whose label is true."""
        n_bins = self.sums.shape[1]
        bins = np.minimum((p * n_bins).astype(np.int64), n_bins - 1)
        self.sums += [
            np.bincount(bins.ravel(), minlength=n_bins),
            np.bincount(bins.ravel(), weights=p.ravel(), minlength=n_bins),
            np.bincount(bins[true], minlength=n_bins),
        ]

    def reliability(self) -> Reliability:
        count, confidence, true = self.sums
        filled = np.where(count > 0, count, np.nan)
        return Reliability(confidence / filled, true / filled, count.astype(np.int64))
