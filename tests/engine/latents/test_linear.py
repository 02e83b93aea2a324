from __future__ import annotations

import numpy as np
import torch
from tests.models import random_inputs, randomise, sparse_rows
from torch.distributions import MultivariateNormal, kl_divergence

from extremegp.engine.inducing import FreeInducingInputs
from extremegp.engine.kernels import Linear
from extremegp.engine.latents import LinearFunctions, SparseGP
from extremegp.engine.posteriors import Full

D, P, N = 5, 3, 6


def _functions() -> LinearFunctions:
    functions = LinearFunctions(D, P, prior_variance=0.7, variance_ratio=0.4).double()
    randomise(functions)
    return functions


def _coefficients(functions: LinearFunctions) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Means (P x D), the posterior covariance that all functions share, and the prior covariance."""
    prior = functions.log_prior_variance.detach().exp()
    ratio = functions.log_ratio.detach().exp()
    return functions.q_mean.detach().T, (prior * ratio).diag(), prior * torch.eye(D, dtype=torch.float64)


def test_marginals_are_those_of_explicit_gaussian_coefficients():
    functions = _functions()
    means, covariance, _ = _coefficients(functions)
    x = random_inputs(N, D)
    for rows in (torch.from_numpy(x), sparse_rows(x)):
        marginals = functions.condition().marginals(rows)
        np.testing.assert_allclose(marginals.mean.detach(), x @ means.numpy().T, atol=1e-13)
        variance = np.array([[row @ covariance.numpy() @ row] * P for row in x])
        np.testing.assert_allclose(marginals.variance.detach(), variance, atol=1e-13)


def test_the_kl_is_that_of_explicit_gaussian_coefficients():
    functions = _functions()
    means, covariance, prior = _coefficients(functions)
    q = MultivariateNormal(means, covariance)
    p = MultivariateNormal(torch.zeros(D, dtype=torch.float64), prior)
    torch.testing.assert_close(functions.condition().kl().detach(), kl_divergence(q, p).sum())


def test_the_prior_itself_has_zero_kl():
    assert float(LinearFunctions(D, P, variance_ratio=1.0).condition().kl().detach()) == 0.0


def test_they_equal_a_sparse_gp_with_a_linear_kernel_whose_inducing_inputs_are_the_basis():
    functions = _functions()
    means, covariance, prior = _coefficients(functions)
    scale = float(prior[0, 0])
    # h(e_d) = v_d: with Z = I the inducing variables are the coefficients, and K_Z = t2 I.
    gp = SparseGP(
        Linear(scale),
        FreeInducingInputs(torch.eye(D, dtype=torch.float64), learn=False),
        Full(P, D, whitened=False).double(),
        n_functions=P,
        relative_jitter=0.0,
    ).double()
    with torch.no_grad():
        gp.posterior.q_mean.copy_(means)
        gp.posterior.raw_factors.copy_((0.5 * covariance.diagonal().log()).diag().expand(P, D, D))
    x = torch.from_numpy(random_inputs(N, D))
    ours, theirs = functions.condition(), gp.condition()
    tolerance = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(ours.marginals(x).mean, theirs.marginals(x).mean, **tolerance)
    torch.testing.assert_close(ours.marginals(x).variance, theirs.marginals(x).variance, **tolerance)
    torch.testing.assert_close(ours.kl(), theirs.kl(), **tolerance)


def test_every_parameter_gets_a_gradient():
    functions = _functions()
    conditioned = functions.condition()
    marginals = conditioned.marginals(sparse_rows(random_inputs(N, D, density=1.0)))
    (marginals.mean.square().sum() + marginals.variance.sum() + conditioned.kl()).backward()
    for name, parameter in functions.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().min() > 0, name
