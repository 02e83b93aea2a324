from __future__ import annotations

import numpy as np
import pytest
import torch

from extremegp.latents import Marginals
from extremegp.mixing import FactorMixing
from tests.models import random_labels, sparse_rows

B, P, K = 4, 3, 6


def _setting() -> tuple[Marginals, FactorMixing]:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(B, P, dtype=torch.float64, generator=generator)
    variance = torch.rand(B, P, dtype=torch.float64, generator=generator) + 0.1
    loadings = torch.randn(K, P, dtype=torch.float64, generator=generator)
    return Marginals(mean, variance), FactorMixing(loadings, torch.randn(K, dtype=torch.float64, generator=generator))


def test_utilities_have_the_moments_of_the_sum_of_independent_functions():
    latents, mixing = _setting()
    utilities = mixing.utilities(latents)
    for i in range(B):
        covariance = mixing.loadings.detach() @ latents.variance[i].diag() @ mixing.loadings.detach().T
        torch.testing.assert_close(utilities.variance[i].detach(), covariance.diagonal())
        expected = mixing.loadings.detach() @ latents.mean[i] + mixing.bias.detach()
        torch.testing.assert_close(utilities.mean[i].detach(), expected)
    torch.testing.assert_close(mixing.mean_utilities(latents), utilities.mean)
    assert mixing.n_labels == K


@pytest.mark.parametrize("labels", [slice(2, 5), slice(0, 1), slice(4, 99)])
def test_utilities_of_some_labels_are_those_columns(labels: slice):
    latents, mixing = _setting()
    everything, some = mixing.utilities(latents), mixing.utilities(latents, labels)
    torch.testing.assert_close(some.mean, everything.mean[:, labels])
    torch.testing.assert_close(some.variance, everything.variance[:, labels])


def test_the_weighted_sum_of_means_equals_the_dense_sum_and_so_do_its_gradients():
    latents, mixing = _setting()
    y = random_labels(B, K)
    assert 0 < y.sum() < y.size
    parameters = (mixing.loadings, mixing.bias)
    got = mixing.weighted_mean_sum(latents, sparse_rows(y))
    expected = (mixing.mean_utilities(latents) * torch.from_numpy(y)).sum()
    torch.testing.assert_close(got, expected)
    gradients = torch.autograd.grad(got, parameters), torch.autograd.grad(expected, parameters)
    for ours, dense in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, dense)


def test_no_labels_at_all_weigh_nothing():
    latents, mixing = _setting()
    assert float(mixing.weighted_mean_sum(latents, sparse_rows(np.zeros((B, K)))).detach()) == 0.0


def test_restricted_to_some_labels_it_has_their_rows_as_parameters_of_its_own():
    latents, mixing = _setting()
    labels = torch.tensor([1, 4, 5])
    some = mixing.restricted(labels)
    torch.testing.assert_close(some.utilities(latents).mean, mixing.utilities(latents).mean[:, labels])
    some.mean_utilities(latents).square().sum().backward()
    assert some.loadings.grad.shape == (3, P)
    assert mixing.loadings.grad is None
    with torch.no_grad():
        before = mixing.loadings.clone()
        some.loadings.zero_()
    assert torch.equal(mixing.loadings, before)
