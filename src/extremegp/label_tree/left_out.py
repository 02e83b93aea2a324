"""What a model of label trees says of its training rows, each as if it had not been trained on.

Trees have learnt from the rows, and exclusions were found on them: both know the labels of a row. The nearest of the
other rows do not, nor do regressions on other rows, which leave a row out exactly. So a Gaussian process of their
evidence alone says what it is worth without trees: it is learnt on some of the training rows, each left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from extremegp.engine.integrals.logistic import expected_sigmoid
from extremegp.label_tree.combiner import train_on_pairs
from extremegp.label_tree.evidence import LEAST_REGRESSED, SHARES
from extremegp.label_tree.model import Evidence, LabelTreeModel, combiner_settings, row_blocks
from extremegp.label_tree.prediction import LabelTreePredictor
from extremegp.prediction.predictor import Predictor

_ROWS, _MOST_PAIRS = 2000, 400_000
_COUNTS = len(SHARES) + 1
"""The column of the evidence that has the logarithm of a label's rows."""


class LeftOutTreePredictor:
    """How probable it is that labels of training rows are recorded, each row left out.

    Args:
        model: the trained model.
        seed: decides what is learnt of the evidence.

    Attributes:
        background: the probability of labels that are no candidates.
    """

    def __init__(self, model: LabelTreeModel, seed: int) -> None:
        self.model, self._whole = model, LabelTreePredictor(model)
        last = model.settings.n_evidence - (model.settings.n_excluded > 0)
        self._columns = slice(1, last)
        self._combiner = combiner_settings(model.settings, last - 1).build()
        self._learn(seed)
        self._predictor = Predictor(self._combiner)

    def candidates(self, places: NDArray[np.int64]) -> Iterator[tuple[slice, Evidence, NDArray[np.float32]]]:
        """Blocks of the rows that are asked for, their candidates, and the probabilities of these.

        Args:
            places: of the rows among those that the model has.
        """
        for rows in row_blocks(len(places)):
            evidence = self._evidence(places[rows])
            mean, variance = np.empty((2, len(evidence.labels)), dtype=np.float32)
            for pairs, utilities in self._predictor.utilities(self._scaled(evidence.values)):
                mean[pairs], variance[pairs] = (part[:, 0].numpy() for part in utilities.marginals())
            parts = map(torch.from_numpy, self._whole.toward_prior(evidence, mean, variance))
            yield rows, evidence, expected_sigmoid(*parts).numpy()

    def _learn(self, seed: int) -> None:
        n_rows = self.model.settings.n_rows
        some = np.linspace(0, n_rows - 1, min(n_rows, _ROWS)).round().astype(np.int64)
        weights, parts = self.model.rows.row_weights().astype(np.float64), []
        n_missed = n_others = 0.0
        for block in row_blocks(len(some)):
            rows = some[block]
            evidence, truth = self._evidence(rows), self._labels(rows)
            present = np.asarray(truth[evidence.rows, evidence.labels]).ravel() > 0
            of_pairs = weights[rows][evidence.rows]
            parts.append((evidence.values, present, of_pairs))
            n_missed += float(np.diff(truth.indptr) @ weights[rows] - of_pairs[present].sum())
            n_others += float(truth.shape[1] * weights[rows].sum() - of_pairs.sum())
        # And half a miss, so that none is impossible.
        self.background = (n_missed + 0.5) / (n_others + 1)
        e, present, of_pairs = map(np.concatenate, zip(*parts, strict=True))
        if len(e) > _MOST_PAIRS:
            chosen = np.sort(np.random.default_rng([seed, 4]).choice(len(e), _MOST_PAIRS, replace=False))
            e, present, of_pairs = e[chosen], present[chosen], of_pairs[chosen]
        spread = e.std(axis=0)
        self._centre, self._scale = e.mean(axis=0), np.where(spread > 1e-6, spread, 1).astype(np.float32)
        train_on_pairs(
            self._combiner,
            self._scaled(e),
            present,
            seed,
            of_pairs if self.model.rows.settings.weighted else None,
        )

    def _scaled(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray((values - self._centre) / self._scale, dtype=np.float32)

    def _labels(self, rows: NDArray[np.int64]) -> scipy.sparse.csr_matrix:
        return self.model.rows.indicator()[rows]

    def _evidence(self, rows: NDArray[np.int64]) -> Evidence:
        """Evidence for the candidates of training rows, that of their own labels without the row."""
        model = self.model
        evidence = model.evidence(model.rows.inputs()[rows], own=rows, of_trees=False)
        own = np.flatnonzero(np.asarray(self._labels(rows)[evidence.rows, evidence.labels]).ravel() > 0)
        if model.rows.settings.marked:
            own = own[model.rows.array("seen")[rows[evidence.rows[own]]] > 0]
        every = model.rows.row_weights()
        weights, labels = every[rows[evidence.rows[own]]], evidence.labels[own]
        without = np.maximum(np.expm1(evidence.values[own, _COUNTS]) - weights, 0)
        evidence.values[own, _COUNTS] = np.log1p(without)
        less = model.frequencies()[labels] - without / np.maximum(float(every.sum()) - weights, 1e-9)
        for number, column in enumerate(model.settings.regressions):
            said = np.exp(evidence.values[own, column]) - evidence.rests[evidence.rows[own], number] * less
            evidence.values[own, column] = np.log(np.maximum(said, LEAST_REGRESSED))
        return evidence._replace(values=evidence.values[:, self._columns])
