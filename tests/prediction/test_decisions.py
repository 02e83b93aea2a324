"""Sets of labels that are best in expectation, against all sets there are."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from extremegp.prediction.decisions import Candidates, best_cost, best_f1, expected_f1


def candidates(p: np.ndarray, others: float = 0.0) -> Candidates:
    p = np.atleast_2d(p)
    order = np.argsort(-p, axis=1, kind="stable")
    return Candidates(order, np.take_along_axis(p, order, axis=1), np.full(len(p), others))


def f1(chosen: tuple[int, ...], truth: tuple[int, ...]) -> float:
    size = len(chosen) + sum(truth)
    return 2 * sum(truth[k] for k in chosen) / size if size else 1.0


def enumerated(p: np.ndarray, chosen: tuple[int, ...]) -> float:
    truths = product((0, 1), repeat=len(p))
    return sum(np.prod(np.where(truth, p, 1 - p)) * f1(chosen, truth) for truth in truths)


@pytest.mark.parametrize("seed", range(12))
def test_no_set_has_a_higher_expected_f1(seed: int):
    rng = np.random.default_rng(seed)
    p = rng.beta(0.5, 1.5, size=7)
    if seed % 3 == 0:
        p[rng.integers(7, size=2)] = 0.0
    every = {chosen: enumerated(p, chosen) for size in range(8) for chosen in combinations(range(7), size)}
    found = best_f1(candidates(p))
    chosen = tuple(sorted(candidates(p).labels[0, : found.n_labels[0]].tolist()))
    np.testing.assert_allclose(found.expected[0], max(every.values()), atol=1e-9)
    np.testing.assert_allclose(every[chosen], max(every.values()), atol=1e-9)
    taken = rng.random(7) < 0.5
    of_taken = candidates(p)
    value = expected_f1(of_taken, taken[of_taken.labels])
    np.testing.assert_allclose(value[0], every[tuple(np.flatnonzero(taken).tolist())], atol=1e-9)


def test_unlikely_labels_count_by_their_sum():
    p, rng = np.array([0.9, 0.6, 0.4, 0.3, 0.2, 0.1]), np.random.default_rng(0)
    rare = rng.random(400) * 0.004
    whole = candidates(np.concatenate([p, rare]))
    some = candidates(p, float(rare.sum()))
    one, other = best_f1(whole), best_f1(some)
    assert one.n_labels[0] == other.n_labels[0]
    np.testing.assert_allclose(one.expected, other.expected, atol=1e-3)
    chosen = np.arange(6) < 2
    of_whole = np.concatenate([chosen, np.zeros(400, bool)])
    np.testing.assert_allclose(expected_f1(whole, of_whole[None]), expected_f1(some, chosen[None]), atol=1e-3)


def test_the_number_of_true_labels_decides_where_the_cut_is():
    sure, unsure = best_f1(candidates(np.array([0.95, 0.9, 0.1, 0.05]))), best_f1(candidates(np.full(4, 0.35)))
    assert (sure.n_labels[0], unsure.n_labels[0]) == (2, 4)
    assert best_f1(candidates(np.full(3, 0.01))).n_labels[0] == 0
    nothing = Candidates(np.full((2, 3), -1), np.zeros((2, 3)), np.zeros(2))
    np.testing.assert_array_equal(best_f1(nothing).expected, [1, 1])


def test_costs_are_those_of_the_cheapest_set():
    rng = np.random.default_rng(1)
    p = rng.random((5, 6))
    found = best_cost(candidates(p), wrong=1.0, missed=3.0)
    for row in range(5):
        costs = {
            chosen: sum(1 - p[row, k] for k in chosen) + 3 * sum(p[row, k] for k in set(range(6)) - {*chosen})
            for size in range(7)
            for chosen in combinations(range(6), size)
        }
        np.testing.assert_allclose(-found.expected[row], min(costs.values()), atol=1e-12)
        assert found.n_labels[row] == np.count_nonzero(p[row] > 0.25)
