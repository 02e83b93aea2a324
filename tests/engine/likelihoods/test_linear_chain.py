from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.models import as_array, randomise
from tests.moments import assert_mean
from tests.reference.chain import enumerate_labellings, piecewise_pseudo_likelihood
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from extremegp.engine.likelihoods.linear_chain import CHAIN_OBJECTIVES, TRANSITIONS, LinearChain

V, R = 3, 2
LENGTHS = [3, 1, 4]
B = sum(LENGTHS)
STARTS = np.cumsum([0, *LENGTHS[:-1]])
LABELS = torch.randint(V, (B,), generator=torch.Generator().manual_seed(5))

KINDS = pytest.mark.parametrize("transitions", TRANSITIONS)


def _chain(transitions: str, **options: Any) -> LinearChain:
    likelihood = LinearChain(V, transitions=transitions, **options).double()  # type: ignore[arg-type]
    randomise(likelihood, scale=0.7)
    return likelihood


def _functions(likelihood: LinearChain, n_draws: int = R) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return 1.5 * torch.randn(n_draws, B, likelihood.n_utilities(V), generator=generator, dtype=torch.float64)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(2)


def _log_prob(likelihood: LinearChain, f: Tensor) -> Tensor:
    return likelihood.log_prob(f, LABELS, torch.tensor(LENGTHS), _generator())


def _pairs(likelihood: LinearChain, f: Tensor) -> np.ndarray:
    """f_bin into every input, R x B x V x V, at the draws that `_log_prob` takes."""
    if likelihood.transitions == "none":
        return np.zeros((len(f), B, V, V))
    if likelihood.transitions == "indexed":
        scores = np.empty((len(f), B, V, V))
        for i in range(V):
            for j in range(V):
                scores[..., i, j] = f[..., V + V * i + j]
        return scores
    _, shared = likelihood.potentials(f, torch.tensor(LENGTHS), _generator())
    return np.broadcast_to(as_array(shared).reshape(-1, 1, V, V), (len(f), B, V, V))


@pytest.mark.parametrize("objective", CHAIN_OBJECTIVES)
@KINDS
def test_log_prob_is_that_of_the_enumeration(transitions: str, objective: str):
    likelihood = _chain(transitions, objective=objective)
    f = _functions(likelihood)
    assert likelihood.n_utilities(V) == (V + V * V if transitions == "indexed" else V)
    got, pairs = _log_prob(likelihood, f), _pairs(likelihood, f)
    assert got.shape == (R, len(LENGTHS))
    for r in range(R):
        for s, (start, length) in enumerate(zip(STARTS, LENGTHS, strict=True)):
            rows = slice(start, start + length)
            unary, own, y = as_array(f)[r, rows, :V], pairs[r, rows], tuple(LABELS[rows].tolist())
            # Labels that are independent are their own pieces.
            if objective == "exact" or transitions == "none":
                enumeration = enumerate_labellings(unary, own)
                expected = enumeration.scores[enumeration.labellings.index(y)] - enumeration.log_z
            else:
                expected = piecewise_pseudo_likelihood(unary, own, y)
            assert float(got[r, s].detach()) == pytest.approx(expected, rel=1e-11)


def test_independent_labels_have_the_sum_of_their_log_softmax():
    likelihood = _chain("none")
    f = _functions(likelihood)
    each = f.log_softmax(-1)[:, torch.arange(B), LABELS]
    expected = torch.stack([part.sum(-1) for part in each.split(LENGTHS, dim=-1)], dim=-1)
    torch.testing.assert_close(_log_prob(likelihood, f), expected, rtol=1e-13, atol=1e-13)


def test_every_draw_has_transitions_of_its_own_with_the_moments_of_the_posterior():
    likelihood = _chain("gaussian", prior_variance=2.0)
    n_draws = 20_000
    f = torch.zeros(n_draws, 2, V, dtype=torch.float64)
    unary, drawn = likelihood.potentials(f, torch.tensor([2]), _generator())
    assert unary.shape == (n_draws, 1, 2, V)
    values, mean = as_array(drawn).reshape(n_draws, -1), as_array(likelihood.q_mean).flatten()
    variance = np.exp(as_array(likelihood.log_ratio).flatten() + float(likelihood.log_prior_variance.detach()))
    assert_mean(values, mean)
    assert_mean(np.einsum("ri,rj->rij", values - mean, values - mean), np.diag(variance))


@pytest.mark.parametrize("transitions", ["point", "none"])
def test_transitions_without_a_distribution_take_nothing_from_the_generator(transitions: str):
    likelihood, generator = _chain(transitions), _generator()
    likelihood.log_prob(_functions(likelihood), LABELS, torch.tensor(LENGTHS), generator)
    assert torch.equal(generator.get_state(), _generator().get_state())


def test_the_kl_of_transitions_is_that_of_explicit_gaussians():
    likelihood = _chain("gaussian", prior_variance=2.0)
    prior = likelihood.log_prior_variance.detach().exp()
    q = Normal(likelihood.q_mean.detach(), (prior * likelihood.log_ratio.detach().exp()).sqrt())
    torch.testing.assert_close(likelihood.kl().detach(), kl_divergence(q, Normal(0.0, prior.sqrt())).sum())


def test_the_penalty_of_a_point_is_its_log_prior_density_up_to_a_constant():
    likelihood = _chain("point", prior_variance=2.0)
    assert not likelihood.log_prior_variance.requires_grad
    prior = Normal(torch.zeros((), dtype=torch.float64), likelihood.log_prior_variance.exp().sqrt())
    points = likelihood.q_mean.detach()
    expected = (prior.log_prob(torch.zeros_like(points)) - prior.log_prob(points)).sum()
    torch.testing.assert_close(likelihood.kl().detach(), expected)


@pytest.mark.parametrize("transitions", ["indexed", "none"])
def test_what_has_no_parameters_has_no_kl(transitions: str):
    likelihood = _chain(transitions)
    assert list(likelihood.parameters()) == []
    assert float(likelihood.kl()) == 0.0


def test_function_v_plus_v_i_plus_j_is_for_label_i_before_and_j_at_an_input():
    likelihood = _chain("indexed")
    for i in range(V):
        for j in range(V):
            f = torch.zeros(1, 2, likelihood.n_utilities(V), dtype=torch.float64)
            f[0, 1, V + V * i + j] = 50.0
            labels = torch.tensor([i, j])
            log_prob = likelihood.log_prob(f, labels, torch.tensor([2]), _generator())
            assert float(log_prob) == pytest.approx(0.0, abs=1e-9)
            # Into the first input of a sequence there is no step.
            apart = likelihood.log_prob(f.flip(1), labels, torch.tensor([2]), _generator())
            assert float(apart) == pytest.approx(-2 * np.log(V))


@pytest.mark.parametrize("objective", CHAIN_OBJECTIVES)
@KINDS
def test_gradients_are_those_of_finite_differences(transitions: str, objective: str):
    likelihood = _chain(transitions, objective=objective)
    f = _functions(likelihood).requires_grad_()
    learnt = [parameter for parameter in likelihood.parameters() if parameter.requires_grad]

    def value(f: Tensor, *_: Tensor) -> Tensor:
        return _log_prob(likelihood, f)

    assert torch.autograd.gradcheck(value, (f, *learnt))
