"""Beyond the limits of closed posteriors: sparse Gaussian processes beside a regression whose variance they carry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import extremegp
from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.settings import latents

N, K = 150, 4
SMALL: dict[str, Any] = {"n_inducing": 15, "epochs": 12, "random_state": 0, "verbose": False, "features": "raw"}
FAR = np.array([[60.0, 0.0, 0.0], [0.0, -70.0, 0.0]], dtype=np.float32)


@pytest.fixture
def beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed posteriors are for fewer rows than there are."""
    monkeypatch.setattr(latents, "_MOST_LANDMARK_ROWS", 50)
    monkeypatch.setattr(latents, "EXACT_ROWS", 50)


def _data(kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 3)).astype(np.float32)
    scores = x @ np.random.default_rng(9).normal(size=(3, K)) + 0.7 * rng.normal(size=(N, K))
    return x, scores.argmax(1) if kind == "classes" else (scores > 0.8).astype(np.int64)


def _fitted(kind: str, **options: Any) -> Any:
    estimator = MultiClassGPClassifier if kind == "classes" else MultiLabelGPClassifier
    return estimator(**{**SMALL, **options}).fit(*_data(kind))


def _frequencies(kind: str) -> np.ndarray:
    y = _data(kind)[1]
    return np.bincount(y, minlength=K) / N if kind == "classes" else y.mean(0)


@pytest.mark.usefixtures("beyond")
@pytest.mark.parametrize("kind", ["labels", "classes"])
def test_the_default_is_least_sure_far_from_the_data_and_says_frequencies_there(kind: str, tmp_path: Path):
    options = {"random_state": 0, "verbose": False, "features": "raw"}
    estimator: Any = (MultiClassGPClassifier if kind == "classes" else MultiLabelGPClassifier)(**options)
    x, y = _data(kind)
    model = estimator.fit(x, y)
    assert (model.settings_.latents, model.settings_.n_variance_points) == ("gp", N)
    new, _ = _data(kind, seed=1)
    train, test, far = (model.predict_uncertainty(part) for part in (x, new, FAR))
    assert train.epistemic.mean() < test.epistemic.mean() < far.epistemic.min()
    assert train.variance.mean() < test.variance.mean() < far.variance.min()
    np.testing.assert_allclose(model.predict_proba(FAR), np.tile(_frequencies(kind), (2, 1)), atol=5e-3)
    model.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(new), model.predict_proba(new))
    np.testing.assert_array_equal(loaded.predict_uncertainty(new).epistemic, test.epistemic)


@pytest.mark.parametrize("kind", ["labels", "classes"])
def test_the_share_of_the_variance_is_chosen_by_rows_left_out(kind: str):
    model = _fitted(kind, latents="gp")
    selection = model.hyperparameters_[-1]
    assert [*selection.chosen] == ["share"]
    scores = {tried["share"]: tried["score"] for tried in selection.tried}
    assert scores[selection.chosen["share"]] > scores[0.0] - 0.3


@pytest.mark.parametrize(
    "options",
    [
        {"likelihood": "ar-softmax"},
        {"likelihood": "one-vs-each"},
        {"likelihood": "independent", "n_latent": 2},
        {"mixing": "factor", "n_latent": 2},
    ],
    ids=str,
)
def test_class_likelihoods_have_it_too(options: dict[str, Any]):
    model = _fitted("classes", latents="gp", **options)
    x, _ = _data("classes")
    assert model.predict_uncertainty(x).epistemic.mean() < model.predict_uncertainty(FAR).epistemic.min()
    np.testing.assert_allclose(model.predict_proba(FAR), np.tile(_frequencies("classes"), (2, 1)), atol=0.02)


def test_more_rows_than_landmarks_and_sparse_rows_give_nearly_the_same(monkeypatch: pytest.MonkeyPatch):
    x, y = _data("labels")
    whole = _fitted("labels", latents="gp")
    sparse = MultiLabelGPClassifier(latents="gp", **SMALL).fit(scipy.sparse.csr_matrix(x), y)
    monkeypatch.setattr(latents, "_LANDMARKS", 60)
    some = _fitted("labels", latents="gp")
    assert some.settings_.n_variance_points == 60
    for other in (sparse, some):
        np.testing.assert_allclose(other.predict_proba(x), whole.predict_proba(x), atol=0.05)
        assert other.predict_uncertainty(x).epistemic.mean() < other.predict_uncertainty(FAR).epistemic.min()


def test_known_labels_leave_rows_without_any_as_they_are():
    model = _fitted("labels", latents="gp")
    x, _ = _data("labels", seed=1)
    given = np.zeros((N, K))
    given[1:, 0] = 1
    plain = model.predict_proba(x)
    found = model.predict_proba(x, given=given)
    np.testing.assert_array_equal(found[0], plain[0])
    assert (found[1:, 0] == 1).all()


def test_weights_of_rows_say_how_much_is_known():
    x, y = _data("labels")
    light, heavy = (
        MultiLabelGPClassifier(latents="gp", **SMALL).fit(x, y, sample_weight=np.full(N, weight))
        for weight in (0.2, 5.0)
    )
    assert heavy.predict_utilities(x).variance.mean() < light.predict_utilities(x).variance.mean()


@pytest.mark.parametrize(
    "options", [{"mean_function": "zero"}, {"likelihood": "robust-max"}, {"latents": "linear"}], ids=str
)
def test_where_there_is_no_regression_or_no_smooth_likelihood_there_is_none(options: dict[str, Any]):
    model = _fitted("classes", **{"latents": "gp"} | options)
    assert model.settings_.n_variance_points == 0
    assert model.model_.regression_variance is None
