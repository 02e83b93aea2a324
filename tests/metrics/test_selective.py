"""Risk and coverage against the mean over every order of equal confidences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import sequences as reference

from extremegp.errors import DataError
from extremegp.metrics import loss_coverage, risk_coverage


@given(st.lists(st.tuples(st.integers(-4, 9), st.integers(0, 3)), min_size=1, max_size=6))
def test_the_mean_loss_is_that_of_the_orders_that_confidence_allows(predictions: list[tuple[int, int]]) -> None:
    losses, confidence = (list(values) for values in zip(*predictions, strict=True))
    found = loss_coverage(losses, confidence)
    np.testing.assert_allclose(found.risk, reference.mean_losses(losses, confidence), atol=1e-12)
    best = reference.mean_losses(losses, [-loss for loss in losses])
    np.testing.assert_allclose(found.best_risk, best, atol=1e-12)
    assert (found.area, found.best_area) == pytest.approx((np.mean(found.risk), np.mean(best)), abs=1e-12)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=6))
def test_risk_is_the_mean_over_orders_that_confidence_allows(predictions: list[tuple[bool, int]]) -> None:
    correct, confidence = (list(values) for values in zip(*predictions, strict=True))
    found = risk_coverage(correct, confidence)
    np.testing.assert_allclose(found.coverage, np.arange(1, len(correct) + 1) / len(correct))
    np.testing.assert_allclose(found.risk, reference.risk_curve(correct, confidence), atol=1e-12)
    assert found.area == pytest.approx(np.mean(reference.risk_curve(correct, confidence)))
    best = reference.risk_curve(correct, [float(right) for right in correct])
    np.testing.assert_allclose(found.best_risk, best)
    assert found.excess_area == pytest.approx(found.area - np.mean(best), abs=1e-12)


def test_hand_computed_example() -> None:
    found = risk_coverage([True, False, True, False], [0.9, 0.8, 0.7, 0.6])
    np.testing.assert_allclose(found.risk, [0, 1 / 2, 1 / 3, 1 / 2])
    assert found.area == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    # The best order errs last: 0, 0, 1/3, 1/2.
    assert found.excess_area == pytest.approx(1 / 8)


def test_without_ties_risk_is_that_of_sorting() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.normal(size=10_000)
    correct = rng.random(10_000) < 1 / (1 + np.exp(-confidence))
    order = np.argsort(-confidence)
    found = risk_coverage(correct, confidence)
    np.testing.assert_allclose(found.risk, np.cumsum(~correct[order]) / np.arange(1, 10_001))
    assert 0 < found.excess_area < found.area < found.risk[-1]


@pytest.mark.parametrize("right", [True, False])
def test_when_all_are_right_or_all_wrong_no_order_is_better(right: bool) -> None:
    found = risk_coverage([right] * 7, np.linspace(0, 1, 7))
    np.testing.assert_array_equal(found.risk, 0.0 if right else 1.0)
    assert (found.area, found.excess_area) == (0.0 if right else 1.0, 0.0)


def test_infinite_confidences_have_a_rank() -> None:
    found = risk_coverage([False, True, True], [-np.inf, np.inf, np.inf])
    np.testing.assert_allclose(found.risk, [0, 0, 1 / 3])


def test_confidences_of_unsigned_integers_are_ranked_by_value() -> None:
    np.testing.assert_allclose(risk_coverage([False, True], np.array([0, 3], np.uint8)).risk, [0, 0.5])


@pytest.mark.parametrize(
    ("correct", "confidence", "message"),
    [
        ([], [], "boolean"),
        (np.zeros(0, bool), np.zeros(0), "one or more"),
        ([True, False], [0.5], r"shape \(2,\) and float64 of shape \(1,\)"),
        ([1, 0], [0.5, 0.5], "boolean"),
        ([True], ["a"], "loss and a confidence"),
        ([[True]], [[0.5]], "loss and a confidence"),
        ([True, False, True], [0.5, np.nan, np.nan], "prediction 1 is NaN"),
    ],
)
def test_unusable_predictions_are_refused(correct: list, confidence: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        risk_coverage(correct, confidence)


@pytest.mark.parametrize(
    ("losses", "confidence", "message"),
    [
        ([], [], "one or more"),
        ([0.5, np.inf], [1, 2], "the loss of prediction 1 is inf"),
        ([np.nan], [1], "the loss of prediction 0 is nan"),
        (["a"], [1], "a loss and a confidence"),
        ([1.0, 2.0], [1], r"float64 of shape \(2,\) and int64 of shape \(1,\)"),
        ([1.0], [np.nan], "the confidence of prediction 0 is NaN"),
    ],
)
def test_unusable_losses_are_refused(losses: list, confidence: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        loss_coverage(losses, confidence)
