"""The predictive distribution of a model of label trees, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
import scipy.special
from numpy.typing import NDArray

from extremegp.engine.sparse import Matrix
from extremegp.label_tree.evidence import N_CANDIDATES
from extremegp.label_tree.model import Evidence, LabelTreeModel, row_blocks
from extremegp.metrics import TopK
from extremegp.prediction.predictor import Predictor, Ranked, RankedBy


class LabelTreePredictor:
    """A model of label trees for any number of inputs; offers what `Predictor` does without given labels.

    Args:
        model: the trained model.
    """

    def __init__(self, model: LabelTreeModel) -> None:
        self.model = model
        self._combiner = Predictor(model.combiner)

    def candidates(self, x: Matrix) -> Iterator[tuple[slice, Evidence, NDArray[np.float32], NDArray[np.float32]]]:
        """Rows, their candidate labels, and of these the mean utilities and the probabilities."""
        inputs = scipy.sparse.csr_matrix(x, dtype=np.float32)
        for rows in row_blocks(inputs.shape[0]):
            evidence = self.model.evidence(inputs[rows])
            utilities, probabilities = np.empty((2, len(evidence.labels)), dtype=np.float32)
            for pairs, mean, probability in self._combiner.mean_utilities_and_probabilities(
                self.model.scaled(evidence).numpy()
            ):
                utilities[pairs], probabilities[pairs] = mean[:, 0], probability[:, 0]
            yield rows, evidence, utilities, probabilities

    def uncertainty(self, x: Matrix) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any], NDArray[Any]]]:
        """Rows, entropies of their labels in nats, the expectations of these, and the mean variance of the utilities.

        The posterior is that of the last stage, the Gaussian process of the evidence: it does not know how sure trees
        and neighbours are of theirs. Labels that are no candidates add the background's entropy.
        """
        background = float(self.model.background)
        of_other = float(scipy.special.entr([background, 1 - background]).sum())
        inputs = scipy.sparse.csr_matrix(x, dtype=np.float32)
        for rows in row_blocks(inputs.shape[0]):
            evidence = self.model.evidence(inputs[rows])
            counts = np.bincount(evidence.rows, minlength=rows.stop - rows.start)
            sums = np.zeros((3, len(counts)))
            for pairs, *parts in self._combiner.uncertainty(self.model.scaled(evidence).numpy()):
                for total, part in zip(sums, parts, strict=True):
                    total += np.bincount(evidence.rows[pairs], part[:, 0], minlength=len(counts))
            others = (self.model.settings.n_labels - counts) * of_other
            yield rows, sums[0] + others, sums[1] + others, sums[2] / np.maximum(counts, 1)

    def top(self, x: Matrix, k: int, by: RankedBy = "probability") -> Iterator[Ranked]:
        """The k best candidates of every row; see `Predictor.top`. Rows with fewer end in pads."""
        for rows, evidence, utilities, probabilities in self.candidates(x):
            n, scores = rows.stop - rows.start, utilities if by == "utility" else probabilities
            order = np.lexsort((evidence.labels, -scores, evidence.rows))
            counts = np.bincount(evidence.rows, minlength=n)
            rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
            taken = order[rank < k]
            place = evidence.rows[taken], rank[rank < k]
            labels, best = np.full((n, k), -1, np.int64), np.full((n, k), -np.inf, np.float32)
            of_best = np.zeros((n, k), np.float32)
            labels[place], best[place], of_best[place] = evidence.labels[taken], scores[taken], probabilities[taken]
            yield rows, TopK(labels, best), of_best

    def mean_utilities_and_probabilities(self, x: Matrix) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any]]]:
        """Of all K labels, dense: those that are no candidates have the background's utility and probability."""
        background = float(self.model.background)
        for rows, evidence, utilities, probabilities in self.candidates(x):
            shape = rows.stop - rows.start, self.model.settings.n_labels
            means = np.full(shape, np.log(background / (1 - background)), dtype=np.float32)
            chances = np.full(shape, background, dtype=np.float32)
            means[evidence.rows, evidence.labels] = utilities
            chances[evidence.rows, evidence.labels] = probabilities
            yield rows, means, chances

    def mean_utilities(self, x: Matrix) -> Iterator[tuple[slice, NDArray[Any]]]:
        """The utilities alone."""
        for rows, means, _ in self.mean_utilities_and_probabilities(x):
            yield rows, means

    def probabilities(self, x: Matrix) -> Iterator[tuple[slice, NDArray[Any]]]:
        """The probabilities alone."""
        for rows, _, chances in self.mean_utilities_and_probabilities(x):
            yield rows, chances


MOST_RANKED = N_CANDIDATES
"""Labels of a row that can be ranked."""
