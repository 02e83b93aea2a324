from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import (
    as_array,
    batch_of,
    random_inputs,
    randomise,
    reference_covariances,
    reference_latents,
    sparse_rows,
)
from tests.moments import assert_equal_means
from tests.reference.chain import piecewise_pseudo_likelihood
from tests.reference.random_features import Layer, last_features
from tests.reference.sequences_of_labels import log_evidence, log_prob
from torch import Tensor

from extremegp.engine.inducing import FreeInducingInputs
from extremegp.engine.kernels import SquaredExponential
from extremegp.engine.latents import DeepRandomFeatures, Latents, LinearFunctions, SparseGP, SumLatents
from extremegp.engine.likelihoods.linear_chain import CHAIN_OBJECTIVES, TRANSITIONS, LinearChain
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.model import ELBO, VariationalModel
from extremegp.engine.posteriors import Full
from extremegp.engine.sparse import Inputs

V, D = 2, 2
LENGTHS = [2, 1]
X = random_inputs(4, D, density=1.0)[1:]
LABELS = [[0, 1], [1]]

KINDS = pytest.mark.parametrize("transitions", TRANSITIONS)


def _gp(n_functions: int) -> SparseGP:
    inducing = FreeInducingInputs(torch.from_numpy(X[:2] + 0.2), normalise=False)
    return SparseGP(SquaredExponential(), inducing, Full(n_functions, 2), n_functions=n_functions)


def _features(n_functions: int, **changes: Any) -> DeepRandomFeatures:
    return DeepRandomFeatures(D, n_functions, **{"n_random": 3, "frequencies": "prior-fixed", **changes})


LATENTS = {
    "linear": lambda p: LinearFunctions(D, p, posterior="mean-field"),
    "gp": _gp,
    "features": _features,
    "features var-fixed": lambda p: _features(p, frequencies="var-fixed"),
    "deep": lambda p: _features(p, n_layers=2, kernel="se", frequencies="var-resampled", n_hidden=2),
    "sum": lambda p: SumLatents([_features(p), LinearFunctions(D, p, posterior="point")]),
}


def _mixing(n_functions: int) -> IdentityMixing:
    return IdentityMixing(torch.zeros(n_functions), torch.zeros(n_functions), bias_variance=4.0)


def _model(
    latents: str, transitions: str = "gaussian", *, objective: str = "exact", n_labels: int = V, seed: int = 0
) -> VariationalModel:
    likelihood = LinearChain(n_labels, transitions=transitions, objective=objective)  # type: ignore[arg-type]
    p = likelihood.n_utilities(n_labels)
    model = VariationalModel(LATENTS[latents](p), _mixing(p), likelihood).double()
    for module in model.modules():
        if isinstance(module, DeepRandomFeatures):
            module.start_at(torch.from_numpy(X), torch.Generator().manual_seed(seed))
    randomise(model, seed=seed, scale=0.5)
    return model


def _elbo(
    model: VariationalModel,
    seed: int = 0,
    *,
    x: Inputs | None = None,
    labels: list[list[int]] = LABELS,
    n_draws: int = 1,
    n_rows: float | None = None,
) -> ELBO:
    x = torch.from_numpy(X) if x is None else x
    lengths = torch.tensor([len(y) for y in labels])
    y = sparse_rows(np.eye(model.likelihood.n_labels)[np.concatenate(labels)])
    scale = (n_rows or x.shape[0]) / x.shape[0]
    return model.elbo(batch_of(y, x, scale=scale, lengths=lengths, seed=seed, n_draws=n_draws))


# The bound


def _normal(rng: np.random.Generator, n: int, mean: Tensor, log_variance: Tensor) -> np.ndarray:
    return as_array(mean) + np.exp(0.5 * as_array(log_variance)) * rng.normal(size=(n, *mean.shape))


def _values(latents: Latents, n: int, rng: np.random.Generator) -> np.ndarray:
    """n draws of all functions at all inputs, of weights or of values: n x B x P."""
    if isinstance(latents, LinearFunctions):
        if latents.log_ratio is None:
            return X @ np.broadcast_to(as_array(latents.q_mean), (n, *latents.q_mean.shape))
        return X @ _normal(rng, n, latents.q_mean, latents.log_ratio + latents.log_prior_variance)
    if isinstance(latents, SumLatents):
        return sum(_values(term, n, rng) for term in latents.terms)
    if isinstance(latents, SparseGP):
        reference = reference_latents(latents, reference_covariances(latents))
        mean, covariances = reference.marginals(X)[0], reference.joint(X)
        return np.stack([rng.multivariate_normal(m, s, n) for m, s in zip(mean.T, covariances, strict=True)], -1)
    assert isinstance(latents, DeepRandomFeatures)
    flat = len(latents.hidden) == 0
    passes = 1 if flat else n
    found = []
    for _ in range(passes):
        phi = last_features(
            X, *_network(latents, rng), latents.layers[0].kernel, feed_forward=latents.feed_forward, reducer=None
        )
        found.append(phi @ _normal(rng, n // passes, latents.output.q_mean, latents.output.log_variance))
    return np.concatenate(found)


def _network(latents: DeepRandomFeatures, rng: np.random.Generator) -> tuple[list[Layer], list[np.ndarray]]:
    layers = []
    for layer in latents.layers:
        noise = as_array(layer.drawn()) if layer.fixed else rng.normal(size=layer.q_mean.shape)
        if layer.q_mean is not None:
            noise = as_array(layer.q_mean) + np.exp(0.5 * as_array(layer.log_ratio)) * noise
        omega = np.exp(0.5 * as_array(layer.log_weights))[:, None] * noise
        layers.append(Layer(omega, float(layer.log_amplitude.detach().exp())))
    return layers, [_normal(rng, 1, weights.q_mean, weights.log_variance)[0] for weights in latents.hidden]


def _independent_data_terms(model: VariationalModel, n: int) -> np.ndarray:
    """sum_s log p(y_s | f, f_bin) at n draws, by NumPy alone."""
    rng = np.random.default_rng(0)
    f = _values(model.latents, n, rng) * np.exp(as_array(model.mixing.log_scales)) + as_array(model.mixing.bias)
    likelihood, total, start = model.likelihood, np.zeros(n), 0
    shared = np.zeros((n, V, V))
    if likelihood.transitions == "point":
        shared = shared + as_array(likelihood.q_mean)
    elif likelihood.transitions == "gaussian":
        shared = _normal(rng, n, likelihood.q_mean, likelihood.log_ratio + likelihood.log_prior_variance)
    for y in LABELS:
        own = f[:, start : start + len(y)]
        pairs = own[..., V:].reshape(n, len(y), V, V) if likelihood.transitions == "indexed" else shared
        total += log_prob(own[..., :V], pairs, y)
        start += len(y)
    return total


@pytest.mark.parametrize(
    ("latents", "transitions"),
    [
        *[(name, "gaussian") for name in LATENTS],
        *[("features", kind) for kind in TRANSITIONS if kind != "gaussian"],
        ("gp", "indexed"),
        ("linear", "none"),
    ],
)
def test_the_mean_over_seeds_is_the_expectation_under_the_posterior(latents: str, transitions: str):
    model, deep = _model(latents, transitions), latents == "deep"
    with torch.no_grad():
        ours = [float(_elbo(model, seed, n_draws=1 if deep else 20).data) for seed in range(2000 if deep else 300)]
    theirs = _independent_data_terms(model, 4000 if deep else 50_000)
    assert theirs.std() / np.sqrt(len(theirs)) < 0.03
    assert_equal_means(np.array(ours), theirs)


def _prior(model: VariationalModel) -> np.ndarray:
    """Covariance of f_1 - f_0 at all inputs."""
    latents = model.latents
    if isinstance(latents, LinearFunctions):
        covariance = float(latents.log_prior_variance.detach().exp()) * X @ X.T
    elif isinstance(latents, SparseGP):
        reference = reference_latents(latents, reference_covariances(latents)).parts[0]
        covariance = replace(reference, covariances=reference.k_z[None]).joint(X)[0]
    else:
        assert isinstance(latents, DeepRandomFeatures)
        layers, _ = _network(latents, np.random.default_rng(0))
        phi = last_features(X, layers, [], latents.layers[0].kernel, feed_forward=True, reducer=None)
        covariance = phi @ phi.T
    return np.exp(2 * as_array(model.mixing.log_scales)).sum() * covariance


def _log_evidence(model: VariationalModel) -> float:
    """Of the labels, at the biases, and at the transitions where these have no distribution."""
    likelihood, bias = model.likelihood, as_array(model.mixing.bias)
    known = {"gaussian": None, "none": np.zeros((V, V))}
    transitions = known[likelihood.transitions] if likelihood.transitions in known else as_array(likelihood.q_mean)
    variance = float(likelihood.log_prior_variance.detach().exp()) if transitions is None else 1.0
    return log_evidence(
        np.full(len(X), bias[1] - bias[0]),
        _prior(model),
        LABELS,
        transitions=transitions,
        transition_variance=variance,
        n_nodes=7,
    )


def _posterior_parameters(model: VariationalModel) -> list[torch.nn.Parameter]:
    names = {"q_mean", "log_ratio", "log_variance", "raw_factors"}
    found = [parameter for name, parameter in model.latents.named_parameters() if name.split(".")[-1] in names]
    if model.likelihood.transitions == "gaussian":
        found += [model.likelihood.q_mean, model.likelihood.log_ratio]
    return found


@pytest.mark.parametrize("transitions", ["gaussian", "point", "none"])
@pytest.mark.parametrize("latents", ["linear", "gp", "features"])
def test_the_bound_is_below_the_log_evidence_and_comes_close_to_it(latents: str, transitions: str):
    model = _model(latents, transitions)
    penalty = 0.5 * float(model.mixing.bias.detach().square().sum()) / 4
    if transitions == "point":
        penalty += float(model.likelihood.kl().detach())
    evidence = _log_evidence(model) - penalty

    def gap() -> float:
        with torch.no_grad():
            bounds = np.array([float(_elbo(model, seed, n_draws=1000).bound) for seed in range(10)])
        assert bounds.std() / np.sqrt(len(bounds)) < 0.02
        return evidence - float(bounds.mean())

    assert gap() > 0.3
    optimizer = torch.optim.Adam(_posterior_parameters(model), lr=0.05)
    for step in range(200):
        optimizer.zero_grad()
        (-_elbo(model, step, n_draws=20).bound).backward()
        optimizer.step()
    assert -0.02 < gap() < 0.2


# What the bound is made of


@KINDS
def test_the_kl_is_that_of_functions_transitions_and_biases(transitions: str):
    model = _model("features var-fixed", transitions)
    elbo = _elbo(model)
    bias = model.mixing.bias.detach()
    prior = torch.distributions.Normal(0.0, 2.0)
    penalty = (prior.log_prob(torch.zeros_like(bias)) - prior.log_prob(bias)).sum()
    expected = model.latents.condition().kl() + model.likelihood.kl() + penalty
    torch.testing.assert_close(elbo.kl, expected)
    assert elbo.scale == 1.0
    torch.testing.assert_close(_elbo(model, n_rows=12.0).bound, 4 * elbo.data - elbo.kl)


@pytest.mark.parametrize("objective", CHAIN_OBJECTIVES)
def test_the_objective_decides_the_data_term(objective: str):
    model = _model("sum", "point", objective=objective)
    with torch.no_grad():
        model.latents.terms[0].output.log_variance.fill_(-torch.inf)
        elbo = _elbo(model, n_draws=3)
    f = _values(model.latents, 1, np.random.default_rng(0))[0]
    f = f * np.exp(as_array(model.mixing.log_scales)) + as_array(model.mixing.bias)
    expected, start = 0.0, 0
    for y in LABELS:
        unary, pairs = f[start : start + len(y)], as_array(model.likelihood.q_mean)
        if objective == "exact":
            expected += float(log_prob(unary[None], pairs[None], y)[0])
        else:
            expected += piecewise_pseudo_likelihood(unary, pairs, tuple(y))
        start += len(y)
    assert float(elbo.data) == pytest.approx(expected, rel=1e-11)


def test_more_draws_have_less_variance_and_the_same_mean():
    model = _model("linear")
    with torch.no_grad():
        one, ten = (
            np.array([float(_elbo(model, seed, n_draws=n_draws).data) for seed in range(400)]) for n_draws in (1, 10)
        )
    assert_equal_means(one, ten)
    assert one.var() / ten.var() == pytest.approx(10, rel=0.4)


@pytest.mark.parametrize("latents", ["gp", "features", "deep"])
def test_sparse_inputs_give_the_bound_of_dense_ones(latents: str):
    model = _model(latents)
    dense, sparse = _elbo(model), _elbo(model, x=sparse_rows(X))
    torch.testing.assert_close(sparse.bound, dense.bound, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("latents", LATENTS)
def test_a_seed_decides_the_bound(latents: str):
    model = _model(latents)
    first = _elbo(model, 1).bound
    assert torch.equal(first, _elbo(model, 1).bound)
    assert not torch.equal(first, _elbo(model, 2).bound)


@pytest.mark.parametrize("per_batch", [1, 2, 3, 6])
def test_batches_of_sequences_average_to_the_whole(per_batch: int):
    # With points alone nothing is drawn.
    functions = LinearFunctions(D, 3, posterior="point")
    likelihood = LinearChain(3, transitions="point")
    model = VariationalModel(functions, _mixing(3), likelihood).double()
    randomise(model)
    rng = np.random.default_rng(0)
    lengths = [1, 4, 2, 2, 5, 3]
    rows = np.split(rng.normal(size=(sum(lengths), D)), np.cumsum(lengths)[:-1])
    labels = [rng.integers(3, size=length).tolist() for length in lengths]

    def bound(units: np.ndarray) -> float:
        x = torch.from_numpy(np.concatenate([rows[unit] for unit in units]))
        n_rows = len(lengths) / len(units) * len(x)
        with torch.no_grad():
            return float(_elbo(model, x=x, labels=[labels[unit] for unit in units], n_rows=n_rows).bound)

    whole = bound(np.arange(len(lengths)))
    bounds = [bound(units) for units in rng.permutation(len(lengths)).reshape(-1, per_batch)]
    assert np.mean(bounds) == pytest.approx(whole, rel=1e-12)
    assert per_batch == 6 or np.std(bounds) > 0.1


@pytest.mark.parametrize("objective", CHAIN_OBJECTIVES)
@pytest.mark.parametrize(
    ("latents", "transitions"), [*[(name, "gaussian") for name in LATENTS], *[("linear", kind) for kind in TRANSITIONS]]
)
def test_gradients_at_a_fixed_seed_are_those_of_finite_differences(latents: str, transitions: str, objective: str):
    model = _model(latents, transitions, objective=objective)
    learnt = tuple(parameter for parameter in model.parameters() if parameter.requires_grad)
    assert torch.autograd.gradcheck(lambda *_: _elbo(model, 3, n_draws=2, n_rows=9.0).bound, learnt)


@pytest.mark.parametrize("latents", LATENTS)
def test_every_learnt_parameter_gets_a_gradient(latents: str):
    model = _model(latents, n_labels=3)
    _elbo(model, n_draws=5).bound.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
