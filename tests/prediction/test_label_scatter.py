"""Known labels by a scatter of the labels themselves."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.special import expit

from extremegp.engine.integrals.logistic import expected_sigmoid
from extremegp.engine.latents import Marginals
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.utilities import Utilities
from extremegp.prediction.label_scatter import LabelScatter, estimate_scatter, widened_mean

K = 3


def _utilities(mean: np.ndarray, variance: np.ndarray) -> Utilities:
    mixing = IdentityMixing(torch.zeros(K, dtype=torch.float64), torch.zeros(K, dtype=torch.float64))
    return Utilities(mixing, Marginals(torch.from_numpy(mean), torch.from_numpy(variance)))


MEAN, VARIANCE = np.array([[-1.0, 0.5, -2.0]]), np.array([[0.3, 0.2, 0.5]])
LOADINGS = np.array([[1.5], [1.0], [-1.2]])


def test_rows_without_known_labels_are_as_they_were():
    utilities = _utilities(MEAN, VARIANCE)
    found = LabelScatter(torch.from_numpy(LOADINGS)).given(utilities, scipy.sparse.csr_matrix((1, K)))
    for one, other in zip(found, utilities.marginals(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_scatter_hardly_changes_what_is_said_of_a_label_alone():
    mean, variance, scatter = torch.linspace(-8, 4, 25)[None], 0.4, torch.full((25,), 2.0)
    before = expected_sigmoid(mean, torch.full_like(mean, variance))
    after = expected_sigmoid(widened_mean(mean, variance, scatter), torch.full_like(mean, variance + 2.0))
    np.testing.assert_allclose(after, before, atol=0.012)


@pytest.mark.parametrize("signs", [(1.0, 0.0), (-1.0, 0.0), (1.0, 1.0), (1.0, -1.0)])
def test_other_labels_are_those_of_a_posterior_on_a_grid(signs: tuple[float, float]):
    given = scipy.sparse.csr_matrix([[*signs, 0.0]])
    found = LabelScatter(torch.from_numpy(LOADINGS)).given(_utilities(MEAN, VARIANCE), given)
    widened = widened_mean(torch.from_numpy(MEAN), torch.from_numpy(VARIANCE), torch.from_numpy(LOADINGS[:, 0] ** 2))
    m = widened.numpy()[0]
    grid = np.linspace(-6, 6, 121)
    z, f0, f1 = np.meshgrid(grid, grid, grid, indexing="ij")
    log_p = -0.5 * (z**2 + f0**2 + f1**2)
    for k, (noise, sign) in enumerate(zip((f0, f1), signs, strict=True)):
        if sign:
            log_p = log_p + np.log(expit(sign * (m[k] + LOADINGS[k, 0] * z + np.sqrt(VARIANCE[0, k]) * noise)))
    p = np.exp(log_p)
    p /= p.sum()
    mean = (p * z).sum()
    spread = (p * z**2).sum() - mean**2
    # Laplace's approximation of a posterior that is nearly normal.
    assert float(found.mean[0, 2]) == pytest.approx(m[2] + LOADINGS[2, 0] * mean, abs=0.12)
    assert float(found.variance[0, 2]) == pytest.approx(VARIANCE[0, 2] + LOADINGS[2, 0] ** 2 * spread, rel=0.2)


def test_a_planted_scatter_is_found_and_makes_others_more_likely():
    rng = np.random.default_rng(0)
    n, k = 3000, 8
    loadings = np.zeros((k, 2))
    loadings[:4, 0], loadings[4:, 1] = 2.0, [2.0, 2.0, -2.0, -2.0]
    logits = rng.normal(size=(n, k)).astype(np.float32)
    f = logits - 1.0 + rng.normal(size=(n, 2)) @ loadings.T
    y = scipy.sparse.csr_matrix((rng.random((n, k)) < expit(f)).astype(np.float32))
    scatter = estimate_scatter(torch.from_numpy(logits), y, rng=np.random.default_rng(1)).loadings.double().numpy()
    found, planted = scatter @ scatter.T, loadings @ loadings.T
    off = ~np.eye(k, dtype=bool)
    assert np.corrcoef(found[off], planted[off])[0, 1] > 0.95
    assert 0.4 < found[0, 1] / planted[0, 1] < 1.6


def test_weights_of_rows_count_and_equal_seeds_give_equal_scatters():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 4)).astype(np.float32)
    y = scipy.sparse.csr_matrix((rng.random((200, 4)) < 0.3).astype(np.float32))
    twice = [estimate_scatter(torch.from_numpy(logits), y, rng=np.random.default_rng(1)).loadings for _ in range(2)]
    assert torch.equal(*twice)
    weights = rng.uniform(0.1, 3.0, 200)
    other = estimate_scatter(torch.from_numpy(logits), y, rng=np.random.default_rng(1), weights=weights).loadings
    assert not torch.equal(other, twice[0])
