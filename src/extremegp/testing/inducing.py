"""What every kind of inducing inputs has to keep to."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float
from torch import Tensor

from extremegp.engine.inducing import InducingInputs
from extremegp.engine.kernels import SquaredExponential
from extremegp.testing import common
from extremegp.testing.common import same


def check_inducing(inducing: InducingInputs, *, per_feature: bool = True) -> None:
    """Check that inducing inputs start, keep their norms, and have the inner products that their array has.

    Args:
        inducing: M of them, for a number of features D that their array tells; they are not changed.
        per_feature: whether kernels may have a weight for each of the D features.

    Raises:
        AssertionError: says what does not hold.
    """
    name, (*functions, n_points, n_features) = common.name_of(inducing), inducing().shape
    assert len(inducing) == n_points, f"{name}: len() is {len(inducing)}, and there are {n_points} rows"
    data = common.training_data(n_features, functions[0] if functions else 3)
    started = copy.deepcopy(inducing)
    started.start(data)
    common.finite(started(), f"{name}: the start")
    i = common.moved(started)
    with torch.no_grad():
        _check_norms(name, i)
        same(i.points().dense(), i(), f"{name}: points().dense() is not the array itself")
        x = common.inputs(7, n_features)
        for weights in (torch.tensor([0.7]), common.normal(n_features).square() + 0.1)[: 1 + per_feature]:
            _check_products(name, i, x, weights.double())
        if i.per_function:
            some = torch.tensor([0, functions[0] - 1])
            same(i.points(some).dense(), i()[some], f"{name}: points of some functions are not those of all")
    kernel = SquaredExponential(0.5).double()

    def value() -> Tensor:
        at = kernel.at(i.points())
        return at.gram().square().sum() + at(x)[0].sum()

    common.check_gradients(dict(i.named_parameters()), value, name)
    common.check_hooks(i)
    common.check_saving(i, lambda inducing: [inducing()])


def _check_norms(name: str, i: InducingInputs) -> None:
    if i.normalise and i.coordinates().requires_grad:
        ones = torch.ones(i().shape[:-1], dtype=torch.float64)
        # They start in float32.
        same(i().norm(dim=-1), ones, f"{name}: project() leaves other norms", atol=1e-5)
    else:
        before = i().clone()
        i.project()
        same(i(), before, f"{name}: project() moves what is not to be normalised")


def _check_products(name: str, i: InducingInputs, x: Float[Tensor, "B D"], weights: Float[Tensor, " D_or_1"]) -> None:
    products, z = i.points().inner_products(weights), i()
    weighted, whole = z * weights, products(x)
    assert products.gram.dtype == torch.float64, f"{name}: the inner products z.z have to be in float64"
    expected = weighted @ z.mT, x @ weighted.mT, (x.square() * weights).sum(-1)
    # An orthonormal basis starts in float32.
    what = f"{name}: inner products are not those of the array"
    same((products.gram, *whole), expected, what, rtol=1e-5, atol=1e-6)
    same(products(common.sparse(x)), whole, f"{name}: inner products with sparse x are not those with dense x")
    same(products(x[2:5])[0], whole[0][..., 2:5, :], f"{name}: rows alone and among others differ")
