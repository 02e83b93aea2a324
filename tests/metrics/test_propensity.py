"""Propensities and propensity-scored metrics against literal definitions and sums done by hand."""

from __future__ import annotations

from math import log, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.reference import metrics as reference

from extremegp.errors import DataError, SettingsError
from extremegp.metrics import (
    PROPENSITY_PRESETS,
    ndcg_at_k,
    precision_at_k,
    propensities,
    psndcg_at_k,
    psp_at_k,
)

KS = (1, 2, 3, 5, 8)


@pytest.mark.parametrize("name", ["default", "wikipedia", "amazon"])
def test_propensities_equal_the_published_formula(name: str) -> None:
    a, b = {"default": (0.55, 1.5), "wikipedia": (0.5, 0.4), "amazon": (0.6, 2.6)}[name]
    counts = [0, 1, 7, 999]
    expected = [reference.propensity(count, 1000, a, b) for count in counts]
    np.testing.assert_allclose(propensities(counts, 1000, *PROPENSITY_PRESETS[name]), expected)


def test_default_parameters_and_a_value_by_hand() -> None:
    c = (log(100) - 1) * 2.5**0.55
    np.testing.assert_allclose(propensities([1], 100), [1 / (1 + c / 2.5**0.55)])
    np.testing.assert_allclose(propensities([1], 100), [1 / log(100)])


@given(st.integers(3, 10**7), st.lists(st.integers(0, 3), min_size=1))
def test_propensities_lie_in_0_1_and_grow_with_the_count(n_rows: int, counts: list[int]) -> None:
    chance = propensities(sorted(counts), n_rows)
    assert np.all((chance > 0) & (chance <= 1))
    assert np.all(np.diff(chance) >= 0)


def test_labels_never_seen_have_a_finite_weight() -> None:
    assert np.isfinite(1 / propensities([0], 10**9)).all()


@pytest.mark.parametrize("counts", [[-1], [11], [0.5], [np.nan], [[1, 2]], ["a"]])
def test_counts_that_are_no_counts_are_refused(counts: list) -> None:
    with pytest.raises(DataError, match="label_counts"):
        propensities(counts, 10)


def test_too_few_rows_and_bad_parameters_are_refused() -> None:
    with pytest.raises(DataError, match="at least 3"):
        propensities([1], 2)
    for a, b in [(0.0, 1.5), (0.55, 0.0), (np.nan, 1.5), (0.55, np.inf)]:
        with pytest.raises(SettingsError, match="positive a and b"):
            propensities([1], 10, a, b)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=7))
    truth = draw(hnp.arrays(np.int8, shape, elements=st.integers(0, 1)))
    scores = draw(hnp.arrays(np.float32, shape, elements=st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0, 3.0])))
    chance = draw(hnp.arrays(np.float64, shape[1], elements=st.floats(0.01, 1.0)))
    return truth, scores, chance


@given(problems())
def test_scored_metrics_equal_their_literal_definitions(problem: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    truth, scores, chance = problem
    for metric, definition in [(psp_at_k, reference.psp), (psndcg_at_k, reference.psndcg)]:
        found = metric(truth, scores, chance, KS)
        np.testing.assert_allclose(found, [definition(truth, scores, chance, k) for k in KS], atol=1e-12)
        assert np.all((found >= 0) & (found <= 1))


@given(problems())
def test_ranking_true_labels_by_weight_is_the_best_attainable(
    problem: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    truth, _, chance = problem
    expected = np.full(len(KS), float(truth.any()))
    best = truth / chance
    np.testing.assert_allclose(psp_at_k(truth, best, chance, KS), expected, rtol=1e-6)
    np.testing.assert_allclose(psndcg_at_k(truth, best, chance, KS), expected, rtol=1e-6)


def test_hand_computed_example_with_a_row_without_labels() -> None:
    # Weights 1, 2, 4. Row 0 has labels 0 and 2 and ranks 0, 1, 2; row 1 has label 1 and ranks 1, 0, 2.
    truth = [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    scores = [[3.0, 2.0, 1.0], [2.0, 3.0, 1.0], [3.0, 2.0, 1.0]]
    chance = [1.0, 0.5, 0.25]
    np.testing.assert_allclose(psp_at_k(truth, scores, chance, (1, 3)), [(1 + 2) / (4 + 2), (5 + 2) / (5 + 2)])
    ideal = 1 + 1 / log2(3)
    reached, best = (1 + 4 / log2(4)) / ideal + 2, (4 + 1 / log2(3)) / ideal + 2
    np.testing.assert_allclose(psndcg_at_k(truth, scores, chance, (1, 3)), [(1 + 2) / (4 + 2), reached / best])


def test_equal_propensities_give_the_plain_metrics_over_their_best() -> None:
    rng = np.random.default_rng(0)
    truth, scores = (rng.random((30, 9)) < 0.4).astype(int), rng.standard_normal((30, 9))
    flat, perfect = np.full(9, 0.3), truth.astype(float)
    for scored, plain in [(psp_at_k, precision_at_k), (psndcg_at_k, ndcg_at_k)]:
        np.testing.assert_allclose(scored(truth, scores, flat), plain(truth, scores) / plain(truth, perfect))


@pytest.mark.parametrize("chance", [[0.5], [0.5, 0.0], [0.5, 1.5], [0.5, np.nan], [1, 1]])
def test_unusable_propensities_are_refused(chance: list) -> None:
    with pytest.raises(DataError, match="propensity must hold"):
        psp_at_k([[1, 0]], [[1.0, 2.0]], chance, (1,))
