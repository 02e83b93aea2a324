from __future__ import annotations

import pytest
import torch
from tests.models import project, random_inputs, randomise

from extremegp.engine.inducing import FreeInducingInputs
from extremegp.engine.kernels import SquaredExponential
from extremegp.engine.latents import JoinedLatents, LinearFunctions, SparseGP, SumLatents
from extremegp.engine.posteriors import MeanField

D, P, M = 4, 2, 3


def _gp(n_functions: int = P) -> SparseGP:
    inducing = FreeInducingInputs(torch.from_numpy(random_inputs(M + 1, D, density=1.0)[1:]).float())
    return SparseGP(SquaredExponential(), inducing, MeanField(n_functions, M), n_functions=n_functions)


def test_the_sum_adds_means_variances_and_kl_terms():
    parts = [_gp(), LinearFunctions(D, P), LinearFunctions(D, P)]
    total = SumLatents(parts).double()
    randomise(total)
    x = torch.from_numpy(random_inputs(5, D))
    conditioned = [part.condition() for part in parts]
    marginals = [part.marginals(x) for part in conditioned]
    got = total.condition()
    torch.testing.assert_close(got.marginals(x).mean, sum(m.mean for m in marginals))
    torch.testing.assert_close(got.marginals(x).variance, sum(m.variance for m in marginals))
    torch.testing.assert_close(got.kl(), sum(part.kl() for part in conditioned))
    assert total.n_functions == P


def test_joined_latents_are_their_parts_side_by_side():
    parts = [_gp(), LinearFunctions(D, P + 1)]
    joined = JoinedLatents(parts).double()
    randomise(joined)
    x = torch.from_numpy(random_inputs(5, D))
    conditioned, got = [part.condition() for part in parts], joined.condition()
    for i in (0, 1):
        expected = torch.cat([part.marginals(x)[i] for part in conditioned], dim=1)
        torch.testing.assert_close(got.marginals(x)[i], expected)
    torch.testing.assert_close(got.kl(), sum(part.kl() for part in conditioned))
    lengths, generators = torch.tensor([2, 3]), [torch.Generator().manual_seed(0) for _ in range(2)]
    drawn = torch.cat([part.draws(x, lengths, 4, generators[0]) for part in conditioned], dim=-1)
    torch.testing.assert_close(got.draws(x, lengths, 4, generators[1]), drawn)
    assert joined.n_functions == 2 * P + 1


def test_projection_reaches_every_term():
    gp = _gp()
    with torch.no_grad():
        gp.inducing.transposed.mul_(3.0)
    project(SumLatents([LinearFunctions(D, P), JoinedLatents([gp])]))
    torch.testing.assert_close(gp.inducing().norm(dim=1), torch.ones(M))


def test_terms_of_different_numbers_of_functions_do_not_add():
    with pytest.raises(ValueError, match="same number"):
        SumLatents([_gp(), LinearFunctions(D, P + 1)])
