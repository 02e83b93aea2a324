"""Classes by a regression alone, the default: what it knows, what it does not know, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from tests.models import random_inputs
from typer.testing import CliRunner

import extremegp
from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.cli import app
from extremegp.errors import BudgetWarning, DataError, MemoryPlanError, ModelFormatError, SettingsError

N = 90


def _clusters(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two clusters with a gap between; in each two classes by the second coordinate, some of them mistaken."""
    rng = np.random.default_rng(seed)
    left = rng.random(N) < 0.5
    x = rng.normal(size=(N, 2)) * 0.5 + np.where(left, -2.0, 2.0)[:, None] * np.array([1.0, 0.0])
    y = np.where(left, 0, 2) + (x[:, 1] > 0)
    wrong = rng.random(N) < 0.1
    return x.astype(np.float32), np.where(wrong, rng.integers(0, 4, N), y)


def _fitted(**params: Any) -> MultiClassGPClassifier:
    return MultiClassGPClassifier(random_state=0, verbose=False, **params).fit(*_clusters())


def test_it_is_the_default_and_is_unsure_where_it_has_seen_nothing():
    model = _fitted()
    assert model.settings_.latents == "regression"
    x, y = _clusters(seed=1)
    assert (model.predict(x) == y).mean() > 0.75
    inside, gap = model.predict_uncertainty(x), model.predict_uncertainty(np.array([[0.0, 0.6], [0.0, -0.6]]))
    far = np.array([[90.0, 0.0], [0.0, -90.0]])
    unknown = model.predict_uncertainty(far)
    assert inside.epistemic.mean() < gap.epistemic.min()
    assert gap.epistemic.mean() < unknown.epistemic.min()
    assert np.max(inside.variance) < np.min(unknown.variance)
    frequencies = model.label_counts_ / N
    np.testing.assert_allclose(model.predict_proba(far), np.tile(frequencies, (2, 1)), atol=0.01)


def test_rows_without_features_are_as_likely_of_each_class_as_it_is_frequent():
    x = random_inputs(N, 60, density=0.05, seed=0)
    x[~x.any(1), 0] = 1
    y = (x[:, :30].sum(1) > x[:, 30:].sum(1)).astype(int)
    model = MultiClassGPClassifier(random_state=0, verbose=False).fit(scipy.sparse.csr_matrix(x), y)
    empty = scipy.sparse.csr_matrix((1, 60))
    np.testing.assert_allclose(model.predict_proba(empty)[0], model.label_counts_ / N, atol=0.01)
    found, of_rows = model.predict_uncertainty(empty), model.predict_uncertainty(scipy.sparse.csr_matrix(x))
    assert found.epistemic[0] > of_rows.epistemic.max()


def test_a_saved_model_gives_the_same_bits(tmp_path: Path):
    model, (x, _) = _fitted(), _clusters(seed=1)
    model.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(x), model.predict_proba(x))
    np.testing.assert_array_equal(loaded.predict_uncertainty(x).epistemic, model.predict_uncertainty(x).epistemic)
    assert [record.keys() for record in loaded.history_] == [{"epoch", "seconds"}]
    assert loaded.hyperparameters_ == model.hyperparameters_


def test_rows_held_out_are_scored_once():
    model = _fitted(validation_fraction=0.2)
    assert [*model.history_[0]] == ["epoch", "seconds", "validation_accuracy"]
    assert 0.5 < model.history_[0]["validation_accuracy"] <= 1


@pytest.mark.parametrize(
    "params", [{"epochs": 2}, {"kernel": "se"}, {"n_sampled_classes": 2}, {"mean_function": "zero"}]
)
def test_it_is_not_taken_where_something_else_is_asked_for(params: dict[str, Any]):
    name, value = next(iter(params.items()))
    refused = f'latents="regression" does not go with {name}={value!r}'
    with pytest.raises(SettingsError, match=refused.replace("(", r"\(")):
        _fitted(latents="regression", **params)
    assert _fitted(**{"epochs": 2} | params | {"n_inducing": 5}).settings_.latents == "gp"


def test_likelihoods_without_a_prior_are_refused():
    with pytest.raises(SettingsError, match="does not go with likelihood='robust-max'"):
        _fitted(latents="regression", likelihood="robust-max")


def test_labels_have_it_by_name():
    x, y = _clusters()
    labels = np.stack([y % 2, y // 2, np.random.default_rng(0).integers(0, 2, N)], axis=1)
    model = MultiLabelGPClassifier(latents="regression", features="raw", random_state=0, verbose=False).fit(x, labels)
    far = np.array([[90.0, 0.0]])
    np.testing.assert_allclose(model.predict_proba(far)[0], labels.mean(0), atol=0.01)
    assert (model.predict(x)[:, :2] == labels[:, :2]).mean() > 0.85
    assert model.predict_uncertainty(x).epistemic.max() < model.predict_uncertainty(far).epistemic[0]


def test_integer_weights_repeat_rows():
    x, y = _clusters()
    counts = np.random.default_rng(2).integers(1, 3, N)
    params = {"random_state": 0, "verbose": False, "n_inducing": 1000}
    weighted = MultiClassGPClassifier(**params).fit(x, y, sample_weight=counts)
    assert weighted.settings_.latents == "regression"
    assert (weighted.predict(x) == y).mean() > 0.8


def test_a_whole_number_is_as_good_as_a_default():
    assert _fitted(kl_weight=1, learning_rate=np.float64(0.02)).settings_.latents == "regression"


@pytest.mark.parametrize("weight", [1e-3, 30.0])
def test_equal_weights_of_any_size_say_as_much_of_amplitudes(weight: float):
    x, y = _clusters()
    options = {"random_state": 0, "verbose": False}
    one, other = (
        MultiClassGPClassifier(**options).fit(x, y, sample_weight=weights).model_.latents.amplitudes
        for weights in (None, np.full(N, weight))
    )
    assert float((other / one).max()) < 20


@pytest.mark.parametrize("weight", [1e-30, 1e20])
def test_equal_weights_of_any_size_do_no_harm(weight: float):
    x, y = _clusters()
    model = MultiClassGPClassifier(random_state=0, verbose=False).fit(x, y, sample_weight=np.full(N, weight))
    assert np.isfinite(model.predict_proba(x)).all()


@pytest.mark.parametrize(("others", "weight"), [(1.0, 1e-13), (1.0, 1e13), (1e-31, 1e-31), (1e31, 1e31)])
def test_weights_of_very_different_sizes_are_refused(others: float, weight: float):
    weights = np.full(N, others)
    weights[7] = weight
    with pytest.raises(DataError, match=r"sample_weight of row \d+ \(counted from 0\) is 1"):
        MultiClassGPClassifier(random_state=0, verbose=False).fit(*_clusters(), sample_weight=weights)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share", -1.0),
        ("amplitudes", -1.0),
        ("shrinkage", 2.0),
        ("floor", 0.0),
        ("slope", 1e30),
        ("mean.weights", -1.0),
    ],
)
def test_altered_numbers_are_refused(name: str, value: float, tmp_path: Path):
    model = _fitted()
    model.model_.latents.state_dict()[name].fill_(value)
    model.save(tmp_path / "model")
    with pytest.raises(ModelFormatError, match=f"latents.{name}' holds a value out of range"):
        extremegp.load(tmp_path / "model")


def test_of_little_memory_fewer_rows_are_kept(monkeypatch: pytest.MonkeyPatch):
    x = np.random.default_rng(0).normal(size=(1200, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    monkeypatch.setattr("extremegp.estimators.fitting.memory_left", lambda *_: 12 << 20)
    model = MultiClassGPClassifier(random_state=0, verbose=False, n_inducing=100).fit(x, y)
    assert model.settings_.latents == "regression"
    assert model.lowered_.keys() == {"n_mean_points"}
    assert model.settings_.n_mean_points < 1200
    monkeypatch.setattr("extremegp.estimators.fitting.memory_left", lambda *_: 1 << 20)
    with pytest.raises(MemoryPlanError, match='lower n_mean_points or n_inducing, or set latents="gp"'):
        MultiClassGPClassifier(random_state=0, verbose=False).fit(x, y)


def test_a_time_budget_that_was_too_small_is_told_of():
    with pytest.warns(BudgetWarning, match="lower n_mean_points"):
        _fitted(time_budget=1e-3)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path):
    (tmp_path / "checkpoint").write_bytes(b"of another training")
    with pytest.raises(ModelFormatError, match="other data or settings"):
        _fitted(checkpoint=tmp_path / "checkpoint")


def test_at_a_shell_it_trains_and_says_what_it_is(tmp_path: Path):
    x, y = _clusters()
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    data, model = [str(tmp_path / "x.npy"), "--labels", str(tmp_path / "y.npy")], str(tmp_path / "model")
    for arguments in (["train", *data, "--out", model], ["info", model, "--all"], ["evaluate", model, *data]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        if arguments[0] != "evaluate":
            assert "regression" in result.output
            assert "ELBO" not in result.output
