r"""Exact inference in linear chains over ragged sequences (Lafferty, McCallum and Pereira 2001), padded and batched.

A chain scores a labelling by score(y) = sum_t unary[t, y_t] + sum_{t >= 1} transitions[y_{t-1}, y_t], and
p(y) = exp(score(y)) / Z. Everywhere

    lengths      Int[Tensor, "S"]           of S sequences, each at least 1
    unary        Float[Tensor, "*R S T V"]  V labels, T at least the longest length, *R leading draws or none
    transitions  Float[Tensor, "*R V V"]    the same at all steps; without the draws' dimensions they serve all draws
                 Float[Tensor, "*R S T V V"]  indexed: [.., t, i, j] is for label i at t - 1 and j at t; t = 0 is unused
    labels       Int[Tensor, "S T"]

What lies beyond the length of a sequence may be anything, NaN included: it is never read. The rest must be finite, but
labels that a token cannot have may have -inf, if there is another; a forbidden pair has a score of, say, -1e4.

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

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from extremegp.engine.chain.recursions import (
    aligned,
    best_paths,
    canonical,
    filter_by_products,
    filter_in_logs,
    log_filter_of,
    log_partition_64,
    mask_of,
    product_dtype,
    smooth_by_products,
    smooth_in_logs,
)


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
    return mask_of(lengths, longest).flatten().nonzero().squeeze(1), longest


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
    return log_partition_64(unary, transitions, lengths).to(unary.dtype)


def path_score(
    unary: Float[Tensor, "*R S T V"], transitions: Tensor, labels: Int[Tensor, "*L S T"], lengths: Int[Tensor, " S"]
) -> Float[Tensor, "*R S"]:
    """score(y) of the labels, which may have leading draws of their own; differentiable. Summed in float64."""
    return _path_score(unary, transitions, labels, lengths).to(unary.dtype)


def sequence_log_prob(
    unary: Float[Tensor, "*R S T V"], transitions: Tensor, labels: Int[Tensor, "*L S T"], lengths: Int[Tensor, " S"]
) -> Float[Tensor, "*R S"]:
    """log p(y) = score(y) - log Z, the difference taken in float64. Arguments as `path_score`."""
    return next(sequence_log_probs(unary, transitions, [labels], lengths))


def clamp(unary: Float[Tensor, "*R S T V"], labels: Int[Tensor, "S T"]) -> Float[Tensor, "*R S T V"]:
    """Scores of chains whose labels are these, where they are not negative: other labels there have a score of -inf.

    All functions of this module take such scores but `piecewise_pseudo_likelihood`.
    """
    labels = labels.unsqueeze(-1)
    others = labels != torch.arange(unary.shape[-1], device=labels.device)
    return unary.masked_fill((labels >= 0) & others, -torch.inf)


def partial_log_prob(
    unary: Float[Tensor, "*R S T V"], transitions: Tensor, labels: Int[Tensor, "S T"], lengths: Int[Tensor, " S"]
) -> Float[Tensor, "*R S"]:
    """log p of the labels that are not negative, the others summed out; differentiable.

    log Z of the chain clamped to these labels, less log Z, the difference taken in float64.
    """
    clamped = log_partition_64(clamp(unary, labels), transitions, lengths)
    return (clamped - log_partition_64(unary, transitions, lengths)).to(unary.dtype)


def sequence_log_probs(
    unary: Float[Tensor, "*R S T V"], transitions: Tensor, labellings: Iterable[Tensor], lengths: Int[Tensor, " S"]
) -> Iterator[Float[Tensor, "*R S"]]:
    """`sequence_log_prob` of several labellings of the same sequences, one at a time, with log Z computed once."""
    log_z = log_partition_64(unary, transitions, lengths)
    for labels in labellings:
        yield (_path_score(unary, transitions, labels, lengths) - log_z).to(unary.dtype)


@torch.no_grad()
def marginals(
    unary: Float[Tensor, "*R S T V"], transitions: Tensor, lengths: Int[Tensor, " S"]
) -> Float[Tensor, "*R S T V"]:
    """p(y_t = v), zero in the padding; without gradient. Arguments as `log_partition`."""
    steps, packed, flat = canonical(unary, transitions, lengths)
    if (dtype := product_dtype(steps, flat)) is not None:
        smoothed, _, _ = smooth_by_products(steps, filter_by_products(steps, packed, flat, dtype)[0], flat)
    else:
        log_filter, _ = filter_in_logs(steps, packed, flat)
        smoothed = log_filter.exp()
        for _ in smooth_in_logs(steps, log_filter, smoothed, flat):
            pass
    return steps.unpack(smoothed.to(unary.dtype))


@torch.no_grad()
def pair_marginals(
    unary: Float[Tensor, "*R S T V"], transitions: Tensor, lengths: Int[Tensor, " S"]
) -> Float[Tensor, "*R S T V V"]:
    """p(y_{t-1} = i, y_t = j), zero at t = 0 and in the padding; without gradient. Arguments as `log_partition`."""
    steps, packed, flat = canonical(unary, transitions, lengths)
    log_filter = log_filter_of(steps, packed, flat)
    pairs = unary.new_zeros(steps.n_groups, steps.n_rows * steps.width, *unary.shape[-1:] * 2)
    for t, current, conditional in smooth_in_logs(steps, log_filter, log_filter.exp(), flat):
        pairs.index_copy_(1, steps.tokens_of[t], (conditional * current.unsqueeze(-2)).to(unary.dtype))
    return pairs.view(*unary.shape, unary.shape[-1])


@torch.no_grad()
def entropy(unary: Float[Tensor, "*R S T V"], transitions: Tensor, lengths: Int[Tensor, " S"]) -> Float[Tensor, "*R S"]:
    """The entropy of p(y) in nats, without gradient. Arguments as `log_partition`.

    By the chain rule from the last label backwards, H[y_T] + sum_t H[y_{t-1} | y_t], a sum without negative terms.
    """
    steps, packed, flat = canonical(unary, transitions, lengths)
    log_filter = log_filter_of(steps, packed, flat)
    terms = torch.zeros_like(log_filter[..., 0])
    terms[:, steps.last] = torch.special.entr(log_filter[:, steps.last].exp()).sum(-1)
    before = steps.split(terms)
    for t, current, conditional in smooth_in_logs(steps, log_filter, log_filter.exp(), flat):
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
    steps, packed, flat = canonical(unary, transitions, lengths)
    log_filter = log_filter_of(steps, packed, flat)
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
    labels, scores = best_paths(unary, transitions, lengths, 1)
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
    labels, scores = best_paths(unary, transitions, lengths, k)
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
    transitions, indexed = aligned(unary, transitions, lengths)
    mask = mask_of(lengths, unary.shape[-2])
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


def _at(values: Float[Tensor, "*R S T V"], labels: Int[Tensor, "*L S T"]) -> Float[Tensor, "*R S T"]:
    return values.gather(-1, labels.expand(values.shape[:-1]).unsqueeze(-1)).squeeze(-1)


def _path_score(unary: Tensor, transitions: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    transitions, indexed = aligned(unary, transitions, lengths)
    mask, n_labels = mask_of(lengths, unary.shape[-2]), unary.shape[-1]
    labels = labels.long().where(mask, 0).expand(unary.shape[:-1])
    score = _at(unary, labels).where(mask, 0.0).sum(-1, dtype=torch.float64)
    chosen = labels[..., :-1] * n_labels + labels[..., 1:]
    if indexed:
        pairs = _at(transitions[..., 1:, :, :].flatten(-2), chosen)
    else:
        pairs = transitions.expand(*unary.shape[:-3], -1, -1).flatten(-2).gather(-1, chosen.flatten(-2))
        pairs = pairs.view(chosen.shape)
    return score + pairs.where(mask[:, 1:], 0.0).sum(-1, dtype=torch.float64)
