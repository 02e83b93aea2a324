from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from tests.reference.label_tree import nearest_rows as reference

from extremegp.label_tree.neighbours import nearest_rows


def search(x: np.ndarray, rows: np.ndarray, own: list[int], m: int, most_read: int, lanes: int = 1) -> list:
    a, columns = scipy.sparse.csr_matrix(x), scipy.sparse.csc_matrix(rows)
    nearest, similarities = np.zeros((len(x), m), np.int32), np.zeros((len(x), m), np.float32)
    sizes = np.zeros(len(x), np.int64)
    nearest_rows(
        len(x), a.indptr, a.indices, a.data, columns.indptr, columns.indices, columns.data, len(rows), np.array(own),
        most_read, nearest, similarities, sizes, lanes=lanes,
    )  # fmt: skip
    assert all(np.all(np.diff(found[:size]) <= 0) for found, size in zip(similarities, sizes, strict=True))
    found = zip(similarities.tolist(), nearest.tolist(), sizes, strict=True)
    return [list(zip(values[:size], numbers[:size], strict=True)) for values, numbers, size in found]


def integers(n: int, seed: int) -> np.ndarray:
    """Small integers, of both signs, which float32 adds without rounding, so that there are ties."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random((n, 9)) < 0.4, rng.integers(-2, 4, size=(n, 9)), 0).astype(np.float32)


def ordered(found: list) -> list:
    return [sorted((-similarity, row) for similarity, row in of_input) for of_input in found]


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("most_read", [1, 20, 10**6])
@pytest.mark.parametrize("m", [1, 5, 60])
def test_the_nearest_are_those_of_all_inner_products(m: int, most_read: int, lanes: int):
    x, rows = integers(12, 0), integers(40, 1)
    x[4] = 0
    rows[7] = 0
    found = search(x, rows, [-1] * 12, m, most_read, lanes)
    assert ordered(found) == ordered([reference(row, rows, -1, m, most_read) for row in x])
    assert found[4] == []
    assert all(len(of_input) <= m for of_input in found)


def test_a_row_is_not_its_own_neighbour_but_its_twin_is():
    rows = np.concatenate([integers(15, 2), integers(15, 2)]) + np.eye(30, 9, dtype=np.float32)
    rows[15:] = rows[:15]
    own = [2, 20, 29]
    found = search(rows[own], rows, own, 6, 10**6)
    assert ordered(found) == ordered([reference(rows[i], rows, i, 6) for i in own])
    assert all(i not in [row for _, row in of_input] for i, of_input in zip(own, found, strict=True))


def test_the_shortest_list_is_read_whatever_the_limit():
    rows = np.ones((5, 2), np.float32)
    rows[2:, 1] = 0
    (found,) = search(np.array([[1.0, 5.0]], np.float32), rows, [-1], 9, 1)
    assert sorted(found) == [(5.0, 0), (5.0, 1)]
