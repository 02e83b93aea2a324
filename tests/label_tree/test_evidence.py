from __future__ import annotations

import numpy as np
import pytest
from tests.reference.label_tree import evidence as reference

from extremegp.label_tree import evidence as module
from extremegp.label_tree.evidence import BEST_OF_EACH, N_EVIDENCE, N_FINDERS, N_OF_REGRESSION, SHARES, gather_evidence

B, K, N, M, W = 6, 150, 80, 70, 100
N_CANDIDATES = N_FINDERS * BEST_OF_EACH


@pytest.mark.parametrize(
    ("lanes", "weighted", "n_regressed"), [(1, False, 0), (4, False, 40), (1, True, 0), (1, True, 5)]
)
def test_candidates_and_evidence_are_those_of_the_definition(lanes: int, weighted: bool, n_regressed: int):
    rng = np.random.default_rng(0)
    row_weights = (0.1 + 3 * np.random.default_rng(1).random(N) if weighted else np.ones(N)).astype(np.float32)
    trees = np.stack([[rng.permutation(K)[:W] for _ in range(B)] for _ in range(2)]).astype(np.int32)
    scores = -5 * rng.random((2, B, W)).astype(np.float32)
    tree_sizes = rng.integers(0, W + 1, size=(2, B))
    labels_of = [sorted(rng.choice(K, rng.integers(0, 6), replace=False).tolist()) for _ in range(N)]
    nearest = np.stack([rng.permutation(N)[:M] for _ in range(B)]).astype(np.int32)
    similarities = -np.sort(-rng.normal(0.3, 0.5, size=(B, M)).astype(np.float32), axis=1)
    sizes = rng.integers(1, M + 1, size=B)
    tree_sizes[:, 1], sizes[2], tree_sizes[:, 3], sizes[3] = W, 0, 0, 0
    counts = rng.integers(0, 9, size=K)
    candidates, n_candidates = np.zeros((B, N_CANDIDATES), np.int32), np.zeros(B, np.int64)
    width = N_EVIDENCE + (N_OF_REGRESSION if n_regressed else 0)
    values = np.zeros((B, N_CANDIDATES, width), np.float32)
    weights, variances = rng.normal(0.02, 0.1, size=(B, n_regressed)), rng.random(B).astype(np.float32)
    # Rows of which some are among the nearest.
    regressed = np.stack([rng.permutation(N)[: n_regressed + 3] for _ in range(B)]).astype(np.int32)
    n_rows = rng.integers(0, n_regressed + 4, size=B)
    weights, frequencies = weights.astype(np.float32), rng.random(K).astype(np.float32)
    gather_evidence(
        B, trees, scores, tree_sizes, nearest, similarities, sizes, row_weights, np.cumsum([0, *map(len, labels_of)]),
        np.concatenate(labels_of).astype(np.int32), np.log1p(counts).astype(np.float32), regressed, n_rows, weights,
        variances, frequencies, candidates, values, n_candidates, lanes=lanes,
    )  # fmt: skip
    for i in range(B):
        found = [
            {int(trees[t, i, q]): float(np.exp(scores[t, i, q])) for q in range(tree_sizes[t, i])} for t in range(2)
        ]
        near = [(float(similarities[i, q]), int(nearest[i, q])) for q in range(sizes[i])]
        expected = reference(
            found, near, labels_of, counts, shares=SHARES, best_of_each=BEST_OF_EACH, least=module._LEAST,
            row_weights=row_weights,
        )  # fmt: skip
        if n_regressed:
            taken = regressed[i, : min(n_rows[i], n_regressed)].tolist()
            for label, numbers in expected.items():
                residuals = [(label in labels_of[row]) - frequencies[label] for row in taken]
                t = frequencies[label] + weights[i, : len(taken)] @ residuals
                numbers += [np.log(max(t, 0) + module.LEAST_REGRESSED), variances[i]]
        assert candidates[i, : n_candidates[i]].tolist() == list(expected)
        np.testing.assert_allclose(
            values[i, : n_candidates[i]], np.reshape(list(expected.values()), (-1, width)), rtol=2e-4, atol=1e-4
        )
    assert n_candidates[3] == 0
    assert n_candidates[1] > BEST_OF_EACH
