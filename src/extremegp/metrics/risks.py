"""What is lost where a model predicts only the rows that it is surest of: rows of many labels, and of one class.

A row has two losses: "error", whether its most probable label is none of its own, and its log-loss. There are two ways
to say which rows are sure: by the probability of the most probable label ("max_p"), and by the entropy of all
probabilities ("entropy"). If probabilities are right, the first is the best order for errors, for 1 - max_p is the
error to expect, and the second that for log-losses, for the entropy is the log-loss to expect.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from extremegp.errors import DataError, SettingsError
from extremegp.metrics.classification import SMALLEST, UNKNOWN, check_class_block
from extremegp.metrics.probability import CLIP, best_block, dense_block
from extremegp.metrics.selective import RiskCoverage, loss_coverage
from extremegp.metrics.topk import PAD, TopK, check_positive_int

RANKINGS = ("entropy", "max_p")
"""What rows can be ranked by."""

# Elements handled at once: the float64 copy of a block then stays in a processor's cache.
_CHUNK = 1 << 16


class RowRisks:
    """The losses of rows and how sure these are, over blocks of rows; beside the block 32 bytes per row.

    Args:
        log_loss: what the log-loss is called.
    """

    def __init__(self, log_loss: str) -> None:
        self.losses = ("error", log_loss)
        self._blocks: list[NDArray[np.float64]] = []

    def _add(self, error: Any, log_loss: Any, entropy: Any, max_p: Any) -> None:
        self._blocks.append(np.stack([error, log_loss, -np.asarray(entropy), max_p]).astype(np.float64))

    def rows(self) -> dict[str, NDArray[np.float64]]:
        """What is known of each row so far: its two losses, its "entropy" and its "max_p", N each.

        Raises:
            DataError: no rows have been added.
        """
        error, log_loss, surety, max_p = self._columns()
        return dict(zip((*self.losses, *RANKINGS), (error, log_loss, -surety, max_p), strict=True))

    def _columns(self) -> NDArray[np.float64]:
        if not self._blocks:
            raise DataError("no rows have been added; call update with a block of probabilities first")
        return np.concatenate(self._blocks, axis=1)

    def risk_coverage(self, loss: str = "error", by: str = "max_p") -> RiskCoverage:
        """Give the mean loss of the surest rows so far.

        Args:
            loss: one of `losses`.
            by: "max_p" or "entropy".

        Returns:
            Coverage and risk at each number of rows kept.

        Raises:
            DataError: no rows have been added.
            SettingsError: there is no such loss or ranking.
        """
        for name, value, known in (("loss", loss, self.losses), ("by", by, RANKINGS)):
            if value not in known:
                raise SettingsError(f"{name} must be one of {', '.join(known)}; got {value!r}")
        columns = self._columns()
        return loss_coverage(columns[self.losses.index(loss)], columns[2 + RANKINGS.index(by)])

    def compute(self) -> dict[str, float]:
        """Give the areas under the curves of all rows so far.

        Returns:
            For each of `losses`, such as "error": "aurc_error_by_max_p" and "aurc_error_by_entropy", the mean over
            coverages of the mean loss of the rows that are kept (Geifman et al., ICLR 2019), and "aurc_error_best", the
            least that a ranking of these rows could have.

        Raises:
            DataError: no rows have been added.
        """
        found: dict[str, float] = {}
        for loss in self.losses:
            curves = {by: self.risk_coverage(loss, by) for by in RANKINGS}
            found |= {f"aurc_{loss}_by_{by}": curve.area for by, curve in curves.items()}
            found[f"aurc_{loss}_best"] = curves[RANKINGS[0]].best_area
        return found


class LabelRisks(RowRisks):
    """Accumulates what rows of many labels cost, and how sure they are, over blocks of rows.

    The error of a row is 1 - P@1 of its most probable label, the lower one of equals, and its log-loss and entropy are
    sums over the labels, in nats.
    """

    def __init__(self) -> None:
        super().__init__("log_loss")
        self._n_labels: int | None = None

    def update(self, probabilities: ArrayLike, truth: Any) -> None:
        """Add a block of rows with the probabilities of all labels.

        Args:
            probabilities: B x K in [0, 1], dense.
            truth: B x K indicator, sparse or dense.

        Raises:
            DataError: a probability is NaN or outside [0, 1], `truth` is not an indicator, shapes differ, or K is not
                that of the blocks before. The block then leaves no trace.
        """
        block, matrix = dense_block(probabilities, truth, self._n_labels)
        self._n_labels = block.shape[1]
        step = max(1, _CHUNK // max(1, self._n_labels))
        for start in range(0, len(block), step):
            part = block[start : start + step]
            true = matrix[start : start + step].toarray() != 0
            log_loss, entropy = _of_labels(part, true)
            # Ties as everywhere: of probabilities in float32, to the lower label.
            best = part.astype(np.float32).argmax(axis=1)
            rows = np.arange(len(part))
            self._add(~true[rows, best], log_loss.sum(axis=1), entropy.sum(axis=1), part[rows, best])


class TopLabelRisks(RowRisks):
    """The same from each row's best labels alone, where K are too many for all.

    Log-loss and entropy are means over the best labels of a row, in nats per label, and called by their number.

    Args:
        top: number of best labels of each row.

    Raises:
        SettingsError: top is not a positive integer.
    """

    def __init__(self, top: int = 20) -> None:
        check_positive_int(top, "top")
        super().__init__(f"log_loss_top{top}")
        self.top = int(top)

    def update(self, best: TopK, probabilities: ArrayLike, truth: Any) -> None:
        """Add a block of rows.

        Args:
            best: the best labels of B rows, of which the first `top` count; pads do not. Without any label a row counts
                as an error.
            probabilities: p(y = 1) of these labels, B x k in [0, 1].
            truth: B x K indicator, sparse or dense.

        Raises:
            DataError: a probability is NaN or outside [0, 1], `truth` is not an indicator, or shapes differ.
        """
        p, judged = best_block(best, probabilities, truth)
        p, hits, listed = p[:, : self.top], judged.hits[:, : self.top], best.labels[:, : self.top] != PAD
        n_listed = np.maximum(1, listed.sum(axis=1))
        log_loss, entropy = (np.where(listed, part, 0).sum(axis=1) / n_listed for part in _of_labels(p, hits))
        first, rows = np.where(listed, p, -1.0).argmax(axis=1), np.arange(len(p))
        self._add(~hits[rows, first], log_loss, entropy, np.where(listed[:, 0], p[rows, first], 0.0))


class ClassRisks(RowRisks):
    """Accumulates what rows of one class each cost, and how sure they are, over blocks of rows.

    The log-loss of a row is called "nlpd", as in `ClassMetrics`.

    Args:
        n_classes: K.

    Raises:
        SettingsError: n_classes is not a positive integer.
    """

    def __init__(self, n_classes: int) -> None:
        check_positive_int(n_classes, "n_classes")
        super().__init__("nlpd")
        self.n_classes = int(n_classes)

    def update(self, probabilities: ArrayLike, truth: ArrayLike) -> None:
        """Add a block of rows; arguments and errors are those of `ClassMetrics.update`."""
        block, classes = np.asarray(probabilities), np.asarray(truth)
        check_class_block(block, classes, self.n_classes)
        step = max(1, _CHUNK // self.n_classes)
        for start in range(0, len(block), step):
            p, own = block[start : start + step].astype(np.float64), classes[start : start + step]
            rows, best = np.arange(len(p)), p.astype(np.float32).argmax(axis=1)
            of_own = np.where(own == UNKNOWN, 0.0, p[rows, own])
            entropy = -(p * np.log(np.maximum(p, SMALLEST))).sum(axis=1)
            self._add(best != own, -np.log(np.maximum(of_own, SMALLEST)), entropy, p[rows, best])


def _of_labels(probabilities: NDArray[Any], true: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log-loss and entropy of each label of each row, in nats, with probabilities clipped as in `log_loss`."""
    p = np.clip(probabilities.astype(np.float64), CLIP, 1.0 - CLIP)
    present, absent = np.log(p), np.log1p(-p)
    return -np.where(true, present, absent), -(p * present + (1.0 - p) * absent)
