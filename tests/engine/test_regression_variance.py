"""The variance of a regression as a part of the utilities' posterior, against dense algebra, refits and integrals."""

from __future__ import annotations

from typing import Any

import gpytorch
import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.special import expit, logit, softmax
from tests.models import loadings_of, random_inputs, sparse_rows

from extremegp.data import one_hot
from extremegp.engine import mean as regression
from extremegp.engine.latents import Marginals
from extremegp.engine.lengthscales import Learnt
from extremegp.engine.likelihoods import BernoulliLabels, Softmax
from extremegp.engine.mean import RegressionMean
from extremegp.engine.mixing import FactorMixing, IdentityMixing, Mixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.engine.regression_variance import RegressionVariance
from extremegp.engine.utilities import Spread, Utilities
from extremegp.settings.model import ModelSettings

N, D, K = 24, 5, 3
WEIGHT, NOISE, SLOPE, SHARE = 0.6, 0.3, 1.3, 0.4


@pytest.fixture(autouse=True)
def known_kernel(monkeypatch: pytest.MonkeyPatch):
    learnt = Learnt(np.full(D, np.log(WEIGHT), dtype=np.float32), NOISE, np.ones(1))
    monkeypatch.setattr(regression, "learn_kernel", lambda *args, **options: learnt)


def _x(n: int = N, seed: int = 3) -> np.ndarray:
    x = random_inputs(n, D, density=0.8, seed=seed).astype(np.float32)
    x[~x.any(1), 0] = 1.0
    return x


def _y() -> np.ndarray:
    return (_x() @ np.random.default_rng(4).normal(size=(D, K)) > 0.3).astype(np.float32)


def _fitted(
    rows: np.ndarray | slice = slice(None), *, n_points: int = N, sparse: bool = True, **options: Any
) -> RegressionVariance:
    x, y = (scipy.sparse.csr_matrix(part[rows]) for part in (_x(), _y()))
    data = TrainingData(x if sparse else x.toarray(), y, np.random.default_rng(0), **options)
    n = min(n_points, x.shape[0])
    some = x[np.linspace(0, x.shape[0] - 1, n).round().astype(int)]
    mean = RegressionMean(x.shape[0], x.nnz if sparse else None, D, K, anchored=True)
    variance = RegressionVariance(n, some.nnz if sparse else None, D, K)
    variance.fit(data, mean, mean.regress(data, mean.learnt(data)).noise)
    mean.slope.data.fill_(SLOPE)
    variance.settle(SHARE, mean)
    return variance


def _kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * WEIGHT * ((a[:, None].astype(float) - b[None]) ** 2).sum(-1))


def _covariance(new: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Of the posterior at new inputs, beside the amplitude."""
    x = _x()[rows]
    k = _kernel(new, x)
    return _kernel(new, new) - k @ np.linalg.solve(_kernel(x, x) + NOISE * np.eye(len(x)), k.T)


@pytest.mark.parametrize("sparse", [True, False])
def test_variances_are_those_of_an_exact_gaussian_process(sparse: bool):
    new = _x(7, seed=9)
    variance = _fitted(sparse=sparse)
    found = variance.at(sparse_rows(new, torch.float32) if sparse else torch.from_numpy(new))
    np.testing.assert_allclose(found.left, _covariance(new).diagonal(), atol=1e-3)


def test_and_those_of_gpytorch():
    new = _x(7, seed=9)
    variance = _fitted()

    class Exact(gpytorch.models.ExactGP):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), kernel(x))

    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = WEIGHT**-0.5
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = NOISE
    exact = Exact(torch.from_numpy(_x()).double(), torch.from_numpy(_y()[:, 0]).double(), likelihood).eval()
    with torch.no_grad():
        expected = exact(torch.from_numpy(new).double()).variance
    np.testing.assert_allclose(variance.at(torch.from_numpy(new)).left, expected, atol=1e-3)


def test_scales_are_variances_of_the_link_under_the_prior():
    variance = _fitted()
    x, y = _x().astype(float), _y()
    residuals = y - y.mean(0)
    amplitudes = np.einsum("ik,ij,jk->k", residuals, np.linalg.inv(_kernel(x, x) + NOISE * np.eye(N)), residuals) / N
    grid = np.linspace(-9, 9, 20_001)[:, None]
    density = np.exp(-0.5 * grid**2) / np.exp(-0.5 * grid**2).sum()
    values = SLOPE * logit(np.clip(y.mean(0) + np.sqrt(amplitudes) * grid, 0.005, 0.995))
    expected = (density * (values - (density * values).sum(0)) ** 2).sum(0)
    np.testing.assert_allclose(variance.scales, SHARE * expected, rtol=0.02)


def test_without_itself_a_row_is_as_unsure_as_after_a_refit():
    variance = _fitted()
    left = variance.left_out(_x())
    for i in (0, 5, 17):
        refit = _covariance(_x()[i : i + 1], np.delete(np.arange(N), i))
        np.testing.assert_allclose(left[i], refit[0, 0], atol=2e-3)
    assert float(variance.centre) == pytest.approx(float(left.mean()), abs=1e-6)


def test_weights_that_are_integers_repeat_rows():
    counts = np.random.default_rng(1).integers(1, 4, N)
    repeated = _fitted(np.repeat(np.arange(N), counts), n_points=10**6)
    weighted = _fitted(weights=counts.astype(np.float64))
    new = torch.from_numpy(_x(7, seed=9))
    np.testing.assert_allclose(repeated.at(new).left, weighted.at(new).left, atol=2e-3)
    np.testing.assert_allclose(repeated.amplitudes, weighted.amplitudes, rtol=1e-3)


def test_features_of_some_rows_at_a_time_are_those_of_all(monkeypatch: pytest.MonkeyPatch):
    new = torch.from_numpy(_x(7, seed=9))
    whole = _fitted(n_points=10)
    monkeypatch.setattr("extremegp.engine.landmarks._PIECE", 5)
    in_pieces = _fitted(n_points=10)
    np.testing.assert_allclose(in_pieces.at(new).left, whole.at(new).left, atol=1e-4)
    np.testing.assert_allclose(in_pieces.amplitudes, whole.amplitudes, rtol=1e-3)


def test_draws_are_joint_for_all_inputs():
    new = np.concatenate([_x(5, seed=9), np.full((1, D), 40.0, dtype=np.float32)])
    variance = _fitted()
    spread = variance.at(torch.from_numpy(new))
    assert spread.draw is not None
    drawn = spread.draw(40_000, torch.Generator().manual_seed(0)).double().numpy()
    expected = _covariance(new)
    assert expected[5, 5] == pytest.approx(1)
    for k in range(K):
        found = np.cov(drawn[:, :, k].T) / float(spread.scales[k])
        np.testing.assert_allclose(found, expected, atol=0.03)
    assert np.abs(np.corrcoef(drawn[:, 0].T) - np.eye(K)).max() < 0.03
    np.testing.assert_allclose(drawn.mean(0), 0, atol=0.1)


def _utilities(mixing: Mixing, *, seed: int = 0) -> Utilities:
    rng = np.random.default_rng(seed)
    p = loadings_of(mixing).shape[1]
    mean, variance, offset = rng.normal(size=(4, p)), rng.gamma(1.0, size=(4, p)), rng.normal(size=(4, K))
    spread = Spread(torch.tensor(rng.random(4)), torch.tensor(rng.gamma(1.0, size=K)))
    latents = Marginals(torch.tensor(mean), torch.tensor(variance))
    return Utilities(mixing, latents, torch.tensor(offset), spread=spread)


def _mixings() -> list[Mixing]:
    rng = np.random.default_rng(7)
    loadings, bias = torch.tensor(rng.normal(size=(K, 2))), torch.tensor(rng.normal(size=K))
    scales = torch.tensor(rng.normal(size=K))
    return [FactorMixing(loadings, bias).requires_grad_(False), IdentityMixing(scales, bias).requires_grad_(False)]


@pytest.mark.parametrize("mixing", _mixings(), ids=["factor", "identity"])
def test_a_spread_is_as_so_many_more_functions_of_one_label_each(mixing: Mixing):
    one = _utilities(mixing)
    assert one.spread is not None
    joint = FactorMixing(torch.cat([loadings_of(mixing), one.spread.scales.sqrt().diag()], 1), mixing.bias.detach())
    left = one.spread.left[:, None].expand(-1, K)
    latents = Marginals(
        torch.cat([one.latents.mean, torch.zeros_like(left)], 1), torch.cat([one.latents.variance, left], 1)
    )
    other = Utilities(joint.requires_grad_(False), latents, one.offset)
    classes, labels = torch.tensor([0, 2, 1, 1]), torch.tensor([[0, 2], [1, 1], [2, 0], [0, 1]])
    noise = torch.randn(5, 4, one.n_noise, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert one.n_noise == latents.mean.shape[1]
    for got, expected in (
        (one.marginals(), other.marginals()),
        (one.marginals(slice(1, 3)), other.marginals(slice(1, 3))),
        (one.of_labels(labels), other.of_labels(labels)),
        (one.differences(classes), other.differences(classes)),
        (one.rows(classes).marginals(), other.rows(classes).marginals()),
        ([one.sample(noise)], [other.sample(noise)]),
    ):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)

    def moments(mean: torch.Tensor, variance: torch.Tensor, labels: slice) -> tuple[torch.Tensor, ...]:
        return mean**2 + variance.sqrt(), 2 * mean, 0.5 / variance.sqrt()

    weights, row_weights = torch.tensor([1.0, 2.0, 0.5]).double(), torch.tensor([1.0, 3.0, 0.0, 2.0]).double()
    sums = [each.expectation_sum(moments, weights, row_weights) for each in (one, other)]
    assert float(sums[0]) == pytest.approx(float(sums[1]), rel=1e-10)


@pytest.mark.parametrize("variance", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("mean", [-5.0, -2.0, 0.0, 0.5, 3.0])
def test_a_spread_leaves_probabilities_of_labels_about_as_they_are(mean: float, variance: float):
    grid = np.linspace(-9, 9, 4001)
    density = np.exp(-0.5 * grid**2) / np.exp(-0.5 * grid**2).sum()
    mixing = IdentityMixing(torch.zeros(1), torch.zeros(1)).requires_grad_(False)
    latents = Marginals(torch.tensor([[mean]]), torch.zeros(1, 1))
    wide = Utilities(mixing, latents).spread_out(
        Spread(torch.ones(1), torch.tensor([variance])), BernoulliLabels().conditional
    )
    m, v = (float(part) for part in wide.marginals())
    assert v == pytest.approx(variance)
    found, plain = density @ expit(m + v**0.5 * grid), density @ expit(mean + v**0.5 * grid)
    error = abs(logit(found) - mean)
    assert error < 0.12 * variance
    assert error <= abs(logit(plain) - mean) / 2 + 1e-6


def test_and_those_of_classes():
    rng = np.random.default_rng(0)
    means, scales = rng.normal(size=(1, K)) * 1.5, np.array([0.2, 0.5, 0.9])
    mixing = IdentityMixing(torch.zeros(K).double(), torch.zeros(K).double()).requires_grad_(False)
    known = Utilities(mixing, Marginals(torch.tensor(means), torch.zeros(1, K).double()))
    spread = Spread(torch.ones(1).double(), torch.tensor(scales))
    likelihood = Softmax()
    plain = Utilities(mixing, known.latents, spread=spread)
    kept, moved = (
        likelihood.predict(each).expectations for each in (known.spread_out(spread, likelihood.conditional), plain)
    )
    truth = softmax(means, 1)
    assert np.abs(kept.numpy() - truth).max() < np.abs(moved.numpy() - truth).max() / 3


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"propensity": True},
        {"likelihood": "softmax", "mixing": "identity", "n_latent": K},
        {"likelihood": "softmax"},
        {"likelihood": "ar-softmax"},
        {"likelihood": "independent"},
    ],
    ids=str,
)
def test_far_from_all_rows_labels_have_the_probabilities_of_their_frequencies(changes: dict[str, Any]):
    x, y = _x(), _y()
    classes = "likelihood" in changes
    y = np.asarray(one_hot(y.argmax(1), K).toarray()) if classes else y
    settings = ModelSettings(
        **{
            "n_features": D,
            "n_labels": K,
            "n_latent": 2,
            "n_inducing": 4,
            "kernel": "se",
            "n_mean_points": N,
            "n_mean_stored": None,
            "n_variance_points": N,
            "n_variance_stored": None,
        }
        | changes
    )
    model = settings.build()
    propensities = np.linspace(0.7, 1.0, K) if changes.get("propensity") else None
    data = TrainingData(x, scipy.sparse.csr_matrix(y), np.random.default_rng(0), propensities=propensities)
    model.start(data)
    assert model.regression_variance is not None
    with torch.no_grad():
        model.mixing.bias.add_(torch.tensor([1.0, -0.5, 0.2]))
        model.regression_variance.settle(0.5, model.mean_function)
        model.return_to_frequencies(data)
        far = model.utilities(model.latents.condition(), torch.full((2, D), 1e3))
        found = model.likelihood.predict(far).expectations
    frequencies = y.mean(0) / (1.0 if propensities is None else propensities)
    np.testing.assert_allclose(found, np.tile(frequencies, (2, 1)), rtol=5e-3)
    near = model.utilities(model.latents.condition(), torch.from_numpy(x)).marginals().variance
    assert (near.max(0).values < far.marginals().variance[0]).all()


def _model(share: float) -> tuple[VariationalModel, torch.Tensor]:
    sizes = {"n_features": D, "n_labels": K, "n_latent": 2, "n_inducing": 4, "kernel": "se"}
    points = {"n_mean_points": N, "n_mean_stored": None, "n_variance_points": 9, "n_variance_stored": None}
    model = ModelSettings(**sizes, **points).build()  # type: ignore[arg-type]
    model.start(TrainingData(_x(), scipy.sparse.csr_matrix(_y()), np.random.default_rng(0)))
    assert model.regression_variance is not None
    model.regression_variance.settle(share, model.mean_function)
    return model, torch.from_numpy(_x(7, seed=9))


@torch.no_grad()
def test_without_a_share_the_mean_function_is_known():
    model, new = _model(0.0)
    found, known = (
        each.utilities(each.latents.condition(), new) for each in (model, model.without_regression_variance())
    )
    assert found.spread is None
    np.testing.assert_array_equal(found.marginals().mean, known.marginals().mean)


@torch.no_grad()
def test_draws_of_utilities_have_their_marginals():
    model, new = _model(0.5)
    utilities = model.utilities(model.latents.condition(), new)
    drawn = utilities.draws(torch.tensor([len(new)]), 20_000, torch.Generator().manual_seed(0))
    mean, variance = utilities.marginals()
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.06)
    np.testing.assert_allclose(drawn.var(0), variance, rtol=0.06, atol=1e-3)
