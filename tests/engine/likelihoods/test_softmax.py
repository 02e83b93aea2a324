from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engine.likelihoods import small
from tests.reference import classes as reference

from extremegp.engine.integrals.races import softmax_probabilities
from extremegp.engine.likelihoods import SoftmaxMonteCarlo


def _estimate(case: small.Case, seed: int = 0, n_samples: int = 8) -> torch.Tensor:
    return case.expected(SoftmaxMonteCarlo(n_samples), seed=seed)


def test_estimates_average_to_the_expectation():
    case = small.factored(3, 4)
    values = np.array([_estimate(case, seed).item() for seed in range(2000)])
    rng = np.random.default_rng(0)
    expected, variance = 0.0, 0.0
    for i, c in enumerate(case.classes.tolist()):
        h = case.latents.mean[i].numpy() + case.latents.variance[i].sqrt().numpy() * rng.normal(size=(200_000, 3))
        f = h @ case.mixing.loadings.detach().numpy().T + case.mixing.bias.detach().numpy() + case.offset[i].numpy()
        log_p = reference.log_softmax(f, c)
        expected += log_p.mean()
        variance += log_p.var() / len(f)
    assert abs(values.mean() - expected) < 4 * np.sqrt(variance + values.var() / len(values))
    assert values.std() > 0


def test_without_variance_it_is_the_softmax():
    case = small.independent(4, 5)
    exact = torch.log_softmax(case.latents.mean, 1).gather(1, case.classes[:, None]).sum()
    torch.testing.assert_close(_estimate(case.at(variance=0 * case.latents.variance), n_samples=2), exact)


def test_the_seed_of_the_batch_decides_the_draws():
    case = small.independent(4, 5)
    first, again, other = (_estimate(case, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_pairs_cancel_what_is_linear_in_the_noise():
    # With a class far ahead of all others log softmax is nearly linear in f: f_c - f_k.
    case = small.independent(1, 2, variance=1.0).at(torch.tensor([[-20.0, 20.0]], dtype=torch.float64))
    case = case._replace(y=small.one_hot([0], 2))
    values = [_estimate(case, seed, n_samples=2).item() for seed in range(20)]
    np.testing.assert_allclose(values, -40.0, atol=1e-6)


def test_gradcheck():
    case = small.factored(3, 4)
    inputs = [part.clone().requires_grad_() for part in case.latents]
    assert torch.autograd.gradcheck(lambda mean, variance: _estimate(case.at(mean, variance)), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_extreme_utilities_give_finite_estimates(dtype: torch.dtype):
    assert _estimate(small.extreme(dtype)).isfinite()


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="no sum over classes"):
        small.independent(3, 4).expected(SoftmaxMonteCarlo(), label_weights=torch.ones(4))
    for n_samples in (0, 3, -2):
        with pytest.raises(ValueError, match="antithetic"):
            SoftmaxMonteCarlo(n_samples)


def test_probabilities_are_those_of_the_softmax():
    utilities = small.factored(3, 4).utilities
    assert torch.equal(SoftmaxMonteCarlo().probabilities(utilities), softmax_probabilities(utilities))
