"""One class per row, measured for a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from extremegp.estimators import MultiClassGPClassifier
from extremegp.metrics import ClassMetrics, ClassRisks, TopK
from extremegp.metrics.risks import RANKINGS
from extremegp.report.findings import BandBins, Findings, chosen_rows
from extremegp.report.intervals import RowSums
from extremegp.report.issues import Surprises


def find(model: MultiClassGPClassifier, X: Any, y: Any, *, ks: Sequence[int], seed: int) -> Findings:
    """Measure a model of one class per row, in one pass over its predictions.

    Args:
        model: fitted.
        X: as in its `fit`.
        y: likewise; a class that training never saw counts as wrong.
        ks: a row is right at k if its class is among the k most probable.
        seed: decides which rows are shown.

    Raises:
        DataError: X or y cannot be used, or they do not fit each other.
    """
    from extremegp.estimators.fitting import check_lengths

    codes, n_classes = model.encode_labels(y), len(model.classes_)
    inputs = model.features_.transform_new(X)
    check_lengths(inputs, codes)
    quality, risks = ClassMetrics(n_classes, ks=ks), ClassRisks(n_classes)
    watcher = _Watcher(np.asarray(model.label_counts_), [k for k in ks if k > 1])
    for rows, p in model.predictor().probabilities(inputs):
        quality.update(p, codes[rows])
        risks.update(p, codes[rows])
        watcher.add(rows.start, p, codes[rows])
    of_rows = risks.rows()
    watcher.sums.add_mean("nlpd", of_rows["nlpd"])
    notes = []
    if quality.n_unknown:
        notes.append(f"{quality.n_unknown} rows have a class that training never saw; they count as wrong.")
    return Findings(
        quality.compute() | risks.compute(),
        watcher.sums,
        {"predicted class": quality.reliability()},
        watcher.bands.diagrams(),
        {loss: {by: risks.risk_coverage(loss, by) for by in RANKINGS} for loss in risks.losses},
        quality.per_class(),
        watcher.surprises,
        chosen_rows(of_rows["error"], of_rows["max_p"], of_rows["entropy"], seed),
        {"rows": len(codes), "classes": n_classes, "classes that any row has": len(np.unique(codes[codes >= 0]))},
        notes,
        quality.confusion(),
    )


class _Watcher:
    """Keeps what reports need of every row."""

    def __init__(self, counts: NDArray[np.int64], ks: Sequence[int]) -> None:
        self._ks, self._n_classes = ks, len(counts)
        self.sums, self.bands, self.surprises = RowSums(), BandBins(counts), Surprises()

    def add(self, first: int, p: NDArray[Any], codes: NDArray[np.int64]) -> None:
        """Add a block of rows."""
        n_rows, known = len(p), codes >= 0
        rows, width = np.arange(n_rows), min(max((1, *self._ks)), self._n_classes)
        best = TopK.from_scores(p, width).labels
        hits = best == codes[:, None]
        own = np.where(known, p[rows, codes], 0).astype(np.float64)
        predicted, of_predicted = best[:, 0], p[rows, best[:, 0]].astype(np.float64)
        self.sums.add_mean("accuracy", hits[:, 0])
        for k in self._ks:
            self.sums.add_mean(f"top{k}_accuracy", hits[:, :k].any(axis=1))
        squares = np.einsum("bk,bk->b", p, p, dtype=np.float64, casting="same_kind")
        self.sums.add_mean("brier", squares + 1 - 2 * own)
        self.sums.add_error("ece", n_rows, rows, of_predicted, hits[:, 0])
        self.sums.add_macro(
            "macro_f1",
            self._indicator(rows[hits[:, 0]], predicted[hits[:, 0]], n_rows),
            self._indicator(rows, predicted, n_rows),
            self._indicator(rows[known], codes[known], n_rows),
        )
        self.bands.add(predicted, of_predicted, hits[:, 0])
        others = p.astype(np.float32)
        others[rows[known], codes[known]] = -1
        other = others.argmax(axis=1)
        instead = other[known], others[rows, other][known]
        self.surprises.add(first + rows[known], codes[known], own[known], present=True, instead=instead)

    def _indicator(self, rows: NDArray[np.int64], codes: NDArray[np.int64], n_rows: int) -> csr_matrix:
        return csr_matrix((np.ones(len(rows), np.float32), (rows, codes)), shape=(n_rows, self._n_classes))
