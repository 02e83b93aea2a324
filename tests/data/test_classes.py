from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import DataConversionWarning

from extremegp.data import ClassSpace, encode_classes, one_hot
from extremegp.errors import DataError, ModelFormatError, SettingsError

several = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2),
    st.lists(st.text(st.characters(exclude_characters="\0"), max_size=6), min_size=2),
    st.lists(st.booleans(), min_size=2),
    st.lists(st.integers(-1000, 1000).map(float), min_size=2),
).filter(lambda y: len(set(y)) > 1)


@given(y=several)
def test_codes_number_the_sorted_classes_and_decode_to_the_targets(y: list[Any]) -> None:
    codes, classes = encode_classes(y)
    space = ClassSpace(classes)
    assert codes.dtype == np.int64
    assert classes.tolist() == list(space.names) == sorted(set(y))
    assert codes.tolist() == [sorted(set(y)).index(value) for value in y]
    assert space.decode(codes).tolist() == y
    assert space.decode(codes).dtype.kind == {"int": "i", "str": "U", "bool": "b", "float": "f"}[space.kind]
    np.testing.assert_array_equal(space.encode(y), codes)


@given(y=several)
def test_a_space_survives_json(y: list[Any]) -> None:
    space = ClassSpace(encode_classes(y)[1])
    restored = ClassSpace.from_config(json.loads(json.dumps(space.to_config())))
    assert restored == space
    assert hash(restored) == hash(space)
    assert restored.classes.dtype == space.classes.dtype


@pytest.mark.parametrize(
    ("y", "classes", "kind"),
    [
        (np.asarray([7, 0, 7], np.uint8), [0, 7], "int"),
        (np.asarray(["b", "a", "b"]), ["a", "b"], "str"),
        (np.asarray(["b", "a", "b"], dtype=object), ["a", "b"], "str"),
        (np.asarray([3, 1, 3], dtype=object), [1, 3], "int"),
        ([np.int8(3), 1, np.uint64(3)], [1, 3], "int"),
        ([2, 1.0, 2.0], [1.0, 2.0], "float"),
        (np.asarray([2.0, -1.0, 2.0], np.float16), [-1.0, 2.0], "float"),
        ((True, False, np.bool_(True)), [False, True], "bool"),
        (pd.Series([5, 2, 5], index=[9, 9, 1]), [2, 5], "int"),
        (pd.Series(["b", "a", "b"]), ["a", "b"], "str"),
        (pd.Series(["b", "a", "b"], dtype="category"), ["a", "b"], "str"),
        (pd.Series([5, 2, 5], dtype="Int64"), [2, 5], "int"),
        (pd.Series([True, False, True], dtype="boolean"), [False, True], "bool"),
    ],
)
def test_targets_of_every_form_are_taken(y: Any, classes: list[Any], kind: str) -> None:
    codes, found = encode_classes(y)
    assert codes.tolist() == [1, 0, 1]
    assert found.tolist() == classes
    assert ClassSpace(found).kind == kind


@pytest.mark.parametrize(
    ("y", "problem"),
    [
        (None, "requires y to be passed, but the target y is None"),
        ("abc", "not str"),
        ({"a": 1}, "not dict"),
        (sparse.eye(3).tocsr(), "one class a row, not"),
        ([], "y is empty"),
        (np.asarray(3), r"got an array of shape \(\)"),
        (np.eye(3), r"y should be a 1d array.*\(3, 3\).*MultiLabelGPClassifier"),
        ([["a", "b"], ["c", "d"]], r"y should be a 1d array.*\(2, 2\)"),
        ([["a"], ["c", "d"]], "y must be one class a row"),
        ([1, 1, 1], "Classifier can't train when only one class is present: every row is 1"),
        (["a"], "only one class is present: every row is 'a'"),
        ([0.5, 1.5, 2], r"Unknown label type: continuous: y has 0.5 at row 0"),
        ([0.0, 1.0, np.inf], "y contains infinity at row 2"),
        ([0.0, 0.5, np.nan], "y contains NaN or None at row 2"),
        (["a", None, "b"], "y contains NaN or None at row 1"),
        (["a", "b", float("nan")], "y contains NaN or None at row 2"),
        ([1, 2, None], "y contains NaN or None at row 2"),
        (pd.Series([1, None, 2], dtype="Int64"), "y contains NaN or None at row 1"),
        (pd.Series(["a", None]), "y contains NaN or None at row 1"),
        ([1, "a"], "mixes types: 'a' at row 1.*'str'.*'int'"),
        ([True, True, 2], "mixes types: 2 at row 2.*'int'.*'bool'"),
        (["a", b"b"], "has a bytes at row 1"),
        (np.asarray([b"a", b"b"]), r"decode bytes.*astype\(str\)"),
        (np.asarray([1j, 2j]), "dtype complex128"),
        (np.asarray(["2020-01-01", "2020-01-02"], "M8[D]"), "dtype datetime64"),
        ([{"a"}, {"b"}], "has a set at row 0"),
        ([2**63, 1], "beyond 64 bits"),
        (np.asarray([2**63, 1], dtype=np.uint64), "beyond 64 bits"),
        ([np.uint64(2**63), 1], "beyond 64 bits"),
        (["a", "a\0"], "NUL"),
        (["a", "b" * 5000], "'b+...' has 5000 characters"),
    ],
)
def test_other_targets_are_refused(y: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem) as caught:
        encode_classes(y)
    assert "\n" not in str(caught.value)


def test_messages_call_the_targets_by_their_name() -> None:
    with pytest.raises(DataError, match=r"^labels is empty"):
        encode_classes([], name="labels")


@pytest.mark.parametrize("y", [np.asarray([[1], [2]]), [[1], [2]], pd.DataFrame({"y": [1, 2]})])
def test_a_column_vector_passes_with_the_warning_of_scikit_learn(y: Any) -> None:
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed when a 1d array was expected"):
        codes, _ = encode_classes(y)
    assert codes.tolist() == [0, 1]


def test_strings_are_not_padded_to_the_longest_before_they_are_checked() -> None:
    y = np.empty(200_000, dtype=object)
    y[:] = "a"
    y[0] = "b" * 100_000
    with pytest.raises(DataError, match="100000 characters"):
        encode_classes(y)


def test_unknown_classes_raise_with_their_row_or_get_the_code_minus_one() -> None:
    space = ClassSpace(["a", "b"])
    with pytest.raises(DataError, match=r"has the class 'c' at row 2 .*not among the 2 known ones"):
        space.encode(["a", "b", "c"])
    assert space.encode(["b", "c", "a", "d"], unknown="ignore").tolist() == [1, -1, 0, -1]
    with pytest.raises(SettingsError, match="unknown must be"):
        space.encode(["a"], unknown="skip")  # type: ignore[arg-type]


def test_whole_floats_and_integers_are_the_same_classes_and_other_kinds_are_not() -> None:
    assert ClassSpace([1, 2]).encode([2.0, 1.0]).tolist() == [1, 0]
    assert ClassSpace([1.0, 2.0]).encode([2, 1]).tolist() == [1, 0]
    assert ClassSpace([1, 2]).encode([1, 1, 1]).tolist() == [0, 0, 0]
    for space, y in ((ClassSpace([0, 1]), ["0"]), (ClassSpace(["0", "1"]), [0]), (ClassSpace([0, 1]), [True])):
        with pytest.raises(DataError, match=r"of the kind .*pass the same kind as in training"):
            space.encode(y, unknown="ignore")


def test_a_space_wants_two_different_classes_and_shows_them() -> None:
    assert ClassSpace(["b", "a"]).names == ("a", "b")
    assert ClassSpace([1, 2]) != ClassSpace([1.0, 2.0])
    assert repr(ClassSpace([4, 1, 2, 3])) == "ClassSpace(4 classes: 1, 2, 3, ...)"
    assert len(ClassSpace([4, 1, 2, 3])) == 4
    with pytest.raises(DataError, match="'a' comes twice"):
        ClassSpace(["a", "b", "a"])
    with pytest.raises(DataError, match="only one class"):
        ClassSpace(["a"])


@pytest.mark.parametrize("codes", [[0, 2], [-1, 0], [0.0, 1.0]])
def test_decode_wants_codes_of_its_classes(codes: list[Any]) -> None:
    with pytest.raises(DataError, match="codes must be"):
        ClassSpace(["a", "b"]).decode(codes)


@pytest.mark.parametrize(
    "config",
    [
        None,
        [],
        {},
        {"kind": "str"},
        {"kind": "complex", "names": [1, 2]},
        {"kind": ["str"], "names": ["a", "b"]},
        {"kind": "str", "names": "ab"},
        {"kind": "str", "names": ["a", 1]},
        {"kind": "int", "names": [True, 2]},
        {"kind": "int", "names": [1.0, 2.0]},
        {"kind": "int", "names": [1, 2**70]},
        {"kind": "float", "names": [1, 2]},
        {"kind": "float", "names": [1.0, float("nan")]},
        {"kind": "float", "names": [1.0, 1.5]},
        {"kind": "int", "names": [2, 1]},
        {"kind": "int", "names": [1, 1]},
        {"kind": "int", "names": [1]},
        {"kind": "int", "names": []},
        {"kind": "str", "names": [["a"], ["b"]]},
    ],
)
def test_altered_configurations_are_refused(config: Any) -> None:
    with pytest.raises(ModelFormatError, match="stored classes"):
        ClassSpace.from_config(config)


def test_one_hot_rows_have_one_entry_or_none() -> None:
    Y = one_hot(np.asarray([2, -1, 0, 2]), 3)
    assert Y.dtype == np.float32
    assert Y.has_canonical_format
    np.testing.assert_array_equal(Y.toarray(), [[0, 0, 1], [0, 0, 0], [1, 0, 0], [0, 0, 1]])
    assert one_hot(np.asarray([-1]), 3).nnz == 0


@pytest.mark.parametrize(
    ("codes", "problem"), [([3], "must be -1 to 2"), ([-2], "must be -1 to 2"), ([[0]], "1-D"), ([0.5], "integers")]
)
def test_one_hot_refuses_what_is_no_code(codes: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        one_hot(codes, 3)
