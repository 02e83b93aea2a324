"""The predictive distribution of a model of label trees, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import scipy.special
import torch
from numpy.typing import NDArray

from extremegp.engine.integrals.logistic import expected_sigmoid
from extremegp.engine.latents import Marginals
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.sparse import Matrix
from extremegp.engine.utilities import Utilities
from extremegp.label_tree.model import Evidence, LabelTreeModel, row_blocks
from extremegp.label_tree.prior import LabelGroups
from extremegp.metrics import TopK
from extremegp.prediction.decisions import Candidates
from extremegp.prediction.predictor import Predictor, Ranked, RankedBy

_LEAST_FOUND = 0.1  # of the labels of a row, by candidates
# Of the means that probabilities have under a variance.
_NEWTON_STEPS, _STEP, _LEAST_PROBABILITY = 8, np.float32(0.1), 1e-9


class LabelTreePredictor:
    """A model of label trees for any number of inputs; offers what `Predictor` does without given labels.

    Args:
        model: the trained model.
    """

    def __init__(self, model: LabelTreeModel) -> None:
        self.model = model
        self._combiner = Predictor(model.combiner)
        self._likelihood = model.combiner.likelihood
        self._known_groups: tuple[int, LabelGroups] | None = None

    @property
    def _groups(self) -> LabelGroups:
        """The labels that have one prior, where the model has one: made once, until rows come or go."""
        model = self.model
        if self._known_groups is None or self._known_groups[0] != model.rows.version:
            assert model.prior is not None
            n_rows, background = float(model.rows.row_weights().sum()), float(model.background)
            found = model.prior.groups(self._likelihood, model.rows.label_counts(), n_rows, background)
            self._known_groups = model.rows.version, found
        return self._known_groups[1]

    def candidates(
        self, x: Matrix, own: NDArray[np.int64] | None = None
    ) -> Iterator[tuple[slice, Evidence, NDArray[np.float32], NDArray[np.float32]]]:
        """Rows, their candidate labels, and of these the mean utilities and the probabilities.

        Args:
            x: inputs.
            own: the training rows that they are, each of which is predicted without itself.
        """
        for rows, evidence, mean, variance in self._moments(x, own):
            yield rows, evidence, mean, self._probabilities(mean, variance)

    def uncertainty(self, x: Matrix) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any], NDArray[Any]]]:
        """Rows, entropies of their labels in nats, the expectations of these, and the mean variance of the utilities.

        The posterior is that of the last stage, the Gaussian process of the evidence, of the trees' weights and of the
        regressions, and the farther a row is from the training rows the more the prior. Variances are those of
        candidates; to entropies all other labels add theirs. Probabilities were calibrated without those of weights and
        regressions, and so the total is what it is without: they say how much of it is epistemic.
        """
        for rows, evidence, mean, variance in self._moments(x):
            counts = np.bincount(evidence.rows, minlength=rows.stop - rows.start)
            total, aleatoric = self._entropies(mean, variance)
            wider = variance + self._variance_of_evidence(x[rows], evidence)
            if self.model.prior is not None:
                # No more is unknown than under the prior.
                wider = np.maximum(np.minimum(wider, float(self.model.prior.variance)), variance)
            _, left = self._entropies(self._mean_of(self._probabilities(mean, variance), wider), wider)
            parts = total, np.where(wider > variance, np.minimum(left, total), aleatoric), wider
            sums = [np.bincount(evidence.rows, part, minlength=len(counts)) for part in parts]
            total, aleatoric = self._entropies_of_others(evidence, counts)
            most = 0.0 if self.model.prior is None else float(self.model.prior.variance)
            without = (1 - np.square(self._trust(evidence))) * most
            yield rows, sums[0] + total, sums[1] + aleatoric, np.where(counts, sums[2] / np.maximum(counts, 1), without)

    def _moments(
        self, x: Matrix, own: NDArray[np.int64] | None = None
    ) -> Iterator[tuple[slice, Evidence, NDArray[np.float32], NDArray[np.float32]]]:
        """Rows, their candidate labels, and of these the means and variances of the utilities."""
        inputs = scipy.sparse.csr_matrix(x, dtype=np.float32)
        for rows in row_blocks(inputs.shape[0]):
            block = inputs if rows.stop - rows.start == inputs.shape[0] else inputs[rows]
            evidence = self.model.evidence(block, None if own is None else own[rows])
            mean, variance = np.empty((2, len(evidence.labels)), dtype=np.float32)
            for pairs, utilities in self._combiner.utilities(self.model.scaled(evidence).numpy()):
                marginals = utilities.marginals()
                mean[pairs], variance[pairs] = (part[:, 0].detach().numpy() for part in marginals)
            yield rows, evidence, *self.toward_prior(evidence, mean, variance)

    def toward_prior(
        self, evidence: Evidence, mean: NDArray[np.float32], variance: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Means and variances of the utilities of candidates, with the prior as far as rows are far from all others."""
        trust = self._trust(evidence)
        if self.model.prior is not None and (trust < 1).any():
            prior_mean = self._groups.means[self._groups.of_label[evidence.labels]]
            mean, variance = self.model.prior.mixed(mean, variance, prior_mean, trust[evidence.rows])
        return mean, variance

    def _variance_of_evidence(self, x: Matrix, evidence: Evidence) -> NDArray[np.float32]:
        """What not being sure of the evidence adds to the variances of utilities.

        For e ~ N(m, diag(s^2)) the variance of h(e), to the first order, by differences of one standard deviation.
        """
        model, found = self.model, np.zeros(len(evidence.labels), np.float32)
        inputs = scipy.sparse.csr_matrix(x, dtype=np.float32).sorted_indices()
        for column, deviations in model.evidence_deviations(inputs, evidence).items():
            ends = []
            for sign in (-1, 1):
                moved = evidence.values.copy()
                moved[:, column] = np.minimum(moved[:, column] + sign * deviations, 0)
                ends.append(self._means(evidence._replace(values=moved)))
            found += np.square((ends[1] - ends[0]) / 2)
        return found * np.square(self._trust(evidence)[evidence.rows])

    def _means(self, evidence: Evidence) -> NDArray[np.float32]:
        blocks = [utilities.means() for _, utilities in self._combiner.utilities(self.model.scaled(evidence).numpy())]
        return np.asarray(torch.cat(blocks)[:, 0].detach().numpy())

    def _trust(self, evidence: Evidence) -> NDArray[np.float32]:
        """How far the evidence of each row is trusted."""
        prior = self.model.prior
        return np.ones_like(evidence.closeness) if prior is None else prior.trust(evidence.closeness)

    def _others(self, trust: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Means and variances of the utilities of labels that are no candidates, of rows and groups of labels."""
        prior = self.model.prior
        assert prior is not None
        return prior.mixed(self._background_utility, 0.0, self._groups.means, trust[:, None])

    @cached_property
    def _background_utility(self) -> float:
        return float(scipy.special.logit(float(self.model.background)))

    def _probabilities(self, mean: NDArray[np.float32], variance: NDArray[np.float32]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = expected_sigmoid(torch.from_numpy(mean), torch.from_numpy(variance)).numpy()
        return found

    def _mean_of(self, chances: NDArray[np.float32], variance: NDArray[np.float32]) -> NDArray[np.float32]:
        """The means of utilities with these variances that make these probabilities, by Newton's method."""
        sides, target = (
            np.where(chances > 0.5, -1, 1),
            np.log(np.minimum(chances, 1 - chances).clip(_LEAST_PROBABILITY)),
        )
        # log E sigma(f) ascends and is concave in the mean, and is at most mean + variance / 2: Newton's steps ascend.
        mean = (target - variance / 2).astype(np.float32)
        for _ in range(_NEWTON_STEPS):
            here, next_to = (np.log(self._probabilities(mean + step, variance)) for step in (0, _STEP))
            mean = np.minimum(mean + (target - here) * _STEP / np.maximum(next_to - here, 1e-6), 0).astype(np.float32)
        return np.asarray(sides * mean, dtype=np.float32)

    def _entropies(
        self, mean: NDArray[np.float32], variance: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Entropies of labels, and their expectations, of utilities of any shape."""
        nothing = torch.zeros(1)
        marginals = Marginals(*(torch.from_numpy(part.reshape(-1, 1)) for part in (mean, variance)))
        with torch.no_grad():
            found = self._likelihood.entropies(Utilities(IdentityMixing(nothing, nothing), marginals))
        total, aleatoric = (part.numpy().reshape(mean.shape) for part in found)
        return total, aleatoric

    def _entropies_of_others(self, evidence: Evidence, counts: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Sums of the entropies of a row's labels that are no candidates, and of their expectations, B each."""
        background = float(self.model.background)
        of_other = float(scipy.special.entr([background, 1 - background]).sum())
        total = (self.model.settings.n_labels - counts) * of_other
        aleatoric, trust = total.copy(), self._trust(evidence)
        far = np.flatnonzero(trust < 1)
        if len(far):
            groups, place = self._groups, np.full(len(trust), -1)
            place[far] = np.arange(len(far))
            of_far = place[evidence.rows] >= 0
            n_left = np.tile(groups.sizes, (len(far), 1))
            pairs = place[evidence.rows[of_far]], groups.of_label[evidence.labels[of_far]]
            np.subtract.at(n_left, pairs, 1)
            for sums, part in zip((total, aleatoric), self._entropies(*self._others(trust[far])), strict=True):
                sums[far] = (part * n_left).sum(axis=1)
        return total, aleatoric

    def top(self, x: Matrix, k: int, by: RankedBy = "probability") -> Iterator[Ranked]:
        """The k best candidates of every row; see `Predictor.top`. Rows with fewer end in pads."""
        for rows, evidence, utilities, probabilities in self.candidates(x):
            n, scores = rows.stop - rows.start, utilities if by == "utility" else probabilities
            yield rows, *best_candidates(evidence, scores, probabilities, n, k)

    def likeliest(self, x: Matrix, k: int) -> Iterator[tuple[slice, Candidates]]:
        """The k most probable candidates of every row, with the sum of the probabilities of all other labels.

        That sum is on average what the background makes it, and of a row in proportion to the labels that are expected
        among its candidates: rows with many labels that are found have more of the others too.
        """
        n_labels, background = self.model.settings.n_labels, float(self.model.background)
        counts = self.model.rows.row_weights()
        mean = float(np.diff(self.model.rows.array("label_indptr")) @ counts / max(counts.sum(), 1e-9))
        for rows, best, probabilities in self.top(x, k):
            p = probabilities.astype(np.float64)
            others = background * (n_labels - (best.labels >= 0).sum(axis=1))
            found = np.maximum(mean - others, _LEAST_FOUND * mean)
            yield rows, Candidates(best.labels, p, others * p.sum(axis=1) / np.maximum(found, 1e-9))

    def mean_utilities_and_probabilities(self, x: Matrix) -> Iterator[tuple[slice, NDArray[Any], NDArray[Any]]]:
        """Of all K labels, dense: those that are no candidates have the background's, or far from rows their own."""
        for rows, evidence, utilities, probabilities in self.candidates(x):
            shape, trust = (rows.stop - rows.start, self.model.settings.n_labels), self._trust(evidence)
            means = np.full(shape, self._background_utility, dtype=np.float32)
            chances = np.full(shape, float(self.model.background), dtype=np.float32)
            far = np.flatnonzero(trust < 1)
            if len(far):
                mean, variance = self._others(trust[far])
                means[far] = mean[:, self._groups.of_label]
                chances[far] = self._probabilities(mean, variance)[:, self._groups.of_label]
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


def best_candidates(
    evidence: Evidence, scores: NDArray[np.float32], probabilities: NDArray[np.float32], n_rows: int, k: int
) -> tuple[TopK, NDArray[np.float32]]:
    """The k candidates of every row with the highest scores, and their probabilities, B x k."""
    order = np.lexsort((evidence.labels, -scores, evidence.rows))
    counts = np.bincount(evidence.rows, minlength=n_rows)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    taken = order[rank < k]
    place = evidence.rows[taken], rank[rank < k]
    labels, best = np.full((n_rows, k), -1, np.int64), np.full((n_rows, k), -np.inf, np.float32)
    of_best = np.zeros((n_rows, k), np.float32)
    labels[place], best[place], of_best[place] = evidence.labels[taken], scores[taken], probabilities[taken]
    return TopK(labels, best), of_best
