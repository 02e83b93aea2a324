"""Distances from training rows: p-values that are uniform, and rows that are far away found as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.stats import kstest

from extremegp.data import read_xc
from extremegp.engine.blocks import Block
from extremegp.errors import ModelFormatError
from extremegp.prediction import compared_rows
from extremegp.prediction import novelty as module
from extremegp.prediction.novelty import Novelty


def words(n: int, seed: int, n_features: int = 200) -> scipy.sparse.csr_matrix:
    """Rows of words of which some are much more frequent than others; all have the first."""
    rng = np.random.default_rng(seed)
    return scipy.sparse.csr_matrix((rng.random((n, n_features)) < 1 / (1 + np.arange(n_features))), dtype=np.float32)


def points(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(3, [1, 5, 0.1], size=(n, 3)).astype(np.float32)


def brute_force(x: np.ndarray, rows: np.ndarray, *, own: bool) -> np.ndarray:
    """Mean distances to the ten nearest rows, by the angle where rows are words."""
    directed = (x == 0).mean() > 0.5

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        if not directed:
            return float(np.linalg.norm(a.astype(float) - b))
        norms = np.linalg.norm(a) * np.linalg.norm(b)
        return 1 - float(a @ b / norms) if norms else 1.0

    found = []
    for i, a in enumerate(x):
        others = sorted(distance(a, b) for j, b in enumerate(rows) if not (own and i == j))
        found.append(np.mean(others[:10]))
    return np.array(found)


@pytest.mark.parametrize("make", [words, points])
def test_p_values_are_shares_of_training_rows_that_are_as_far_from_the_others(make):
    train, new = make(60, 0), make(40, 1)
    dense, dense_new = (x.toarray() if scipy.sparse.issparse(x) else x for x in (train, new))
    left_out, distances = brute_force(dense, dense, own=True), brute_force(dense_new, dense, own=False)
    expected = (1 + (left_out >= distances[:, None]).sum(1)) / 61
    novelty = Novelty.fit(train)
    np.testing.assert_allclose(novelty.p_values(new), expected)
    assert np.corrcoef(novelty.distances(new), distances)[0, 1] > 0.99999
    # However they are held.
    np.testing.assert_allclose(Novelty.fit(dense).p_values(scipy.sparse.csr_matrix(new)), expected)
    np.testing.assert_allclose(Novelty.fit(scipy.sparse.csr_matrix(train)).p_values(dense_new), expected)


@pytest.mark.parametrize("make", [words, points])
def test_p_values_of_held_out_rows_are_uniform(make):
    p = Novelty.fit(make(1500, 2)).p_values(make(1500, 3))
    assert kstest(p, "uniform").statistic < 0.05
    assert p.min() > 0
    assert p.max() <= 1


def test_p_values_of_held_out_rows_of_bibtex_are_uniform(shared_data: Path):
    x = read_xc(shared_data / "bibtex" / "train.txt.xz").X
    order = np.random.default_rng(0).permutation(x.shape[0])
    p = Novelty.fit(x[order[:2500]]).p_values(x[order[2500:]])
    assert kstest(p, "uniform").statistic < 0.05


def test_where_too_many_rows_are_trained_on_some_are_kept_and_p_values_stay_uniform(monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 500)
    novelty = Novelty.fit(words(3000, 4))
    assert novelty.n_rows == 500
    assert kstest(novelty.p_values(words(1500, 5)), "uniform").statistic < 0.08
    again = Novelty.fit(words(3000, 4))
    np.testing.assert_array_equal(novelty.left_out, again.left_out)


@pytest.mark.parametrize("make", [words, points])
def test_rows_are_compared_in_blocks_that_fit_into_memory(make, monkeypatch):
    expected = Novelty.fit(make(100, 0)).p_values(make(50, 1))
    shapes = []
    topk = torch.Tensor.topk
    monkeypatch.setattr(
        torch.Tensor, "topk", lambda x, *args, **options: shapes.append(x.numel()) or topk(x, *args, **options)
    )
    monkeypatch.setattr(compared_rows, "_BLOCK_ELEMENTS", 700)
    np.testing.assert_array_equal(Novelty.fit(make(100, 0)).p_values(make(50, 1)), expected)
    assert max(shapes) == 700


def test_of_many_rows_some_have_distances_and_p_values_stay_uniform(monkeypatch):
    monkeypatch.setattr(module, "MOST_LEFT_OUT", 400)
    novelty, new = Novelty.fit(words(1000, 4)), words(1500, 5)
    assert novelty.n_rows == 1000
    assert len(novelty.left_out) == 400
    p = novelty.p_values(new)
    assert kstest(p, "uniform").statistic < 0.08
    np.testing.assert_allclose(p * 401, np.round(p * 401))
    again = Novelty.from_tensors(novelty.to_tensors(), [200], "model")
    np.testing.assert_array_equal(again.p_values(new), p)


def test_few_numbers_are_kept_of_wide_rows(monkeypatch):
    monkeypatch.setattr(module, "_MOST_ENTRIES", 900)
    assert Novelty.fit(points(1000, 0)).n_rows == 300
    assert Novelty.fit(points(200, 0)).n_rows == 200


def test_rows_far_away_have_the_smallest_p_value():
    novelty = Novelty.fit(words(300, 0))
    nothing, unlike = scipy.sparse.csr_matrix((1, 200), dtype=np.float32), np.zeros((1, 200), np.float32)
    unlike[0, 150:] = 1
    np.testing.assert_allclose(novelty.p_values(nothing), 1 / 301)
    np.testing.assert_allclose(novelty.p_values(unlike), 1 / 301)
    novelty = Novelty.fit(points(300, 0))
    far = np.array([[1e3, 3, 3], [3, 3, 100], [1e38, -1e38, 0], [-1e38, 3, 3]], np.float32)
    np.testing.assert_allclose(novelty.p_values(far), 1 / 301)
    assert np.isfinite(novelty.distances(far)).all()


def test_a_copy_of_a_training_row_is_no_newer_than_the_row():
    train = points(200, 0)
    novelty = Novelty.fit(train)
    assert (novelty.distances(train) < novelty.left_out).all()
    assert novelty.p_values(train).mean() > 0.5


@pytest.mark.parametrize("make", [words, points])
def test_rows_that_are_all_the_same_are_equally_far(make):
    x = make(20, 0)
    x = x.toarray() if scipy.sparse.issparse(x) else x
    often = np.repeat(x, 12, axis=0)
    np.testing.assert_array_equal(Novelty.fit(often).p_values(x), 1)
    alone = np.concatenate([Novelty.fit(x).distances(row[None]) for row in x])
    np.testing.assert_array_equal(alone, Novelty.fit(x).distances(x))


def test_what_is_unknown_counts_as_unlike_everything():
    train, new = words(300, 0), words(50, 1)
    novelty = Novelty.fit(train, unknown=np.zeros((300, 1), np.float32))
    plain = novelty.distances(new)
    np.testing.assert_array_equal(novelty.distances(new, np.zeros((50, 1), np.float32)), plain)
    half = novelty.distances(new, np.full((50, 1), 0.5, np.float32))
    scale = float(novelty.to_tensors()["left_out"].mean())
    np.testing.assert_allclose(1 - half * scale, (1 - plain * scale) * np.sqrt(0.5), atol=1e-5)
    np.testing.assert_allclose(novelty.p_values(new, np.ones((50, 1), np.float32)), 1 / 301)
    # A column that beside the row itself only one other has says nothing where a new word would be unknown.
    counts = np.diff(train.tocsc().indptr)
    rare = np.flatnonzero(counts <= 2)
    strict = Novelty.fit(train, rare=rare)
    has = np.asarray(train[:, rare].sum(axis=1)).ravel() > 0
    assert has.any()
    assert (strict.left_out[has] > novelty.left_out[has] * 0.99).all()


def test_blocks_are_joined_by_their_p_values():
    x, v = words(200, 0), points(200, 1)
    new_x, new_v = words(50, 2), points(50, 3)
    blocks = [Block(200, dense=False), Block(3, dense=True)]
    alone = Novelty.fit(x), Novelty.fit(v)

    def beside(*parts: Any) -> scipy.sparse.csr_matrix:
        return scipy.sparse.hstack(parts, format="csr", dtype=np.float32)

    both = Novelty.fit(beside(x, v), blocks)
    inside = [n.distances(of) <= n.left_out.max() for n, of in zip(alone, (new_x, new_v), strict=True)]
    fisher = -np.log([n.p_values(of) for n, of in zip(alone, (new_x, new_v), strict=True)]).sum(0)
    inside = np.logical_and(*inside)
    np.testing.assert_allclose(both.distances(beside(new_x, new_v))[inside], fisher[inside], atol=1e-5)
    assert kstest(both.p_values(beside(words(500, 4), points(500, 5))), "uniform").statistic < 0.12
    far = [both.distances(beside(new_x, new_v + shift)) for shift in (100, 1000)]
    assert (far[1] > far[0]).all()
    assert (far[0] > both.left_out.mean()).all()


@pytest.mark.parametrize("x", [points(1, 0), points(2, 0), np.ones((5, 3), np.float32), np.zeros((5, 3), np.float32)])
def test_few_or_equal_rows_have_p_values_too(x):
    p = Novelty.fit(x).p_values(points(4, 1))
    assert (p > 0).all()
    assert (p <= 1).all()
    assert Novelty.fit(x).p_values(x)[0] == 1


@pytest.mark.parametrize("make", [words, points])
def test_distances_survive_storage(make):
    novelty, new = Novelty.fit(make(100, 0)), make(30, 1)
    again = Novelty.from_tensors(novelty.to_tensors(), [new.shape[1]], "model")
    np.testing.assert_array_equal(again.p_values(new), novelty.p_values(new))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("left_out", torch.zeros(3)),
        ("left_out", torch.zeros(0, 1)),
        ("left_out", torch.full((100, 1), float("nan"))),
        ("left_out", torch.full((100, 1), -1.0)),
        ("left_out", torch.zeros(100, 2)),
        ("directions", torch.ones(1)),
        ("0.values", torch.zeros(4)),
        ("0.columns", torch.zeros(4, dtype=torch.int32)),
        ("0.starts", torch.zeros(101, dtype=torch.int32)),
        ("0.starts", torch.zeros(101)),
    ],
)
def test_altered_tensors_are_refused(name: str, value: torch.Tensor):
    tensors = Novelty.fit(words(100, 0)).to_tensors()
    with pytest.raises(ModelFormatError, match=r"model: .*novelty"):
        Novelty.from_tensors(tensors | {name: value}, [200], "model")
    del tensors[name]
    with pytest.raises(ModelFormatError, match=r"model: .*novelty"):
        Novelty.from_tensors(tensors, [200], "model")
    with pytest.raises(ModelFormatError, match=r"novelty\.0\.rows"):
        Novelty.from_tensors(Novelty.fit(points(10, 0)).to_tensors(), [4], "model")
