"""Weighted rows count as if they were repeated, and soft labels as what is expected of labels drawn from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit, log_expit
from scipy.stats import norm
from tests.models import batch_of, random_inputs, random_labels, random_model, sparse_rows

from extremegp.engine.latents import Marginals
from extremegp.engine.likelihoods import BernoulliLabels, LinearChain
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.utilities import Utilities
from extremegp.settings.model import ModelSettings

N, D, K, P, M = 6, 4, 5, 2, 3
COUNTS = np.array([1, 3, 0, 2, 1, 4])
SETTINGS = ModelSettings(n_features=D, n_labels=K, n_latent=P, n_inducing=M, kernel="ard", posterior="shared-basis")
ONE_EACH = {"mixing": "identity", "n_latent": K}
MODELS: dict[str, dict[str, Any]] = {
    "labels": {},
    "labels with a linear term": {"linear_term": True, "posterior": "full"},
    "labels that may be missing": {"propensity": True},
    "independent": {"likelihood": "independent"},
    "softmax": {"likelihood": "softmax", **ONE_EACH},
    "one-vs-each": {"likelihood": "one-vs-each"},
    "probit-one-vs-each": {"likelihood": "probit-one-vs-each"},
    "robust-max": {"likelihood": "robust-max", **ONE_EACH},
    "ar-softmax": {"likelihood": "ar-softmax"},
    "ar-softmax, amortised": {"likelihood": "ar-softmax", "local": "amortised"},
    "ar-logit": {"likelihood": "ar-logit"},
}


def model_of(name: str) -> VariationalModel:
    model = random_model(replace(SETTINGS, **MODELS[name]))
    if name == "labels that may be missing":
        model.likelihood = BernoulliLabels(torch.linspace(0.2, 1.0, K, dtype=torch.float64))
    return model


def targets(model: VariationalModel, *, soft: bool = False) -> np.ndarray:
    """Of labels an indicator, of classes rows that add up to one; soft ones are zero in places too."""
    y, rng = random_labels(N, K), np.random.default_rng(2)
    if model.likelihood.has_classes:
        if not soft:
            return np.eye(K)[rng.integers(K, size=N)]
        y = rng.random((N, K)) * (rng.random((N, K)) < 0.6) + np.eye(K)[np.arange(N) % K]
        return y / y.sum(1, keepdims=True)
    return y if not soft else np.clip(y + rng.uniform(-0.7, 0.7, size=y.shape), 0, 1)


def bound_and_gradients(model: VariationalModel, x: np.ndarray, y: np.ndarray, **known: Any) -> list[torch.Tensor]:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batch = batch_of(sparse_rows(y), sparse_rows(x), rows=torch.arange(len(x)), **known)
    bound = model.elbo(batch).bound
    return [bound.detach(), *torch.autograd.grad(bound, parameters, allow_unused=True)]


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_weights_that_are_integers_are_repeated_rows(name: str, soft: bool):
    model, x = model_of(name), random_inputs(N, D)
    y = targets(model, soft=soft)
    rows = np.repeat(np.arange(N), COUNTS)
    weighted = bound_and_gradients(model, x, y, weights=torch.from_numpy(COUNTS.astype(float)))
    repeated = bound_and_gradients(model, x[rows], y[rows])
    for got, expected in zip(weighted, repeated, strict=True):
        if expected is not None:
            torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)
    assert float((weighted[0] - bound_and_gradients(model, x, y)[0]).abs()) > 1e-2


@pytest.mark.parametrize("transitions", ["gaussian", "indexed", "none"])
def test_weights_of_sequences_multiply_their_log_likelihoods(transitions: Any):
    likelihood, lengths, generator = LinearChain(3, transitions=transitions).double(), [2, 1, 3], torch.Generator()
    f = torch.randn(4, N, likelihood.n_utilities(3), generator=generator, dtype=torch.float64)
    mixing = IdentityMixing(*torch.zeros(2, f.shape[-1], dtype=torch.float64))
    utilities = Utilities(mixing, Marginals(f[0], f[0]), draw=lambda lengths, n, generator: f[:n])
    known = {"lengths": torch.tensor(lengths), "n_draws": 4, "seed": 5}
    batch = batch_of(
        sparse_rows(np.eye(3)[[0, 2, 1, 1, 0, 2]]), weights=torch.tensor([0.5, 0.0, 2.0]).double(), **known
    )
    generator = torch.Generator().manual_seed(5)
    each = likelihood.log_prob(f, batch.y.columns, known["lengths"], generator).mean(0)
    expected = 0.5 * each[0] + 2.0 * each[2]
    torch.testing.assert_close(likelihood.expected_log_prob(utilities, batch), expected)


@pytest.mark.parametrize("propensity", [None, 0.4])
@pytest.mark.parametrize(("mean", "variance"), [(-2.0, 0.3), (0.7, 2.5)])
def test_a_soft_label_weighs_both_outcomes_by_its_probability(mean: float, variance: float, propensity: float | None):
    p = 1.0 if propensity is None else propensity
    density, around = norm(mean, np.sqrt(variance)).pdf, 10 * np.sqrt(variance)

    def expectation(log_probability: Any) -> float:
        between = mean - around, mean + around
        return quad(lambda f: density(f) * log_probability(f), *between, epsabs=1e-12)[0]

    present = expectation(lambda f: np.log(p) + log_expit(f))
    absent = expectation(lambda f: np.log1p(-p * expit(f)) if p < 1 else log_expit(-f))
    likelihood = BernoulliLabels(None if propensity is None else torch.tensor([propensity]).double())
    marginals = Marginals(*(torch.tensor([[value]]).double() for value in (mean, variance)))
    utilities = Utilities(IdentityMixing(*torch.zeros(2, 1, dtype=torch.float64)), marginals)
    for y in (0.0, 0.25, 0.9, 1.0):
        got = likelihood.expected_log_prob(utilities, batch_of(sparse_rows(np.array([[y]]))))
        assert float(got.detach()) == pytest.approx(y * present + (1 - y) * absent, rel=1e-5)


@pytest.mark.parametrize("name", [name for name in MODELS if model_of(name).likelihood.has_classes])
def test_soft_labels_of_classes_weigh_the_bound_of_every_class(name: str):
    model, x = model_of(name), random_inputs(N, D)
    y = targets(model, soft=True)
    rows, classes = np.nonzero(y)
    with torch.no_grad():
        got = model.elbo(batch_of(sparse_rows(y), sparse_rows(x), rows=torch.arange(N))).data
        expected = torch.zeros_like(got)
        for row, c in zip(rows, classes, strict=True):
            own = batch_of(sparse_rows(np.eye(K)[[c]]), sparse_rows(x[[row]]), rows=torch.tensor([row]))
            expected += y[row, c] * model.elbo(own).data
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)


def test_stored_parameters_of_rows_are_of_one_class():
    settings = replace(SETTINGS, likelihood="ar-softmax", local="stored", n_local_rows=N)
    model = random_model(settings)
    batch = batch_of(sparse_rows(targets(model, soft=True)), sparse_rows(random_inputs(N, D)), rows=torch.arange(N))
    with pytest.raises(ValueError, match="soft labels"):
        model.elbo(batch)
