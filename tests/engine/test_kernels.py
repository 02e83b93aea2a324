from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.models import random_inputs, randomise, sparse_rows
from tests.reference import svgp
from torch.autograd import gradcheck

from extremegp.engine.inducing import SeparateInducingInputs
from extremegp.engine.kernels import (
    ArcCosine,
    DenseKernel,
    Kernel,
    Linear,
    Matern,
    SEPlusLinear,
    SquaredExponential,
    SquaredExponentialPerLatent,
    WhiteNoise,
)
from extremegp.engine.points import DensePoints
from extremegp.engine.sparse import SparseRows

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
    "matern12": (lambda: Matern(1, 2.0, n_features=D), lambda k: svgp.matern(_weights(k), 0.5)),
    "matern32": (lambda: Matern(3, 2.0), lambda k: svgp.matern(_weights(k), 1.5)),
    "matern52": (lambda: Matern(5, n_features=D), lambda k: svgp.matern(_weights(k), 2.5)),
    "arccos0": (lambda: ArcCosine(0, n_features=D), lambda k: svgp.arc_cosine(_weights(k), 0)),
    "arccos1": (lambda: ArcCosine(1, 2.0, n_features=D), lambda k: svgp.arc_cosine(_weights(k), 1)),
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


def _diagonal(kernel: Kernel, x: torch.Tensor | SparseRows) -> torch.Tensor:
    """k(x_i, x_i), which does not depend on the points."""
    return kernel.at(torch.from_numpy(random_inputs(3, D, seed=11)).to(x.dtype))(x)[1]


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
    np.testing.assert_allclose(_diagonal(kernel, x).detach(), diagonal, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", KERNELS)
def test_the_diagonal_is_that_of_a_positive_semi_definite_gram_matrix(name: str):
    kernel, _ = _build(name)
    x = torch.from_numpy(random_inputs(20, D, seed=5))
    with torch.no_grad():
        gram = kernel(x, x)
        np.testing.assert_allclose(gram.diagonal(), _diagonal(kernel, x), rtol=1e-13)
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
        return _diagonal(kernel, x)

    # gradcheck perturbs the parameters in place, and the kernel reads them from there.
    assert gradcheck(diagonal, tuple(parameters))


@pytest.mark.parametrize("name", sorted(KERNELS.keys() - {"linear"}))
def test_every_learnt_parameter_gets_a_gradient(name: str):
    kernel, _ = _build(name)
    x = sparse_rows(random_inputs(6, D, density=1.0))
    (
        kernel(x, torch.from_numpy(random_inputs(4, D, density=1.0, seed=9))).sum() + _diagonal(kernel, x).sum()
    ).backward()
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
        assert float(_diagonal(kernel, x).max()) <= 1.0


def test_only_what_is_asked_for_is_learnt():
    assert not any(p.requires_grad for p in Linear().parameters())
    assert not any(p.requires_grad for p in SEPlusLinear(learn=False).parameters())
    assert not SquaredExponential().log_variance.requires_grad
    assert SquaredExponential(learn_variance=True).log_variance.requires_grad
    assert SquaredExponential(n_features=3).log_weights.shape == (3,)


@pytest.mark.parametrize("order", [1, 3, 5])
def test_matern_covariances_of_coinciding_inputs_are_one_with_finite_gradients(order):
    kernel, z = Matern(order), torch.from_numpy(random_inputs(4, D, density=1.0, seed=3)).requires_grad_()
    gram = kernel.gram(z)
    np.testing.assert_array_equal(gram.diagonal().detach(), 1.0)
    gram.sum().backward()
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("scale", [1.0, -1.0, 0.0])
def test_arc_cosine_covariances_of_aligned_inputs_and_of_zero_are_finite_with_finite_gradients(order, scale):
    kernel, z = ArcCosine(order), torch.from_numpy(random_inputs(3, D, density=1.0, seed=3)[1:]).requires_grad_()
    got = kernel(scale * z.detach(), z)
    expected = svgp.gram(svgp.arc_cosine(np.ones(D), order), scale * z.detach().numpy(), z.detach().numpy())
    np.testing.assert_allclose(got.detach(), expected, atol=1e-7)
    got.sum().backward()
    assert torch.isfinite(z.grad).all()
    assert torch.isfinite(kernel.log_weights.grad).all()


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_kernel_with_a_lengthscale_per_latent_is_that_of_each_one(kind: str):
    kernel = SquaredExponentialPerLatent(n_functions=3).double()
    randomise(kernel)
    x, _ = _inputs(kind, torch.float64)
    z = torch.from_numpy(random_inputs(4, D, density=1.0, seed=3))
    cross, diagonal = kernel.at(z)(x)
    gram = kernel.gram(z)
    assert cross.shape == (3, 6, 4)
    assert gram.shape == (3, 4, 4)
    np.testing.assert_array_equal(diagonal.detach(), np.ones((3, 6)))
    for p, weight in enumerate(kernel.log_weights.detach().exp()):
        single = SquaredExponential(float(weight)).double()
        with torch.no_grad():
            torch.testing.assert_close(cross[p], single(x, z), rtol=1e-6, atol=1e-7)
            torch.testing.assert_close(gram[p], single.gram(z), rtol=1e-6, atol=1e-7)
    assert torch.autograd.gradcheck(lambda w: _with_weights(kernel, w)(x, z), kernel.log_weights)


def _with_weights(kernel: Kernel, weights: torch.Tensor) -> Callable[..., torch.Tensor]:
    return lambda x, z: torch.func.functional_call(kernel, {"log_weights": weights}, (x, z))


def test_white_noise_is_of_observations_alone():
    kernel = WhiteNoise(0.3).double()
    z = torch.from_numpy(random_inputs(4, D))
    cross, diagonal = kernel.at(z)(z)
    np.testing.assert_array_equal(cross.detach(), 0.0)
    np.testing.assert_allclose(diagonal.detach(), 0.3)
    np.testing.assert_allclose(kernel.gram(z).detach(), 0.3 * np.eye(4))
    (diagonal.sum() + kernel.gram(z).sum()).backward()
    assert float(kernel.log_variance.grad) == pytest.approx(8 * 0.3)


class _OwnSE(DenseKernel):
    """What a user may write: of arrays, without inner products."""

    def __init__(self) -> None:
        super().__init__()
        self.log_weight = torch.nn.Parameter(torch.zeros(1))

    def covariance(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        squares = (x.unsqueeze(-2) - z.unsqueeze(-3)).square().sum(-1)
        return (-0.5 * self.log_weight.to(x.dtype).exp() * squares).exp()

    def variance(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(x.shape[:-1])


@pytest.mark.parametrize("of_each", [False, True], ids=["points", "points of each function"])
@pytest.mark.parametrize("composed", [False, True], ids=["alone", "in a sum"])
def test_a_kernel_of_dense_inputs_goes_wherever_another_does(of_each: bool, composed: bool):
    own, ours = _OwnSE().double(), SquaredExponential().double()
    if composed:
        own, ours = (kernel * Linear(0.5).double() + Linear().double() for kernel in (own, ours))
    z = torch.from_numpy(random_inputs(6, D, density=1.0, seed=3))
    points = SeparateInducingInputs(z.reshape(2, 3, D)).points() if of_each else DensePoints(z)
    x = torch.from_numpy(random_inputs(4, D))
    assert own.needs_dense
    assert not ours.needs_dense
    torch.testing.assert_close(own.gram(points), ours.gram(points))
    for got, expected in zip(own.at(points)(x), ours.at(points)(x), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_kernel_that_differs_between_functions_is_that_of_some_of_them():
    some, z = torch.tensor([0, 2]), torch.from_numpy(random_inputs(4, D, density=1.0, seed=3))
    kernel = SquaredExponentialPerLatent(n_functions=3).double()
    randomise(kernel)
    for each in (kernel, kernel + WhiteNoise(0.3).double(), SquaredExponential().double() * kernel):
        assert each.per_function
        whole, part = each.at(z), each.at(z, some)
        torch.testing.assert_close(part.gram(), whole.gram()[some])
        for got, expected in zip(part(z), whole(z), strict=True):
            torch.testing.assert_close(got, expected[some])
