"""What estimators of a label for every token of sequences predict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from extremegp.data import FloatMatrix, encode_label_sequences
from extremegp.data.label_sequences import MISSING, encode_known_labels
from extremegp.data.schemes import SCHEMES, checked_scheme, legal_tags, looks_like_spans, spans_of
from extremegp.data.sequence_features import SequenceFeatures
from extremegp.data.validation import check_weights
from extremegp.engine import chain
from extremegp.engine.likelihoods.chain_draws import ChainDraws, Legal
from extremegp.engine.part import Part
from extremegp.errors import ModelFormatError, SettingsError
from extremegp.estimators.base import VariationalEstimator
from extremegp.estimators.classes import ClassEstimator
from extremegp.estimators.distances import TellsTokenNovelty, read_once
from extremegp.estimators.uncertainty import Uncertainty, uncertainty
from extremegp.prediction.predictor import Predictor
from extremegp.prediction.spans import PredictedSpan, span_probabilities
from extremegp.settings.domains import choice, number

Decoding = Literal["max-marginal", "viterbi"]
DECODINGS: tuple[str, ...] = get_args(Decoding)
MOST_DRAWS = 100_000


class LabelsTokens(TellsTokenNovelty, VariationalEstimator, ClassEstimator):
    """An estimator of a label for every token, which says what draws of its posterior do."""

    decoding: Decoding
    scheme: str | None
    detected_scheme_: str | None = None
    n_draws: int
    features_: SequenceFeatures

    def predict(self, X: Any, given: Any = None) -> list[NDArray[Any]]:
        """The labels of every sequence by `decoding`, S arrays in the type that `fit` was given.

        Args:
            X: as in `fit`.
            given: labels of some tokens that are known already: for every sequence a label or None for each token, in
                place of which "" and NaN will do. Tokens keep these, and the others are predicted given them.
        """
        choice("decoding", self.decoding, DECODINGS)
        lengths, blocks = self.blocks(X, given)
        codes = np.concatenate([self._codes(block) for block in blocks])
        return [self.label_space_.decode(own) for own in np.split(codes, np.cumsum(lengths)[:-1])]

    def _codes(self, block: ChainDraws) -> NDArray[np.int64]:
        """The labels of all tokens of a block, by `decoding`."""
        if choice("decoding", self.decoding, DECODINGS) == "viterbi":
            found = chain.unpad(block.k_best(1)[0][:, 0].unsqueeze(-1), block.lengths).squeeze(-1)
        else:
            found = block.most_probable_labels()
        codes: NDArray[np.int64] = found.cpu().numpy()
        return codes

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
            the tokens' p-values. Where predictions are those of the most probable functions, as by default, this is
            about their posterior all the same, and the entropies are those of what it says.
        """
        X = read_once(X)
        found = self._of_tokens(X, ChainDraws.uncertainty, given, drawn=True)
        novelty = [np.full(len(part), np.nan) for part in found] if self.novelty_ is None else self.predict_novelty(X)
        return [
            uncertainty(part[:, 0], part[:, 1], part[:, 2], of_tokens)
            for part, of_tokens in zip(found, novelty, strict=True)
        ]

    def predict_spans(self, X: Any, given: Any = None) -> list[list[PredictedSpan]]:
        """The spans that the labels of `predict` stand for, of every sequence, in order, with their probabilities.

        That of a span is the probability that exactly its tokens are one of its type, whatever the labels elsewhere:
        exact for every draw of the posterior, over which it is averaged. Tags are read as by `extremegp.data.spans_of`.

        Args:
            X: as in `fit`.
            given: labels that are known, as in `predict`.

        Raises:
            DataError: X or the labels cannot be used.
            SettingsError: the model's labels are no tags of spans.
        """
        check_is_fitted(self, "model_")
        names = self.label_space_.names
        if not looks_like_spans(names):
            raise SettingsError(f"spans need labels such as O, B-NP and I-NP; the model has {names[0]!r}")
        found: list[list[PredictedSpan]] = []
        for block in self.blocks(X, given)[1]:
            codes = self._codes(block)
            tags = [
                self.label_space_.decode(own).tolist() for own in np.split(codes, block.lengths.cumsum(0)[:-1].cpu())
            ]
            spans = [(s, span) for s, own in enumerate(tags) for span in spans_of(own)]
            own: list[list[PredictedSpan]] = [[] for _ in tags]
            for (s, span), p in zip(spans, span_probabilities(block, spans, [*map(str, names)]), strict=True):
                own[s].append(PredictedSpan(*span, float(p)))
            found += own
        return found

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
        drawing = self._drawing()
        if not self.settings_.is_point:
            return drawing
        # Their posterior, if they have one, was found afterwards, and is for uncertainty.
        model = self.model_
        return self._kept.get("predictor at mode", lambda: Predictor(model, at_mode=True), model)

    def _drawing(self) -> Predictor:
        """What draws of the posterior, also where predictions are those of its mode."""
        n_draws = number("n_draws", self.n_draws, low=1, high=MOST_DRAWS, integer=True)
        return super().predictor().using(n_draws=n_draws)

    def blocks(
        self, X: Any, given: Any = None, *, drawn: bool = False
    ) -> tuple[NDArray[np.int64], Iterator[ChainDraws]]:
        """The lengths of sequences, and what draws of the posterior say of them, a block at a time.

        Args:
            X: as in `fit`.
            given: labels that are known, as in `predict`.
            drawn: of the posterior also where predictions are those of its mode.

        Raises:
            DataError: X or the labels cannot be used.
        """
        X = read_once(X)
        x, lengths = self._features(X)
        known = None if given is None else encode_known_labels(given, lengths, self.label_space_)
        return lengths, self._blocks(X, x, lengths, known, drawn=drawn)

    def _blocks(
        self,
        X: Any,
        x: FloatMatrix,
        lengths: NDArray[np.int64],
        known: NDArray[np.int64] | None,
        *,
        drawn: bool = False,
    ) -> Iterator[ChainDraws]:
        predictor = self._drawing() if drawn else self.predictor()
        blocks, legal = predictor.blocks(x, lengths, self._unseen(X)), self._legal()
        if legal is not None:
            blocks = (block.within(legal) for block in blocks)
        if known is None or not (known >= 0).any():
            return blocks
        return (block.given(labels) for block, labels in _padded(blocks, known, np.cumsum(lengths)))

    @property
    def scheme_(self) -> str | None:
        """The scheme whose rules predictions keep: `scheme`, or that of the training labels if it is "auto"."""
        check_is_fitted(self, "model_")
        if self.scheme is None:
            return None
        return self.detected_scheme_ if self.scheme == "auto" else checked_scheme(self.scheme)

    def _legal(self) -> Legal | None:
        """Which labels may stand where.

        Raises:
            SettingsError: there is no such scheme, or labels are not its tags.
        """
        if (scheme := self.scheme_) is None:
            return None
        device = self.model_.mixing.bias.device
        parts = legal_tags(self.label_space_.names, scheme)
        return Legal(*(torch.from_numpy(part).to(device) for part in parts))

    def _more(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        return {"detected_scheme": self.detected_scheme_}, {}

    @classmethod
    def _from_saved(
        cls,
        folder: str | Path,
        config: dict[str, Any],
        tensors: dict[str, torch.Tensor],
        device: torch.device,
        parts: Sequence[type[Part]],
    ) -> Self:
        estimator = super()._from_saved(folder, config, tensors, device, parts)
        # Models of earlier versions have none.
        estimator.detected_scheme_ = config.get("detected_scheme")
        if estimator.detected_scheme_ not in (None, *SCHEMES):
            raise ModelFormatError(f"{folder}: there is no scheme {estimator.detected_scheme_!r}")
        return estimator

    def _features(self, X: Any) -> tuple[FloatMatrix, NDArray[np.int64]]:
        check_is_fitted(self, "model_")
        return self.features_.transform(X)

    def _unseen(self, X: Any) -> NDArray[np.float32] | None:
        """Squared norms of the tokens in features that training did not have, where the posterior asks for them."""
        return self.features_.unknown_squares(X) if self.settings_.weight_covariance == "shared" else None

    def _of_tokens(
        self, X: Any, values: Callable[[ChainDraws], torch.Tensor], given: Any = None, *, drawn: bool = False
    ) -> list[NDArray[np.float32]]:
        """What tokens have a row of, split into sequences."""
        lengths, blocks = self.blocks(X, given, drawn=drawn)
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
