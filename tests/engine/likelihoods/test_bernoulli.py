from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.models import batch_of, random_labels, sparse_rows
from tests.reference import expectations, svgp
from torch.autograd import gradcheck

from extremegp.engine import mixing as mixing_module
from extremegp.engine.integrals.logistic import expected_softplus
from extremegp.engine.latents import Marginals
from extremegp.engine.likelihoods import BernoulliLabels, IndependentClasses
from extremegp.engine.mixing import FactorMixing
from extremegp.engine.utilities import Utilities

B, P, K = 4, 3, 7


def _tensors(seed: int = 0, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Latent means and variances, loadings and bias."""
    rng = np.random.default_rng(seed)
    shapes = [(B, P), (B, P), (K, P), (K,)]
    mean, variance, loadings, bias = (torch.from_numpy(rng.normal(size=shape)) for shape in shapes)
    return mean, variance.abs() + 0.05, scale * loadings, bias - 1.0


def _expected_log_prob(
    mean: torch.Tensor,
    variance: torch.Tensor,
    loadings: torch.Tensor,
    bias: torch.Tensor,
    y: np.ndarray,
    *,
    propensities: torch.Tensor | None = None,
    label_weights: torch.Tensor | None = None,
) -> torch.Tensor:
    mixing = FactorMixing(loadings, bias)
    # Plain tensors in place of parameters, so that autograd sees the arguments themselves.
    del mixing.loadings, mixing.bias
    mixing.loadings, mixing.bias = loadings, bias
    batch = batch_of(sparse_rows(y), label_weights=label_weights)
    return BernoulliLabels(propensities).expected_log_prob(Utilities(mixing, Marginals(mean, variance)), batch)


@pytest.mark.parametrize(("scale", "tolerance"), [(0.2, 1e-8), (1.5, 1e-5)])
def test_the_expected_log_probability_equals_dense_integration_per_label(scale: float, tolerance: float):
    mean, variance, loadings, bias = _tensors(scale=scale)
    y = random_labels(B, K)
    expected = svgp.expected_log_likelihood(y, *(t.numpy() for t in (mean, variance, loadings, bias)))
    assert float(_expected_log_prob(mean, variance, loadings, bias, y)) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("elements", [1, B, 3 * B, 1 << 20])
def test_chunks_of_labels_change_neither_the_value_nor_the_gradients(elements: int, monkeypatch: pytest.MonkeyPatch):
    tensors = [t.requires_grad_() for t in _tensors()]
    monkeypatch.setattr(mixing_module, "_CHUNK_ELEMENTS", elements)
    value = _expected_log_prob(*tensors, np.zeros((B, K)))
    gradients = torch.autograd.grad(value, tensors)

    mean, variance, loadings, bias = tensors
    unchunked = -expected_softplus(mean @ loadings.T + bias, variance @ loadings.square().T).sum()
    torch.testing.assert_close(value, unchunked, rtol=1e-12, atol=0)
    for got, expected in zip(gradients, torch.autograd.grad(unchunked, tensors), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-13)


def test_its_gradients_pass_gradcheck():
    y = random_labels(B, K)
    tensors = tuple(t.requires_grad_() for t in _tensors(scale=0.3))
    # The value and its derivatives come from approximations of 1e-8, which the numerical gradient does not share.
    assert gradcheck(lambda *t: _expected_log_prob(*t, y), tensors, eps=1e-4, atol=1e-5, rtol=1e-4)


def test_variances_that_are_expanded_get_their_summed_gradient():
    mean, variance, loadings, bias = _tensors()
    column = variance[:, :1].clone().requires_grad_()
    (got,) = torch.autograd.grad(
        _expected_log_prob(mean, column.expand(B, P), loadings, bias, np.zeros((B, K))), column
    )
    wide = column.detach().repeat(1, P).requires_grad_()
    (expected,) = torch.autograd.grad(_expected_log_prob(mean, wide, loadings, bias, np.zeros((B, K))), wide)
    torch.testing.assert_close(got, expected.sum(1, keepdim=True))


def test_a_second_derivative_is_refused_rather_than_wrong():
    tensors = [t.requires_grad_() for t in _tensors()]
    value = _expected_log_prob(*tensors, np.zeros((B, K)))
    (gradient,) = torch.autograd.grad(value.square(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_float32_sums_many_labels_without_losing_them():
    n_labels = 200_000
    mean, variance = torch.zeros(1, 1), torch.full((1, 1), 1e-4)
    mixing = FactorMixing(torch.ones(n_labels, 1), torch.full((n_labels,), -3.0))
    value = BernoulliLabels().expected_log_prob(
        Utilities(mixing, Marginals(mean, variance)), batch_of(sparse_rows(np.zeros((1, n_labels)), torch.float32))
    )
    assert float(value.detach()) == pytest.approx(-n_labels * np.logaddexp(0, -3.0), rel=1e-4)


def test_the_probability_integrates_the_logistic_over_the_posterior():
    rng = np.random.default_rng(0)
    mean, variance = 3 * rng.normal(size=(5, 6)), rng.random((5, 6)) * 4 + 0.1
    got = BernoulliLabels().of_marginals(torch.from_numpy(mean), torch.from_numpy(variance))
    np.testing.assert_allclose(got, expectations.softplus_moments(mean, variance)[1], rtol=1e-5)


# Labels that apply and were not recorded


def _propensities(seed: int = 5) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(0.05, 0.95, size=K))


@pytest.mark.parametrize(("scale", "tolerance"), [(0.2, 1e-7), (1.5, 1e-5)])
def test_with_propensities_it_equals_dense_integration_of_what_was_recorded(scale: float, tolerance: float):
    tensors, y, propensities = _tensors(scale=scale), random_labels(B, K), _propensities()
    propensities[2] = 1.0
    mean, variance, loadings, bias = (tensor.numpy() for tensor in tensors)
    f_mean, f_variance = mean @ loadings.T + bias, variance @ (loadings**2).T
    expected = sum(
        expectations.expected_log_recorded(y[i, k], f_mean[i, k], f_variance[i, k], float(propensities[k]))
        for i, k in np.ndindex(y.shape)
    )
    assert 0 < y.sum() < y.size
    got = _expected_log_prob(*tensors, y, propensities=propensities)
    assert float(got) == pytest.approx(expected, rel=tolerance)


def test_propensities_of_one_change_no_bit_of_the_value_and_the_gradients():
    y = random_labels(B, K)
    results = []
    for propensities in (None, torch.ones(K, dtype=torch.float64)):
        tensors = [t.requires_grad_() for t in _tensors()]
        value = _expected_log_prob(*tensors, y, propensities=propensities)
        results.append((value.detach(), *torch.autograd.grad(value, tensors)))
    for plain, ones in zip(*results, strict=True):
        assert torch.equal(plain, ones)


def test_with_propensities_its_gradients_pass_gradcheck():
    y = random_labels(B, K)
    tensors = tuple(t.requires_grad_() for t in _tensors(scale=0.3))
    assert gradcheck(
        lambda *t: _expected_log_prob(*t, y, propensities=_propensities()), tensors, eps=1e-4, atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("elements", [1, B, 3 * B])
def test_chunks_change_neither_propensities_nor_weights(elements: int, monkeypatch: pytest.MonkeyPatch):
    y, weights = random_labels(B, K), torch.linspace(0.5, 3.0, K, dtype=torch.float64)
    results = []
    for size in (1 << 20, elements):
        monkeypatch.setattr(mixing_module, "_CHUNK_ELEMENTS", size)
        tensors = [t.requires_grad_() for t in _tensors()]
        value = _expected_log_prob(*tensors, y, propensities=_propensities(), label_weights=weights)
        results.append((value.detach(), *torch.autograd.grad(value, tensors)))
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("propensities", [None, _propensities()], ids=["all recorded", "propensities"])
def test_a_label_of_weight_three_counts_as_three_labels(propensities: torch.Tensor | None):
    y = random_labels(B, K)
    y[:, 1] = 0.0
    copies = torch.tensor([*range(K), 1, 1])
    mean, variance, loadings, bias = _tensors()
    weights = torch.ones(K, dtype=torch.float64)
    weights[1] = 3.0
    weighted = [t.requires_grad_() for t in (mean, variance, loadings, bias)]
    value = _expected_log_prob(*weighted, y, propensities=propensities, label_weights=weights)
    expected = _expected_log_prob(
        weighted[0],
        weighted[1],
        weighted[2][copies],
        weighted[3][copies],
        y[:, copies],
        propensities=None if propensities is None else propensities[copies],
    )
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    for got, wanted in zip(torch.autograd.grad(value, weighted), torch.autograd.grad(expected, weighted), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-13)


def test_with_propensities_the_bound_stays_below_the_evidence_and_comes_close():
    # One row, one latent function h ~ N(0, 1): the evidence is an integral over h alone.
    loadings, bias, propensities = np.array([1.5, -0.8, 2.0]), np.array([-1.0, 0.3, -0.5]), np.array([0.3, 0.8, 0.5])
    y = np.array([[1.0, 0.0, 0.0]])
    h = np.linspace(-12, 12, 20001)
    chance = propensities / (1 + np.exp(-(h[:, None] * loadings + bias)))
    likelihood = np.where(y == 1, chance, 1 - chance).prod(axis=1)
    density = np.exp(-0.5 * h**2) / np.sqrt(2 * np.pi)
    evidence = np.log(np.sum(likelihood * density) * (h[1] - h[0]))

    def bound(mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
        variance = log_variance.exp()
        data = _expected_log_prob(
            mean.view(1, 1),
            variance.view(1, 1),
            torch.from_numpy(loadings[:, None]),
            torch.from_numpy(bias),
            y,
            propensities=torch.from_numpy(propensities),
        )
        return data - 0.5 * (variance + mean**2 - 1 - log_variance)

    q = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    start = float(bound(*q).detach())
    optimizer = torch.optim.LBFGS([q], max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = -bound(*q)
        loss.backward()
        return loss

    optimizer.step(closure)
    best = float(bound(*q).detach())
    assert start < best <= evidence
    assert evidence - best < 0.02
    assert evidence - start > 0.02


def test_a_missing_label_counts_less_against_it_the_smaller_its_propensity():
    tensors = [t.requires_grad_() for t in _tensors()]
    slopes = []
    for propensity in (1.0, 0.5, 0.1):
        value = _expected_log_prob(
            *tensors, np.zeros((B, K)), propensities=torch.full((K,), propensity, dtype=torch.float64)
        )
        slopes.append(torch.autograd.grad(value, tensors[3])[0])
    assert (slopes[0] < slopes[1]).all()
    assert (slopes[1] < slopes[2]).all()
    assert (slopes[2] < 0).all()


def test_float32_with_small_propensities_keeps_its_digits():
    tensors, y = _tensors(scale=1.0), random_labels(B, K)
    propensities = torch.full((K,), 0.04, dtype=torch.float64)
    expected = _expected_log_prob(*tensors, y, propensities=propensities)
    mean, variance, loadings, bias = (t.float() for t in tensors)
    mixing = FactorMixing(loadings, bias)
    got = BernoulliLabels(propensities.float()).expected_log_prob(
        Utilities(mixing, Marginals(mean, variance)), batch_of(sparse_rows(y, torch.float32))
    )
    assert float(got.detach()) == pytest.approx(float(expected), rel=1e-5)


def test_propensities_are_saved_cast_and_selected_with_the_likelihood():
    likelihood = BernoulliLabels(_propensities())
    assert likelihood.float().state_dict()["propensities"].dtype == torch.float32
    labels = torch.tensor([4, 1])
    assert torch.equal(likelihood.select(labels).propensities, likelihood.propensities[labels])
    assert BernoulliLabels().state_dict() == {}
    assert BernoulliLabels().select(labels).propensities is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_of_classes_are_those_of_their_labels_scaled_to_one(dtype: torch.dtype):
    mean = torch.tensor([[0.5, -1.0, 2.0], [-150.0, -151.0, -155.0]], dtype=dtype)
    identity = FactorMixing(torch.eye(3, dtype=dtype), torch.zeros(3, dtype=dtype))
    _, probabilities = IndependentClasses().predict(Utilities(identity, Marginals(mean, torch.zeros_like(mean))))
    # So far below zero that in float32 every one of them is zero.
    log_sigmoid = -np.logaddexp(0, -mean.double().numpy())
    expected = np.exp(log_sigmoid - np.logaddexp.reduce(log_sigmoid, axis=1, keepdims=True))
    np.testing.assert_allclose(probabilities.detach(), expected, rtol=1e-5)
