from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from tests.reference.label_tree import nearest_rows as reference

from extremegp.label_tree.columns import ColumnLists
from extremegp.label_tree.neighbours import nearest_rows, unexplained_rows


def search(x: np.ndarray, rows: np.ndarray, own: list[int], m: int, most_read: int, lanes: int = 1) -> list:
    a, columns = scipy.sparse.csr_matrix(x), ColumnLists(scipy.sparse.csc_matrix(rows))
    nearest, similarities = np.zeros((len(x), m), np.int32), np.zeros((len(x), m), np.float32)
    sizes = np.zeros(len(x), np.int64)
    nearest_rows(
        len(x), a.indptr, a.indices, a.data, *columns.arrays(), len(rows), np.array(own),
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


def unexplained(
    x: np.ndarray, rows: np.ndarray, known: np.ndarray, weights: np.ndarray, sizes: list[int], own: list[int], m: int,
    *, n_features: int = 9, most_read: int = 10**6, lanes: int = 1,
) -> list[list[int]]:  # fmt: skip
    a, b, columns = (
        scipy.sparse.csr_matrix(x),
        scipy.sparse.csr_matrix(rows),
        ColumnLists(scipy.sparse.csc_matrix(rows)),
    )
    found, n_found = np.zeros((len(x), known.shape[1] + m), np.int32), np.array(sizes)
    found[:, : known.shape[1]] = known
    unexplained_rows(
        len(x), a.indptr, a.indices, a.data, b.indptr, b.indices, b.data, *columns.arrays(),
        np.array(own), weights, n_features, most_read, found, n_found, lanes=lanes,
    )  # fmt: skip
    return [row[:size].tolist() for row, size in zip(found, n_found, strict=True)]


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("n_features", [3, 9])
@pytest.mark.parametrize("m", [1, 7, 60])
def test_rows_that_others_leave_unexplained_have_the_largest_products_with_the_rest(
    m: int, n_features: int, lanes: int
):
    rng = np.random.default_rng(3)
    x, rows = rng.normal(size=(10, 9)).astype(np.float32), rng.normal(size=(40, 9)).astype(np.float32)
    x[rng.random(x.shape) < 0.6], rows[rng.random(rows.shape) < 0.7] = 0, 0
    known = np.stack([rng.permutation(40)[:4] for _ in range(10)]).astype(np.int32)
    weights = rng.normal(size=(10, 4)).astype(np.float32)
    sizes, own = [4, 4, 0, 2, 4, 1, 4, 4, 3, 4], [-1, 5, 7, -1, 8, 9, -1, -1, -1, 11]
    found = unexplained(x, rows, known, weights, sizes, own, m, n_features=n_features, lanes=lanes)
    for i, size in enumerate(sizes):
        rest = x[i] - weights[i, :size] @ rows[known[i, :size]]
        rest[np.argsort(-np.abs(rest), kind="stable")[n_features:]] = 0
        products = np.abs(rows @ rest)
        others = [j for j in range(40) if j not in known[i, :size] and j != own[i] and (rows[j] * rest).any()]
        expected = sorted(others, key=lambda j: -products[j])[:m]
        assert found[i] == known[i, :size].tolist() + expected


def test_nothing_is_unexplained_of_an_input_that_is_a_known_row():
    rows = np.eye(4, dtype=np.float32)
    found = unexplained(rows[:1], rows, np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32), [1], [-1], 3)
    # The row itself has no other.
    assert found == [[0]]
