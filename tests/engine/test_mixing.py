"""How latent functions are mixed, and utilities as a likelihood sees them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.models import loadings_of, random_labels, sparse_rows
from torch import Tensor

from extremegp.engine import mixing as mixing_module
from extremegp.engine.latents import Marginals
from extremegp.engine.mixing import FactorMixing, IdentityMixing, Mixing
from extremegp.engine.utilities import Utilities

B, P, K = 4, 3, 6
OFFSET = torch.randn(B, K, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def _setting(offset: Tensor | None = None) -> Utilities:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(B, P, dtype=torch.float64, generator=generator)
    variance = torch.rand(B, P, dtype=torch.float64, generator=generator) + 0.1
    loadings = torch.randn(K, P, dtype=torch.float64, generator=generator)
    mixing = FactorMixing(loadings, torch.randn(K, dtype=torch.float64, generator=generator))
    return Utilities(mixing, Marginals(mean, variance), offset)


def _one_each(offset: Tensor | None = None) -> Utilities:
    generator = torch.Generator().manual_seed(1)
    mean, scales = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in ((B, K), (K,)))
    variance = torch.rand(B, K, dtype=torch.float64, generator=generator) + 0.1
    mixing = IdentityMixing(scales, torch.linspace(-1, 1, K, dtype=torch.float64))
    return Utilities(mixing, Marginals(mean, variance), offset)


def _covariance(utilities: Utilities, row: int) -> Tensor:
    loadings = loadings_of(utilities.mixing)
    return loadings @ utilities.latents.variance[row].diag() @ loadings.T


BOTH = pytest.mark.parametrize("make", [_setting, _one_each], ids=["factor", "identity"])
OFFSETS = pytest.mark.parametrize("offset", [None, OFFSET], ids=["plain", "offset"])


@BOTH
@OFFSETS
def test_utilities_have_the_moments_of_the_sum_of_independent_functions(make, offset: Tensor | None):
    utilities = make(offset)
    mean, variance = (part.detach() for part in utilities.marginals())
    for i in range(B):
        torch.testing.assert_close(variance[i], _covariance(utilities, i).diagonal())
        expected = loadings_of(utilities.mixing) @ utilities.latents.mean[i] + utilities.mixing.bias.detach()
        torch.testing.assert_close(mean[i], expected if offset is None else expected + offset[i])
    torch.testing.assert_close(utilities.means().detach(), mean)
    assert utilities.n_utilities == utilities.mixing.n_utilities == K
    assert utilities.independent == (make is _one_each)


@BOTH
@OFFSETS
@pytest.mark.parametrize("labels", [slice(2, 5), slice(0, 1), slice(4, 99)])
def test_utilities_of_some_labels_are_those_columns(make, offset: Tensor | None, labels: slice):
    utilities = make(offset)
    everything, some = utilities.marginals(), utilities.marginals(labels)
    torch.testing.assert_close(some.mean, everything.mean[:, labels])
    torch.testing.assert_close(some.variance, everything.variance[:, labels])
    torch.testing.assert_close(utilities.means(labels), everything.mean[:, labels])


@BOTH
@OFFSETS
def test_utilities_of_labels_that_differ_from_row_to_row_are_those_entries(make, offset: Tensor | None):
    utilities = make(offset)
    labels = torch.tensor([[0, 5], [3, 3], [1, 0], [4, 2]])
    for found, whole in zip(utilities.of_labels(labels), utilities.marginals(), strict=True):
        torch.testing.assert_close(found, whole.gather(1, labels))


@BOTH
@OFFSETS
def test_the_weighted_sum_of_means_equals_the_dense_sum_and_so_do_its_gradients(make, offset: Tensor | None):
    utilities, y = make(offset), random_labels(B, K)
    assert 0 < y.sum() < y.size
    parameters = tuple(utilities.mixing.parameters())
    got = utilities.weighted_mean_sum(sparse_rows(y))
    expected = (utilities.means() * torch.from_numpy(y)).sum()
    torch.testing.assert_close(got, expected)
    gradients = torch.autograd.grad(got, parameters), torch.autograd.grad(expected, parameters)
    for ours, dense in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, dense)


def test_no_labels_at_all_weigh_nothing():
    assert float(_setting().weighted_mean_sum(sparse_rows(np.zeros((B, K)))).detach()) == 0.0


def test_of_some_labels_a_mixing_has_their_rows_as_parameters_of_its_own():
    utilities = _setting()
    latents, mixing = utilities.latents, utilities.mixing
    labels = torch.tensor([1, 4, 5])
    some = mixing.select(labels)
    assert mixing.functions(labels) is None
    torch.testing.assert_close(some.marginals(latents).mean, mixing.marginals(latents).mean[:, labels])
    some.means(latents).square().sum().backward()
    assert some.loadings.grad.shape == (3, P)
    assert mixing.loadings.grad is None
    with torch.no_grad():
        before = mixing.loadings.clone()
        some.loadings.zero_()
    assert torch.equal(mixing.loadings, before)


@pytest.mark.parametrize("options", [{}, {"learn_scales": False, "bias_variance": 4.0}], ids=["plain", "prior"])
def test_of_some_labels_one_function_each_takes_the_functions_of_those(options: dict):
    utilities = _one_each()
    latents, learnt = utilities.latents, utilities.mixing
    mixing = IdentityMixing(learnt.log_scales.detach(), learnt.bias.detach(), **options)
    labels = torch.tensor([1, 4])
    some: Mixing = mixing.select(labels)
    assert mixing.functions(labels).tolist() == [1, 4]
    got = some.marginals(Marginals(latents.mean[:, labels], latents.variance[:, labels]))
    for part, whole in zip(got, mixing.marginals(latents), strict=True):
        torch.testing.assert_close(part, whole[:, labels])
    assert some.log_scales.requires_grad == mixing.log_scales.requires_grad
    expected = mixing.bias.detach()[labels].square().sum() / 8 if options else 0.0
    assert float(torch.as_tensor(some.kl()).detach()) == pytest.approx(float(expected))
    some.bias.sum().backward()
    assert mixing.bias.grad is None


def test_one_function_each_is_the_factor_mixing_with_a_diagonal_of_loadings():
    ours = _one_each(OFFSET)
    theirs = Utilities(FactorMixing(loadings_of(ours.mixing), ours.mixing.bias.detach()), ours.latents, OFFSET)
    y, classes, some = sparse_rows(random_labels(B, K)), torch.tensor([2, 0, 5, 2]), slice(1, 4)
    h = ours.latents.mean
    for of_ours, of_theirs in (
        *zip(ours.marginals(), theirs.marginals(), strict=True),
        *zip(ours.marginals(some), theirs.marginals(some), strict=True),
        *zip(ours.differences(classes), theirs.differences(classes), strict=True),
        (ours.means(), theirs.means()),
        (ours.weighted_mean_sum(y), theirs.weighted_mean_sum(y)),
        (ours.mixing.at(h), theirs.mixing.at(h)),
    ):
        torch.testing.assert_close(of_ours, of_theirs)


@BOTH
def test_differences_have_the_moments_of_correlated_utilities(make):
    utilities, classes = make(OFFSET), torch.tensor([2, 0, 5, 2])
    differences = utilities.differences(classes)
    loadings, means = loadings_of(utilities.mixing), utilities.means().detach()
    for i, c in enumerate(classes.tolist()):
        gap = loadings[c] - loadings
        torch.testing.assert_close(differences.mean[i].detach(), means[i, c] - means[i])
        torch.testing.assert_close(differences.variance[i].detach(), gap.square() @ utilities.latents.variance[i])
        assert float(differences.variance[i, c].detach()) == float(differences.mean[i, c].detach()) == 0.0


def test_utilities_that_coincide_differ_by_nothing_in_single_precision():
    mixing = FactorMixing(torch.full((3, 2), 37.7), torch.zeros(3))
    utilities = Utilities(mixing, Marginals(torch.full((1, 2), 0.3), torch.tensor([[0.1, 77.3]])))
    assert torch.all(utilities.differences(torch.tensor([1])).variance >= 0)


@BOTH
def test_sampled_utilities_have_their_moments_and_correlations(make):
    utilities = make(OFFSET)
    mean, variance = (part.detach() for part in utilities.marginals())
    shape = utilities.latents.mean.shape
    noise = torch.randn(200_000, *shape, generator=torch.Generator().manual_seed(3)).double()
    drawn = utilities.sample(noise).detach()
    assert torch.all((drawn.mean(0) - mean).abs() < 5 * (variance / len(noise)).sqrt())
    for i in range(B):
        covariance = _covariance(utilities, i)
        scale = float(covariance.diagonal().max())
        torch.testing.assert_close(drawn[:, i].T.cov(), covariance, rtol=0.02, atol=0.02 * scale)


def test_latents_are_worked_out_when_they_are_asked_for_and_once():
    known, asked = _setting(), []

    def work() -> Marginals:
        asked.append(1)
        return known.latents

    utilities = Utilities(known.mixing, work)
    assert asked == []
    for got, expected in zip(utilities.marginals(), known.marginals(), strict=True):
        assert torch.equal(got, expected)
    utilities.means()
    assert asked == [1]


# Sums of expectations


SLOPES = torch.arange(K, dtype=torch.float64)


def _cube(mean: Tensor, variance: Tensor) -> Tensor:
    """E g_k(f) of g_k(f) = k f^3."""
    return SLOPES * (mean**3 + 3 * mean * variance)


def _cubes(mean: Tensor, variance: Tensor, labels: slice) -> tuple[Tensor, Tensor, Tensor]:
    k = SLOPES[labels]
    value, by_mean = k * (mean**3 + 3 * mean * variance), 3 * k * (mean.square() + variance)
    # What is given may be overwritten.
    return value, by_mean, mean.mul_(3 * k)


def _exponential(mean: Tensor, variance: Tensor) -> Tensor:
    return (mean + 0.5 * variance).exp()


def _exponentials(mean: Tensor, variance: Tensor, labels: slice) -> tuple[Tensor, Tensor, Tensor]:
    value = _exponential(mean, variance)
    return value, value.clone(), 0.5 * value


@pytest.mark.parametrize("chunk", [1, 2 * B, 1 << 20])
@pytest.mark.parametrize("weights", [None, torch.linspace(0.5, 3.0, K, dtype=torch.float64)], ids=["alike", "weights"])
@pytest.mark.parametrize("offset", [False, True], ids=["plain", "offset"])
@pytest.mark.parametrize(
    ("moments", "value"), [(_cubes, _cube), (_exponentials, _exponential)], ids=["cubes", "exponentials"]
)
@BOTH
def test_sums_of_expectations_and_their_gradients_are_the_dense_ones_of_any_function(
    make, moments, value, offset: bool, weights: Tensor | None, chunk: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mixing_module, "_CHUNK_ELEMENTS", chunk)
    start = make()
    latents = Marginals(*(part.requires_grad_() for part in start.latents))
    utilities = Utilities(start.mixing, latents, OFFSET.clone().requires_grad_() if offset else None)
    inputs = (*latents, *start.mixing.parameters(), *([utilities.offset] if offset else []))
    each = value(*utilities.marginals())
    expected = (each if weights is None else each * weights).sum()
    own = utilities.expectation_sum(moments, weights)
    generic = Mixing.expectation_sum(start.mixing, latents, utilities.offset, moments, weights)
    by_input = torch.autograd.grad(3 * expected, inputs)
    for total in (own, generic):
        torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)
        for got, wanted in zip(torch.autograd.grad(3 * total, inputs), by_input, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
    assert torch.equal(utilities.latents.mean, start.latents.mean)


@BOTH
def test_sums_of_expectations_refuse_a_second_derivative_rather_than_be_wrong(make):
    utilities = make()
    (gradient,) = torch.autograd.grad(
        utilities.expectation_sum(_exponentials).square(), utilities.mixing.bias, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
