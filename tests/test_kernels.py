from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from extremegp.kernels import Kernel, Linear, SEPlusLinear, SquaredExponential
from extremegp.sparse import SparseRows
from tests.models import random_inputs, randomise, sparse_rows
from tests.reference import svgp

D = 5


def _weights(kernel: Kernel) -> np.ndarray:
    return np.exp(np.broadcast_to(kernel.log_weights.detach().double().numpy(), D))


def _se(kernel: Kernel) -> svgp.Covariance:
    return svgp.squared_exponential(_weights(kernel), float(kernel.log_variance.detach().double().exp()))


def _mixed(kernel: Kernel) -> svgp.Covariance:
    return svgp.se_plus_linear(_weights(kernel), float(kernel.mixture_logit.detach().double().sigmoid()))


def _linear(kernel: Kernel) -> svgp.Covariance:
    return svgp.linear(_weights(kernel))


KERNELS: dict[str, tuple[Callable[[], Kernel], Callable[[Kernel], svgp.Covariance]]] = {
    "linear": (Linear, _linear),
    "linear-ell": (lambda: Linear(0.7, n_features=D, learn=True), _linear),
    "se": (lambda: SquaredExponential(2.0, variance=1.7, learn_variance=True), _se),
    "ard": (lambda: SquaredExponential(0.5, n_features=D), _se),
    "se+linear": (lambda: SEPlusLinear(1.5, mixture=0.2), _mixed),
    "ard+linear": (lambda: SEPlusLinear(n_features=D, mixture=0.8), _mixed),
    "sum": (
        lambda: SquaredExponential(n_features=D) + Linear(0.3, learn=True),
        lambda k: lambda x, z: _se(k.left)(x, z) + _linear(k.right)(x, z),
    ),
    "product": (
        lambda: SquaredExponential(2.0) * Linear(n_features=D, learn=True),
        lambda k: lambda x, z: _se(k.left)(x, z) * _linear(k.right)(x, z),
    ),
    "nested": (
        lambda: (SquaredExponential() + Linear()) * SEPlusLinear(n_features=D),
        lambda k: lambda x, z: (_se(k.left.left)(x, z) + _linear(k.left.right)(x, z)) * _mixed(k.right)(x, z),
    ),
}


def _build(name: str, dtype: torch.dtype = torch.float64) -> tuple[Kernel, svgp.Covariance]:
    make, reference = KERNELS[name]
    kernel = make().to(dtype)
    randomise(kernel)
    return kernel, reference(kernel)


def _inputs(kind: str, dtype: torch.dtype) -> tuple[torch.Tensor | SparseRows, np.ndarray]:
    x = random_inputs(6, D)
    return (sparse_rows(x, dtype) if kind == "sparse" else torch.from_numpy(x).to(dtype)), x


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_equal_the_loop_reference(name: str, dtype: torch.dtype, kind: str):
    kernel, reference = _build(name, dtype)
    x, x_array = _inputs(kind, dtype)
    z = random_inputs(4, D, density=1.0, seed=3)
    tolerance = 5e-6 if dtype == torch.float32 else 1e-13
    gram = kernel(x, torch.from_numpy(z).to(dtype)).detach()
    assert gram.dtype == dtype
    np.testing.assert_allclose(gram, svgp.gram(reference, x_array, z), rtol=tolerance, atol=tolerance)
    diagonal = [reference(row, row) for row in x_array]
    np.testing.assert_allclose(kernel.diagonal(x).detach(), diagonal, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", KERNELS)
def test_the_diagonal_is_that_of_a_positive_semi_definite_gram_matrix(name: str):
    kernel, _ = _build(name)
    x = torch.from_numpy(random_inputs(20, D, seed=5))
    with torch.no_grad():
        gram = kernel(x, x)
        np.testing.assert_allclose(gram.diagonal(), kernel.diagonal(x), rtol=1e-13)
        np.testing.assert_allclose(gram, gram.T, atol=1e-14)
        assert torch.linalg.eigvalsh(gram).min() > -1e-12


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("name", KERNELS)
def test_gradients_by_inputs_and_parameters_pass_gradcheck(name: str, kind: str):
    kernel, _ = _build(name)
    x, _ = _inputs(kind, torch.float64)
    z = torch.from_numpy(random_inputs(3, D, density=1.0, seed=4)[1:]).requires_grad_()
    names = [n for n, p in kernel.named_parameters() if p.requires_grad]
    values = [p.detach().clone().requires_grad_() for _, p in kernel.named_parameters() if p.requires_grad]

    def outputs(z: torch.Tensor, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parameters = dict(zip(names, values, strict=True))
        gram = torch.func.functional_call(kernel, parameters, (x, z))
        # The path of K_Z, where both arguments are one tensor.
        own = torch.func.functional_call(kernel, parameters, (z, z))
        return gram, own

    assert gradcheck(outputs, (z, *values))


@pytest.mark.parametrize("name", ["linear-ell", "ard", "ard+linear", "product"])
def test_gradients_of_the_diagonal_pass_gradcheck(name: str):
    kernel, _ = _build(name)
    x, _ = _inputs("sparse", torch.float64)
    parameters = [p for p in kernel.parameters() if p.requires_grad]

    def diagonal(*values: torch.Tensor) -> torch.Tensor:
        return kernel.diagonal(x)

    # gradcheck perturbs the parameters in place, and the kernel reads them from there.
    assert gradcheck(diagonal, tuple(parameters))


@pytest.mark.parametrize("name", sorted(KERNELS.keys() - {"linear"}))
def test_every_learnt_parameter_gets_a_gradient(name: str):
    kernel, _ = _build(name)
    x = sparse_rows(random_inputs(6, D, density=1.0))
    (kernel(x, torch.from_numpy(random_inputs(4, D, density=1.0, seed=9))).sum() + kernel.diagonal(x).sum()).backward()
    for parameter_name, parameter in kernel.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.abs().min() > 0, parameter_name
        else:
            assert parameter.grad is None, parameter_name


def test_the_stationary_part_never_exceeds_the_variance_where_rounding_would_let_it():
    kernel = SquaredExponential(1e4)
    x = torch.from_numpy(random_inputs(50, D, density=1.0)).float()
    with torch.no_grad():
        assert float(kernel(x, x).max()) <= 1.0
        assert float(kernel.diagonal(x).max()) <= 1.0


def test_only_what_is_asked_for_is_learnt():
    assert not any(p.requires_grad for p in Linear().parameters())
    assert not any(p.requires_grad for p in SEPlusLinear(learn=False).parameters())
    assert not SquaredExponential().log_variance.requires_grad
    assert SquaredExponential(learn_variance=True).log_variance.requires_grad
    assert SquaredExponential(n_features=3).log_weights.shape == (3,)
