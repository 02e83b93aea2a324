"""Losses of rows and how sure these are: loops over rows and labels, nothing shared with the library."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tests.reference.metrics import top_labels

Rows = tuple[list[float], list[float], list[float], list[float]]
"""Of every row its error, its log-loss, its entropy and its greatest probability."""


def entropy(probabilities: Sequence[float]) -> float:
    return -sum(p * math.log(p) for p in probabilities if p > 0)


def of_labels(truth: Sequence[Sequence[int]], probabilities: Sequence[Sequence[float]]) -> Rows:
    rows: Rows = ([], [], [], [])
    for y, p in zip(truth, probabilities, strict=True):
        (best,) = top_labels(p, 1)
        clipped = [min(max(q, 1e-15), 1 - 1e-15) for q in p]
        loss = -sum(math.log(q) if one else math.log1p(-q) for one, q in zip(y, clipped, strict=True))
        values = (1 - y[best], loss, sum(entropy((q, 1 - q)) for q in p), p[best])
        for part, value in zip(rows, values, strict=True):
            part.append(value)
    return rows


def of_classes(truth: Sequence[int], probabilities: Sequence[Sequence[float]]) -> Rows:
    rows: Rows = ([], [], [], [])
    for y, p in zip(truth, probabilities, strict=True):
        (best,) = top_labels(p, 1)
        own = max(p[y] if y >= 0 else 0.0, 2.0**-149)
        for part, value in zip(rows, (float(best != y), -math.log(own), entropy(p), p[best]), strict=True):
            part.append(value)
    return rows


def area(losses: Sequence[float], confidence: Sequence[float]) -> float:
    """Mean over n of the mean loss of the n most confident rows, no two of which are equally so."""
    order = sorted(range(len(losses)), key=lambda row: -confidence[row])
    return float(np.mean([np.mean([losses[row] for row in order[: n + 1]]) for n in range(len(order))]))


def areas(rows: Rows, log_loss: str) -> dict[str, float]:
    errors, log_losses, entropies, greatest = rows
    found = {}
    for name, losses in (("error", errors), (log_loss, log_losses)):
        found[f"aurc_{name}_by_entropy"] = area(losses, [-each for each in entropies])
        found[f"aurc_{name}_by_max_p"] = area(losses, greatest)
        found[f"aurc_{name}_best"] = area(losses, [-each for each in losses])
    return found
