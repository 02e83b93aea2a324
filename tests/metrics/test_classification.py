"""Metrics of one class per row against literal definitions and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    brier_score_loss,
    confusion_matrix,
    f1_score,
    precision_recall_fscore_support,
    top_k_accuracy_score,
)
from sklearn.metrics import log_loss as sklearn_log_loss
from tests.reference import metrics as reference

from extremegp.errors import DataError, SettingsError
from extremegp.metrics import ClassMetrics, evaluate_classes, expected_calibration_error


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Classes, -1 among them, and probabilities that often tie or are 0 or 1."""
    n_rows, n_classes = draw(hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8))
    weights = draw(hnp.arrays(np.int64, (n_rows, n_classes), elements=st.integers(0, 4)))
    weights[weights.sum(axis=1) == 0, draw(st.integers(0, n_classes - 1))] = 1
    truth = draw(hnp.arrays(np.int64, n_rows, elements=st.integers(-1, n_classes - 1)))
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    return truth, probabilities.astype(draw(st.sampled_from([np.float32, np.float64])))


def random_problem(seed: int, n_rows: int = 200, n_classes: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Every class has rows, and some class is never predicted."""
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.full(n_classes, 0.3), size=n_rows)
    probabilities[:, 4] *= 1e-3
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    drawn = (probabilities.cumsum(axis=1) > rng.random((n_rows, 1))).argmax(axis=1)
    return np.concatenate([np.arange(n_classes), drawn[n_classes:]]), probabilities


# Bin edges of a power of two are exact, so that both sides put a probability on an edge in the same bin.
@given(problems(), st.sampled_from([1, 4, 16]), st.lists(st.integers(2, 10), max_size=3, unique=True))
def test_metrics_equal_their_literal_definitions(
    problem: tuple[np.ndarray, np.ndarray], n_bins: int, ks: list[int]
) -> None:
    truth, p = problem
    found = evaluate_classes(truth, p, n_bins=n_bins, ks=ks)
    expected = reference.classification(truth.tolist(), p, n_bins, ks)
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(problems(), st.data())
def test_blocks_and_merged_accumulators_equal_one_pass(
    problem: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    truth, p = problem
    whole, parts, other = (ClassMetrics(p.shape[1], n_bins=4, ks=(2,)) for _ in range(3))
    whole.update(p, truth)
    first, second = sorted(data.draw(st.tuples(*2 * [st.integers(0, len(p))])))
    parts.update(p[:first], truth[:first])
    for row in range(first, second):
        parts.update(p[row : row + 1], truth[row : row + 1])
    other.update(p[second:], truth[second:])
    before = other.confusion().toarray()
    parts.merge(other)
    np.testing.assert_array_equal(other.confusion().toarray(), before)
    assert parts.compute() == pytest.approx(whole.compute(), rel=1e-12, abs=1e-15)
    assert parts.n_unknown == whole.n_unknown == np.count_nonzero(truth == -1)
    np.testing.assert_array_equal(parts.confusion().toarray(), whole.confusion().toarray())
    np.testing.assert_array_equal(parts.reliability().count, whole.reliability().count)


def test_metrics_agree_with_scikit_learn() -> None:
    truth, p = random_problem(0)
    predicted, labels = p.argmax(axis=1), np.arange(p.shape[1])
    found = evaluate_classes(truth, p)
    assert found["accuracy"] == pytest.approx(accuracy_score(truth, predicted))
    assert found["error"] == pytest.approx(1 - accuracy_score(truth, predicted))
    assert found["nlpd"] == pytest.approx(sklearn_log_loss(truth, p, labels=labels))
    assert found["brier"] == pytest.approx(brier_score_loss(truth, p, labels=labels, scale_by_half=False))
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(truth, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(truth, predicted, average="macro"))
    for k in (3, 5):
        assert found[f"top{k}_accuracy"] == pytest.approx(top_k_accuracy_score(truth, p, k=k, labels=labels))


def test_means_are_over_the_classes_with_rows() -> None:
    truth, p = random_problem(1)
    kept = truth % 3 > 0
    truth, p, present = truth[kept], p[kept], np.unique(truth[kept])
    predicted = p.argmax(axis=1)
    found = evaluate_classes(truth, p)
    assert set(predicted) - set(present)
    assert found["macro_f1"] == pytest.approx(f1_score(truth, predicted, average="macro", labels=present))
    assert found["coverage"] == pytest.approx(np.mean([np.any(predicted[truth == c] == c) for c in present]))


def test_classes_are_counted_as_by_scikit_learn() -> None:
    truth, p = random_problem(2)
    metrics = ClassMetrics(p.shape[1])
    for rows in (slice(0, 7), slice(7, 150), slice(150, None)):
        metrics.update(p[rows], truth[rows].astype(np.int8))
    predicted, each = p.argmax(axis=1), metrics.per_class()
    expected = precision_recall_fscore_support(truth, predicted, zero_division=0)
    for found, wanted in zip((each.precision, each.recall, each.f1, each.support), expected, strict=True):
        np.testing.assert_allclose(found, wanted)
    table = confusion_matrix(truth, predicted)
    np.testing.assert_array_equal(metrics.confusion().toarray(), table)
    np.testing.assert_array_equal(each.predicted, table.sum(axis=0))
    np.testing.assert_array_equal(each.true_positives, table.diagonal())
    assert each.predicted[4] == each.precision[4] == each.f1[4] == 0


def test_reliability_is_of_the_predicted_class() -> None:
    truth, p = random_problem(3)
    right, confidence = p.argmax(axis=1) == truth, p.max(axis=1)
    metrics = ClassMetrics(p.shape[1], n_bins=10)
    metrics.update(p, truth)
    diagram = metrics.reliability()
    np.testing.assert_array_equal(diagram.count, np.histogram(confidence, 10, (0, 1))[0])
    expected = expected_calibration_error(right[:, None], confidence[:, None], 10)
    assert metrics.compute()["ece"] == diagram.calibration_error == pytest.approx(expected)


def test_hand_computed_example() -> None:
    p = np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.125, 0.125, 0.75], [0.75, 0.25, 0.0]])
    found = evaluate_classes([0, 2, 2, 1], p, n_bins=2, ks=(1, 2))
    assert found == pytest.approx(
        {
            "accuracy": 0.5,
            "error": 0.5,
            "top2_accuracy": 0.75,
            "nlpd": -np.log(0.5 * 0.25 * 0.75 * 0.25) / 4,
            "brier": (0.375 + 0.875 + 0.09375 + 1.125) / 4,
            "ece": 0.625 - 0.5,
            "coverage": 2 / 3,
            "balanced_accuracy": (1 + 0 + 0.5) / 3,
            "macro_f1": (2 / 3 + 0 + 2 / 3) / 3,
        }
    )


def test_ties_go_to_the_lowest_class_and_k_is_at_most_the_number_of_classes() -> None:
    even = np.full((4, 4), 0.25)
    found = evaluate_classes(range(4), even, ks=(1, 3, 9))
    assert (found["accuracy"], found["top3_accuracy"], found["top9_accuracy"]) == (0.25, 0.75, 1.0)
    # Equal once rounded to float32, the order of every metric here.
    assert evaluate_classes([0], [[0.5 - 1e-12, 0.5 + 1e-12]])["accuracy"] == 1.0


def test_a_class_never_seen_is_an_error_of_probability_zero_and_no_class() -> None:
    metrics = ClassMetrics(3)
    metrics.update([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], [0, -1])
    found, each = metrics.compute(), metrics.per_class()
    assert metrics.n_unknown == 1
    assert (found["accuracy"], found["top5_accuracy"]) == (0.5, 0.5)
    assert found["nlpd"] == pytest.approx(-np.log(1.401298464324817e-45) / 2)
    assert found["brier"] == 1.0
    assert (found["coverage"], found["balanced_accuracy"], found["macro_f1"]) == (1.0, 1.0, 1.0)
    assert (each.support.tolist(), each.predicted.tolist()) == ([1, 0, 0], [1, 0, 1])
    assert metrics.confusion().sum() == 1


def test_without_a_known_class_means_over_classes_are_zero() -> None:
    found = evaluate_classes([-1, -1], [[0.5, 0.5], [0.0, 1.0]])
    assert [found[name] for name in ("accuracy", "coverage", "balanced_accuracy", "macro_f1")] == [0, 0, 0, 0]
    assert found["error"] == 1


def test_probabilities_that_float32_can_hold_are_not_clipped() -> None:
    smallest = np.array([[1.0, 1e-44]], dtype=np.float32)
    assert evaluate_classes([1], smallest)["nlpd"] == pytest.approx(-np.log(float(smallest[0, 1])))
    assert evaluate_classes([1], [[1.0, 0.0]])["nlpd"] == pytest.approx(149 * np.log(2))
    assert evaluate_classes([0], smallest)["nlpd"] == 0


def test_counts_of_many_classes_stay_sparse() -> None:
    n_classes, metrics = 50_000, ClassMetrics(50_000)
    rng = np.random.default_rng(0)
    truth = rng.integers(0, n_classes, 40)
    block = np.zeros((20, n_classes), dtype=np.float32)
    for part in (truth[:20], truth[20:]):
        block[:] = 0
        block[np.arange(20), part] = 1
        metrics.update(block, part)
    assert metrics.compute()["accuracy"] == 1
    assert metrics.confusion().shape == (n_classes, n_classes)
    assert metrics.confusion().nnz == len(np.unique(truth))


@pytest.mark.parametrize(
    ("p", "truth", "message"),
    [
        ([[0.5, 0.5], [0.5, 0.6]], [0, 1], "row 1 of this block sums to 1.1"),
        ([[0.5, 0.498]], [0], "row 0 of this block sums to 0.998"),
        ([[0.5, 0.5], [1.2, -0.2]], [0, 1], "row 1 .* least probability is -0.2"),
        ([[np.nan, 1.0]], [0], "row 0 .* nan"),
        ([[np.inf, -np.inf]], [0], "row 0 "),
        ([[0.5, 0.5], [0.5, 0.5]], [0, 2], "row 1 of this block has class 2; classes are 0 to 1"),
        ([[0.5, 0.5]], [-2], "row 0 of this block has class -2"),
        ([[0.5, 0.5]], [0.0], "integer class for each of 1 rows"),
        ([[0.5, 0.5]], [True], "integer class"),
        ([[0.5, 0.5]], [0, 1], "integer class"),
        ([[0.5, 0.25, 0.25]], [0], "2 classes; got float64 of shape"),
        ([[0, 1]], [0], "dense float block"),
        ([0.5, 0.5], [0], "dense float block"),
    ],
)
def test_unusable_blocks_are_refused_and_leave_no_trace(p: list, truth: list, message: str) -> None:
    metrics = ClassMetrics(2)
    with pytest.raises(DataError, match=message):
        metrics.update(p, truth)
    with pytest.raises(DataError, match="no rows"):
        metrics.compute()
    assert metrics.per_class().predicted.tolist() == [0, 0]


def test_rows_may_miss_one_by_a_thousandth() -> None:
    assert evaluate_classes([0], [[0.5, 0.4995]])["accuracy"] == 1


@pytest.mark.parametrize(
    "settings", [{"n_classes": 0}, {"n_classes": 2.0}, {"n_classes": 2, "n_bins": 0}, {"n_classes": 2, "ks": (1, 0)}]
)
def test_bad_settings_are_refused(settings: dict) -> None:
    with pytest.raises(SettingsError, match="positive integer"):
        ClassMetrics(**settings)


@pytest.mark.parametrize("other", [ClassMetrics(3), ClassMetrics(2, n_bins=4), ClassMetrics(2, ks=(1,))])
def test_unlike_accumulators_are_not_merged(other: ClassMetrics) -> None:
    with pytest.raises(SettingsError, match="cannot merge"):
        ClassMetrics(2).merge(other)


def test_one_row_of_probabilities_is_no_block() -> None:
    with pytest.raises(DataError, match="rows x classes"):
        evaluate_classes([0], [0.5, 0.5])
