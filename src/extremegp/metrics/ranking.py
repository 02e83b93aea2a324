"""Ranking metrics at k: precision, nDCG, recall and macro recall, as fractions in [0, 1].

Every metric reads the true labels (N x K indicator) and the k best labels of each row; nothing of size N x K is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from extremegp.errors import DataError, SettingsError
from extremegp.metrics.topk import PAD, TopK, as_topk, check_labels, check_positive_int, indicator


@dataclass(frozen=True, eq=False)
class Judged:
    """Predictions marked right or wrong: what every ranking metric is computed from.

    Args:
        truth: N x K canonical indicator.
        topk: predictions of N rows.
        hits: N x k, whether each prediction is a true label.
        positives: N, number of true labels of each row.
    """

    truth: csr_matrix
    topk: TopK
    hits: NDArray[np.bool_]
    positives: NDArray[np.int64]

    def precision(self, ks: Sequence[int], among: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
        """Precision at each k; see `precision_at_k`."""
        hits = self.hits if among is None else self.hits & np.append(among, False)[self.topk.labels]
        return _at(hits.sum(axis=0).cumsum(), ks) / (np.asarray(ks, dtype=np.float64) * len(hits))

    def ndcg(self, ks: Sequence[int]) -> NDArray[np.float64]:
        """NDCG at each k; see `ndcg_at_k`."""
        return self.normalised_dcg(self.hits, ks) / len(self.hits)

    def recall(self, ks: Sequence[int]) -> NDArray[np.float64]:
        """Recall at each k; see `recall_at_k`."""
        labelled = self.positives > 0
        found = self.hits[labelled].cumsum(axis=1) / self.positives[labelled, None]
        return _at(found.sum(axis=0), ks) / max(1, len(found))

    def macro_recall(self, ks: Sequence[int], among: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
        """Macro recall at each k; see `macro_recall_at_k`."""
        n_labels = self.truth.shape[1]
        occurrences = np.bincount(self.truth.indices, minlength=n_labels)
        counted = occurrences > 0 if among is None else (occurrences > 0) & among
        found = [np.bincount(self.topk.labels[:, :k][self.hits[:, :k]], minlength=n_labels) for k in ks]
        recalls = np.stack(found)[:, counted] / occurrences[counted]
        return np.asarray(recalls.sum(axis=1) / max(1, counted.sum()), dtype=np.float64)

    def normalised_dcg(self, gains: NDArray[Any], ks: Sequence[int]) -> NDArray[np.float64]:
        """Sum over rows of DCG@k over the DCG of min(k, number of positives) unit gains.

        Args:
            gains: N x k gain of each rank, zero in rows without labels.
            ks: ranks to stop at.

        Returns:
            One sum for each of `ks`.
        """
        discount = 1.0 / np.log2(np.arange(2, gains.shape[1] + 2))
        dcg = (gains * discount).cumsum(axis=1)
        ideal = discount.cumsum()
        attainable = np.maximum(self.positives, 1)
        return np.array([(dcg[:, k - 1] / ideal[np.minimum(k, attainable) - 1]).sum() for k in ks])


def judge(truth: Any, predictions: Any, ks: Sequence[Any]) -> Judged:
    """Check true labels and predictions against each other and mark each prediction right or wrong.

    Args:
        truth: N x K indicator, sparse or dense.
        predictions: TopK of N rows, or N x K scores (sparse or dense).
        ks: the k that will be asked for.

    Returns:
        The judged predictions, with at least max(ks) columns.

    Raises:
        DataError: `truth` is not an indicator, shapes differ, or scores hold NaN.
        SettingsError: `ks` is empty, holds a k that is no positive integer, or asks for more columns than a TopK has.
    """
    if len(ks) == 0:
        raise SettingsError(f"ks lists the ranks to evaluate at, such as (1, 3, 5); got {ks!r}")
    for k in ks:
        check_positive_int(k, "k")
    matrix = indicator(truth)
    n_rows, n_labels = matrix.shape
    topk = as_topk(predictions, max(ks))
    shape = (len(topk.labels), n_labels) if isinstance(predictions, TopK) else np.shape(predictions)
    if shape != (n_rows, n_labels):
        raise DataError(f"predictions are {shape[0]} rows x {shape[1]} labels; true labels are {n_rows} x {n_labels}")
    check_labels(topk, n_labels)
    hits = np.zeros(topk.labels.shape, dtype=np.bool_)
    row, rank = np.nonzero(topk.labels != PAD)
    if len(row):
        hits[row, rank] = np.asarray(matrix[row, topk.labels[row, rank]]).ravel() > 0
    return Judged(matrix, topk, hits, np.diff(matrix.indptr).astype(np.int64))


def precision_at_k(
    truth: Any, predictions: Any, ks: Sequence[int] = (1, 3, 5), *, among: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """P@k: share of the k best labels that are true, averaged over all rows.

    The divisor is always k, also where fewer than k labels exist, are predicted or are true; a row without labels
    counts as 0.

    Args:
        truth: N x K indicator, sparse or dense.
        predictions: TopK of N rows, or N x K scores (sparse or dense).
        ks: ranks to evaluate at.
        among: K flags; only these labels count as right. Ranks are not filled up with other labels, so P@k is the
            sum of its parts over a division of the labels.

    Returns:
        P@k for each of `ks`.

    Raises:
        DataError, SettingsError: as `judge`; DataError if `among` is not K flags.
    """
    judged = judge(truth, predictions, ks)
    return judged.precision(ks, _flags(among, judged))


def ndcg_at_k(truth: Any, predictions: Any, ks: Sequence[int] = (1, 3, 5)) -> NDArray[np.float64]:
    """nDCG@k: sum over the true labels among the k best of 1 / log2(rank + 1), over the most a row could reach.

    The most is the sum over min(k, number of true labels) ranks; a row without labels counts as 0.

    Returns:
        nDCG@k for each of `ks`, averaged over all rows. Arguments and errors are those of `precision_at_k`.
    """
    return judge(truth, predictions, ks).ndcg(ks)


def recall_at_k(truth: Any, predictions: Any, ks: Sequence[int] = (1, 3, 5)) -> NDArray[np.float64]:
    """R@k: share of a row's true labels that are among the k best, averaged over the rows that have labels.

    Rows without labels are left out of the mean; if no row has labels the recall is 0.

    Returns:
        R@k for each of `ks`. Arguments and errors are those of `precision_at_k`.
    """
    return judge(truth, predictions, ks).recall(ks)


def macro_recall_at_k(
    truth: Any, predictions: Any, ks: Sequence[int] = (1, 3, 5), *, among: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """Macro R@k: share of a label's rows in which it is among the k best, averaged over labels.

    Every label weighs the same, however rare. Labels that are true in no row are left out of the mean; if none is
    left the recall is 0.

    Args:
        among: K flags; the mean is over these labels only (say, the rare ones).

    Returns:
        Macro R@k for each of `ks`. Other arguments and errors are those of `precision_at_k`.
    """
    judged = judge(truth, predictions, ks)
    return judged.macro_recall(ks, _flags(among, judged))


def _flags(among: Any, judged: Judged) -> NDArray[np.bool_] | None:
    if among is None:
        return None
    flags = np.asarray(among)
    if flags.dtype != np.bool_ or flags.shape != (judged.truth.shape[1],):
        raise DataError(f"among must hold one True or False per label; got {flags.dtype} of shape {flags.shape}")
    return flags


def _at(by_rank: NDArray[Any], ks: Sequence[int]) -> NDArray[np.float64]:
    return np.asarray(by_rank[np.asarray(ks) - 1], dtype=np.float64)
