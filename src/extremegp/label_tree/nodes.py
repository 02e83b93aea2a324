"""The functions of a tree's nodes: Gaussian processes with a linear kernel, at the mode of their posterior.

Whether some label below a node applies, given that one below its parent does, is a Bernoulli variable with the logistic
probability of g(x) = w'x + b, with w ~ N(0, tau^2 I) and b ~ N(0, tau^2): a Gaussian process with covariance
tau^2 (x'z + 1). The mode is found by coordinate ascent in the dual (Yu, Huang and Lin 2011): alpha_i in (0, v_i tau^2)
for every row below the parent, v_i its weight, w = sum_i alpha_i s_i x_i with s_i = 1 or -1. So all rows that the
conditional probability speaks of are in its likelihood: none is sampled. At the mode alpha_i / (v_i tau^2) is the
probability of what row i is not, which the curvature v_i p_i (1 - p_i) follows from, and with it the diagonal of
Laplace's approximation: precisions 1/tau^2 + sum_i v_i p_i (1 - p_i) x_ij^2.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np

from extremegp.engine.compiled import compiled, in_lanes

# A step of Newton's method in one dimension more or less does not matter: the next pass comes by again.
_NEWTON_STEPS = 2
# Curvatures below this share of the prior's precision are left out.
_LEAST_CURVATURE = 1e-5
PRECISION_STEPS = 32.0
"""Precisions are kept in a byte each, as so many steps to a factor e beyond the prior's: to within 1.6 %."""


@compiled
@no_type_check
def _mode(
    rows: Any, side: Any, node: int, indptr: Any, indices: Any, data: Any, squares: Any, row_weights: Any,
    variance: float, n_passes: int, tolerance: float, w: Any, features: Any, seen: Any, alpha: Any, order: Any,
    state: Any,
) -> int:  # fmt: skip
    """Leave the weights in w, its last entry the bias, and the features it may have in `features`: how many."""
    n, n_seen, bias = len(rows), 0, len(w) - 1
    for t in range(n):
        i = rows[t]
        sign = np.float32(1 if side[i] == node else -1)
        for j in range(indptr[i], indptr[i + 1]):
            feature = indices[j]
            if not seen[feature]:
                seen[feature] = True
                features[n_seen] = feature
                n_seen += 1
        # Most rows of a node are easy negatives, which end near zero.
        alpha[t] = variance * row_weights[i] * (0.1 if sign > 0 else 1e-3)
        step = np.float32(alpha[t]) * sign
        for j in range(indptr[i], indptr[i + 1]):
            w[indices[j]] += step * data[j]
        w[bias] += step
        order[t] = t
    for _ in range(n_passes):
        for t in range(n - 1, 0, -1):
            state[0] = state[0] * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            other = np.int64((state[0] >> np.uint64(33)) % np.uint64(t + 1))
            order[t], order[other] = order[other], order[t]
        largest = 0.0
        for t in order[:n]:
            i = rows[t]
            sign = np.float32(1 if side[i] == node else -1)
            margin = w[bias]
            for j in range(indptr[i], indptr[i + 1]):
                margin += w[indices[j]] * data[j]
            margin *= sign
            curvature, old, new, most = squares[i] + 1.0, alpha[t], alpha[t], variance * row_weights[i]
            for _ in range(_NEWTON_STEPS):
                slope = curvature * (new - old) + margin + np.log(new / (most - new))
                moved = new - slope / (curvature + most / (new * (most - new)))
                if moved <= 0:
                    moved = 0.1 * new
                elif moved >= most:
                    moved = most - 0.1 * (most - new)
                moved = min(max(moved, 1e-9 * most), (1 - 1e-9) * most)
                done = abs(moved - new) < 1e-3 * min(moved, most - moved)
                new = moved
                if done:
                    break
            change = new - old
            largest = max(largest, abs(change) / most)
            if abs(change) > 1e-6 * most:
                alpha[t] = new
                step = np.float32(change) * sign
                for j in range(indptr[i], indptr[i + 1]):
                    w[indices[j]] += step * data[j]
                w[bias] += step
        if largest < tolerance:
            break
    return n_seen


@compiled
@no_type_check
def _add_curvature(
    rows: Any, indptr: Any, indices: Any, data: Any, row_weights: Any, variance: float, alpha: Any, curvature: Any
) -> None:  # fmt: skip
    """Add the second derivatives of the log-likelihood by the weights, its sign changed; the last is the bias's."""
    bias = len(curvature) - 1
    for t in range(len(rows)):
        i = rows[t]
        share = alpha[t] / (variance * row_weights[i])
        of_row = np.float32(row_weights[i] * share * (1 - share))
        if of_row * variance > _LEAST_CURVATURE:
            for j in range(indptr[i], indptr[i + 1]):
                curvature[indices[j]] += of_row * data[j] * data[j]
            curvature[bias] += of_row


@in_lanes
@no_type_check
def fit_nodes(
    lane: int, n_lanes: int, indptr: Any, indices: Any, data: Any, squares: Any, row_weights: Any, parent_indptr: Any,
    parent_rows: Any, node_indptr: Any, node_rows: Any, parents: Any, first: int, last: int, variance: float,
    n_passes: int, tolerance: float, threshold: float, seed: int, n_features: int, kept: Any, kept_features: Any,
    kept_weights: Any, kept_precisions: Any, biases: Any, bias_variances: Any,
) -> None:  # fmt: skip
    """The modes of the nodes from `first` to before `last`, of each the largest weights only.

    Args:
        lane: which part of the work.
        n_lanes: of how many.
        indptr: with `indices` and `data` the inputs, CSR, N x D.
        indices: see `indptr`.
        data: see `indptr`.
        squares: squared norms of the rows (N).
        row_weights: what the rows count (N), positive.
        parent_indptr: with `parent_rows` the rows below each parent.
        parent_rows: see `parent_indptr`.
        node_indptr: with `node_rows` those below each node.
        node_rows: see `node_indptr`.
        parents: of the nodes.
        first: node.
        last: node.
        variance: tau^2.
        n_passes: of coordinate ascent, at most.
        tolerance: stop when no alpha moves by more than this share of its range in a pass.
        threshold: smaller weights are left out.
        seed: decides the order of the rows.
        n_features: D.
        kept: how many weights each node has, results from here on.
        kept_features: their features, ascending; as wide as the most that a node may keep.
        kept_weights: their values.
        kept_precisions: of their posterior, beyond that of the prior, see `PRECISION_STEPS`.
        biases: of the nodes.
        bias_variances: of their posterior.
    """
    room = kept_features.shape[1]
    w, curvature = np.zeros(n_features + 1, np.float32), np.zeros(n_features + 1, np.float32)
    features, seen = np.empty(n_features, np.int32), np.zeros(n_features, np.bool_)
    large = np.empty(n_features, np.int32)
    side = np.full(len(indptr) - 1, -1, np.int64)
    alpha, order = np.empty(len(indptr) - 1, np.float64), np.empty(len(indptr) - 1, np.int64)
    sizes, state = np.empty(n_features, np.float32), np.empty(1, np.uint64)
    for node in range(first + lane, last, n_lanes):
        out = node - first
        rows = parent_rows[parent_indptr[parents[node]] : parent_indptr[parents[node] + 1]]
        n_below = node_indptr[node + 1] - node_indptr[node]
        kept[out] = 0
        if n_below == 0 or n_below == len(rows):
            # Without a row on one side there is nothing to learn from but that.
            total = 0.0
            for i in rows:
                total += row_weights[i]
            inside = total if n_below else 0.0
            odds = (inside + 0.5) / (total - inside + 0.5)
            biases[out] = np.log(odds)
            bias_variances[out] = 1 / (1 / variance + total * odds / (1 + odds) ** 2)
            continue
        for j in range(node_indptr[node], node_indptr[node + 1]):
            side[node_rows[j]] = node
        state[0] = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(node)
        n_seen = _mode(
            rows, side, node, indptr, indices, data, squares, row_weights, variance, n_passes, tolerance, w,
            features, seen, alpha, order, state,
        )  # fmt: skip
        _add_curvature(rows, indptr, indices, data, row_weights, variance, alpha, curvature)
        n_large = 0
        for t in range(n_seen):
            if abs(w[features[t]]) > threshold:
                large[n_large], sizes[n_large] = features[t], -abs(w[features[t]])
                n_large += 1
        cut = np.float32(threshold)
        if n_large > room:
            cut = -np.partition(sizes[:n_large], room)[room]
        n_kept = 0
        for feature in np.sort(large[:n_large]):
            if abs(w[feature]) > cut and n_kept < room:
                kept_features[out, n_kept], kept_weights[out, n_kept] = feature, w[feature]
                steps = PRECISION_STEPS * np.log1p(variance * curvature[feature])
                kept_precisions[out, n_kept] = np.uint8(min(np.round(steps), 255))
                n_kept += 1
        bias_variances[out] = 1 / (1 / variance + curvature[n_features])
        for t in range(n_seen):
            w[features[t]], curvature[features[t]], seen[features[t]] = 0, 0, False
        kept[out], biases[out], w[n_features], curvature[n_features] = n_kept, w[n_features], 0, 0
