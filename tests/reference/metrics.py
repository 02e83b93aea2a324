"""Slow, literal definitions of the metrics on dense rows: loops, sorting and sums, nothing shared with the library."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def top_labels(scores: Sequence[float], k: int) -> list[int]:
    """The k best labels of one row: score descending, then label ascending; -inf is never predicted."""
    order = sorted(range(len(scores)), key=lambda label: (-scores[label], label))
    return [label for label in order if scores[label] != -math.inf][:k]


def precision(truth: NDArray, scores: NDArray, k: int, among: Sequence[int] | None = None) -> float:
    total = 0.0
    for y, s in zip(truth, scores, strict=True):
        total += sum(y[label] for label in top_labels(s, k) if among is None or label in among) / k
    return total / len(truth)


def ndcg(truth: NDArray, scores: NDArray, k: int) -> float:
    total = 0.0
    for y, s in zip(truth, scores, strict=True):
        dcg = sum(y[label] / math.log2(rank + 1) for rank, label in enumerate(top_labels(s, k), start=1))
        ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, int(sum(y))) + 1))
        total += dcg / ideal if ideal else 0.0
    return total / len(truth)


def recall(truth: NDArray, scores: NDArray, k: int) -> float:
    rows = [
        sum(y[label] for label in top_labels(s, k)) / sum(y) for y, s in zip(truth, scores, strict=True) if sum(y) > 0
    ]
    return sum(rows) / len(rows) if rows else 0.0


def macro_recall(truth: NDArray, scores: NDArray, k: int, among: Sequence[int] | None = None) -> float:
    per_label = []
    for label in range(truth.shape[1]) if among is None else among:
        rows = [i for i in range(len(truth)) if truth[i, label]]
        if rows:
            per_label.append(sum(label in top_labels(scores[i], k) for i in rows) / len(rows))
    return sum(per_label) / len(per_label) if per_label else 0.0


def propensity(count: int, n_rows: int, a: float, b: float) -> float:
    c = (math.log(n_rows) - 1) * (b + 1) ** a
    return 1 / (1 + c * math.exp(-a * math.log(count + b)))


def psp(truth: NDArray, scores: NDArray, propensities: NDArray, k: int) -> float:
    reached = best = 0.0
    for y, s in zip(truth, scores, strict=True):
        reached += sum(y[label] / propensities[label] for label in top_labels(s, k))
        best += sum(sorted((1 / p for p, true in zip(propensities, y, strict=True) if true), reverse=True)[:k])
    return reached / best if best else 0.0


def psndcg(truth: NDArray, scores: NDArray, propensities: NDArray, k: int) -> float:
    reached = best = 0.0
    for y, s in zip(truth, scores, strict=True):
        if not sum(y):
            continue
        ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(k, int(sum(y))) + 1))
        for rank, label in enumerate(top_labels(s, k), start=1):
            reached += y[label] / propensities[label] / math.log2(rank + 1) / ideal
        weights = sorted((1 / p for p, true in zip(propensities, y, strict=True) if true), reverse=True)[:k]
        best += sum(w / math.log2(rank + 1) for rank, w in enumerate(weights, start=1)) / ideal
    return reached / best if best else 0.0


def log_loss(truth: NDArray, probabilities: NDArray) -> float:
    total = 0.0
    for y, p in zip(truth.ravel(), probabilities.astype(np.float64).ravel(), strict=True):
        p = min(max(p, 1e-15), 1 - 1e-15)
        total -= math.log(p) if y else math.log1p(-p)
    return total / len(truth)


def brier(truth: NDArray, probabilities: NDArray) -> float:
    pairs = zip(truth.ravel(), probabilities.astype(np.float64).ravel(), strict=True)
    return sum((p - y) ** 2 for y, p in pairs) / len(truth)


def calibration_error(true: Sequence[int], probabilities: Sequence[float], n_bins: int) -> float:
    total = 0.0
    for j in range(n_bins):
        inside = [
            (y, float(p))
            for y, p in zip(true, probabilities, strict=True)
            if j / n_bins <= p < (j + 1) / n_bins or (j == n_bins - 1 and p == 1)
        ]
        if inside:
            frequency = sum(y for y, _ in inside) / len(inside)
            confidence = sum(p for _, p in inside) / len(inside)
            total += len(inside) * abs(frequency - confidence)
    return total / len(probabilities)
