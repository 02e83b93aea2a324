"""Features by way of training rows, the regression on them, and what the prior says far from all rows."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import scipy.sparse
import torch
from tests.models import random_inputs

from extremegp.engine import feature_regression, lengthscales
from extremegp.engine.families import FAMILIES, covariances_of
from extremegp.engine.feature_regression import FeatureRegression
from extremegp.engine.integrals.logistic import expected_sigmoid
from extremegp.engine.landmarks import Landmarks
from extremegp.engine.latents import FeatureGP, Marginals
from extremegp.engine.lengthscales import _LeftOutError, exponents_of, learn_lengthscales
from extremegp.engine.likelihoods import BernoulliLabels, Softmax
from extremegp.engine.mixing import FactorMixing, IdentityMixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.utilities import Utilities

N, D, K = 30, 6, 4
WEIGHT = 0.7


def _x(n: int = N, seed: int = 3) -> np.ndarray:
    x = random_inputs(n, D, density=0.7, seed=seed).astype(np.float32)
    # Rows without any feature are another matter.
    x[~x.any(1), 0] = 1.0
    return x


def _y() -> np.ndarray:
    return (_x() @ np.random.default_rng(4).normal(size=(D, K)) > 0.3).astype(np.float32)


def _landmarks(x: np.ndarray, points: np.ndarray, weights: np.ndarray | None = None) -> tuple[Landmarks, torch.Tensor]:
    kept = scipy.sparse.csr_matrix(points)
    landmarks = Landmarks(len(points), kept.nnz, D)
    landmarks.kept.keep(kept)
    landmarks.kept.weights.fill_(WEIGHT)
    return landmarks, landmarks.rotate(scipy.sparse.csr_matrix(x), weights)


def _kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * WEIGHT * ((a[:, None] - b[None]) ** 2).sum(-1))


def _labels(y: np.ndarray) -> scipy.sparse.csr_matrix:
    return scipy.sparse.csr_matrix(y)


@pytest.mark.parametrize("weights", [None, np.random.default_rng(0).uniform(0.5, 3, N)])
def test_products_of_features_are_covariances_and_those_of_training_rows_are_uncorrelated(weights: np.ndarray | None):
    x, new = _x(), _x(7, seed=9)
    landmarks, a = _landmarks(x, x, weights)
    np.testing.assert_allclose(landmarks(scipy.sparse.csr_matrix(new)) @ a.T, _kernel(new, x), atol=3e-4)
    squares = a.T @ (a if weights is None else a * torch.from_numpy(weights).float()[:, None])
    np.testing.assert_allclose(squares, torch.diag(squares.diagonal()), atol=2e-4)


def test_sparse_and_dense_rows_have_the_same_features():
    x, new = _x(), _x(7, seed=9)
    sparse, of_training = _landmarks(x, x[:10])
    dense = Landmarks(10, None, D)
    dense.kept.keep(x[:10])
    dense.kept.weights.fill_(WEIGHT)
    same = dense.rotate(x)
    np.testing.assert_allclose(of_training @ of_training.T, same @ same.T, atol=1e-4)
    a, b = sparse(scipy.sparse.csr_matrix(new)), dense(new)
    np.testing.assert_allclose(a @ a.T, b @ b.T, atol=1e-4)


def test_a_row_without_any_feature_is_like_no_other_row():
    x = np.concatenate([_x(), np.zeros((2, D), dtype=np.float32)])
    landmarks, _ = _landmarks(x, x)
    nothing = scipy.sparse.csr_matrix((1, D), dtype=np.float32)
    np.testing.assert_array_equal(landmarks(nothing), np.zeros((1, len(x))))


def _exact(x: np.ndarray, y: np.ndarray, new: np.ndarray, noise: float) -> np.ndarray:
    """GPyTorch's posterior mean of the function of a label, without mu."""

    class Exact(gpytorch.models.ExactGP):
        def __init__(self, inputs, targets, likelihood):  # type: ignore[no-untyped-def]
            super().__init__(inputs, targets, likelihood)
            self.mean, self.kernel = gpytorch.means.ZeroMean(), gpytorch.kernels.RBFKernel()

        def forward(self, inputs):  # type: ignore[no-untyped-def]
            return gpytorch.distributions.MultivariateNormal(self.mean(inputs), self.kernel(inputs))

    inputs, targets = torch.from_numpy(x).double(), torch.from_numpy(y).double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = noise
    model = Exact(inputs, targets, likelihood).double().eval()
    model.kernel.lengthscale = WEIGHT**-0.5
    with torch.no_grad():
        mean: np.ndarray = model(torch.from_numpy(new).double()).mean.numpy()
    return mean


def test_the_regression_is_the_mean_of_gpytorchs_exact_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feature_regression, "NOISES", (0.3,))
    x, y, new = _x(), _y(), _x(7, seed=9)
    landmarks, a = _landmarks(x, x)
    regression = FeatureRegression(N, K)
    regression.fit(a, _labels(y))
    mean = regression.regressed(landmarks(scipy.sparse.csr_matrix(new)))
    for k in range(K):
        mu = y[:, k].mean()
        expected = _exact(x, y[:, k] - mu, new, 0.3)
        np.testing.assert_allclose(mean[:, k], mu + expected, atol=2e-3)


@pytest.mark.parametrize("n_points", [N, 12])
@pytest.mark.parametrize("link", ["logit", "log"])
def test_logits_of_training_rows_are_those_of_refits_without_the_row(
    n_points: int, link: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(feature_regression, "NOISES", (0.3,))
    x, y = _x(), _y()
    _, a = _landmarks(x, x[:n_points])
    regression = FeatureRegression(n_points, K, link=link)  # type: ignore[arg-type]
    logits = regression.fit(a, _labels(y)).logits
    features, mu = a.double().numpy(), y.mean(0)
    for i in range(N):
        others = np.arange(N) != i
        b = features[others]
        solved = np.linalg.solve(b.T @ b + 0.3 * np.eye(n_points), b.T @ (y[others] - mu))
        t = torch.from_numpy(mu + features[i] @ solved).float()[None]
        np.testing.assert_allclose(logits[i], regression.linked(t)[0], atol=5e-3)


@pytest.mark.parametrize("weights", [None, np.random.default_rng(0).uniform(0.5, 3, N)])
def test_the_noise_is_that_of_the_least_error_of_refits_without_the_row_and_all_errors_are_told(
    weights: np.ndarray | None,
):
    x, y = _x(), _y()
    _, a = _landmarks(x, x[:12], weights)
    found = FeatureRegression(12, K).fit(a, _labels(y), weights=weights).selection
    features, own = a.double().numpy(), np.ones(N) if weights is None else weights
    mu, errors = np.average(y, axis=0, weights=own), {}
    for noise in feature_regression.NOISES:
        errors[noise] = 0.0
        for i in range(N):
            others = np.arange(N) != i
            b, w = features[others], own[others, None]
            solved = np.linalg.solve(b.T @ (w * b) + noise * np.eye(12), b.T @ (w * (y[others] - mu)))
            errors[noise] += own[i] * ((y[i] - mu - features[i] @ solved) ** 2).sum() / own.sum()
    assert {each["noise_variance"]: each["score"] for each in found.tried} == pytest.approx(errors, rel=1e-3)
    assert found.chosen == {"noise_variance": min(errors, key=errors.__getitem__)}


def test_a_weighted_row_is_as_good_as_so_many_rows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feature_regression, "NOISES", (0.3,))
    x, y = _x(), _y()
    repeats = np.random.default_rng(1).integers(1, 4, N)
    twice = np.repeat(np.arange(N), repeats)
    found = []
    for rows, weights in ((np.arange(N), repeats.astype(np.float64)), (twice, None)):
        landmarks, a = _landmarks(x[rows], x[:12], weights)
        regression = FeatureRegression(12, K)
        regression.fit(a, _labels(y[rows]), weights=weights)
        found.append(regression.regressed(landmarks(scipy.sparse.csr_matrix(_x(7, seed=9)))))
    np.testing.assert_allclose(found[0], found[1], atol=2e-4)


def test_the_regression_says_nothing_far_from_all_rows():
    x, y = _x(), _y()
    landmarks, a = _landmarks(x, x)
    for link in ("logit", "log"):
        regression = FeatureRegression(N, K, link=link)  # type: ignore[arg-type]
        regression.fit(a, _labels(y))
        far = landmarks(scipy.sparse.csr_matrix(np.full((1, D), 100.0, dtype=np.float32)))
        np.testing.assert_allclose(regression(far).detach(), 0.0, atol=1e-6)


def test_the_prior_expects_labels_and_classes_as_often_as_they_are():
    frequencies, variances = np.array([0.001, 0.02, 0.3, 0.9]), np.array([0.1, 30.0, 10.0, 3.0])
    bias = BernoulliLabels().prior_bias(frequencies, 10_000, variances)
    expected = expected_sigmoid(torch.from_numpy(bias), torch.from_numpy(variances))
    np.testing.assert_allclose(expected, frequencies, rtol=1e-4)
    shares = frequencies / frequencies.sum()
    likelihood = Softmax()
    bias = likelihood.prior_bias(shares, 10_000, np.full(4, 10.0))
    identity = IdentityMixing(torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64))
    prior = Marginals(torch.from_numpy(bias)[None], torch.full((1, 4), 10.0, dtype=torch.float64))
    np.testing.assert_allclose(likelihood.probabilities(Utilities(identity, prior))[0], shares, rtol=1e-3)


def test_biases_follow_the_prior_while_loadings_move():
    frequencies = np.array([0.001, 0.02, 0.3, 0.9])
    likelihood = BernoulliLabels()
    mixing = FactorMixing(torch.zeros(4, 3), torch.zeros(4), learn_bias=False)
    mixing.prior = likelihood.prior(frequencies, 10_000)
    with torch.no_grad():
        mixing.bias.copy_(torch.logit(torch.from_numpy(frequencies)))
        for size in np.linspace(0, 1.5, 60):
            mixing.loadings.fill_(size)
            mixing.project()
    expected = expected_sigmoid(mixing.bias.detach(), mixing.loadings.square().sum(1).detach())
    np.testing.assert_allclose(expected, frequencies, rtol=0.02)
    some = mixing.select(torch.tensor([1, 3]))
    with torch.no_grad():
        some.project()
    np.testing.assert_allclose(some.bias.detach(), mixing.bias[[1, 3]].detach(), atol=0.02)


def test_a_model_of_features_and_of_rows_are_the_same():
    x = scipy.sparse.csr_matrix(_x())
    landmarks, a = _landmarks(_x(), _x()[:12])
    latents, regression = FeatureGP(K, 12), FeatureRegression(12, K)
    regression.fit(a, _labels(_y()))
    latents.spread(a, np.full(K, 0.1))
    with torch.no_grad():
        latents.posterior.q_mean.normal_(generator=torch.Generator().manual_seed(0))
    model = VariationalModel(
        latents, IdentityMixing(torch.zeros(K), torch.zeros(K)), BernoulliLabels(), regression, landmarks
    )
    with torch.no_grad():
        of_rows = model.utilities(latents.condition(), torch.from_numpy(x.toarray())).marginals()
        of_features = model.of_features().utilities(latents.condition(), a).marginals()
    for one, other in zip(of_rows, of_features, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


@pytest.mark.parametrize("family", range(len(FAMILIES)))
@pytest.mark.parametrize("sparse", [True, False])
def test_the_error_left_out_has_the_gradient_of_its_differences(
    sparse: bool, family: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lengthscales, "_COLUMNS", 4)
    x = _x(12)
    rows = scipy.sparse.csr_matrix(x) if sparse else x
    targets, counts = torch.from_numpy(_y()[:12]), torch.rand(12, generator=torch.Generator().manual_seed(0)) + 0.5
    start = torch.randn(D, generator=torch.Generator().manual_seed(1)) * 0.3

    def error(log_weights: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _LeftOutError.apply(
            covariances_of(exponents_of(rows, log_weights), family) + 0.3 * torch.eye(12), targets, counts
        )
        return found

    moved = start.clone().requires_grad_()
    error(moved).backward()
    for d in range(D):
        step = torch.zeros(D)
        step[d] = 1e-2
        expected = float(error(start + step) - error(start - step)) / 2e-2
        assert moved.grad is not None
        assert float(moved.grad[d]) == pytest.approx(expected, abs=2e-4, rel=2e-2)


def test_lengthscales_of_few_dense_rows_are_near_those_that_drew_them():
    rng = np.random.default_rng(0)
    x = (2.5 * rng.normal(size=(300, 2))).astype(np.float32)
    covariance = np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(-1)) + 1e-6 * np.eye(300)
    f = np.linalg.cholesky(covariance) @ rng.normal(size=(300, 12)) * 1.5
    y = scipy.sparse.csr_matrix((rng.random(f.shape) < 1 / (1 + np.exp(-f))).astype(np.float32))
    weights = np.exp(learn_lengthscales(x, y, rng=np.random.default_rng(0)).log_weights)
    assert np.all((weights > 0.4) & (weights < 3.0)), weights
