from __future__ import annotations

import numpy as np
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from extremegp.label_tree._compiled import keep_best, times_dense


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.integers(1, 12), st.randoms(use_true_random=False))
def test_the_best_are_those_that_sorting_finds(values: list[int], room: int, random: object):
    scores, items = np.array(values, np.float32), np.arange(len(values), dtype=np.int32)
    random.shuffle(items)
    n_items = (len(items) + 1) // 2
    best, best_scores = np.full(room, -1, np.int32), np.zeros(room, np.float32)
    size = keep_best(scores, items, n_items, best, best_scores)
    expected = sorted((-scores[item], item) for item in items[:n_items])[:room]
    assert sorted(zip(-best_scores[:size], best[:size], strict=True)) == expected


def test_the_product_is_that_of_scipy():
    rng = np.random.default_rng(0)
    a = scipy.sparse.random(7, 5, 0.4, format="csr", dtype=np.float32, random_state=0)
    b = rng.normal(size=(5, 3)).astype(np.float32)
    out = np.full((7, 3), np.nan, np.float32)
    times_dense(a.indptr, a.indices, a.data, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5, atol=1e-6)
