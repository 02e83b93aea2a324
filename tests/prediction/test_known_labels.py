from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import expit

from extremegp.engine.latents import Marginals
from extremegp.engine.mixing import FactorMixing
from extremegp.engine.utilities import Spread, Utilities
from extremegp.prediction import known_labels as conditional
from extremegp.prediction.known_labels import InstanceNoise, find_mode, mean_utilities_given, utilities_given

B, K, P = 7, 9, 4
Array = np.ndarray


class Problem:
    """Random latents, mixing, noise and known labels; row 0 knows nothing, row 1 all labels, others a few."""

    def __init__(self, *, seed: int = 0, noisy: bool = True, dtype: torch.dtype = torch.float64) -> None:
        rng = np.random.default_rng(seed)
        self.mean, self.variance = rng.normal(size=(B, P)), rng.gamma(1.0, size=(B, P))
        self.loadings, self.bias = rng.normal(size=(K, P)), rng.normal(size=K) - 1
        self.weight, self.factor = (0.7, 0.8 * rng.normal(size=(P, P))) if noisy else (1.0, np.zeros((P, 0)))
        known = rng.choice([-1.0, 0.0, 1.0], size=(B, K), p=[0.2, 0.5, 0.3])
        known[0], known[1], known[2, :3] = 0.0, rng.choice([-1.0, 1.0], size=K), [1.0, -1.0, 1.0]
        self.known = known
        self.latents = Marginals(*(torch.tensor(part, dtype=dtype) for part in (self.mean, self.variance)))
        self.mixing = FactorMixing(
            torch.tensor(self.loadings, dtype=dtype), torch.tensor(self.bias, dtype=dtype)
        ).requires_grad_(False)
        self.offset: torch.Tensor | None = None
        self.noise = InstanceNoise(torch.tensor(self.weight, dtype=dtype), torch.tensor(self.factor, dtype=dtype))

    @property
    def utilities(self) -> Utilities:
        return Utilities(self.mixing, self.latents, self.offset)

    def solve(self, known: Array | None = None, variance: str = "laplace") -> tuple[Array, Array]:
        given_labels = scipy.sparse.csr_matrix(self.known if known is None else known)
        found = utilities_given(self.utilities, given_labels, self.noise, variance=variance)
        return found.mean.numpy(), found.variance.numpy()

    def covariance(self, row: int) -> Array:
        return self.weight * np.diag(self.variance[row]) + self.factor @ self.factor.T

    def negative_log_posterior(self, row: int, h: Array) -> float:
        observed = np.flatnonzero(self.known[row])
        f = self.loadings[observed] @ h + self.bias[observed]
        away = h - self.mean[row]
        prior = 0.5 * away @ np.linalg.solve(self.covariance(row), away)
        return float(prior + np.logaddexp(0, -self.known[row, observed] * f).sum())

    def mode(self, row: int) -> Array:
        """The mode of h by a general minimiser in P dimensions."""
        found = scipy.optimize.minimize(
            lambda h: self.negative_log_posterior(row, h), self.mean[row], method="BFGS", options={"gtol": 1e-9}
        )
        return np.asarray(found.x)


@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_means_are_those_at_the_mode_that_a_general_minimiser_finds(seed: int, noisy: bool) -> None:
    problem = Problem(seed=seed, noisy=noisy)
    means, _ = problem.solve()
    for row in range(B):
        expected = problem.loadings @ problem.mode(row) + problem.bias
        np.testing.assert_allclose(means[row], expected, atol=2e-5)
    alone = mean_utilities_given(problem.utilities, scipy.sparse.csr_matrix(problem.known), problem.noise)
    np.testing.assert_allclose(alone.numpy(), means, rtol=1e-12)


@pytest.mark.parametrize("noisy", [True, False])
def test_laplace_variances_come_from_the_curvature_at_the_mode(noisy: bool) -> None:
    problem = Problem(noisy=noisy)
    _, variances = problem.solve()
    step = 1e-3 * np.eye(P)
    for row in range(B):
        mode = problem.mode(row)

        def cost(h: Array, row: int = row) -> float:
            return problem.negative_log_posterior(row, h)

        hessian = np.array(
            [
                [
                    (cost(mode + a + b) - cost(mode + a - b) - cost(mode - a + b) + cost(mode - a - b)) / 4e-6
                    for a in step
                ]
                for b in step
            ]
        )
        after = np.einsum("kp,pq,kq->k", problem.loadings, np.linalg.inv(hessian), problem.loadings)
        before = np.einsum("kp,pq,kq->k", problem.loadings, problem.covariance(row), problem.loadings)
        functions = problem.loadings**2 @ problem.variance[row]
        np.testing.assert_allclose(variances[row], functions * after / before, rtol=2e-4)
        if not noisy:
            np.testing.assert_allclose(variances[row], after, rtol=2e-4)


def test_the_map_leaves_variances_as_they_were() -> None:
    problem = Problem()
    means, variances = problem.solve(variance="map")
    np.testing.assert_array_equal(means, problem.solve()[0])
    np.testing.assert_allclose(variances, problem.variance @ (problem.loadings**2).T)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_function_and_one_label_agree_with_numerical_integration(sign: float) -> None:
    mean, variance, loading, bias = 0.3, 0.4, np.array([1.2, 0.9]), np.array([-0.5, 0.2])

    def density(h: float) -> float:
        return float(np.exp(-0.5 * (h - mean) ** 2 / variance) * expit(sign * (loading[0] * h + bias[0])))

    mass = quad(density, -8, 8)[0]
    first = quad(lambda h: h * density(h), -8, 8)[0] / mass
    second = quad(lambda h: (h - first) ** 2 * density(h), -8, 8)[0] / mass
    mixing = FactorMixing(torch.tensor(loading)[:, None], torch.tensor(bias)).requires_grad_(False)
    latents = Marginals(torch.tensor([[mean]]).double(), torch.tensor([[variance]]).double())
    known, noise = scipy.sparse.csr_matrix([[sign, 0.0]]), InstanceNoise.none(mixing.bias, 1)
    found = utilities_given(Utilities(mixing, latents), known, noise)
    assert found.mean[0, 1].item() == pytest.approx(loading[1] * first + bias[1], abs=0.02)
    assert found.variance[0, 1].item() == pytest.approx(loading[1] ** 2 * second, rel=0.03)


def test_rows_without_known_labels_stay_the_same_to_the_bit() -> None:
    problem = Problem(dtype=torch.float32)
    known = problem.known.copy()
    known[3:] = 0.0
    means, variances = problem.solve(known)
    plain = problem.utilities.marginals()
    for row in (0, 3, 4, 5, 6):
        np.testing.assert_array_equal(means[row], plain.mean[row].numpy())
        np.testing.assert_array_equal(variances[row], plain.variance[row].numpy())
    assert not np.allclose(means[1], plain.mean[1].numpy())


@pytest.mark.parametrize("elements", [1, 40, 200])
def test_blocks_pads_and_the_order_of_rows_make_no_difference(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem()
    means, variances = problem.solve()
    order = np.random.default_rng(3).permutation(B)
    problem.latents = problem.latents.rows(torch.from_numpy(order))
    monkeypatch.setattr(conditional, "_BLOCK_ELEMENTS", elements)
    shuffled_means, shuffled_variances = problem.solve(problem.known[order])
    np.testing.assert_allclose(shuffled_means, means[order], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(shuffled_variances, variances[order], rtol=1e-8)


def test_the_order_of_labels_makes_no_difference() -> None:
    problem = Problem()
    means, variances = problem.solve()
    order = np.random.default_rng(4).permutation(K)
    problem.mixing = FactorMixing(
        problem.mixing.loadings[torch.from_numpy(order)], problem.mixing.bias[torch.from_numpy(order)]
    ).requires_grad_(False)
    permuted_means, permuted_variances = problem.solve(problem.known[:, order])
    np.testing.assert_allclose(permuted_means, means[:, order], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(permuted_variances, variances[:, order], rtol=1e-8)


def test_a_label_without_loadings_says_nothing_and_learns_nothing() -> None:
    problem = Problem()
    problem.mixing.loadings[0] = 0.0
    known = np.zeros((B, K))
    known[:, 0] = 1.0
    means, variances = problem.solve(known)
    plain = problem.utilities.marginals()
    np.testing.assert_allclose(means, plain.mean.numpy(), rtol=1e-12)
    np.testing.assert_allclose(variances, plain.variance.numpy(), rtol=1e-12)


def test_known_labels_move_labels_that_share_loadings_their_way() -> None:
    mixing = FactorMixing(torch.tensor([[1.0], [1.0], [-1.0]]), torch.zeros(3)).requires_grad_(False)
    latents = Marginals(torch.zeros(2, 1), torch.ones(2, 1))
    known = scipy.sparse.csr_matrix([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    means = mean_utilities_given(Utilities(mixing, latents), known, InstanceNoise.none(mixing.bias, 1))
    assert means[0, 1] > 0.1
    assert means[0, 2] < -0.1
    torch.testing.assert_close(means[0], -means[1])


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.0, 100.0),
    st.sampled_from([0.0, 1e-6, 0.1, 1.0, 10.0, 30.0]),
    st.integers(1, 8),
    st.integers(1, 6),
    st.integers(0, 10**6),
)
def test_the_mode_solves_its_equation_for_means_and_covariances_of_any_size(
    size: float, deviation: float, n_known: int, width: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mean, root = size * normal(5, n_known), deviation * normal(5, n_known, width)
    signs = torch.sign(normal(5, n_known)) * (normal(5, n_known) > -1)
    mode = find_mode(mean, root, signs)
    root = root * signs.abs()[..., None]
    f = mean + (root @ (root.mT @ mode.gradient[..., None]))[..., 0]
    torch.testing.assert_close(mode.gradient, signs * torch.sigmoid(-signs * f), rtol=0, atol=1e-7)
    assert torch.isfinite(mode.curvature).all()
    assert (mode.curvature >= 0).all()
    assert (mode.gradient[signs == 0] == 0).all()


@pytest.mark.parametrize("mean", [-1e4, -100.0, 100.0, 1e4])
@pytest.mark.parametrize("variance", [0.0, 1e-12, 1e4])
def test_extreme_latents_give_finite_utilities(mean: float, variance: float) -> None:
    problem = Problem(dtype=torch.float32)
    problem.latents = Marginals(torch.full((B, P), mean), torch.full((B, P), variance))
    for part in problem.solve():
        assert np.isfinite(part).all()
    assert (problem.solve()[1] >= 0).all()


def test_the_offset_of_a_mean_function_counts_as_the_bias_does() -> None:
    problem = Problem()
    bias = problem.mixing.bias.clone()
    expected = problem.solve()
    problem.offset = bias.expand(B, K)
    problem.mixing.bias.zero_()
    for found, part in zip(problem.solve(), expected, strict=True):
        np.testing.assert_allclose(found, part, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("variance", ["laplace", "map"])
def test_a_spread_is_as_so_many_more_functions_of_one_label_each(variance: str) -> None:
    problem, rng = Problem(noisy=False), np.random.default_rng(3)
    left, scales = torch.tensor(rng.random(B)), torch.tensor(rng.gamma(1.0, size=K))
    wide = Utilities(problem.mixing, problem.latents, spread=Spread(left, scales))
    joint = FactorMixing(torch.cat([problem.mixing.loadings, scales.sqrt().diag()], 1), problem.mixing.bias)
    own = left[:, None].expand(-1, K)
    latents = Marginals(
        torch.cat([problem.latents.mean, torch.zeros_like(own)], 1), torch.cat([problem.latents.variance, own], 1)
    )
    known = scipy.sparse.csr_matrix(problem.known)
    found = utilities_given(wide, known, problem.noise, variance=variance)  # type: ignore[arg-type]
    other = Utilities(joint.requires_grad_(False), latents)
    expected = utilities_given(other, known, InstanceNoise.none(joint.bias, P + K), variance=variance)  # type: ignore[arg-type]
    # Of labels that are known nothing is asked.
    asked = problem.known == 0
    np.testing.assert_allclose(found.mean[asked], expected.mean[asked], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.variance[asked], expected.variance[asked], rtol=1e-7)
    np.testing.assert_allclose(mean_utilities_given(wide, known, problem.noise), found.mean)
    for one, as_before in zip(found, wide.marginals(), strict=True):
        np.testing.assert_array_equal(one[0], as_before[0])
