"""Greedy log-determinants against determinants themselves, and posterior covariances against their formula."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from extremegp.engine.blocks import Block
from extremegp.engine.kept_rows import KeptRows
from extremegp.prediction.pool_covariance import KnownRegression, posterior_covariance
from extremegp.prediction.selection import (
    at_random,
    entropies_of_labels,
    greedy_log_determinant,
    highest,
    informative,
)


def covariance(n: int, rank: int, seed: int) -> NDArray[np.float32]:
    roots = np.random.default_rng(seed).normal(size=(n, rank))
    return np.asarray(roots @ roots.T / rank, np.float32)


def by_determinants(c: NDArray[np.float32], weights: NDArray[np.float64], noise: float, n: int) -> list[int]:
    """Every set of one row more, by the determinant of its matrix."""

    def bits(rows: list[int]) -> float:
        return float(np.linalg.slogdet(np.eye(len(rows)) + c[np.ix_(rows, rows)].astype(float) / noise)[1] / 2)

    chosen: list[int] = []
    for _ in range(n):
        gains = [-np.inf if i in chosen else weights[i] * (bits([*chosen, i]) - bits(chosen)) for i in range(len(c))]
        chosen.append(int(np.argmax(gains)))
    return chosen


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 9), st.floats(0.05, 3))
def test_every_row_adds_most_to_the_log_determinant(seed: int, rank: int, noise: float) -> None:
    c, weights = covariance(14, rank, seed), np.random.default_rng(seed).uniform(0.5, 2, 14)
    found = greedy_log_determinant(c, weights, noise, 8)
    assert found.rows.tolist() == by_determinants(c, weights, noise, 8)
    before = found.rows[:7]
    most = np.linalg.slogdet(np.eye(8) + c[np.ix_(found.rows, found.rows)].astype(float) / noise)[1]
    least = np.linalg.slogdet(np.eye(7) + c[np.ix_(before, before)].astype(float) / noise)[1]
    np.testing.assert_allclose(found.scores[-1], weights[found.rows[-1]] * (most - least) / 2, rtol=1e-3, atol=1e-5)


def test_a_duplicate_of_a_chosen_row_is_not_chosen_next() -> None:
    c = covariance(10, 6, 3)
    both = np.block([[c, c], [c, c]])
    rows = greedy_log_determinant(both, np.ones(20), 0.1, 5).rows
    assert len({int(row) % 10 for row in rows}) == 5
    # Of two equal rows the first.
    assert rows.max() < 10


def test_all_rows_can_be_chosen_and_none_twice() -> None:
    found = greedy_log_determinant(np.zeros((6, 6), np.float32), np.ones(6), 0.1, 6)
    assert sorted(found.rows.tolist()) == list(range(6))
    assert not found.scores.any()


def test_what_a_row_takes_away_from_the_pool_is_the_mean_reduction_of_variances() -> None:
    c = covariance(9, 5, 1)
    for i, share in enumerate(informative(c, 0.4)):
        column = c[:, i].astype(float)
        left = c.astype(float) - np.outer(column, column) / (column[i] + 0.4)
        assert share == pytest.approx((np.diag(c) - np.diag(left)).mean(), rel=1e-4)


@pytest.mark.parametrize("sparse", [True, False])
def test_the_covariance_of_a_pool_is_that_of_the_regression(sparse: bool) -> None:
    rng = np.random.default_rng(0)
    x, pool = (rng.random((n, 6)) * (rng.random((n, 6)) < 0.6) for n in (20, 8))
    x, pool, weights = x.astype(np.float32), pool.astype(np.float32), rng.uniform(0.5, 2, 6).astype(np.float32)
    counts = rng.uniform(0.5, 3, 20)
    kernel = KeptRows(0, 0 if sparse else None, 6)
    kernel.weights.copy_(kernel.weights.new_tensor(weights.tolist()))
    form = scipy.sparse.csr_matrix if sparse else np.asarray
    found = posterior_covariance(KnownRegression(kernel, 0.3, form(x), counts), form(pool))

    def k(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.exp(-0.5 * (weights * (a[:, None] - b[None]) ** 2).sum(-1, dtype=np.float64))

    expected = k(pool, pool) - k(pool, x) @ np.linalg.inv(k(x, x) + np.diag(0.3 / counts)) @ k(x, pool)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_rows_beside_the_training_rows_count_as_known() -> None:
    rng = np.random.default_rng(0)
    x, pool = (scipy.sparse.csr_matrix(rng.random((n, 4)), dtype=np.float32) for n in (30, 9))
    known = KnownRegression(KeptRows(0, 0, 4, blocks=[Block(4, dense=False)]), 0.2, x, np.ones(30))
    beside = known.beside(pool, np.array([2, 5]), 12)
    assert beside.x.shape == (12, 4)
    assert len(beside.counts) == 12
    left = np.diagonal(posterior_covariance(beside, pool))
    assert left[[2, 5]].max() < 0.2
    assert known.beside(pool, np.array([], np.int64), 50).x is x


def test_scores_are_ranked_with_ties_to_the_first_and_random_rows_repeat() -> None:
    found = highest(np.array([1.0, 3.0, 3.0, 2.0]), 3)
    assert found.rows.tolist() == [1, 2, 3]
    assert found.scores.tolist() == [3, 3, 2]
    assert at_random(50, 7, 4).rows.tolist() == at_random(50, 7, 4).rows.tolist()
    assert len(set(at_random(50, 50, 0).rows.tolist())) == 50


def test_entropies_are_sums_over_labels() -> None:
    found = entropies_of_labels(np.array([[0.5, 1.0, 0.0], [0.25, 0.0, 0.0]]))
    np.testing.assert_allclose(found, [np.log(2), -0.25 * np.log(0.25) - 0.75 * np.log(0.75)])
