from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tests.reference import expectations as reference
from torch import Tensor

from extremegp.engine.integrals.logistic import expected_sigmoid, expected_softplus, softplus_moments

# What the docstring promises, by type: value, d/dmean, d/dvariance.
BOUNDS = {torch.float64: (3e-6, 7e-7, 7e-6), torch.float32: (2e-5, 3e-6, 8e-6)}
DTYPES = pytest.mark.parametrize("dtype", list(BOUNDS), ids=str)


def moments_by_autograd(mean: Tensor, variance: Tensor) -> Tensor:
    mean, variance = mean.clone().requires_grad_(), variance.clone().requires_grad_()
    value = expected_softplus(mean, variance)
    return torch.stack([value.detach(), *torch.autograd.grad(value.sum(), (mean, variance))])


def relative_errors(mean: np.ndarray, variance: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Largest relative error of the value and both gradients, with the rounding of the inputs taken out."""
    m, v = torch.tensor(mean, dtype=dtype), torch.tensor(variance, dtype=dtype)
    expected = reference.softplus_moments(m.double().numpy(), v.double().numpy()) * np.array([1, 1, 0.5])[:, None]
    return np.abs(moments_by_autograd(m, v).double().numpy() / expected - 1).max(1)


def grid() -> tuple[np.ndarray, np.ndarray]:
    mean = np.concatenate([np.linspace(-30, 30, 41), [-0.3, 0.3]])
    variance = np.concatenate([[1e-8, 1e-4], np.linspace(0.02, 0.9, 12), [0.9 + 1e-6], np.geomspace(0.91, 100, 25)])
    m, v = (a.ravel() for a in np.meshgrid(mean, variance))
    # Both sides of the line where the rule changes, the worst place of each.
    edge = np.geomspace(0.91, 60, 25)
    return np.concatenate([m, -0.4999 * edge, -0.5001 * edge]), np.concatenate([v, edge, edge])


@pytest.mark.parametrize(
    ("mean", "variance"), [(-30, 1e-6), (-30, 100), (-8, 1), (3, 0.3), (30, 25), (0, 100), (-20, 40), (-30, 60)]
)
def test_the_two_references_agree(mean: float, variance: float) -> None:
    np.testing.assert_allclose(
        reference.softplus_moments(mean, variance), reference.softplus_moments_mpmath(mean, variance), rtol=1e-12
    )


@DTYPES
def test_value_and_gradients_are_accurate_relative_to_themselves(dtype: torch.dtype) -> None:
    errors = relative_errors(*grid(), dtype)
    assert (errors <= BOUNDS[dtype]).all(), errors


@DTYPES
@given(mean=st.floats(-30, 30), log_variance=st.floats(math.log(1e-8), math.log(100)))
@example(mean=-30.0, log_variance=math.log(60))
def test_random_points_are_accurate(dtype: torch.dtype, mean: float, log_variance: float) -> None:
    errors = relative_errors(np.array([mean]), np.exp([log_variance]), dtype)
    assert (errors <= BOUNDS[dtype]).all(), errors


@DTYPES
def test_zero_variance_gives_the_function_itself(dtype: torch.dtype) -> None:
    mean = torch.linspace(-30, 30, 61, dtype=dtype)
    m = mean.double()
    expected = torch.stack([torch.log1p(m.exp()), m.sigmoid(), 0.5 * m.sigmoid() * (-m).sigmoid()])
    tolerance = {torch.float64: 1e-13, torch.float32: 3e-6}[dtype]
    actual = moments_by_autograd(mean, torch.zeros_like(mean)).double()
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=0)


@DTYPES
def test_extreme_inputs_give_finite_sensible_values(dtype: torch.dtype) -> None:
    mean, variance = torch.meshgrid(
        torch.tensor([-1e4, -500.0, -90.0, -1.0, 0.0, 1.0, 90.0, 500.0, 1e4], dtype=dtype),
        torch.tensor([0.0, 0.3, 0.6, 50.0, 1e3, 1e6], dtype=dtype),
        indexing="ij",
    )
    value, by_mean, by_variance = moments_by_autograd(mean, variance)
    assert torch.stack([value, by_mean, by_variance]).isfinite().all()
    assert (value >= torch.relu(mean)).all()
    assert ((by_mean >= 0) & (by_mean <= 1)).all()
    assert ((by_variance >= 0) & (by_variance <= 0.125 * (1 + 1e-5))).all()
    assert value[0, 0] == 0
    assert by_mean[-1, 0] == 1
    # For a wide Gaussian softplus is max(f, 0), whose expectation at mean 0 is sqrt(v / 2 pi).
    torch.testing.assert_close(value[4, -1].item(), math.sqrt(1e6 / (2 * math.pi)), rtol=1e-5, atol=0)


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("variance", [0.1, 2.0])
def test_nan_passes_through_and_stays_where_it_is(bad: int, variance: float) -> None:
    inputs = [torch.full((3,), -2.0), torch.full((3,), variance)]
    inputs[bad][1] = math.nan
    for moment in softplus_moments(*inputs):
        assert moment.isnan().tolist() == [False, True, False]


def test_gradcheck_across_all_rules() -> None:
    mean = torch.tensor([-6.0, -1.0, 0.5, 4.0, -3.0, 2.0, -0.7], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([0.1, 0.3, 0.2, 1.0, 0.8, 20.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(expected_softplus, (mean, variance), atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("scale", [0.6, 8.0])
def test_long_mixed_input_equals_its_elements_alone(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(300, 450, generator=generator) * 6 - 4
    variance = torch.rand(300, 450, generator=generator).square() * scale
    variance[::7, ::5] = 1e6
    whole = torch.stack(softplus_moments(mean, variance))
    for row in (0, 7, 150, 299):
        for column in range(0, 450, 15):
            alone = torch.stack(softplus_moments(mean[row, column], variance[row, column]))
            torch.testing.assert_close(whole[:, row, column], alone, rtol=2e-6, atol=0)


def test_inputs_are_left_alone_whatever_their_layout() -> None:
    mean, variance = torch.randn(7, 12, dtype=torch.float64), torch.rand(12, 7, dtype=torch.float64) * 2
    before = mean.clone(), variance.clone()
    strided = expected_softplus(mean[:, ::2], variance.T[:, ::2])
    torch.testing.assert_close(strided, expected_softplus(mean, variance.T.contiguous())[:, ::2], rtol=1e-12, atol=0)
    assert torch.equal(mean, before[0])
    assert torch.equal(variance, before[1])


def test_shapes_broadcast_and_gradients_are_summed_back() -> None:
    mean = torch.randn(4, 1, dtype=torch.float64, requires_grad=True)
    variance = torch.rand(3, dtype=torch.float64, requires_grad=True)
    value = expected_softplus(mean, variance)
    assert value.shape == (4, 3)
    value.sum().backward()
    _, by_mean, by_variance = softplus_moments(mean, variance)
    torch.testing.assert_close(mean.grad, by_mean.sum(1, keepdim=True))
    torch.testing.assert_close(variance.grad, by_variance.sum(0))


def test_mixed_types_give_the_wider_and_other_types_are_refused() -> None:
    assert expected_softplus(torch.zeros(2), torch.ones(2, dtype=torch.float64)).dtype == torch.float64
    with pytest.raises(TypeError, match="float32 or float64"):
        expected_softplus(torch.zeros(2, dtype=torch.float16), torch.ones(2))


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_empty_and_scalar_shapes_are_kept(shape: tuple[int, ...]) -> None:
    mean = torch.zeros(shape, requires_grad=True)
    value = expected_softplus(mean, torch.ones(shape))
    value.sum().backward()
    assert value.shape == mean.grad.shape == expected_sigmoid(mean, torch.ones(shape)).shape == shape


def test_only_the_gradients_that_are_needed_are_saved() -> None:
    mean, variance = torch.zeros(5, requires_grad=True), torch.ones(5)
    value = expected_softplus(mean, variance)
    assert [saved is not None for saved in value.grad_fn.saved_tensors] == [True, False]
    assert expected_softplus(mean.detach(), variance).grad_fn is None


@DTYPES
def test_expected_sigmoid_is_the_derivative_by_the_mean(dtype: torch.dtype) -> None:
    mean, variance = (torch.tensor(a, dtype=dtype) for a in grid())
    probability = expected_sigmoid(mean, variance)
    # By the same rules in other code, in whose float32 only the result is rounded.
    exact = moments_by_autograd(mean.double(), variance.double())[1]
    close = 1e-12 if dtype == torch.float64 else 2e-7
    torch.testing.assert_close(probability.double(), exact, rtol=close, atol=1e-37)
    several = torch.tensor([torch.nan, 0.0, 0.0], dtype=dtype), torch.tensor([1.0, torch.nan, -1.0], dtype=dtype)
    assert expected_sigmoid(*several).isnan().all()
    assert not expected_sigmoid(mean.requires_grad_(), variance).requires_grad
