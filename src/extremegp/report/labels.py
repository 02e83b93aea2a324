"""Many labels per row, measured for a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from extremegp.engine.matrices import column_counts
from extremegp.estimators import MultiLabelEstimator
from extremegp.metrics import TopK, propensities
from extremegp.metrics.measured import measure, measure_top
from extremegp.metrics.ranking import Judged, judge
from extremegp.metrics.risks import RANKINGS
from extremegp.metrics.topk import PAD, leading_entries
from extremegp.prediction.predictor import Ranked
from extremegp.report.findings import BandBins, Findings, chosen_rows
from extremegp.report.intervals import RowSums
from extremegp.report.issues import Surprises

DENSE_LABELS, TOP_JUDGED, CANDIDATES = 20_000, 20, 100
"""With more labels than the first only each row's best are looked at: so many for probabilities, so many for curves."""

_TOP = 10
_BINS = 15
_SURPRISES = 200


def find(
    model: MultiLabelEstimator,
    X: Any,
    Y: Any,
    *,
    ks: Sequence[int],
    propensity: tuple[float, float],
    threshold: float,
    seed: int,
) -> Findings:
    """Measure a model of many labels per row, in one pass over its predictions.

    Args:
        model: fitted.
        X: as in its `fit`.
        Y: likewise; names that training never saw are left out.
        ks: ranks to evaluate at.
        propensity: a and b of the propensities of labels.
        threshold: the probability from which on a label is predicted.
        seed: decides which rows are shown.

    Raises:
        DataError: X or Y cannot be used, or they do not fit each other.
    """
    from extremegp.estimators.fitting import check_lengths

    y, counts = model.encode_labels(Y), np.asarray(model.label_counts_)
    inputs, predictor = model.features_.transform_new(X), model.predictor()
    check_lengths(inputs, y)
    chances = propensities(counts, model.n_rows_, *propensity)
    watcher = _Watcher(y, counts, ks, chances, threshold)
    arguments: dict[str, Any] = {"ks": ks, "propensity": chances, "train_counts": counts, "threshold": threshold}
    if y.shape[1] > DENSE_LABELS:
        ranked = predictor.top(inputs, max(CANDIDATES, TOP_JUDGED, *ks))
        found = measure_top(watcher.watched_top(ranked), y, top=TOP_JUDGED, **arguments)
    else:
        found = measure(watcher.watched(predictor.probabilities(inputs)), y, **arguments)
    watcher.add_losses(found.risks.rows())
    rows = found.risks.rows()
    unseen = int(column_counts(y)[counts == 0].sum())
    lists = isinstance(Y, list)
    unknown = sum(len(set(labels)) for labels in Y) - int(y.nnz) if lists else 0
    notes = []
    if unknown:
        notes.append(f"{unknown} labels of rows that training never saw are left out of the truth.")
    if unseen:
        notes.append(f"{unseen} true labels have no training row: they count as true, and figures are lower for them.")
    if found.labels.exact_above:
        notes.append(
            f"There are more than {DENSE_LABELS:,} labels: probabilities are judged on the {TOP_JUDGED} best of each "
            f"row, curves and average precision on the {CANDIDATES} best."
        )
    return Findings(
        found.metrics,
        watcher.sums,
        found.reliability,
        watcher.bands.diagrams(),
        {loss: {by: found.risks.risk_coverage(loss, by) for by in RANKINGS} for loss in found.risks.losses},
        found.labels.per_label(),
        watcher.surprises,
        chosen_rows(rows["error"], rows["max_p"], rows["entropy"], seed),
        {
            "rows": y.shape[0],
            "labels": y.shape[1],
            "labels of rows": int(y.nnz),
            "labels that any row has": int(np.count_nonzero(column_counts(y))),
        },
        notes,
    )


class _Watcher:
    """Looks at predictions that go by on their way to the metrics, and keeps what reports need of every row."""

    def __init__(
        self,
        y: csr_matrix,
        counts: NDArray[np.int64],
        ks: Sequence[int],
        chances: NDArray[np.float64],
        threshold: float,
    ) -> None:
        self._y, self._counts, self._ks, self._threshold = y, counts, list(ks), threshold
        self._gains = 1 / chances
        self.sums, self.bands, self.surprises = RowSums(), BandBins(counts, _BINS), Surprises()
        self._n_judged: list[NDArray[np.int64]] = []

    def watched(
        self, blocks: Iterator[tuple[slice, NDArray[Any]]]
    ) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any]]]:
        """Blocks of the probabilities of all labels."""
        for rows, p in blocks:
            truth = csr_matrix(self._y[rows])
            best = TopK.from_scores(p, min(max(TOP_JUDGED, _TOP, *self._ks), max(1, p.shape[1])))
            self._add_ranked(judge(truth, best, (1,)), {"ece_top": _TOP})
            self._add_dense(p, truth)
            self._add_decided(csr_matrix(p >= self._threshold, dtype=np.float32), truth)
            self._add_surprises(rows.start, p, truth)
            yield rows, p, p

    def watched_top(self, ranked: Iterator[Ranked]) -> Iterator[Ranked]:
        """Blocks of the best labels."""
        for rows, best, p in ranked:
            truth = csr_matrix(self._y[rows])
            judged = judge(truth, best, (1,))
            self._add_ranked(judged, {f"ece_top{TOP_JUDGED}": TOP_JUDGED})
            likely = (best.labels != PAD) & (p >= self._threshold)
            row, place = np.nonzero(likely)
            entries = np.ones(len(row), np.float32), (row, best.labels[row, place])
            self._add_decided(csr_matrix(entries, shape=truth.shape), truth)
            self._add_listed_surprises(rows.start, judged)
            self._n_judged.append((best.labels[:, :TOP_JUDGED] != PAD).sum(axis=1))
            yield rows, best, p

    def add_losses(self, rows: dict[str, NDArray[np.float64]]) -> None:
        """The losses of all rows, once they went by."""
        (loss,) = rows.keys() - {"error", *RANKINGS}
        if self._n_judged:
            counts = np.concatenate(self._n_judged)
            self.sums.add_ratio(loss, rows[loss] * counts, counts)
        else:
            self.sums.add_mean(loss, rows[loss])

    def _add_ranked(self, judged: Judged, tops: dict[str, int]) -> None:
        """What the order of labels is worth, and how good the probabilities of the best are."""
        hits, best, positives = judged.hits, judged.topk, judged.positives
        discount = 1 / np.log2(np.arange(2, hits.shape[1] + 2))
        found, gained = hits.cumsum(axis=1), (hits * discount).cumsum(axis=1)
        ideal = discount.cumsum()
        gains = np.append(self._gains, 0.0)[best.labels] * hits
        own = self._gains[judged.truth.indices]
        most = np.append(own, 0.0)[leading_entries(judged.truth.indptr, judged.truth.indices, own, hits.shape[1])]
        gains, most = gains.cumsum(axis=1), most.cumsum(axis=1)
        labelled = positives > 0
        for k in self._ks:
            at = min(k, hits.shape[1]) - 1
            self.sums.add_mean(f"P@{k}", found[:, at] / k)
            reach = ideal[np.minimum(k, np.clip(positives, 1, hits.shape[1])) - 1]
            self.sums.add_mean(f"nDCG@{k}", gained[:, at] / reach)
            self.sums.add_ratio(f"R@{k}", found[:, at] / np.maximum(positives, 1), labelled)
            self.sums.add_ratio(f"PSP@{k}", gains[:, at], most[:, at])
        listed = best.labels != PAD
        p = np.where(listed, best.scores, 0).astype(np.float64)
        for name, k in {**tops, **{f"ECE@{k}": k for k in self._ks}}.items():
            row, place = np.nonzero(listed[:, :k])
            self.sums.add_error(name, len(p), row, p[row, place], hits[row, place], _BINS)
        row, place = np.nonzero(listed[:, :TOP_JUDGED])
        self.bands.add(best.labels[row, place], p[row, place], hits[row, place])

    def _add_dense(self, p: NDArray[Any], truth: csr_matrix) -> None:
        """What all probabilities of a row say."""
        n_rows, n_labels = p.shape
        rows = np.repeat(np.arange(n_rows), np.diff(truth.indptr))
        own = p[rows, truth.indices].astype(np.float64)
        squares = np.einsum("bk,bk->b", p, p, dtype=np.float64, casting="same_kind")
        self.sums.add_mean("brier", squares + np.bincount(rows, 1 - 2 * own, n_rows))
        step = max(1, (1 << 18) // max(1, n_labels))
        for start in range(0, n_rows, step):
            part = p[start : start + step].astype(np.float64)
            true = truth[start : start + step].toarray() != 0
            of_rows = np.repeat(np.arange(len(part)), n_labels)
            self.sums.add_error("ece", len(part), of_rows, part.ravel(), true.ravel(), _BINS)

    def _add_decided(self, decided: csr_matrix, truth: csr_matrix) -> None:
        right = csr_matrix(decided.multiply(truth))
        n_right, n_decided, n_true = (
            np.asarray(part.sum(axis=1), np.float64).ravel() for part in (right, decided, truth)
        )
        both = n_decided + n_true
        self.sums.add_ratio("micro_precision", n_right, n_decided)
        self.sums.add_ratio("micro_recall", n_right, n_true)
        self.sums.add_ratio("micro_f1", 2 * n_right, both)
        self.sums.add_mean("example_f1", 2 * n_right / np.maximum(both, 1))
        self.sums.add_macro("macro_f1", right, decided, truth)

    def _add_surprises(self, first: int, p: NDArray[Any], truth: csr_matrix) -> None:
        rows, labels = np.repeat(np.arange(len(p)), np.diff(truth.indptr)), truth.indices.astype(np.int64)
        own = p[rows, labels]
        known = self._counts[labels] > 0
        rows, labels, own = rows[known], labels[known], own[known]
        self.surprises.add(first + rows, labels, own, present=True, counts=self._counts[labels])
        others = p.astype(np.float32)
        others[rows, labels] = -1
        n = min(_SURPRISES, others.size)
        flat = np.argpartition(-others.ravel(), n - 1)[:n]
        flat = np.sort(flat[others.ravel()[flat] >= 0])
        row, label = np.divmod(flat, p.shape[1])
        self.surprises.add(first + row, label, others[row, label], present=False)

    def _add_listed_surprises(self, first: int, judged: Judged) -> None:
        """Of labels that are not listed no more is known than that they are less likely than those that are."""
        best, truth = judged.topk, judged.truth
        row, place = np.nonzero((best.labels != PAD) & ~judged.hits)
        self.surprises.add(first + row, best.labels[row, place], best.scores[row, place], present=False)
        row, place = np.nonzero(judged.hits)
        self.surprises.add(first + row, best.labels[row, place], best.scores[row, place], present=True)
        listed = csr_matrix((np.ones(len(row)), (row, best.labels[row, place])), shape=truth.shape)
        missing = csr_matrix(truth - listed)
        missing.eliminate_zeros()
        rows = np.repeat(np.arange(len(best.labels)), np.diff(missing.indptr))
        labels = missing.indices.astype(np.int64)
        least = np.where(best.labels[:, -1] == PAD, 0, best.scores[:, -1])
        known = self._counts[labels] > 0
        rows, labels = rows[known], labels[known]
        self.surprises.add(first + rows, labels, least[rows], present=True, counts=self._counts[labels])
