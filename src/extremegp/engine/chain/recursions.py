"""The recursions of linear chains, over sequences that are packed step by step: what `chain` is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


def mask_of(lengths: Int[Tensor, " S"], longest: int) -> Tensor:
    return torch.arange(longest, device=lengths.device) < lengths.unsqueeze(1)


def log_partition_64(unary: Tensor, transitions: Tensor, lengths: Tensor) -> Tensor:
    transitions, _ = aligned(unary, transitions, lengths)
    log_z: Tensor = _LogPartition.apply(unary, transitions, lengths)
    return log_z


def aligned(unary: Tensor, transitions: Tensor, lengths: Tensor) -> tuple[Tensor, bool]:
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


class Steps:
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
        mask = mask_of(lengths, int(lengths[0])).T
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


def canonical(unary: Tensor, transitions: Tensor, lengths: Tensor) -> tuple[Steps, Tensor, Tensor]:
    transitions, indexed = aligned(unary, transitions, lengths)
    n_groups = 1 if indexed else math.prod(transitions.shape[:-2])
    steps = Steps(unary.shape[:-1], lengths, n_groups=n_groups, indexed=indexed)
    return steps, steps.pack(unary), steps.flat(transitions)


class _LogPartition(torch.autograd.Function):
    """log Z in float64."""

    @staticmethod
    def forward(ctx: Any, unary: Tensor, transitions: Tensor, lengths: Tensor) -> Tensor:
        steps, packed, flat = canonical(unary, transitions, lengths)
        ctx.steps, ctx.dtype = steps, product_dtype(steps, flat)
        if ctx.dtype is not None:
            filtered, log_normalizers = filter_by_products(steps, packed, flat, ctx.dtype)
        else:
            filtered, log_normalizers = filter_in_logs(steps, packed, flat)
        ctx.save_for_backward(filtered, transitions)
        return steps.unpack(log_normalizers).sum(-1, dtype=torch.float64)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        filtered, transitions = ctx.saved_tensors
        steps: Steps = ctx.steps
        flat, weights = steps.flat(transitions), steps.per_token(grad.to(filtered.dtype))
        by_transitions = torch.zeros_like(flat) if ctx.needs_input_grad[1] else None
        if ctx.dtype is not None:
            smoothed, before, ratios = smooth_by_products(steps, filtered, flat)
            if by_transitions is not None:
                sums = torch.bmm(before.mT, ratios.mul_(weights[:, steps.n_rows :]))
                by_transitions.copy_(sums.mul_(_scaled(flat, filtered.dtype)[0]))
        else:
            smoothed = filtered.exp()
            weights_of = steps.split(weights)
            for t, current, conditional in smooth_in_logs(steps, filtered, smoothed, flat):
                if by_transitions is not None and steps.indexed:
                    pairs = conditional.mul_((current * weights_of[t]).unsqueeze(-2))
                    by_transitions.index_copy_(0, steps.tokens_of[t], pairs.squeeze(0))
                elif by_transitions is not None:
                    by_transitions += conditional.mul_((current * weights_of[t]).unsqueeze(-2)).sum(1)
        by_unary = steps.unpack(smoothed.mul_(weights).to(transitions.dtype))
        return by_unary, None if by_transitions is None else by_transitions.view(transitions.shape), None


def product_dtype(steps: Steps, flat: Tensor) -> torch.dtype | None:
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


def filter_by_products(
    steps: Steps, packed: Float[Tensor, "G B V"], flat: Float[Tensor, "G V V"], dtype: torch.dtype
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


def smooth_by_products(
    steps: Steps, filtered: Float[Tensor, "G B V"], flat: Float[Tensor, "G V V"]
) -> tuple[Float[Tensor, "G B V"], Float[Tensor, "G later V"], Float[Tensor, "G later V"]]:
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


def filter_in_logs(
    steps: Steps, packed: Float[Tensor, "G B V"], flat: Tensor
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


def smooth_in_logs(
    steps: Steps, log_filter: Float[Tensor, "G B V"], smoothed: Float[Tensor, "G B V"], flat: Tensor
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


def log_filter_of(steps: Steps, packed: Float[Tensor, "G B V"], flat: Tensor) -> Float[Tensor, "G B V"]:
    if (dtype := product_dtype(steps, flat)) is None:
        return filter_in_logs(steps, packed, flat)[0]
    return filter_by_products(steps, packed, flat, dtype)[0].log_()


def best_paths(unary: Tensor, transitions: Tensor, lengths: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best labellings, "*R S T k", and their scores, "*R S k"; a state of the recursion is label * k + rank."""
    steps, packed, flat = canonical(unary, transitions, lengths)
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
