"""From the root of a tree to the most probable labels of a row."""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np

from extremegp.engine.compiled import compiled, in_lanes, keep_best


@compiled
@no_type_check
def log_sigmoid(value: float) -> float:
    """log sigma(value)."""
    return float(-np.log1p(np.exp(-value)) if value > 0 else value - np.log1p(np.exp(value)))


@in_lanes
@no_type_check
def search_level(
    lane: int, n_lanes: int, indptr: Any, indices: Any, data: Any, beam: Any, beam_scores: Any, beam_sizes: Any,
    children: Any, blocks: Any, features: Any, entries: Any, targets: Any, weights: Any, biases: Any, best: Any,
    best_scores: Any, best_sizes: Any,
) -> None:  # fmt: skip
    """Of the children of every row's beam, those with the largest log-probability.

    Args:
        lane: which part of the work.
        n_lanes: of how many.
        indptr: with `indices` (ascending in a row) and `data` the inputs, CSR, B x D.
        indices: see `indptr`.
        data: see `indptr`.
        beam: nodes of the level above for each row, B x W.
        beam_scores: their log-probabilities.
        beam_sizes: how many there are.
        children: where the children of each of n nodes above begin, n + 1.
        blocks: where the features of the weights of those children begin, n + 1.
        features: these features, ascending in a block.
        entries: where the weights of each of them begin.
        targets: the children that these weights are of.
        weights: the weights.
        biases: of the children.
        best: results from here on: children, B x W', best first.
        best_scores: their log-probabilities.
        best_sizes: how many there are.
    """
    widest = 0
    for node in range(len(children) - 1):
        widest = max(widest, children[node + 1] - children[node])
    scores = np.empty(widest * beam.shape[1], np.float32)
    nodes, places = np.empty(len(scores), np.int32), np.arange(len(scores)).astype(np.int32)
    for i in range(lane, len(indptr) - 1, n_lanes):
        total = 0
        for q in range(beam_sizes[i]):
            node = beam[i, q]
            first, n_children = children[node], children[node + 1] - children[node]
            for child in range(n_children):
                scores[total + child], nodes[total + child] = biases[first + child], first + child
            low, end = blocks[node], blocks[node + 1]
            for j in range(indptr[i], indptr[i + 1]):
                high = end
                while low < high:
                    middle = (low + high) >> 1
                    if features[middle] < indices[j]:
                        low = middle + 1
                    else:
                        high = middle
                if low == end:
                    break
                if features[low] == indices[j]:
                    for r in range(entries[low], entries[low + 1]):
                        scores[total + targets[r] - first] += data[j] * weights[r]
            for child in range(n_children):
                scores[total + child] = beam_scores[i, q] + log_sigmoid(scores[total + child])
            total += n_children
        size = keep_best(scores, places, total, best[i], best_scores[i])
        order = np.argsort(-best_scores[i, :size], kind="mergesort")
        best_scores[i, :size] = best_scores[i, :size][order]
        best[i, :size] = nodes[best[i, :size][order]]
        best_sizes[i] = size
