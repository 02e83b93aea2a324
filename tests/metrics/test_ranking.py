"""P@k, nDCG@k, R@k and macro R@k against literal definitions, scikit-learn and sums done by hand."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse import csr_array, csr_matrix
from sklearn.metrics import ndcg_score
from tests.reference import metrics as reference

from extremegp.errors import DataError, SettingsError
from extremegp.metrics import TopK, macro_recall_at_k, ndcg_at_k, precision_at_k, recall_at_k

KS = (1, 2, 3, 5, 8)
METRICS = [precision_at_k, ndcg_at_k, recall_at_k, macro_recall_at_k]

# Two rows with labels, one without; row 0 ranks 2, 0, 1 and row 1 ranks 1, 2, 0.
TRUTH = np.array([[1, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]])
SCORES = np.array([[0.5, 0.1, 0.9, 0.0], [0.1, 0.9, 0.8, 0.2], [1.0, 2.0, 3.0, 4.0]])


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=7))
    truth = draw(hnp.arrays(np.int8, shape, elements=st.integers(0, 1)))
    scores = draw(hnp.arrays(np.float32, shape, elements=st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0, 3.0])))
    return truth, scores


@given(problems())
def test_metrics_equal_their_literal_definitions(problem: tuple[np.ndarray, np.ndarray]) -> None:
    truth, scores = problem
    for metric, definition in [
        (precision_at_k, reference.precision),
        (ndcg_at_k, reference.ndcg),
        (recall_at_k, reference.recall),
        (macro_recall_at_k, reference.macro_recall),
    ]:
        expected = [definition(truth, scores, k) for k in KS]
        np.testing.assert_allclose(metric(csr_array(truth), scores, KS), expected, atol=1e-12)


@given(problems(), st.data())
def test_restricted_metrics_equal_their_literal_definitions(
    problem: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    truth, scores = problem
    among = data.draw(hnp.arrays(np.bool_, truth.shape[1]))
    labels = np.flatnonzero(among).tolist()
    np.testing.assert_allclose(
        precision_at_k(truth, scores, KS, among=among), [reference.precision(truth, scores, k, labels) for k in KS]
    )
    np.testing.assert_allclose(
        macro_recall_at_k(truth, scores, KS, among=among),
        [reference.macro_recall(truth, scores, k, labels) for k in KS],
    )


def test_hand_computed_example() -> None:
    np.testing.assert_allclose(precision_at_k(TRUTH, SCORES, (1, 2, 3)), [1 / 3, 1 / 3, (2 / 3 + 1 / 3) / 3])
    np.testing.assert_allclose(ndcg_at_k(TRUTH, SCORES, (1, 3)), [1 / 3, (1 + 1 / log2(4)) / 3])
    np.testing.assert_allclose(recall_at_k(TRUTH, SCORES, (1, 2, 3)), [0.25, 0.5, 1.0])
    np.testing.assert_allclose(macro_recall_at_k(TRUTH, SCORES, (1, 2, 3)), [1 / 3, 2 / 3, 1.0])


def test_ndcg_agrees_with_scikit_learn_without_ties() -> None:
    rng = np.random.default_rng(0)
    truth = (rng.random((40, 12)) < 0.2).astype(int)
    scores = rng.permuted(np.tile(np.arange(12.0), (40, 1)), axis=1)
    expected = [ndcg_score(truth, scores, k=k) for k in (1, 3, 5)]
    np.testing.assert_allclose(ndcg_at_k(truth, scores, (1, 3, 5)), expected)


@pytest.mark.parametrize("metric", METRICS)
def test_every_form_of_input_gives_the_same(metric) -> None:
    expected = metric(TRUTH, SCORES, (1, 3))
    stored = csr_matrix((SCORES.ravel(), np.tile(np.arange(4), 3), [0, 4, 8, 12]), shape=SCORES.shape)
    for truth in (csr_matrix(TRUTH), csr_array(TRUTH.astype(bool)), TRUTH.astype(np.float32)):
        for predictions in (SCORES, stored, TopK.from_scores(SCORES, 3), TopK.from_scores(SCORES, 7)):
            np.testing.assert_array_equal(metric(truth, predictions, (1, 3)), expected)


def test_ks_may_come_in_any_order() -> None:
    np.testing.assert_allclose(recall_at_k(TRUTH, SCORES, (3, 1)), [1.0, 0.25])


def test_precision_divides_by_k_beyond_the_number_of_labels() -> None:
    assert precision_at_k([[1, 1]], [[0.2, 0.1]], (5,)).tolist() == [2 / 5]
    assert ndcg_at_k([[1, 1]], [[0.2, 0.1]], (5,)).tolist() == [1.0]


@pytest.mark.parametrize("metric", METRICS)
def test_no_labels_at_all_scores_zero(metric) -> None:
    assert metric(csr_matrix((3, 4)), SCORES, (1, 3)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("metric", METRICS)
def test_no_predictions_at_all_score_zero(metric) -> None:
    assert metric(TRUTH, csr_matrix((3, 4)), (1, 3)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("metric", METRICS)
def test_perfect_ranking_scores_one_at_large_k(metric) -> None:
    truth = np.eye(5, dtype=int)
    assert metric(truth, truth.astype(float), (1,)).tolist() == [1.0]


def test_truth_is_left_as_it_was() -> None:
    truth = csr_matrix((np.array([1, 0, 1]), np.array([2, 1, 0]), np.array([0, 3])), shape=(1, 3))
    assert recall_at_k(truth, [[3.0, 2.0, 1.0]], (1,)).tolist() == [0.5]
    assert truth.data.tolist() == [1, 0, 1]
    assert truth.indices.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        (TRUTH * 2, "found 2"),
        (np.where(TRUTH, np.nan, 0.0), "found nan"),
        (csr_matrix(([1, 1], [0, 0], [0, 2, 2, 2]), shape=(3, 4)), "stored once; found 2"),
        (TRUTH[:2], "predictions are 3 rows x 4 labels; true labels are 2 x 4"),
        (TRUTH[:, :3], "predictions are 3 rows x 4 labels; true labels are 3 x 3"),
        (TRUTH[0], "indicator"),
        (np.zeros((0, 4)), "with rows"),
        (TRUTH.astype(str), "indicator"),
    ],
)
def test_unusable_truth_is_refused(truth, message: str) -> None:
    with pytest.raises(DataError, match=message):
        precision_at_k(truth, SCORES, (1,))


def test_topk_that_does_not_fit_the_truth_is_refused() -> None:
    with pytest.raises(DataError, match="label 3 is predicted, but there are 3 labels"):
        precision_at_k(TRUTH[:, :3], TopK.from_scores(SCORES, 3), (1,))
    with pytest.raises(DataError, match="2 rows"):
        precision_at_k(TRUTH, TopK.from_scores(SCORES[:2], 3), (1,))
    with pytest.raises(SettingsError, match="k = 5 needs the 5 best labels; this TopK holds 3"):
        precision_at_k(TRUTH, TopK.from_scores(SCORES, 3), (1, 5))


@pytest.mark.parametrize("ks", [(), (0,), (1, -2), (1.0,)])
def test_ks_that_are_not_positive_integers_are_refused(ks: tuple) -> None:
    with pytest.raises(SettingsError):
        ndcg_at_k(TRUTH, SCORES, ks)


@pytest.mark.parametrize("among", [np.array([0, 1]), np.array([True, False])])
def test_among_needs_one_flag_per_label(among: np.ndarray) -> None:
    with pytest.raises(DataError, match="one True or False per label"):
        macro_recall_at_k(TRUTH, SCORES, (1,), among=among)
