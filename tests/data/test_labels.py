from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from extremegp.data.labels import LabelSpace, encode_targets
from extremegp.errors import DataError, SettingsError

names = st.one_of(st.integers(), st.text(max_size=5))
label_lists = st.lists(st.lists(names, max_size=4), min_size=1, max_size=6).filter(any)


@given(lists=label_lists)
def test_decoding_an_encoding_gives_the_sets_back(lists: list[list[Any]]) -> None:
    space = LabelSpace.from_lists(lists)
    Y = space.encode(lists)
    assert Y.dtype == np.float32
    assert Y.shape == (len(lists), len(space))
    assert [set(row) for row in space.decode(Y)] == [set(row) for row in lists]
    assert Y.sum() == sum(len(set(row)) for row in lists)
    assert (Y.data == 1).all()
    assert Y.has_canonical_format


@given(lists=label_lists)
def test_columns_do_not_depend_on_the_order_and_survive_json(lists: list[list[Any]]) -> None:
    space = LabelSpace.from_lists(lists)
    assert LabelSpace.from_lists([row[::-1] for row in lists[::-1]]) == space
    assert LabelSpace(json.loads(json.dumps(space.names))) == space


def test_integers_come_in_numeric_order_before_strings() -> None:
    assert LabelSpace.from_lists([["b", 10], ["a", "1", 9], [1]]).names == (1, 9, 10, "1", "a", "b")


def test_numpy_labels_become_plain_ones() -> None:
    space = LabelSpace.from_lists([np.asarray([3, 1]), (np.str_("x"),)])
    assert space.names == (1, 3, "x")
    assert [type(name) for name in space.names] == [int, int, str]
    assert space.encode([[np.int32(3)]]).toarray().tolist() == [[0, 1, 0]]


def test_unknown_labels_raise_with_their_row_or_are_left_out() -> None:
    space = LabelSpace(["a", "b"])
    with pytest.raises(DataError, match="row 1 has the label 'c', which is not among the 2 known ones"):
        space.encode([["a"], ["b", "c"]])
    assert space.encode([["a"], ["b", "c"]], unknown="ignore").toarray().tolist() == [[1, 0], [0, 1]]
    with pytest.raises(SettingsError, match="unknown must be"):
        space.encode([["a"]], unknown="skip")  # type: ignore[arg-type]


def test_a_string_is_never_split_into_characters() -> None:
    space = LabelSpace(["a", "b"])
    for call in (space.encode, LabelSpace.from_lists):
        with pytest.raises(DataError, match=r"row 1 is the bare string 'ab'.*\['ab'\]"):
            call([["a"], "ab"])
        with pytest.raises(DataError, match="not the single string 'ab'"):
            call("ab")
    with pytest.raises(DataError, match="not the single string 'ab'"):
        LabelSpace("ab")


@pytest.mark.parametrize(
    ("lists", "problem"),
    [
        ([["a"], 3], "row 1 must be a list of labels, not int"),
        ([["a"], None], "row 1 must be a list of labels, not NoneType"),
        ([["a", 1.5]], "string or an integer, not float"),
        ([["a", None]], "string or an integer, not NoneType"),
        ([["a", True]], "truth value"),
        ([[], []], "no labels"),
        ([], "no labels"),
    ],
)
def test_what_is_not_a_list_of_label_lists_is_refused(lists: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        LabelSpace.from_lists(lists)


def test_names_must_be_unique() -> None:
    with pytest.raises(DataError, match="'a' comes twice"):
        LabelSpace(["a", "b", "a"])
    assert LabelSpace([1, "1"]).names == (1, "1")


def test_spaces_compare_and_show_their_names() -> None:
    space = LabelSpace(["a", "b", "c", "d"])
    assert space == LabelSpace(("a", "b", "c", "d"))
    assert hash(space) == hash(LabelSpace(("a", "b", "c", "d")))
    assert space != LabelSpace(["b", "a", "c", "d"])
    assert repr(space) == "LabelSpace(4 labels: 'a', 'b', 'c', ...)"


def test_decode_ignores_stored_zeros_and_checks_the_width() -> None:
    space = LabelSpace(["a", "b"])
    Y = sparse.csr_matrix((np.asarray([1.0, 0.0]), np.asarray([1, 0]), np.asarray([0, 2, 2])), shape=(2, 2))
    assert space.decode(Y) == [["b"], []]
    assert Y.nnz == 2
    with pytest.raises(DataError, match="3 columns but there are 2 labels"):
        space.decode(np.zeros((1, 3)))


def test_encode_needs_rows() -> None:
    with pytest.raises(DataError, match="no rows"):
        LabelSpace(["a"]).encode([])


INDICATOR = np.asarray([[1, 0, 1], [0, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int64, np.float32, np.float64])
@pytest.mark.parametrize(
    "make", [np.asarray, sparse.csr_matrix, sparse.csc_array, sparse.coo_matrix, sparse.lil_matrix]
)
def test_indicators_of_every_form_become_float32_csr(make: Any, dtype: Any) -> None:
    Y, space = encode_targets(make(INDICATOR.astype(dtype)))
    assert space is None
    assert isinstance(Y, sparse.csr_matrix)
    assert Y.dtype == np.float32
    assert Y.has_canonical_format
    np.testing.assert_array_equal(Y.toarray(), INDICATOR)


def test_targets_are_a_copy_without_stored_zeros() -> None:
    given_ = sparse.csr_matrix((np.asarray([1, 0], np.float32), np.asarray([1, 0]), np.asarray([0, 2])), shape=(1, 2))
    Y, _ = encode_targets(given_)
    assert Y.nnz == 1
    assert given_.nnz == 2
    np.testing.assert_array_equal(given_.indices, [1, 0])
    assert not np.shares_memory(Y.data, given_.data)


def test_label_lists_give_their_space() -> None:
    for lists in ([["b", "a"], [], {"a"}], (("b", "a"), (), ("a",)), np.asarray([["b", "a"], [], ["a"]], dtype=object)):
        Y, space = encode_targets(lists)
        assert space is not None
        assert space.names == ("a", "b")
        assert Y.toarray().tolist() == [[1, 1], [0, 0], [1, 0]]


@pytest.mark.parametrize(
    ("entry", "shown"), [(2, "2"), (-1, "-1"), (0.5, "0.5"), (np.nan, "nan"), (np.inf, "inf"), (1 + 1e-9, "1")]
)
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix, sparse.coo_matrix])
def test_entries_other_than_zero_and_one_are_refused_with_their_place(make: Any, entry: float, shown: str) -> None:
    Y = INDICATOR.astype(float)
    Y[1, 2] = entry
    with pytest.raises(DataError, match=f"only 0 and 1, but has {shown} at row 1, column 2"):
        encode_targets(make(Y))


@pytest.mark.parametrize("make", [sparse.csr_matrix, np.asarray])
def test_soft_labels_are_taken_where_they_are_asked_for(make: Any) -> None:
    y, space = encode_targets(make(np.array([[0.0, 0.25, 1.0], [1e-60, 0.0, 0.5]])), soft=True)
    assert space is None
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y.toarray(), [[0, 0.25, 1], [0, 0, 0.5]])
    assert y.nnz == 3


@pytest.mark.parametrize("entry", [-0.1, 1.5, np.nan, np.inf])
def test_soft_labels_outside_their_range_are_refused_with_their_place(entry: float) -> None:
    with pytest.raises(DataError, match=r"0 and 1, or soft labels between them, but has .* at row 1, column 2"):
        encode_targets(np.array([[0.0, 0.2, 1.0], [0.3, 0.0, entry]]), soft=True)


def test_soft_labels_where_there_are_none_are_told_from_other_numbers() -> None:
    with pytest.raises(DataError, match=r"0.5 at row 0, column 1 .*soft labels mean nothing here"):
        encode_targets(np.array([[0.0, 0.5]]))


@pytest.mark.parametrize("make", [sparse.csr_matrix, np.asarray])
def test_counts_are_taken_where_they_are_asked_for(make: Any) -> None:
    y, space = encode_targets(make(np.array([[0.0, 2.0, 1.0], [300.0, 0.0, 0.0]])), counts=True)
    assert space is None
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y.toarray(), [[0, 2, 1], [300, 0, 0]])
    assert y.nnz == 3


@pytest.mark.parametrize("entry", [-1.0, 0.5, np.inf, 2.0**24 + 2])
def test_entries_that_are_no_counts_are_refused_with_their_place(entry: float) -> None:
    with pytest.raises(DataError, match=r"counts, 0, 1, 2 and so on, but has .* at row 1, column 2"):
        encode_targets(np.array([[0.0, 2.0, 1.0], [3.0, 0.0, entry]]), counts=True)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.float32])
def test_a_position_stored_twice_is_refused(dtype: Any) -> None:
    Y = sparse.csr_matrix((np.ones(2, dtype), np.asarray([1, 1]), np.asarray([0, 2])), shape=(1, 2))
    with pytest.raises(DataError, match="has 2 at row 0, column 1"):
        encode_targets(Y)


@pytest.mark.parametrize("Y", [np.asarray([0, 1, 2]), [0, 1, 2], ["a", "b"], np.asarray(["a", "b"]), np.ones(3)])
def test_a_class_per_row_points_to_the_multi_class_estimator(Y: Any) -> None:
    with pytest.raises(DataError, match="multi-class"):
        encode_targets(Y)


@pytest.mark.parametrize(
    ("Y", "problem"),
    [
        (np.ones((2, 2, 2)), "must be 2-D"),
        (np.ones((3, 0)), "at least one row and one label column"),
        (np.ones((0, 3)), "at least one row and one label column"),
        (np.asarray([["a", "b"]]), "dtype"),
        (np.ones((2, 2), complex), "dtype complex"),
        ("ab", "not str"),
        ({"a": 1}, "not dict"),
        ([[1, 0, 0], [0, 1, 0]], "numpy.asarray"),
        ([], "no labels"),
        ([["a"], "b"], "bare string"),
    ],
)
def test_other_targets_are_refused(Y: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        encode_targets(Y)


def test_a_sparse_target_that_points_outside_itself_is_refused() -> None:
    Y = sparse.csr_matrix(INDICATOR)
    Y.indices[0] = 9
    with pytest.raises(DataError, match="not a valid sparse matrix"):
        encode_targets(Y)


@pytest.mark.parametrize("kind", [list, tuple, np.array])
@pytest.mark.parametrize(
    "rows",
    [
        [[0, 1], [1, 1]],
        [[0, 0], [0, 0]],
        [[0, 1], [1, 0]],
        [[True, False], [True, True]],
        [[1.0, 0.0], [1.0, 1.0]],
        [[0, 1, 0], [0, 0, 0]],
    ],
)
def test_an_indicator_as_nested_lists_is_refused(rows: list[list[Any]], kind: Any) -> None:
    with pytest.raises(DataError, match=r"looks like an indicator.*numpy\.asarray"):
        encode_targets([kind(row) for row in rows])


@pytest.mark.parametrize(
    "rows", [[[0, 1], [0, 1]], [[1], [0], [1]], [[0, 1], [1]], [[0, 1], [1, 2]], [["0", "1"], ["1", "0"]], [[1, 0]]]
)
def test_lists_that_name_no_label_twice_are_lists_of_labels(rows: list[list[Any]]) -> None:
    encoded, space = encode_targets(rows)
    assert space is not None
    assert [set(row) for row in space.decode(encoded)] == [set(row) for row in rows]
