from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.likelihoods import small
from tests.reference import classes as reference

from extremegp.engine.integrals.races import max_probabilities
from extremegp.engine.likelihoods import RobustMax, robust_max
from extremegp.engine.likelihoods.robust_max import log_highest_probability


def _log_probability(mean: np.ndarray, variance: np.ndarray, c: int) -> float:
    tensors = torch.from_numpy(mean)[None], torch.from_numpy(variance)[None]
    return float(log_highest_probability(*tensors, torch.tensor([c])))


@settings(max_examples=40)
@given(
    st.integers(2, 6),
    st.sampled_from([0.0, 1.0, 4.0, 8.0]),
    st.sampled_from([0.1, 1.0, 10.0]),
    st.integers(0, 2**31),
)
def test_the_probability_equals_dense_integration_at_any_ratio_of_variances(
    n_classes: int, decades: float, spread: float, seed: int
):
    rng = np.random.default_rng(seed)
    variance = 10 ** (decades * (rng.random(n_classes) - 0.5))
    mean = spread * rng.normal(size=n_classes)
    expected = reference.log_highest_probability(mean, variance, 0)
    if expected > -600:
        assert _log_probability(mean, variance, 0) == pytest.approx(expected, abs=2e-5 if decades < 8 else 1.5e-4)


@pytest.mark.parametrize("own", [1e-4, 1.0, 1e4])
def test_a_wall_in_the_flank_is_found(own: float):
    # The first other class is known exactly, the second as widely as this one: a half-line times a smooth curve.
    for place in np.linspace(-3, 3, 13):
        mean = np.array([0.0, place, 1.0]) * math.sqrt(own)
        variance = np.array([1.0, 1e-8, 1.0]) * own
        expected = reference.log_highest_probability(mean, variance, 0)
        assert _log_probability(mean, variance, 0) == pytest.approx(expected, abs=1e-4)


def test_three_classes_equal_a_sum_over_a_tensor_grid():
    mean, s = np.array([0.3, -0.2, 0.8]), np.sqrt(np.array([0.5, 1.5, 0.2]))
    f = [m + d * (np.arange(-6, 6, 0.05) + 0.025) for m, d in zip(mean, s, strict=True)]
    density = [np.exp(-0.5 * ((g - m) / d) ** 2) for g, m, d in zip(f, mean, s, strict=True)]
    weight = np.einsum("i,j,k->ijk", *(part / part.sum() for part in density))
    highest = np.stack(np.broadcast_arrays(f[0][:, None, None], f[1][None, :, None], f[2][None, None])).argmax(0)
    for c in range(3):
        assert math.exp(_log_probability(mean, s**2, c)) == pytest.approx(weight[highest == c].sum(), abs=3e-3)
    assert sum(math.exp(_log_probability(mean, s**2, c)) for c in range(3)) == pytest.approx(1, abs=1e-6)


def test_two_classes_have_the_closed_form():
    mean, variance = np.array([0.7, -4.0]), np.array([3.0, 0.5])
    for c, sign in ((0, 1), (1, -1)):
        expected = torch.special.log_ndtr(torch.tensor(sign * 4.7 / math.sqrt(3.5), dtype=torch.float64))
        assert _log_probability(mean, variance, c) == pytest.approx(float(expected), abs=1e-6)


def test_many_classes_and_many_rows_go_through_in_pieces(monkeypatch: pytest.MonkeyPatch):
    case = small.independent(7, 30)
    whole = log_highest_probability(*case.latents, case.classes)
    monkeypatch.setattr(robust_max, "_PIECE", 30 * 32 * 2)
    torch.testing.assert_close(log_highest_probability(*case.latents, case.classes), whole)
    for i in (0, 6):
        row = case.latents.mean[i].numpy(), case.latents.variance[i].numpy(), int(case.classes[i])
        assert float(whole[i]) == pytest.approx(reference.log_highest_probability(*row), abs=2e-5)


@pytest.mark.parametrize("epsilon", [1e-3, 0.2])
def test_the_expected_log_probability_is_that_of_the_two_outcomes(epsilon: float):
    case = small.independent(4, 5)
    expected = 0.0
    for m, v, c in zip(*(part.numpy() for part in case.latents), case.classes.tolist(), strict=True):
        chance = math.exp(reference.log_highest_probability(m, v, c))
        expected += math.log(1 - epsilon) * chance + math.log(epsilon / 4) * (1 - chance)
    assert case.expected(RobustMax(epsilon)).item() == pytest.approx(expected, rel=1e-5)


def test_gradients_equal_finite_differences():
    case = small.independent(4, 5)
    inputs = [part.clone().requires_grad_() for part in case.latents]

    # Differences much smaller than this would see the error of the quadrature.
    assert torch.autograd.gradcheck(
        lambda *latents: case.at(*latents).expected(RobustMax()), inputs, eps=1e-3, atol=1e-4, rtol=1e-3
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_extreme_utilities_give_finite_bounds_and_gradients(dtype: torch.dtype):
    case = small.extreme(dtype)
    latents, bound = case.latents, case.expected(RobustMax())
    bound.backward()
    assert bound.isfinite()
    assert latents.mean.grad.isfinite().all()
    assert latents.variance.grad.isfinite().all()
    chances = log_highest_probability(*latents, case.classes).exp()
    assert ((chances >= 0) & (chances <= 1 + 1e-5)).all()
    certain = latents.variance.detach().sum(1) == 0
    assert chances[certain].tolist() == pytest.approx([0.0, 0.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("variances", [(1e-8, 0.0), (0.0, 1e-8), (1e3, 1e-12), (1e-12, 1e3)])
def test_vanishing_variances_leave_the_probability_finite(variances: tuple[float, float]):
    for gap in (-1e3, -1.0, 0.0, 1.0, 1e3):
        mean, variance = np.array([gap, 0.0, 0.0]), np.array([variances[0], variances[1], variances[1]])
        chance = math.exp(_log_probability(mean, variance, 0))
        assert 0 <= chance <= 1 + 1e-5
        if gap and max(variances) < 1:
            assert chance == pytest.approx(float(gap > 0), abs=1e-5)


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="one latent function for each class"):
        small.factored(3, 4).expected(RobustMax())
    with pytest.raises(ValueError, match="no sum over classes"):
        small.independent(3, 4).expected(RobustMax(), label_weights=torch.ones(4))


def test_probabilities_mix_the_highest_with_errors():
    utilities = small.independent(2, 3).utilities
    chance = max_probabilities(utilities)
    expected = 0.9 * chance + 0.05 * (1 - chance)
    torch.testing.assert_close(RobustMax(0.1).probabilities(utilities), expected)
