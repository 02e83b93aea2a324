"""What the checks of all kinds of parts share: small data, parameters away from their start, and comparisons."""

from __future__ import annotations

import copy
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from torch import Tensor

from extremegp.engine.part import Part, TrainingData, parts_of
from extremegp.engine.sparse import SparseRows
from extremegp.errors import ModelFormatError, SettingsError
from extremegp.settings.parts import described, made
from extremegp.storage.tensors import check_state, read_tensors, write_tensors

P = TypeVar("P", bound=Part)

STANDARD_ERRORS = 5.0
_STENCIL = {-2.0: 1.0, -1.0: -8.0, 1.0: 8.0, 2.0: -1.0}
_STEP = 1e-3


def generator(seed: int = 0) -> torch.Generator:
    """What decides random numbers of a check."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float64, the same for equal seeds."""
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def inputs(n_rows: int, n_features: int, seed: int = 0) -> Float[Tensor, "N D"]:
    """Rows of unit norm with some entries zero, all different."""
    x = normal(n_rows, n_features, seed=seed)
    x = x * (torch.rand(x.shape, generator=generator(seed + 1)) < 0.7)
    x[:, seed % n_features] += 0.5
    rows: Tensor = x / x.norm(dim=1, keepdim=True)
    return rows


def sparse(x: Float[Tensor, "N D"]) -> SparseRows:
    """The same rows with only their entries stored."""
    return SparseRows.from_scipy(scipy.sparse.csr_matrix(x.numpy()), dtype=x.dtype)


def training_data(n_features: int, n_labels: int, n_rows: int = 40) -> TrainingData:
    """Sparse rows with a few labels each, of which every label has some."""
    x = inputs(n_rows, n_features, seed=3).float().numpy()
    y = (np.random.default_rng(0).random((n_rows, n_labels)) < 0.3).astype(np.float32)
    y[np.arange(n_rows), np.arange(n_rows) % n_labels] = 1.0
    return TrainingData(scipy.sparse.csr_matrix(x), scipy.sparse.csr_matrix(y), np.random.default_rng(0))


@torch.no_grad()
def moved(part: P, *, scale: float = 0.3) -> P:
    """A copy in float64 with every learnt parameter away from its start, where no term of a formula is hidden."""
    part = copy.deepcopy(part).double()
    for seed, parameter in enumerate(part.parameters()):
        if parameter.requires_grad:
            parameter.add_(scale * normal(*parameter.shape, seed=seed))
    for each in parts_of(part):
        each.project()
    return part


def name_of(part: Part) -> str:
    """What messages call it."""
    return type(part).__name__


def same(
    got: Any, expected: Any, what: str, *, rtol: float = 1e-7, atol: float = 1e-9, check_dtype: bool = True
) -> None:
    """Fail with `what` where two tensors, or two sequences of them, differ."""
    torch.testing.assert_close(
        got, expected, rtol=rtol, atol=atol, check_dtype=check_dtype, msg=lambda reason: f"{what}: {reason}"
    )


def finite(values: Tensor, what: str) -> None:
    """Fail with `what` where a number is NaN or infinite."""
    assert bool(torch.isfinite(values).all()), f"{what} is not finite"


def check_gradients(tensors: Mapping[str, Tensor], value: Callable[[], Tensor], of: str, *, rtol: float = 1e-4) -> None:
    """Compare the gradient of a scalar by every tensor that needs one with finite differences, in float64.

    Args:
        tensors: by name, leaves in float64.
        value: the scalar, a function of them that does not change from call to call.
        of: what it is, for messages.
        rtol: how much the slope along a random direction may differ, relative to the norm of the gradient.
    """
    learnt = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    for tensor in learnt.values():
        tensor.grad = None
    total = value()
    if total.requires_grad:
        total.backward()  # type: ignore[no-untyped-call]
    for seed, (name, tensor) in enumerate(learnt.items()):
        assert tensor.grad is not None, f"{of}: {name} is learnt, but gets no gradient"
        gradient = tensor.grad.to_dense()
        finite(gradient, f"{of}: the gradient of {name}")
        direction = normal(*tensor.shape, seed=seed)
        slope = sum(weight * _at(value, tensor, direction, by * _STEP) for by, weight in _STENCIL.items())
        slope, expected = slope / (12 * _STEP), float((gradient * direction).sum())
        allowed = rtol * float(gradient.norm()) + 1e-8 * (1 + abs(float(total.detach())))
        assert abs(slope - expected) <= allowed, (
            f"{of}: along a random direction of {name} its gradient is {expected:.6g}, but finite differences give "
            f"{slope:.6g}"
        )


def _at(value: Callable[[], Tensor], tensor: Tensor, direction: Tensor, step: float) -> float:
    before = tensor.detach().clone()
    try:
        with torch.no_grad():
            tensor.add_(direction, alpha=step)
            return float(value())
    finally:
        with torch.no_grad():
            tensor.copy_(before)


def check_hooks(part: Part) -> None:
    """Hooks about learning name parameters of the part, with factors that are positive."""
    own = {id(parameter) for parameter in part.parameters()}
    hooks: dict[str, Iterable[Tensor]] = {
        "step_scales": part.step_scales(),
        "late": part.late(),
        "row_sparse": part.row_sparse(),
        "natural_parameters": part.natural_parameters(),
    }
    for hook, parameters in hooks.items():
        assert all(id(each) in own for each in parameters), f"{name_of(part)}.{hook}() has a parameter of another part"
    for factor in part.step_scales().values():
        assert 0 < factor < math.inf, f"{name_of(part)}.step_scales() has the factor {factor}"


def check_saving(part: P, outputs: Callable[[P], Sequence[Tensor]], *, as_argument: bool = False) -> None:
    """What a part gives is the same to the bit once its tensors are written to a file and read again.

    Args:
        part: the part.
        outputs: what it gives.
        as_argument: make the part again from its description, as for one that an estimator was given: all it is must
            be in its constructor's arguments, parameters and buffers.
    """
    name, other = name_of(part), copy.deepcopy(part)
    if as_argument:
        try:
            description = json.loads(json.dumps(described(part)))
            with torch.device("meta"):
                again = made(description, {type(each) for each in parts_of(part)})
        except SettingsError as error:
            raise AssertionError(f"{name} cannot be saved as an argument of an estimator: {error}") from error
        assert isinstance(again, type(part))
        other = again
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tensors"
        write_tensors(path, part.state_dict(), {})
        tensors, _ = read_tensors(path)
    other = other.to(_dtype(part))
    try:
        check_state(other, tensors, source=name)
    except ModelFormatError as error:
        raise AssertionError(f"{name} could not be loaded: {error}") from error
    other.load_state_dict(tensors, assign=True)
    try:
        loaded = outputs(other)
    except (NotImplementedError, RuntimeError) as error:
        raise AssertionError(
            f"once it was saved and loaded, {name} fails, as it holds tensors that are neither parameters nor "
            f"registered buffers ({error})"
        ) from error
    for got, expected in zip(loaded, outputs(part), strict=True):
        assert torch.equal(got, expected), f"once it was saved and loaded, {name} gives other numbers"


def _dtype(part: Part) -> torch.dtype:
    return next((t.dtype for t in part.state_dict().values() if t.is_floating_point()), torch.get_default_dtype())


def check_mean(draws: Tensor, expected: Tensor, what: str, *, standard_error: Tensor | float = 0.0) -> None:
    """Fail with `what` where the mean of R x *n draws is further from *n numbers than chance takes it.

    Args:
        draws: independent along their first dimension.
        expected: what their expectation should be.
        what: for the message.
        standard_error: of `expected`, where it is an estimate itself.
    """
    own = draws.std(dim=0) / math.sqrt(len(draws))
    error = (own.square() + torch.as_tensor(standard_error).square()).sqrt()
    # Of what is so rare that no draw shows it the standard error is zero.
    rare = STANDARD_ERRORS**2 / len(draws) * (draws.max() - draws.min())
    allowed = STANDARD_ERRORS * error + rare + 1e-4 * (draws.abs().mean(0) + 1e-3)
    excess = (draws.mean(0) - expected).abs() - allowed
    at = int(excess.argmax())
    got, wanted = float(draws.mean(0).flatten()[at]), float(expected.expand_as(excess).flatten()[at])
    assert bool((excess <= 0).all()), f"{what}: {wanted:.6g}, but {len(draws)} draws average to {got:.6g}"


def needs_dense(part: Part) -> bool:
    """Whether something in it needs dense inputs."""
    return any(each.needs_dense for each in parts_of(part))
