from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from extremegp.data.validation import check_inputs, check_weights
from extremegp.engine.matrices import entry_position
from extremegp.errors import DataError

VALUES = np.asarray([[0.0, 1.5, 0.0], [2.0, 0.0, -3.0]])


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csr_array])
def test_every_sparse_format_becomes_sorted_float32_csr(form: str, kind: Any) -> None:
    X = check_inputs(kind(VALUES).asformat(form))
    assert isinstance(X, sparse.csr_matrix)
    assert X.dtype == np.float32
    assert X.has_canonical_format
    np.testing.assert_array_equal(X.toarray(), VALUES)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int64, np.float16, np.float32, np.float64, object])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_numeric_dtype_becomes_contiguous_float32(dtype: Any, order: Any) -> None:
    X = check_inputs(np.asarray([[0, 1], [1, 1]]).astype(dtype, order=order))
    assert isinstance(X, np.ndarray)
    assert X.dtype == np.float32
    assert X.flags.c_contiguous
    np.testing.assert_array_equal(X, [[0, 1], [1, 1]])


def test_nested_lists_are_dense() -> None:
    np.testing.assert_array_equal(check_inputs([[1, 2], [3, 4]]), [[1, 2], [3, 4]])


def test_duplicate_entries_sum_and_indices_sort_without_touching_the_input() -> None:
    for dtype in (np.int8, np.float32):
        given = sparse.csr_matrix(
            (np.asarray([1, 100, 100], dtype), np.asarray([2, 0, 0]), np.asarray([0, 3])), shape=(1, 3)
        )
        X = check_inputs(given)
        np.testing.assert_array_equal(X.toarray(), [[200, 0, 1]])
        np.testing.assert_array_equal(given.indices, [2, 0, 0])
        np.testing.assert_array_equal(given.data, [1, 100, 100])


def test_what_is_already_right_is_not_copied() -> None:
    dense = np.ones((2, 2), dtype=np.float32)
    assert np.shares_memory(check_inputs(dense), dense)
    csr = sparse.csr_matrix(dense)
    assert np.shares_memory(check_inputs(csr).data, csr.data)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix, sparse.csc_matrix, sparse.coo_matrix])
@pytest.mark.parametrize(
    ("value", "problem"),
    [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf"), (1e39, "1e\\+39.*too large for float32")],
)
def test_the_first_unusable_value_is_named_with_row_and_column(make: Any, value: float, problem: str) -> None:
    values = np.ones((5, 4))
    values[2, 3] = values[3, 0] = value
    with pytest.raises(DataError, match=f"table contains {problem}.* at row 2, column 3"):
        check_inputs(make(values), name="table")


def test_large_values_that_cancel_or_overflow_in_the_sum_are_accepted() -> None:
    X = np.full((4, 3), np.finfo(np.float32).max)
    np.testing.assert_array_equal(check_inputs(X), X)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
def test_infinities_of_both_signs_are_refused_without_a_warning(make: Any) -> None:
    with pytest.raises(DataError, match=r"infinity.* at row 0, column 1"):
        check_inputs(make([[1, np.inf], [-np.inf, 1]]))


def test_a_sum_of_duplicates_beyond_float32_is_refused() -> None:
    X = sparse.coo_matrix(([3e38, 3e38], ([1, 1], [2, 2])), shape=(3, 4))
    with pytest.raises(DataError, match=r"inf.*row 1, column 2"):
        check_inputs(X)
    unsummed = sparse.csr_matrix((np.asarray([3e38, 3e38]), np.asarray([2, 2]), np.asarray([0, 0, 2])), shape=(2, 4))
    with pytest.raises(DataError, match=r"inf.*row 1, column 2"):
        check_inputs(unsummed)


@pytest.mark.parametrize(
    ("X", "problem"),
    [
        (np.ones(3), "Reshape your data"),
        (np.ones((2, 2, 2)), "dim"),
        (np.float64(1), "Expected 2D array"),
        (np.ones((0, 3)), r"0 sample\(s\)"),
        (np.ones((3, 0)), r"0 feature\(s\) \(shape=\(3, 0\)\) while a minimum of 1 is required"),
        (sparse.csr_matrix((0, 3)), r"0 sample\(s\)"),
        (np.ones((2, 2), dtype=complex), "Complex data not supported"),
        (sparse.csr_matrix(np.ones((2, 2), dtype=complex)), "Complex data not supported"),
        (np.asarray([["a", "b"]]), "holds texts, not numbers"),
        (np.asarray([["a", 1.0]], dtype=object), "holds texts, not numbers, as at row 0"),
        (np.asarray([["2020-01-01"]], dtype="datetime64[D]"), "dtype datetime64"),
    ],
)
def test_what_is_not_a_matrix_of_real_numbers_is_refused(X: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        check_inputs(X)


def test_objects_that_are_not_numbers_raise_what_scikit_learn_promises() -> None:
    with pytest.raises(TypeError, match=r"argument must be .* string.* number"):
        check_inputs(np.asarray([[{"a": 1}, 1.0]], dtype=object))


def test_another_number_of_features_is_refused_with_both_numbers() -> None:
    with pytest.raises(DataError, match="X has 3 features, but Model is expecting 4 features as input"):
        check_inputs(VALUES, 4, expected_by="Model")
    assert check_inputs(VALUES, 3).shape == (2, 3)


def test_a_sparse_matrix_that_points_outside_itself_is_refused() -> None:
    X = sparse.csr_matrix(VALUES)
    X.indices[0] = 7
    with pytest.raises(DataError, match="ind"):
        check_inputs(X)


def test_entry_position_skips_empty_rows() -> None:
    X = sparse.csr_matrix(np.asarray([[0, 0], [0, 5], [0, 0], [6, 7]]))
    assert [entry_position(X, entry) for entry in range(3)] == [(1, 1), (3, 0), (3, 1)]


def test_weights_are_numbers_one_for_each_row() -> None:
    for given in ([0.5, 0, 2], np.array([0.5, 0, 2], np.float32), np.array([0.5, 0, 2], object)):
        weights = check_weights(given, 3)
        assert weights is not None
        assert weights.dtype == np.float64
        np.testing.assert_array_equal(weights, [0.5, 0, 2])
    np.testing.assert_array_equal(check_weights(3.0, 2), [3, 3])


@pytest.mark.parametrize("given", [None, 1, [1, 1, 1], np.ones(3, np.int8), [True, True, True]])
def test_where_every_row_counts_once_there_are_no_weights(given: Any) -> None:
    assert check_weights(given, 3) is None


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([1, 2], r"3 numbers, one for each row; its shape is \(2,\)"),
        ([[1], [2], [3]], r"its shape is \(3, 1\)"),
        ([1, np.nan, 1], "nan at row 1"),
        ([1, 1, np.inf], "inf at row 2"),
        ([1, 1, 1e39], r"1e\+39 at row 2"),
        ([-0.5, 1, 1], "-0.5 at row 0"),
        ([0, 0, 0], "zero for every row"),
        (["a", "b", "c"], "not of dtype"),
        ([1, None, 2j], "3 numbers"),
        ([[1], [2, 3], [4]], "3 numbers"),
    ],
)
def test_weights_that_are_none_are_refused(given: Any, problem: str) -> None:
    with pytest.raises(DataError, match=f"sample_weight .*{problem}"):
        check_weights(given, 3)


def test_what_has_weights_is_named() -> None:
    with pytest.raises(DataError, match="one for each sequence"):
        check_weights([1], 2, of="sequence")
