"""How label trees learn rows, and forget them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.utils.extmath import row_norms

from extremegp.data import FloatCSR, FloatMatrix
from extremegp.estimators.explanations import Told, VotingRows
from extremegp.estimators.learning import sorted_csr
from extremegp.estimators.learning_targets import LearnsLabels
from extremegp.estimators.left_out import LeftOutBlock
from extremegp.estimators.replay import LearntRows
from extremegp.estimators.selecting import regression_of_trees
from extremegp.label_tree import LabelTreeModel, LabelTreePredictor, LabelTreeSettings
from extremegp.label_tree.left_out import LeftOutTreePredictor
from extremegp.label_tree.model import Evidence
from extremegp.label_tree.prediction import best_candidates
from extremegp.metrics import TopK
from extremegp.prediction.pool_covariance import KnownRegression

_STALE_ROWS, _LEAST_PROBABILITY, _SEED = 512, 1e-9, 0


class LearnsTreeRows(LearnsLabels):
    """An estimator of label trees, which keeps its rows for their neighbours."""

    model_: LabelTreeModel
    settings_: LabelTreeSettings

    @abstractmethod
    def predictor(self) -> LabelTreePredictor:
        """What predicts, a block of rows at a time."""

    def _cannot_learn(self) -> None:
        return None

    def _take_in(self, rows: LearntRows) -> None:
        self.model_.add(rows.x, rows.y, rows.weights)

    def _let_go(self, place: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        rows = self.model_.rows
        features, labels = rows.features_of(place).copy(), rows.labels_of(place).copy()
        self.model_.remove(place)
        columns = rows.columns()
        return features[columns.starts[features] == columns.ends[features]], labels

    def _relabel(self, places: NDArray[np.int64], n_labels: int) -> None:
        self.model_.add_labels(n_labels - len(places))

    def _changed(self) -> None:
        self.settings_ = self.model_.settings

    def _inputs(self) -> FloatMatrix:
        return self.model_.rows.inputs()

    def _labelled(self) -> NDArray[np.bool_]:
        return np.asarray(np.diff(self.model_.rows.array("label_indptr")) > 0)

    def _compared(self) -> NDArray[np.bool_]:
        rows = self.model_.rows
        return np.asarray((rows.array("seen") if rows.settings.marked else np.ones(self.n_rows_)) == 0)

    def _left_out_loss(self, rows: NDArray[np.int64]) -> float:
        """Over the labels that are candidates or theirs."""
        if not len(rows):
            return float("nan")
        some = rows[np.linspace(0, len(rows) - 1, min(len(rows), _STALE_ROWS)).round().astype(np.int64)]
        inputs = self.model_.rows.inputs()[some]
        losses = 0.0
        for block, evidence, _, chances in self.predictor().candidates(inputs, own=some):
            for row in range(block.stop - block.start):
                own, of_row = self.model_.rows.labels_of(int(some[block.start + row])), evidence.rows == row
                labels = evidence.labels[of_row]
                p = np.clip(chances[of_row], _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
                hit = np.isin(labels, own)
                n_missed = len(own) - np.count_nonzero(hit)
                losses -= np.log(np.where(hit, p, 1 - p)).sum()
                losses -= n_missed * np.log(max(float(self.model_.background), _LEAST_PROBABILITY))
        return float(losses / len(some))

    def _suited(self, x: FloatMatrix) -> FloatMatrix:
        return sorted_csr(x)

    def _recorded(self) -> FloatCSR:
        return self.model_.rows.indicator()

    def _nearest(self, x: FloatMatrix, own: NDArray[np.int64], m: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        rows, matrix = self.model_.rows, sorted_csr(x)
        near = rows.nearest(matrix, own)
        found, lengths = near.rows[:, :m], rows.norms()
        own_lengths = np.sqrt(row_norms(matrix, squared=True), dtype=np.float64)[:, None]
        cosines = near.similarities[:, :m] / np.maximum(own_lengths * lengths[found], 1e-12)
        some = np.arange(found.shape[1]) < near.sizes[:, None]
        return np.where(some, found, -1).astype(np.int64), np.where(some, cosines, -1).astype(np.float32)

    def _left_out_blocks(self, places: NDArray[np.int64], k: int) -> Iterator[LeftOutBlock]:
        predictor, every = self._left_out_predictor(), self.model_.rows.indicator()
        for rows, evidence, p in predictor.candidates(places):
            yield _block_of(rows, evidence, p, every[places[rows]], predictor.background, k)

    def _plain_blocks(self, x: FloatMatrix, y: FloatCSR, k: int) -> Iterator[LeftOutBlock]:
        for rows, evidence, _, p in self.predictor().candidates(x):
            yield _block_of(rows, evidence, p, y[rows], float(self.model_.background), k)

    def _left_out_predictor(self) -> LeftOutTreePredictor:
        model = self.model_
        return self._kept.get("left out", lambda: LeftOutTreePredictor(model, _SEED), model)

    def _told(self, x: FloatMatrix, wanted: NDArray[np.int64] | None, k: int) -> Iterator[Told]:
        """The voting rows are those of the regression on the nearest rows."""
        matrix = sorted_csr(x)
        voting = self.model_.voting(matrix)
        for row, (places, weights) in enumerate(voting):
            one = matrix[row]
            best = self._gathered(self.predictor().top(one, k), "arrays") if wanted is None else None
            if isinstance(best, TopK):
                found = best.labels[0] >= 0
                labels, p = best.labels[0][found], best.scores[0][found]
            else:
                assert wanted is not None
                (_, chances), *_ = self.predictor().probabilities(one)
                labels, p = wanted, chances[0][wanted]
            yield VotingRows(places, weights), labels, p, []

    def _frequency(self, label: int) -> float:
        return float(self.model_.frequencies()[label])

    def _having(self, places: NDArray[np.int64], label: int) -> NDArray[np.float64]:
        return np.array([float((self.model_.rows.labels_of(place) == label).any()) for place in places.tolist()])

    def _feature_weights(self) -> NDArray[np.float64]:
        return np.ones(self.settings_.n_features)

    def _known_regression(self) -> KnownRegression:
        return regression_of_trees(self.model_)

    def _entropies(self, x: FloatMatrix) -> Iterator[tuple[Any, ...]]:
        return self.predictor().uncertainty(x)

    def _scrub(self, features: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
        for tree in self.model_.trees:
            tree.scrub(features, labels)
        columns = self.model_.rows.columns()
        return np.asarray(features[columns.starts[features] == columns.ends[features]])

    def _settle(self) -> None:
        self.model_.settle()
        super()._settle()


def _block_of(
    rows: slice, evidence: Evidence, p: NDArray[np.float32], recorded: FloatCSR, background: float, k: int
) -> LeftOutBlock:
    """A block of rows of whose candidates the probabilities are known."""
    best, _ = best_candidates(evidence, p, p, recorded.shape[0], k)
    # One more than the place of each candidate, and nothing of other labels.
    numbers = np.arange(1.0, len(p) + 1)
    found = scipy.sparse.csr_matrix((numbers, (evidence.rows, evidence.labels)), shape=recorded.shape)
    entries = np.repeat(np.arange(recorded.shape[0]), np.diff(recorded.indptr)), recorded.indices
    place = np.asarray(found[entries]).ravel().astype(np.int64)
    own = np.append(np.float32(background), p)[place]
    return LeftOutBlock(rows, best, recorded, own.astype(np.float32))
