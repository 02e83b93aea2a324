"""Predictions for sequences: what draws of the posterior say of their labels, averaged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine import chain
from extremegp.engine.sequence_model import SequenceModel
from extremegp.engine.sparse import row_block

_BLOCK_ELEMENTS = 1 << 24


class Block(NamedTuple):
    """Some of the sequences, at R draws of the posterior.

    Attributes:
        sequences: which they are.
        lengths: of them.
        unary: f_un, padded.
        transitions: f_bin, one for all steps and perhaps for all draws, or for every step.
    """

    sequences: slice
    lengths: Int[Tensor, " S"]
    unary: Float[Tensor, "R S T V"]
    transitions: Tensor

    def marginals(self) -> Float[Tensor, "R B V"]:
        """p(y_t) at every draw."""
        return chain.unpad(chain.marginals(self.unary, self.transitions, self.lengths), self.lengths)

    def log_prob(self, labels: Int[Tensor, "S T"]) -> Float[Tensor, " S"]:
        """log p(y) of a labelling of each sequence, p averaged over the draws; padding may be anything."""
        return next(self._log_probs([labels]))

    def k_best(self, k: int) -> tuple[Int[Tensor, "S k T"], Float[Tensor, "S k"]]:
        """The k best labellings at the mean scores, ordered by their log p averaged over the draws.

        Where a sequence has fewer labellings, labels are -1 and log p is -inf.
        """
        shared = self.transitions.ndim == 2
        transitions = self.transitions if shared else self.transitions.mean(0)
        paths, _ = chain.k_best(self.unary.mean(0), transitions, self.lengths, k)
        scores = torch.stack([*self._log_probs(paths.clamp(min=0).unbind(1))], dim=1)
        scores = scores.masked_fill(paths[:, :, 0] < 0, -math.inf)
        order = torch.sort(scores, dim=1, descending=True, stable=True).indices
        return paths.gather(1, order.unsqueeze(-1).expand_as(paths)), scores.gather(1, order)

    def _log_probs(self, labellings: Iterable[Int[Tensor, "S T"]]) -> Iterator[Float[Tensor, " S"]]:
        for each in chain.sequence_log_probs(self.unary, self.transitions, labellings, self.lengths):
            # Rounding may leave a little more than certainty.
            yield (each.double().logsumexp(0) - math.log(len(each))).clamp(max=0.0)


class SequencePredictor:
    """Draws of a trained model at sequences. A sequence has the same draws whatever it is predicted with.

    Args:
        model: the model.
        n_draws: R.
        seed: decides the draws.
    """

    def __init__(self, model: SequenceModel, *, n_draws: int, seed: int = 0) -> None:
        self.model, self.n_draws, self.seed = model, n_draws, seed

    @torch.no_grad()
    def blocks(self, x: Any, lengths: NDArray[np.int64]) -> Iterator[Block]:
        """All sequences, in blocks of a bounded size.

        Args:
            x: the inputs of the sequences, one after the other, CSR or array.
            lengths: of the sequences.
        """
        model, like = self.model, self.model.mixing.bias
        conditioned = model.latents.condition(self.seed)
        # The chain needs its functions at all draws, a few times over; latents more where their features are wide.
        per_token = 4 * self.n_draws * model.likelihood.n_functions + conditioned.width
        ends = np.cumsum(lengths)
        for sequences in _parts(lengths, max(1, _BLOCK_ELEMENTS // per_token)):
            first = int(ends[sequences.start] - lengths[sequences.start])
            rows = row_block(x, slice(first, int(ends[sequences.stop - 1])), dtype=like.dtype, device=like.device)
            own = torch.from_numpy(lengths[sequences]).to(like.device)
            if conditioned.alike:
                together = own.sum().unsqueeze(0)
                f = conditioned.draws(rows, together, self.n_draws, self._generator())
            else:
                starts = ends[sequences] - lengths[sequences]
                f = torch.cat(
                    [
                        conditioned.draws(
                            row_block(x, slice(int(a), int(b)), dtype=like.dtype, device=like.device),
                            own[i : i + 1],
                            self.n_draws,
                            self._generator(),
                        )
                        for i, (a, b) in enumerate(zip(starts, ends[sequences], strict=True))
                    ],
                    dim=1,
                )
            # Draws of the transitions are by a generator of their own, for they must not depend on the inputs.
            unary, transitions = model.likelihood.potentials(model.mixing.at(f), own, self._generator(1))
            yield Block(sequences, own, unary, transitions.detach())

    def _generator(self, offset: int = 0) -> torch.Generator:
        return torch.Generator(self.model.mixing.bias.device).manual_seed(self.seed + offset)


def _parts(lengths: NDArray[np.int64], most: int) -> Iterator[slice]:
    """Consecutive sequences whose padded size is at most `most`, or one sequence alone."""
    first, longest = 0, 0
    for i, length in enumerate(lengths.tolist()):
        longest = max(longest, length)
        if i > first and longest * (i - first + 1) > most:
            yield slice(first, i)
            first, longest = i, length
    yield slice(first, len(lengths))
