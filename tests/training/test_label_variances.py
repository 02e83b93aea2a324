"""Variances of labels by the evidence, and those of coordinates under the joint posterior."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import torch

from extremegp.engine.feature_regression import FeatureRegression
from extremegp.engine.latents import FeatureGP
from extremegp.engine.likelihoods import BernoulliLabels
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.model import VariationalModel
from extremegp.training import label_variances as module
from extremegp.training.label_variances import VARIANCES, evidence_bounds, label_variances, widen
from extremegp.training.landmark_trial import HeldOut

NODES = np.linspace(-7, 7, 281)
WEIGHTS = np.exp(-0.5 * NODES**2)


def _features(n: int, m: int, seed: int = 0) -> torch.Tensor:
    """Rows shorter than one, whose sum of squares is diagonal."""
    left, sizes, _ = np.linalg.svd(np.random.default_rng(seed).normal(size=(n, m)), full_matrices=False)
    a = left * sizes
    return torch.from_numpy(0.95 * a / np.linalg.norm(a, axis=1).max()).float()


def _labels(n: int, k: int, seed: int = 1) -> np.ndarray:
    y = (np.random.default_rng(seed).random((n, k)) < 0.4).astype(np.float32)
    y[0], y[1] = 1, 0
    return y


def _expected(mean: np.ndarray, variance: np.ndarray, y: np.ndarray, p: np.ndarray | float = 1.0) -> np.ndarray:
    """E log p(y | f) by quadrature."""
    f = mean[..., None] + np.sqrt(variance)[..., None] * NODES
    p = np.asarray(p)[..., None]
    absent = np.log(1 - p + np.exp(-f)) - np.logaddexp(0, -f) if np.any(p < 1) else -np.logaddexp(0, f)
    logs = y[..., None] * (np.log(p) - np.logaddexp(0, -f)) + (1 - y[..., None]) * absent
    return np.asarray(logs @ WEIGHTS / WEIGHTS.sum())


@pytest.mark.parametrize("propensities", [None, np.array([0.3, 0.9, 0.6])])
def test_terms_of_labels_are_those_of_quadrature_with_their_derivatives(propensities: np.ndarray | None):
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=(5, 3)), rng.uniform(0.1, 3, (5, 3))
    y, p = (rng.random((5, 3)) < 0.5).astype(float), 1.0 if propensities is None else propensities
    likelihood = BernoulliLabels(None if propensities is None else torch.from_numpy(propensities))
    value, by_mean, by_variance = likelihood.label_terms(*(torch.from_numpy(part) for part in (mean, variance, y)))
    np.testing.assert_allclose(value, _expected(mean, variance, y, p), atol=1e-5)
    step = 1e-3
    for found, changes in ((by_mean, (step, 0)), (by_variance, (0, step))):
        up, down = (_expected(mean + s * changes[0], variance + s * changes[1], y, p) for s in (1, -1))
        np.testing.assert_allclose(found, (up - down) / (2 * step), atol=1e-4)


@pytest.mark.parametrize("weights", [None, np.array([1.0, 2.0, 0.5, 3.0, 1.0, 1.0, 2.0])])
def test_bounds_of_the_evidence_are_the_highest_of_posteriors_with_independent_coordinates(
    weights: np.ndarray | None,
):
    n, m = 7, 3
    a, y = _features(n, m), _labels(n, 2)
    if weights is not None:
        # The weighted sum of squares is diagonal then.
        a = a / torch.from_numpy(weights).float().sqrt()[:, None]
        a *= 0.95 / a.norm(dim=1).max()
    bounds = evidence_bounds(a, scipy.sparse.csr_matrix(y), BernoulliLabels(), weights)
    counts, features = np.ones(n) if weights is None else weights, a.double().numpy()
    for g in (1, 4, 6):
        variance = VARIANCES[g]
        bias = BernoulliLabels().prior_bias(np.average(y, 0, counts).astype(float), n, np.full(2, variance))
        for k in range(2):

            def loss(q: np.ndarray, k: int = k, variance: float = variance, bias: np.ndarray = bias) -> float:
                d, square = np.exp(q[m:]), features**2
                spread = variance * (square @ d + 1 - square.sum(1))
                terms = _expected(bias[k] + np.sqrt(variance) * features @ q[:m], spread, y[:, k])
                return float(0.5 * (d + q[:m] ** 2 - 1 - q[m:]).sum() - counts @ terms)

            best = scipy.optimize.minimize(loss, np.zeros(2 * m), method="BFGS").fun
            assert float(bounds[g, k]) == pytest.approx(-best, abs=2e-3)


def test_labels_are_worked_out_in_pieces(monkeypatch: pytest.MonkeyPatch):
    a, y = _features(20, 5), scipy.sparse.csr_matrix(_labels(20, 7))
    whole = evidence_bounds(a, y, BernoulliLabels())
    monkeypatch.setattr(module, "_PIECE", 60)
    torch.testing.assert_close(evidence_bounds(a, y, BernoulliLabels()), whole)


def _bounds(best: list[float], sharpness: float) -> torch.Tensor:
    """Of labels whose evidence is highest at these log variances."""
    logs = np.log(VARIANCES)[:, None]
    return torch.from_numpy(-0.5 * sharpness * (logs - np.array(best)) ** 2)


def test_a_label_that_says_nothing_has_the_variance_of_the_others_and_a_sure_one_its_own():
    several = [1.0, 1.2, 0.8, 1.1, 0.9, 1.0]
    bounds = torch.cat([_bounds(several, 20.0), torch.zeros(len(VARIANCES), 1), _bounds([-3.0], 20.0)], dim=1)
    found = label_variances(bounds).variances
    np.testing.assert_allclose(found[:6], np.exp(several), rtol=0.3)
    assert np.exp(0.8) < found[6] < np.exp(1.6)
    assert found[7] < 0.1


def test_widened_coordinates_have_the_mean_variance_of_the_joint_posterior():
    n, m, k, s2 = 40, 6, 3, np.array([3.0, 10.0, 30.0])
    a, y = _features(n, m), scipy.sparse.csr_matrix(_labels(n, k))
    latents = FeatureGP(k, m)
    with torch.no_grad():
        latents.posterior.q_mean.normal_(std=4.0, generator=torch.Generator().manual_seed(0))
        latents.posterior.log_scales.fill_(-1.0)
    mixing = IdentityMixing(torch.from_numpy(0.5 * np.log(s2)).float(), torch.zeros(k))
    regression = FeatureRegression(m, k)
    regression.leave_out()
    model = VariationalModel(latents, mixing, BernoulliLabels(), regression)
    with torch.no_grad():
        mean, variance = (part.double() for part in model.utilities(latents.condition(), a).marginals())
    drawn = mean.numpy()[..., None] + np.sqrt(variance.numpy())[..., None] * NODES
    p = 1 / (1 + np.exp(-drawn))
    curvature = (p * (1 - p)) @ WEIGHTS / WEIGHTS.sum()
    widen(model, a.numpy(), y)
    with torch.no_grad():
        _, variance = latents.condition().marginals(a)
    features = a.double().numpy()
    rest = 1 - (features**2).sum(1)
    for label in range(k):
        precision = np.eye(m) + s2[label] * (features.T * curvature[:, label]) @ features
        joint = ((features @ np.linalg.inv(precision)) * features).sum(1) + rest
        alone = (features**2 / np.diag(precision)).sum(1) + rest
        assert float(variance[:, label].mean()) == pytest.approx(joint.mean(), rel=1e-4)
        assert joint.mean() > alone.mean() * 1.001


def test_what_is_simpler_is_taken_unless_rows_held_out_say_otherwise():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=100)
    simple, alike, better = (HeldOut(scores + shift, None) for shift in (0.0, rng.normal(0.05, 1.0, 100), 0.5))
    assert not alike.is_better(simple, 3)
    assert better.is_better(simple, 3)
    gains = np.where(np.arange(100) < 50, 5.0, -1.0)
    assert HeldOut(scores + gains, None).is_better(simple, 3)
    weights = np.where(np.arange(100) < 50, 1e-3, 1.0)
    assert not HeldOut(scores + gains, weights).is_better(HeldOut(scores, weights), 3)
