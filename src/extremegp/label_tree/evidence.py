"""What speaks for a label: the evidence of trees and of neighbours, for the labels that either finds."""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np

from extremegp.engine.compiled import in_lanes, keep_best

SHARES = ((50, 4), (200, 2), (10, 2))
"""Neighbours that a share of a label is taken over, and the power of their similarities that they are weighed by."""

N_NEIGHBOURS = max(m for m, _ in SHARES)
N_EVIDENCE, N_OF_REGRESSION = len(SHARES) + 3, 2
"""Numbers that speak for a label, the first by the trees, and how many more there are with a regression."""
BEST_OF_EACH, N_FINDERS = 60, 3
"""Labels that each of those that find any makes candidates, at least, and how many of these there are."""
LEAST_OF_TREES = 1e-5
"""What is added to a probability by the trees before its logarithm is taken."""
_LEAST = np.array([LEAST_OF_TREES, 1e-3, 1e-3, 1e-2], dtype=np.float32)
LEAST_REGRESSED = np.float32(1e-2)
"""What is added to what a regression says before its logarithm is taken."""
_NEAR = np.array([m for m, _ in SHARES])
_POWERS = np.array([power for _, power in SHARES], dtype=np.float32)


@in_lanes
@no_type_check
def gather_evidence(
    lane: int, n_lanes: int,
    tree_labels: Any, tree_scores: Any, tree_sizes: Any, nearest: Any, similarities: Any, sizes: Any, row_weights: Any,
    y_indptr: Any, y_labels: Any, log_counts: Any, regressed: Any, n_regressed: Any, regression_weights: Any,
    variances: Any, frequencies: Any, candidates: Any, evidence: Any, n_candidates: Any,
) -> None:  # fmt: skip
    """Candidate labels of every row, ascending, with six numbers for each, or eight.

    They are the logarithms of the probability by the trees, averaged over them, and of the label's shares among the
    nearest rows (kernel regression with the powers of the inner product as kernel: Nadaraya 1964, Watson 1964), each
    plus a small constant; of one more than the label's rows that the trees have seen; and the similarity of the nearest
    row. With a regression of the labels on some rows (`LocalRegression`) they are also the logarithm of what it
    says, t_k = mu_k + sum_i w_i (y_ik - mu_k), none below 0 and plus a small constant, and its variance. The labels are
    the best by the trees and by the first two shares, a third of the room for candidates each.

    Args:
        lane: which part of the work.
        n_lanes: of how many.
        tree_labels: labels that each tree finds, T x B x W.
        tree_scores: their log-probabilities.
        tree_sizes: how many there are, T x B.
        nearest: training rows, B x m, best first.
        similarities: their inner products.
        sizes: how many there are.
        row_weights: what the training rows count (N), beside their similarities.
        y_indptr: with `y_labels` the labels of the training rows, N x K.
        y_labels: see `y_indptr`.
        log_counts: log of one more than the rows that trees have seen with each label (K).
        regressed: rows that a regression is on, B x at least m'.
        n_regressed: how many there are.
        regression_weights: w of that regression, B x m'; without one m' is 0.
        variances: of the regression, B.
        frequencies: mu, K.
        candidates: results from here on: labels, B x C.
        evidence: B x C x `N_EVIDENCE`, or with a regression `N_OF_REGRESSION` more.
        n_candidates: how many there are.
    """
    n_trees, n_shares, n_labels = len(tree_labels), len(_NEAR), len(log_counts)
    n_columns = regression_weights.shape[1]
    # Of a label, its probability by the trees, its shares, and its rows by their weights in the regression.
    parts = np.zeros((n_shares + 2, n_labels), np.float32)
    seen, chosen = np.zeros(n_labels, np.bool_), np.zeros(n_labels, np.bool_)
    touched = np.empty(n_labels, np.int32)
    n_best = candidates.shape[1] // N_FINDERS
    best, best_scores = np.empty(n_best, np.int32), np.empty(n_best, np.float32)
    for i in range(lane, len(nearest), n_lanes):
        n_touched = 0
        for tree in range(n_trees):
            for q in range(tree_sizes[tree, i]):
                label = tree_labels[tree, i, q]
                if not seen[label]:
                    seen[label] = True
                    touched[n_touched] = label
                    n_touched += 1
                parts[0, label] += np.exp(tree_scores[tree, i, q]) / n_trees
        for share in range(n_shares):
            n_near = min(_NEAR[share], sizes[i])
            total = np.float32(1e-9)
            for q in range(n_near):
                total += max(similarities[i, q], np.float32(0)) ** _POWERS[share] * row_weights[nearest[i, q]]
            for q in range(n_near):
                weight = max(similarities[i, q], np.float32(0)) ** _POWERS[share] * row_weights[nearest[i, q]]
                weight /= total
                for j in range(y_indptr[nearest[i, q]], y_indptr[nearest[i, q] + 1]):
                    label = y_labels[j]
                    if not seen[label]:
                        seen[label] = True
                        touched[n_touched] = label
                        n_touched += 1
                    parts[share + 1, label] += weight
        rest = np.float32(1)
        for q in range(min(n_columns, n_regressed[i])):
            weight, row = regression_weights[i, q], regressed[i, q]
            rest -= weight
            for j in range(y_indptr[row], y_indptr[row + 1]):
                label = y_labels[j]
                if not seen[label]:
                    seen[label] = True
                    touched[n_touched] = label
                    n_touched += 1
                parts[n_shares + 1, label] += weight
        n_chosen = 0
        for part in range(N_FINDERS):
            size = keep_best(parts[part], touched, n_touched, best, best_scores)
            for q in range(size):
                if best_scores[q] > 0 and not chosen[best[q]]:
                    chosen[best[q]] = True
                    candidates[i, n_chosen] = best[q]
                    n_chosen += 1
        candidates[i, :n_chosen] = np.sort(candidates[i, :n_chosen])
        for q in range(n_chosen):
            label = candidates[i, q]
            for part in range(n_shares + 1):
                evidence[i, q, part] = np.log(parts[part, label] + _LEAST[part])
            evidence[i, q, n_shares + 1] = log_counts[label]
            evidence[i, q, n_shares + 2] = similarities[i, 0] if sizes[i] else 0
            if n_columns:
                said = parts[n_shares + 1, label] + rest * frequencies[label]
                evidence[i, q, n_shares + 3] = np.log(max(said, np.float32(0)) + LEAST_REGRESSED)
                evidence[i, q, n_shares + 4] = variances[i]
            chosen[label] = False
        n_candidates[i] = n_chosen
        for t in range(n_touched):
            seen[touched[t]] = False
            for part in range(n_shares + 2):
                parts[part, touched[t]] = 0
