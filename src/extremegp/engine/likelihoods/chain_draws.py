"""What draws of the posterior say of sequences: a linear chain at each, averaged, and given what is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from extremegp.engine import chain

_IMPOSSIBLE = -1e4
_EVENT_ELEMENTS = 1 << 22


class Legal(NamedTuple):
    """Which labels may stand where.

    Attributes:
        first: which may start a sequence.
        last: which may end one.
        pairs: which may follow which, [before, after].
    """

    first: Bool[Tensor, " V"]
    last: Bool[Tensor, " V"]
    pairs: Bool[Tensor, "V V"]

    def holds(self, labels: Int[Tensor, "S T"], lengths: Int[Tensor, " S"]) -> Bool[Tensor, " S"]:
        """Whether labellings are legal; padding, and labels that are negative, break no rule."""
        inside = torch.arange(labels.shape[1], device=labels.device) < lengths.unsqueeze(1)
        known, labels = inside & (labels >= 0), labels.where(inside, 0).clamp(min=0)
        ends = (lengths - 1).unsqueeze(1)
        pairs = self.pairs[labels[:, :-1], labels[:, 1:]] | ~(known[:, :-1] & known[:, 1:])
        last = self.last[labels.gather(1, ends)] | ~known.gather(1, ends)
        return (self.first[labels[:, 0]] | ~known[:, 0]) & last.squeeze(1) & pairs.all(1)


class ChainDraws(NamedTuple):
    """Some of the sequences, at R draws of the posterior.

    Attributes:
        sequences: which they are.
        lengths: of them.
        unary: f_un, padded.
        transitions: f_bin, one for all steps and perhaps for all draws, or for every step.
        known: labels of tokens that are known, -1 for the others; None where there are none.
        log_weights: logarithms of the weights of the draws, which add up to one for each sequence; None for equal ones.
        legal: which labels may stand where; None for any anywhere.
    """

    sequences: slice
    lengths: Int[Tensor, " S"]
    unary: Float[Tensor, "R S T V"]
    transitions: Tensor
    known: Int[Tensor, "S T"] | None = None
    log_weights: Float[Tensor, "R S"] | None = None
    legal: Legal | None = None

    def within(self, legal: Legal) -> ChainDraws:
        """The same sequences where only legal labellings have a probability: each draw is that of a chain of these."""
        assert self.known is None, "labels are given after what is legal"
        return self._replace(legal=legal, transitions=self.transitions.masked_fill(~legal.pairs, _IMPOSSIBLE))

    def given(self, known: Int[Tensor, "S T"]) -> ChainDraws:
        """The same sequences where labels of some tokens are known: what is said is of the others, given these.

        p(y | known) is the average of chains, clamped, in which each draw counts as probable as it has the labels:
        p(y, known) / p(known) with both averaged over the draws.

        Args:
            known: the labels, -1 where there is none; the padding may be anything.
        """
        evidence = chain.partial_log_prob(self._of_legal(self.unary, known), self.transitions, known, self.lengths)
        return self._replace(known=known, log_weights=evidence.double().log_softmax(0))

    @property
    def scores(self) -> Float[Tensor, "R S T V"]:
        """f_un, of labels that are known not to be -inf."""
        return self._masked(self.unary)

    def _masked(self, unary: Float[Tensor, "*R S T V"]) -> Float[Tensor, "*R S T V"]:
        unary = self._of_legal(unary, self.known)
        return unary if self.known is None else chain.clamp(unary, self.known)

    def _of_legal(
        self, unary: Float[Tensor, "*R S T V"], known: Int[Tensor, "S T"] | None
    ) -> Float[Tensor, "*R S T V"]:
        """With little for labels that cannot start or end a sequence, unless they are known to."""
        if self.legal is None:
            return unary
        barred = torch.zeros(unary.shape[-3:], dtype=torch.bool, device=unary.device)
        barred[:, 0] = ~self.legal.first
        sequences, ends = torch.arange(len(self.lengths), device=unary.device), self.lengths - 1
        barred[sequences, ends] |= ~self.legal.last
        if known is not None:
            barred &= (known < 0).unsqueeze(-1)
        return unary.masked_fill(barred, _IMPOSSIBLE)

    def marginals(self) -> Float[Tensor, "R B V"]:
        """p(y_t) at every draw."""
        return chain.unpad(chain.marginals(self.scores, self.transitions, self.lengths), self.lengths)

    def most_probable_labels(self) -> Int[Tensor, " B"]:
        """The label with the largest marginal of every token: fewest wrong labels are expected of these.

        Where only some labellings are legal, it is the one of them of which that holds.
        """
        marginals = self.mean_marginals()
        if self.legal is None:
            return marginals.argmax(1)
        unary = self._masked(chain.pad(marginals.double(), self.lengths))
        pairs = unary.new_zeros(self.legal.pairs.shape).masked_fill(~self.legal.pairs, _IMPOSSIBLE)
        labels, _ = chain.viterbi(unary, pairs, self.lengths)
        return chain.unpad(labels.unsqueeze(-1), self.lengths).squeeze(-1)

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
        return self._of_rules(next(self._log_probs([labels])), labels)

    def partial_log_prob(self, labels: Int[Tensor, "S T"]) -> Float[Tensor, " S"]:
        """log p of the labels that are not negative, the others summed out; else as `log_prob`."""
        own = self._averaged(chain.partial_log_prob(self.scores, self.transitions, labels, self.lengths))
        return self._of_rules(own, labels)

    def _of_rules(self, log_prob: Float[Tensor, " S"], labels: Int[Tensor, "S T"]) -> Float[Tensor, " S"]:
        """-inf for labellings that are not legal."""
        return log_prob if self.legal is None else log_prob.where(self.legal.holds(labels, self.lengths), -math.inf)

    def _averaged(self, log_probs: Float[Tensor, "R S"]) -> Float[Tensor, " S"]:
        """log of the average over the draws. Rounding may leave a little more than certainty."""
        weights = -math.log(len(log_probs)) if self.log_weights is None else self.log_weights
        return (log_probs.double() + weights).logsumexp(0).clamp(max=0.0)

    def probability_of(self, sequences: Int[Tensor, " E"], allowed: Bool[Tensor, "E T V"]) -> Float[Tensor, " E"]:
        """Of events, the probability that all labels of a sequence are among those allowed, averaged over the draws.

        Args:
            sequences: which, by their place among these.
            allowed: the labels of every token; padding may be anything.
        """
        scores, found = self.scores, []
        log_z = chain.log_partition(scores, self.transitions, self.lengths).double()
        step = max(1, _EVENT_ELEMENTS // scores[:, 0].numel())
        for own, labels in zip(torch.split(sequences, step), torch.split(allowed, step), strict=True):
            lengths, transitions = self.lengths[own], self.transitions
            if transitions.ndim == 5:
                transitions = transitions.index_select(1, own)
            unary = scores.index_select(1, own).masked_fill(~labels, -math.inf)
            outside = torch.arange(unary.shape[-2], device=own.device) >= lengths.unsqueeze(1)
            possible = ((unary[0] > -math.inf).any(-1) | outside).all(-1)
            # Of what cannot be anything is worked out.
            unary = unary.where(possible[:, None, None], 0.0)
            log_p = chain.log_partition(unary, transitions, lengths).double() - log_z.index_select(1, own)
            weights = -math.log(len(log_p)) if self.log_weights is None else self.log_weights.index_select(1, own)
            found.append((log_p + weights).logsumexp(0).exp().where(possible, 0.0).clamp(max=1.0))
        return torch.cat(found)

    def k_best(self, k: int) -> tuple[Int[Tensor, "S k T"], Float[Tensor, "S k"]]:
        """The k best labellings at the mean scores, ordered by their log p averaged over the draws.

        Where a sequence has fewer labellings, labels are -1 and log p is -inf.
        """
        paths = self._candidates(k)
        if self.legal is not None and self.known is None:
            # What is not legal comes last, where there is nothing else.
            legal = torch.stack([self.legal.holds(path, self.lengths) for path in paths.unbind(1)], dim=1)
            paths = paths.masked_fill(~legal.unsqueeze(-1), -1)
        scores = torch.stack([*self._log_probs(paths.clamp(min=0).unbind(1))], dim=1)
        scores = scores.masked_fill(paths[:, :, 0] < 0, -math.inf)
        order = torch.sort(scores, dim=1, descending=True, stable=True).indices
        return paths.gather(1, order.unsqueeze(-1).expand_as(paths)), scores.gather(1, order)

    def _candidates(self, k: int) -> Int[Tensor, "S k T"]:
        shared = self.transitions.ndim == 2
        if self.known is None or self.log_weights is None:
            transitions = self.transitions if shared else self.transitions.mean(0)
            return chain.k_best(self._masked(self.unary.mean(0)), transitions, self.lengths, k)[0]
        weights = self.log_weights.exp().to(self.unary.dtype)
        unary = torch.einsum("rs,rstv->stv", weights, self.unary)
        unary, found = self._masked(unary), []
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
