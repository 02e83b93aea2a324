from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import MultivariateNormal, kl_divergence

from extremegp.linalg import inverse_cholesky
from extremegp.posteriors import Full, MeanField, Posterior, SharedBasis
from tests.models import randomise, whitened_moments

P, M, B = 3, 4, 5
POSTERIORS: dict[str, Callable[..., Posterior]] = {
    "shared-basis": SharedBasis,
    "mean-field": MeanField,
    "full": Full,
    "full-u": lambda *sizes, **options: Full(*sizes, whitened=False, **options),
}


def _prior(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """K_Z and its L^-1."""
    root = torch.from_numpy(np.random.default_rng(seed).normal(size=(M, M + 2)))
    covariance = root @ root.T / M
    return covariance, inverse_cholesky(covariance, relative_jitter=0.0)


def _random(name: str, seed: int = 0, scale: float = 0.5) -> Posterior:
    posterior = POSTERIORS[name](P, M).double()
    randomise(posterior, seed=seed, scale=scale)
    return posterior


def _explicit(posterior: Posterior) -> tuple[torch.Tensor, torch.Tensor]:
    means, covariances = whitened_moments(posterior)
    return torch.from_numpy(means), torch.from_numpy(covariances)


@pytest.mark.parametrize("name", POSTERIORS)
def test_the_kl_is_that_of_explicit_gaussians(name: str):
    posterior, (k_z, inverse_factor) = _random(name), _prior()
    means, covariances = _explicit(posterior)
    prior_covariance = k_z if name == "full-u" else torch.eye(M, dtype=torch.float64)
    q = MultivariateNormal(means, covariances)
    p = MultivariateNormal(torch.zeros(M, dtype=torch.float64), prior_covariance)
    torch.testing.assert_close(posterior.kl(inverse_factor), kl_divergence(q, p).sum(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", POSTERIORS)
def test_the_marginals_are_those_of_explicit_covariances(name: str):
    posterior, (_, inverse_factor) = _random(name), _prior()
    means, covariances = _explicit(posterior)
    a = torch.from_numpy(np.random.default_rng(1).normal(size=(B, M)))
    projection = a @ inverse_factor if name == "full-u" else a
    mean, variance = posterior.marginals(a, inverse_factor)
    torch.testing.assert_close(mean, projection @ means.T, rtol=1e-12, atol=1e-12)
    expected = torch.einsum("bi,pij,bj->bp", projection, covariances, projection)
    torch.testing.assert_close(variance, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("start", ["shared-basis", "mean-field", "full"])
def test_a_full_posterior_in_u_with_mapped_parameters_equals_the_whitened_one(start: str):
    whitened, (k_z, inverse_factor) = _random(start), _prior()
    means, covariances = _explicit(whitened)
    root = torch.linalg.cholesky(k_z)
    in_u = Full(P, M, whitened=False).double()
    with torch.no_grad():
        in_u.q_mean.copy_(means @ root.T)
        factors = root @ torch.linalg.cholesky(covariances)
        in_u.raw_factors.copy_(factors.tril(-1) + torch.diag_embed(factors.diagonal(dim1=-2, dim2=-1).log()))
    a = torch.from_numpy(np.random.default_rng(2).normal(size=(B, M)))
    for got, expected in zip(in_u.marginals(a, inverse_factor), whitened.marginals(a, inverse_factor), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(in_u.kl(inverse_factor), whitened.kl(inverse_factor), rtol=1e-10, atol=1e-12)


@given(st.sampled_from(sorted(POSTERIORS)), st.integers(0, 2**31), st.floats(0, 2))
def test_the_kl_is_never_negative(name: str, seed: int, scale: float):
    _, inverse_factor = _prior(seed % 7)
    assert float(_random(name, seed, scale).kl(inverse_factor).detach()) >= -1e-9


@pytest.mark.parametrize("name", ["shared-basis", "mean-field", "full"])
def test_the_whitened_prior_itself_has_zero_kl(name: str):
    posterior = POSTERIORS[name](P, M, variance=1.0).double()
    assert float(posterior.kl(_prior()[1]).detach()) == pytest.approx(0.0, abs=1e-12)


def test_the_prior_in_u_has_zero_kl():
    k_z, inverse_factor = _prior()
    root = torch.linalg.cholesky(k_z)
    posterior = Full(P, M, whitened=False).double()
    with torch.no_grad():
        posterior.raw_factors.copy_(root.tril(-1) + root.diagonal().log().diag())
    assert float(posterior.kl(inverse_factor).detach()) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("name", POSTERIORS)
def test_the_start_is_the_variance_asked_for(name: str):
    means, covariances = _explicit(POSTERIORS[name](P, M, variance=0.36))
    np.testing.assert_array_equal(means, 0.0)
    np.testing.assert_allclose(covariances, np.broadcast_to(0.36 * np.eye(M), (P, M, M)), rtol=1e-6)


@pytest.mark.parametrize("name", POSTERIORS)
def test_gradients_of_marginals_and_kl_pass_gradcheck(name: str):
    posterior, (_, inverse_factor) = _random(name), _prior()
    a = torch.from_numpy(np.random.default_rng(3).normal(size=(2, M))).requires_grad_()
    inverse_factor.requires_grad_()
    parameters = list(posterior.parameters())

    def outputs(a: torch.Tensor, inverse_factor: torch.Tensor, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # gradcheck perturbs the parameters in place, and the posterior reads them from there.
        return (*posterior.marginals(a, inverse_factor.tril()), posterior.kl(inverse_factor.tril()))

    assert torch.autograd.gradcheck(outputs, (a, inverse_factor, *parameters))
