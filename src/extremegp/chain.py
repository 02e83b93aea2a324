r"""Exact inference in linear chains over ragged sequences (Lafferty, McCallum and Pereira 2001), padded and batched.

A chain scores a labelling by score(y) = sum_t unary[t, y_t] + sum_{t >= 1} transitions[y_{t-1}, y_t], and
p(y) = exp(score(y)) / Z. Everywhere

    lengths      Int[Tensor, "S"]           of S sequences, each at least 1
    unary        Float[Tensor, "*R S T V"]  V labels, T at least the longest length, *R leading draws or none
    transitions  Float[Tensor, "*R V V"]    the same at all steps; without the draws' dimensions they serve all draws
                 Float[Tensor, "*R S T V V"]  indexed: [.., t, i, j] is for label i at t - 1 and j at t; t = 0 is unused
    labels       Int[Tensor, "S T"]

What lies beyond the length of a sequence may be anything, NaN included: it is never read. The rest must be finite; a
forbidden pair has a score of, say, -1e4.

*Recursions.* With the filter p_t(j) = p(y_t = j | unary of steps up to t) and log normalisers c_t,

    p_t(j)        =  e^{unary[t, j] - c_t} s_t(j),        s_t(j) = sum_i p_{t-1}(i) e^{transitions[i, j]}
    log Z         =  sum_t c_t
    m_{t-1}(i)    =  p_{t-1}(i) sum_j e^{transitions[i, j]} m_t(j) / s_t(j)                               (marginals)

where m starts as the filter of the last step. All terms are positive and each step is normalised, so errors do not grow
with T. In log space this holds for all scores, at V^2 exponentials a sequence and step; probabilities then have the
relative rounding error of the scores, eps times their size.

*Shared transitions as matrix products.* With the maximum of its column taken out of each transition and into the unary
scores, all e^{transitions} lie in [e^{-D}, 1]. As max p >= 1/V, every s_t >= e^{-D} / V: what underflows, at most
`tiny` a number, changes the filter by at most 3 V e^D tiny, and this any s_t by at most 4 V^3 e^{2 D} tiny relative to
itself, whatever the unary scores. That is below the rounding error as long as

    2 D  <=  log(eps / tiny) - log(4 V^3),

D <= 30 in float32 for V = 23, D <= 330 in float64. Wider transitions, as with forbidden pairs, are left to log space.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


def pad(values: Tensor, lengths: Int[Tensor, " S"], dim: int = -2) -> Tensor:
    """Concatenated sequences, B = lengths.sum() elements along `dim`, as S x T in place of B with zeros as padding.

    Args:
        values: "*R B V", "*R B V V" with dim=-3, "B" with dim=-1, ..., of any type; differentiable.
        lengths: of the sequences; T is the longest.
        dim: which dimension of `values` is B.
    """
    positions, longest = _positions(lengths)
    dim = dim % values.ndim
    assert values.shape[dim] == len(positions), f"{values.shape[dim]} elements for lengths of {len(positions)} in all"
    before, after = values.shape[:dim], values.shape[dim + 1 :]
    flat = values.new_zeros(*before, len(lengths) * longest, *after).index_copy(dim, positions, values)
    return flat.view(*before, len(lengths), longest, *after)


def unpad(padded: Tensor, lengths: Int[Tensor, " S"], dim: int = -2) -> Tensor:
    """The inverse of `pad`; `dim` is that of B in the result. T may exceed the longest sequence."""
    dim = dim % (padded.ndim - 1)
    positions, _ = _positions(lengths, padded.shape[dim + 1])
    assert padded.shape[dim] == len(lengths), f"{padded.shape[dim]} sequences for {len(lengths)} lengths"
    return padded.flatten(dim, dim + 1).index_select(dim, positions)


def _positions(lengths: Int[Tensor, " S"], longest: int | None = None) -> tuple[Int[Tensor, " B"], int]:
    """Where the elements of concatenated sequences lie in S x T, flattened; and T."""
    longest = int(lengths.max()) if longest is None else longest
    return _mask(lengths, longest).flatten().nonzero().squeeze(1), longest


def _mask(lengths: Int[Tensor, " S"], longest: int) -> Tensor:
    return torch.arange(longest, device=lengths.device) < lengths.unsqueeze(1)


def log_partition(
    unary: Float[Tensor, "*R S T V"], transitions: Tensor, lengths: Int[Tensor, " S"]
) -> Float[Tensor, "*R S"]:
    """log Z, differentiable once: its gradients are the marginals and the pair marginals.

    O(S T V^2) time; kept for the backward pass is one filter, as many numbers as `unary` has without its padding. In
    log space a step takes V^2 temporary numbers a sequence. Summed in float64.

    Args:
        unary: scores of labels.
        transitions: scores of pairs, shared or indexed (see the module).
        lengths: of the sequences.
    """
    return _log_partition(unary, transitions, lengths).to(unary.dtype)


def path_score(
    unary: Float[Tensor, "*R S T V"], transitions: Tensor, labels: Int[Tensor, "*R S T"], lengths: Int[Tensor, " S"]
) -> Float[Tensor, "*R S"]:
    """score(y) of the labels, which may have leading draws of their own; differentiable. Summed in float64."""
    return _path_score(unary, transitions, labels, lengths).to(unary.dtype)


def sequence_log_prob(
    unary: Float[Tensor, "*R S T V"], transitions: Tensor, labels: Int[Tensor, "*R S T"], lengths: Int[Tensor, " S"]
) -> Float[Tensor, "*R S"]:
    """log p(y) = score(y) - log Z, the difference taken in float64. Arguments as `path_score`."""
    log_prob = _path_score(unary, transitions, labels, lengths) - _log_partition(unary, transitions, lengths)
    return log_prob.to(unary.dtype)


@torch.no_grad()
def marginals(
    unary: Float[Tensor, "*R S T V"], transitions: Tensor, lengths: Int[Tensor, " S"]
) -> Float[Tensor, "*R S T V"]:
    """p(y_t = v), zero in the padding; without gradient. Arguments as `log_partition`."""
    steps, packed, flat = _canonical(unary, transitions, lengths)
    if (dtype := _product_dtype(steps, flat)) is not None:
        smoothed, _, _ = _smooth_by_products(steps, _filter_by_products(steps, packed, flat, dtype)[0], flat)
    else:
        log_filter, _ = _filter_in_logs(steps, packed, flat)
        smoothed = log_filter.exp()
        for _ in _smooth_in_logs(steps, log_filter, smoothed, flat):
            pass
    return steps.unpack(smoothed.to(unary.dtype))


@torch.no_grad()
def pair_marginals(
    unary: Float[Tensor, "*R S T V"], transitions: Tensor, lengths: Int[Tensor, " S"]
) -> Float[Tensor, "*R S T V V"]:
    """p(y_{t-1} = i, y_t = j), zero at t = 0 and in the padding; without gradient. Arguments as `log_partition`."""
    steps, packed, flat = _canonical(unary, transitions, lengths)
    log_filter = _log_filter(steps, packed, flat)
    pairs = unary.new_zeros(steps.n_groups, steps.n_rows * steps.width, *unary.shape[-1:] * 2)
    for t, current, conditional in _smooth_in_logs(steps, log_filter, log_filter.exp(), flat):
        pairs.index_copy_(1, steps.tokens_of[t], (conditional * current.unsqueeze(-2)).to(unary.dtype))
    return pairs.view(*unary.shape, unary.shape[-1])


@torch.no_grad()
def entropy(unary: Float[Tensor, "*R S T V"], transitions: Tensor, lengths: Int[Tensor, " S"]) -> Float[Tensor, "*R S"]:
    """The entropy of p(y) in nats, without gradient. Arguments as `log_partition`.

    By the chain rule from the last label backwards, H[y_T] + sum_t H[y_{t-1} | y_t], a sum without negative terms.
    """
    steps, packed, flat = _canonical(unary, transitions, lengths)
    log_filter = _log_filter(steps, packed, flat)
    terms = torch.zeros_like(log_filter[..., 0])
    terms[:, steps.last] = torch.special.entr(log_filter[:, steps.last].exp()).sum(-1)
    before = steps.split(terms)
    for t, current, conditional in _smooth_in_logs(steps, log_filter, log_filter.exp(), flat):
        before[t - 1][:, : steps.counts[t]] = (torch.special.entr(conditional).sum(-2) * current).sum(-1)
    return steps.unpack(terms).sum(-1, dtype=torch.float64).to(unary.dtype)


@torch.no_grad()
def sample(
    unary: Float[Tensor, "*R S T V"], transitions: Tensor, lengths: Int[Tensor, " S"], generator: torch.Generator | None
) -> Int[Tensor, "*R S T"]:
    """One exact draw of the labels for every draw of the scores, -1 in the padding: filter forwards, sample backwards.

    Args:
        unary: scores of labels.
        transitions: scores of pairs, shared or indexed (see the module).
        lengths: of the sequences.
        generator: of the random numbers, on the device of `unary`; None for the global one.
    """
    steps, packed, flat = _canonical(unary, transitions, lengths)
    log_filter = _log_filter(steps, packed, flat)
    # The largest of the logarithms under Gumbel noise is a draw; given y_t, they are log p_{t-1} + transitions[:, y_t].
    perturbed = log_filter - torch.empty_like(log_filter).exponential_(generator=generator).log_()
    state = perturbed.index_select(1, steps.last).argmax(-1)
    labels = torch.empty_like(packed[..., 0], dtype=torch.int64)
    labels_of, perturbed_of = steps.split(labels), steps.split(perturbed)
    for t in reversed(range(len(steps.counts))):
        active = state[:, : steps.counts[t]]
        labels_of[t].copy_(active)
        if t > 0:
            scores = steps.transitions(flat, t).expand(*active.shape, *flat.shape[-2:])
            into = scores.gather(-1, active[..., None, None].expand(*scores.shape[:-1], 1)).squeeze(-1)
            active.copy_((perturbed_of[t - 1][:, : steps.counts[t]] + into).argmax(-1))
    return steps.unpack(labels + 1) - 1


@torch.no_grad()
def viterbi(
    unary: Float[Tensor, "*R S T V"], transitions: Tensor, lengths: Int[Tensor, " S"]
) -> tuple[Int[Tensor, "*R S T"], Float[Tensor, "*R S"]]:
    """The labels of the highest score, -1 in the padding, and that score (Viterbi 1967). Arguments as `log_partition`.

    Runs in float64, so that rounding over long sequences decides no ties.
    """
    labels, scores = _best(unary, transitions, lengths, 1)
    return labels.squeeze(-1), scores.squeeze(-1)


@torch.no_grad()
def k_best(
    unary: Float[Tensor, "S T V"], transitions: Tensor, lengths: Int[Tensor, " S"], k: int
) -> tuple[Int[Tensor, "S k T"], Float[Tensor, "S k"]]:
    """The k labellings of the highest scores, highest first, and their scores; without draws.

    Exact: every label of every step keeps its k best pasts out of V k (Seshadri and Sundberg 1994). Runs in float64.
    Where a sequence has fewer than k labellings, what is missing has labels -1 and score -inf.

    Args:
        unary: scores of labels.
        transitions: scores of pairs, shared or indexed (see the module).
        lengths: of the sequences.
        k: how many, at least 1.
    """
    assert unary.ndim == 3, "k_best takes no draws"
    assert k >= 1, "k_best needs k >= 1"
    labels, scores = _best(unary, transitions, lengths, k)
    return labels.mT.contiguous(), scores


def piecewise_pseudo_likelihood(
    unary: Float[Tensor, "*R S T V"], transitions: Tensor, labels: Int[Tensor, "S T"], lengths: Int[Tensor, " S"]
) -> Float[Tensor, "*R S"]:
    """log of the piecewise pseudo-likelihood (Sutton and McCallum 2007, section 4), differentiable.

    The pieces are exp(unary[0, y_0]) and, for t >= 1, exp(unary[t, y_t] + transitions[y_{t-1}, y_t]). Each gives the
    log probability of each of its labels, the other one known:

        log softmax_j(unary[0, j])[y_0] + sum_{t >= 1} log softmax_j(unary[t, j] + transitions[y_{t-1}, j])[y_t]
                                                     + log softmax_i(transitions[i, y_t])[y_{t-1}]

    O(S T V) beside the softmax of shared transitions. With transitions of zero it is the log likelihood of independent
    labels, less (length - 1) log V.

    Args:
        unary: scores of labels.
        transitions: scores of pairs, shared or indexed (see the module).
        labels: y.
        lengths: of the sequences.
    """
    transitions, indexed = _aligned(unary, transitions, lengths)
    mask = _mask(lengths, unary.shape[-2])
    labels = labels.long().where(mask, 0)
    before, after, pairs = labels[:, :-1], labels[:, 1:], mask[:, 1:]
    logits = unary.masked_fill(~mask.unsqueeze(-1), 0.0)
    if indexed:
        used = transitions[..., 1:, :, :].expand(*unary.shape[:-2], -1, -1, -1)
        row, column = (index.expand(used.shape[:-2])[..., None, None] for index in (before, after))
        rows = used.gather(-2, row.expand(*used.shape[:-2], 1, used.shape[-1])).squeeze(-2)
        columns = used.gather(-1, column.expand(*used.shape[:-1], 1)).squeeze(-1)
        rows, columns = (part.masked_fill(~pairs.unsqueeze(-1), 0.0) for part in (rows, columns))
        backward = _at(columns.log_softmax(-1), before)
    else:
        draws, n_labels = transitions.shape[:-2], unary.shape[-1]
        rows = transitions.index_select(-2, before.flatten()).view(*draws, *before.shape, n_labels)
        chosen = (before * n_labels + after).flatten()
        backward = transitions.log_softmax(-2).flatten(-2).index_select(-1, chosen).view(*draws, *before.shape)
    forward = _at((logits[..., 1:, :] + rows).log_softmax(-1), after)
    first = _at(logits[..., :1, :].log_softmax(-1), labels[:, :1])
    total = first.squeeze(-1).double() + (forward + backward).where(pairs, 0.0).sum(-1, dtype=torch.float64)
    return total.to(unary.dtype)


def _at(values: Float[Tensor, "*R S T V"], labels: Int[Tensor, "*R S T"]) -> Float[Tensor, "*R S T"]:
    return values.gather(-1, labels.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def _path_score(unary: Tensor, transitions: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    transitions, indexed = _aligned(unary, transitions, lengths)
    mask, n_labels = _mask(lengths, unary.shape[-2]), unary.shape[-1]
    labels = labels.long().where(mask, 0).expand(unary.shape[:-1])
    score = _at(unary, labels).where(mask, 0.0).sum(-1, dtype=torch.float64)
    chosen = labels[..., :-1] * n_labels + labels[..., 1:]
    if indexed:
        pairs = _at(transitions[..., 1:, :, :].flatten(-2), chosen)
    else:
        pairs = transitions.expand(*unary.shape[:-3], -1, -1).flatten(-2).gather(-1, chosen.flatten(-2))
        pairs = pairs.view(chosen.shape)
    return score + pairs.where(mask[:, 1:], 0.0).sum(-1, dtype=torch.float64)


def _log_partition(unary: Tensor, transitions: Tensor, lengths: Tensor) -> Tensor:
    transitions, _ = _aligned(unary, transitions, lengths)
    log_z: Tensor = _LogPartition.apply(unary, transitions, lengths)
    return log_z


def _aligned(unary: Tensor, transitions: Tensor, lengths: Tensor) -> tuple[Tensor, bool]:
    """Transitions with all draws, or with none if they are the same for all draws; and whether they are indexed."""
    *draws, n_sequences, width, n_labels = unary.shape
    assert unary.dtype == transitions.dtype, f"{unary.dtype} unary scores, {transitions.dtype} transitions"
    assert lengths.shape == (n_sequences,), f"{lengths.shape} lengths for unary scores of shape {unary.shape}"
    indexed = transitions.ndim == unary.ndim + 1
    tail = (n_sequences, width, n_labels, n_labels) if indexed else (n_labels, n_labels)
    assert indexed or transitions.ndim in (2, unary.ndim - 1), (
        f"transitions of shape {transitions.shape} are neither shared nor indexed for unary scores of {unary.shape}"
    )
    assert transitions.shape[-len(tail) :] == tail, f"transitions of shape {transitions.shape} where {tail} is needed"
    return (transitions if transitions.ndim == 2 else transitions.expand(*draws, *tail)), indexed


class _Steps:
    """Sequences in packed form: G groups that differ in their transitions, N sequences in each, all of step 0 first.

    Sequences are sorted from the longest down, so that step t concerns the first counts[t] of them, and no others; the
    packed dimension has an element for every step of every sequence, B in all, and none for padding.

    Attributes:
        shape: of the padded form, "*R S T".
        counts: how many sequences reach step t.
        order: which sequence is at which place.
        tokens: where packed elements lie in N x T; `tokens_of` those of each step.
        previous: packed position of the step before, for all elements after step 0.
        last: packed position of the last step of each sequence, in sorted order.
    """

    def __init__(self, shape: torch.Size, lengths: Int[Tensor, " S"], *, n_groups: int, indexed: bool) -> None:
        self.shape, self.n_groups, self.indexed = shape, n_groups, indexed
        self.width = shape[-1]
        self.n_rows = math.prod(shape[:-1]) // n_groups
        lengths, self.order = lengths.repeat(self.n_rows // len(lengths)).sort(descending=True, stable=True)
        mask = _mask(lengths, int(lengths[0])).T
        counts = mask.sum(1)
        offsets = counts.cumsum(0) - counts
        step, row = mask.nonzero().unbind(1)
        self.counts: list[int] = counts.tolist()
        self.tokens = self.order[row] * self.width + step
        self.tokens_of = self.tokens.split_with_sizes(self.counts)
        self.previous = offsets[step[self.n_rows :] - 1] + row[self.n_rows :]
        self.last = offsets[lengths - 1] + torch.arange(self.n_rows, device=lengths.device)

    def pack(self, padded: Float[Tensor, "*R S T V"]) -> Float[Tensor, "G B V"]:
        return padded.reshape(self.n_groups, -1, padded.shape[-1]).index_select(1, self.tokens)

    def unpack(self, packed: Tensor) -> Tensor:
        """ "G B *V" as "*R S T *V", zero in the padding."""
        padded = packed.new_zeros(self.n_groups, self.n_rows * self.width, *packed.shape[2:])
        return padded.index_copy_(1, self.tokens, packed).view(*self.shape, *packed.shape[2:])

    def split(self, packed: Tensor) -> tuple[Tensor, ...]:
        """Views of the packed elements of every step."""
        return tuple(packed.split_with_sizes(self.counts, 1))

    def per_token(self, rows: Float[Tensor, "*R S"]) -> Float[Tensor, "G B 1"]:
        """A number of every sequence at every packed element."""
        return rows.reshape(self.n_groups, -1, 1).index_select(1, self.tokens // self.width)

    def flat(self, transitions: Tensor) -> Tensor:
        """ "G V V" if shared, "N*T V V" if indexed."""
        return transitions.reshape(-1, *transitions.shape[-2:])

    def transitions(self, flat: Tensor, t: int) -> Tensor:
        """Those into step t, broadcasting to "G counts[t] V V"."""
        return flat.index_select(0, self.tokens_of[t]).unsqueeze(0) if self.indexed else flat.unsqueeze(1)


def _canonical(unary: Tensor, transitions: Tensor, lengths: Tensor) -> tuple[_Steps, Tensor, Tensor]:
    transitions, indexed = _aligned(unary, transitions, lengths)
    n_groups = 1 if indexed else math.prod(transitions.shape[:-2])
    steps = _Steps(unary.shape[:-1], lengths, n_groups=n_groups, indexed=indexed)
    return steps, steps.pack(unary), steps.flat(transitions)


class _LogPartition(torch.autograd.Function):
    """log Z in float64."""

    @staticmethod
    def forward(ctx: Any, unary: Tensor, transitions: Tensor, lengths: Tensor) -> Tensor:
        steps, packed, flat = _canonical(unary, transitions, lengths)
        ctx.steps, ctx.dtype = steps, _product_dtype(steps, flat)
        if ctx.dtype is not None:
            filtered, log_normalizers = _filter_by_products(steps, packed, flat, ctx.dtype)
        else:
            filtered, log_normalizers = _filter_in_logs(steps, packed, flat)
        ctx.save_for_backward(filtered, transitions)
        return steps.unpack(log_normalizers).sum(-1, dtype=torch.float64)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        filtered, transitions = ctx.saved_tensors
        steps: _Steps = ctx.steps
        flat, weights = steps.flat(transitions), steps.per_token(grad.to(filtered.dtype))
        by_transitions = torch.zeros_like(flat) if ctx.needs_input_grad[1] else None
        if ctx.dtype is not None:
            smoothed, before, ratios = _smooth_by_products(steps, filtered, flat)
            if by_transitions is not None:
                sums = torch.bmm(before.mT, ratios.mul_(weights[:, steps.n_rows :]))
                by_transitions.copy_(sums.mul_(_scaled(flat, filtered.dtype)[0]))
        else:
            smoothed = filtered.exp()
            weights_of = steps.split(weights)
            for t, current, conditional in _smooth_in_logs(steps, filtered, smoothed, flat):
                if by_transitions is not None and steps.indexed:
                    pairs = conditional.mul_((current * weights_of[t]).unsqueeze(-2))
                    by_transitions.index_copy_(0, steps.tokens_of[t], pairs.squeeze(0))
                elif by_transitions is not None:
                    by_transitions += conditional.mul_((current * weights_of[t]).unsqueeze(-2)).sum(1)
        by_unary = steps.unpack(smoothed.mul_(weights).to(transitions.dtype))
        return by_unary, None if by_transitions is None else by_transitions.view(transitions.shape), None


def _product_dtype(steps: _Steps, flat: Tensor) -> torch.dtype | None:
    """The type in which shared transitions may be exponentiated; None where no type is wide enough (see the module)."""
    if steps.indexed:
        return None
    spread = float((flat.amax(-2) - flat.amin(-2)).max())
    for dtype in (flat.dtype, torch.float64):
        info = torch.finfo(dtype)
        if 2 * spread <= math.log(info.eps / info.tiny) - math.log(4 * flat.shape[-1] ** 3):
            return dtype
    return None


def _scaled(flat: Float[Tensor, "G V V"], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """e^{transitions} less the maximum of each column, and these maxima."""
    flat = flat.to(dtype)
    highest = flat.amax(-2, keepdim=True)
    return (flat - highest).exp_(), highest


def _filter_by_products(
    steps: _Steps, packed: Float[Tensor, "G B V"], flat: Float[Tensor, "G V V"], dtype: torch.dtype
) -> tuple[Float[Tensor, "G B V"], Float[Tensor, "G B"]]:
    """The filter and its log normalisers."""
    factors, highest = _scaled(flat, dtype)
    scores = packed.to(dtype, copy=True)
    scores[:, steps.n_rows :] += highest
    shift = scores.amax(-1, keepdim=True)
    filtered = scores.sub_(shift).exp_()
    sums = torch.empty_like(shift)
    filtered_of, sums_of = steps.split(filtered), steps.split(sums)
    for t, count in enumerate(steps.counts):
        if t > 0:
            filtered_of[t].mul_(torch.bmm(filtered_of[t - 1][:, :count], factors))
        torch.sum(filtered_of[t], -1, keepdim=True, out=sums_of[t])
        filtered_of[t].div_(sums_of[t])
    return filtered, (sums.log_() + shift).squeeze(-1)


def _smooth_by_products(
    steps: _Steps, filtered: Float[Tensor, "G B V"], flat: Float[Tensor, "G V V"]
) -> tuple[Float[Tensor, "G B V"], Float[Tensor, "G B-N V"], Float[Tensor, "G B-N V"]]:
    """Marginals m_t; p_{t-1} and m_t / s_t for t > 0, whose products with e^{transitions} are the pair marginals."""
    factors, _ = _scaled(flat, filtered.dtype)
    previous = filtered.index_select(1, steps.previous)
    ratios = torch.bmm(previous, factors).reciprocal_()
    smoothed = filtered.clone()
    smoothed_of, ratios_of = steps.split(smoothed), ratios.split_with_sizes(steps.counts[1:], 1)
    for t in reversed(range(1, len(steps.counts))):
        ratios_of[t - 1].mul_(smoothed_of[t])
        smoothed_of[t - 1][:, : steps.counts[t]].mul_(torch.bmm(ratios_of[t - 1], factors.mT))
    # The recursion is linear in m: what rounding does to its sum can be undone at the end.
    sums = smoothed.sum(-1, keepdim=True)
    return smoothed.div_(sums), previous, ratios.div_(sums[:, steps.n_rows :])


def _filter_in_logs(
    steps: _Steps, packed: Float[Tensor, "G B V"], flat: Tensor
) -> tuple[Float[Tensor, "G B V"], Float[Tensor, "G B"]]:
    """The logarithm of the filter, and its log normalisers."""
    log_filter, log_normalizers = packed.clone(), torch.empty_like(packed[..., :1])
    filter_of, normalizers_of = (steps.split(part) for part in (log_filter, log_normalizers))
    for t, count in enumerate(steps.counts):
        if t > 0:
            scores = filter_of[t - 1][:, :count].unsqueeze(-1) + steps.transitions(flat, t)
            filter_of[t].add_(scores.logsumexp(-2))
        torch.logsumexp(filter_of[t], -1, keepdim=True, out=normalizers_of[t])
        filter_of[t].sub_(normalizers_of[t])
    return log_filter, log_normalizers.squeeze(-1)


def _smooth_in_logs(
    steps: _Steps, log_filter: Float[Tensor, "G B V"], smoothed: Float[Tensor, "G B V"], flat: Tensor
) -> Iterator[tuple[int, Float[Tensor, "G n V"], Float[Tensor, "G n V V"]]]:
    """Turns the filter `smoothed` into marginals, in place, from the last step to the first.

    On its way it yields t, p(y_t = j) and p(y_{t-1} = i | y_t = j) [i, j], for all t > 0.
    """
    log_filter_of, smoothed_of = (steps.split(part) for part in (log_filter, smoothed))
    for t in reversed(range(1, len(steps.counts))):
        before, current = smoothed_of[t - 1][:, : steps.counts[t]], smoothed_of[t]
        scores = log_filter_of[t - 1][:, : steps.counts[t]].unsqueeze(-1) + steps.transitions(flat, t)
        conditional = scores.softmax(-2)
        sums = (conditional * current.unsqueeze(-2)).sum(-1)
        torch.div(sums, sums.sum(-1, keepdim=True), out=before)
        yield t, current, conditional


def _log_filter(steps: _Steps, packed: Float[Tensor, "G B V"], flat: Tensor) -> Float[Tensor, "G B V"]:
    if (dtype := _product_dtype(steps, flat)) is None:
        return _filter_in_logs(steps, packed, flat)[0]
    return _filter_by_products(steps, packed, flat, dtype)[0].log_()


def _best(unary: Tensor, transitions: Tensor, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best labellings, "*R S T k", and their scores, "*R S k"; a state of the recursion is label * k + rank."""
    steps, packed, flat = _canonical(unary, transitions, lengths)
    packed, flat, n_labels = packed.double(), flat.double(), unary.shape[-1]
    unary_of = steps.split(packed)
    scores = packed.new_full((steps.n_groups, steps.n_rows, n_labels, k), -math.inf)
    scores[..., 0] = unary_of[0]
    origins: list[Tensor] = []
    for t, count in enumerate(steps.counts[1:], 1):
        # Sequences that have ended keep their scores.
        active = scores[:, :count]
        candidates = (active.unsqueeze(-1) + steps.transitions(flat, t).unsqueeze(-2)).flatten(2, 3)
        best, origin = candidates.topk(k, dim=2) if k > 1 else candidates.max(2, keepdim=True)
        torch.add(best.mT, unary_of[t].unsqueeze(-1), out=active)
        origins.append(origin.mT.flatten(2))
    final, state = scores.flatten(2).topk(k, dim=-1)
    labels = torch.empty(*packed.shape[:2], k, dtype=torch.int64, device=packed.device)
    labels_of = steps.split(labels)
    for t in reversed(range(len(steps.counts))):
        active = state[:, : steps.counts[t]]
        labels_of[t].copy_(active // k)
        if t > 0:
            active.copy_(origins[t - 1].gather(2, active))
    scores = torch.empty_like(final)
    scores[:, steps.order] = final
    scores = scores.view(*steps.shape[:-1], k)
    padded = steps.unpack(labels + 1) - 1
    return padded.where((scores > -math.inf).unsqueeze(-2), -1), scores.to(unary.dtype)
