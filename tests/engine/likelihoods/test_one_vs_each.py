from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engine.likelihoods import small
from tests.reference import classes as reference

from extremegp.engine.latents import Marginals
from extremegp.engine.likelihoods import ClassLikelihood, OneVsEach, ProbitOneVsEach, one_vs_each

BOTH = pytest.mark.parametrize("likelihood", [OneVsEach(), ProbitOneVsEach()], ids=lambda each: type(each).__name__)


@pytest.mark.parametrize(
    ("likelihood", "expected"),
    [(OneVsEach(), reference.one_vs_each), (ProbitOneVsEach(), reference.probit_one_vs_each)],
    ids=["logistic", "probit"],
)
def test_the_bound_is_the_sum_of_dense_integrals_over_pairs(likelihood: ClassLikelihood, expected: object):
    latents, mixing, y = small.independent(4, 5)
    rows = zip(latents.mean.numpy(), latents.variance.numpy(), y.columns.tolist(), strict=True)
    total = sum(expected(*row) for row in rows)  # type: ignore[operator]
    assert likelihood.expected_log_prob(latents, mixing, y).item() == pytest.approx(total, rel=1e-5)


def test_correlated_utilities_enter_by_the_variance_of_their_differences():
    latents, mixing, y = small.factored(5, 4)
    loadings, bias = mixing.loadings.detach().numpy(), mixing.bias.detach().numpy()
    total = 0.0
    for i, c in enumerate(y.columns.tolist()):
        for k in range(4):
            if k != c:
                difference = loadings[c] - loadings[k]
                mean = difference @ latents.mean[i].numpy() + bias[c] - bias[k]
                mean += float(latents.offset[i, c] - latents.offset[i, k])
                variance = difference**2 @ latents.variance[i].numpy()
                total += reference.one_vs_each(np.array([mean, 0.0]), np.array([variance, 0.0]), 0)
    assert OneVsEach().expected_log_prob(latents, mixing, y).item() == pytest.approx(total, rel=1e-5)


def test_weights_multiply_the_terms_of_the_other_classes():
    latents, mixing, y = small.independent(4, 5, seed=3)
    weights = torch.tensor([1.0, 2.5, 1.0, 0.5, 4.0], dtype=torch.float64)
    rows = zip(latents.mean.numpy(), latents.variance.numpy(), y.columns.tolist(), strict=True)
    total = sum(reference.one_vs_each(*row, weights.numpy()) for row in rows)
    bound = OneVsEach().expected_log_prob(latents, mixing, y, label_weights=weights)
    assert bound.item() == pytest.approx(total, rel=1e-5)


@BOTH
@pytest.mark.parametrize("batch", [small.independent(3, 4), small.factored(3, 4)], ids=["identity", "factor"])
def test_gradcheck(likelihood: ClassLikelihood, batch: small.Batch):
    weights = torch.tensor([1.0, 1.5, 1.0, 3.0], dtype=torch.float64)

    def bound(mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        latents = Marginals(mean, variance, batch.latents.offset)
        return likelihood.expected_log_prob(latents, batch.mixing, batch.y, label_weights=weights)

    inputs = [part.clone().requires_grad_() for part in batch.latents[:2]]
    assert torch.autograd.gradcheck(bound, inputs, atol=1e-5, rtol=1e-4)
    batch.mixing.zero_grad()
    bound(*inputs).backward()
    assert all(parameter.grad is not None for parameter in batch.mixing.parameters())


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_extreme_utilities_give_finite_bounds_and_gradients(likelihood: ClassLikelihood, dtype: torch.dtype):
    latents, mixing, y = small.extreme(dtype)
    bound = likelihood.expected_log_prob(latents, mixing, y)
    bound.backward()
    assert bound.isfinite()
    assert bound < 0
    assert latents.mean.grad.isfinite().all()
    assert latents.variance.grad.isfinite().all()


def test_probabilities_are_those_of_the_likelihoods_that_are_bounded(monkeypatch: pytest.MonkeyPatch):
    latents, mixing, _ = small.independent(3, 4)
    monkeypatch.setattr(one_vs_each, "softmax_probabilities", lambda *args: ("softmax", *args))
    monkeypatch.setattr(one_vs_each, "max_probabilities", lambda *args, **kwargs: ("max", *args, kwargs))
    assert OneVsEach().probabilities(latents, mixing) == ("softmax", latents, mixing)
    assert ProbitOneVsEach().probabilities(latents, mixing) == ("max", latents, mixing, {"noise_variance": 0.5})
