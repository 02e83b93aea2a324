from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.sparse
from tests.reference.label_tree import diagonal_precisions, node_mode

from extremegp.label_tree.nodes import PRECISION_STEPS, fit_nodes

N, D = 60, 12


class Nodes(NamedTuple):
    weights: np.ndarray
    biases: np.ndarray
    precisions: np.ndarray
    bias_variances: np.ndarray


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, rows below two parents (some below none), rows below five nodes, and the nodes' parents."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((N, D)) < 0.5, rng.normal(size=(N, D)), 0).astype(np.float32)
    parents = np.array([0, 0, 1, 1, 1], dtype=np.int32)
    below = rng.random((N, 5)) < 0.3
    above = np.stack([below[:, parents == p].any(axis=1) | (rng.random(N) < 0.3) for p in (0, 1)], axis=1)
    return x, above, below, parents


def fit(
    x: Any, above: Any, below: Any, parents: Any, *, first: int = 0, last: int | None = None, width: int = D,
    threshold: float = 0.0, variance: float = 2.0, n_passes: int = 500, tolerance: float = 1e-7, lanes: int = 1,
    row_weights: Any = None,
) -> Nodes:  # fmt: skip
    rows, above, below = scipy.sparse.csr_matrix(x), scipy.sparse.csc_matrix(above), scipy.sparse.csc_matrix(below)
    last = len(parents) if last is None else last
    n = last - first
    kept, (biases, bias_variances) = np.zeros(n, np.int64), np.zeros((2, n), np.float32)
    codes = np.zeros((n, width), np.uint8)
    features, weights = np.zeros((n, width), np.int32), np.zeros((n, width), np.float32)
    squares = np.asarray(rows.multiply(rows).sum(axis=1), dtype=np.float32).ravel()
    row_weights = np.asarray(np.ones(len(x)) if row_weights is None else row_weights, dtype=np.float32)
    fit_nodes(
        n, rows.indptr, rows.indices, rows.data, squares, row_weights, above.indptr, above.indices, below.indptr,
        below.indices, parents, first, last, variance, n_passes, tolerance, threshold, 3, x.shape[1], kept, features,
        weights, codes, biases, bias_variances, lanes=lanes,
    )  # fmt: skip
    dense, precisions = np.zeros((2, n, x.shape[1]), np.float32)
    for node in range(n):
        assert np.all(np.diff(features[node, : kept[node]]) > 0)
        dense[node, features[node, : kept[node]]] = weights[node, : kept[node]]
        steps = codes[node, : kept[node]].astype(float)
        precisions[node, features[node, : kept[node]]] = np.exp(steps / PRECISION_STEPS) / variance
    return Nodes(dense, biases, precisions, bias_variances)


@pytest.mark.parametrize("variance", [0.1, 2.0, 50.0])
def test_the_weights_are_the_mode_of_the_penalised_likelihood(variance: float):
    x, above, below, parents = data()
    found = fit(x, above, below, parents, variance=variance)
    for node, parent in enumerate(parents):
        rows = above[:, parent]
        weights, bias = node_mode(x[rows].astype(float), np.where(below[rows, node], 1.0, -1.0), variance)
        np.testing.assert_allclose(found.weights[node], weights, atol=2e-3 * max(1, np.abs(weights).max()))
        assert found.biases[node] == pytest.approx(bias, abs=2e-3 * max(1, np.abs(weights).max()))


def test_weighted_rows_count_as_often_in_the_mode():
    x, above, below, parents = data()
    row_weights = 0.2 + 3 * np.random.default_rng(4).random(N)
    found, plain = fit(x, above, below, parents, row_weights=row_weights), fit(x, above, below, parents)
    for node, parent in enumerate(parents):
        rows = above[:, parent]
        signs = np.where(below[rows, node], 1.0, -1.0)
        weights, bias = node_mode(x[rows].astype(float), signs, 2.0, row_weights[rows])
        np.testing.assert_allclose(found.weights[node], weights, atol=2e-3 * max(1, np.abs(weights).max()))
        assert found.biases[node] == pytest.approx(bias, abs=2e-3 * max(1, np.abs(weights).max()))
    assert np.abs(found.weights - plain.weights).max() > 0.05


@pytest.mark.parametrize("variance", [0.5, 2.0, 20.0])
def test_the_posterior_is_the_diagonal_of_the_curvature_at_the_mode(variance: float):
    x, above, below, parents = data()
    row_weights = 0.2 + 3 * np.random.default_rng(4).random(N)
    found = fit(x, above, below, parents, variance=variance, row_weights=row_weights)
    for node, parent in enumerate(parents):
        rows = above[:, parent]
        weights, bias = node_mode(
            x[rows].astype(float), np.where(below[rows, node], 1.0, -1.0), variance, row_weights[rows]
        )
        *expected, of_bias = diagonal_precisions(x[rows].astype(float), weights, bias, variance, row_weights[rows])
        np.testing.assert_allclose(found.precisions[node], expected, rtol=0.02)
        assert 1 / found.bias_variances[node] == pytest.approx(of_bias, rel=5e-3)


def test_weights_of_rows_count_where_a_node_has_all_rows():
    x, above, below, parents = data()
    below[:, 0], row_weights = above[:, 0], np.linspace(0.5, 3, N).astype(np.float32)
    total = row_weights[above[:, 0]].sum()
    found = fit(x, above, below, parents, row_weights=row_weights)
    assert found.biases[0] == pytest.approx(np.log((total + 0.5) / 0.5), rel=1e-5)


def test_weights_beyond_the_threshold_stay():
    every, some = (fit(*data(), threshold=threshold) for threshold in (0.0, 0.4))
    assert 0 < np.count_nonzero(some.weights) < np.count_nonzero(every.weights)
    np.testing.assert_array_equal(some.weights, np.where(np.abs(every.weights) > 0.4, every.weights, 0))
    np.testing.assert_array_equal(some.biases, every.biases)


def test_the_largest_weights_stay():
    every, some = fit(*data()), fit(*data(), width=3)
    smallest = np.sort(np.abs(every.weights), axis=1)[:, -3:][:, :1]
    np.testing.assert_array_equal(some.weights, np.where(np.abs(every.weights) >= smallest, every.weights, 0))


def test_a_node_with_all_rows_or_none_has_a_bias_alone():
    x, above, below, parents = data()
    below[:, 0], below[:, 1] = above[:, 0], False
    n = above[:, 0].sum()
    found = fit(x, above, below, parents)
    assert not found.weights[:2].any()
    of_all = 1 / (1 / 2.0 + n * 0.5 * (n + 0.5) / (n + 1) ** 2)
    np.testing.assert_allclose(found.bias_variances[:2], [of_all, of_all], rtol=1e-5)
    np.testing.assert_allclose(found.biases[:2], [np.log((n + 0.5) / 0.5), np.log(0.5 / (n + 0.5))], rtol=1e-6)
    assert found.weights[2:].any(axis=1).all()


def test_rows_without_features_move_the_bias():
    x, above, below, parents = data()
    found = fit(np.zeros_like(x), above, below, parents)
    assert not found.weights.any()
    rows = above[:, parents[4]]
    _, bias = node_mode(np.zeros((rows.sum(), 1)), np.where(below[rows, 4], 1.0, -1.0), 2.0)
    assert found.biases[4] == pytest.approx(bias, abs=1e-3)


@pytest.mark.parametrize("lanes", [2, 3])
def test_lanes_and_blocks_make_no_difference(lanes: int):
    expected = fit(*data(), n_passes=3)
    blocks = [fit(*data(), n_passes=3, first=a, last=b, lanes=lanes) for a, b in ((0, 2), (2, 5))]
    for name in Nodes._fields:
        np.testing.assert_array_equal(np.concatenate([getattr(b, name) for b in blocks]), getattr(expected, name))
