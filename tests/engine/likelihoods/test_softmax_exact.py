from __future__ import annotations

import pytest
import torch
from tests.engine.likelihoods.small import Case, one_hot
from torch import Tensor

from extremegp.engine.latents.base import Marginals
from extremegp.engine.likelihoods import Likelihood, Softmax, SoftmaxMonteCarlo
from extremegp.engine.mixing import FactorMixing, IdentityMixing

B, K = 5, 4


def setting(classes: tuple[int, ...] = (3, 0, 1, 1, 2)) -> Case:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(B, K, generator=generator, dtype=torch.float64)
    variance = torch.rand(B, K, generator=generator, dtype=torch.float64) * 2
    mixing = IdentityMixing(*(torch.randn(K, generator=generator, dtype=torch.float64) * 0.3 for _ in range(2)))
    return Case(Marginals(mean.requires_grad_(), variance.requires_grad_()), mixing, one_hot([*classes], K))


def test_expected_log_prob_is_the_mean_over_many_samples() -> None:
    case = setting()
    exact = case.expected(Softmax())
    with torch.no_grad():
        noise = torch.randn(400_000, B, K, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        samples = case.utilities.sample(noise).log_softmax(2)[:, torch.arange(B), case.classes].sum(1)
    assert abs(exact.item() - samples.mean()) < 4.5 * samples.std() / len(samples) ** 0.5


def test_gradients_are_those_of_many_reparameterised_samples() -> None:
    case = setting()
    inputs = (*case.latents, case.mixing.bias, case.mixing.log_scales)

    def gradients(likelihood: Likelihood) -> tuple[Tensor, ...]:
        return torch.autograd.grad(case.expected(likelihood), inputs)

    for one, other in zip(gradients(Softmax()), gradients(SoftmaxMonteCarlo(200_000)), strict=True):
        torch.testing.assert_close(one, other, rtol=0.01, atol=0.01)


def test_of_correlated_utilities_it_is_the_estimate_that_the_seed_decides() -> None:
    case, generator = setting(), torch.Generator().manual_seed(2)
    mixing = FactorMixing(torch.randn(7, K, generator=generator).double(), torch.zeros(7).double())
    case = case._replace(mixing=mixing, y=one_hot(case.classes.numpy(), 7))
    estimates = [
        case.expected(likelihood, seed=5).item()
        for likelihood in (Softmax(), SoftmaxMonteCarlo(8), Softmax(n_samples=2))
    ]
    assert estimates[0] == estimates[1] != estimates[2]


def test_weights_of_sampled_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="sample"):
        setting().expected(Softmax(), label_weights=torch.ones(K))


def test_predictions_are_mean_utilities_and_probabilities_of_their_classes() -> None:
    case = setting((0, 1, 2, 3, 0))
    mean, p = Softmax().predict(case.utilities)
    torch.testing.assert_close(mean, case.latents.mean * case.mixing.log_scales.exp() + case.mixing.bias)
    torch.testing.assert_close(p.sum(1), torch.ones(B, dtype=torch.float64))
    # d E log p / d f_c is 1 - p(y = c).
    slope = torch.autograd.grad(case.expected(Softmax()), case.latents.mean)[0] / case.mixing.log_scales.exp()
    expected = torch.nn.functional.one_hot(case.classes, K) - p
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-6)
