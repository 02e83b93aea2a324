"""Sequences labelled as `SequenceGPClassifier.predict` does, a block at a time, beside the labels that they have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from extremegp.data import encode_label_sequences
from extremegp.engine.likelihoods.chain_draws import ChainDraws
from extremegp.estimators.sequences import SequenceGPClassifier
from extremegp.estimators.token_labels import DECODINGS
from extremegp.settings.domains import choice


def decoded(
    classifier: SequenceGPClassifier, blocks: Iterable[ChainDraws], decoding: str | None
) -> Iterator[tuple[ChainDraws, NDArray[np.int64], NDArray[np.float32]]]:
    """Label all sequences as `SequenceGPClassifier.predict` does, each drawn for once, in blocks of a bounded size.

    Args:
        classifier: the model.
        blocks: what its draws say, as its `blocks` gives them.
        decoding: how; None for what the model was trained with.

    Returns:
        An iterator of blocks, which say what the model thinks of some sequences, with B predicted labels of all their
        tokens, by code, and B x V marginal probabilities.
    """
    decoding = choice("decoding", decoding or classifier.decoding, DECODINGS)
    for block in blocks:
        marginals = block.mean_marginals()
        if decoding == "viterbi":
            paths = block.k_best(1)[0][:, 0].cpu().numpy()
            codes = np.concatenate([path[:n] for path, n in zip(paths, block.lengths.tolist(), strict=True)])
        else:
            codes = block.most_probable_labels().cpu().numpy()
        yield block, codes, marginals.cpu().numpy()


class LabelledBlock(NamedTuple):
    """Some sequences of B tokens, what their labels are, and what the model makes of them.

    Attributes:
        sequences: which of all.
        tokens: which of the tokens of all.
        names: labels by name, B.
        codes: labels by code, B; -1 of those never seen in training.
        predicted: labels by code, B.
        marginals: B x V.
        lengths: of the sequences.
        sequence_log_prob: of the labels of each sequence; anything where one of them was never seen.
    """

    sequences: slice
    tokens: slice
    names: NDArray[Any]
    codes: NDArray[np.int64]
    predicted: NDArray[np.int64]
    marginals: NDArray[np.float32]
    lengths: NDArray[np.int64]
    sequence_log_prob: NDArray[Any]

    @property
    def truth(self) -> NDArray[Any]:
        """The labels as `SequenceMetrics` takes them: by name, where names are text."""
        return self.names if self.names.dtype.kind == "U" else self.codes


class LabelledSequences(NamedTuple):
    """Sequences with labels.

    Attributes:
        lengths: of all.
        never_seen: labels that training never saw.
        blocks: in order.
    """

    lengths: NDArray[np.int64]
    never_seen: list[str]
    blocks: Iterator[LabelledBlock]


def labelled_blocks(
    classifier: SequenceGPClassifier, X: Any, y: Sequence[Any], decoding: str | None = None, name: str = "y"
) -> LabelledSequences:
    """What a model makes of sequences whose labels are known.

    Args:
        classifier: the model.
        X: as in its `fit`.
        y: likewise; labels may be new.
        decoding: as in `decoded`.
        name: what to call y in messages.

    Raises:
        DataError: X and y cannot be used, or do not fit each other.
    """
    lengths, blocks = classifier.blocks(X)
    codes, _ = encode_label_sequences(y, lengths, classifier.label_space_, "ignore", name)
    names, ends = np.array(list(chain.from_iterable(y))), lengths.cumsum()

    def found() -> Iterator[LabelledBlock]:
        for block, predicted, marginals in decoded(classifier, blocks, decoding):
            own = lengths[block.sequences]
            rows = slice(ends[block.sequences.start] - own[0], ends[block.sequences.stop - 1])
            known = torch.split(torch.from_numpy(codes[rows]).clamp(min=0), own.tolist())
            padded = torch.nn.utils.rnn.pad_sequence([*known], batch_first=True).to(block.lengths.device)
            log_prob = block.log_prob(padded).cpu().numpy()
            yield LabelledBlock(block.sequences, rows, names[rows], codes[rows], predicted, marginals, own, log_prob)

    return LabelledSequences(lengths, list(np.unique(names[codes < 0]).tolist()), found())
