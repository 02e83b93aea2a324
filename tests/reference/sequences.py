"""Slow, literal definitions of the metrics of sequences: loops and enumeration, nothing shared with the library."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tests.reference import metrics

Span = tuple[str, int, int]


def parts(tag: str) -> tuple[str, str]:
    """Letter and type of a tag; the type of a letter alone is _."""
    letter, _, kind = tag.partition("-")
    return letter, kind or "_"


def conlleval_spans(tags: Sequence[str]) -> list[Span]:
    """Type, first and last token: a token is in the span of the one before unless something between them ends it."""
    spans: list[Span] = []
    for t, tag in enumerate(tags):
        letter, kind = parts(tag)
        if letter == "O":
            continue
        joined = False
        if t > 0:
            before, kind_before = parts(tags[t - 1])
            joined = before in "BI" and kind_before == kind and letter in "IEL"
        if joined:
            spans[-1] = (kind, spans[-1][1], t)
        else:
            spans.append((kind, t, t))
    return spans


WELL_FORMED = {"IOB2": "BI*", "IOE2": "I*E", "IOBES": "S|BI*E", "BILOU": "U|BI*L"}


def strict_spans(tags: Sequence[str], scheme: str) -> list[Span]:
    """Type, first and last token of the runs of one type that are whole spans of the scheme."""
    spans: list[Span] = []
    for wanted in {parts(tag)[1] for tag in tags if tag != "O"}:
        letters = "".join(letter if kind == wanted and letter != "O" else "." for letter, kind in map(parts, tags))
        spans += [(wanted, found.start(), found.end() - 1) for found in re.finditer(WELL_FORMED[scheme], letters)]
    return spans


def span_metrics(true: Sequence[Sequence[Span]], predicted: Sequence[Sequence[Span]]) -> tuple[float, float, float]:
    """Precision, recall and F1 over the spans of all sequences."""
    both = sum(span in actual for actual, found in zip(true, predicted, strict=True) for span in found)
    n_true, n_predicted = sum(map(len, true)), sum(map(len, predicted))
    precision, recall = (both / n if n else 0.0 for n in (n_predicted, n_true))
    return precision, recall, 2 * precision * recall / (precision + recall) if both else 0.0


def risk_curve(correct: Sequence[bool], confidence: Sequence[float]) -> list[float]:
    """Share of errors among the first 1, 2, .. predictions: the mean over all orders of descending confidence."""
    return mean_losses([float(not right) for right in correct], confidence)


def mean_losses(losses: Sequence[float], confidence: Sequence[float]) -> list[float]:
    """Mean loss of the first 1, 2, .. predictions: the mean over all orders of descending confidence."""
    curves = []
    for order in itertools.permutations(range(len(losses))):
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order)):
            curves.append([sum(losses[i] for i in order[:n]) / n for n in range(1, len(order) + 1)])
    return np.mean(curves, axis=0).tolist()


def sequence_metrics(
    truth: Sequence[Sequence[int]],
    predicted: Sequence[Sequence[int]],
    marginals: Sequence[NDArray],
    log_probs: Sequence[float],
    n_bins: int,
) -> dict[str, float]:
    """Everything but spans and selective prediction; label -1 is one never seen."""
    n_tokens = wrong = wrong_sequences = known = known_in_sequences = 0
    unstruct = struct = 0.0
    for y, found, p, log_prob in zip(truth, predicted, marginals, log_probs, strict=True):
        errors = sum(a != b for a, b in zip(y, found, strict=True))
        wrong += errors
        wrong_sequences += errors > 0
        n_tokens += len(y)
        for label, row in zip(y, p, strict=True):
            if label >= 0:
                known += 1
                unstruct -= math.log(max(float(row[label]), 2.0**-149))
        if -1 not in y:
            known_in_sequences += len(y)
            struct -= log_prob
    tokens = metrics.classification([label for y in truth for label in y], np.concatenate(marginals), n_bins, ())
    return {
        "token_error": wrong / n_tokens,
        "sequence_error": wrong_sequences / len(truth),
        "marginal_error": tokens["error"],
        "nll_unstruct": unstruct,
        "nll_unstruct_per_token": unstruct / max(1, known),
        "nll_struct": struct,
        "nll_struct_per_token": struct / max(1, known_in_sequences),
        "brier": tokens["brier"],
        "ece": tokens["ece"],
        "n_sequences": len(truth),
        "n_tokens": n_tokens,
        "n_unknown": n_tokens - known,
    }
