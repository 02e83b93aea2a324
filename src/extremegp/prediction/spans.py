"""How probable it is that certain tokens, and no others beside them, are a span of a type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from extremegp.data.schemes import TaggedSpan, split_tag
from extremegp.engine.likelihoods.chain_draws import ChainDraws


class PredictedSpan(NamedTuple):
    """A span that is predicted.

    Attributes:
        start: the first token, counted from 0.
        end: the token after the last.
        type: as tags have it; "" where they have letters alone.
        probability: that tags have a span of this type with exactly these tokens.
    """

    start: int
    end: int
    type: str
    probability: float


class _Case(NamedTuple):
    """One of the ways that a span is written, which exclude each other: tags of its tokens and of those beside it."""

    before: Bool[Tensor, " V"] | None
    tokens: tuple[Bool[Tensor, " V"], ...]
    after: Bool[Tensor, " V"] | None


def span_probabilities(
    block: ChainDraws, spans: Sequence[tuple[int, TaggedSpan]], labels: Sequence[str]
) -> NDArray[np.float64]:
    """Probabilities of spans, averaged over the draws, exact for each.

    A span as `spans_of` reads it is an event of the tags of its tokens and of the two beside it. It is a union of up to
    four events that each allow some tags at every token, whose probability is that of a chain clamped to these, Z / Z.

    Args:
        block: sequences at draws of the posterior.
        spans: the sequence, by its place in the block, and the span, E of them.
        labels: the names of the V labels.

    Returns:
        E numbers, float64.
    """
    tags = [split_tag(label) for label in labels]
    device, width, lengths = block.unary.device, block.unary.shape[-2], block.lengths.tolist()
    events: list[int] = []
    sequences: list[int] = []
    masks: list[Tensor] = []
    for e, (s, span) in enumerate(spans):
        for case in _cases(tags, span, lengths[s]):
            allowed = torch.ones(width, len(labels), dtype=torch.bool)
            for t, mask in enumerate(case.tokens, span.start):
                allowed[t] = mask
            if case.before is not None:
                allowed[span.start - 1] = case.before
            if case.after is not None:
                allowed[span.end] = case.after
            events.append(e)
            sequences.append(s)
            masks.append(allowed)
    total = torch.zeros(len(spans), dtype=torch.float64)
    if masks:
        found = block.probability_of(torch.tensor(sequences, device=device), torch.stack(masks).to(device))
        total.index_add_(0, torch.tensor(events), found.double().cpu())
    probabilities: NDArray[np.float64] = total.clamp(max=1.0).numpy()
    return probabilities


def _cases(tags: Sequence[tuple[str, str]], span: TaggedSpan, length: int) -> Iterator[_Case]:
    def mask(letters: str) -> Bool[Tensor, " V"]:
        return torch.tensor([letter in letters and kind == span.type for letter, kind in tags])

    inside = span.end - span.start - 2
    # The letter of its first token opens it by itself, or for want of an open span before.
    for opening, of_itself in (("BSU", True), ("IEL", False)):
        before = None if of_itself or not span.start else ~mask("BI")
        # That of its last closes it by itself, or for want of more.
        for ending, closes in (("SUEL", True), ("BI", False)):
            after = None if closes or span.end == length else ~mask("IEL")
            if inside < 0:
                tokens: tuple[Tensor, ...] = (mask(opening) & mask(ending),)
            else:
                tokens = (mask(opening) & mask("BI"), *[mask("I")] * inside, mask(ending) & mask("IEL"))
            if all(bool(each.any()) for each in tokens):
                yield _Case(before, tokens, after)
