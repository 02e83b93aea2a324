"""Draws have the means and variances of `marginals`, and within a sequence the covariance of the posterior."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.models import (
    as_array,
    random_inputs,
    random_model,
    randomise,
    reference_covariances,
    reference_latents,
    sparse_rows,
)
from tests.moments import assert_equal_moments, assert_gaussian_moments
from tests.reference.random_features import Layer, last_features
from torch import Tensor

from extremegp.engine.inducing import FreeInducingInputs, SeparateInducingInputs
from extremegp.engine.kernels import SquaredExponential
from extremegp.engine.latents import DeepRandomFeatures, Latents, LinearFunctions, SparseGP, SumLatents
from extremegp.engine.latents.linear import LinearPosterior
from extremegp.engine.posteriors import Full, MeanField, Parsimonious, Posterior, SharedBasis
from extremegp.settings.model import ModelSettings
from extremegp.settings.parts import POSTERIORS

D, P, M = 4, 2, 3
LENGTHS = [2, 3, 1]
X = random_inputs(sum(LENGTHS), D)
R = 10_000


class Joint(NamedTuple):
    """Latents, and the means (B x P) and covariances (P x B x B) of their functions at all inputs, in NumPy."""

    latents: Latents
    mean: np.ndarray
    covariances: np.ndarray


def linear(posterior: LinearPosterior) -> Joint:
    latents = LinearFunctions(D, P, prior_variance=0.7, posterior=posterior).double()
    randomise(latents)
    ratio = np.zeros(1) if latents.log_ratio is None else np.exp(as_array(latents.log_ratio))
    variances = np.broadcast_to(np.exp(as_array(latents.log_prior_variance)) * ratio.reshape(len(ratio), -1), (D, P))
    return Joint(latents, X @ as_array(latents.q_mean), np.array([X @ np.diag(v) @ X.T for v in variances.T]))


def sparse_gp(kernel: str, posterior: str) -> Joint:
    settings = ModelSettings(
        n_features=D,
        n_labels=2,
        n_latent=P,
        n_inducing=M,
        kernel=kernel,
        posterior=posterior,  # type: ignore[arg-type]
        relative_jitter=1e-3,
    )
    latents = random_model(settings).latents
    assert isinstance(latents, SparseGP)
    reference = reference_latents(latents, reference_covariances(latents))
    return Joint(latents, reference.marginals(X)[0], reference.joint(X))


def flat_features(kernel: str, frequencies: str, seed: int = 0) -> Joint:
    latents = DeepRandomFeatures(
        D,
        P,
        n_random=5,
        kernel=kernel,
        frequencies=frequencies,  # type: ignore[arg-type]
    ).double()
    latents.start_at(torch.from_numpy(X), torch.Generator().manual_seed(seed))
    randomise(latents, seed=seed)
    layer = latents.layers[0]
    omega = as_array(layer.omega(torch.Generator()))
    amplitude = float(layer.log_amplitude.detach().exp())
    phi = last_features(X, [Layer(omega, amplitude)], [], kernel, feed_forward=True, reducer=None)
    variances = np.exp(as_array(latents.output.log_variance))
    covariances = np.array([phi @ np.diag(v) @ phi.T for v in variances.T])
    return Joint(latents, phi @ as_array(latents.output.q_mean), covariances)


def added(*parts: Joint) -> Joint:
    return Joint(
        SumLatents([part.latents for part in parts]),
        sum(part.mean for part in parts),
        sum(part.covariances for part in parts),
    )


CASES = {
    **{f"linear {name}": lambda name=name: linear(name) for name in ("shared", "mean-field", "point")},
    **{
        f"{kernel} {posterior}": lambda kernel=kernel, posterior=posterior: sparse_gp(kernel, posterior)
        for kernel in ("ard", "se-p-ell")
        for posterior in POSTERIORS
    },
    **{
        f"{kernel} {frequencies}": lambda kernel=kernel, frequencies=frequencies: flat_features(kernel, frequencies)
        for kernel in ("se", "arccos1")
        for frequencies in ("prior-fixed", "var-fixed")
    },
    "sum": lambda: added(
        sparse_gp("ard", "shared-basis"), linear("mean-field"), flat_features("arccos1", "var-fixed", 1)
    ),
}


def _draws(latents: Latents, x: Tensor, lengths: list[int], n_draws: int = R, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        return latents.condition().draws(x, torch.tensor(lengths), n_draws, generator)


@pytest.mark.parametrize("inputs", [torch.from_numpy, sparse_rows], ids=["dense", "sparse"])
@pytest.mark.parametrize("case", CASES)
def test_draws_have_the_moments_of_the_posterior(case: str, inputs):
    latents, mean, covariances = CASES[case]()
    marginals = latents.condition().marginals(inputs(X))
    np.testing.assert_allclose(marginals.mean.detach(), mean, rtol=1e-9, atol=1e-9)
    variances = np.diagonal(covariances, axis1=1, axis2=2).T
    np.testing.assert_allclose(marginals.variance.detach(), variances, rtol=1e-9, atol=1e-9)
    draws = _draws(latents, inputs(X), LENGTHS)
    assert draws.shape == (R, len(X), P)
    assert_gaussian_moments(draws, mean, covariances, LENGTHS)


@pytest.mark.parametrize("posterior", [SharedBasis, MeanField, Full, Parsimonious])
def test_functions_with_inducing_inputs_of_their_own_are_drawn_as_if_each_were_alone(posterior: type[Posterior]):
    z = torch.from_numpy(np.stack([random_inputs(M, D, density=1.0, seed=seed) for seed in range(P)]))
    separate = SparseGP(SquaredExponential(2.0), SeparateInducingInputs(z), posterior(P, M), n_functions=P).double()
    randomise(separate)
    separate.relative_jitter = 1e-3
    z = separate.inducing().detach()
    joints = []
    for p in range(P):
        inducing = FreeInducingInputs(z[p], normalise=False)
        alone = SparseGP(separate.kernel, inducing, posterior(1, M), n_functions=1, relative_jitter=1e-3).double()
        with torch.no_grad():
            for name, parameter in alone.posterior.named_parameters():
                whole = getattr(separate.posterior, name)
                parameter.copy_(whole if whole.shape == parameter.shape else whole[p : p + 1])
        reference = reference_latents(alone, reference_covariances(alone))
        joints.append((reference.marginals(X)[0], reference.joint(X)))
    mean, covariances = np.hstack([mean for mean, _ in joints]), np.concatenate([s for _, s in joints])
    assert_gaussian_moments(_draws(separate, torch.from_numpy(X), LENGTHS), mean, covariances, LENGTHS)


@pytest.mark.parametrize("case", CASES)
def test_equal_generators_give_equal_draws(case: str):
    latents, x = CASES[case]().latents, torch.from_numpy(X)
    first = _draws(latents, x, LENGTHS, 3)
    assert torch.equal(first, _draws(latents, x, LENGTHS, 3))
    assert torch.equal(first, _draws(latents, x, LENGTHS, 3, seed=1)) == (case == "linear point")


@pytest.mark.parametrize("case", CASES)
def test_latents_whose_draws_are_alike_give_an_input_the_same_draws_in_whatever_sequence(case: str):
    latents, x = CASES[case]().latents, torch.from_numpy(X)
    whole, part = _draws(latents, x, [len(X)], 3), _draws(latents, x[2:4], [2], 3)
    alike = torch.allclose(whole[:, 2:4], part, rtol=1e-12, atol=1e-12)
    assert alike or not latents.condition().alike
    if case.startswith(("se prior", "se var", "arccos1")):
        assert latents.condition().alike


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_where_inputs_are_inducing_inputs(posterior: str, dtype: torch.dtype):
    latents = sparse_gp("ard", posterior).latents.to(dtype)
    latents.relative_jitter = 1e-12
    x = latents.inducing().detach().clone()
    draws = latents.condition().draws(x, torch.tensor([M]), 50, torch.Generator().manual_seed(0))
    draws.square().sum().backward()
    for name, parameter in latents.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name


def test_at_the_inducing_inputs_draws_are_those_of_u_itself():
    latents = sparse_gp("ard", "full").latents
    latents.relative_jitter = 1e-10
    z = latents.inducing().detach()
    reference = reference_latents(latents, reference_covariances(latents))
    draws = _draws(latents, z, [M])
    assert_gaussian_moments(draws, reference.means.T, reference.covariances, [M])


@pytest.mark.parametrize("frequencies", ["prior-fixed", "var-resampled"])
def test_draws_of_a_deep_network_have_the_moments_of_networks_whose_weights_are_all_drawn(frequencies: str):
    n_hidden, n_random, n_draws = 2, 3, 3000
    latents = DeepRandomFeatures(
        D,
        1,
        n_layers=2,
        n_hidden=n_hidden,
        n_random=n_random,
        kernel="se",
        frequencies=frequencies,  # type: ignore[arg-type]
    ).double()
    latents.start_at(torch.from_numpy(X), torch.Generator().manual_seed(0))
    randomise(latents)
    rng, x = np.random.default_rng(0), X[:3]

    def drawn(mean: Tensor, log_variance: Tensor) -> np.ndarray:
        return as_array(mean) + np.exp(0.5 * as_array(log_variance)) * rng.normal(size=mean.shape)

    def naive() -> np.ndarray:
        layers = []
        for layer in latents.layers:
            fixed = layer.q_mean is None
            noise = as_array(layer.drawn()) if fixed else drawn(layer.q_mean, layer.log_ratio)
            omega = np.exp(0.5 * as_array(layer.log_weights))[:, None] * noise
            layers.append(Layer(omega, float(layer.log_amplitude.detach().exp())))
        hidden = [drawn(weights.q_mean, weights.log_variance) for weights in latents.hidden]
        phi = last_features(x, layers, hidden, "se", feed_forward=True, reducer=None)
        return (phi @ drawn(latents.output.q_mean, latents.output.log_variance)).flatten()

    ours = _draws(latents, torch.from_numpy(x), [3], n_draws)
    assert_equal_moments(as_array(ours.squeeze(-1)), np.array([naive() for _ in range(n_draws)]))
