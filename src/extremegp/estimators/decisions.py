"""Sets of labels instead of probabilities: chosen by what they are judged by, or left to people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from extremegp.data import FloatCSR
from extremegp.errors import DataError, SettingsError
from extremegp.estimators.guarantees import Guarantee
from extremegp.prediction.decisions import By, Candidates, best_cost, best_f1, expected_f1
from extremegp.settings.domains import choice, number

Per = Literal["all", "label", "band"]
_BANDS = 5
_FEW = 10  # rows that have a label, below which it has the threshold of its band
_GRID = np.unique(np.concatenate([np.linspace(0.02, 0.98, 49), np.logspace(-3, -1, 21)]))


class Decisions(NamedTuple):
    """Sets of labels for N rows.

    Attributes:
        labels: in the form of `predict`: lists of names, or an N x K indicator. Rows that are left to people have none.
        expected_f1: of each set, N, as the probabilities have it.
        abstained: which rows are left to people, N.
        promised: which groups of labels a guarantee is for in each row, N x G; of others every row has its labels.
    """

    labels: Any
    expected_f1: NDArray[np.float64]
    abstained: NDArray[np.bool_]
    promised: NDArray[np.bool_]


class Rule(NamedTuple):
    """How sets are chosen; see `MultiLabelEstimator.decide`."""

    by: By
    cost_wrong: float
    cost_missed: float
    size: int
    thresholds: NDArray[np.float64]

    @classmethod
    def of(cls, by: Any, n_labels: int, *, cost_wrong: Any, cost_missed: Any, size: Any, threshold: Any) -> Rule:
        """The arguments, checked.

        Raises:
            SettingsError: one is outside its domain.
        """
        choice("by", by, get_args(By))
        thresholds = np.asarray(threshold, np.float64)
        if thresholds.shape not in ((), (n_labels,)) or not ((thresholds > 0) & (thresholds <= 1)).all():
            raise SettingsError(f"threshold must be a probability above 0, or {n_labels} of them; got {threshold!r}")
        return cls(
            by,
            number("cost_wrong", cost_wrong, low=0, open_low=True),
            number("cost_missed", cost_missed, low=0, open_low=True),
            number("size", size, low=1, integer=True),
            np.broadcast_to(thresholds, n_labels),
        )

    def chosen(self, candidates: Candidates) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which candidates are in the set of each row, B x C; every row has one, which the second says, B x 1."""
        return self._taken(candidates), np.ones((len(candidates.labels), 1), np.bool_)

    def _taken(self, candidates: Candidates) -> NDArray[np.bool_]:
        ranks = np.arange(candidates.labels.shape[1])
        if self.by == "threshold":
            likely = candidates.probabilities >= self.thresholds[candidates.labels]
            return np.asarray(likely & (candidates.labels >= 0))
        if self.by == "cost":
            sizes = best_cost(candidates, wrong=self.cost_wrong, missed=self.cost_missed).n_labels
        else:
            few = np.full(len(candidates.labels), self.size)
            sizes = best_f1(candidates).n_labels if self.by == "f1" else few
        return (ranks < sizes[:, None]) & (candidates.labels >= 0)


def decided(
    blocks: Iterator[tuple[slice, Candidates]], rule: Rule | Guarantee, n_labels: int
) -> tuple[FloatCSR, NDArray[np.float64], NDArray[np.bool_]]:
    """Indicators of the sets of all rows, N x K, the F1 that is expected of each, and the groups with a set, N x G."""
    parts, expected, promised = [], [], []
    for _, candidates in blocks:
        chosen, of_groups = rule.chosen(candidates)
        promised.append(of_groups)
        rows, places = np.nonzero(chosen)
        entries = np.ones(len(rows), np.float32), (rows, candidates.labels[rows, places])
        parts.append(scipy.sparse.csr_matrix(entries, shape=(len(chosen), n_labels)))
        expected.append(expected_f1(candidates, chosen))
    stacked: Any = scipy.sparse.vstack(parts, format="csr")
    return scipy.sparse.csr_matrix(stacked), np.concatenate(expected), np.concatenate(promised)


def best_thresholds(
    blocks: Iterator[tuple[slice, Candidates]], y: FloatCSR, counts: NDArray[np.int64], per: Per
) -> NDArray[np.float64]:
    """Thresholds with the highest F1 on labelled rows, K.

    Args:
        blocks: of these rows.
        y: their labels, N x K.
        counts: training rows of each label, K: bands of labels have as many labels each.
        per: one for "all" labels, by the mean F1 of rows; one for each "band" of labels by frequency, or each "label",
            by the F1 of its pairs of a row and a label; labels that fewer than 10 of these rows have take that of their
            band.
    """
    choice("per", per, get_args(Per))
    labels, p, hits, of_rows = [], [], [], []
    for rows, candidates in blocks:
        there = candidates.labels >= 0
        row, place = np.nonzero(there)
        label = candidates.labels[row, place]
        labels.append(label)
        p.append(candidates.probabilities[row, place])
        of_rows.append(row + rows.start)
        hits.append(np.asarray(y[row + rows.start, label]).ravel() > 0)
    if not of_rows:
        raise DataError("there are no rows to choose thresholds by")
    pairs = _Pairs(*map(np.concatenate, (labels, p, hits, of_rows)))
    n_labels = y.shape[1]
    if per == "all":
        sizes = np.diff(y.indptr)
        return np.full(n_labels, max(_GRID, key=lambda threshold: _example_f1(pairs, sizes, threshold)))
    order = np.argsort(counts, kind="stable")
    bands = np.empty(n_labels, np.int64)
    bands[order] = np.arange(n_labels) * _BANDS // n_labels
    truth = np.bincount(y.indices, minlength=n_labels)
    found = _best_of_groups(pairs, bands, np.bincount(bands, truth, _BANDS))[bands]
    if per == "label":
        own = _best_of_groups(pairs, np.arange(n_labels), truth)
        found = np.where(truth >= _FEW, own, found)
    return found


class _Pairs(NamedTuple):
    labels: NDArray[np.int64]
    p: NDArray[np.float64]
    hits: NDArray[np.bool_]
    rows: NDArray[np.int64]


def _example_f1(pairs: _Pairs, sizes: NDArray[Any], threshold: float) -> float:
    n = len(sizes)
    taken = pairs.p >= threshold
    hits = np.bincount(pairs.rows[taken & pairs.hits], minlength=n)
    both = np.bincount(pairs.rows[taken], minlength=n) + sizes
    return float(np.where(both > 0, 2 * hits / np.maximum(both, 1), 1).mean())


def _best_of_groups(pairs: _Pairs, groups: NDArray[np.int64], truth: NDArray[Any]) -> NDArray[np.float64]:
    """The threshold of each group of labels with the highest F1 over its pairs."""
    n = len(truth)
    best, score = np.full(n, 0.5), np.full(n, -1.0)
    of_pairs = groups[pairs.labels]
    for threshold in _GRID:
        taken = pairs.p >= threshold
        hits = np.bincount(of_pairs[taken & pairs.hits], minlength=n)
        f1 = 2 * hits / np.maximum(np.bincount(of_pairs[taken], minlength=n) + truth, 1)
        better = f1 > score
        best[better], score[better] = threshold, f1[better]
    return best
