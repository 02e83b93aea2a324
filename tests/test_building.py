from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.exceptions import ConvergenceWarning

from extremegp.building import KERNEL_NAMES, POSTERIOR_NAMES, ModelSettings, initialise
from extremegp.kernels import Linear, SEPlusLinear, SquaredExponential
from extremegp.latents import LinearFunctions, SparseGP, SumLatents
from extremegp.posteriors import Full, MeanField, SharedBasis
from tests.models import random_inputs, random_labels

N, D, K, P, M = 30, 6, 5, 3, 4
SETTINGS = ModelSettings(n_features=D, n_labels=K, n_latent=P, n_inducing=M, kernel="ard")


def _data() -> tuple[scipy.sparse.csr_matrix, scipy.sparse.csr_matrix]:
    x, y = random_inputs(N, D).astype(np.float32), random_labels(N, K).astype(np.float32)
    return scipy.sparse.csr_matrix(x), scipy.sparse.csr_matrix(y)


def _gp(settings: ModelSettings) -> SparseGP:
    latents = settings.build().latents
    assert isinstance(latents, SparseGP)
    return latents


@pytest.mark.parametrize(
    ("name", "kind", "n_weights", "learnt"),
    [
        ("linear", Linear, 1, False),
        ("linear-ell", Linear, D, True),
        ("se", SquaredExponential, 1, True),
        ("ard", SquaredExponential, D, True),
        ("se+linear", SEPlusLinear, 1, True),
        ("ard+linear", SEPlusLinear, D, True),
    ],
)
def test_kernel_names_mean_what_the_papers_mean(name: str, kind: type, n_weights: int, learnt: bool):
    kernel = _gp(replace(SETTINGS, kernel=name)).kernel  # type: ignore[arg-type]
    assert type(kernel) is kind
    assert kernel.log_weights.shape == (n_weights,)
    assert kernel.log_weights.requires_grad is learnt


@pytest.mark.parametrize(
    ("name", "kind"), [("shared-basis", SharedBasis), ("mean-field", MeanField), ("full", Full), ("full-u", Full)]
)
def test_posterior_names(name: str, kind: type):
    posterior = _gp(replace(SETTINGS, posterior=name)).posterior  # type: ignore[arg-type]
    assert type(posterior) is kind
    assert getattr(posterior, "whitened", True) is (name != "full-u")
    assert posterior.q_mean.shape == (P, M)


def test_the_names_listed_are_those_tested():
    assert set(KERNEL_NAMES) == {"linear", "linear-ell", "se", "ard", "se+linear", "ard+linear"}
    assert set(POSTERIOR_NAMES) == {"shared-basis", "mean-field", "full", "full-u"}


def test_a_linear_term_adds_linear_functions():
    latents = replace(SETTINGS, linear_term=True).build().latents
    assert isinstance(latents, SumLatents)
    assert [type(term) for term in latents.terms] == [SparseGP, LinearFunctions]
    assert latents.terms[1].q_mean.shape == (D, P)


def test_fixed_inducing_inputs_and_jitter_reach_their_parts():
    gp = _gp(replace(SETTINGS, learn_inducing=False, normalise_inducing=False, relative_jitter=1e-4))
    assert not gp.inducing.transposed.requires_grad
    assert not gp.inducing.normalise
    assert gp.relative_jitter == 1e-4


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
def test_the_start_comes_from_the_data(dense: bool, normalise: bool):
    x, y = _data()
    model = SETTINGS.build()
    initialise(model, x.toarray() if dense else x, y, normalise_inducing=normalise, rng=np.random.default_rng(0))
    z = model.latents.inducing().detach().numpy()
    assert len(np.unique(z, axis=0)) == M
    # Centres lie in the hull of the inputs.
    norms = np.linalg.norm(z, axis=1)
    np.testing.assert_allclose(norms, 1.0, rtol=1e-5) if normalise else np.testing.assert_array_less(norms, 1.0)
    frequency = np.clip(np.asarray(y.mean(axis=0)).ravel(), 0.5 / N, 1 - 0.5 / N)
    np.testing.assert_allclose(torch.sigmoid(model.mixing.bias.detach()), frequency, rtol=1e-5)
    assert model.mixing.loadings.detach().std() > 0


def test_labels_in_no_row_and_in_every_row_get_finite_biases():
    x, _ = _data()
    y = scipy.sparse.csr_matrix(np.tile(np.array([[0.0, 1.0, 0.0, 1.0, 0.0]], dtype=np.float32), (N, 1)))
    model = SETTINGS.build()
    initialise(model, x, y, normalise_inducing=True, rng=np.random.default_rng(0))
    bias = model.mixing.bias.detach().numpy()
    assert np.isfinite(bias).all()
    assert bias[0] < -3 < 3 < bias[1]


@pytest.mark.parametrize("n_rows", [1, 2, 3])
def test_more_inducing_inputs_than_distinct_rows_are_still_distinct(n_rows: int):
    x = scipy.sparse.csr_matrix(np.tile(np.eye(1, D, dtype=np.float32), (n_rows, 1)))
    y = scipy.sparse.csr_matrix(np.ones((n_rows, K), dtype=np.float32))
    model = SETTINGS.build()
    with warnings.catch_warnings():
        # scikit-learn may say that there are fewer distinct rows than centres.
        warnings.simplefilter("ignore", ConvergenceWarning)
        initialise(model, x, y, normalise_inducing=True, rng=np.random.default_rng(0))
    z = model.latents.inducing().detach().numpy()
    assert np.isfinite(z).all()
    assert len(np.unique(z, axis=0)) == M
    model.latents.condition()


def test_equal_generators_give_equal_starts_and_others_do_not():
    x, y = _data()
    models = [SETTINGS.build() for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        initialise(model, x, y, normalise_inducing=True, rng=np.random.default_rng(seed))
    states = [model.state_dict() for model in models]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])
