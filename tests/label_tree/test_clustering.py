from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from extremegp.label_tree.clustering import balanced_leaves, embed_labels, principal_directions


def unit_vectors(n: int, r: int = 3, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(n, r))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(("n", "depth"), [(1, 0), (2, 1), (5, 2), (8, 3), (37, 4), (64, 5)])
def test_leaves_share_out_the_labels_evenly(n: int, depth: int):
    order, bounds = balanced_leaves(unit_vectors(n), depth, rng=np.random.default_rng(0))
    assert sorted(order) == list(range(n))
    assert (bounds[0], bounds[-1], len(bounds)) == (0, n, 2**depth + 1)
    assert np.ptp(np.diff(bounds)) <= 1
    assert np.diff(bounds).min() >= 1


def test_labels_that_are_all_alike_are_split_too():
    _, bounds = balanced_leaves(np.zeros((9, 4), np.float32), 2, rng=np.random.default_rng(0))
    assert sorted(np.diff(bounds)) == [2, 2, 2, 3]


def test_near_labels_share_a_leaf():
    angles = np.repeat([0.2, 1.4], 6) + np.linspace(-0.2, 0.2, 12)
    shuffled = np.random.default_rng(1).permutation(12)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)[shuffled]
    order, bounds = balanced_leaves(vectors, 1, rng=np.random.default_rng(0))
    assert len({int(label) // 6 for label in shuffled[order[: bounds[1]]]}) == 1


def projected(x: scipy.sparse.csr_matrix, n_dimensions: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    directions = principal_directions(x, x.T.tocsr(), 7, n_dimensions=n_dimensions, rng=rng)
    np.testing.assert_allclose(directions.T @ directions, np.eye(n_dimensions), atol=1e-5)
    return np.asarray(x @ directions, dtype=np.float32)


def test_labels_are_unit_vectors_and_those_without_rows_zero():
    rng = np.random.default_rng(0)
    x = scipy.sparse.random(50, 20, 0.3, format="csr", dtype=np.float32, random_state=0)
    y = scipy.sparse.csr_matrix((rng.random((50, 7)) < 0.3) * [1, 1, 1, 0, 1, 1, 0], dtype=np.float32)
    found = embed_labels(projected(x, 6), y)
    assert found.shape == (7, 6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [1, 1, 1, 0, 1, 1, 0], rtol=1e-5)


def test_with_all_directions_angles_are_those_of_the_sums_of_inputs():
    x = scipy.sparse.random(50, 6, 0.5, format="csr", dtype=np.float32, random_state=0)
    y = scipy.sparse.csr_matrix(np.random.default_rng(0).random((50, 4)) < 0.3, dtype=np.float32)
    found = embed_labels(projected(x, 6), y)
    sums = (y.T @ x).toarray()
    expected = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-4)


def test_most_of_the_spread_is_along_the_principal_directions():
    rng = np.random.default_rng(0)
    x = scipy.sparse.csr_matrix((rng.normal(size=(80, 12)) * 2.0 ** -np.arange(12)).astype(np.float32))
    along = float(np.square(projected(x, 4)).sum())
    assert along > 0.98 * np.square(np.linalg.svd(x.toarray())[1][:4]).sum()
