"""How uncertain predictions are, and why: the same words for every estimator."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremegp.engine.latents import Marginals
from extremegp.engine.likelihoods import Likelihood
from extremegp.errors import SettingsError
from extremegp.estimators.distances import TellsNovelty
from extremegp.prediction.predictor import Predictor


class Uncertainty(NamedTuple):
    """How uncertain the labels of every row, or token, are, in nats, and why.

    Of many labels entropies are sums over the labels.

    Attributes:
        total: entropy of the predicted probabilities, N.
        aleatoric: what would be left if the utilities were known: its expectation under the posterior, N.
        epistemic: what more data would take away: mutual information of labels and utilities, total - aleatoric, N.
        variance: posterior variance of the utilities, mean over labels or classes, N. Like `epistemic` NaN where a
            model keeps no posterior.
        novelty: p-value of the row beside the training rows, see `predict_novelty`, N; NaN in models of earlier
            versions.
    """

    total: NDArray[np.float32]
    aleatoric: NDArray[np.float32]
    epistemic: NDArray[np.float32]
    variance: NDArray[np.float32]
    novelty: NDArray[np.float64]


class LabelUncertainty(NamedTuple):
    """As `Uncertainty`, of each label of every row, N x K; entropies of one class per row are N x 1."""

    total: NDArray[np.float32]
    aleatoric: NDArray[np.float32]
    epistemic: NDArray[np.float32]
    variance: NDArray[np.float32]


def uncertainty(total: Any, aleatoric: Any, variance: Any, novelty: NDArray[np.float64]) -> Uncertainty:
    """The same from its parts."""
    total, aleatoric, variance = (np.asarray(part, dtype=np.float32) for part in (total, aleatoric, variance))
    return Uncertainty(total, aleatoric, total - aleatoric, variance, novelty)


class UtilityMoments(NamedTuple):
    """Posterior means and variances of the utilities, N x K each."""

    mean: NDArray[np.float32]
    variance: NDArray[np.float32]


class TellsUncertainty(TellsNovelty):
    """An estimator of rows with a posterior of its utilities."""

    @abstractmethod
    def predictor(self) -> Predictor:
        """What predicts, a block of rows at a time."""

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """How uncertain the labels of every row are, split into what more data could and could not take away.

        Args:
            X: as in `fit`.

        Raises:
            DataError: X cannot be used.
            SettingsError: the likelihood has no entropies.
        """
        x = self._transform(X)
        parts = [
            (total.sum(1), aleatoric.sum(1), variance.mean(1)) for _, total, aleatoric, variance in self._entropies(x)
        ]
        total, aleatoric, variance = map(np.concatenate, zip(*parts, strict=True))
        return uncertainty(total, aleatoric, variance, self.novelty_of(X, x))

    def predict_label_uncertainty(self, X: Any) -> LabelUncertainty:
        """The same of each of K labels or classes, N x K and dense; entropies of one class per row are N x 1.

        Args:
            X: as in `fit`.
        """
        parts = [parts for _, *parts in self._entropies(self._transform(X))]
        total, aleatoric, variance = (np.concatenate(part).astype(np.float32) for part in zip(*parts, strict=True))
        return LabelUncertainty(total, aleatoric, total - aleatoric, variance)

    def _entropies(self, x: Any) -> Iterator[tuple[Any, ...]]:
        predictor = self.predictor()
        kind = type(predictor.model.likelihood)
        if kind.entropies is Likelihood.entropies:
            raise SettingsError(f"the likelihood {kind.__name__} has no entropies, which uncertainty is made of")
        return predictor.uncertainty(x)

    def predict_utilities(self, X: Any) -> UtilityMoments:
        """Posterior means and variances of the utilities, of which probabilities are made: two arrays of N x K.

        Args:
            X: as in `fit`.
        """
        blocks = [utilities.marginals() for _, utilities in self.predictor().utilities(self._transform(X))]
        mean, variance = (part.cpu().numpy().astype(np.float32) for part in Marginals.concatenate(blocks))
        return UtilityMoments(mean, variance)
