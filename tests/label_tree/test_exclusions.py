from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression
from tests.label_tree.small import change_tensor, small_classifier

import extremegp
from extremegp import LabelTreeGPClassifier
from extremegp.errors import ModelFormatError
from extremegp.label_tree import exclusions
from extremegp.label_tree.columns import ColumnLists
from extremegp.label_tree.evidence_gain import Gain
from extremegp.label_tree.exclusions import ExclusionSearch, Pairs
from extremegp.label_tree.neighbours import nearest_of

N, N_TERMS = 400, 40


def terms(n_rows: int = N, seed: int = 0) -> tuple[scipy.sparse.csr_matrix, scipy.sparse.csr_matrix]:
    """Rows with some terms of a group as features and others of it as labels: a feature is never a label of its row."""
    rng = np.random.default_rng(seed)
    x, y = np.zeros((n_rows, N_TERMS), np.float32), np.zeros((n_rows, N_TERMS), np.float32)
    for i in range(n_rows):
        order = rng.permutation(10) + 10 * rng.integers(N_TERMS // 10)
        x[i, order[:3]], y[i, order[3:7]] = 0.6, 1
    return scipy.sparse.csr_matrix(x), scipy.sparse.csr_matrix(y)


def search(
    x: scipy.sparse.csr_matrix,
    y: scipy.sparse.csr_matrix,
    held_out: NDArray[np.int64],
    weights: NDArray[np.float32] | None = None,
) -> Pairs | None:
    seen = np.setdiff1d(np.arange(x.shape[0]), held_out)
    weights = np.ones(x.shape[0], np.float32) if weights is None else weights
    counted = np.zeros(x.shape[0], np.float32)
    counted[seen] = weights[seen]
    seen_y = scipy.sparse.csr_matrix(y.multiply(counted[:, None]), dtype=np.float32)
    seen_y.eliminate_zeros()
    found = ExclusionSearch(x, y, seen_y, seen, held_out, weights=weights, rng=np.random.default_rng(0))
    shares = list(found.steps())
    assert np.all(np.diff(shares) >= 0)
    return found.pairs


def dense(pairs: Pairs, n_features: int = N_TERMS) -> NDArray[np.float32]:
    """Log-ratios, features x labels."""
    matrix = np.zeros((n_features, len(pairs.starts) - 1), np.float32)
    for label, (start, end) in enumerate(zip(pairs.starts[:-1], pairs.starts[1:], strict=True)):
        assert np.all(np.diff(pairs.features[start:end]) > 0)
        matrix[pairs.features[start:end], label] = pairs.log_ratios[start:end]
    return matrix


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("block", [7, 1024])
def test_log_ratios_are_those_of_the_definition(monkeypatch: pytest.MonkeyPatch, weighted: bool, block: int):
    monkeypatch.setattr(exclusions, "_BLOCK_ROWS", block)
    (x, y), held_out = terms(), np.arange(0, N, 5)
    rng = np.random.default_rng(3)
    weights = (0.2 + 2 * rng.random(N) if weighted else np.ones(N)).astype(np.float32)
    pairs = search(x, y, held_out, weights)
    assert pairs is not None
    seen = np.setdiff1d(np.arange(N), held_out)
    labels, of_rows, chances = y.toarray(), [], []
    columns = ColumnLists.of(x)
    for i in seen:
        near = nearest_of(x[i], columns, np.array([i]))
        rows, similarities = near.rows[0, : near.sizes[0]][:200], near.similarities[0, : near.sizes[0]][:200]
        of_row = similarities.astype(float) ** 2 * weights[rows]
        shares = (of_row / of_row.sum()) @ np.where(np.isin(rows, held_out)[:, None], 0, labels[rows])
        best = np.argsort(-shares, kind="stable")[:40]
        of_rows.append({int(k): float(shares[k]) for k in best if shares[k] >= 0.01})
        chances += [(share, labels[i, k]) for k, share in of_rows[-1].items()]
    calibrated = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(*np.array(chances).T)
    expected, observed = np.zeros((2, N_TERMS, N_TERMS))
    for i, found in zip(seen, of_rows, strict=True):
        for k, share in found.items():
            for feature in x[i].indices:
                expected[feature, k] += weights[i] * calibrated.predict([share])[0]
                observed[feature, k] += weights[i] * labels[i, k]
    ratios = np.log((observed + 1) / (expected + 1))
    mine, clear = dense(pairs), np.abs(ratios + 0.5) > 0.05
    np.testing.assert_allclose(mine[clear], np.where(ratios < -0.5, ratios, 0)[clear], atol=0.05)
    assert (mine < 0).sum() > 0.8 * N_TERMS


def test_terms_exclude_themselves_and_little_else():
    x, y = terms()
    pairs = search(x, y, np.arange(0, N, 5))
    assert pairs is not None
    found = dense(pairs)
    assert (found.diagonal() < 0).mean() > 0.9
    assert (found[~np.eye(N_TERMS, dtype=bool)] < 0).mean() < 0.01


def test_nothing_is_excluded_where_nothing_is_to_be_excluded():
    x, _ = terms()
    y = scipy.sparse.csr_matrix(x.toarray() > 0, dtype=np.float32)
    assert search(x, y, np.arange(0, N, 5)) is None


def test_labels_of_rows_held_out_change_nothing():
    (x, y), held_out = terms(), np.arange(0, N, 5)
    first = search(x, y, held_out)
    other = y.tolil()
    # They still decide whether exclusions are of use at all.
    other[held_out[:3]] = 1
    second = search(x, scipy.sparse.csr_matrix(other), held_out)
    assert first is not None
    assert second is not None
    for mine, expected in zip(second, first, strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_the_lowest_of_a_rows_features_is_taken():
    rng = np.random.default_rng(1)
    ratios = np.where(rng.random((6, 5)) < 0.5, -rng.random((6, 5)), 0).astype(np.float32)
    label, feature = np.nonzero(ratios.T)
    starts = np.searchsorted(label, np.arange(6)).astype(np.int64)
    pairs = Pairs(starts, feature.astype(np.int32), ratios.T[label, feature])
    x = scipy.sparse.csr_matrix((rng.random((4, 6)) < 0.4).astype(np.float32))
    rows, labels = np.array([0, 0, 1, 3, 3, 3]), np.array([0, 4, 2, 1, 3, 0], np.int32)
    expected = [min([0.0, *ratios[x[i].indices, k]]) for i, k in zip(rows, labels, strict=True)]
    np.testing.assert_allclose(pairs.lowest(x, rows, labels), expected)


def best_precision(classifier: Any, x: Any, y: Any) -> float:
    best = classifier.predict_topk(x, 3).labels
    return float(np.mean([y[i, k] for i, row in enumerate(best) for k in row]))


def test_a_model_ranks_by_them(monkeypatch: pytest.MonkeyPatch):
    x, y = terms()
    test_x, test_y = terms(100, 1)
    settings: dict[str, Any] = {"features": "raw", "n_trees": 1, "leaf_size": 20, "all_rows": False}
    found = small_classifier(**settings).fit(x, y)
    assert found.settings_.n_excluded > 0
    monkeypatch.setattr(exclusions, "gain_of", lambda *_: Gain(0.0, 0.0))
    without = small_classifier(**settings).fit(x, y)
    assert without.settings_.n_excluded == 0
    after, before = (best_precision(model, test_x, test_y.toarray()) for model in (found, without))
    assert after > before


@pytest.fixture(scope="module")
def both() -> LabelTreeGPClassifier:
    """A model with exclusions and a regression on all rows; tests must not change it."""
    return small_classifier(features="raw", n_trees=1, leaf_size=20, all_rows=True).fit(*terms())


def test_a_loaded_model_has_them(both: LabelTreeGPClassifier, tmp_path: Path):
    both.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    assert loaded.settings_ == both.settings_
    assert both.settings_.n_excluded > 0
    assert both.settings_.n_directions > 0
    x, _ = terms(60, 2)
    np.testing.assert_array_equal(loaded.predict_proba(x), both.predict_proba(x))


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("exclusions.features", lambda features: features.index_fill(0, torch.tensor([0]), N_TERMS), "out of range"),
        ("exclusions.features", lambda features: features.index_fill(0, torch.tensor([0]), -1), "out of range"),
        ("exclusions.starts", lambda starts: starts.flip(0), "contradict"),
        ("exclusions.log_ratios", lambda ratios: ratios * torch.nan, "NaN"),
        ("all_rows.noise", torch.zeros_like, "contradict"),
        ("all_rows.spreads", lambda spreads: -spreads, "contradict"),
        ("all_rows.directions", lambda directions: directions * torch.nan, "NaN"),
        ("all_rows.directions", lambda directions: directions[1:], "expected"),
    ],
)
def test_a_file_that_was_tampered_with_is_refused(
    both: LabelTreeGPClassifier, tmp_path: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor], reason: str
):
    both.save(tmp_path / "model")
    change_tensor(tmp_path / "model", f"model.{name}", change)
    with pytest.raises(ModelFormatError, match=reason):
        extremegp.load(tmp_path / "model")
