from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engine.likelihoods import small
from tests.reference import classes as reference

from extremegp.engine.latents import Marginals
from extremegp.engine.likelihoods import BatchContext, SoftmaxMonteCarlo, softmax


def _context(seed: int) -> BatchContext:
    return BatchContext(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), seed)


def test_estimates_average_to_the_expectation():
    latents, mixing, y = small.factored(3, 4)
    likelihood = SoftmaxMonteCarlo()
    values = np.array(
        [likelihood.expected_log_prob(latents, mixing, y, context=_context(s)).item() for s in range(2000)]
    )
    rng = np.random.default_rng(0)
    expected, variance = 0.0, 0.0
    for i, c in enumerate(y.columns.tolist()):
        h = latents.mean[i].numpy() + latents.variance[i].sqrt().numpy() * rng.normal(size=(200_000, 3))
        f = h @ mixing.loadings.detach().numpy().T + mixing.bias.detach().numpy() + latents.offset[i].numpy()
        log_p = reference.log_softmax(f, c)
        expected += log_p.mean()
        variance += log_p.var() / len(f)
    assert abs(values.mean() - expected) < 4 * np.sqrt(variance + values.var() / len(values))
    assert values.std() > 0


def test_without_variance_it_is_the_softmax():
    latents, mixing, y = small.independent(4, 5)
    exact = torch.log_softmax(latents.mean, 1).gather(1, y.columns[:, None]).sum()
    estimate = SoftmaxMonteCarlo(2).expected_log_prob(Marginals(latents.mean, 0 * latents.variance), mixing, y)
    torch.testing.assert_close(estimate, exact)


def test_the_seed_of_the_context_decides_the_draws():
    latents, mixing, y = small.independent(4, 5)
    likelihood = SoftmaxMonteCarlo()
    first, again, other = (likelihood.expected_log_prob(latents, mixing, y, context=_context(s)) for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_pairs_cancel_what_is_linear_in_the_noise():
    # With a class far ahead of all others log softmax is nearly linear in f: f_c - f_k.
    latents, mixing, y = small.independent(1, 2, variance=1.0)
    latents = Marginals(torch.tensor([[-20.0, 20.0]], dtype=torch.float64), latents.variance)
    y = small.one_hot([0], 2)
    values = [SoftmaxMonteCarlo(2).expected_log_prob(latents, mixing, y, context=_context(s)).item() for s in range(20)]
    np.testing.assert_allclose(values, -40.0, atol=1e-6)


def test_gradcheck():
    latents, mixing, y = small.factored(3, 4)
    inputs = [part.clone().requires_grad_() for part in latents[:2]]
    assert torch.autograd.gradcheck(
        lambda m, v: SoftmaxMonteCarlo().expected_log_prob(Marginals(m, v, latents.offset), mixing, y), inputs
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_extreme_utilities_give_finite_estimates(dtype: torch.dtype):
    latents, mixing, y = small.extreme(dtype)
    assert SoftmaxMonteCarlo().expected_log_prob(latents, mixing, y).isfinite()


def test_what_it_cannot_do_is_refused():
    latents, mixing, y = small.independent(3, 4)
    with pytest.raises(ValueError, match="no sum over classes"):
        SoftmaxMonteCarlo().expected_log_prob(latents, mixing, y, label_weights=torch.ones(4))
    for n_samples in (0, 3, -2):
        with pytest.raises(ValueError, match="antithetic"):
            SoftmaxMonteCarlo(n_samples)


def test_probabilities_are_those_of_the_softmax(monkeypatch: pytest.MonkeyPatch):
    latents, mixing, _ = small.independent(3, 4)
    monkeypatch.setattr(softmax, "softmax_probabilities", lambda *args: args)
    assert SoftmaxMonteCarlo().probabilities(latents, mixing) == (latents, mixing)
