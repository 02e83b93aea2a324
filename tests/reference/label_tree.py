"""Label trees, nearest rows and their evidence with dense arrays, loops and SciPy's optimiser: slow and obvious."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Array = NDArray[np.float64]


class Level(NamedTuple):
    """Nodes of a level: the parent of each, ascending, their weights (nodes x D) and biases."""

    parents: NDArray[np.int64]
    weights: Array
    biases: Array


def node_mode(x: Array, signs: Array, variance: float, row_weights: Array | float = 1.0) -> tuple[Array, float]:
    """Weights and bias, both N(0, variance), at the largest posterior density of weighted logistic labels."""

    def loss(parameters: Array) -> tuple[float, Array]:
        margins = signs * (x @ parameters[:-1] + parameters[-1])
        pull = -row_weights * signs / (1 + np.exp(margins))
        slope = np.append(x.T @ pull, pull.sum()) + parameters / variance
        return float((row_weights * np.logaddexp(0, -margins)).sum() + parameters @ parameters / (2 * variance)), slope

    found = minimize(loss, np.zeros(x.shape[1] + 1), jac=True, method="BFGS", options={"gtol": 1e-9})
    return found.x[:-1], float(found.x[-1])


def path_probabilities(x: Array, levels: list[Level]) -> Array:
    """Of every node of the last level the product of the probabilities from the root to it, B x nodes."""
    above = np.ones((len(x), 1))
    for level in levels:
        above = above[:, level.parents] / (1 + np.exp(-(x @ level.weights.T + level.biases)))
    return above


def diagonal_precisions(
    x: Array, weights: Array, bias: float, variance: float, row_weights: Array | float = 1.0
) -> Array:
    """The diagonal of minus the second derivatives of the log-posterior at these weights and, in the end, the bias."""
    chances = 1 / (1 + np.exp(-(x @ weights + bias)))
    curvatures = row_weights * chances * (1 - chances)
    return 1 / variance + curvatures @ np.column_stack([np.square(x), np.ones(len(x))])


def path_moments(x: Array, levels: list[Level], variances: list[Array], n: int = 200_001) -> tuple[Array, Array]:
    """Log-probabilities of paths at the mode, and the variances of these, of one input, by sums over a fine grid.

    `variances` are of the functions of the nodes of each level at the input.
    """
    grid = np.linspace(-9, 9, n)
    density = np.exp(-0.5 * grid**2) / np.exp(-0.5 * grid**2).sum()
    score, spread = np.zeros(1), np.zeros(1)
    for level, variance in zip(levels, variances, strict=True):
        mean = level.weights @ x + level.biases
        of_nodes = [-np.logaddexp(0, -(m + np.sqrt(v) * grid)) for m, v in zip(mean, variance, strict=True)]
        first, second = (np.array([density @ values**power for values in of_nodes]) for power in (1, 2))
        score = score[level.parents] - np.logaddexp(0, -mean)
        spread = spread[level.parents] + second - first**2
    return score, spread


def nearest_rows(x: Array, rows: Array, own: int, m: int, most_read: float = np.inf) -> list[tuple[float, int]]:
    """The similarities and numbers of the nearest of `rows` to one input, best first, the smaller row first in ties."""
    lengths = (rows != 0).sum(axis=0)
    read: list[int] = []
    for feature in sorted(np.flatnonzero(x), key=lambda feature: lengths[feature]):
        total = lengths[[*read, feature]].sum()
        if total > most_read and lengths[read].sum():
            break
        read.append(feature)
    with_any = np.flatnonzero((rows[:, read] != 0).any(axis=1))
    found = sorted((-float(rows[i, read] @ x[read]), int(i)) for i in with_any)[:m]
    return [(-similarity, i) for similarity, i in found if i != own]


def evidence(
    tree_probabilities: list[dict[int, float]],
    nearest: list[tuple[float, int]],
    labels_of: list[list[int]],
    counts: Array,
    *,
    shares: Any,
    best_of_each: int,
    least: Any,
    row_weights: Array,
) -> dict[int, list[float]]:
    """The candidates of one input and what speaks for them."""
    parts = [dict.fromkeys(range(len(counts)), 0.0) for _ in range(len(shares) + 1)]
    for tree in tree_probabilities:
        for label, probability in tree.items():
            parts[0][label] += probability / len(tree_probabilities)
    for part, (m, power) in zip(parts[1:], shares, strict=True):
        total = sum(max(similarity, 0) ** power * row_weights[row] for similarity, row in nearest[:m]) + 1e-9
        for similarity, row in nearest[:m]:
            for label in labels_of[row]:
                part[label] += max(similarity, 0) ** power * row_weights[row] / total
    chosen: set[int] = set()
    for part in parts[:3]:
        best = sorted(part, key=lambda label: (-part[label], label))[:best_of_each]
        chosen |= {label for label in best if part[label] > 0}
    return {
        label: [
            *(np.log(part[label] + small) for part, small in zip(parts, least, strict=True)),
            np.log1p(counts[label]),
            nearest[0][0] if nearest else 0.0,
        ]
        for label in sorted(chosen)
    }


def local_regression(x: Array, rows: Array, *, precision: float, noises: Array) -> tuple[Array, float]:
    """What each of `rows` counts in the Gaussian process regression at one input, and its variance there."""

    def kernel(a: Array, b: Array) -> Array:
        return np.exp(-0.5 * precision * np.square(a[:, None] - b[None]).sum(axis=2))

    across = kernel(rows, x[None])[:, 0]
    weights = np.linalg.solve(kernel(rows, rows) + np.diag(noises), across)
    return weights, float(1 - weights @ across)
