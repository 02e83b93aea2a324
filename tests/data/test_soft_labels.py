from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from extremegp.data.classes import ClassSpace
from extremegp.data.soft_labels import are_class_probabilities, class_probabilities_of, encode_class_probabilities
from extremegp.errors import DataError

P = np.array([[0.2, 0.8, 0.0], [1.0, 0.0, 0.0], [0.25, 0.25, 0.5]])


@pytest.mark.parametrize(
    "make", [np.asarray, sparse.csr_matrix, sparse.coo_matrix, sparse.csr_array, np.ndarray.tolist]
)
def test_probabilities_of_any_form_become_sorted_float32_csr(make: Any) -> None:
    given = make(P)
    assert are_class_probabilities(given)
    y, space = encode_class_probabilities(given)
    assert space == ClassSpace([0, 1, 2])
    assert isinstance(y, sparse.csr_matrix)
    assert y.dtype == np.float32
    assert y.has_sorted_indices
    np.testing.assert_allclose(y.toarray(), P, rtol=1e-6)
    assert y.nnz == 6


def test_the_columns_of_a_data_frame_are_classes_in_any_order() -> None:
    frame = pd.DataFrame(P, columns=["dog", "cat", "bird"])
    y, space = encode_class_probabilities(frame)
    assert space.names == ("bird", "cat", "dog")
    np.testing.assert_allclose(y.toarray(), P[:, [2, 1, 0]], rtol=1e-6)
    np.testing.assert_allclose(class_probabilities_of(frame, space).toarray(), P[:, [2, 1, 0]], rtol=1e-6)
    # Of an array nothing is known but the order.
    np.testing.assert_allclose(class_probabilities_of(P, space).toarray(), P, rtol=1e-6)


def test_rounded_probabilities_are_scaled_to_one() -> None:
    y, _ = encode_class_probabilities(np.array([[0.333, 0.333, 0.333], [0.5, 0.5, 0.0]]))
    np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    "given",
    [
        [0, 1, 2],
        np.array(["a", "b"]),
        np.zeros((3, 1)),
        [["a", "b"], ["c", "d"]],
        [[0.5, 0.5], [1.0]],
        "ab",
        None,
        [],
        [[]],
    ],
)
def test_one_class_a_row_is_something_else(given: Any) -> None:
    assert not are_class_probabilities(given)


def _with(value: float) -> np.ndarray:
    changed = P.copy()
    changed[1, 1] = value
    return changed


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (_with(-0.1), "from 0 to 1, but has -0.1 at row 1, column 1"),
        (_with(np.nan), "has nan at row 1, column 1"),
        (_with(0.5), r"\(3, 3\), but row 1 .*adds up to 1.5, not 1"),
        (np.zeros((2, 3)), "row 0 .*adds up to 0"),
        (pd.DataFrame(P, columns=["a", "a", "b"]), "columns of y are no names of classes: the class 'a' comes twice"),
    ],
)
def test_what_are_no_probabilities_is_refused(given: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        encode_class_probabilities(given)


def test_probabilities_of_other_classes_are_refused() -> None:
    frame = pd.DataFrame(P, columns=["dog", "cat", "bird"])
    with pytest.raises(DataError, match=r"the columns of y stand for .*'fish'"):
        class_probabilities_of(frame, ClassSpace(["dog", "cat", "fish"]))
    with pytest.raises(DataError, match="the columns of y stand for"):
        class_probabilities_of(P, ClassSpace([0, 1]))
