from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.models import random_labels, sparse_rows
from tests.reference import expectations, svgp
from torch.autograd import gradcheck

from extremegp.latents import Marginals
from extremegp.likelihoods import BernoulliLabels, bernoulli
from extremegp.likelihoods.expectations import expected_softplus
from extremegp.mixing import FactorMixing

B, P, K = 4, 3, 7


def _tensors(seed: int = 0, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Latent means and variances, loadings and bias."""
    rng = np.random.default_rng(seed)
    shapes = [(B, P), (B, P), (K, P), (K,)]
    mean, variance, loadings, bias = (torch.from_numpy(rng.normal(size=shape)) for shape in shapes)
    return mean, variance.abs() + 0.05, scale * loadings, bias - 1.0


def _expected_log_prob(
    mean: torch.Tensor, variance: torch.Tensor, loadings: torch.Tensor, bias: torch.Tensor, y: np.ndarray
) -> torch.Tensor:
    mixing = FactorMixing(loadings, bias)
    # Plain tensors in place of parameters, so that autograd sees the arguments themselves.
    del mixing.loadings, mixing.bias
    mixing.loadings, mixing.bias = loadings, bias
    return BernoulliLabels().expected_log_prob(Marginals(mean, variance), mixing, sparse_rows(y))


@pytest.mark.parametrize(("scale", "tolerance"), [(0.2, 1e-8), (1.5, 1e-5)])
def test_the_expected_log_probability_equals_dense_integration_per_label(scale: float, tolerance: float):
    mean, variance, loadings, bias = _tensors(scale=scale)
    y = random_labels(B, K)
    expected = svgp.expected_log_likelihood(y, *(t.numpy() for t in (mean, variance, loadings, bias)))
    assert float(_expected_log_prob(mean, variance, loadings, bias, y)) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("elements", [1, B, 3 * B, 1 << 20])
def test_chunks_of_labels_change_neither_the_value_nor_the_gradients(elements: int, monkeypatch: pytest.MonkeyPatch):
    tensors = [t.requires_grad_() for t in _tensors()]
    monkeypatch.setattr(bernoulli, "_CHUNK_ELEMENTS", elements)
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
    value = BernoulliLabels().expected_log_prob(
        Marginals(mean, variance),
        FactorMixing(torch.ones(n_labels, 1), torch.full((n_labels,), -3.0)),
        sparse_rows(np.zeros((1, n_labels)), torch.float32),
    )
    assert float(value.detach()) == pytest.approx(-n_labels * np.logaddexp(0, -3.0), rel=1e-4)


def test_the_probability_integrates_the_logistic_over_the_posterior():
    rng = np.random.default_rng(0)
    mean, variance = 3 * rng.normal(size=(5, 6)), rng.random((5, 6)) * 4 + 0.1
    got = BernoulliLabels().probabilities(Marginals(torch.from_numpy(mean), torch.from_numpy(variance)))
    np.testing.assert_allclose(got, expectations.softplus_moments(mean, variance)[1], rtol=1e-5)
