from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm
from tests.reference.expectations import softplus_moments
from torch import Tensor

from extremegp.engine.integrals import races
from extremegp.engine.integrals.races import (
    drawn_probabilities,
    entropy_parts,
    max_probabilities,
    softmax_probabilities,
)
from extremegp.engine.latents.base import Marginals
from extremegp.engine.mixing import FactorMixing, IdentityMixing
from extremegp.engine.utilities import Utilities

ROWS = 3

SOFTMAX = partial(torch.softmax, dim=-1)


def independent(n_classes: int, scale: float, seed: int = 0, spread: float = 2.0) -> Utilities:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(ROWS, n_classes, generator=generator, dtype=torch.float64) * spread
    variance = torch.rand(ROWS, n_classes, generator=generator, dtype=torch.float64) * scale
    zeros = torch.zeros(n_classes, dtype=torch.float64)
    return Utilities(IdentityMixing(zeros, zeros), Marginals(mean, variance))


def correlated(n_classes: int, n_functions: int) -> Utilities:
    generator = torch.Generator().manual_seed(n_classes)
    mean = torch.randn(ROWS, n_functions, generator=generator, dtype=torch.float64)
    variance = torch.rand(ROWS, n_functions, generator=generator, dtype=torch.float64)
    loadings = torch.randn(n_classes, n_functions, generator=generator, dtype=torch.float64)
    mixing = FactorMixing(loadings, torch.zeros(n_classes, dtype=torch.float64))
    return Utilities(mixing, Marginals(mean, variance))


def brute_force(utilities: Utilities, noise_variance: float = 0.0, n: int = 1_000_000) -> tuple[Tensor, Tensor, int]:
    """Frequencies of the winner under softmax and under Gaussian noise, over n independent samples."""
    generator = torch.Generator().manual_seed(7)
    (rows, size), n_classes = utilities.latents.mean.shape, utilities.n_utilities
    soft, hard = (torch.zeros(rows, n_classes, dtype=torch.float64) for _ in range(2))
    with torch.no_grad():
        for _ in range(20):
            noise = torch.randn(n // 20, rows, size, generator=generator, dtype=torch.float64)
            f = utilities.sample(noise)
            soft += f.softmax(2).sum(0) / n
            f = f + math.sqrt(noise_variance) * torch.randn(f.shape, generator=generator, dtype=f.dtype)
            hard += torch.nn.functional.one_hot(f.argmax(2), n_classes).sum(0) / n
    return soft, hard, n


def assert_within_sampling_error(p: Tensor, frequency: Tensor, n: int, extra: float = 0.0) -> None:
    # A variance of p (1 - p) / n is an upper bound for averages of probabilities too.
    deviation = (p * (1 - p) / n).sqrt() + 1e-6
    assert ((p - frequency).abs() < 4.5 * deviation + extra).all(), ((p - frequency).abs() / deviation).max()


@pytest.mark.parametrize("n_classes", [2, 7, 20])
@pytest.mark.parametrize("scale", [0.1, 2.0, 20.0])
def test_probabilities_are_frequencies_of_winning(n_classes: int, scale: float) -> None:
    utilities = independent(n_classes, scale)
    for noise_variance in (0.0, 1.0):
        soft, hard, n = brute_force(utilities, noise_variance, n=400_000)
        assert_within_sampling_error(softmax_probabilities(utilities), soft, n)
        assert_within_sampling_error(max_probabilities(utilities, noise_variance), hard, n)


@pytest.mark.parametrize("variance", [(0.0, 0.0), (0.5, 0.0), (0.5, 0.2), (3.0, 1.0), (10.0, 0.0), (40.0, 10.0)])
@pytest.mark.parametrize("gap", [2.0, 10.0, 20.0, 30.0])
def test_small_softmax_probabilities_are_accurate_relative_to_themselves(
    variance: tuple[float, float], gap: float
) -> None:
    p = races._independent_softmax(torch.tensor([[0.0, -gap]]).double(), torch.tensor([variance]).double())
    expected = softplus_moments(-gap, max(sum(variance), 1e-14))[1]
    assert p[0, 1].item() == pytest.approx(float(expected), rel=1e-7)


@pytest.mark.parametrize("noise_variance", [0.0, 0.5])
def test_the_larger_of_two_gaussians_is_known_in_closed_form(noise_variance: float) -> None:
    utilities = independent(2, 3.0)
    latents = utilities.latents
    difference = latents.mean[:, 0] - latents.mean[:, 1]
    expected = norm.cdf(difference / (latents.variance.sum(1) + 2 * noise_variance).sqrt())
    np.testing.assert_allclose(max_probabilities(utilities, noise_variance)[:, 0], expected, atol=1e-10)


def test_the_largest_of_several_gaussians_equals_adaptive_quadrature() -> None:
    utilities = independent(5, 4.0)
    latents, p = utilities.latents, max_probabilities(utilities)
    m, s = latents.mean[0].numpy(), latents.variance[0].sqrt().numpy()
    for k in range(5):
        others = np.arange(5) != k

        def integrand(t: float, k: int = k, others: np.ndarray = others) -> float:
            return float(norm.pdf(t, m[k], s[k]) * norm.cdf((t - m[others]) / s[others]).prod())

        expected = quad(integrand, m[k] - 10 * s[k], m[k] + 10 * s[k], limit=500, points=list(m), epsabs=1e-12)[0]
        assert p[0, k].item() == pytest.approx(expected, abs=1e-9)


def test_the_largest_of_many_equal_gaussians_wins_as_often_as_any() -> None:
    for n_classes in (1, 3, 50, 200):
        mean = torch.zeros(1, n_classes, dtype=torch.float64)
        raw = races._independent_highest(mean, torch.ones_like(mean))
        np.testing.assert_allclose(raw, 1.0 / n_classes, rtol=1e-6)


@given(
    seed=st.integers(0, 10_000), n_classes=st.integers(1, 40), log_scale=st.floats(-12, 6), spread=st.floats(0.01, 10)
)
def test_rows_add_up_to_one_before_they_are_made_to(seed: int, n_classes: int, log_scale: float, spread: float) -> None:
    latents = independent(n_classes, math.exp(log_scale), seed, spread).latents
    for raw in (
        races._independent_softmax(latents.mean, latents.variance),
        races._independent_highest(latents.mean, latents.variance),
    ):
        assert (raw >= 0).all()
        np.testing.assert_allclose(raw.sum(1), 1.0, atol=1e-5)


def test_without_variance_they_are_softmax_and_the_largest() -> None:
    utilities = independent(9, 0.0)
    latents = utilities.latents
    torch.testing.assert_close(softmax_probabilities(utilities), latents.mean.softmax(1), rtol=1e-7, atol=0)
    one_hot = torch.nn.functional.one_hot(latents.mean.argmax(1), 9).double()
    torch.testing.assert_close(max_probabilities(utilities), one_hot)
    tied = Marginals(torch.tensor([[1.0, 3.0, 3.0]]), torch.zeros(1, 3))
    p = max_probabilities(Utilities(IdentityMixing(torch.zeros(3), torch.zeros(3)), tied))
    torch.testing.assert_close(p, torch.tensor([[0.0, 0.5, 0.5]]))


@pytest.mark.parametrize("mean_scale", [0.0, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 5.0, 100.0])
def test_many_classes_by_the_shortcut_equal_the_full_integrals(
    mean_scale: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    latents = independent(700, scale, spread=mean_scale).latents
    latents.mean[:, :5] += 9.0
    short = [f(*latents) for f in (races._independent_softmax, races._independent_highest)]
    monkeypatch.setattr(races, "_ALL_EXACT", 10_000)
    full = [f(*latents) for f in (races._independent_softmax, races._independent_highest)]
    for some, every in zip(short, full, strict=True):
        np.testing.assert_allclose(some, every, atol=3e-6)
        np.testing.assert_allclose(some.sum(1), 1.0, atol=1e-5)


def test_the_shortcut_leaves_most_of_many_classes_out_of_the_integral(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []

    def recording(mean: Tensor, *args: object, **kwargs: object) -> object:
        widths.append(mean.shape[1])
        return moments(mean, *args, **kwargs)

    moments = races.log_sum_exp_moments
    monkeypatch.setattr(races, "log_sum_exp_moments", recording)
    utilities = independent(5000, 0.2, spread=1.0)
    utilities.latents.mean[:, :3] += 12.0
    p = softmax_probabilities(utilities)
    assert 128 in widths
    assert max(widths) <= 1024
    assert (p > 0).all()


@pytest.mark.parametrize(("n_classes", "n_functions"), [(4, 2), (30, 5)])
def test_correlated_utilities_win_as_often_as_in_brute_force(n_classes: int, n_functions: int) -> None:
    utilities = correlated(n_classes, n_functions)
    for noise_variance in (0.0, 0.7):
        soft, hard, n = brute_force(utilities, noise_variance, n=200_000)
        assert_within_sampling_error(softmax_probabilities(utilities), soft, n, extra=0.01)
        assert_within_sampling_error(max_probabilities(utilities, noise_variance), hard, n, extra=0.015)


@pytest.mark.parametrize(
    "function", [softmax_probabilities, max_probabilities, lambda utilities: entropy_parts(utilities, SOFTMAX)[0]]
)
def test_draws_are_the_same_for_every_row_and_call(function: object) -> None:
    utilities = correlated(6, 3)
    latents, mixing = utilities.latents, utilities.mixing
    state = torch.get_rng_state()
    repeated = Marginals(latents.mean.repeat(200, 1), latents.variance.repeat(200, 1))
    first, many = function(utilities), function(Utilities(mixing, repeated))
    torch.testing.assert_close(many, first.repeat(200, *[1] * (first.dim() - 1)), rtol=1e-12, atol=1e-12)
    assert torch.equal(torch.get_rng_state(), state)


def test_draws_in_many_dimensions_are_the_same_in_chunks_of_any_size() -> None:
    size = races._SOBOL_ELEMENTS // 128 + 1
    whole, parts = (torch.cat(list(races._normal_draws(128, size, chunk))) for chunk in (128, 17))
    assert torch.equal(whole, parts)
    assert abs(float(whole.mean())) < 0.01
    assert float(whole.std()) == pytest.approx(1.0, abs=0.01)


def test_offsets_of_a_mean_function_count() -> None:
    utilities = independent(4, 1.0)
    mean, variance = utilities.latents
    moved = Utilities(utilities.mixing, Marginals(mean - 3.0, variance), torch.full_like(mean, 3.0))
    for function in (softmax_probabilities, max_probabilities):
        torch.testing.assert_close(function(moved), function(utilities))


@pytest.mark.parametrize("utilities", [independent(6, 3.0), correlated(6, 3)], ids=["independent", "correlated"])
def test_entropies_are_those_of_samples(utilities: Utilities) -> None:
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(100_000, *utilities.latents.mean.shape, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        p = utilities.sample(noise).softmax(2)
    total, aleatoric = entropy_parts(utilities, SOFTMAX, n_samples=1024)
    torch.testing.assert_close(total, torch.special.entr(p.mean(0)).sum(1), rtol=0, atol=0.02)
    torch.testing.assert_close(aleatoric, torch.special.entr(p).sum(2).mean(0), rtol=0, atol=0.02)


@given(seed=st.integers(0, 1000), scale=st.floats(0, 50), n_samples=st.sampled_from([1, 2, 64]))
def test_information_on_the_utilities_is_never_negative(seed: int, scale: float, n_samples: int) -> None:
    utilities = independent(5, scale, seed)
    total, aleatoric = entropy_parts(utilities, SOFTMAX, n_samples)
    assert (total >= aleatoric).all()
    assert (aleatoric >= 0).all()
    assert (total <= math.log(5) + 1e-9).all()


def test_probabilities_by_draws_are_near_exact_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    mean, variance = 2 * torch.randn(5, 4, generator=generator), 2 * torch.rand(5, 4, generator=generator)
    utilities = Utilities(IdentityMixing(torch.zeros(4), torch.zeros(4)), Marginals(mean, variance))
    drawn = drawn_probabilities(utilities, SOFTMAX, n_samples=1024)
    np.testing.assert_allclose(drawn, softmax_probabilities(utilities), atol=0.01)
    np.testing.assert_allclose(drawn.sum(1), 1, rtol=1e-5)
