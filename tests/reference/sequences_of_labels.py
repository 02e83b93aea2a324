"""Chains under Gaussian functions: log p(y) by enumeration, the evidence by quadrature."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Array = NDArray[np.float64]


def log_prob(unary: Array, transitions: Array, y: Sequence[int]) -> Array:
    """log p(y) at G scores of the labels (G x T x V) and of the pairs (G x V x V, or G x T x V x V), enumerated."""
    _, steps, n_labels = unary.shape
    scores = {}
    for labelling in itertools.product(range(n_labels), repeat=steps):
        score = unary[:, 0, labelling[0]].copy()
        for t in range(1, steps):
            into = transitions if transitions.ndim == 3 else transitions[:, t]
            score += unary[:, t, labelling[t]] + into[:, labelling[t - 1], labelling[t]]
        scores[labelling] = score
    return np.asarray(scores[tuple(y)] - logsumexp(np.array(list(scores.values())), axis=0))


def normal_grid(n_dimensions: int, n_nodes: int) -> tuple[Array, Array]:
    """Gauss-Hermite nodes of independent standard normal variables (G x n) and the logarithms of their weights."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    log_weights = np.log(weights / weights.sum())
    grid = np.stack(np.meshgrid(*[nodes] * n_dimensions, indexing="ij"), -1).reshape(-1, n_dimensions)
    log_mass = np.stack(np.meshgrid(*[log_weights] * n_dimensions, indexing="ij"), -1).reshape(-1, n_dimensions)
    return grid, log_mass.sum(1)


def log_evidence(
    mean: Array,
    covariance: Array,
    labels: Sequence[Sequence[int]],
    *,
    transitions: Array | None,
    transition_variance: float = 1.0,
    n_nodes: int = 9,
) -> float:
    """log p(y) of sequences of two labels: of the functions of their inputs only the difference f_1 - f_0 counts.

    Args:
        mean: of the difference at the inputs of all sequences, one after the other.
        covariance: of it, B x B.
        labels: of every sequence.
        transitions: known scores of pairs, or None where they are N(0, transition_variance).
        transition_variance: that.
        n_nodes: of the quadrature in each dimension.
    """
    n_inputs = len(covariance)
    grid, log_mass = normal_grid(n_inputs + 4 * (transitions is None), n_nodes)
    values, vectors = np.linalg.eigh(covariance)
    difference = grid[:, :n_inputs] @ (vectors * np.sqrt(np.clip(values, 0, None))).T + mean
    unary = np.stack([np.zeros_like(difference), difference], -1)
    if transitions is None:
        pairs = np.sqrt(transition_variance) * grid[:, n_inputs:].reshape(-1, 2, 2)
    else:
        pairs = np.broadcast_to(transitions, (len(grid), 2, 2))
    total, start = log_mass, 0
    for y in labels:
        total = total + log_prob(unary[:, start : start + len(y)], pairs, y)
        start += len(y)
    return float(logsumexp(total))
