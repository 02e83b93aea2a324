"""Some of the functions of latents are those functions, and gradients reach their rows alone."""

from __future__ import annotations

import pytest
import torch
from tests.models import random_inputs, randomise

from extremegp.engine.inducing import FreeInducingInputs, SeparateInducingInputs
from extremegp.engine.kernels import SquaredExponential, SquaredExponentialPerLatent
from extremegp.engine.latents import Latents, LinearFunctions, SparseGP, SumLatents
from extremegp.engine.latents.base import functions_of
from extremegp.engine.posteriors import Full, MeanField, Parsimonious, SharedBasis

P, M, D, B = 4, 3, 5, 6
SOME = torch.tensor([0, 2])


def _free() -> FreeInducingInputs:
    return FreeInducingInputs(torch.randn(M, D, generator=torch.Generator().manual_seed(0)))


def _separate() -> SeparateInducingInputs:
    return SeparateInducingInputs(torch.randn(P, M, D, generator=torch.Generator().manual_seed(0)))


CASES = {
    "shared": lambda: SparseGP(SquaredExponential(), _free(), SharedBasis(P, M), n_functions=P),
    "mean-field": lambda: SparseGP(SquaredExponential(), _free(), MeanField(P, M), n_functions=P),
    "full-u": lambda: SparseGP(SquaredExponential(), _free(), Full(P, M, whitened=False), n_functions=P),
    "parsimonious": lambda: SparseGP(SquaredExponential(), _free(), Parsimonious(P, M), n_functions=P),
    "separate": lambda: SparseGP(SquaredExponential(), _separate(), Full(P, M), n_functions=P),
    "separate parsimonious": lambda: SparseGP(
        SquaredExponentialPerLatent(n_functions=P), _separate(), Parsimonious(P, M), n_functions=P
    ),
    "lengthscales": lambda: SparseGP(
        SquaredExponentialPerLatent(n_functions=P), _free(), SharedBasis(P, M), n_functions=P
    ),
    "linear": lambda: LinearFunctions(D, P, posterior="mean-field"),
    "point": lambda: LinearFunctions(D, P, posterior="point"),
    "sum": lambda: SumLatents(
        [SparseGP(SquaredExponential(), _free(), Full(P, M), n_functions=P), LinearFunctions(D, P)]
    ),
}


def _latents(case: str) -> Latents:
    latents = CASES[case]().double()
    randomise(latents)
    return latents


@pytest.mark.parametrize(
    ("case", "width"),
    [
        ("shared", M),
        ("mean-field", M),
        ("full-u", P * M),
        ("parsimonious", P * M),
        ("separate", P * M),
        ("lengthscales", P * M),
        ("linear", P),
        ("sum", P * M),
    ],
)
def test_the_width_is_what_an_input_takes(case: str, width: int):
    assert _latents(case).condition().width == width


@pytest.mark.parametrize("case", CASES)
def test_marginals_of_some_functions_are_those_columns(case: str):
    latents, x = _latents(case), torch.from_numpy(random_inputs(B, D))
    everything, some = latents.condition().marginals(x), latents.condition().marginals(x, SOME)
    alone = functions_of(latents, SOME)
    assert alone.n_functions == len(SOME)
    for part in (some, alone.condition().marginals(x)):
        torch.testing.assert_close(part.mean, everything.mean[:, SOME])
        torch.testing.assert_close(part.variance, everything.variance[:, SOME])


@pytest.mark.parametrize("case", CASES)
def test_the_kl_of_all_functions_is_the_sum_of_those_of_each(case: str):
    latents = _latents(case)
    each = [functions_of(latents, torch.tensor([p])).condition().kl() for p in range(P)]
    torch.testing.assert_close(sum(each), latents.condition().kl())


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_some_functions_reach_their_rows_alone(case: str):
    latents, x = _latents(case), torch.from_numpy(random_inputs(B, D))
    conditioned = functions_of(latents, SOME).condition()
    marginals = conditioned.marginals(x)
    (marginals.mean.sum() + marginals.variance.sum() + conditioned.kl()).backward()
    touched = 0
    for module in latents.modules():
        for name, dimension in getattr(module, "per_function", {}).items():
            gradient = getattr(module, name).grad.movedim(dimension, 0)
            assert torch.all(gradient[[1, 3]] == 0)
            assert torch.all(gradient[SOME].reshape(len(SOME), -1).abs().sum(1) > 0)
            touched += 1
    assert touched > 0
