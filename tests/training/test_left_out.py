"""What training and prediction are shown of a regression as mean function, and where biases start beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.special import expit, logit, softmax
from tests.models import random_inputs

from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.data import one_hot
from extremegp.engine.batch import Batch
from extremegp.engine.lengthscales import Learnt
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.estimators import scatter
from extremegp.settings.model import ModelSettings

N, D, K = 30, 6, 4
LOG_WEIGHTS, NOISE, FLOOR = np.linspace(-0.5, 1.0, D, dtype=np.float32), 0.1, 5e-3


def _data(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and the indicator of labels or classes that they tell of."""
    x = random_inputs(N, D, density=0.8, seed=3).astype(np.float32)
    scores = x @ np.random.default_rng(4).normal(size=(D, K))
    if kind == "classes":
        return x, np.eye(K, dtype=np.float32)[np.append(np.arange(K), scores[K:].argmax(1))]
    return x, (scores > 0.1).astype(np.float32)


def _linked(t: np.ndarray, kind: str) -> np.ndarray:
    return np.log(np.maximum(t, FLOOR)) if kind == "classes" else logit(np.clip(t, FLOOR, 1 - FLOOR))


def _refits(x: np.ndarray, y: np.ndarray, kind: str, *, leave_out: bool) -> np.ndarray:
    """Link of the regression of every row on the others, or on all rows, beside that of frequencies, by N solves."""
    scaled = x.astype(np.float64) * np.exp(0.5 * LOG_WEIGHTS)
    covariance = np.exp(-0.5 * np.square(scaled[:, None] - scaled[None]).sum(-1))
    fitted = np.empty(y.shape)
    for i in range(N):
        others = np.delete(np.arange(N), i) if leave_out else np.arange(N)
        noisy = covariance[np.ix_(others, others)] + NOISE * np.eye(len(others))
        fitted[i] = y.mean(0) + covariance[i, others] @ np.linalg.solve(noisy, y[others] - y.mean(0))
    return _linked(fitted, kind) - _linked(y.mean(0), kind)


@pytest.fixture
def known_hyperparameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "extremegp.engine.mean.learn_kernel",
        lambda x, y, rng, weights, blocks: Learnt(LOG_WEIGHTS, NOISE, np.ones(1, np.float32)),
    )


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """All batches that a bound was made of."""
    seen: list[Batch] = []
    elbo = VariationalModel.elbo

    def watched(self: VariationalModel, batch: Batch, conditioned: Any = None) -> Any:
        seen.append(batch)
        return elbo(self, batch, conditioned)

    monkeypatch.setattr(VariationalModel, "elbo", watched)
    return seen


def _fitted(kind: str, **options: Any) -> Any:
    x, y = _data(kind)
    small = {"mean_function": "regression", "n_inducing": 4, "epochs": 2, "batch_size": 8, "features": "raw"}
    common = {**small, "random_state": 0, "verbose": False, **options}
    if kind == "classes":
        return MultiClassGPClassifier(**common).fit(x, y.argmax(1))
    return MultiLabelGPClassifier(n_latent=3, **common).fit(x, y)


@pytest.mark.usefixtures("known_hyperparameters")
@pytest.mark.parametrize("kind", ["labels", "classes"])
def test_training_sees_the_regression_of_each_row_on_the_others(kind: str, batches: list[Batch]):
    _fitted(kind)
    left_out, in_sample = (_refits(*_data(kind), kind, leave_out=leave_out) for leave_out in (True, False))
    assert np.abs(left_out - in_sample).max() > 0.5
    seen = set()
    for batch in batches:
        np.testing.assert_allclose(batch.mean_logits, left_out[batch.rows], atol=2e-3)
        seen |= set(batch.rows.tolist())
    assert seen == set(range(N))


@pytest.mark.usefixtures("known_hyperparameters")
def test_sampled_labels_are_shown_their_own_columns(batches: list[Batch]):
    _fitted("labels", n_sampled_labels=1, batch_size=2)
    left_out = _refits(*_data("labels"), "labels", leave_out=True)
    widths = set()
    for batch in batches:
        columns = [np.abs(left_out[batch.rows] - own[:, None]).max(0).argmin() for own in batch.mean_logits.numpy().T]
        np.testing.assert_allclose(batch.mean_logits, left_out[batch.rows][:, columns], atol=2e-3)
        # Their labels are those of these columns.
        y = scipy.sparse.csr_matrix((batch.y.values, batch.y.columns, batch.y.offsets), shape=batch.y.shape)
        np.testing.assert_array_equal(y.toarray(), _data("labels")[1][batch.rows][:, columns])
        widths.add(len(columns))
    assert min(widths) < K


@pytest.mark.usefixtures("known_hyperparameters")
def test_the_scatter_of_instances_is_estimated_beside_the_regression_on_the_others(monkeypatch: pytest.MonkeyPatch):
    given: list[tuple[torch.Tensor, Any]] = []
    estimate = scatter.estimate_instance_noise

    def watched(utilities: Any, y: Any, **options: Any) -> Any:
        given.append((utilities.offset, y))
        return estimate(utilities, y, **options)

    monkeypatch.setattr(scatter, "estimate_instance_noise", watched)
    slope = float(_fitted("labels").model_.mean_function.slope)
    ((offset, y),) = given
    labelled = np.flatnonzero(_data("labels")[1].sum(1))
    np.testing.assert_array_equal(y.toarray(), _data("labels")[1][labelled])
    expected = _refits(*_data("labels"), "labels", leave_out=True)[labelled]
    np.testing.assert_allclose(offset, slope * expected, atol=2e-3)


@pytest.mark.parametrize("n_mean_points", [0, N, N // 2])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"propensity": True},
        {"likelihood": "softmax", "mixing": "identity", "n_latent": K},
        {"likelihood": "softmax"},
        {"likelihood": "ar-softmax"},
        {"likelihood": "one-vs-each"},
    ],
    ids=str,
)
def test_a_model_starts_at_the_frequencies_of_the_labels_with_a_regression_too(
    changes: dict[str, Any], n_mean_points: int
):
    kind = "classes" if "likelihood" in changes else "labels"
    x, y = _data(kind)
    if n_mean_points and kind == "labels":
        # The regression gives no more than 0.995.
        assert (y.mean(0) < 0.9).all()
    sizes: dict[str, Any] = {"n_features": D, "n_labels": K, "n_latent": 3, "n_inducing": 4, "kernel": "se"}
    stored = {"n_mean_points": n_mean_points, "n_mean_stored": None if n_mean_points else 0}
    model = ModelSettings(**sizes | stored | changes).build()
    propensities = np.linspace(0.7, 1.0, K) if changes.get("propensity") else None
    labels = one_hot(y.argmax(1), K) if kind == "classes" else scipy.sparse.csr_matrix(y)
    model.start(TrainingData(x, labels, np.random.default_rng(0), propensities=propensities))
    # So far away a regression has nothing to say but the frequencies.
    far = torch.full((2, D), 1e4)
    with torch.no_grad():
        means = model.utilities(model.latents.condition(), far).means().numpy().astype(np.float64)
    frequencies = y.mean(0) / (1.0 if propensities is None else propensities)
    found = softmax(means, 1) if kind == "classes" else expit(means)
    np.testing.assert_allclose(found, np.tile(frequencies, (2, 1)), rtol=1e-4)
