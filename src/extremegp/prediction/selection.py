"""Which rows of a pool to annotate next: the most informative ones together, or the least certain one by one.

Under a Gaussian process regression whose labels share one posterior covariance C of the rows, observing a set S of them
with noise s^2 / u_i of row i says log det(I + D C_SS D / s^2) / 2 nats about the functions, D = diag(sqrt(u)) (MacKay
1992; Krause, Singh and Guestrin 2008). That is submodular: taking at every turn the row that adds most, log(1 + u_i v_i
/ s^2) with v_i what is left of its variance, reaches at least 1 - 1/e of the best set (Nemhauser, Wolsey and Fisher
1978), and as what rows add only lessens, only those at the top are looked at again (Minoux 1978).
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import numpy as np
import scipy.special
from jaxtyping import Float
from numpy.typing import NDArray

from extremegp.engine.compiled import compiled


class Selected(NamedTuple):
    """Rows of a pool to annotate.

    Attributes:
        rows: their numbers in the pool, in the order in which they were chosen, n.
        scores: of these, n: what each adds to the log-determinant beside those before it for "posterior", nats of
            mutual information for "bald", 1 minus the greatest probability or nats of entropy for "least_confidence",
            zero for "random".
    """

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]


def highest(scores: NDArray[Any], n: int) -> Selected:
    """The n rows of the highest scores; of equal ones the first."""
    order = np.argsort(-scores, kind="stable")[:n]
    return Selected(order.astype(np.int64), scores[order].astype(np.float64))


def at_random(n_rows: int, n: int, seed: int) -> Selected:
    """n of the rows, all sets alike."""
    rows = np.random.default_rng(seed).permutation(n_rows)[:n]
    return Selected(rows.astype(np.int64), np.zeros(n))


def entropies_of_labels(probabilities: NDArray[Any]) -> NDArray[np.float64]:
    """Sums of the entropies of labels that are present or not, in nats, B; of their probabilities, B x C."""
    p = np.asarray(probabilities, np.float64)
    return np.asarray((scipy.special.entr(p) + scipy.special.entr(1 - p)).sum(axis=1), np.float64)


def greedy_log_determinant(
    roots: Float[np.ndarray, "B M"], shares: Float[np.ndarray, " B"], noise: float, n: int
) -> Selected:
    """n rows, each of which adds most to log det(I + D C D / s^2) of those before it; of equal ones the first.

    A turn costs M^2, and M for every row that is looked at and every row that was chosen since it was last.

    Args:
        roots: of the covariance of the rows, C = R R'.
        shares: u, what the label of a row says beside that of others.
        noise: s^2.
        n: how many, at most B.
    """
    rows, gains = np.empty(n, np.int64), np.empty(n)
    _pick(np.ascontiguousarray(roots, np.float32), np.asarray(shares, np.float64) / noise, rows, gains)
    return Selected(rows, gains)


@compiled
@no_type_check
def _sift(heap: Any, size: int, bounds: Any, place: int) -> None:
    """Let what stands at a place of a heap go down to where it belongs."""
    moved = heap[place]
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and _before(bounds, heap[below + 1], heap[below]):
            below += 1
        if not _before(bounds, heap[below], moved):
            break
        heap[place] = heap[below]
        place = below
    heap[place] = moved


@compiled
@no_type_check
def _before(bounds: Any, i: int, j: int) -> bool:
    return bounds[i] > bounds[j] or (bounds[i] == bounds[j] and i < j)


@compiled
@no_type_check
def _pick(roots: Any, precisions: Any, rows: Any, gains: Any) -> None:
    """See `greedy_log_determinant`.

    Args:
        roots: B x M.
        precisions: u / s^2, B.
        rows: results from here on, n.
        gains: see `rows`.
    """
    size, width, n = roots.shape[0], roots.shape[1], len(rows)
    left, bounds = np.empty(size), np.empty(size)
    for i in range(size):
        left[i] = np.dot(roots[i], roots[i])
        bounds[i] = np.log1p(precisions[i] * left[i])
    # Of row i `left` is what is left beside the first seen[i] chosen ones.
    seen, heap = np.zeros(size, np.int64), np.arange(size)
    for place in range(size // 2 - 1, -1, -1):
        _sift(heap, size, bounds, place)
    directions, posterior = np.empty((n, width), np.float32), np.eye(width, dtype=np.float32)
    for turn in range(n):
        while seen[heap[0]] < turn:
            i = heap[0]
            along = np.dot(directions[seen[i] : turn], roots[i])
            left[i] = max(left[i] - np.dot(along, along), 0.0)
            seen[i], bounds[i] = turn, np.log1p(precisions[i] * left[i])
            _sift(heap, size, bounds, 0)
        i = heap[0]
        rows[turn], gains[turn] = i, bounds[i]
        size -= 1
        heap[0] = heap[size]
        _sift(heap, size, bounds, 0)
        if precisions[i] > 0:
            direction = np.dot(posterior, roots[i])
            direction *= np.float32(1 / np.sqrt(1 / precisions[i] + left[i]))
        else:
            direction = np.zeros(width, np.float32)
        directions[turn] = direction
        for a in range(width):
            for b in range(width):
                posterior[a, b] -= direction[a] * direction[b]
