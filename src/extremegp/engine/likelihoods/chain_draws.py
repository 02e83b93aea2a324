"""What draws of the posterior say of sequences: a linear chain at each, averaged, and given what is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from extremegp.engine import chain


class ChainDraws(NamedTuple):
    """Some of the sequences, at R draws of the posterior.

    Attributes:
        sequences: which they are.
        lengths: of them.
        unary: f_un, padded.
        transitions: f_bin, one for all steps and perhaps for all draws, or for every step.
        known: labels of tokens that are known, -1 for the others; None where there are none.
        log_weights: logarithms of the weights of the draws, which add up to one for each sequence; None for equal ones.
    """

    sequences: slice
    lengths: Int[Tensor, " S"]
    unary: Float[Tensor, "R S T V"]
    transitions: Tensor
    known: Int[Tensor, "S T"] | None = None
    log_weights: Float[Tensor, "R S"] | None = None

    def given(self, known: Int[Tensor, "S T"]) -> ChainDraws:
        """The same sequences where labels of some tokens are known: what is said is of the others, given these.

        p(y | known) is the average of chains, clamped, in which each draw counts as probable as it has the labels:
        p(y, known) / p(known) with both averaged over the draws.

        Args:
            known: the labels, -1 where there is none; the padding may be anything.
        """
        evidence = chain.partial_log_prob(self.unary, self.transitions, known, self.lengths)
        return self._replace(known=known, log_weights=evidence.double().log_softmax(0))

    @property
    def scores(self) -> Float[Tensor, "R S T V"]:
        """f_un, of labels that are known not to be -inf."""
        return self.unary if self.known is None else chain.clamp(self.unary, self.known)

    def marginals(self) -> Float[Tensor, "R B V"]:
        """p(y_t) at every draw."""
        return chain.unpad(chain.marginals(self.scores, self.transitions, self.lengths), self.lengths)

    def mean_marginals(self) -> Float[Tensor, "B V"]:
        """p(y_t), averaged over the draws."""
        return self._mean(self.marginals())

    def curvature(self, *, pairs: bool = False) -> Float[Tensor, " B"]:
        """-d2 log p(y) / df2 of every element, the mean over its labels and the draws: p (1 - p).

        Where labels of training were not known, they told less: less p' (1 - p') of the chain given those that were,
        and never less than nothing. Draws of the posterior count alike, for it has seen the labels.

        Args:
            pairs: of the utilities of pairs of labels, where elements have their own; else of labels.
        """
        told = self._spread(self.unary, pairs)
        return told if self.known is None else (told - self._spread(self.scores, pairs)).clamp(min=0.0)

    def _spread(self, unary: Float[Tensor, "R S T V"], pairs: bool) -> Float[Tensor, " B"]:
        if not pairs:
            p = chain.unpad(chain.marginals(unary, self.transitions, self.lengths), self.lengths)
            return (p * (1 - p)).mean((0, 2))
        pair = chain.pair_marginals(unary, self.transitions, self.lengths)
        return chain.unpad((pair * (1 - pair)).mean((-2, -1)).mean(0).unsqueeze(-1), self.lengths).squeeze(-1)

    def uncertainty(self) -> Float[Tensor, "B 3"]:
        """Of tokens: entropy of the marginals, mean entropy at the draws, and variance of the utilities over them."""
        marginals = self.marginals()
        total = torch.special.entr(self._mean(marginals).clamp(max=1.0)).sum(-1)
        aleatoric = self._mean(torch.special.entr(marginals).sum(-1, keepdim=True)).squeeze(-1)
        utilities = chain.unpad(self.unary, self.lengths)
        variance = self._mean((utilities - self._mean(utilities)).square()).mean(-1)
        return torch.stack([total, aleatoric, variance], dim=-1)

    def _mean(self, values: Float[Tensor, "R B n"]) -> Float[Tensor, "B n"]:
        """The average over the draws of what tokens have."""
        if self.log_weights is None:
            return values.mean(0)
        weights = self.log_weights.exp().to(values.dtype).repeat_interleave(self.lengths, 1)
        return (values * weights.unsqueeze(-1)).sum(0)

    def log_prob(self, labels: Int[Tensor, "S T"]) -> Float[Tensor, " S"]:
        """log p(y) of a labelling of each sequence, p averaged over the draws; padding may be anything."""
        return next(self._log_probs([labels]))

    def partial_log_prob(self, labels: Int[Tensor, "S T"]) -> Float[Tensor, " S"]:
        """log p of the labels that are not negative, the others summed out; else as `log_prob`."""
        return self._averaged(chain.partial_log_prob(self.scores, self.transitions, labels, self.lengths))

    def _averaged(self, log_probs: Float[Tensor, "R S"]) -> Float[Tensor, " S"]:
        """log of the average over the draws. Rounding may leave a little more than certainty."""
        weights = -math.log(len(log_probs)) if self.log_weights is None else self.log_weights
        return (log_probs.double() + weights).logsumexp(0).clamp(max=0.0)

    def k_best(self, k: int) -> tuple[Int[Tensor, "S k T"], Float[Tensor, "S k"]]:
        """The k best labellings at the mean scores, ordered by their log p averaged over the draws.

        Where a sequence has fewer labellings, labels are -1 and log p is -inf.
        """
        paths = self._candidates(k)
        scores = torch.stack([*self._log_probs(paths.clamp(min=0).unbind(1))], dim=1)
        scores = scores.masked_fill(paths[:, :, 0] < 0, -math.inf)
        order = torch.sort(scores, dim=1, descending=True, stable=True).indices
        return paths.gather(1, order.unsqueeze(-1).expand_as(paths)), scores.gather(1, order)

    def _candidates(self, k: int) -> Int[Tensor, "S k T"]:
        shared = self.transitions.ndim == 2
        if self.known is None or self.log_weights is None:
            transitions = self.transitions if shared else self.transitions.mean(0)
            return chain.k_best(self.unary.mean(0), transitions, self.lengths, k)[0]
        weights = self.log_weights.exp().to(self.unary.dtype)
        unary = torch.einsum("rs,rstv->stv", weights, self.unary)
        unary, found = chain.clamp(unary, self.known), []
        for s in range(len(self.lengths)):
            # Each sequence has its own weights of the draws, and so transitions of its own.
            own = self.transitions
            if not shared:
                own = own[:, s : s + 1] if own.ndim == 5 else own
                own = torch.einsum("r,r...->...", weights[:, s], own)
            found.append(chain.k_best(unary[s : s + 1], own, self.lengths[s : s + 1], k)[0])
        return torch.cat(found)

    def _log_probs(self, labellings: Iterable[Int[Tensor, "S T"]]) -> Iterator[Float[Tensor, " S"]]:
        for each in chain.sequence_log_probs(self.scores, self.transitions, labellings, self.lengths):
            yield self._averaged(each)
