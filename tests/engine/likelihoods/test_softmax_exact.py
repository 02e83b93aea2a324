from __future__ import annotations

import pytest
import torch
from tests.engine.likelihoods.small import one_hot

from extremegp.engine.latents.base import Marginals
from extremegp.engine.likelihoods import BatchContext, Softmax, SoftmaxMonteCarlo
from extremegp.engine.mixing import FactorMixing, IdentityMixing

B, K = 5, 4


def setting() -> tuple[Marginals, IdentityMixing, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(B, K, generator=generator, dtype=torch.float64)
    variance = torch.rand(B, K, generator=generator, dtype=torch.float64) * 2
    mixing = IdentityMixing(*(torch.randn(K, generator=generator, dtype=torch.float64) * 0.3 for _ in range(2)))
    return Marginals(mean.requires_grad_(), variance.requires_grad_()), mixing, torch.tensor([3, 0, 1, 1, 2])


def test_expected_log_prob_is_the_mean_over_many_samples() -> None:
    latents, mixing, classes = setting()
    exact = Softmax().expected_log_prob(latents, mixing, one_hot(classes.numpy(), K))
    with torch.no_grad():
        noise = torch.randn(400_000, B, K, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        samples = mixing.sample(latents, noise).log_softmax(2)[:, torch.arange(B), classes].sum(1)
    assert abs(exact.item() - samples.mean()) < 4.5 * samples.std() / len(samples) ** 0.5


def test_gradients_are_those_of_many_reparameterised_samples() -> None:
    latents, mixing, classes = setting()
    y = one_hot(classes.numpy(), K)
    inputs = (latents.mean, latents.variance, mixing.bias, mixing.log_scales)
    exact = torch.autograd.grad(Softmax().expected_log_prob(latents, mixing, y), inputs)
    sampled = torch.autograd.grad(SoftmaxMonteCarlo(200_000).expected_log_prob(latents, mixing, y), inputs)
    for one, other in zip(exact, sampled, strict=True):
        torch.testing.assert_close(one, other, rtol=0.01, atol=0.01)


def test_of_correlated_utilities_it_is_the_estimate_that_the_seed_decides() -> None:
    latents, _, classes = setting()
    generator = torch.Generator().manual_seed(2)
    mixing = FactorMixing(torch.randn(7, K, generator=generator).double(), torch.zeros(7).double())
    y = one_hot(classes.numpy(), 7)
    context = BatchContext(torch.zeros(B, 1), torch.arange(B), seed=5)
    estimates = [
        likelihood.expected_log_prob(latents, mixing, y, context=context).item()
        for likelihood in (Softmax(), SoftmaxMonteCarlo(8), Softmax(n_samples=2))
    ]
    assert estimates[0] == estimates[1] != estimates[2]


def test_weights_of_sampled_classes_are_refused() -> None:
    latents, mixing, classes = setting()
    with pytest.raises(ValueError, match="sample"):
        Softmax().expected_log_prob(latents, mixing, one_hot(classes.numpy(), K), label_weights=torch.ones(K))


def test_predictions_are_mean_utilities_and_probabilities_of_their_classes() -> None:
    latents, mixing, _ = setting()
    mean, p = Softmax().predict(latents, mixing)
    torch.testing.assert_close(mean, mixing.mean_utilities(latents))
    torch.testing.assert_close(p.sum(1), torch.ones(B, dtype=torch.float64))
    # d E log p / d f_c is 1 - p(y = c).
    classes = torch.arange(K).repeat(2)[:B]
    value = Softmax().expected_log_prob(latents, mixing, one_hot(classes.numpy(), K))
    slope = torch.autograd.grad(value, latents.mean)[0] / mixing.log_scales.exp()
    expected = torch.nn.functional.one_hot(classes, K) - p
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-6)
