from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.models import project, random_inputs, random_model, reference_covariances, reference_latents, sparse_rows

from extremegp.engine.latents import SparseGP
from extremegp.settings.model import ModelSettings
from extremegp.settings.parts import KERNEL_NAMES, POSTERIORS

D, P, M, N = 4, 3, 3, 6


def _latents(kernel: str, posterior: str, *, relative_jitter: float = 1e-3, seed: int = 0) -> SparseGP:
    settings = ModelSettings(
        n_features=D,
        n_labels=2,
        n_latent=P,
        n_inducing=M,
        kernel=kernel,
        posterior=posterior,  # type: ignore[arg-type]
        relative_jitter=relative_jitter,
    )
    latents = random_model(settings, seed=seed).latents
    assert isinstance(latents, SparseGP)
    return latents


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("kernel", KERNEL_NAMES)
def test_marginals_and_kl_equal_the_reference_in_u(kernel: str, posterior: str):
    latents = _latents(kernel, posterior)
    x = random_inputs(N, D)
    reference = reference_latents(latents, reference_covariances(latents))
    mean, variance = reference.marginals(x)
    conditioned = latents.condition()
    for rows in (torch.from_numpy(x), sparse_rows(x)):
        marginals = conditioned.marginals(rows)
        np.testing.assert_allclose(marginals.mean.detach(), mean, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(marginals.variance.detach(), variance, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(conditioned.kl().detach(), reference.kl(), rtol=1e-9)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_at_the_inducing_inputs_the_functions_are_u_itself(posterior: str):
    latents = _latents("ard", posterior, relative_jitter=0.0)
    reference = reference_latents(latents, reference_covariances(latents))
    marginals = latents.condition().marginals(latents.inducing().detach())
    np.testing.assert_allclose(marginals.mean.detach(), reference.means.T, rtol=1e-8, atol=1e-10)
    variances = np.diagonal(reference.covariances, axis1=1, axis2=2).T
    np.testing.assert_allclose(marginals.variance.detach(), variances, rtol=1e-8, atol=1e-10)


def test_far_from_the_inducing_inputs_the_prior_comes_back():
    latents = _latents("se", "shared-basis")
    marginals = latents.condition().marginals(torch.full((1, D), 1e3, dtype=torch.float64))
    np.testing.assert_allclose(marginals.mean.detach(), 0.0, atol=1e-12)
    np.testing.assert_allclose(
        marginals.variance.detach(), float(latents.kernel.log_variance.detach().exp()), rtol=1e-12
    )


def test_variances_never_fall_below_those_of_the_posterior_at_coinciding_inputs_in_float32():
    latents = _latents("se", "mean-field", relative_jitter=0.0).float()
    with torch.no_grad():
        latents.posterior.log_scales.fill_(-40.0)
    variance = latents.condition().marginals(latents.inducing()).variance
    assert (variance >= 0).all()


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_every_learnt_parameter_gets_a_gradient(posterior: str):
    latents = _latents("ard+linear", posterior)
    conditioned = latents.condition()
    marginals = conditioned.marginals(sparse_rows(random_inputs(N, D, density=1.0)))
    (marginals.mean.sum() + marginals.variance.sum() + conditioned.kl()).backward()
    for name, parameter in latents.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_projection_restores_unit_norm():
    latents = _latents("se", "mean-field")
    with torch.no_grad():
        latents.inducing.transposed.mul_(2.0)
    project(latents)
    torch.testing.assert_close(latents.inducing().norm(dim=1), torch.ones(M, dtype=torch.float64))
