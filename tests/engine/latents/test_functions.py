"""Some of the functions of latents are those functions, and gradients reach their rows alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models import random_inputs, randomise
from torch import Tensor

from extremegp.engine.inducing import FreeInducingInputs, InducingInputs, SeparateInducingInputs
from extremegp.engine.kernels import Kernel, SquaredExponential, SquaredExponentialPerLatent, WhiteNoise
from extremegp.engine.latents import DeepRandomFeatures, JoinedLatents, Latents, LinearFunctions, SparseGP, SumLatents
from extremegp.engine.posteriors import Full, MeanField, Parsimonious, Posterior, SharedBasis

# All different, so that the size of a dimension tells what it is of.
P, M, D, B = 4, 3, 5, 6
SOME, OTHERS = torch.tensor([0, 2]), torch.tensor([1, 3])
PARTITION = [torch.tensor([0, 2]), torch.tensor([1]), torch.tensor([3])]
X = torch.from_numpy(random_inputs(B, D))


def _free() -> FreeInducingInputs:
    return FreeInducingInputs(torch.randn(M, D, generator=torch.Generator().manual_seed(0)))


def _separate() -> SeparateInducingInputs:
    return SeparateInducingInputs(torch.randn(P, M, D, generator=torch.Generator().manual_seed(0)))


def _each(n_functions: int = P) -> Kernel:
    return SquaredExponentialPerLatent(n_functions=n_functions)


def _gp(
    posterior: Callable[[int, int], Posterior],
    kernel: Callable[[], Kernel] = SquaredExponential,
    inducing: Callable[[], InducingInputs] = _free,
    n_functions: int = P,
) -> SparseGP:
    return SparseGP(kernel(), inducing(), posterior(n_functions, M), n_functions=n_functions)


def _in_u(n_functions: int, n_inducing: int) -> Full:
    return Full(n_functions, n_inducing, whitened=False)


def _features(**changes: Any) -> DeepRandomFeatures:
    latents = DeepRandomFeatures(D, P, **{"n_random": 3, "kernel": "se", **changes})
    latents.start_at(X.float(), torch.Generator().manual_seed(0))
    return latents


POSTERIORS = {
    "shared-basis": SharedBasis,
    "mean-field": MeanField,
    "full": Full,
    "full-u": _in_u,
    "parsimonious": Parsimonious,
}
ADDITIVE: dict[str, Callable[[], Latents]] = {
    **{name: lambda q=q: _gp(q) for name, q in POSTERIORS.items()},
    **{f"{name}, lengthscales": lambda q=q: _gp(q, _each) for name, q in POSTERIORS.items()},
    **{f"{name}, separate": lambda q=q: _gp(q, inducing=_separate) for name, q in POSTERIORS.items()},
    "both": lambda: _gp(SharedBasis, _each, _separate),
    "composed kernels": lambda: _gp(Full, lambda: _each() * SquaredExponential() + WhiteNoise()),
    "linear": lambda: LinearFunctions(D, P),
    "linear mean-field": lambda: LinearFunctions(D, P, posterior="mean-field"),
    "linear point": lambda: LinearFunctions(D, P, posterior="point"),
    "sum": lambda: SumLatents([_gp(Full), LinearFunctions(D, P)]),
    "joined": lambda: JoinedLatents(
        [_gp(SharedBasis, lambda: _each(1), n_functions=1), LinearFunctions(D, 2), _gp(_in_u, n_functions=1)]
    ),
}
# Their hidden layers and frequencies have a KL divergence of their own.
FEATURES = {
    "features": _features,
    "learnt frequencies": lambda: _features(frequencies="var-fixed"),
    "deep": lambda: _features(n_layers=2, n_hidden=3, frequencies="var-resampled", n_reduced=2),
}
CASES: dict[str, Callable[[], Latents]] = {**ADDITIVE, **FEATURES}
EVERY = pytest.mark.parametrize("case", CASES)


def _latents(case: str) -> Latents:
    latents = CASES[case]().double()
    randomise(latents)
    return latents


@pytest.mark.parametrize(
    ("case", "width"),
    [
        ("shared-basis", M),
        ("mean-field", M),
        ("full-u", P * M),
        ("parsimonious", P * M),
        ("full, separate", P * M),
        ("shared-basis, lengthscales", P * M),
        ("linear", P),
        ("sum", P * M),
    ],
)
def test_the_width_is_what_an_input_takes(case: str, width: int):
    assert _latents(case).condition().width == width


@EVERY
def test_marginals_of_some_functions_are_those_columns(case: str):
    latents = _latents(case)
    everything = latents.condition(7).marginals(X)
    three = torch.tensor([0, 2, 3])
    ways = {
        "selected": (latents.condition(7).select(SOME), SOME),
        "conditioned": (latents.condition(7, SOME), SOME),
        "selected twice": (latents.condition(7).select(three).select(torch.tensor([0, 2])), torch.tensor([0, 3])),
        "of those conditioned": (latents.condition(7, three).select(torch.tensor([1, 2])), torch.tensor([2, 3])),
        "of one part": (latents.condition(7, torch.tensor([3])), torch.tensor([3])),
    }
    for way, (some, functions) in ways.items():
        for got, whole in zip(some.marginals(X), everything, strict=True):
            torch.testing.assert_close(got, whole[:, functions], msg=lambda text, way=way: f"{way}: {text}")


@EVERY
def test_draws_of_some_functions_have_the_moments_of_those_functions(case: str):
    latents, lengths = _latents(case), torch.tensor([2, 3, 1])
    for some in (latents.condition(7).select(SOME), latents.condition(7, SOME)):
        drawn = some.draws(X, lengths, 500 if case == "deep" else 4000, torch.Generator().manual_seed(0))
        assert drawn.shape[1:] == (B, len(SOME))
        if case in ("deep", "learnt frequencies"):
            continue
        mean, variance = (part.detach() for part in some.marginals(X))
        error = 5 * (variance / len(drawn)).sqrt() + 1e-9
        assert ((drawn.detach().mean(0) - mean).abs() < error).all()


@EVERY
def test_the_kl_of_selected_functions_stays_that_of_all(case: str):
    conditioned = _latents(case).condition()
    torch.testing.assert_close(conditioned.select(SOME).kl(), conditioned.kl())


@pytest.mark.parametrize("case", ADDITIVE)
def test_the_kl_of_all_functions_is_the_sum_of_those_of_a_partition(case: str):
    latents = _latents(case)
    parts = [latents.condition(functions=functions).kl() for functions in PARTITION]
    torch.testing.assert_close(sum(parts), latents.condition().kl())
    assert all(part > 0 for part in parts)


@pytest.mark.parametrize("case", FEATURES)
def test_the_kl_of_hidden_layers_and_frequencies_is_in_every_part(case: str):
    latents = _latents(case)
    inner = latents.inner_kl()
    own = [latents.condition(functions=functions).kl() - inner for functions in PARTITION]
    torch.testing.assert_close(sum(own), latents.condition().kl() - inner)
    assert all(part > 0 for part in own)


def _rows(parameter: Tensor, gradient: Tensor) -> Tensor | None:
    """The gradient with the functions first, where the parameter has rows of each."""
    dimensions = [d for d, size in enumerate(parameter.shape) if size == P]
    return gradient.movedim(dimensions[0], 0).flatten(1) if dimensions and gradient.ndim > 1 else None


@pytest.mark.parametrize("case", [case for case in CASES if case != "joined"])
def test_gradients_of_some_functions_reach_their_rows_alone(case: str):
    latents = _latents(case)
    conditioned = latents.condition(functions=SOME)
    marginals = conditioned.marginals(X)
    (marginals.mean.sum() + marginals.variance.sum() + conditioned.kl()).backward()
    touched = 0
    for parameter in latents.parameters():
        rows = None if parameter.grad is None else _rows(parameter, parameter.grad)
        if rows is not None:
            assert torch.all(rows[OTHERS] == 0)
            assert torch.all(rows[SOME].abs().sum(1) > 0)
            touched += 1
    assert touched > 0


def test_gradients_of_some_functions_reach_none_of_a_part_that_has_none_of_them():
    latents = _latents("joined")
    conditioned = latents.condition(functions=torch.tensor([1]))
    (conditioned.marginals(X).mean.sum() + conditioned.kl()).backward()
    first, second, third = latents.members
    assert all(
        parameter.grad is None or not parameter.grad.any() for part in (first, third) for parameter in part.parameters()
    )
    assert second.q_mean.grad[:, 0].any()
    assert not second.q_mean.grad[:, 1].any()
