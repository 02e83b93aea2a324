from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.models import random_labels, sparse_rows

from extremegp.engine.latents import Marginals
from extremegp.engine.mixing import FactorMixing, IdentityMixing, Mixing

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
    torch.testing.assert_close(mixing.mean_utilities(latents, labels), everything.mean[:, labels])


@pytest.mark.parametrize("offset", [False, True])
def test_utilities_of_labels_that_differ_from_row_to_row_are_those_entries(offset: bool):
    latents, mixing = _setting()
    if offset:
        latents = latents._replace(offset=torch.rand(B, K, dtype=torch.float64))
    labels = torch.tensor([[0, 5], [3, 3], [1, 0], [4, 2]])
    everything, some = mixing.utilities(latents), mixing.utilities_at(latents, labels)
    for found, whole in zip(some[:2], everything[:2], strict=True):
        torch.testing.assert_close(found, whole.gather(1, labels))


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


def _with_offset(latents: Marginals) -> Marginals:
    generator = torch.Generator().manual_seed(5)
    return latents._replace(offset=torch.randn(B, K, dtype=torch.float64, generator=generator))


def _one_each() -> tuple[Marginals, IdentityMixing]:
    generator = torch.Generator().manual_seed(1)
    mean, scales = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((B, K), (K,)))
    variance = torch.rand(B, K, dtype=torch.float64, generator=generator) + 0.1
    return Marginals(mean, variance), IdentityMixing(scales, torch.linspace(-1, 1, K, dtype=torch.float64))


def test_one_function_each_is_the_factor_mixing_with_a_diagonal_of_loadings():
    latents, mixing = _one_each()
    latents = _with_offset(latents)
    factor = FactorMixing(mixing.loadings.detach(), mixing.bias.detach())
    assert torch.count_nonzero(mixing.loadings - mixing.log_scales.exp().diag()) == 0
    for ours, theirs in zip(mixing.utilities(latents), factor.utilities(latents), strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(mixing.mean_utilities(latents), factor.mean_utilities(latents))
    y = sparse_rows(random_labels(B, K))
    torch.testing.assert_close(mixing.weighted_mean_sum(latents, y), factor.weighted_mean_sum(latents, y))
    some = slice(1, 4)
    torch.testing.assert_close(mixing.utilities(latents, some).variance, factor.utilities(latents, some).variance)


@pytest.mark.parametrize("make", [_setting, _one_each])
def test_differences_have_the_moments_of_correlated_utilities(make):
    latents, mixing = make()
    latents, classes = _with_offset(latents), torch.tensor([2, 0, 5, 2])
    differences = mixing.differences(latents, classes)
    loadings, means = mixing.loadings.detach(), mixing.mean_utilities(latents).detach()
    for i, c in enumerate(classes.tolist()):
        gap = loadings[c] - loadings
        torch.testing.assert_close(differences.mean[i].detach(), means[i, c] - means[i])
        torch.testing.assert_close(differences.variance[i].detach(), gap.square() @ latents.variance[i])
        assert float(differences.variance[i, c].detach()) == float(differences.mean[i, c].detach()) == 0.0


def test_utilities_that_coincide_differ_by_nothing_in_single_precision():
    loadings = torch.full((3, 2), 37.7)
    mixing = FactorMixing(loadings, torch.zeros(3))
    latents = Marginals(torch.full((1, 2), 0.3), torch.tensor([[0.1, 77.3]]))
    assert torch.all(mixing.differences(latents, torch.tensor([1])).variance >= 0)


@pytest.mark.parametrize("make", [_setting, _one_each])
def test_sampled_utilities_have_their_moments_and_correlations(make):
    latents, mixing = make()
    latents = _with_offset(latents)
    noise = torch.randn(200_000, B, latents.mean.shape[1], generator=torch.Generator().manual_seed(3)).double()
    drawn, utilities = mixing.sample(latents, noise).detach(), mixing.utilities(latents)
    error = 5 * (utilities.variance.detach() / len(noise)).sqrt()
    assert torch.all((drawn.mean(0) - utilities.mean.detach()).abs() < error)
    for i in range(B):
        covariance = mixing.loadings.detach() @ latents.variance[i].diag() @ mixing.loadings.detach().T
        scale = float(covariance.diagonal().max())
        torch.testing.assert_close(drawn[:, i].T.cov(), covariance, rtol=0.02, atol=0.02 * scale)


def test_restricting_one_function_each_takes_the_functions_of_the_labels():
    latents, mixing = _one_each()
    labels = torch.tensor([1, 4])
    some: Mixing = mixing.restricted(labels)
    got = some.utilities(Marginals(latents.mean[:, labels], latents.variance[:, labels]))
    torch.testing.assert_close(got.mean, mixing.utilities(latents).mean[:, labels])
    some.bias.sum().backward()
    assert mixing.bias.grad is None
