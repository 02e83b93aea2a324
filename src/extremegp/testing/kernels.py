"""What every kernel has to keep to."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from extremegp.engine.inducing import SeparateInducingInputs
from extremegp.engine.kernels import Kernel
from extremegp.testing import common
from extremegp.testing.common import same


def check_kernel(kernel: Kernel, *, n_features: int = 4) -> None:
    """Check that a kernel is positive semi-definite, the same however it is asked, differentiable, and can be saved.

    Args:
        kernel: of any parameters; it is not changed.
        n_features: D of the inputs that it takes.

    Raises:
        AssertionError: says what does not hold.
    """
    name, k = common.name_of(kernel), common.moved(kernel)
    z, x = common.inputs(5, n_features), common.inputs(7, n_features, seed=2)
    with torch.no_grad():
        _check_gram(name, k, z)
        at = k.at(z)
        whole = at(x)
        for part, what in zip(whole, ("k(x, z)", "k(x, x)"), strict=True):
            common.finite(part, f"{name}: {what}")
        same(at(x[2:5]), (whole[0][..., 2:5, :], whole[1][..., 2:5]), f"{name}: rows alone and among others differ")
        if not k.needs_dense:
            same(at(common.sparse(x)), whole, f"{name}: sparse and dense inputs differ (or set needs_dense)")
        _check_functions(name, k, z, x)
        _check_single_precision(name, kernel, z, x)
    _check_gradients(name, k, z, x)
    common.check_hooks(k)
    for as_argument in (False, True):
        common.check_saving(k, lambda kernel: [kernel.gram(z), *kernel.at(z)(x)], as_argument=as_argument)


def _check_gram(name: str, k: Kernel, z: Float[Tensor, "M D"]) -> None:
    gram = k.gram(z)
    assert gram.dtype == torch.float64, f"{name}: gram has to be in float64, it is in {gram.dtype}"
    common.finite(gram, f"{name}: k(z, z)")
    same(gram, gram.mT, f"{name}: k(z_i, z_j) and k(z_j, z_i) differ")
    lowest, highest = (float(end) for end in torch.linalg.eigvalsh(gram).aminmax())
    assert lowest >= -1e-9 * abs(highest), f"{name}: k is not positive semi-definite: an eigenvalue is {lowest:.3g}"
    cross, variance = k.at(z)(z)
    same(variance.expand(gram.shape[:-1]), gram.diagonal(dim1=-2, dim2=-1), f"{name}: k(x, x) is not the gram's")
    # What is particular to an observation, white noise, counts on the diagonal of the gram alone.
    own = gram - cross
    off = own - torch.diag_embed(own.diagonal(dim1=-2, dim2=-1))
    same(off, torch.zeros_like(off), f"{name}: at(z)(x) is not the gram, x = z")
    least = float(own.diagonal(dim1=-2, dim2=-1).min())
    assert least >= -1e-8 * abs(highest), f"{name}: k(x, z) at x = z is more than k(x, x), by {-least:.3g}"


def _check_functions(name: str, k: Kernel, z: Float[Tensor, "M D"], x: Float[Tensor, "B D"]) -> None:
    """Of some functions, and of points that each function has of its own."""
    gram, whole = k.gram(z), k.at(z)(x)
    n_functions = len(gram) if k.per_function else 3
    assert k.per_function == (gram.ndim == 3), f"{name}: per_function is {k.per_function}, and gram {tuple(gram.shape)}"
    some = torch.tensor([0, n_functions - 1])
    at = k.at(z, some)
    expected = [part[some] if k.per_function else part for part in (gram, *whole)]
    same([at.gram(), *at(x)], expected, f"{name}: some of the functions, at(z, functions), are not those of all")
    own = torch.stack([common.inputs(5, x.shape[1], seed=4 + p) for p in range(n_functions)])
    points = SeparateInducingInputs(own, normalise=False).points()
    at = k.at(points)
    many = at.gram().expand(n_functions, -1, -1), at(x)[0].expand(n_functions, -1, -1)
    for p, each in enumerate(own):
        alone = k.at(each, torch.tensor([p]) if k.per_function else None)
        same(
            [many[0][p], many[1][p]],
            [alone.gram().reshape(5, 5), alone(x)[0].reshape(len(x), 5)],
            f"{name}: points that each function has of its own, P x M x D, do not broadcast",
        )


def _check_single_precision(name: str, kernel: Kernel, z: Tensor, x: Tensor) -> None:
    single = common.moved(kernel).float()
    double = common.moved(kernel)
    at = single.at(z.float())
    assert at.gram().dtype == torch.float64, f"{name}: of float32 inputs gram has to be in float64 still"
    got, expected = at(x.float()), double.at(z)(x)
    for part in got:
        assert part.dtype == torch.float32, (
            f"{name}: of float32 inputs covariances have to be float32, not {part.dtype}"
        )
    tolerance = {"rtol": 1e-3, "atol": 1e-4 * float(expected[1].abs().max()), "check_dtype": False}
    same(got, expected, f"{name}: float32 and float64 differ", **tolerance)  # type: ignore[arg-type]


def _check_gradients(name: str, k: Kernel, z: Tensor, x: Tensor) -> None:
    z = z.clone().requires_grad_()
    with torch.no_grad():
        outputs = [k.gram(z), *k.at(z)(x)]
    weights = [common.normal(*part.shape, seed=seed) for seed, part in enumerate(outputs)]

    def value() -> Tensor:
        at = k.at(z)
        return torch.stack([(w * part).sum() for w, part in zip(weights, (at.gram(), *at(x)), strict=True)]).sum()

    # White noise does not look at where the inputs are.
    tensors = dict(k.named_parameters()) | ({"z": z} if _looks_at(k, z, x) else {})
    common.check_gradients(tensors, value, name)
    z.grad = None
    total = k.at(z)(z.detach())[0].sum()
    if total.requires_grad and _looks_at(k, z, x):
        total.backward()  # type: ignore[no-untyped-call]
        assert z.grad is not None
        common.finite(z.grad, f"{name}: where an input is an inducing input, the gradient")


def _looks_at(k: Kernel, z: Tensor, x: Tensor) -> bool:
    with torch.no_grad():
        return not torch.equal(k.at(z)(x)[0], k.at(z + 0.1)(x)[0])
