"""Linear chains by enumeration of all labellings, one sequence at a time."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Array = NDArray[np.float64]


def score(unary: Array, transitions: Array, y: tuple[int, ...]) -> float:
    """unary: T x V. transitions: V x V, or T x V x V where entry t is for the step from t - 1 to t."""
    total = 0.0
    for t, label in enumerate(y):
        total += unary[t, label]
        if t > 0:
            total += (transitions if transitions.ndim == 2 else transitions[t])[y[t - 1], label]
    return float(total)


class Enumeration(NamedTuple):
    """All V^T labellings of a sequence with their scores, and what follows from them."""

    labellings: list[tuple[int, ...]]
    scores: Array
    log_z: float
    marginals: Array
    pairs: Array
    entropy: float


def enumerate_labellings(unary: Array, transitions: Array) -> Enumeration:
    steps, n_labels = unary.shape
    labellings = list(itertools.product(range(n_labels), repeat=steps))
    scores = np.array([score(unary, transitions, y) for y in labellings])
    log_z = float(logsumexp(scores))
    marginals, pairs, entropy = np.zeros((steps, n_labels)), np.zeros((steps, n_labels, n_labels)), 0.0
    for y, log_p in zip(labellings, scores - log_z, strict=True):
        entropy -= np.exp(log_p) * log_p
        for t, label in enumerate(y):
            marginals[t, label] += np.exp(log_p)
            if t > 0:
                pairs[t, y[t - 1], label] += np.exp(log_p)
    return Enumeration(labellings, scores, log_z, marginals, pairs, float(entropy))


def piecewise_pseudo_likelihood(unary: Array, transitions: Array, y: tuple[int, ...]) -> float:
    """For each variable of each piece, the log of the piece over its sum over values of that variable."""
    n_labels = unary.shape[1]
    total = unary[0, y[0]] - logsumexp([unary[0, v] for v in range(n_labels)])
    for t in range(1, len(y)):

        def log_piece(i: int, j: int, t: int = t) -> float:
            return unary[t, j] + (transitions if transitions.ndim == 2 else transitions[t])[i, j]

        before, after = y[t - 1], y[t]
        total += log_piece(before, after) - logsumexp([log_piece(before, j) for j in range(n_labels)])
        total += log_piece(before, after) - logsumexp([log_piece(i, after) for i in range(n_labels)])
    return float(total)


def long_log_partition(unary: Array, transitions: Array) -> float:
    """log Z of one sequence by the forward recursion in log space, in extended precision."""
    alpha = unary[0].astype(np.longdouble)
    for t in range(1, len(unary)):
        step = transitions if transitions.ndim == 2 else transitions[t]
        terms = alpha[:, None] + step
        highest = terms.max(0)
        alpha = highest + np.log(np.exp(terms - highest).sum(0)) + unary[t]
    return float(alpha.max() + np.log(np.exp(alpha - alpha.max()).sum()))
