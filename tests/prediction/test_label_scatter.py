from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy.optimize import minimize
from scipy.special import expit

from extremegp.engine.integrals.logistic import expected_sigmoid
from extremegp.engine.latents import Marginals
from extremegp.engine.mixing import FactorMixing, IdentityMixing, Mixing
from extremegp.engine.utilities import Utilities
from extremegp.prediction import known_labels, label_scatter
from extremegp.prediction.label_scatter import LabelScatter, _posterior, estimate_scatter, widened_mean

B, K, Q = 6, 8, 3
Array = np.ndarray


class Problem:
    """Random utilities, scatter and known labels; row 0 knows nothing, row 1 all labels, others a few."""

    def __init__(self, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        rng = np.random.default_rng(seed)
        self.mean, self.variance = rng.normal(size=(B, K)) - 1, rng.gamma(1.0, size=(B, K))
        self.loadings = rng.normal(size=(K, Q))
        known = rng.choice([-1.0, 0.0, 1.0], size=(B, K), p=[0.2, 0.5, 0.3])
        known[0], known[1], known[2, :3] = 0.0, rng.choice([-1.0, 1.0], size=K), [1.0, -1.0, 1.0]
        self.known = known
        mixing = IdentityMixing(torch.zeros(K, dtype=dtype), torch.zeros(K, dtype=dtype)).requires_grad_(False)
        latents = Marginals(*(torch.tensor(part, dtype=dtype) for part in (self.mean, self.variance)))
        self.utilities = Utilities(mixing, latents)
        self.scatter = LabelScatter(torch.tensor(self.loadings, dtype=dtype))

    def solve(self, variance: str = "laplace") -> tuple[Array, Array]:
        found = self.scatter.given(self.utilities, scipy.sparse.csr_matrix(self.known), variance=variance)  # type: ignore[arg-type]
        return found.mean.numpy(), found.variance.numpy()


def widened(mean: Array, variance: Array, scatter: Array) -> Array:
    return mean * np.sqrt((8 + np.pi * (variance + scatter)) / (8 + np.pi * variance))


def test_utilities_are_those_at_the_mode_with_the_variances_that_the_curvature_there_leaves() -> None:
    problem = Problem()
    means, variances = problem.solve()
    for row in range(1, B):
        own, signs = problem.variance[row], problem.known[row]
        seen, said = signs != 0, signs[signs != 0]
        mean = widened(problem.mean[row], own, np.square(problem.loadings).sum(1))
        # Of z and what the functions do not know, N(0, I) together.
        root = np.hstack([problem.loadings, np.diag(np.sqrt(own))])

        def objective(
            u: Array, mean: Array = mean, root: Array = root, seen: Array = seen, said: Array = said
        ) -> float:
            return float(0.5 * u @ u + np.logaddexp(0, -said * (mean + root @ u)[seen]).sum())

        mode = minimize(objective, np.zeros(Q + K), tol=1e-12).x
        np.testing.assert_allclose(means[row], mean + root @ mode, atol=1e-4)
        p = expit((mean + root @ mode)[seen])
        hessian = np.eye(Q + K) + root[seen].T @ np.diag(p * (1 - p)) @ root[seen]
        left = np.linalg.inv(hessian)[:Q, :Q]
        expected = own + np.einsum("kp,pq,kq->k", problem.loadings, left, problem.loadings)
        np.testing.assert_allclose(variances[row], expected, rtol=1e-4)


def test_rows_without_known_labels_stay_the_same_to_the_bit() -> None:
    problem = Problem(dtype=torch.float32)
    problem.known[3:] = 0.0
    means, variances = problem.solve()
    plain = problem.utilities.marginals()
    for row in (0, 3, 4, 5):
        np.testing.assert_array_equal(means[row], plain.mean[row].numpy())
        np.testing.assert_array_equal(variances[row], plain.variance[row].numpy())
    assert not np.allclose(means[1], plain.mean[1].numpy())


def test_the_map_leaves_the_scatter_as_it_was() -> None:
    problem = Problem()
    means, variances = problem.solve("map")
    np.testing.assert_array_equal(means, problem.solve()[0])
    expected = problem.variance[1:] + np.square(problem.loadings).sum(1)
    np.testing.assert_allclose(variances[1:], expected)


@pytest.mark.parametrize("elements", [1, 60, 300])
def test_blocks_and_pads_make_no_difference(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem()
    expected = problem.solve()
    monkeypatch.setattr(known_labels, "_BLOCK_ELEMENTS", elements)
    for found, part in zip(problem.solve(), expected, strict=True):
        np.testing.assert_allclose(found, part, rtol=1e-8, atol=1e-8)


def test_no_scatter_says_nothing_of_the_other_labels() -> None:
    problem = Problem()
    problem.known[:, 4:] = 0.0
    problem.scatter = LabelScatter.none(problem.utilities.mixing.bias)
    means, variances = problem.solve()
    np.testing.assert_allclose(means[:, 4:], problem.mean[:, 4:])
    np.testing.assert_allclose(variances, problem.variance)


def test_it_asks_the_utilities_alone_whatever_mixes_them() -> None:
    problem, rng = Problem(), np.random.default_rng(1)
    latents = Marginals(*(torch.tensor(part) for part in (rng.normal(size=(B, 2)), rng.gamma(1.0, size=(B, 2)))))
    mixing: Mixing = FactorMixing(torch.tensor(rng.normal(size=(K, 2))), torch.zeros(K).double()).requires_grad_(False)
    mixed = Utilities(mixing, latents, torch.tensor(problem.mean))
    problem.utilities = Utilities(problem.utilities.mixing, mixed.marginals())
    expected = problem.solve()
    problem.utilities = mixed
    for found, part in zip(problem.solve(), expected, strict=True):
        np.testing.assert_allclose(found, part, rtol=1e-8, atol=1e-8)


def test_a_wider_utility_is_as_likely_as_before() -> None:
    mean, variance = torch.linspace(-2, 2, 9).double()[None], 0.4
    for scatter in (0.2, 1.0):
        shifted = widened_mean(mean, variance, torch.full((9,), scatter).double())
        draws = np.random.default_rng(0).normal(size=200_000)[:, None]
        before = expit(mean.numpy() + np.sqrt(variance) * draws).mean(0)
        after = expit(shifted.numpy() + np.sqrt(variance + scatter) * draws).mean(0)
        np.testing.assert_allclose(after, before, atol=0.015)


def test_the_posterior_of_a_row_agrees_with_dense_quadrature() -> None:
    rng = np.random.default_rng(0)
    mean, loadings = rng.normal(size=(1, 5)) - 1, 0.6 * rng.normal(size=(5, 1))
    y = np.array([[1.0, 0.0, 0.0, 1.0, 0.0]])
    z = np.linspace(-8, 8, 4001)
    p = expit(mean[0] + z[:, None] * loadings[:, 0])
    density = np.exp(-0.5 * z**2) * np.where(y[0] > 0, p, 1 - p).prod(1)
    density /= density.sum()
    first = (density * z).sum()
    found, covariance = _posterior(*(torch.tensor(part).float() for part in (mean, loadings, y)))
    assert found.item() == pytest.approx(z[density.argmax()], abs=0.01)
    assert found.item() == pytest.approx(first, abs=0.1)
    assert covariance.item() == pytest.approx((density * (z - first) ** 2).sum(), rel=0.1)


def planted(n_rows: int, seed: int = 0) -> tuple[Array, Array, scipy.sparse.csr_matrix]:
    """A planted scatter of one factor, what is said of rows without it, and their labels."""
    rng = np.random.default_rng(seed)
    loadings = np.array([1.6, 1.6, -1.6, 0.0, 0.0, 0.8])
    base = rng.normal(size=(n_rows, 6)) - 0.3
    means = widened(base, np.zeros(1), loadings**2)
    y = rng.random((n_rows, 6)) < expit(means + rng.normal(size=(n_rows, 1)) * loadings)
    return loadings, base, scipy.sparse.csr_matrix(y.astype(np.float32))


def estimate(base: Array, y: scipy.sparse.csr_matrix, weights: Array | None = None) -> Array:
    logits = torch.from_numpy(base).float()
    found = estimate_scatter(logits, y, rng=np.random.default_rng(0), weights=weights).loadings.double().numpy()
    return np.asarray(found @ found.T)


def test_a_planted_scatter_is_found() -> None:
    loadings, base, y = planted(4000)
    found, true = estimate(base, y), np.outer(loadings, loadings)
    off = ~np.eye(6, dtype=bool)
    np.testing.assert_allclose(found[off], true[off], atol=0.6)
    assert np.corrcoef(found[off], true[off])[0, 1] > 0.97


def likelihood_of_rows(loadings: Array, base: Array, y: Array) -> float:
    """The mean log-likelihood of rows, z of one factor integrated out on a grid."""
    z = np.linspace(-6, 6, 201)
    weights = np.exp(-0.5 * z**2)
    f = widened(base, np.zeros(1), loadings**2)[:, None] + z[:, None] * loadings
    log_p = -np.logaddexp(0, np.where(y[:, None] > 0, -f, f)).sum(2)
    return float(np.log(np.exp(log_p) @ (weights / weights.sum())).mean())


def test_it_makes_rows_as_likely_as_the_truth_does_by_dense_quadrature() -> None:
    loadings, base, y = planted(3000)
    values, vectors = np.linalg.eigh(estimate(base, y))
    first = vectors[:, -1] * np.sqrt(values[-1])
    _, new, y = planted(3000, seed=5)
    none, true = (likelihood_of_rows(part, new, y.toarray()) for part in (np.zeros(6), loadings))
    found = likelihood_of_rows(first, new, y.toarray())
    assert true > none + 0.05
    assert found > none + 0.85 * (true - none)


def test_known_labels_leave_as_many_others_as_there_are() -> None:
    loadings, base, y = planted(20_000, seed=3)
    dense = y.toarray()
    scatter = LabelScatter(torch.from_numpy(loadings)[:, None].float())
    given = np.zeros_like(dense)
    given[:, :2] = 1.0
    both = dense[:, :2].all(1)
    mixing = IdentityMixing(torch.zeros(6), torch.zeros(6)).requires_grad_(False)
    utilities = Utilities(mixing, Marginals(torch.from_numpy(base[both]).float(), torch.zeros(int(both.sum()), 6)))
    mean, variance = scatter.given(utilities, scipy.sparse.csr_matrix(given[both]))
    draws = np.random.default_rng(0).normal(size=(200, 1, 1))
    expected = expit(mean.numpy() + variance.sqrt().numpy() * draws).mean(0)[:, 2:]
    np.testing.assert_allclose(expected.mean(0), dense[both][:, 2:].mean(0), atol=0.03)


@pytest.mark.parametrize("variance", [0.0, 6.0])
def test_what_is_estimated_says_as_much_beside_utilities_of_any_variance(variance: float) -> None:
    _, base, y = planted(20_000, seed=3)
    dense, variances = y.toarray(), torch.full((6,), variance)
    some = slice(0, 4000)
    scatter = estimate_scatter(
        torch.from_numpy(base[some]).float(), y[some], rng=np.random.default_rng(0), variances=variances
    )
    given = np.zeros_like(dense)
    given[:, 0] = 1.0
    known = dense[:, 0] > 0
    mean = torch.from_numpy(base[known]).float() * np.sqrt(1 + np.pi * variance / 8)
    mixing = IdentityMixing(torch.zeros(6), torch.zeros(6)).requires_grad_(False)
    utilities = Utilities(mixing, Marginals(mean, variances.expand_as(mean).contiguous()))
    found = scatter.given(utilities, scipy.sparse.csr_matrix(given[known]))
    expected = expected_sigmoid(found.mean, found.variance).numpy()[:, 1:]
    np.testing.assert_allclose(expected.mean(0), dense[known][:, 1:].mean(0), atol=0.06)


def test_few_rows_do_not_make_the_scatter_large() -> None:
    y = scipy.sparse.csr_matrix(np.eye(2, dtype=np.float32)[[0, 0, 1, 1]])
    found = estimate_scatter(torch.zeros(4, 2), y, rng=np.random.default_rng(0)).loadings
    assert 0.1 < float(found.square().sum().sqrt()) < 4.0


def test_rows_count_by_their_weights() -> None:
    _, base, y = planted(3000)
    mixed = y.toarray()
    mixed[1500:, 1] = 1 - mixed[1500:, 0]
    mixed = scipy.sparse.csr_matrix(mixed)
    weights = np.where(np.arange(3000) < 1500, 1.0, 1e-6)
    assert estimate(base, mixed, weights)[0, 1] > 1.0
    assert estimate(base, mixed)[0, 1] < 0.5


@pytest.mark.parametrize("shape", [(5, 1), (1, 1), (1, 3), (40, 2)])
def test_few_rows_and_labels_are_enough(shape: tuple[int, int]) -> None:
    y = scipy.sparse.csr_matrix(np.ones(shape, dtype=np.float32))
    found = estimate_scatter(torch.zeros(shape), y, rng=np.random.default_rng(0)).loadings
    assert len(found) == shape[1]
    assert torch.isfinite(found).all()


def test_many_labels_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_scatter, "_MOST_LABELS", 5)
    loadings, base, y = planted(3000)
    assert np.corrcoef(estimate(base, y).ravel(), np.outer(loadings, loadings).ravel())[0, 1] > 0.9


def test_equal_generators_give_equal_scatter() -> None:
    _, base, y = planted(300)
    np.testing.assert_array_equal(estimate(base, y), estimate(base, y))


def test_frequencies_take_the_place_of_what_the_logits_leave_out() -> None:
    _, base, y = planted(4000)
    np.testing.assert_allclose(estimate(base + 1.4, y), estimate(base, y), atol=0.1)
