from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import classes as reference
from torch import Tensor

from extremegp.engine.integrals.probit import expected_log_ndtr, log_ndtr_derivatives, log_ndtr_moments

BOUNDS = {torch.float64: 4e-6, torch.float32: 3e-5}
DTYPES = pytest.mark.parametrize("dtype", list(BOUNDS), ids=str)
SIGNS = np.array([-1.0, 1.0, -2.0])


def relative_errors(mean: np.ndarray, variance: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Largest relative error of value, d/dmean and d/dvariance where they are normal numbers."""
    m, v = torch.tensor(mean, dtype=dtype), torch.tensor(variance, dtype=dtype)
    expected = np.array([reference.log_minus_expected_log_ndtr(*at) for at in zip(m.tolist(), v.tolist(), strict=True)])
    actual = torch.stack(log_ndtr_moments(m, v)).double().numpy() * SIGNS[:, None]
    representable = math.log(torch.finfo(dtype).tiny) + 1 < expected.T
    with np.errstate(divide="ignore"):
        errors = np.abs(np.expm1(np.log(actual) - expected.T))
    return np.where(representable, errors, 0.0).max(1)


@DTYPES
def test_value_and_gradients_are_accurate_relative_to_themselves(dtype: torch.dtype):
    mean = np.concatenate([np.linspace(-30, 30, 13), [-1.2, 0.3, 2.0]])
    variance = np.concatenate([[1e-6, 1e-3], np.geomspace(0.05, 100, 9)])
    errors = relative_errors(*(a.ravel() for a in np.meshgrid(mean, variance)), dtype)
    assert (errors <= BOUNDS[dtype]).all(), errors


@DTYPES
@settings(max_examples=30)
@given(mean=st.floats(-30, 30), log_variance=st.floats(math.log(1e-6), math.log(100)))
def test_random_points_are_accurate(dtype: torch.dtype, mean: float, log_variance: float):
    errors = relative_errors(np.array([mean]), np.exp([log_variance]), dtype)
    assert (errors <= BOUNDS[dtype]).all(), errors


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-7), (torch.float32, 3e-5)], ids=str)
def test_derivatives_of_the_logarithm_are_accurate_on_either_side(dtype: torch.dtype, tolerance: float):
    f = torch.cat([torch.linspace(-40, 9, 99), torch.tensor([-5.0, -5.0001, -4.9999, 0.0])]).to(dtype)
    expected = np.array([reference.log_ndtr_derivatives(x) for x in f.tolist()]).T
    for moment, exact in zip(log_ndtr_derivatives(f), expected, strict=True):
        np.testing.assert_allclose(moment.double().numpy(), exact, rtol=tolerance)


@DTYPES
def test_zero_variance_gives_the_function_itself(dtype: torch.dtype):
    mean = torch.linspace(-30, 9, 40, dtype=dtype)
    value = log_ndtr_moments(mean, torch.zeros_like(mean))
    for moment, expected, factor in zip(value, log_ndtr_derivatives(mean), (1.0, 1.0, 0.5), strict=True):
        torch.testing.assert_close(moment, factor * expected, rtol=3e-5, atol=0)


@DTYPES
def test_extreme_inputs_give_finite_sensible_values(dtype: torch.dtype):
    mean, variance = torch.meshgrid(
        torch.tensor([-1e4, -1e3, -30.0, 0.0, 30.0, 1e3, 1e4], dtype=dtype),
        torch.tensor([0.0, 1e-12, 0.3, 50.0, 1e3, 1e6, 1e4], dtype=dtype),
        indexing="ij",
    )
    value, by_mean, by_variance = log_ndtr_moments(mean, variance)
    assert torch.stack([value, by_mean, by_variance]).isfinite().all()
    assert (value <= 0).all()
    assert (by_mean >= 0).all()
    assert ((by_variance <= 0) & (by_variance >= -0.5 * (1 + 1e-4))).all()
    # For a wide Gaussian log Phi is -min(f, 0)^2 / 2, whose expectation at mean 0 is -v / 4.
    assert value[3, -1].item() == pytest.approx(-0.25e4, rel=2e-3)


def test_gradcheck():
    mean = torch.tensor([-6.0, -1.0, 0.5, 4.0, -3.0, 2.0, 9.0], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([0.1, 0.3, 0.2, 1.0, 0.8, 20.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(expected_log_ndtr, (mean, variance), atol=1e-5, rtol=1e-4)


def test_long_input_equals_its_elements_alone():
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(300, 450, generator=generator) * 6
    variance = torch.rand(300, 450, generator=generator) * 9
    whole = torch.stack(log_ndtr_moments(mean, variance))
    for row in (0, 150, 299):
        alone = torch.stack(log_ndtr_moments(mean[row, 7::40], variance[row, 7::40]))
        torch.testing.assert_close(whole[:, row, 7::40], alone, rtol=2e-6, atol=0)


def test_shapes_broadcast_and_gradients_are_summed_back():
    mean = torch.randn(4, 1, dtype=torch.float64, requires_grad=True)
    variance = torch.rand(3, requires_grad=True)
    value = expected_log_ndtr(mean, variance)
    assert (value.shape, value.dtype) == ((4, 3), torch.float64)
    value.sum().backward()
    _, by_mean, by_variance = log_ndtr_moments(mean, variance)
    torch.testing.assert_close(mean.grad, by_mean.sum(1, keepdim=True))
    torch.testing.assert_close(variance.grad, by_variance.sum(0).float())


@pytest.mark.parametrize("bad", [0, 1])
def test_nan_passes_through_and_stays_where_it_is(bad: int):
    inputs: list[Tensor] = [torch.full((3,), -2.0), torch.full((3,), 0.4)]
    inputs[bad][1] = math.nan
    for moment in log_ndtr_moments(*inputs):
        assert moment.isnan().tolist() == [False, True, False]
