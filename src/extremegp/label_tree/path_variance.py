"""How sure a tree is of the probability of a label: the posterior of the weights along its path."""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np

from extremegp.engine.compiled import compiled, in_lanes
from extremegp.label_tree.nodes import PRECISION_STEPS
from extremegp.label_tree.search import log_sigmoid

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(8)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_SHRUNK = np.exp(-np.arange(256) / PRECISION_STEPS).astype(np.float32)


@compiled
@no_type_check
def _variance_of_log_sigmoid(mean: float, variance: float) -> float:
    """Of log sigma(g) for g ~ N(mean, variance), by Gauss-Hermite quadrature."""
    first, second, spread = 0.0, 0.0, np.sqrt(variance)
    for q in range(len(_NODES)):
        value = log_sigmoid(mean + spread * _NODES[q])
        first += _WEIGHTS[q] * value
        second += _WEIGHTS[q] * value * value
    return max(second - first * first, 0.0)


@in_lanes
@no_type_check
def add_level(
    lane: int, n_lanes: int, indptr: Any, indices: Any, data: Any, squares: Any, ends: Any, nodes: Any, parents: Any,
    children: Any, blocks: Any, features: Any, entries: Any, targets: Any, weights: Any, biases: Any, precisions: Any,
    bias_variances: Any, prior_variance: float, scores: Any, variances: Any,
) -> None:  # fmt: skip
    """Add what the nodes of a level are to the logarithms of the probabilities of paths, and to their variances.

    A feature for which a node keeps no weight has there the variance of the prior.

    Args:
        lane: which part of the work.
        n_lanes: of how many.
        indptr: with `indices` (ascending in a row) and `data` the inputs, CSR, B x D.
        indices: see `indptr`.
        data: see `indptr`.
        squares: squared norms of the inputs, B.
        ends: where the paths of each input begin, B + 1.
        nodes: of this level that the paths go through, ascending in an input.
        parents: of these nodes.
        children: this and the next as in `search_level`.
        blocks: see `search_level`.
        features: see `search_level`.
        entries: see `search_level`.
        targets: see `search_level`.
        weights: see `search_level`.
        biases: see `search_level`.
        precisions: of the weights, see `PRECISION_STEPS`.
        bias_variances: of the biases.
        prior_variance: tau^2.
        scores: logarithms of the probabilities at the mode, of every path; added to.
        variances: of the logarithms; added to.
    """
    widest = 0
    for node in range(len(children) - 1):
        widest = max(widest, children[node + 1] - children[node])
    of_children, unsure = np.empty(widest, np.float32), np.empty(widest, np.float32)
    for i in range(lane, len(indptr) - 1, n_lanes):
        parent, first = -1, 0
        for path in range(ends[i], ends[i + 1]):
            if parents[path] != parent:
                parent = parents[path]
                first = children[parent]
                for child in range(children[parent + 1] - first):
                    of_children[child] = biases[first + child]
                    unsure[child] = bias_variances[first + child] + prior_variance * squares[i]
                low, end = blocks[parent], blocks[parent + 1]
                for j in range(indptr[i], indptr[i + 1]):
                    low += np.searchsorted(features[low:end], indices[j])
                    if low == end:
                        break
                    if features[low] == indices[j]:
                        square = prior_variance * data[j] * data[j]
                        for r in range(entries[low], entries[low + 1]):
                            of_children[targets[r] - first] += data[j] * weights[r]
                            unsure[targets[r] - first] -= square * (1 - _SHRUNK[precisions[r]])
            child = nodes[path] - first
            scores[path] += log_sigmoid(of_children[child])
            variances[path] += _variance_of_log_sigmoid(of_children[child], max(unsure[child], np.float32(0)))
