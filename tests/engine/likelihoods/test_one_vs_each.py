from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engine.likelihoods import small
from tests.reference import classes as reference

from extremegp.engine.integrals.races import max_probabilities, softmax_probabilities
from extremegp.engine.likelihoods import ClassLikelihood, OneVsEach, ProbitOneVsEach

BOTH = pytest.mark.parametrize("likelihood", [OneVsEach(), ProbitOneVsEach()], ids=lambda each: type(each).__name__)


@pytest.mark.parametrize(
    ("likelihood", "expected"),
    [(OneVsEach(), reference.one_vs_each), (ProbitOneVsEach(), reference.probit_one_vs_each)],
    ids=["logistic", "probit"],
)
def test_the_bound_is_the_sum_of_dense_integrals_over_pairs(likelihood: ClassLikelihood, expected: object):
    case = small.independent(4, 5)
    total = sum(expected(*row) for row in _rows(case))  # type: ignore[operator]
    assert case.expected(likelihood).item() == pytest.approx(total, rel=1e-5)


def _rows(case: small.Case) -> zip:
    """Means, variances and the class of each row."""
    return zip(case.latents.mean.numpy(), case.latents.variance.numpy(), case.classes.tolist(), strict=True)


def test_correlated_utilities_enter_by_the_variance_of_their_differences():
    case = small.factored(5, 4)
    latents, mixing, y, offset = case
    loadings, bias = mixing.loadings.detach().numpy(), mixing.bias.detach().numpy()
    total = 0.0
    for i, c in enumerate(y.columns.tolist()):
        for k in range(4):
            if k != c:
                difference = loadings[c] - loadings[k]
                mean = difference @ latents.mean[i].numpy() + bias[c] - bias[k]
                mean += float(offset[i, c] - offset[i, k])
                variance = difference**2 @ latents.variance[i].numpy()
                total += reference.one_vs_each(np.array([mean, 0.0]), np.array([variance, 0.0]), 0)
    assert case.expected(OneVsEach()).item() == pytest.approx(total, rel=1e-5)


def test_weights_multiply_the_terms_of_the_other_classes():
    case = small.independent(4, 5, seed=3)
    weights = torch.tensor([1.0, 2.5, 1.0, 0.5, 4.0], dtype=torch.float64)
    total = sum(reference.one_vs_each(*row, weights.numpy()) for row in _rows(case))
    assert case.expected(OneVsEach(), label_weights=weights).item() == pytest.approx(total, rel=1e-5)


@BOTH
@pytest.mark.parametrize("case", [small.independent(3, 4), small.factored(3, 4)], ids=["identity", "factor"])
def test_gradcheck(likelihood: ClassLikelihood, case: small.Case):
    weights = torch.tensor([1.0, 1.5, 1.0, 3.0], dtype=torch.float64)

    def bound(mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return case.at(mean, variance).expected(likelihood, label_weights=weights)

    inputs = [part.clone().requires_grad_() for part in case.latents]
    assert torch.autograd.gradcheck(bound, inputs, atol=1e-5, rtol=1e-4)
    case.mixing.zero_grad()
    bound(*inputs).backward()
    assert all(parameter.grad is not None for parameter in case.mixing.parameters())


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_extreme_utilities_give_finite_bounds_and_gradients(likelihood: ClassLikelihood, dtype: torch.dtype):
    case = small.extreme(dtype)
    bound = case.expected(likelihood)
    bound.backward()
    assert bound.isfinite()
    assert bound < 0
    assert case.latents.mean.grad.isfinite().all()
    assert case.latents.variance.grad.isfinite().all()


def test_probabilities_are_those_of_the_likelihoods_that_are_bounded():
    utilities = small.independent(3, 4).utilities
    softmax, probit = softmax_probabilities(utilities), max_probabilities(utilities, noise_variance=0.5)
    assert torch.equal(OneVsEach().probabilities(utilities), softmax)
    assert torch.equal(ProbitOneVsEach().probabilities(utilities), probit)
    assert not torch.allclose(softmax, probit)
