"""Propensities of labels and the propensity-scored ranking metrics.

A tagger misses rare labels more often than common ones. Weighing each hit by the inverse of the label's propensity
(the chance that a true label was recorded) estimates the score against the complete labels and rewards the tail.
Source: H. Jain, Y. Prabhu, M. Varma, "Extreme multi-label loss functions for recommendation, tagging, ranking and
other missing label applications", KDD 2016. The averages follow pyxclib, which made the published tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from extremegp.errors import DataError, SettingsError
from extremegp.metrics.ranking import Judged, judge
from extremegp.metrics.topk import leading_entries

PROPENSITY_PRESETS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"default": (0.55, 1.5), "wikipedia": (0.5, 0.4), "amazon": (0.6, 2.6)}
)
"""The (a, b) of the published tables: `propensities(counts, n_rows, *PROPENSITY_PRESETS["amazon"])`."""


def propensities(label_counts: ArrayLike, n_rows: int, a: float = 0.55, b: float = 1.5) -> NDArray[np.float64]:
    """Propensity of each label, 1 / (1 + C (N_l + b)^-a) with C = (ln N - 1)(b + 1)^a (Jain et al. 2016, section 4).

    Args:
        label_counts: K, number of *training* rows N_l with each label; a label never seen (0) has a finite propensity.
        n_rows: N, number of training rows, at least 3 (below that C is negative).
        a: exponent, positive.
        b: offset, positive.

    Returns:
        K propensities in (0, 1).

    Raises:
        DataError: counts are not whole numbers from 0 to N, or N is below 3.
        SettingsError: a or b is not a positive number.
    """
    counts = np.asarray(label_counts)
    if not (np.isfinite(a) and a > 0 and np.isfinite(b) and b > 0):
        raise SettingsError(f"propensities need positive a and b; got a = {a}, b = {b}")
    if n_rows < 3:
        raise DataError(f"propensities need at least 3 training rows; got {n_rows}")
    whole = counts.dtype.kind in "biuf" and counts.ndim == 1 and bool(np.all(counts == np.floor(counts)))
    if not whole or counts.min(initial=0) < 0 or counts.max(initial=0) > n_rows:
        raise DataError(f"label_counts must hold, for each label, its number of training rows (0 to {n_rows})")
    c = (np.log(n_rows) - 1.0) * (b + 1.0) ** a
    return np.asarray(1.0 / (1.0 + c * (counts + b) ** -a), dtype=np.float64)


def psp_at_k(truth: Any, predictions: Any, propensity: ArrayLike, ks: Sequence[int] = (1, 3, 5)) -> NDArray[np.float64]:
    """PSP@k: inverse propensities of the hits among the k best, over the most that any predictions could collect.

    A ratio of sums over rows; a row without labels adds 0 to both. If no row has labels the result is 0.

    Args:
        truth: N x K indicator, sparse or dense.
        predictions: TopK of N rows, or N x K scores (sparse or dense).
        propensity: K propensities in (0, 1], from the training rows.
        ks: ranks to evaluate at.

    Returns:
        PSP@k for each of `ks`.

    Raises:
        DataError: inputs that cannot be used (see `judge`), or propensities not in (0, 1].
        SettingsError: `ks` is not a sequence of positive integers, or exceeds the columns of a TopK.
    """
    return propensity_scored(judge(truth, predictions, ks), propensity, ks)[0]


def psndcg_at_k(
    truth: Any, predictions: Any, propensity: ArrayLike, ks: Sequence[int] = (1, 3, 5)
) -> NDArray[np.float64]:
    """PSnDCG@k: nDCG@k with inverse propensities as gains, over the most that any predictions could reach.

    Each row is divided by the DCG of min(k, number of true labels) unit gains, as in nDCG@k, in the sum reached and in
    the best sum alike (pyxclib). A row without labels adds 0 to both. If no row has labels the result is 0.

    Returns:
        PSnDCG@k for each of `ks`. Arguments and errors are those of `psp_at_k`.
    """
    return propensity_scored(judge(truth, predictions, ks), propensity, ks)[1]


def propensity_scored(
    judged: Judged, propensity: ArrayLike, ks: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """PSP@k and PSnDCG@k of judged predictions; see `psp_at_k` and `psndcg_at_k`.

    Args:
        judged: predictions of N rows, marked right or wrong.
        propensity: K propensities in (0, 1].
        ks: ranks to evaluate at.

    Returns:
        PSP@k and PSnDCG@k for each of `ks`.

    Raises:
        DataError: propensities are not K numbers in (0, 1].
    """
    chance = np.asarray(propensity)
    n_labels = judged.truth.shape[1]
    if chance.shape != (n_labels,) or chance.dtype.kind != "f" or not np.all((chance > 0) & (chance <= 1)):
        raise DataError(
            f"propensity must hold one number in (0, 1] for each of {n_labels} labels (see propensities); got an "
            f"array of shape {chance.shape}. Inverse propensities are not accepted"
        )
    weight = 1.0 / chance.astype(np.float64)
    gains = np.append(weight, 0.0)[judged.topk.labels] * judged.hits
    entries = weight[judged.truth.indices]
    best = leading_entries(judged.truth.indptr, judged.truth.indices, entries, judged.topk.k)
    best_gains = np.append(entries, 0.0)[best]
    ranks = np.asarray(ks) - 1
    psp = _ratio(gains.sum(axis=0).cumsum()[ranks], best_gains.sum(axis=0).cumsum()[ranks])
    return psp, _ratio(judged.normalised_dcg(gains, ks), judged.normalised_dcg(best_gains, ks))


def _ratio(reached: NDArray[np.float64], best: NDArray[np.float64]) -> NDArray[np.float64]:
    # The minimum removes the rounding by which equal sums, added in another order, differ.
    return np.minimum(np.divide(reached, best, out=np.zeros_like(best), where=best > 0), 1.0)
