"""What estimators of a label for every token of sequences predict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from extremegp.data import FloatMatrix, encode_label_sequences
from extremegp.data.label_sequences import MISSING, encode_known_labels
from extremegp.data.sequence_features import SequenceFeatures
from extremegp.data.validation import check_weights
from extremegp.engine import chain
from extremegp.engine.likelihoods.chain_draws import ChainDraws
from extremegp.estimators.base import VariationalEstimator
from extremegp.estimators.classes import ClassEstimator
from extremegp.estimators.distances import TellsTokenNovelty, read_once
from extremegp.estimators.uncertainty import Uncertainty, uncertainty
from extremegp.prediction.predictor import Predictor
from extremegp.settings.domains import choice, number

Decoding = Literal["max-marginal", "viterbi"]
DECODINGS: tuple[str, ...] = get_args(Decoding)
MOST_DRAWS = 100_000


class LabelsTokens(TellsTokenNovelty, VariationalEstimator, ClassEstimator):
    """An estimator of a label for every token, which says what draws of its posterior do."""

    decoding: Decoding
    n_draws: int
    features_: SequenceFeatures

    def predict(self, X: Any, given: Any = None) -> list[NDArray[Any]]:
        """The labels of every sequence by `decoding`, S arrays in the type that `fit` was given.

        Args:
            X: as in `fit`.
            given: labels of some tokens that are known already: for every sequence a label or None for each token, in
                place of which "" and NaN will do. Tokens keep these, and the others are predicted given them.
        """
        if choice("decoding", self.decoding, DECODINGS) == "viterbi":
            return [best[0][0] for best in self.predict_k_best(X, 1, given)]
        return [self.label_space_.decode(p.argmax(1)) for p in self.predict_marginals(X, given)]

    def predict_marginals(self, X: Any, given: Any = None) -> list[NDArray[np.float32]]:
        """p(y_t = v), averaged over the posterior: for every sequence T x V, whose rows add up to one.

        Args:
            X: as in `fit`.
            given: labels that are known, as in `predict`; those of the others are exact given these.
        """
        return self._of_tokens(X, ChainDraws.mean_marginals, given)

    def predict_k_best(self, X: Any, k: int = 5, given: Any = None) -> list[list[tuple[NDArray[Any], float]]]:
        """The k best labellings of every sequence with their log-probabilities, best first.

        Candidates are the best at the mean of the posterior; their order is by their probability averaged over it.

        Args:
            X: as in `fit`.
            k: how many; fewer where a sequence has not so many.
            given: labels that are known, as in `predict`: labellings have these, and probabilities given them.
        """
        k = number("k", k, low=1, high=10_000, integer=True)
        found: list[list[tuple[NDArray[Any], float]]] = []
        for block in self.blocks(X, given)[1]:
            paths, scores = (part.cpu().numpy() for part in block.k_best(k))
            for own, log_prob, length in zip(paths, scores, block.lengths.tolist(), strict=True):
                kept = np.flatnonzero(np.isfinite(log_prob))
                found.append([(self.label_space_.decode(own[i, :length]), float(log_prob[i])) for i in kept])
        return found

    def log_prob(self, X: Any, y: Any, given: Any = None) -> NDArray[np.float64]:
        """log p(y | x) of every labelled sequence, S, p averaged over draws of the posterior.

        The logarithm of an average of draws is biased downwards, less so the more draws there are.

        Args:
            X: as in `fit`.
            y: labels, as in `fit`; a sequence with one never seen in training has -inf. Where a label is None all are
                summed over: the probability is that of the others.
            given: labels that are known, as in `predict`: the probability is that given them, and -inf where y has
                others.
        """
        X = read_once(X)
        x, lengths = self._features(X)
        codes, _ = encode_label_sequences(y, lengths, self.label_space_, "ignore", missing="keep")
        ends, possible = np.cumsum(lengths), codes != -1
        own = np.where(possible, codes, 0)
        known = None if given is None else encode_known_labels(given, lengths, self.label_space_)
        if known is not None:
            possible &= (own < 0) | (known < 0) | (own == known)
            own = np.where(possible, own, known)
        values: list[torch.Tensor] = []
        blocks = _padded(self._blocks(X, x, lengths, known), own, ends)
        for block, labels in blocks:
            partial = bool((own[_tokens(block, ends)] < 0).any())
            values.append(block.partial_log_prob(labels) if partial else block.log_prob(labels))
        every = np.logical_and.reduceat(possible, ends - lengths)
        return np.where(every, torch.cat(values).cpu().numpy(), -np.inf)

    def predict_uncertainty(self, X: Any, given: Any = None) -> list[Uncertainty]:
        """How uncertain the label of every token is, split into what more data could and could not take away.

        Args:
            X: as in `fit`.
            given: labels that are known, as in `predict`; of these nothing is uncertain.

        Returns:
            For every sequence T numbers each: the entropy of its tokens' marginals, their mean entropy at draws of the
            posterior, the difference of the two, all in nats; the variance of the tokens' utilities over the draws; and
            the tokens' p-values.
        """
        X = read_once(X)
        found = self._of_tokens(X, ChainDraws.uncertainty, given)
        novelty = [np.full(len(part), np.nan) for part in found] if self.novelty_ is None else self.predict_novelty(X)
        return [
            uncertainty(part[:, 0], part[:, 1], part[:, 2], of_tokens)
            for part, of_tokens in zip(found, novelty, strict=True)
        ]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Token accuracy: the share of all tokens whose label `predict` has right.

        Args:
            X: as in `fit`.
            y: labels, as in `fit`; one never seen in training counts as an error, and tokens whose label is None do not
                count.
            sample_weight: weights of the S sequences, which each of their tokens has.
        """
        check_is_fitted(self, "model_")
        predicted = self.predict(X)
        lengths = np.array([len(labels) for labels in predicted])
        codes, _ = encode_label_sequences(y, lengths, self.label_space_, "ignore", missing="keep")
        labelled = codes != MISSING
        right = self.label_space_.encode(np.concatenate(predicted)) == codes
        weights = check_weights(sample_weight, len(lengths), of="sequence")
        counted = None if weights is None else np.repeat(weights, lengths)[labelled]
        return float(np.average(right[labelled], weights=counted))

    def predictor(self) -> Predictor:
        """What draws from the fitted model, `n_draws` times.

        Raises:
            SettingsError: `n_draws` is outside its domain, as in an altered model.
        """
        n_draws = number("n_draws", self.n_draws, low=1, high=MOST_DRAWS, integer=True)
        return super().predictor().using(n_draws=n_draws)

    def blocks(self, X: Any, given: Any = None) -> tuple[NDArray[np.int64], Iterator[ChainDraws]]:
        """The lengths of sequences, and what draws of the posterior say of them, a block at a time.

        Args:
            X: as in `fit`.
            given: labels that are known, as in `predict`.

        Raises:
            DataError: X or the labels cannot be used.
        """
        X = read_once(X)
        x, lengths = self._features(X)
        known = None if given is None else encode_known_labels(given, lengths, self.label_space_)
        return lengths, self._blocks(X, x, lengths, known)

    def _blocks(
        self, X: Any, x: FloatMatrix, lengths: NDArray[np.int64], known: NDArray[np.int64] | None
    ) -> Iterator[ChainDraws]:
        blocks = self.predictor().blocks(x, lengths, self._unseen(X))
        if known is None or not (known >= 0).any():
            return blocks
        return (block.given(labels) for block, labels in _padded(blocks, known, np.cumsum(lengths)))

    def _features(self, X: Any) -> tuple[FloatMatrix, NDArray[np.int64]]:
        check_is_fitted(self, "model_")
        return self.features_.transform(X)

    def _unseen(self, X: Any) -> NDArray[np.float32] | None:
        """Squared norms of the tokens in features that training did not have, where the posterior asks for them."""
        return self.features_.unknown_squares(X) if self.settings_.weight_covariance == "shared" else None

    def _of_tokens(
        self, X: Any, values: Callable[[ChainDraws], torch.Tensor], given: Any = None
    ) -> list[NDArray[np.float32]]:
        """What tokens have a row of, split into sequences."""
        lengths, blocks = self.blocks(X, given)
        rows = [values(block).cpu().numpy().astype(np.float32) for block in blocks]
        return np.split(np.concatenate(rows), np.cumsum(lengths)[:-1])


def _tokens(block: ChainDraws, ends: NDArray[np.int64]) -> slice:
    """Which tokens a block has."""
    first = int(ends[block.sequences.start - 1]) if block.sequences.start else 0
    return slice(first, int(ends[block.sequences.stop - 1]))


def _padded(
    blocks: Iterator[ChainDraws], codes: NDArray[np.int64], ends: NDArray[np.int64]
) -> Iterator[tuple[ChainDraws, Int[torch.Tensor, "S T"]]]:
    """Blocks with codes of their tokens, padded to the longest of the block, not of all sequences."""
    for block in blocks:
        own = torch.from_numpy(codes[_tokens(block, ends)]).to(block.lengths.device)
        yield block, chain.pad(own, block.lengths, dim=-1)
