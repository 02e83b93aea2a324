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


def classification(truth: Sequence[int], probabilities: NDArray, n_bins: int, ks: Sequence[int]) -> dict[str, float]:
    """Metrics of one class per row; class -1 is one never seen."""
    n_rows, n_classes = probabilities.shape
    ranked = [top_labels(row.astype(np.float32), n_classes) for row in probabilities]
    predicted = [order[0] for order in ranked]
    nlpd = brier = 0.0
    for c, row in zip(truth, probabilities.astype(np.float64), strict=True):
        nlpd -= math.log(max(row[c] if c >= 0 else 0.0, 2.0**-149))
        brier += sum((p - (label == c)) ** 2 for label, p in enumerate(row)) + (c == -1)
    recalls, f1s = [], []
    for label in sorted(set(truth) - {-1}):
        hits = sum(c == label == found for c, found in zip(truth, predicted, strict=True))
        recall, precision = hits / list(truth).count(label), hits / max(1, predicted.count(label))
        recalls.append(recall)
        f1s.append(2 * recall * precision / (recall + precision) if hits else 0.0)
    right = [int(c == found) for c, found in zip(truth, predicted, strict=True)]
    n_present = max(1, len(recalls))
    return {
        "accuracy": sum(right) / n_rows,
        "error": 1 - sum(right) / n_rows,
        **{
            f"top{k}_accuracy": sum(c in order[:k] for c, order in zip(truth, ranked, strict=True)) / n_rows for k in ks
        },
        "nlpd": nlpd / n_rows,
        "brier": brier / n_rows,
        "ece": calibration_error(
            right, [float(row[c]) for c, row in zip(predicted, probabilities, strict=True)], n_bins
        ),
        "coverage": sum(recall > 0 for recall in recalls) / n_present,
        "balanced_accuracy": sum(recalls) / n_present,
        "macro_f1": sum(f1s) / n_present,
    }
