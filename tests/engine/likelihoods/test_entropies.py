"""Entropies under a Gaussian utility against integrals on a fine grid."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import expit, xlogy

from extremegp.engine.latents import Marginals
from extremegp.engine.likelihoods import BernoulliLabels
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.utilities import Utilities


@pytest.mark.parametrize("mean", [-30.0, -8.0, -1.0, 0.0, 0.5, 4.0, 20.0])
@pytest.mark.parametrize("variance", [0.0, 0.3, 2.0, 30.0, 100.0])
def test_entropies_are_those_of_dense_integration(mean: float, variance: float):
    grid = np.linspace(-12, 12, 40_001)
    density = np.exp(-0.5 * grid**2)
    density /= density.sum()
    p = expit(mean + np.sqrt(variance) * grid)
    q = expit(-mean - np.sqrt(variance) * grid)
    expected = density @ (-xlogy(p, p) - xlogy(q, q))
    whole, other = density @ p, density @ q
    mixing = IdentityMixing(torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
    marginals = Marginals(torch.tensor([[mean]], dtype=torch.float64), torch.tensor([[variance]], dtype=torch.float64))
    total, aleatoric = (entropy.detach() for entropy in BernoulliLabels().entropies(Utilities(mixing, marginals)))
    assert float(total) == pytest.approx(-xlogy(whole, whole) - xlogy(other, other), abs=1e-4)
    assert float(aleatoric) == pytest.approx(expected, abs=1e-4)
    assert 0 <= float(aleatoric) <= float(total)
