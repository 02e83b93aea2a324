from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.linalg
import torch
from tests.models import random_inputs, sparse_rows
from torch import Tensor

from extremegp.engine.inducing import (
    FreeInducingInputs,
    InducingInputs,
    SeparateInducingInputs,
    SparseInducingInputs,
    SubspaceInducingInputs,
)
from extremegp.engine.kernels import Kernel, Matern, SquaredExponential, SquaredExponentialPerLatent
from extremegp.engine.points import DensePoints
from extremegp.engine.sparse import SparseRows

M, D, R, S, B = 4, 9, 3, 5, 6


def _start() -> torch.Tensor:
    return torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]])


def test_learnt_inputs_start_and_stay_at_unit_norm():
    inducing = FreeInducingInputs(_start())
    expected = torch.tensor([[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]])
    torch.testing.assert_close(inducing(), expected)
    assert len(inducing) == 3
    with torch.no_grad():
        inducing.transposed.mul_(5.0)
    inducing.project()
    torch.testing.assert_close(inducing(), expected)


def test_without_normalisation_projecting_changes_nothing():
    inducing = FreeInducingInputs(_start(), normalise=False)
    inducing.project()
    assert torch.equal(inducing(), _start())


def test_fixed_inputs_are_no_learnt_parameter_and_stay_as_given():
    inducing = FreeInducingInputs(_start(), learn=False)
    inducing.project()
    assert torch.equal(inducing(), _start())
    assert [parameter.requires_grad for parameter in inducing.parameters()] == [False]


def test_a_row_of_zeros_stays_finite():
    inducing = FreeInducingInputs(torch.zeros(2, 3))
    inducing.project()
    assert torch.equal(inducing(), torch.zeros(2, 3))


def test_the_start_is_copied():
    start = _start()
    FreeInducingInputs(start)
    assert torch.equal(start, _start())


def test_gradients_reach_the_inputs():
    inducing = FreeInducingInputs(_start())
    (inducing() * torch.arange(6.0).reshape(3, 2)).sum().backward()
    assert inducing.transposed.grad is not None
    assert torch.equal(inducing.transposed.grad, torch.arange(6.0).reshape(3, 2).T)


def _basis() -> Tensor:
    """R orthonormal rows."""
    return torch.from_numpy(scipy.linalg.orth(np.random.default_rng(0).normal(size=(D, R))).T.copy())


def _columns() -> Tensor:
    rng = np.random.default_rng(1)
    # Feature 0 is in no support.
    return torch.from_numpy(np.stack([1 + rng.permutation(D - 1)[:S] for _ in range(M)]))


def _normal(*shape: int, seed: int = 2) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


MAKERS: dict[str, Callable[..., InducingInputs]] = {
    "free": lambda **options: FreeInducingInputs(_normal(M, D), **options),
    "subspace": lambda **options: SubspaceInducingInputs(_normal(M, R), _basis(), **options),
    "subspace-basis": lambda **options: SubspaceInducingInputs(_normal(M, R), _basis(), learn_basis=True, **options),
    "sparse": lambda **options: SparseInducingInputs(_columns(), _normal(M, S), n_features=D, **options),
}


def _inputs(kind: str) -> Tensor | SparseRows:
    x = random_inputs(B, D)
    return sparse_rows(x) if kind == "sparse" else torch.from_numpy(x)


@pytest.mark.parametrize("n_weights", [1, D])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("name", MAKERS)
def test_inner_products_and_their_gradients_are_those_of_the_dense_points(name: str, kind: str, n_weights: int):
    inducing, x = MAKERS[name](normalise=False), _inputs(kind)
    results = []
    for points in (inducing.points(), DensePoints(inducing())):
        weights = (0.1 + torch.arange(n_weights, dtype=torch.float64)).requires_grad_()
        products = points.inner_products(weights)
        xz, xx = products(x)
        total = (products.gram * _normal(M, M)).sum() + (xz * _normal(B, M, seed=3)).sum() + (xx * _normal(B)).sum()
        learnt = [parameter for parameter in inducing.parameters() if parameter.requires_grad]
        results.append([products.gram, xz, xx, *torch.autograd.grad(total, [weights, *learnt])])
    assert len(results[0]) == (6 if name == "subspace-basis" else 5)
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
        assert got.abs().max() > 0


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_weights_of_subspace_coordinates_are_a_metric_with_one_weight_for_what_is_orthogonal(kind: str):
    inducing = MAKERS["subspace"](normalise=False, coordinate_weights=True)
    weights = torch.tensor([0.5, 2.0, 3.0, 0.7], dtype=torch.float64, requires_grad=True)
    basis, x = _basis(), torch.from_numpy(random_inputs(B, D))
    metric = 0.7 * torch.eye(D, dtype=torch.float64) + basis.T @ torch.diag(weights[:R] - 0.7).detach() @ basis
    assert torch.linalg.eigvalsh(metric).min() > 0
    products = inducing.points().inner_products(weights)
    xz, xx = products(_inputs(kind))
    z = inducing().detach()
    torch.testing.assert_close(products.gram.detach(), z @ metric @ z.T)
    torch.testing.assert_close(xz.detach(), x @ metric @ z.T)
    torch.testing.assert_close(xx.detach(), ((x @ metric) * x).sum(1))
    (products.gram.sum() + xz.sum() + xx.sum()).backward()
    assert weights.grad is not None
    assert weights.grad.abs().min() > 0


def test_one_weight_is_the_same_metric_in_and_out_of_the_subspace():
    weights, x = torch.tensor([0.6], dtype=torch.float64), _inputs("sparse")
    inside, outside = (
        MAKERS["subspace"](coordinate_weights=flag).points().inner_products(weights) for flag in (True, False)
    )
    torch.testing.assert_close(inside.gram, outside.gram)
    for got, expected in zip(inside(x), outside(x), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", MAKERS)
def test_points_as_an_array_are_the_inducing_inputs(name: str):
    inducing = MAKERS[name]()
    torch.testing.assert_close(inducing.points().dense(), inducing())
    assert len(inducing.points()) == len(inducing) == M


def test_a_learnt_basis_cannot_carry_weights_of_its_coordinates():
    with pytest.raises(ValueError, match="fixed orthonormal"):
        SubspaceInducingInputs(_normal(M, R), _basis(), learn_basis=True, coordinate_weights=True)


@pytest.mark.parametrize("name", MAKERS)
def test_every_kind_keeps_unit_norm_when_asked_to_and_only_then(name: str):
    for normalise in (True, False):
        inducing = MAKERS[name](normalise=normalise)
        with torch.no_grad():
            for parameter in inducing.parameters():
                parameter.mul_(1.5)
        before = inducing().detach().clone()
        inducing.project()
        norms = inducing().norm(dim=1)
        if normalise and name != "subspace":
            torch.testing.assert_close(norms, torch.ones(M, dtype=torch.float64))
        assert torch.equal(inducing(), before) is not normalise


@pytest.mark.parametrize("name", MAKERS)
def test_fixed_ones_of_every_kind_do_not_move(name: str):
    inducing = MAKERS[name](learn=False)
    before = inducing().detach().clone()
    inducing.project()
    assert torch.equal(inducing(), before)
    assert not inducing.coordinates().requires_grad


def test_loading_other_supports_replaces_the_layout():
    first, second = MAKERS["sparse"](), MAKERS["sparse"]()
    second.columns.copy_((second.columns + 1) % D)
    x, weights = _inputs("sparse"), torch.ones(1, dtype=torch.float64)
    first.points()
    first.load_state_dict(second.state_dict())
    torch.testing.assert_close(
        first.points().inner_products(weights)(x)[0], DensePoints(second()).inner_products(weights)(x)[0]
    )


def test_inputs_outside_every_support_meet_no_point():
    x = np.zeros((2, D))
    x[:, 0] = 3.0
    xz, xx = MAKERS["sparse"]().points().inner_products(torch.ones(1, dtype=torch.float64))(sparse_rows(x))
    np.testing.assert_array_equal(xz.detach(), 0.0)
    np.testing.assert_array_equal(xx, 9.0)


# Inducing inputs for each function

P = 3


def _separate() -> SeparateInducingInputs:
    return SeparateInducingInputs(torch.randn(P, M, D, generator=torch.Generator().manual_seed(2)).double())


def test_inputs_of_each_function_stay_at_unit_norm():
    inducing = _separate()
    torch.testing.assert_close(inducing().norm(dim=-1), torch.ones(P, M, dtype=torch.float64))
    assert len(inducing) == M
    with torch.no_grad():
        inducing.transposed.mul_(3.0)
    inducing.project()
    torch.testing.assert_close(inducing().norm(dim=-1), torch.ones(P, M, dtype=torch.float64))


@pytest.mark.parametrize("as_sparse", [False, True])
@pytest.mark.parametrize(
    "kernel",
    [
        SquaredExponential(0.7),
        SquaredExponential(0.7, n_features=D),
        Matern(3, n_features=D),
        SquaredExponentialPerLatent(n_functions=P),
    ],
)
def test_covariances_with_inputs_of_each_function_are_those_of_one_at_a_time(kernel: Kernel, as_sparse: bool):
    kernel = kernel.double()
    with torch.no_grad():
        kernel.log_weights.add_(torch.linspace(-0.5, 0.5, len(kernel.log_weights), dtype=torch.float64))
    inducing, x = _separate(), random_inputs(B, D)
    at = kernel.at(inducing.points())
    cross, diagonal = at(sparse_rows(x) if as_sparse else torch.from_numpy(x))
    gram = at.gram()
    assert cross.shape == (P, B, M)
    for p in range(P):
        one: Kernel = kernel
        if isinstance(kernel, SquaredExponentialPerLatent):
            one = SquaredExponential(float(kernel.log_weights[p].detach().exp())).double()
        alone = one.at(inducing()[p])
        torch.testing.assert_close(gram[p], alone.gram())
        own_cross, own_diagonal = alone(torch.from_numpy(x))
        torch.testing.assert_close(cross[p], own_cross)
        torch.testing.assert_close(diagonal if diagonal.ndim == 1 else diagonal[p], own_diagonal)


def test_gradients_reach_the_inputs_of_each_function_and_the_weights():
    inducing, kernel = _separate(), SquaredExponential(n_features=D).double()
    x = torch.from_numpy(random_inputs(B, D))

    def outputs(transposed: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor]:
        state = {"transposed": transposed}
        points = torch.func.functional_call(_Points(inducing), {f"inducing.{k}": v for k, v in state.items()}, ())
        products = points.inner_products(log_weights.exp())
        return products.gram, products(x)[0]

    start = inducing.transposed.detach().clone().requires_grad_()
    weights = kernel.log_weights.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(outputs, (start, weights))


class _Points(torch.nn.Module):
    def __init__(self, inducing: InducingInputs) -> None:
        super().__init__()
        self.inducing = inducing

    def forward(self):
        return self.inducing.points()


def test_points_of_some_functions_are_those():
    inducing, some = _separate(), torch.tensor([0, 2])
    assert torch.equal(inducing.points().dense(), inducing())
    assert torch.equal(inducing.points(some).dense(), inducing()[some])
