"""Which rows of a pool to annotate next: the most informative ones together, or the least certain one by one.

Under a Gaussian process regression whose labels share one posterior covariance C of the rows, observing a set S of them
with noise s^2 says log det(I + C_SS / s^2) / 2 nats about the function of each label (MacKay 1992; Krause, Singh and
Guestrin 2008). A row adds log(1 + v_i / s^2) / 2 to that, v_i what is left of its variance beside the rows before it;
taking at every turn the row that adds most reaches at least 1 - 1/e of the best set (Nemhauser, Wolsey and Fisher
1978). What that is worth differs from row to row: by how much the labels of a row are in doubt, and by how much of what
is not known of the rest of the pool it would take away, mean_j C_ij^2 / (v_i + s^2) (Cohn, Ghahramani and Jordan 1996).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.special
from jaxtyping import Float
from numpy.typing import NDArray

ANNOTATED_NOISE = 0.1
"""s^2 of rows that are annotated: little, so that one that is like them adds little."""


class Selected(NamedTuple):
    """Rows of a pool to annotate.

    Attributes:
        rows: their numbers in the pool, in the order in which they were chosen, n.
        scores: of these, n: what each adds to the log-determinant beside those before it, times its weight, for
            "posterior"; nats of mutual information for "bald"; nats of entropy, or of classes 1 minus the greatest
            probability, for "least_confidence"; zero for "random".
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


def informative(covariance: Float[np.ndarray, "B B"], noise: float) -> Float[np.ndarray, " B"]:
    """Variance of the rows of a pool, in the mean, that observing each of them takes away.

    Args:
        covariance: C of the rows.
        noise: s^2.
    """
    squares = np.einsum("ij,ij->i", covariance, covariance, dtype=np.float64, casting="same_kind")
    return np.asarray(squares / len(covariance) / (np.diagonal(covariance) + noise))


def greedy_log_determinant(
    covariance: Float[np.ndarray, "B B"], weights: Float[np.ndarray, " B"], noise: float, n: int
) -> Selected:
    """n rows, each of which adds most to the log-determinant beside those before it, times its weight.

    A pivoted Cholesky decomposition: turn t costs t B. Of equal rows the first is taken.

    Args:
        covariance: C of the rows.
        weights: what a nat about a row is worth.
        noise: s^2.
        n: how many, at most B.
    """
    left = np.array(np.diagonal(covariance), np.float64)
    factor = np.empty((n, len(left)), np.float32)
    rows, scores, taken = np.empty(n, np.int64), np.empty(n), np.zeros(len(left), np.bool_)
    for turn in range(n):
        gains = np.where(taken, -np.inf, weights * np.log1p(left / noise) / 2)
        row = int(gains.argmax())
        rows[turn], scores[turn], taken[row] = row, gains[row], True
        rest = covariance[:, row] - factor[:turn].T @ factor[:turn, row]
        factor[turn] = rest / np.sqrt(left[row] + noise)
        left = np.maximum(left - np.square(factor[turn], dtype=np.float64), 0)
    return Selected(rows, scores)
