"""TopK: order, ties, pads, round trips, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse import coo_array, csr_array, csr_matrix
from tests.reference import metrics as reference

from extremegp.errors import DataError, SettingsError
from extremegp.metrics import TopK
from extremegp.metrics import topk as topk_module

NAN, INF = np.nan, np.inf

NEXT = float(np.nextafter(np.float32(3.0), np.float32(4.0)))
few_values = st.sampled_from([-INF, -NEXT, -3.0, -0.0, 0.0, 1e-40, 0.5, 3.0, NEXT, INF])
any_float = st.floats(allow_nan=False, width=32)
blocks = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9),
    elements=st.one_of(few_values, any_float),
)


def rows_of(topk: TopK) -> list[list[int]]:
    return [[int(label) for label in row if label >= 0] for row in topk.labels]


@given(blocks, st.integers(1, 12))
def test_dense_block_gives_the_reference_order(block: np.ndarray, k: int) -> None:
    topk = TopK.from_scores(block, k)
    assert rows_of(topk) == [reference.top_labels(row.tolist(), k) for row in block]
    assert topk.labels.shape == topk.scores.shape == (len(block), k)
    for labels, scores, row in zip(topk.labels, topk.scores, block, strict=True):
        np.testing.assert_array_equal(scores, [row[label] if label >= 0 else -INF for label in labels])


@given(blocks, st.integers(1, 12))
def test_sparse_and_dense_scores_agree(block: np.ndarray, k: int) -> None:
    rows, columns = np.indices(block.shape)
    stored = csr_array((block.ravel(), (rows.ravel(), columns.ravel())), shape=block.shape)
    dense, sparse = TopK.from_scores(block, k), TopK.from_csr(stored, k)
    np.testing.assert_array_equal(dense.labels, sparse.labels)
    np.testing.assert_array_equal(dense.scores, sparse.scores)


@given(blocks, st.integers(1, 12))
def test_round_trip_through_csr(block: np.ndarray, k: int) -> None:
    topk = TopK.from_scores(block, k)
    matrix = topk.to_csr(block.shape[1])
    assert matrix.shape == block.shape
    assert matrix.has_canonical_format
    again = TopK.from_csr(matrix, k)
    np.testing.assert_array_equal(again.labels, topk.labels)
    np.testing.assert_array_equal(again.scores, topk.scores)


def test_ties_go_to_the_lower_label_also_across_the_cut() -> None:
    topk = TopK.from_scores([[1.0, 2.0, 1.0, 2.0, 1.0], [0.0, -0.0, 0.0, -0.0, 7.0]], 3)
    assert topk.labels.tolist() == [[1, 3, 0], [4, 0, 1]]


def test_ties_are_judged_after_rounding_to_float32() -> None:
    assert TopK.from_scores(np.array([[1.0, 1.0 + 1e-12]]), 1).labels.tolist() == [[0]]


def test_k_beyond_the_labels_pads() -> None:
    topk = TopK.from_scores([[1.0, 2.0]], 4)
    assert topk.labels.tolist() == [[1, 0, -1, -1]]
    assert topk.scores.tolist() == [[2.0, 1.0, -INF, -INF]]


def test_minus_infinity_is_never_predicted() -> None:
    assert TopK.from_scores([[-INF, 1.0, -INF]], 2).labels.tolist() == [[1, -1]]


def test_blocks_larger_than_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(0).integers(0, 5, size=(23, 11)).astype(np.float64)
    whole = TopK.from_scores(scores, 4)
    monkeypatch.setattr(topk_module, "_CHUNK", 40)
    np.testing.assert_array_equal(TopK.from_scores(scores, 4).labels, whole.labels)


def test_csr_width_defaults_to_the_longest_row_and_keeps_stored_zeros() -> None:
    scores = csr_matrix(([0.0, 3.0, -1.0], [2, 0, 1], [0, 2, 2, 3]), shape=(3, 5))
    topk = TopK.from_csr(scores)
    assert topk.labels.tolist() == [[0, 2], [-1, -1], [1, -1]]
    assert TopK.from_csr(csr_matrix((2, 5))).labels.tolist() == [[-1], [-1]]


def test_empty_blocks() -> None:
    assert TopK.from_scores(np.empty((0, 4)), 2).labels.shape == (0, 2)
    assert TopK.from_scores(np.empty((3, 0)), 2).labels.tolist() == [[-1, -1]] * 3


def test_concatenate_stacks_rows() -> None:
    scores = np.random.default_rng(1).standard_normal((7, 6))
    parts = [TopK.from_scores(scores[:3], 2), TopK.from_scores(scores[3:], 2)]
    np.testing.assert_array_equal(TopK.concatenate(parts).labels, TopK.from_scores(scores, 2).labels)


def test_concatenate_refuses_nothing_and_different_k() -> None:
    with pytest.raises(DataError, match="same k"):
        TopK.concatenate([])
    with pytest.raises(DataError, match=r"k = \[1, 2\]"):
        TopK.concatenate([TopK.from_scores([[1.0, 2.0]], 1), TopK.from_scores([[1.0, 2.0]], 2)])


@pytest.mark.parametrize("k", [0, -1, 1.5, True, None])
def test_k_must_be_a_positive_integer(k: object) -> None:
    with pytest.raises(SettingsError, match="positive integer"):
        TopK.from_scores([[1.0]], k)  # type: ignore[arg-type]


@pytest.mark.parametrize("scores", [[[NAN, 1.0]], [1.0, 2.0], [["a", "b"]]])
def test_unusable_scores_are_refused(scores: list) -> None:
    with pytest.raises(DataError):
        TopK.from_scores(scores, 1)


def test_unusable_sparse_scores_are_refused() -> None:
    with pytest.raises(DataError, match="NaN"):
        TopK.from_csr(csr_array(np.array([[NAN, 1.0]])), 1)
    with pytest.raises(DataError, match="same label twice"):
        TopK.from_csr(csr_array(([2.0, 1.0], [0, 0], [0, 2]), shape=(1, 2)), 2)
    with pytest.raises(DataError, match="sparse matrix"):
        TopK.from_csr(np.ones((2, 2)), 1)
    with pytest.raises(DataError, match="sparse matrix"):
        TopK.from_csr(coo_array(np.ones(3)), 1)


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([[0, 1]], [[1.0]], "one shape"),
        ([[0.0, 1.0]], [[2.0, 1.0]], "integer labels"),
        ([[0, 1]], [[1.0, 2.0]], "best score down"),
        ([[1, 0]], [[1.0, 1.0]], "best score down"),
        ([[3, 1, 3]], [[3.0, 2.0, 1.0]], "same label twice"),
        ([[0, -1]], [[1.0, 0.5]], "pads"),
        ([[0, 1]], [[1.0, -INF]], "pads"),
        ([[0, -2]], [[1.0, 0.5]], "at least 0"),
        ([[0, 1]], [[NAN, 0.5]], "NaN"),
    ],
)
def test_rows_that_break_the_order_are_refused(labels: list, scores: list, message: str) -> None:
    with pytest.raises(DataError, match=message):
        TopK(np.array(labels), np.array(scores))


def test_to_csr_refuses_labels_beyond_the_last() -> None:
    with pytest.raises(DataError, match="label 2 is predicted"):
        TopK.from_scores([[0.0, 1.0, 2.0]], 1).to_csr(2)
