from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from extremegp.label_tree.columns import ColumnLists


def dense(lists: ColumnLists) -> np.ndarray:
    found = np.zeros((lists.n_rows, len(lists.starts)), np.float32)
    for feature, (start, end) in enumerate(zip(lists.starts, lists.ends, strict=True)):
        rows = lists.rows[start:end]
        assert np.all(np.diff(rows) > 0)
        found[rows, feature] = lists.values[start:end]
    return found


@pytest.mark.parametrize("seed", range(3))
def test_rows_come_and_go(seed: int):
    rng = np.random.default_rng(seed)
    rows = [*scipy.sparse.random(20, 9, 0.4, dtype=np.float32, random_state=rng).toarray()]
    lists = ColumnLists.of(scipy.sparse.csr_matrix(np.array(rows)))
    for _ in range(120):
        if rows and rng.random() < 0.4:
            place = int(rng.integers(len(rows)))
            rows.pop(place)
            lists.remove(place)
        else:
            row = np.where(rng.random(9) < 0.5, rng.normal(size=9), 0).astype(np.float32)
            rows.append(row)
            features = np.flatnonzero(row).astype(np.int32)
            lists.append(features, row[features])
        np.testing.assert_array_equal(dense(lists), np.reshape(rows, (-1, 9)))
    b = rng.normal(size=(len(rows), 3)).astype(np.float32)
    np.testing.assert_allclose(lists.times(b), np.reshape(rows, (-1, 9)).T @ b, atol=1e-5)


def test_nothing_of_a_row_is_left():
    lists = ColumnLists.of(scipy.sparse.csr_matrix(np.array([[1, 0], [7.5, 7.5], [2, 3]], np.float32)))
    lists.remove(1)
    assert 7.5 not in lists.values
