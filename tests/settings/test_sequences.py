from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.models import as_array, random_inputs

from extremegp import SequenceGPClassifier
from extremegp.data import one_hot
from extremegp.engine.latents import DeepRandomFeatures, JoinedLatents, LinearFunctions, SparseGP, SumLatents
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.settings.model import ModelSettings
from extremegp.settings.parts import SEQUENCE_LATENTS as LATENTS
from extremegp.settings.resolve import model_settings, sequence_params

N, D, V = 20, 6, 3
X = scipy.sparse.csr_matrix(random_inputs(N, D).astype(np.float32))
COUNTS = np.array([12, 2, 6])


def settings(**changes: Any) -> ModelSettings:
    """The model that parameters of the estimator ask for."""
    params = SequenceGPClassifier(**{"n_random_features": 5, "n_inducing": 4} | changes).get_params()
    of_engine = sequence_params(params, n_sequences=4, n_rows=N, n_features=D, n_stored=D)
    return model_settings(of_engine, n_rows=N, n_features=D, n_labels=V)


def started(seed: int = 0, *, counts: np.ndarray = COUNTS, **changes: Any) -> VariationalModel:
    model = settings(**changes).build()
    y = one_hot(np.repeat(np.arange(V), counts), V)
    model.start(TrainingData(X, y, np.random.default_rng(seed), inducing_start="rows"))
    return model


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, DeepRandomFeatures),
        ({"latents": "gp"}, SparseGP),
        ({"latents": "linear"}, LinearFunctions),
        ({"latents": "linear-mean-field"}, LinearFunctions),
        ({"latents": "linear-point"}, LinearFunctions),
        ({"linear_term": True}, SumLatents),
    ],
)
@pytest.mark.parametrize(("transitions", "n_functions"), [("gaussian", V), ("none", V), ("indexed", V + V * V)])
def test_there_is_a_function_for_each_label_and_for_each_pair_where_transitions_are_indexed(
    changes: dict[str, Any], kind: type, transitions: str, n_functions: int
):
    model = started(transitions=transitions, **changes)
    apart = transitions == "indexed" and kind is not SumLatents
    parts = list(model.latents.parts) if isinstance(model.latents, JoinedLatents) else [model.latents]
    assert [part.n_functions for part in parts] == ([V, V * V] if apart else [n_functions])
    assert all(isinstance(part, kind) for part in parts)
    assert model.latents.n_functions == len(model.mixing.bias) == n_functions
    draws = model.latents.condition().draws(
        torch.from_numpy(X.toarray()), torch.tensor([20]), 2, torch.Generator().manual_seed(0)
    )
    assert draws.shape == (2, 20, n_functions)


def test_linear_functions_have_the_posterior_asked_for_and_as_a_term_none():
    shapes = {"linear": (D,), "linear-mean-field": (D, V), "linear-point": None}
    for name, shape in shapes.items():
        latents = started(latents=name, prior_variance=7.0).latents
        assert isinstance(latents, LinearFunctions)
        assert (None if latents.log_ratio is None else latents.log_ratio.shape) == shape
        assert float(latents.log_prior_variance.detach().exp()) == pytest.approx(7)
    for name in ("random-features", "gp"):
        _, linear = started(latents=name, linear_term=True, prior_variance=7.0).latents.terms
        assert linear.log_ratio is None
        assert float(linear.log_prior_variance.exp()) == pytest.approx(7)
        assert not linear.log_prior_variance.requires_grad


@pytest.mark.parametrize("linear_term", [False, True])
@pytest.mark.parametrize("latents", LATENTS)
def test_scales_are_learnt_where_functions_have_no_variance_of_their_own(latents: str, linear_term: bool):
    if linear_term and latents not in ("gp", "random-features"):
        return
    model = settings(latents=latents, linear_term=linear_term).build()
    assert model.mixing.log_scales.requires_grad == (latents == "gp" and not linear_term)
    assert model.mixing.bias.requires_grad


@pytest.mark.parametrize("transitions", ["gaussian", "indexed"])
def test_biases_start_at_the_logarithms_of_the_frequencies_about_their_mean(transitions: str):
    bias = as_array(started(transitions=transitions).mixing.bias)
    expected = np.log(COUNTS / 20)
    np.testing.assert_allclose(bias[:V], expected - expected.mean(), rtol=1e-6)
    np.testing.assert_array_equal(bias[V:], 0)


def test_a_label_of_no_token_starts_as_if_half_a_token_had_it():
    bias = as_array(started(counts=np.array([15, 0, 5])).mixing.bias)
    expected = np.log(np.array([15, 0.5, 5]) / 20)
    np.testing.assert_allclose(bias, expected - expected.mean(), rtol=1e-6)


def test_inducing_inputs_start_near_training_tokens_and_stay_there():
    model = started(latents="gp")
    assert isinstance(model.latents, SparseGP)
    inducing = model.latents.inducing
    distances = np.linalg.norm(as_array(inducing())[:, None] - X.toarray()[None], axis=-1).min(1)
    assert (distances < 0.1).all()
    assert not any(parameter.requires_grad for parameter in inducing.parameters())


@pytest.mark.parametrize("latents", ["random-features", "gp"])
def test_equal_generators_start_equal_models_and_others_differ(latents: str):
    first, again, other = (started(seed, latents=latents).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert any(not torch.equal(tensor, other[name]) for name, tensor in first.items())
