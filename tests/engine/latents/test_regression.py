"""The closed posterior of a regression, and what links make of it, against exact Gaussian processes and integrals."""

from __future__ import annotations

import gpytorch
import numpy as np
import pytest
import scipy.sparse
import torch
from tests.models import random_inputs

from extremegp.engine import mean as regression
from extremegp.engine.latents import RegressionGP
from extremegp.engine.latents.regression import LeftOut
from extremegp.engine.lengthscales import Learnt
from extremegp.engine.likelihoods import Softmax
from extremegp.engine.links import Link, linked, linked_moments
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.training.regression import NOISES, SHARES, start_on_regression

N, D, K = 24, 5, 3
WEIGHT, NOISE = 0.6, 0.3


@pytest.fixture(autouse=True)
def known_kernel(monkeypatch: pytest.MonkeyPatch):
    learnt = Learnt(np.full(D, np.log(WEIGHT), dtype=np.float32), NOISE, np.ones(1))
    monkeypatch.setattr(regression, "learn_kernel", lambda *args, **options: learnt)


def _x(n: int = N, seed: int = 3) -> np.ndarray:
    x = random_inputs(n, D, density=0.8, seed=seed).astype(np.float32)
    x[~x.any(1), 0] = 1.0
    return x


def _y() -> np.ndarray:
    classes = (_x() @ np.random.default_rng(4).normal(size=(D, K))).argmax(1)
    return np.eye(K, dtype=np.float32)[classes]


def _kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * WEIGHT * ((a[:, None] - b[None]) ** 2).sum(-1))


def _data(rows: np.ndarray | slice = slice(None), *, sparse: bool = True, **options: object) -> TrainingData:
    x = scipy.sparse.csr_matrix(_x()[rows]) if sparse else _x()[rows]
    return TrainingData(x, scipy.sparse.csr_matrix(_y()[rows]), np.random.default_rng(0), **options)  # type: ignore[arg-type]


def _fitted(data: TrainingData, n_landmarks: int = N, link: Link = "log") -> tuple[RegressionGP, LeftOut]:
    n = data.n_rows
    stored = data.x.nnz if scipy.sparse.issparse(data.x) else None
    some = data.x[np.linspace(0, n - 1, min(n, n_landmarks)).round().astype(int)]
    latents = RegressionGP(K, n, stored, some.shape[0], None if stored is None else some.nnz, D, link=link)
    return latents, latents.fit(data)


def _exact(new: np.ndarray, rows: np.ndarray | slice = slice(None), mu: np.ndarray | None = None):
    """Means, and variances beside the amplitude, by dense algebra."""
    x, y = _x()[rows].astype(np.float64), _y()[rows]
    mu = y.mean(0) if mu is None else mu
    precision = np.linalg.inv(_kernel(x, x) + NOISE * np.eye(len(x)))
    k = _kernel(new, x)
    return mu + k @ precision @ (y - mu), 1 - np.einsum("ij,jk,ik->i", k, precision, k), precision


@pytest.mark.parametrize("sparse", [True, False])
def test_the_posterior_is_that_of_an_exact_gaussian_process(sparse: bool):
    new = _x(7, seed=9)
    latents, _ = _fitted(_data(sparse=sparse))
    (t, variance), _ = latents.condition()._regression(torch.from_numpy(new))
    mean, exact, precision = _exact(new)
    np.testing.assert_allclose(t, mean, atol=1e-4)
    np.testing.assert_allclose(variance, exact, atol=1e-3)
    residuals = _y() - _y().mean(0)
    amplitudes = np.einsum("ik,ij,jk->k", residuals, precision, residuals) / N
    np.testing.assert_allclose(latents.amplitudes, amplitudes, rtol=1e-3)


def test_variances_are_those_of_gpytorch():
    new = _x(7, seed=9)
    latents, _ = _fitted(_data())
    (_, variance), _ = latents.condition()._regression(torch.from_numpy(new))

    class Exact(gpytorch.models.ExactGP):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), kernel(x))

    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = WEIGHT**-0.5
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = NOISE
    x = torch.from_numpy(_x()).double()
    exact = Exact(x, torch.from_numpy(_y()[:, 0]).double(), likelihood).eval()
    with torch.no_grad():
        np.testing.assert_allclose(variance, exact(torch.from_numpy(new).double()).variance, atol=1e-3)


def test_what_is_left_out_equals_refits():
    latents, left_out = _fitted(_data())
    for i in (0, 5, 17):
        others = np.delete(np.arange(N), i)
        mean, variance, _ = _exact(_x()[i : i + 1], others, latents.mean.frequencies.double().numpy())
        np.testing.assert_allclose(left_out.mean[i], mean[0], atol=1e-4)
        np.testing.assert_allclose(left_out.variance[i], variance[0], atol=2e-3)


def test_variances_through_some_rows_come_close_with_more_of_them():
    new = _x(40, seed=9)
    exact = _exact(new)[1]
    found = [_fitted(_data(), n)[0].condition()._regression(torch.from_numpy(new)) for n in (6, 12, 18)]
    errors = [float(np.abs(posterior.variance.numpy() - exact).mean()) for posterior, _ in found]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.05
    for (_, variance), a in found:
        assert (variance >= (1 - a.square().sum(1)) - 1e-6).all()
        assert (variance <= 1 + 1e-5).all()


def test_weights_that_are_integers_repeat_rows():
    counts = np.random.default_rng(1).integers(1, 4, N)
    repeated, _ = _fitted(_data(np.repeat(np.arange(N), counts)), n_landmarks=10**6)
    weighted, _ = _fitted(_data(weights=counts.astype(np.float64)))
    new = torch.from_numpy(_x(7, seed=9))
    for one, other in zip(*(latents.condition()._regression(new)[0] for latents in (repeated, weighted)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)


@pytest.mark.parametrize("link", ["log", "logit"])
@pytest.mark.parametrize("mean", [-0.1, 0.02, 0.3, 0.95])
@pytest.mark.parametrize("deviation", [0.0, 0.01, 0.1, 0.5])
def test_moments_of_links_are_integrals(link: Link, mean: float, deviation: float):
    grid = np.linspace(-9, 9, 20_001)
    density = np.exp(-0.5 * grid**2)
    density /= density.sum()
    mu = torch.tensor([0.1], dtype=torch.float64)
    values = linked(torch.from_numpy(mean + deviation * grid)[:, None], mu, link=link, floor=2.0)[:, 0].numpy()
    first = density @ values
    second = density @ (values - first) ** 2
    g = torch.tensor([[mean]], dtype=torch.float64), torch.tensor([[deviation**2]], dtype=torch.float64)
    found = linked_moments(*g, mu, link=link, floor=2.0)
    # The link bends over about its floor, 0.18: wide Gaussians are integrated roughly.
    assert float(found.mean) == pytest.approx(first, abs=0.02 + 0.02 * abs(first))
    assert float(found.variance) == pytest.approx(second, abs=1e-6, rel=0.08)


def test_links_are_those_of_numbers_well_inside_and_zero_at_frequencies():
    mu = torch.tensor([0.02])
    t = torch.tensor([[0.5], [0.02]])
    np.testing.assert_allclose(linked(t, mu, link="logit", floor=0.1)[:, 0], [np.log(49), 0], atol=1e-3)
    np.testing.assert_allclose(linked(t, mu, link="log", floor=0.1)[:, 0], [np.log(25), 0], atol=1e-3)


def _started(data: TrainingData) -> VariationalModel:
    latents = _fitted(_data())[0]
    mixing = IdentityMixing(torch.zeros(K), torch.zeros(K), learn_scales=False, learn_bias=False)
    model = VariationalModel(latents, mixing, Softmax())
    start_on_regression(model, data)
    return model


def test_far_from_all_rows_classes_are_as_likely_as_they_are_frequent():
    model = _started(_data())
    far = torch.full((1, D), 50.0)
    with torch.no_grad():
        found = model.likelihood.predict(model.utilities(model.latents.condition(), far)).expectations[0]
        np.testing.assert_allclose(found, _y().mean(0), atol=1e-4)
        _, variance = model.latents.condition().marginals(torch.cat([far, torch.from_numpy(_x())]))
    assert (variance[0] >= variance[1:].max(0).values - 1e-5).all()


def test_as_much_of_the_variance_counts_as_rows_left_out_allow():
    data = _data()
    model = _started(data)
    selection = data.selections[-1]
    values = {name: float(getattr(model.latents, name)) for name in ("slope", "floor", "share")}
    assert selection.chosen == pytest.approx(values, rel=1e-6)
    certain = max(tried["score"] for tried in selection.tried if tried["share"] == 0)
    won = next(
        t["score"] for t in selection.tried if all(t[name] == selection.chosen[name] for name in selection.chosen)
    )
    more = [t["score"] for t in selection.tried if t["share"] > selection.chosen["share"]]
    assert won > certain - 0.5
    assert selection.chosen["share"] == SHARES[0] or max(more) < won


@pytest.mark.parametrize("noise", [1e-3, 30.0])
def test_there_is_as_much_noise_as_makes_rows_left_out_likely(noise: float, monkeypatch: pytest.MonkeyPatch):
    n = 200
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, D)).astype(np.float32)
    classes = np.where(rng.random(n) < 0.4, rng.integers(K, size=n), x[:, :K].argmax(1))
    learnt = Learnt(np.full(D, np.log(WEIGHT), dtype=np.float32), noise, np.ones(1))
    monkeypatch.setattr(regression, "learn_kernel", lambda *args, **options: learnt)
    data = TrainingData(x, scipy.sparse.csr_matrix(np.eye(K, dtype=np.float32)[classes]), rng)
    latents = RegressionGP(K, n, None, n, None, D, link="log")
    mixing = IdentityMixing(torch.zeros(K), torch.zeros(K), learn_scales=False, learn_bias=False)
    start_on_regression(VariationalModel(latents, mixing, Softmax()), data)
    of_noise, of_weights = data.selections[0], data.selections[1]
    tried = {float(each["noise_scale"]): float(each["score"]) for each in of_noise.tried}
    assert set(tried) == set(NOISES)
    factor = of_noise.chosen["noise_scale"]
    assert factor == (1.0 if noise > 1 else NOISES[-1]), tried
    assert of_weights.chosen["noise_variance"] == pytest.approx(factor * noise)
