"""Decisions about many labels: scikit-learn is the oracle, of whole blocks and of what is kept of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse import csr_array
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    jaccard_score,
    precision_recall_curve,
    precision_recall_fscore_support,
    precision_score,
    recall_score,
)
from tests.reference import metrics as reference

from extremegp.errors import DataError, SettingsError
from extremegp.metrics import LabelMetrics, PerLabel, TopK, evaluate_labels
from extremegp.metrics import labels as labels_module

EXACT = {"rtol": 1e-12, "atol": 1e-12}


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Truth and float32 probabilities, with ties, zeros, labels without rows and rows without labels."""
    shape = draw(st.tuples(st.integers(1, 8), st.integers(1, 5)))
    values = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0, 1, width=32))
    return draw(arrays(np.int64, shape, elements=st.integers(0, 1))), draw(arrays(np.float32, shape, elements=values))


def of_scikit_learn(y: np.ndarray, p: np.ndarray, threshold: float) -> dict[str, float]:
    """All averages, of dense arrays; macro over the labels that some row has."""
    predicted, present = (p >= threshold).astype(int), y.any(axis=0)
    scores = {"precision": precision_score, "recall": recall_score, "f1": f1_score, "jaccard": jaccard_score}
    found = {}
    for average, name in (("micro", "micro"), ("macro", "macro"), ("samples", "example")):
        of = slice(None) if name != "macro" else present
        for measure, score in scores.items():
            empty = name == "macro" and not present.any()
            found[f"{name}_{measure}"] = (
                0 if empty else binary(score, y[:, of], predicted[:, of], average=average, zero_division=0)
            )
    areas = [average_precision_score(y[:, k], p[:, k]) for k in np.flatnonzero(present)]
    return found | {
        "subset_accuracy": accuracy_score(*((y, predicted) if y.shape[1] > 1 else (y.ravel(), predicted.ravel()))),
        "hamming_loss": np.mean(y != predicted),
        "micro_average_precision": average_precision_score(y.ravel(), p.ravel()) if present.any() else 0,
        "macro_average_precision": np.mean(areas) if areas else 0,
    }


def binary(score, y: np.ndarray, predicted: np.ndarray, **options) -> float:
    """One column is no many-label problem to scikit-learn: a second one without labels makes it one."""
    if y.shape[1] > 1:
        return score(y, predicted, **options)
    if options["average"] == "macro":
        return score(y.ravel(), predicted.ravel(), zero_division=0)
    pad = np.zeros((len(y), 1), int)
    return score(np.hstack([y, pad]), np.hstack([predicted, pad]), **options)


def best_f1(y: np.ndarray, p: np.ndarray) -> tuple[float, float]:
    """The highest F1 of any threshold above 0, and the highest such threshold; NaN and 0 where nothing is found."""
    if not y.any():
        return np.nan, 0.0
    precision, recall, thresholds = precision_recall_curve(y, p)
    f1 = 2 * precision[:-1] * recall[:-1] / np.maximum(precision[:-1] + recall[:-1], 1e-300)
    f1 = np.where(thresholds > 0, f1, 0.0)
    if not f1.any():
        return np.nan, 0.0
    # Equal ratios may differ in the last bit there.
    best = np.flatnonzero(np.isclose(f1, f1.max(), rtol=1e-12))[-1]
    return float(thresholds[best]), float(f1[best])


def check(found: dict[str, float], y: np.ndarray, p: np.ndarray, threshold: float) -> None:
    expected = of_scikit_learn(y, p, threshold)
    pairs, each = best_f1(y.ravel(), p.ravel()), [best_f1(y[:, k], p[:, k]) for k in np.flatnonzero(y.any(axis=0))]
    expected |= {"best_threshold": pairs[0], "best_micro_f1": pairs[1]}
    expected["best_macro_f1"] = np.mean([f1 for _, f1 in each]) if each else 0
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[name] for name in expected], list(expected.values()), **EXACT)


def check_each(found: PerLabel, y: np.ndarray, p: np.ndarray, threshold: float) -> None:
    predicted = p >= threshold
    for k in range(y.shape[1]):
        parts = precision_recall_fscore_support(y[:, k], predicted[:, k], average="binary", zero_division=0)[:3]
        np.testing.assert_allclose((found.precision[k], found.recall[k], found.f1[k]), parts, **EXACT)
        assert (found.support[k], found.predicted[k]) == (y[:, k].sum(), predicted[:, k].sum())
        assert found.true_positives[k] == (y[:, k] & predicted[:, k]).sum()
        np.testing.assert_allclose((found.best_threshold[k], found.best_f1[k]), best_f1(y[:, k], p[:, k]), **EXACT)
        area = average_precision_score(y[:, k], p[:, k]) if y[:, k].any() else 0
        np.testing.assert_allclose(found.average_precision[k], area, **EXACT)
        at_best = p[:, k] >= found.best_threshold[k]
        parts = precision_recall_fscore_support(y[:, k], at_best, average="binary", zero_division=0)[:2]
        np.testing.assert_allclose((found.best_precision[k], found.best_recall[k]), parts, **EXACT)


@given(problems(), st.sampled_from([0.5, 0.25, 1.0, 0.1]))
def test_averages_and_labels_agree_with_scikit_learn(problem: tuple[np.ndarray, np.ndarray], threshold: float) -> None:
    y, p = problem
    check(evaluate_labels(csr_array(y), p, threshold=threshold), y, p, threshold)
    metrics = LabelMetrics(y.shape[1], threshold=threshold, n_bins=4)
    for rows in filter(len, np.array_split(np.arange(len(y)), 3)):
        metrics.update(p[rows], y[rows])
    check(metrics.compute(), y, p, threshold)
    each = metrics.per_label()
    check_each(each, y, p, threshold)
    assert metrics.exact_above == 0
    assert np.all(each.count == len(y))
    for k in range(y.shape[1]):
        expected = reference.calibration_error(y[:, k], p[:, k].astype(float), 4)
        np.testing.assert_allclose(each.calibration_error[k], expected, **EXACT)
    np.testing.assert_allclose(each.mean_probability, p.astype(float).mean(axis=0), **EXACT)
    np.testing.assert_allclose(each.frequency, y.mean(axis=0), **EXACT)


@given(problems(), st.integers(1, 6))
def test_best_labels_count_as_the_whole_with_zeros_elsewhere(problem: tuple[np.ndarray, np.ndarray], k: int) -> None:
    y, p = problem
    best = TopK.from_scores(p, k)
    kept = np.zeros_like(p)
    row, rank = np.nonzero(best.labels >= 0)
    kept[row, best.labels[row, rank]] = p[row, best.labels[row, rank]]
    check(evaluate_labels(y, best), y, kept, 0.5)
    metrics, listed = LabelMetrics(y.shape[1], n_bins=4), np.zeros(y.shape, bool)
    listed[row, best.labels[row, rank]] = True
    of_best = np.where(best.labels >= 0, best.scores, 0)
    for rows in filter(len, np.array_split(np.arange(len(y)), 2)):
        metrics.update_top(TopK(best.labels[rows], best.scores[rows]), of_best[rows], csr_array(y[rows]))
    each = metrics.per_label()
    check_each(each, y, kept, 0.5)
    # Above the least probability listed in a row nothing of the row is missing.
    full = (best.labels >= 0).all(axis=1) & (k < y.shape[1])
    assert metrics.exact_above == best.scores[full, -1].max(initial=0)
    assert metrics.exact_above >= p[~listed].max(initial=0)
    np.testing.assert_array_equal(each.count, listed.sum(axis=0))
    for label in range(y.shape[1]):
        known = listed[:, label]
        if known.any():
            own, q = y[known, label], p[known, label].astype(float)
            expected = q.mean(), own.mean(), reference.calibration_error(own, q, 4)
            found = each.mean_probability[label], each.frequency[label], each.calibration_error[label]
            np.testing.assert_allclose(found, expected, **EXACT)


@pytest.mark.parametrize("most", [1, 7, 60, 10_000])
@pytest.mark.parametrize("top", [False, True])
def test_pairs_beyond_the_most_are_dropped_from_below(most: int, *, top: bool) -> None:
    rng = np.random.default_rng(3)
    y, p = (rng.random((40, 6)) < 0.3).astype(int), rng.random((40, 6), dtype=np.float32)
    p[:10] = 0.75
    metrics = LabelMetrics(6, most_pairs=most)
    best = TopK.from_scores(p, 6)
    for rows in np.array_split(np.arange(len(y)), 8):
        if top:
            metrics.update_top(TopK(best.labels[rows], best.scores[rows]), best.scores[rows], y[rows])
        else:
            metrics.update(p[rows], y[rows])
    kept = np.where(p > metrics.exact_above, p, 0)
    assert np.count_nonzero(kept) <= most
    assert (metrics.exact_above > 0) == (most < p.size)
    found = metrics.compute()
    # What is counted at the threshold stays exact, curves are those of what is kept.
    expected = of_scikit_learn(y, p, 0.5) | {
        name: value for name, value in of_scikit_learn(y, kept, 0.5).items() if name.endswith("average_precision")
    }
    expected |= dict(zip(("best_threshold", "best_micro_f1"), best_f1(y.ravel(), kept.ravel()), strict=True))
    np.testing.assert_allclose([found[name] for name in expected], list(expected.values()), **EXACT)
    each = metrics.per_label()
    np.testing.assert_allclose(each.best_threshold, [best_f1(y[:, k], kept[:, k])[0] for k in range(6)], **EXACT)
    np.testing.assert_allclose(each.mean_probability, p.astype(float).mean(axis=0), **EXACT)
    curve = metrics.precision_recall()
    precision, recall, thresholds = precision_recall_curve(y.ravel(), kept.ravel())
    for threshold, *point in zip(curve.threshold, curve.precision, curve.recall, strict=True):
        i = np.searchsorted(thresholds, threshold)
        assert point == pytest.approx([precision[i], recall[i]], rel=1e-12)
    assert curve.average_precision == found["micro_average_precision"]


def test_hand_computed_example() -> None:
    y, p = np.array([[1, 0], [0, 1], [0, 0]]), np.array([[0.5, 0.25], [0.75, 0.25], [0.125, 0.25]])
    metrics = LabelMetrics(2)
    metrics.update(p, y)
    found, each = metrics.compute(), metrics.per_label()
    assert (found["micro_precision"], found["micro_recall"], found["micro_jaccard"]) == (1 / 2, 1 / 2, 1 / 3)
    # The last row has no labels and is given none: right as a whole, but without an F1.
    assert (found["example_f1"], found["subset_accuracy"], found["hamming_loss"]) == (1 / 3, 2 / 3, 2 / 6)
    assert each.best_threshold.tolist() == [0.5, 0.25]
    assert each.best_f1.tolist() == pytest.approx([2 / 3, 1 / 2])
    assert each.average_precision.tolist() == pytest.approx([1 / 2, 1 / 3])
    calibration = each.mean_probability[1], each.frequency[1], each.calibration_error[1]
    assert calibration == pytest.approx((0.25, 1 / 3, 1 / 3 - 0.25))
    assert (found["best_threshold"], found["best_micro_f1"]) == (0.25, 4 / 7)


def test_labels_that_nothing_finds_have_no_best_threshold() -> None:
    metrics = LabelMetrics(3)
    best = TopK(np.array([[0], [0]]), np.array([[0.5], [0.25]], np.float32))
    metrics.update_top(best, best.scores, np.array([[0, 1, 0], [0, 1, 0]]))
    found, each = metrics.compute(), metrics.per_label()
    assert np.isnan(found["best_threshold"])
    assert np.isnan(each.best_threshold).all()
    # That nobody listed it puts it last, at the precision of giving it to every row.
    assert each.average_precision.tolist() == [0, 1, 0]
    assert (each.count.tolist(), each.best_f1.tolist()) == ([2, 0, 0], [0, 0, 0])
    assert found["best_macro_f1"] == found["best_micro_f1"] == 0


def test_labels_ranked_by_something_else_guarantee_nothing() -> None:
    metrics = LabelMetrics(3)
    best = TopK(np.array([[2, 0]]), np.array([[1.5, -0.5]], np.float32))
    metrics.update_top(best, np.array([[0.75, 0.375]]), np.array([[1, 0, 1]]))
    assert metrics.exact_above == 1
    assert metrics.compute()["micro_recall"] == 0.5


def test_all_metrics_of_a_label_set_without_any_true_label_are_zero() -> None:
    found = evaluate_labels(np.zeros((3, 2)), np.full((3, 2), 0.75))
    assert np.isnan(found.pop("best_threshold"))
    assert found.pop("hamming_loss") == 1
    assert set(found.values()) == {0.0}


def test_chunks_of_a_block_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    y, p = rng.integers(0, 2, (30, 4)), rng.random((30, 4), dtype=np.float32)
    whole = evaluate_labels(y, p)
    monkeypatch.setattr(labels_module, "_CHUNK", 9)
    assert evaluate_labels(y, p) == pytest.approx(whole, rel=1e-12)


def test_what_cannot_be_measured_is_refused_and_leaves_no_trace() -> None:
    metrics = LabelMetrics(2)
    best = TopK.from_scores(np.array([[0.5, 0.25, 0.0]]), 2)
    for p, y, problem in (
        ([[0.5, np.nan]], [[0, 1]], "check for NaN"),
        ([[0.5, 1.5]], [[0, 1]], "not logits"),
        ([[0.5, 0.5]], [[0, 2]], "found 2"),
        ([[0.5]], [[0]], "1 labels, those before had 2"),
    ):
        with pytest.raises(DataError, match=problem):
            metrics.update(np.array(p), y)
    with pytest.raises(DataError, match="both must be B x k"):
        metrics.update_top(best, np.array([[0.5]]), [[1, 0]])
    with pytest.raises(DataError, match="3 labels, those before had 2"):
        metrics.update_top(best, best.scores, [[1, 0, 0]])
    with pytest.raises(DataError, match="no rows"):
        metrics.compute()
    for settings in ({"threshold": 0.0}, {"threshold": 1.5}, {"threshold": np.nan}):
        with pytest.raises(SettingsError, match="above 0 and at most 1"):
            LabelMetrics(2, **settings)
    for settings in ({"n_bins": 0}, {"most_pairs": 0}):
        with pytest.raises(SettingsError, match=next(iter(settings))):
            LabelMetrics(2, **settings)
