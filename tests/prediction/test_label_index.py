"""Approximate search finds what exact search does, as carefully as it is tuned to."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from extremegp.errors import SettingsError
from extremegp.metrics import TopK
from extremegp.metrics.topk import PAD
from extremegp.prediction import label_index
from extremegp.prediction.label_index import FEWEST_ROWS, LabelIndex
from extremegp.prediction.predictor import Predictor, RankedBy
from extremegp.settings.model import ModelSettings

faiss = pytest.importorskip("faiss")

N, D, K = 80, 7, 1500


@pytest.fixture
def predictor(monkeypatch: pytest.MonkeyPatch) -> Predictor:
    """A model of labels in groups, few of which are in the head."""
    monkeypatch.setattr(label_index, "_HEAD_LABELS", 100)
    monkeypatch.setattr(label_index, "_FEWEST_INDEXED", 100)
    return made(7)


def made(n_latent: int, **changes: object) -> Predictor:
    rng = np.random.default_rng(0)
    settings = {"n_features": D, "n_labels": K, "n_latent": n_latent, "n_inducing": 20, "kernel": "ard"} | changes
    model = ModelSettings(**settings).build().requires_grad_(False)  # type: ignore[arg-type]
    groups = rng.normal(size=(60, n_latent))[rng.integers(60, size=K)]
    model.mixing.loadings.copy_(torch.from_numpy(groups + 0.4 * rng.normal(size=groups.shape)))
    model.mixing.bias.copy_(torch.from_numpy(-2 - np.log1p(rng.permutation(K))))
    model.latents.inducing.transposed.copy_(torch.from_numpy(rng.normal(size=(D, 20))))
    model.latents.posterior.q_mean.copy_(torch.from_numpy(2 * rng.normal(size=(n_latent, 20))))
    return Predictor(model)


def rows(seed: int = 1, n: int = N) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, D)).astype(np.float32)


def together(blocks: object) -> tuple[TopK, np.ndarray]:
    parts = list(blocks)  # type: ignore[call-overload]
    return TopK.concatenate([best for _, best, _ in parts]), np.concatenate([p for *_, p in parts])


def recall(found: TopK, exact: TopK) -> float:
    return float(np.mean([np.isin(row, of).mean() for row, of in zip(exact.labels, found.labels, strict=True)]))


@pytest.mark.parametrize("by", ["probability", "utility"])
@pytest.mark.parametrize("n_latent", [6, 7])
def test_the_most_careful_search_finds_nearly_all_with_the_scores_of_the_model(
    predictor: Predictor, by: RankedBy, n_latent: int
) -> None:
    of = made(n_latent)
    index = LabelIndex(of)
    assert index.n_lists > 10
    (exact, p), (found, found_p) = (together(search.top(rows(), 5, by)) for search in (of, index))
    assert recall(found, exact) > 0.99
    same = found.labels == exact.labels
    assert same.mean() > 0.95
    np.testing.assert_allclose(found.scores[same], exact.scores[same], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(found_p[same], p[same], rtol=1e-5)


def test_tuning_takes_a_cheaper_search_for_less_recall_and_measures_it(predictor: Predictor) -> None:
    index, x = LabelIndex(predictor), rows()
    exact, _ = together(predictor.top(x, 3))
    costs = []
    for wanted in (0.5, 0.9, 0.99):
        setting = index.tune(x, 3, wanted)
        assert index.setting is setting
        assert setting.n_rows == N
        assert setting.recall is not None
        assert setting.recall >= wanted
        assert recall(together(index.top(x, 3))[0], exact) == pytest.approx(setting.recall)
        costs.append(index._cost(setting))
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]


def test_nothing_is_measured_on_few_rows_and_more_rows_are_measured_again(predictor: Predictor) -> None:
    index = LabelIndex(predictor)
    careful = index.setting
    assert index.tune(rows(n=FEWEST_ROWS - 1), 3, 0.9) == careful
    assert careful.recall is None
    first = index.tune(rows(n=FEWEST_ROWS), 3, 0.9)
    assert (first.n_rows, index.tune(rows(seed=2, n=FEWEST_ROWS), 3, 0.9)) == (FEWEST_ROWS, first)
    assert index.tune(rows(), 3, 0.9).n_rows == N
    assert index.tune(rows(n=1), 3, 0.9).n_rows == N


def test_of_few_labels_all_are_looked_at() -> None:
    of = made(7)
    index = LabelIndex(of)
    assert index.n_lists == 0
    (exact, p), (found, found_p) = (together(search.top(rows(), 5, "utility")) for search in (of, index))
    np.testing.assert_array_equal(found.labels, exact.labels)
    np.testing.assert_allclose(found_p, p, rtol=1e-5)


def test_more_labels_than_candidates_end_in_pads(predictor: Predictor) -> None:
    index = LabelIndex(predictor)
    best, p = together(index.top(rows(n=2), K + 5))
    assert best.labels.shape == p.shape == (2, K + 5)
    assert (best.labels[:, K:] == PAD).all()
    assert (p[best.labels == PAD] == 0).all()


def test_equal_seeds_give_equal_predictions(predictor: Predictor) -> None:
    first, second = (together(LabelIndex(predictor, seed=3).top(rows(), 5))[0] for _ in range(2))
    np.testing.assert_array_equal(first.labels, second.labels)


def test_models_that_tie_their_labels_together_are_refused() -> None:
    with pytest.raises(SettingsError, match="mean_function"):
        LabelIndex(made(7, n_mean_points=3, n_mean_stored=None))


@pytest.mark.parametrize("wanted", [0.0, 1.1, float("nan")])
def test_a_recall_outside_its_domain_is_refused(wanted: float) -> None:
    with pytest.raises(SettingsError, match="above 0 and at most 1"):
        LabelIndex(made(7)).tune(rows(), 5, wanted)


def test_a_missing_faiss_is_named_with_its_extra(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(SettingsError, match=r"extremegp\[ann\]"):
        LabelIndex(predictor)
