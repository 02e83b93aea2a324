"""What people hand over as texts and label matrices: lists, arrays, columns and data frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.sparse import issparse

from extremegp.data.features import make_features
from extremegp.data.frames import label_names, texts_of
from extremegp.data.label_sequences import encode_label_sequences
from extremegp.data.labels import encode_targets
from extremegp.data.tokens import stack_arrays
from extremegp.data.validation import check_inputs
from extremegp.errors import DataError

TEXTS = ["a secret of mine", "another secret"]
VALUES = [[1, 0, 1], [0, 0, 1]]
NAMES = ["red", "dark green", "blue"]


class PolarsColumn:
    """A column that offers what those of Polars do."""

    def __init__(self, values: list[Any]) -> None:
        self.shape = (len(values),)
        self._values = values

    def to_list(self) -> list[Any]:
        return list(self._values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._values, dtype=dtype)


class PolarsFrame:
    """A data frame that offers what those of Polars do."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns = list(columns)
        self.shape = (len(columns[self.columns[0]]), len(columns))
        self._values = columns

    def __getitem__(self, name: str) -> PolarsColumn:
        return PolarsColumn(self._values[name])

    def __iter__(self) -> Iterator[PolarsColumn]:
        return map(PolarsColumn, self._values.values())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(list(self._values.values()), dtype=dtype).T


class Rows:
    """Rows that only NumPy can be told of."""

    def __init__(self, rows: list[Any]) -> None:
        self.shape = (len(rows), 1)
        self._rows = rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self._rows, dtype=object)


class ArrowColumn:
    """A column that offers what those of PyArrow do, whose elements are no Python strings."""

    def to_pylist(self) -> list[str]:
        return list(TEXTS)

    def __iter__(self) -> Iterator[object]:
        return iter([object(), object()])


FORMS: dict[str, Callable[[], Any]] = {
    "list": lambda: TEXTS,
    "tuple": lambda: tuple(TEXTS),
    "array": lambda: np.array(TEXTS),
    "array of objects": lambda: np.array(TEXTS, dtype=object),
    "array of one column": lambda: np.array(TEXTS)[:, None],
    "column": lambda: pd.Series(TEXTS, index=[7, 3]),
    "column of strings": lambda: pd.Series(TEXTS, dtype="string"),
    "column of categories": lambda: pd.Series(TEXTS, dtype="category"),
    "frame": lambda: pd.DataFrame({"body": TEXTS}),
    "frame without a name": lambda: pd.DataFrame(TEXTS),
    "frame of categories": lambda: pd.DataFrame({"body": pd.Categorical(TEXTS)}),
    "Polars column": lambda: PolarsColumn(TEXTS),
    "Polars frame": lambda: PolarsFrame({"body": TEXTS}),
}


@pytest.mark.parametrize("form", [*FORMS, "Arrow column"])
def test_texts_of_every_form_are_the_texts(form: str) -> None:
    X = ArrowColumn() if form == "Arrow column" else FORMS[form]()
    assert texts_of(X) == TEXTS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["raw", "unit", "tfidf", "standard"])
def test_texts_where_numbers_are_due_name_the_remedy_and_are_not_printed(form: str, kind: Any) -> None:
    X = FORMS[form]()
    with pytest.raises(DataError, match=r'X holds texts, not numbers.*features="text"') as refused:
        make_features(kind).fit(X)
    assert "secret" not in str(refused.value)
    fitted = make_features(kind).fit(np.eye(2))
    with pytest.raises(DataError, match=r'X holds texts, not numbers.*features="text"'):
        fitted.transform(X)


def test_the_place_of_a_text_is_told() -> None:
    frame = pd.DataFrame({"n": [1.0, 2.0], "body": [3.0, "secret"]})
    with pytest.raises(DataError, match=r"row 1 of the column 'body'.*encode such columns.*features=.text."):
        check_inputs(frame)
    with pytest.raises(DataError, match="encode such columns as numbers"):
        check_inputs([[1, "secret"]])


@pytest.mark.parametrize(
    ("X", "problem"),
    [
        ([{"text": "a secret"}], "holds a dict at row 0"),
        ([1.0, {"text": "a secret"}], "holds a dict at row 1"),
        ({"text": ["a secret"]}, "holds a dict at row 0"),
        ("a secret", "holds texts, not numbers"),
        (b"a secret", "holds texts, not numbers"),
        (np.array("a secret"), "holds texts, not numbers"),
        (np.array("a secret", dtype=object), "holds texts, not numbers"),
        (Rows([["a secret"]]), "holds texts, not numbers"),
        (Rows([{"text": "a secret"}]), "Reshape your data"),
        (pd.DataFrame({"e": [[1.0, 2.0], [3.0, 4.0]]}), "holds a list at row 0 of the column 'e'"),
    ],
)
def test_other_things_than_numbers_are_not_printed(X: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem) as refused:
        check_inputs(X)
    assert "secret" not in str(refused.value)


def test_numbers_of_one_dimension_keep_their_message() -> None:
    for X in ([1.0, 2.0], np.ones(2), pd.Series([1.0, 2.0])):
        with pytest.raises(DataError, match=r"2D array|2-dimensional"):
            check_inputs(X)


@pytest.mark.parametrize("row", [list, tuple, np.array])
def test_a_column_of_vectors_is_their_matrix(row: Any) -> None:
    rows = [row([1.5, 2.0]), row([0.0, 4.0])]
    for X in (pd.Series(rows, index=[5, 6]), PolarsColumn(rows)):
        np.testing.assert_array_equal(check_inputs(X), [[1.5, 2.0], [0.0, 4.0]])
    with pytest.raises(DataError):
        check_inputs(pd.Series([[1.0], [1.0, 2.0]]))


@pytest.mark.parametrize(
    ("X", "problem"),
    [
        (pd.DataFrame({"n": [1, 2], "body": TEXTS}), r"takes one column of texts.*\(2, 2\).*'body'"),
        (np.array([TEXTS]), r"takes one column of texts.*\(1, 2\)"),
        (np.ones((2, 2, 2)), "takes one column of texts"),
        (pd.DataFrame({"n": [1, 2]}), "text 0 .* of type int, not a string"),
        (pd.Series(["a", None]), "text 1 .* is missing"),
        (pd.Series(["a", float("nan")]), "text 1 .* is missing"),
        (pd.Series(["a", pd.NA], dtype="string"), "text 1 .* is missing"),
        (pd.Series([], dtype=str), "no texts"),
        ([["a"], ["b"]], "text 0 .* of type list, not a string"),
    ],
)
def test_what_is_no_column_of_texts_is_refused(X: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        texts_of(X)


def _frame(values: Any = VALUES, names: Any = NAMES) -> pd.DataFrame:
    return pd.DataFrame(values, columns=names)


TARGETS: dict[str, Callable[[], Any]] = {
    "integers": _frame,
    "truth values": lambda: _frame().astype(bool),
    "nullable integers": lambda: _frame().astype("Int64"),
    "nullable truth values": lambda: _frame().astype("boolean"),
    "several types": lambda: _frame().astype({"red": bool, "blue": "Int8"}),
    "sparse": lambda: _frame().astype(pd.SparseDtype(int, 0)),
    "sparse ones": lambda: _frame().astype(pd.SparseDtype(int, 1)),
    "Polars": lambda: PolarsFrame({name: [row[i] for row in VALUES] for i, name in enumerate(NAMES)}),
}


@pytest.mark.parametrize("form", TARGETS)
def test_a_data_frame_of_labels_has_their_values_and_names(form: str) -> None:
    Y = TARGETS[form]()
    encoded, space = encode_targets(Y)
    assert issparse(encoded)
    np.testing.assert_array_equal(encoded.toarray(), VALUES)
    assert space is None
    assert label_names(Y) == NAMES


def test_integers_name_columns_unless_they_count_them() -> None:
    assert label_names(_frame(names=[7, 9, 2])) == [7, 9, 2]
    assert label_names(_frame(names=["a", 1, "b"])) == ["a", 1, "b"]
    for nameless in (_frame(names=[0, 1, 2]), _frame(names=[0.5, 1.5, 2.5]), np.array(VALUES), VALUES):
        assert label_names(nameless) is None


def test_a_data_frame_of_labels_with_other_values_is_refused() -> None:
    missing = _frame().astype("Int64")
    missing.iloc[1, 2] = pd.NA
    with pytest.raises(DataError, match="only 0 and 1, but has nan at row 1, column 2"):
        encode_targets(missing)
    with pytest.raises(DataError, match="Y's column 'red' holds a str at row 0"):
        encode_targets(_frame().astype(str))


@pytest.mark.parametrize("make", [lambda rows: pd.Series(rows, index=[4, 2]), PolarsColumn])
def test_a_column_of_label_lists_is_read_as_lists(make: Callable[[Any], Any]) -> None:
    encoded, space = encode_targets(make([["b", "a"], []]))
    assert space is not None
    assert space.names == ("a", "b")
    np.testing.assert_array_equal(encoded.toarray(), [[1, 1], [0, 0]])


def test_a_column_of_label_sequences_is_read_as_lists() -> None:
    codes, space = encode_label_sequences(pd.Series([["x", "y"], ["x"]], index=[3, 1]), np.array([2, 1]))
    assert codes.tolist() == [0, 1, 0]
    assert space.names == ("x", "y")


def test_texts_among_matrices_of_sequences_are_not_printed() -> None:
    with pytest.raises(DataError, match=r"X\[1\] holds texts.*names of their features") as refused:
        stack_arrays([np.ones((2, 1)), np.array([["secret"]], dtype=object)])
    assert "secret" not in str(refused.value)
