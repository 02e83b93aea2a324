from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.special import logit
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from tests.models import FittedRegression, fit_regression, random_inputs, random_labels, sparse_rows

from extremegp.engine import lengthscales, scaled_rows
from extremegp.engine import mean as regression
from extremegp.engine.lengthscales import learn_lengthscales
from extremegp.engine.mean import RegressionMean, points_kept

N, D, K = 30, 6, 4


def _data() -> tuple[np.ndarray, np.ndarray]:
    x = random_inputs(N, D, density=0.7, seed=3)
    return x, (x @ np.random.default_rng(4).normal(size=(D, K)) > 0.3).astype(np.float64)


def _csr(matrix: np.ndarray) -> scipy.sparse.csr_matrix:
    return scipy.sparse.csr_matrix(matrix.astype(np.float32))


def _fit(x: np.ndarray, y: np.ndarray) -> FittedRegression:
    return fit_regression(_csr(x), _csr(y), rng=np.random.default_rng(0))


def _noise(x: np.ndarray, y: np.ndarray) -> float:
    return learn_lengthscales(_csr(x), _csr(y), rng=np.random.default_rng(0))[1]


def _probabilities(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.asarray(logits, dtype=np.float64)))


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_predictions_are_those_of_scikit_learns_regressor(kind: str):
    x, y = _data()
    mean, new = _fit(x, y).mean, random_inputs(7, D, seed=9)
    kernel = RBF(1 / np.sqrt(mean.weights.numpy().astype(np.float64)), "fixed")
    theirs = GaussianProcessRegressor(kernel, alpha=_noise(x, y), optimizer=None).fit(x, y - y.mean(0))
    expected = np.clip(theirs.predict(new) + y.mean(0), 5e-3, 1 - 5e-3)
    rows = sparse_rows(new, torch.float32) if kind == "sparse" else torch.from_numpy(new).float()
    with torch.no_grad():
        np.testing.assert_allclose(_probabilities(mean.logits(rows)), expected, atol=2e-5)
        mean.slope.fill_(1.5)
        np.testing.assert_allclose(mean(rows), 1.5 * mean.logits(rows), rtol=1e-6)


@pytest.mark.parametrize("subset", [False, True])
def test_leave_one_out_predictions_are_those_of_refits(subset: bool, monkeypatch: pytest.MonkeyPatch):
    if subset:
        monkeypatch.setattr(lengthscales, "EXACT_ROWS", 20)
        monkeypatch.setattr(lengthscales, "SUBSET_POINTS", 12)
    x, y = _data()
    fitted = _fit(x, y)
    weights, noise = fitted.mean.weights.numpy().astype(np.float64), _noise(x, y)

    def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.exp(-0.5 * (((a[:, None] - b[None]) ** 2) * weights).sum(-1))

    mu = y.mean(0)
    points = x if not subset else x[regression.chosen(N)]
    root = np.linalg.cholesky(covariance(points, points) + 1e-6 * np.eye(len(points)))
    features = np.linalg.solve(root, covariance(points, x)).T
    for i in range(N):
        others = np.arange(N) != i
        if subset:
            a = features[others]
            solution = np.linalg.solve(a.T @ a + noise * np.eye(a.shape[1]), a.T @ (y[others] - mu))
            expected = mu + features[i] @ solution
        else:
            k = covariance(x[others], x[others]) + noise * np.eye(N - 1)
            expected = mu + covariance(x[i : i + 1], x[others])[0] @ np.linalg.solve(k, y[others] - mu)
        np.testing.assert_allclose(
            _probabilities(fitted.logits[i]), np.clip(expected, 5e-3, 1 - 5e-3), atol=1e-3 if subset else 2e-5
        )


def test_a_subset_of_all_rows_is_all_rows(monkeypatch: pytest.MonkeyPatch):
    x, y = _data()
    exact = _fit(x, y)
    monkeypatch.setattr(regression, "_solve_all", regression._solve_subset)
    nearly = _fit(x, y)
    np.testing.assert_allclose(_probabilities(nearly.logits), _probabilities(exact.logits), atol=1e-3)


def test_learnt_lengthscales_favour_features_that_matter():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, D))
    y = np.stack([x[:, 0] > 0, x[:, 1] > 0], axis=1).astype(np.float64)
    log_weights, noise, *_ = learn_lengthscales(_csr(x), _csr(y), rng=rng)
    assert log_weights[:2].min() > log_weights[2:].max() + 1
    assert 0 < noise < 1


def test_what_is_kept_is_counted_before(monkeypatch: pytest.MonkeyPatch):
    x, y = _data()
    monkeypatch.setattr(lengthscales, "SUBSET_POINTS", 12)
    for most, kept in ((N, N), (N - 1, 12)):
        monkeypatch.setattr(lengthscales, "EXACT_ROWS", most)
        mean = _fit(x, y).mean
        assert points_kept(_csr(x)) == (len(mean.coefficients), len(mean.values))
        assert len(mean.coefficients) == kept


def test_blocks_do_not_change_the_predictions(monkeypatch: pytest.MonkeyPatch):
    x, y = _data()
    mean, new = _fit(x, y).mean, torch.from_numpy(random_inputs(7, D, seed=9)).float()
    with torch.no_grad():
        whole = mean.logits(new)
        monkeypatch.setattr(scaled_rows, "_BLOCK_ELEMENTS", 2 * N)
        torch.testing.assert_close(mean.logits(new), whole)


def test_loading_other_tensors_replaces_the_points():
    x, y = _data()
    first, second = _fit(x, y).mean, _fit(x[::-1].copy() + 0.1, y).mean
    copy = RegressionMean(len(second.coefficients), len(second.values), D, K)
    new = torch.from_numpy(random_inputs(7, D, seed=9)).float()
    with torch.no_grad():
        copy.logits(new)
        copy.load_state_dict(second.state_dict())
        torch.testing.assert_close(copy(new), second(new))
        assert not torch.allclose(first(new), second(new))


def test_equal_generators_give_equal_regressions():
    x, y = _data()
    first, second = _fit(x, y), _fit(x, y)
    np.testing.assert_array_equal(first.logits, second.logits)
    assert torch.equal(first.mean.coefficients, second.mean.coefficients)


def test_a_label_of_no_row_stays_finite():
    x, _ = _data()
    y = random_labels(N, K)
    y[:, 1] = 0
    fitted = _fit(x, y)
    assert np.isfinite(fitted.logits).all()
    np.testing.assert_allclose(fitted.logits[:, 1], logit(5e-3), rtol=1e-5)


def test_in_double_precision_it_says_the_same_of_arrays_and_of_csr():
    x, y = _data()
    fitted = fit_regression(x.astype(np.float32), _csr(y), rng=np.random.default_rng(0)).mean
    new = random_inputs(7, D, seed=9)
    with torch.no_grad():
        single = fitted.logits(torch.from_numpy(new).float())
        fitted.double()
        for rows in (torch.from_numpy(new), sparse_rows(new)):
            double = fitted.logits(rows)
            assert double.dtype == torch.float64
            torch.testing.assert_close(double.float(), single, rtol=0, atol=1e-4)


def _kept(n_points: int | None) -> np.ndarray:
    return np.linspace(0, N - 1, n_points or N).round().astype(int)


@pytest.mark.parametrize("subset", [False, True])
def test_an_array_gives_the_regression_of_the_same_numbers_as_csr(subset: bool):
    x, y = _data()
    n_points = 12 if subset else None
    learnt = {}
    for kind, matrix in (("dense", x.astype(np.float32)), ("sparse", _csr(x))):
        rows = np.asarray(x, dtype=np.float32) if kind == "dense" else matrix
        learnt[kind] = learn_lengthscales(rows, _csr(y), rng=np.random.default_rng(0))
        assert points_kept(rows, n_points) == (
            12 if subset else N,
            None if kind == "dense" else rows[_kept(n_points)].nnz,
        )
    # Their lengthscales start differently; with the same ones all else is equal.
    fitted = {}
    for kind, rows in (("dense", x.astype(np.float32)), ("sparse", _csr(x))):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(regression, "learn_kernel", lambda *_, **__: learnt["sparse"])
            fitted[kind] = fit_regression(rows, _csr(y), rng=np.random.default_rng(0), link="log", n_points=n_points)
    np.testing.assert_allclose(fitted["dense"].logits, fitted["sparse"].logits, atol=2e-4)
    new = random_inputs(7, D, seed=9)
    for rows in (sparse_rows(new, torch.float32), torch.from_numpy(new).float()):
        with torch.no_grad():
            logits = [fitted[kind].mean.logits(rows) for kind in ("dense", "sparse")]
        torch.testing.assert_close(*logits, rtol=0, atol=2e-4)


def test_the_link_for_classes_is_the_logarithm_above_a_floor():
    mean = RegressionMean(2, None, 3, 2, link="log")
    t = torch.tensor([[-0.3, 0.2], [1.4, 0.004]])
    torch.testing.assert_close(mean.linked(t), torch.tensor([[0.005, 0.2], [1.4, 0.005]]).log())


def test_weights_of_an_array_start_at_its_scale():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)).astype(np.float32), _csr((rng.random((40, 2)) < 0.5).astype(float))
    small = learn_lengthscales(x, y, rng=np.random.default_rng(1))[0]
    large = learn_lengthscales(1000 * x, y, rng=np.random.default_rng(1))[0]
    np.testing.assert_allclose(large, small - 2 * np.log(1000), atol=1e-3)


WEIGHTS = np.random.default_rng(6).integers(1, 4, size=N)


def _with_weights(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> FittedRegression:
    options = {} if weights is None else {"weights": weights.astype(np.float64)}
    return fit_regression(_csr(x), _csr(y), rng=np.random.default_rng(0), **options)


@pytest.fixture
def known_lengthscales(monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, float]:
    known = np.linspace(-0.5, 1.0, D, dtype=np.float32), 0.1
    learnt = lengthscales.Learnt(*known, np.ones(1, np.float32))
    monkeypatch.setattr(regression, "learn_kernel", lambda x, y, rng, weights, blocks: learnt)
    return known


@pytest.mark.parametrize("subset", [False, True])
def test_weights_that_are_integers_are_repeated_rows(
    subset: bool, known_lengthscales: tuple[np.ndarray, float], monkeypatch: pytest.MonkeyPatch
):
    x, y = _data()
    y = 0.1 + 0.7 * y
    rows, new = np.repeat(np.arange(N), WEIGHTS), sparse_rows(random_inputs(7, D, seed=9), torch.float32)
    if subset:
        monkeypatch.setattr(lengthscales, "EXACT_ROWS", 20)
        monkeypatch.setattr(lengthscales, "SUBSET_POINTS", 12)
        kept = regression.chosen(N)
        # The same points, whatever the number of rows.
        monkeypatch.setattr(
            regression, "chosen", lambda n, _=None: kept if n == N else np.searchsorted(rows, kept)
        )  # fmt: skip
    weighted, repeated = _with_weights(x, y, WEIGHTS), _with_weights(x[rows], y[rows], None)
    with torch.no_grad():
        got, expected = (_probabilities(fitted.mean.logits(new)) for fitted in (weighted, repeated))
        plain = _probabilities(_with_weights(x, y, None).mean.logits(new))
    np.testing.assert_allclose(got, expected, atol=1e-3 if subset else 2e-5)
    assert np.abs(got - plain).max() > 5e-3


@pytest.mark.parametrize("subset", [False, True])
def test_a_weighted_row_is_left_out_with_all_its_weight(
    subset: bool, known_lengthscales: tuple[np.ndarray, float], monkeypatch: pytest.MonkeyPatch
):
    if subset:
        monkeypatch.setattr(lengthscales, "EXACT_ROWS", 20)
        monkeypatch.setattr(lengthscales, "SUBSET_POINTS", 12)
    x, y = _data()
    fitted, (log_weights, noise) = _with_weights(x, y, WEIGHTS), known_lengthscales

    def covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.exp(-0.5 * (((a[:, None] - b[None]) ** 2) * np.exp(log_weights.astype(np.float64))).sum(-1))

    mu = np.average(y, axis=0, weights=WEIGHTS)
    points = x if not subset else x[regression.chosen(N)]
    root = np.linalg.cholesky(covariance(points, points) + 1e-6 * np.eye(len(points)))
    features = np.linalg.solve(root, covariance(points, x)).T
    for i in range(N):
        others = np.arange(N) != i
        if subset:
            a, weighted = features[others], features[others] * WEIGHTS[others, None]
            solution = np.linalg.solve(a.T @ weighted + noise * np.eye(a.shape[1]), weighted.T @ (y[others] - mu))
            expected = mu + features[i] @ solution
        else:
            k = covariance(x[others], x[others]) + np.diag(noise / WEIGHTS[others])
            expected = mu + covariance(x[i : i + 1], x[others])[0] @ np.linalg.solve(k, y[others] - mu)
        np.testing.assert_allclose(
            _probabilities(fitted.logits[i]), np.clip(expected, 5e-3, 1 - 5e-3), atol=1e-3 if subset else 2e-5
        )


def test_the_scale_of_the_weights_goes_into_the_noise():
    x, y = _data()
    learn = {"rng": np.random.default_rng(0)}
    plain, noise, *_ = learn_lengthscales(_csr(x), _csr(y), **learn)
    scaled, noise_of_ten, *_ = learn_lengthscales(
        _csr(x), _csr(y), rng=np.random.default_rng(0), weights=np.full(N, 10.0)
    )
    np.testing.assert_allclose(scaled, plain, atol=1e-2)
    assert noise_of_ten == pytest.approx(10 * noise, rel=1e-2)


@pytest.mark.parametrize("largest", [1e-6, 1e9])
def test_rows_of_any_weight_leave_the_regression_finite(largest: float):
    x, y = _data()
    weights = np.ones(N)
    weights[:3] = largest
    fitted = _with_weights(np.concatenate([x[:1], x[:-1]]), y, weights)
    assert np.isfinite(fitted.logits).all()
    assert torch.isfinite(fitted.mean.coefficients).all()
