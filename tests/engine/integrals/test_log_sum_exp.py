from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax
from torch import Tensor

from extremegp.engine.integrals.log_sum_exp import expected_log_sum_exp

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean, variance = mean.clone().requires_grad_(), variance.clone().requires_grad_()
    value = expected_log_sum_exp(mean, variance)
    return value.detach(), *torch.autograd.grad(value.sum(), (mean, variance))


def tensor_rule(mean: np.ndarray, variance: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """E log sum exp, E softmax and E softmax (1 - softmax) / 2, by the trapezoid rule in all K <= 3 dimensions."""
    z = np.linspace(-8.0, 8.0, 61)
    weights = np.exp(-0.5 * z**2)
    weights /= weights.sum()
    f = np.stack(np.meshgrid(*(m + math.sqrt(v) * z for m, v in zip(mean, variance, strict=True)), indexing="ij"), -1)
    joint = weights
    for _ in mean[1:]:
        joint = joint[..., None] * weights
    joint, f = joint.reshape(-1), f.reshape(-1, len(mean))
    p = softmax(f, axis=1)
    return float(joint @ logsumexp(f, axis=1)), joint @ p, joint @ (0.5 * p * (1 - p))


def check_against_tensor_rule(mean: list[float], variance: list[float], tolerance: float = 2e-6) -> None:
    value, by_mean, by_variance = moments(
        torch.tensor([mean], dtype=torch.float64), torch.tensor([variance], dtype=torch.float64)
    )
    expected = tensor_rule(np.array(mean), np.array(variance))
    assert value.item() == pytest.approx(expected[0], abs=tolerance)
    np.testing.assert_allclose(by_mean[0], expected[1], atol=tolerance)
    np.testing.assert_allclose(by_variance[0], expected[2], atol=tolerance)


@given(st.lists(st.tuples(st.floats(-12, 12), st.floats(0, 10)), min_size=1, max_size=3))
@example([(0.0, 0.0), (0.0, 0.0)])
@example([(0.0, 1e-9), (-8.5, 0.0), (-5.0, 10.0)])
def test_value_and_gradients_equal_integration_over_all_dimensions(functions: list[tuple[float, float]]) -> None:
    check_against_tensor_rule([m for m, _ in functions], [v for _, v in functions])


@pytest.mark.parametrize("n_classes", [5, 20])
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_it_is_the_mean_over_a_million_samples(n_classes: int, scale: float) -> None:
    generator = np.random.default_rng(n_classes)
    mean, variance = generator.normal(size=n_classes) * 2, generator.random(n_classes) * scale
    f = mean + np.sqrt(variance) * generator.normal(size=(1_000_000, n_classes))
    values, p = logsumexp(f, axis=1), softmax(f, axis=1)
    value, by_mean, by_variance = moments(torch.tensor(mean)[None], torch.tensor(variance)[None])
    n = math.sqrt(len(f))
    assert abs(value.item() - values.mean()) < 4.5 * values.std() / n
    assert (np.abs(by_mean[0].numpy() - p.mean(0)) < 4.5 * p.std(0) / n).all()
    slope = 0.5 * p * (1 - p)
    assert (np.abs(by_variance[0].numpy() - slope.mean(0)) < 4.5 * slope.std(0) / n).all()


@DTYPES
@given(n_classes=st.integers(1, 60), seed=st.integers(0, 1000), scale=st.floats(0, 10))
def test_zero_variance_gives_log_sum_exp_and_softmax(
    dtype: torch.dtype, n_classes: int, seed: int, scale: float
) -> None:
    mean = torch.randn(3, n_classes, generator=torch.Generator().manual_seed(seed), dtype=dtype) * scale
    value, by_mean, by_variance = moments(mean, torch.zeros_like(mean))
    tolerance = {torch.float64: 2e-6, torch.float32: 1e-4}[dtype]
    p = mean.softmax(1)
    torch.testing.assert_close(value, mean.logsumexp(1), rtol=1e-6, atol=tolerance)
    torch.testing.assert_close(by_mean, p, rtol=0, atol=1e-5)
    torch.testing.assert_close(by_variance, 0.5 * p * (1 - p), rtol=0, atol=1e-5)


@given(seed=st.integers(0, 10_000), n_classes=st.integers(1, 40), log_scale=st.floats(-6, 5), equal=st.booleans())
def test_gradients_by_the_means_are_probabilities_and_bounds_hold(
    seed: int, n_classes: int, log_scale: float, equal: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(4, n_classes, generator=generator, dtype=torch.float64) * 3
    variance = torch.rand(4, 1 if equal else n_classes, generator=generator, dtype=torch.float64) * math.exp(log_scale)
    value, by_mean, by_variance = moments(mean, variance.expand_as(mean))
    assert (by_mean > -1e-7).all()
    torch.testing.assert_close(by_mean.sum(1), torch.ones(4, dtype=torch.float64), rtol=0, atol=2e-5)
    assert ((by_variance > -1e-5) & (by_variance < 0.125 + 1e-5)).all()
    # Jensen's inequality from both sides.
    slack = 3e-5 * (1 + math.exp(log_scale / 2))
    assert (value > mean.logsumexp(1) - slack).all()
    assert (value < (mean + variance / 2).logsumexp(1) + slack).all()


@DTYPES
@pytest.mark.parametrize("variance", [100.0, 1e3, 1e5, 1e8])
def test_the_largest_of_equal_wide_gaussians(dtype: torch.dtype, variance: float) -> None:
    deviation = math.sqrt(variance)
    value, by_mean, _ = moments(torch.zeros(1, 2, dtype=dtype), torch.full((1, 2), variance, dtype=dtype))
    # E softplus(d) for d ~ N(0, 2 v) is sqrt(v / pi) + pi^2 / (12 sqrt(4 pi v)) + O(v^-3/2).
    expected = deviation / math.sqrt(math.pi) + math.pi**2 / 12 / math.sqrt(math.pi * variance)
    assert value.item() == pytest.approx(expected, abs=1e-3 * deviation)
    np.testing.assert_allclose(by_mean.double(), 0.5, atol=1e-4)


@DTYPES
def test_extreme_inputs_are_finite_and_sensible(dtype: torch.dtype) -> None:
    values = [0.0, 1e-8, 1.0, 1e3]
    for centre in (-1e3, 0.0, 1e3):
        for v in values:
            mean = torch.tensor([[centre, 0.0, -1e3, 1e3, 5.0], [centre] * 5], dtype=dtype)
            variance = torch.tensor([[v, 0.0, 1e3, 0.1, 1.0], [v] * 5], dtype=dtype)
            value, by_mean, by_variance = moments(mean, variance)
            assert value.isfinite().all()
            assert by_variance.isfinite().all()
            np.testing.assert_allclose(by_mean.sum(1).double(), 1.0, atol=1e-4)
            assert (value >= mean.amax(1) - 1e-3 * math.sqrt(max(v, 1.0))).all()


def test_mixed_wide_and_narrow_functions_beyond_the_node_limit() -> None:
    value, _, _ = moments(torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[0.0, 1e6]], dtype=torch.float64))
    # The largest of 0 and N(0, v).
    assert value.item() == pytest.approx(1e3 / math.sqrt(2 * math.pi), abs=2.0)


def test_gradcheck() -> None:
    mean = torch.tensor([[0.3, -1.0, 2.0], [5.0, 5.5, -20.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    variance = torch.tensor([[0.5, 1.0, 0.2], [9.0, 2.0, 1.0], [25.0, 30.0, 20.0]], dtype=torch.float64)
    inputs = (mean.requires_grad_(), variance.requires_grad_())
    assert torch.autograd.gradcheck(expected_log_sum_exp, inputs, eps=1e-3, atol=1e-4, rtol=1e-3)


def test_rows_do_not_depend_on_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(700, 30, generator=generator, dtype=torch.float64) * 3
    variance = torch.rand(700, 1, generator=generator, dtype=torch.float64).exp().pow(4) * torch.rand(700, 30).double()
    variance[::5] = 400.0
    whole = moments(mean, variance)
    for row in range(0, 700, 35):
        alone = moments(mean[row : row + 1], variance[row : row + 1])
        for part, single in zip(whole, alone, strict=True):
            torch.testing.assert_close(part[row], single[0], rtol=1e-6, atol=2e-6)


def test_nan_stays_in_its_row_and_no_rows_give_none() -> None:
    mean = torch.zeros(3, 4)
    mean[1, 2] = math.nan
    value = expected_log_sum_exp(mean, torch.ones(3, 4))
    assert value.isnan().tolist() == [False, True, False]
    assert expected_log_sum_exp(torch.zeros(0, 4), torch.ones(0, 4)).shape == (0,)


def test_only_gradients_of_the_size_of_the_inputs_are_saved() -> None:
    mean = torch.zeros(5, 3, requires_grad=True)
    saved = expected_log_sum_exp(mean, torch.ones(5, 3)).grad_fn.saved_tensors
    assert [part.shape for part in saved] == [(5, 3), (5, 3)]
