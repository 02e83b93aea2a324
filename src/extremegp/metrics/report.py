"""All ranking metrics of one set of predictions, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from extremegp.errors import DataError
from extremegp.metrics.propensity import propensity_scored
from extremegp.metrics.ranking import judge
from extremegp.metrics.topk import check_positive_int


def evaluate_topk(
    truth: Any,
    predictions: Any,
    propensity: ArrayLike | None = None,
    ks: Sequence[int] = (1, 3, 5),
    *,
    train_counts: ArrayLike | None = None,
    tail_below: int = 10,
) -> dict[str, float]:
    """Compute every ranking metric, overall and on the tail labels.

    Args:
        truth: N x K indicator, sparse or dense.
        predictions: TopK of N rows, or N x K scores (sparse or dense).
        propensity: K propensities (see `propensities`); without them the PS metrics are left out.
        ks: ranks to evaluate at.
        train_counts: K, number of training rows with each label; without it the tail view is left out.
        tail_below: tail labels are those with fewer training rows than this, those never seen included.

    Returns:
        Fractions in [0, 1] by name, for each k: "P@k", "nDCG@k", "R@k"; "macro_R@k", recall averaged over labels;
        with propensities "PSP@k" and "PSnDCG@k"; with counts "tail_P@k", the share of the k best labels that are true
        tail labels, and "tail_macro_R@k", recall averaged over tail labels.

    Raises:
        DataError: inputs that cannot be used (see `judge`), or propensities or counts that are not K numbers.
        SettingsError: `ks` is not a sequence of positive integers, exceeds the columns of a TopK, or `tail_below` is
            no positive integer.
    """
    judged = judge(truth, predictions, ks)
    columns = {
        "P": judged.precision(ks),
        "nDCG": judged.ndcg(ks),
        "R": judged.recall(ks),
        "macro_R": judged.macro_recall(ks),
    }
    if propensity is not None:
        columns["PSP"], columns["PSnDCG"] = propensity_scored(judged, propensity, ks)
    if train_counts is not None:
        counts, n_labels = np.asarray(train_counts), judged.truth.shape[1]
        if counts.shape != (n_labels,) or counts.dtype.kind not in "iuf" or not np.all(counts >= 0):
            raise DataError(f"train_counts must hold a count for each of {n_labels} labels; got shape {counts.shape}")
        check_positive_int(tail_below, "tail_below")
        tail = counts < tail_below
        columns["tail_P"] = judged.precision(ks, tail)
        columns["tail_macro_R"] = judged.macro_recall(ks, tail)
    return {
        f"{name}@{k}": float(value) for name, values in columns.items() for k, value in zip(ks, values, strict=True)
    }
