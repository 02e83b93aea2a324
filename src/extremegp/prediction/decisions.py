"""From probabilities of labels to sets of labels: what is best to predict for a row, by what it is judged by.

Labels are taken as independent given the row. The set with the highest expected F1 then is that of its k most probable
labels for some k (Lewis 1995), and all k together cost the square of the number of labels (Ye, Chai, Lee and Chieu
2012): with A_k the number of true ones among the first k and B_k among the rest, E F1 = sum_a P(A_k = a) 2 a S(k, k+a)
with S(k, q) = E 1 / (q + B_k), which follow from each other from the last label to the first.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, no_type_check

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from extremegp.engine.compiled import in_lanes

By = Literal["f1", "cost", "size", "threshold"]
MOST_LABELS = 400
"""The most probable labels of a row that a set is chosen of; the others count by the sum of their probabilities."""
_LEAST = 1e-6  # of probabilities that count one by one


class Candidates(NamedTuple):
    """The most probable labels of some rows.

    Attributes:
        labels: best first, B x C; -1 where there are fewer.
        probabilities: of these, B x C; 0 there.
        others: the sum of the probabilities of all other labels, B.
    """

    labels: Int[np.ndarray, "B C"]
    probabilities: Float[np.ndarray, "B C"]
    others: Float[np.ndarray, " B"]


class Sizes(NamedTuple):
    """How many of its most probable labels a row is given.

    Attributes:
        n_labels: k, B.
        expected: what is expected of the set, B: its F1, or minus its cost.
    """

    n_labels: NDArray[np.int64]
    expected: NDArray[np.float64]


def best_f1(candidates: Candidates) -> Sizes:
    """The sets with the highest expected F1, where 2 TP / (|set| + |truth|) is 1 for two empty sets."""
    p, others = np.asarray(candidates.probabilities, np.float64), np.asarray(candidates.others, np.float64)
    sizes, expected = np.zeros(len(p), np.int64), np.zeros(len(p))
    counts = (p > _LEAST).sum(axis=1)
    # What is too little to count one by one counts with the others.
    rest = others + np.where(np.arange(p.shape[1]) < counts[:, None], 0, p).sum(axis=1)
    _best_sizes(len(p), p, counts, rest, sizes, expected)
    return Sizes(sizes, expected)


def best_cost(candidates: Candidates, *, wrong: float, missed: float) -> Sizes:
    """The sets with the lowest expected cost, where each wrong label costs `wrong` and each missed one `missed`."""
    p = np.asarray(candidates.probabilities, np.float64)
    gains = p * missed - (1 - p) * wrong
    chosen = (gains > 0) & (candidates.labels >= 0)
    lost = missed * (p.sum(axis=1) + candidates.others)
    return Sizes(chosen.sum(axis=1), np.where(chosen, gains, 0).sum(axis=1) - lost)


def expected_f1(candidates: Candidates, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Expected F1 of sets of candidates, B.

    Args:
        candidates: of the rows.
        chosen: which of them are in the set, B x C.
    """
    p = np.asarray(candidates.probabilities, np.float64)
    # Those that are chosen first: the order within each part does not matter.
    order = np.argsort(~chosen, axis=1, kind="stable")
    ordered, found = np.take_along_axis(p, order, axis=1), np.zeros(len(p))
    sizes = np.asarray((chosen & (candidates.labels >= 0)).sum(axis=1), np.int64)
    counts = np.asarray((candidates.labels >= 0).sum(axis=1), np.int64)
    _f1_of_sizes(len(p), ordered, counts, np.asarray(candidates.others, np.float64), sizes, found)
    return found


@in_lanes
@no_type_check
def _best_sizes(lane: int, n_lanes: int, p: Any, counts: Any, others: Any, sizes: Any, expected: Any) -> None:
    """The best k of every row, and its expected F1; see the module.

    Args:
        lane: which part of the work.
        n_lanes: of how many.
        p: probabilities, descending, B x C.
        counts: how many count one by one, B.
        others: the sum of the others, B, which are taken for a Poisson variable.
        sizes: results from here on, B.
        expected: see `sizes`.
    """
    for row in range(lane, len(p), n_lanes):
        n = counts[row]
        # shares[k, q] = E 1 / (q + B_k), for q up to 2 n - (n - k).
        shares = np.zeros((n + 1, 2 * n + 2))
        for q in range(1, 2 * n + 2):
            weight, left, j = np.exp(-others[row]), 1.0, 0
            total = 0.0
            while left > 1e-12 and j < 10000:
                total += weight / (q + j)
                left -= weight
                j += 1
                weight *= others[row] / j
            shares[n, q] = total
        for k in range(n - 1, -1, -1):
            for q in range(1, n + k + 2):
                shares[k, q] = p[row, k] * shares[k + 1, q + 1] + (1 - p[row, k]) * shares[k + 1, q]
        none = np.exp(-others[row])
        for k in range(n):
            none *= 1 - p[row, k]
        best, best_size = none, 0
        hits = np.zeros(n + 1)
        hits[0] = 1.0
        for k in range(1, n + 1):
            for a in range(k, 0, -1):
                hits[a] = hits[a] * (1 - p[row, k - 1]) + hits[a - 1] * p[row, k - 1]
            hits[0] *= 1 - p[row, k - 1]
            value = 0.0
            for a in range(1, k + 1):
                value += 2 * a * hits[a] * shares[k, k + a]
            if value > best:
                best, best_size = value, k
        sizes[row], expected[row] = best_size, best


@in_lanes
@no_type_check
def _f1_of_sizes(lane: int, n_lanes: int, p: Any, counts: Any, others: Any, sizes: Any, expected: Any) -> None:
    """Expected F1 of the first k labels of every row; arguments as of `_best_sizes`, but k is given."""
    for row in range(lane, len(p), n_lanes):
        n, k = counts[row], sizes[row]
        hits, rest = np.zeros(k + 1), np.zeros(n - k + 1)
        hits[0] = rest[0] = 1.0
        for i in range(k):
            for a in range(i + 1, 0, -1):
                hits[a] = hits[a] * (1 - p[row, i]) + hits[a - 1] * p[row, i]
            hits[0] *= 1 - p[row, i]
        for i in range(k, n):
            for b in range(i - k + 1, 0, -1):
                rest[b] = rest[b] * (1 - p[row, i]) + rest[b - 1] * p[row, i]
            rest[0] *= 1 - p[row, i]
        value = rest[0] * np.exp(-others[row]) if k == 0 else 0.0
        weight, left, j = np.exp(-others[row]), 1.0, 0
        while k > 0 and left > 1e-12 and j < 10000:
            for b in range(n - k + 1):
                for a in range(1, k + 1):
                    value += weight * rest[b] * hits[a] * 2 * a / (k + a + b + j)
            left -= weight
            j += 1
            weight *= others[row] / j
        expected[row] = value
