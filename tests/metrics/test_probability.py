"""Log-loss, Brier, calibration error and reliability against literal definitions and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse import csr_array
from sklearn.metrics import brier_score_loss
from sklearn.metrics import log_loss as sklearn_log_loss
from tests.reference import metrics as reference

from extremegp.errors import DataError, SettingsError
from extremegp.metrics import (
    ProbabilityMetrics,
    TopK,
    TopProbabilityMetrics,
    brier_score,
    expected_calibration_error,
    log_loss,
)
from extremegp.metrics import probability as probability_module


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=8))
    truth = draw(hnp.arrays(np.int8, shape, elements=st.integers(0, 1)))
    values = st.one_of(st.sampled_from([0.0, 1e-30, 0.25, 0.5, 1.0]), st.floats(0, 1, width=32))
    return truth, draw(hnp.arrays(draw(st.sampled_from([np.float32, np.float64])), shape, elements=values))


# Bin edges of a power of two are exact, so that both sides put a probability on an edge in the same bin.
@given(problems(), st.sampled_from([1, 4, 16]), st.integers(1, 10))
def test_metrics_equal_their_literal_definitions(problem: tuple[np.ndarray, np.ndarray], n_bins: int, top: int) -> None:
    truth, p = problem
    best, two, twelve = (
        [(i, label) for i, row in enumerate(p) for label in reference.top_labels(row.astype(np.float32), k)]
        for k in (top, 2, 12)
    )
    metrics = ProbabilityMetrics(n_bins, top, ks=(2, 12))
    metrics.update(p, csr_array(truth))
    expected = {
        "log_loss": reference.log_loss(truth, p),
        "brier": reference.brier(truth, p),
        "ece": reference.calibration_error(truth.ravel(), p.ravel(), n_bins),
        **{
            name: reference.calibration_error([truth[c] for c in chosen], [p[c] for c in chosen], n_bins)
            for name, chosen in (("ece_top", best), ("ECE@2", two), ("ECE@12", twelve))
        },
    }
    found = metrics.compute()
    assert found.keys() == expected.keys()
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-9, atol=1e-12)


@given(problems(), st.sampled_from([1, 4, 16]), st.integers(1, 10))
def test_metrics_of_the_best_labels_equal_their_literal_definitions(
    problem: tuple[np.ndarray, np.ndarray], n_bins: int, top: int
) -> None:
    truth, p = problem
    best = TopK.from_scores(p, top + 2)
    of_best = np.where(best.labels == -1, 0, np.take_along_axis(p, best.labels, axis=1))
    metrics, middle = TopProbabilityMetrics(top, n_bins), len(p) // 2
    for rows in filter(len, (range(middle), range(middle, len(p)))):
        metrics.update(TopK(best.labels[rows], best.scores[rows]), of_best[rows], truth[rows])
    pairs = [(i, label) for i, row in enumerate(p) for label in reference.top_labels(row.astype(np.float32), top)]
    y, q = np.array([truth[pair] for pair in pairs]), np.array([p[pair] for pair in pairs], dtype=np.float64)
    found = metrics.compute()
    assert found.keys() == {f"log_loss_top{top}", f"ece_top{top}"}
    happened = np.clip(np.where(y == 1, q, 1 - q), 1e-15, 1 - 1e-15)
    np.testing.assert_allclose(found[f"log_loss_top{top}"], -np.mean(np.log(happened)), rtol=1e-9, atol=1e-12)
    expected = reference.calibration_error(y, q, n_bins)
    np.testing.assert_allclose(found[f"ece_top{top}"], expected, rtol=1e-9, atol=1e-12)


def test_the_most_probable_labels_are_found_among_those_ranked_by_something_else() -> None:
    truth, p = random_problem(4)
    whole, listed = ProbabilityMetrics(ks=(1, 3)), TopProbabilityMetrics(ks=(1, 3))
    whole.update(p, truth)
    by_other = TopK.from_scores(-p, p.shape[1])
    listed.update(by_other, np.take_along_axis(p, by_other.labels, axis=1), truth)
    found, expected = listed.compute(), whole.compute()
    for name in ("ECE@1", "ECE@3"):
        assert found[name] == pytest.approx(expected[name], rel=1e-12)
    np.testing.assert_array_equal(listed.reliability().count.sum(), p.size)
    # A pad is no label, however short the list.
    short = TopProbabilityMetrics(ks=(2,))
    short.update(TopK(np.array([[4, -1]]), np.array([[0.25, -np.inf]])), np.array([[0.25, 0.0]]), np.eye(5)[4:])
    assert short.compute()["ECE@2"] == 0.75
    with pytest.raises(SettingsError, match="needs the 3 best labels"):
        listed.update(TopK.from_scores(p, 2), np.sort(p)[:, :-3:-1], truth)


def test_best_labels_that_cannot_be_judged_are_refused() -> None:
    best, truth = TopK.from_scores(np.array([[0.5, 0.1]]), 2), np.array([[1, 0]])
    metrics = TopProbabilityMetrics()
    with pytest.raises(DataError, match="no labels have been added"):
        metrics.compute()
    for p, problem in (([[0.5]], "both must be B x k"), ([[0.5, 1.5]], r"\[0, 1\]"), ([[np.nan, 0.1]], r"\[0, 1\]")):
        with pytest.raises(DataError, match=problem):
            metrics.update(best, np.array(p), truth)
    with pytest.raises(DataError, match="rows x"):
        metrics.update(best, np.array([[0.5, 0.1]]), np.zeros((2, 2)))
    for settings in ({"top": 0}, {"n_bins": 0}):
        with pytest.raises(SettingsError, match=next(iter(settings))):
            TopProbabilityMetrics(**settings)


def random_problem(seed: int, n_rows: int = 60, n_labels: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return (rng.random((n_rows, n_labels)) < 0.15).astype(int), rng.random((n_rows, n_labels))


@pytest.mark.parametrize("n_bins", [10, 15])
def test_calibration_error_of_random_probabilities(n_bins: int) -> None:
    truth, p = random_problem(2)
    expected = reference.calibration_error(truth.ravel(), p.ravel(), n_bins)
    assert expected_calibration_error(truth, p, n_bins) == pytest.approx(expected, rel=1e-9)


def test_losses_agree_with_scikit_learn() -> None:
    truth, p = random_problem(0)
    n_labels = truth.shape[1]
    assert log_loss(truth, p) == pytest.approx(n_labels * sklearn_log_loss(truth.ravel(), p.ravel()))
    assert brier_score(truth, p) == pytest.approx(n_labels * brier_score_loss(truth.ravel(), p.ravel()))


def test_hand_computed_example() -> None:
    truth, p = [[1, 0], [0, 0]], np.array([[0.5, 0.25], [0.75, 0.125]])
    assert log_loss(truth, p) == pytest.approx(-np.log(0.5 * 0.75 * 0.25 * 0.875) / 2)
    assert brier_score(truth, p) == pytest.approx((0.25 + 0.0625 + 0.5625 + 0.015625) / 2)
    # Bins below and from one half hold 0.25, 0.125 (none true) and 0.5, 0.75 (one true).
    assert expected_calibration_error(truth, p, 2) == pytest.approx((0.375 + 0.25) / 4)
    assert expected_calibration_error(truth, p, 2, top=1) == pytest.approx(0.25 / 2)


def test_certain_and_wrong_is_clipped_and_certain_and_right_is_free() -> None:
    one = np.ones((1, 1), dtype=np.float32)
    assert log_loss([[0]], one) == pytest.approx(-np.log(1e-15), rel=1e-2)
    assert log_loss([[1]], 0 * one) == pytest.approx(-np.log(1e-15))
    assert log_loss([[1]], one) == pytest.approx(0, abs=1e-14)


def test_tiny_probabilities_keep_their_digits() -> None:
    p = np.full((1, 1000), 1e-12)
    assert log_loss(np.zeros((1, 1000)), p) == pytest.approx(1e-9, rel=1e-9, abs=0)
    assert log_loss([[1]], np.array([[1e-12]])) == pytest.approx(12 * np.log(10), rel=1e-12)


def test_probabilities_equal_to_frequencies_have_no_calibration_error() -> None:
    truth = np.zeros((8, 2), dtype=int)
    truth[:2, 0] = 1
    truth[:6, 1] = 1
    p = np.tile([0.25, 0.75], (8, 1))
    assert expected_calibration_error(truth, p) == pytest.approx(0, abs=1e-15)


def test_blocks_and_merged_accumulators_equal_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, p = random_problem(1)
    whole, parts, other = (ProbabilityMetrics(7, 3, ks=(1, 5)) for _ in range(3))
    whole.update(p, truth)
    monkeypatch.setattr(probability_module, "_CHUNK", 30)
    parts.update(p[:11], truth[:11])
    other.update(p[11:40], csr_array(truth[11:40]))
    other.update(p[40:], truth[40:])
    parts.merge(other)
    parts.merge(ProbabilityMetrics(7, 3, ks=(1, 5)))
    assert parts.compute() == pytest.approx(whole.compute(), rel=1e-12)
    for top in (False, True):
        found, expected = parts.reliability(top=top), whole.reliability(top=top)
        np.testing.assert_array_equal(found.count, expected.count)
        np.testing.assert_allclose(found.confidence, expected.confidence)
        np.testing.assert_allclose(found.frequency, expected.frequency)


def test_reliability_by_hand() -> None:
    metrics = ProbabilityMetrics(4, 1)
    metrics.update(np.array([[0.125, 0.25, 1.0], [0.0, 0.375, 0.875]]), [[0, 1, 1], [0, 0, 0]])
    diagram = metrics.reliability()
    assert diagram.count.tolist() == [2, 2, 0, 2]
    np.testing.assert_array_equal(diagram.confidence, [0.0625, 0.3125, np.nan, 0.9375])
    np.testing.assert_array_equal(diagram.frequency, [0.0, 0.5, np.nan, 0.5])
    assert metrics.reliability(top=True).count.tolist() == [0, 0, 0, 2]


@pytest.mark.parametrize(
    ("p", "truth", "message"),
    [
        ([[0.5, np.nan]], [[0, 1]], "check for NaN"),
        ([[0.5, 1.5]], [[0, 1]], "not logits"),
        ([[-0.1, 0.5]], [[0, 1]], "not logits"),
        ([[0.5, 0.5]], [[0, 2]], "found 2"),
        ([[0.5, 0.5]], [[0]], "shapes must be the same"),
        ([[0, 1]], [[0, 1]], "float block"),
        ([0.5], [[1]], "float block"),
    ],
)
def test_unusable_blocks_are_refused_and_leave_no_trace(p: list, truth: list, message: str) -> None:
    metrics = ProbabilityMetrics()
    with pytest.raises(DataError, match=message):
        metrics.update(p, truth)
    with pytest.raises(DataError, match="no rows"):
        metrics.compute()
    metrics.update([[0.5] * 5], [[0] * 5])


def test_blocks_of_another_width_and_unlike_accumulators_are_refused() -> None:
    metrics, wider = ProbabilityMetrics(), ProbabilityMetrics()
    metrics.update([[0.5]], [[1]])
    wider.update([[0.5, 0.5]], [[1, 0]])
    with pytest.raises(DataError, match="2 labels, those before had 1"):
        metrics.update([[0.5, 0.5]], [[1, 0]])
    with pytest.raises(DataError, match="1 and 2 labels"):
        metrics.merge(wider)
    with pytest.raises(SettingsError, match="n_bins 15 and 5"):
        metrics.merge(ProbabilityMetrics(5))
    with pytest.raises(SettingsError, match=r"ks \[\] and \[2\]"):
        metrics.merge(ProbabilityMetrics(ks=(2,)))


@pytest.mark.parametrize("settings", [{"n_bins": 0}, {"n_bins": 2.0}, {"top": -1}, {"ks": (1, 0)}])
def test_bad_settings_are_refused(settings: dict) -> None:
    with pytest.raises(SettingsError, match="positive integer"):
        ProbabilityMetrics(**settings)
