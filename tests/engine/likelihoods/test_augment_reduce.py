from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from tests.engine.likelihoods import small
from tests.reference import classes as reference

from extremegp.engine.integrals.races import softmax_probabilities
from extremegp.engine.latents import Marginals
from extremegp.engine.likelihoods import (
    AugmentReduceLogit,
    AugmentReduceSoftmax,
    OneVsEach,
    augment_reduce,
)
from extremegp.engine.likelihoods.augment_reduce import Differences
from extremegp.training.label_sampling import LabelSampler

B, K = 4, 5
X = torch.randn(B, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
ROWS = torch.tensor([5, 0, 3, 7])
TRAINED: dict[str, Any] = {"x": X, "rows": ROWS}
KINDS = pytest.mark.parametrize("kind", [AugmentReduceSoftmax, AugmentReduceLogit])
BATCHES = pytest.mark.parametrize("batch", [small.independent(B, K), small.factored(B, K)], ids=["identity", "factor"])


def _differences(batch: small.Case, weights: torch.Tensor | None = None) -> Differences:
    return batch.differences(weights).detach()


def _locals_near(kind: type, seed: int = 0) -> torch.Tensor:
    """Rows of local parameters of either kind: log(alpha - 1), or mu and log beta."""
    n_outputs = 1 if kind is AugmentReduceSoftmax else 2
    return torch.randn(B, n_outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.5


def _stored(kind: type) -> AugmentReduceSoftmax | AugmentReduceLogit:
    return kind("stored", n_classes=K, n_rows=9).double()


# The bounds at given local parameters


def test_the_softmax_bound_is_the_papers():
    batch = small.independent(B, K)
    locals_ = _locals_near(AugmentReduceSoftmax)
    bounds = AugmentReduceSoftmax().row_bounds(_differences(batch), locals_)
    for i, c in enumerate(batch.classes.tolist()):
        moments = batch.latents.mean[i].numpy(), batch.latents.variance[i].numpy()
        alpha = 1 + math.exp(locals_[i, 0])
        assert float(bounds[i]) == pytest.approx(reference.augment_reduce_softmax(*moments, c, alpha), rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_logit_bound_is_the_papers_up_to_the_mixture(seed: int):
    batch = small.independent(B, K, spread=3.0, seed=seed)
    locals_ = _locals_near(AugmentReduceLogit, seed)
    bounds = AugmentReduceLogit().row_bounds(_differences(batch), locals_)
    for i, c in enumerate(batch.classes.tolist()):
        moments = batch.latents.mean[i].numpy(), batch.latents.variance[i].numpy()
        expected = reference.augment_reduce_logit(*moments, c, float(locals_[i, 0]), math.exp(locals_[i, 1]))
        assert float(bounds[i]) == pytest.approx(expected, rel=1e-5)


def test_with_a_point_mass_the_logit_bound_is_one_vs_each_and_a_constant():
    batch = small.factored(B, K)
    beta = 1e-4
    locals_ = torch.tensor([[0.0, math.log(beta)]], dtype=torch.float64).expand(B, 2)
    bounds = AugmentReduceLogit().row_bounds(_differences(batch), locals_)
    entropy = math.log(beta) + 2
    one_vs_each = batch.expected(OneVsEach()).item()
    assert (bounds - entropy + 2 * math.log(2)).sum().item() == pytest.approx(one_vs_each, rel=1e-5)


@KINDS
def test_weights_multiply_the_terms_of_the_other_classes(kind: type):
    # A class twice in the sum counts as one with weight 2.
    twice = small.independent(B, K)
    mean, variance = twice.latents.mean.clone(), twice.latents.variance.clone()
    classes = torch.tensor([0, 1, 2, 0])
    mean[:, 4], variance[:, 4] = mean[:, 3], variance[:, 3]
    mixing = small.identity(K)
    whole = small.Case(Marginals(mean, variance), mixing, small.one_hot(classes.numpy(), K))
    part = small.Case(Marginals(mean[:, :4], variance[:, :4]), small.identity(4), small.one_hot(classes.numpy(), 4))
    weights = torch.tensor([1.0, 1.0, 1.0, 2.0], dtype=torch.float64)
    locals_ = _locals_near(kind)
    torch.testing.assert_close(
        kind().row_bounds(_differences(part, weights), locals_), kind().row_bounds(_differences(whole), locals_)
    )


@KINDS
@pytest.mark.parametrize(
    "batch", [small.independent(B, K), small.factored(B, K, spread=0.5)], ids=["identity", "factor"]
)
def test_gradcheck_with_given_locals(kind: type, batch: small.Case):
    weights = torch.tensor([1.0, 1.5, 1.0, 3.0, 1.0], dtype=torch.float64)

    def bound(mean: torch.Tensor, variance: torch.Tensor, locals_: torch.Tensor) -> torch.Tensor:
        return kind().row_bounds(batch.at(mean, variance).differences(weights), locals_)

    inputs = [part.clone().requires_grad_() for part in (*batch.latents, _locals_near(kind))]
    assert torch.autograd.gradcheck(bound, inputs, atol=2e-5, rtol=2e-4)


@KINDS
def test_over_all_samples_of_classes_the_mean_of_bound_and_gradients_is_that_of_all(kind: type):
    batch, locals_ = small.independent(B, 9, spread=1.0), _locals_near(kind)
    sampler = LabelSampler(np.array([4, 1, 0, 9, 30, 2, 2, 0, 7]), 3, "frequency", seed=1)
    edges = np.unique(np.concatenate([[0.0], np.cumsum(sampler.inclusion[sampler._order]) % 1.0, [1.0]]))
    own = np.unique(batch.classes.numpy())
    mean, gradient, seen = 0.0, torch.zeros(B, 9, dtype=torch.float64), []
    for low, high in pairwise(edges):
        labels = torch.from_numpy(np.union1d(own, sampler.drawn_from((low + high) / 2)))
        weights = torch.from_numpy(1 / sampler.inclusion)
        weights[own] = 1.0
        means = batch.latents.mean.clone().requires_grad_()
        latents = Marginals(means[:, labels], batch.latents.variance[:, labels])
        y = small.one_hot(torch.searchsorted(labels, batch.classes).numpy(), len(labels))
        sample = small.Case(latents, small.identity(len(labels)), y)
        bound = kind().row_bounds(sample.differences(weights[labels]), locals_).sum()
        (by_mean,) = torch.autograd.grad(bound, means)
        seen.append(bound.item())
        mean += (high - low) * bound.item()
        gradient += (high - low) * by_mean
    means = batch.latents.mean.clone().requires_grad_()
    whole = kind().row_bounds(batch.at(means).differences(), locals_).sum()
    assert np.std(seen) > 1e-2
    assert mean == pytest.approx(whole.item(), rel=1e-9)
    torch.testing.assert_close(gradient, torch.autograd.grad(whole, means)[0], rtol=1e-8, atol=1e-10)


def test_an_alpha_that_is_far_too_small_is_raised_so_far_that_nothing_overflows():
    latents = Marginals(torch.tensor([[0.0, 900.0, 0.0]]), torch.full((1, 3), 0.1))
    case = small.Case(latents, small.identity(3, torch.float32), small.one_hot([0], 3))
    a = torch.zeros(1, 1, requires_grad=True)
    bound = AugmentReduceSoftmax().row_bounds(_differences(case), a)
    assert -3000 < bound.item() < -900
    bound.backward()
    # Towards a larger alpha.
    assert 100 < a.grad.item() < math.inf


# Local parameters at their optimum


@BATCHES
def test_the_optimal_alpha_is_one_plus_the_sum_and_stationary(batch: small.Case):
    differences = _differences(batch)
    likelihood = AugmentReduceSoftmax()
    a = likelihood.optimum(differences)
    terms = (0.5 * differences.variance - differences.mean).exp()
    sums = terms.sum(1) - terms.gather(1, batch.classes[:, None]).squeeze(1)
    torch.testing.assert_close(1 + a.squeeze(1).exp(), 1 + sums)
    bounds = likelihood.row_bounds(differences, a)
    torch.testing.assert_close(bounds, -torch.log1p(sums))
    at = a.clone().requires_grad_()
    (slope,) = torch.autograd.grad(likelihood.row_bounds(differences, at).sum(), at)
    assert slope.abs().max() < 1e-12
    for shift in (-0.3, 0.3):
        assert (likelihood.row_bounds(differences, a + shift) < bounds).all()


@settings(max_examples=6)
@given(st.integers(0, 2**31), st.sampled_from([2, 5, 40]), st.floats(0.0, 8.0), st.floats(-3.0, 4.0))
def test_the_optimal_logit_locals_are_the_maximum(seed: int, n_classes: int, spread: float, log_variance: float):
    batch = small.independent(B, n_classes, spread=spread, variance=math.exp(log_variance), seed=seed)
    differences, likelihood = _differences(batch), AugmentReduceLogit()
    bounds = likelihood.row_bounds(differences, likelihood.optimum(differences))
    best = torch.empty_like(bounds)
    for i in range(B):
        row = differences.rows(torch.tensor([i]))

        def loss(locals_: np.ndarray, row: Differences = row) -> float:
            return -likelihood.row_bounds(row, torch.from_numpy(locals_)[None]).item()

        best[i] = -minimize(
            loss, np.array([1.0, 0.0]), method="Nelder-Mead", options={"maxiter": 200, "fatol": 1e-7}
        ).fun
    assert (bounds >= best - 2e-5 * (1 + best.abs())).all(), (bounds - best) / (1 + best.abs())


@KINDS
@BATCHES
def test_gradients_with_optimal_locals_are_those_of_the_optimum(kind: type, batch: small.Case):
    inputs = [part.clone().requires_grad_() for part in batch.latents]

    def bound(mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        return batch.at(mean, variance).expected(kind())

    # The optimum of the logit bound is found up to a tolerance: wide differences, that do not see it.
    tolerance = {"atol": 1e-5} if kind is AugmentReduceSoftmax else {"eps": 0.02, "atol": 5e-3}
    assert torch.autograd.gradcheck(bound, inputs, **tolerance)


@KINDS
def test_optimal_locals_for_a_sample_are_refused(kind: type):
    batch, weights = small.independent(B, K), torch.ones(K, dtype=torch.float64)
    amortised = kind("amortised", n_classes=K, n_features=3).double()
    for likelihood, known in ((kind(), TRAINED), (amortised, {}), (_stored(kind), {})):
        with pytest.raises(ValueError, match="local='amortised' or 'stored'"):
            batch.expected(likelihood, label_weights=weights, **known)


# Amortised and stored


@KINDS
def test_amortised_locals_are_the_networks_and_learn_their_optimum(kind: type):
    batch = small.independent(B, K)
    likelihood = kind("amortised", n_classes=K, n_features=3, hidden=16).double()
    start = likelihood.locals(X)
    if kind is AugmentReduceSoftmax:
        # alpha is raised to where it is three times too small.
        start = torch.maximum(start, AugmentReduceSoftmax().optimum(_differences(batch)) - math.log(3))
    expected = kind().row_bounds(_differences(batch), start).sum()
    torch.testing.assert_close(batch.expected(likelihood, **TRAINED), expected)
    optimum = batch.expected(kind()).item()
    optimiser = torch.optim.Adam(likelihood.parameters(), lr=0.02)
    for _ in range(400):
        optimiser.zero_grad()
        (-batch.expected(likelihood, **TRAINED)).backward()
        optimiser.step()
    learnt = batch.expected(likelihood, **TRAINED).item()
    assert expected.item() < learnt - 0.1
    assert optimum - 0.02 < learnt < optimum + 1e-4


@KINDS
@pytest.mark.parametrize("local", ["amortised", "stored"])
def test_of_rows_that_are_not_trained_on_locals_are_optimal_and_nothing_is_stored(kind: type, local: str):
    batch = small.independent(B, K)
    likelihood = kind(local, n_classes=K, n_features=3, n_rows=9).double()
    before = {name: tensor.clone() for name, tensor in likelihood.state_dict().items()}
    torch.testing.assert_close(batch.expected(likelihood), batch.expected(kind()))
    torch.testing.assert_close(likelihood.state_dict(), before)


def test_a_visit_with_all_classes_stores_the_optimal_alpha_of_its_rows_alone():
    batch, likelihood = small.independent(B, K), _stored(AugmentReduceSoftmax)
    bound = batch.expected(likelihood, **TRAINED)
    torch.testing.assert_close(bound, batch.expected(AugmentReduceSoftmax()))
    optimum = AugmentReduceSoftmax().optimum(_differences(batch))
    torch.testing.assert_close(likelihood.locals.values[ROWS], optimum)
    others = torch.tensor([1, 2, 4, 6, 8])
    torch.testing.assert_close(likelihood.locals.values[others], torch.full((5, 1), math.log(K - 1)).double())
    assert likelihood.locals.visits.tolist() == [1, 0, 0, 1, 0, 1, 0, 1, 0]


def test_visits_with_samples_average_alpha():
    likelihood, alphas = _stored(AugmentReduceSoftmax), []
    for seed in range(4):
        batch = small.independent(B, K, seed=seed)
        weights = torch.tensor([1.0, 1.0, 2.0, 1.0, 3.0], dtype=torch.float64)
        differences = _differences(batch, weights)
        bound = batch.expected(likelihood, label_weights=weights, **TRAINED)
        alphas.append(AugmentReduceSoftmax().optimum(differences).exp() + 1)
        stored = likelihood.locals.values[ROWS]
        torch.testing.assert_close(stored.exp() + 1, torch.stack(alphas).mean(0))
        torch.testing.assert_close(bound, likelihood.row_bounds(differences, stored).sum())


@pytest.mark.parametrize("weighted", [False, True])
def test_visits_never_lower_the_logit_bound_of_a_row_and_end_at_its_optimum(weighted: bool):
    batch, likelihood = small.independent(B, K, spread=4.0), _stored(AugmentReduceLogit)
    likelihood.locals.values.copy_(torch.tensor([-8.0, 2.0]))
    weights = torch.tensor([1.0, 1.0, 2.0, 1.0, 3.0], dtype=torch.float64) if weighted else None
    differences = _differences(batch, weights)
    bounds = [likelihood.row_bounds(differences, likelihood.locals(ROWS))]
    for _ in range(60 if weighted else 10):
        batch.expected(likelihood, label_weights=weights, **TRAINED)
        bounds.append(likelihood.row_bounds(differences, likelihood.locals(ROWS)))
    assert all((after >= before - 1e-6).all() for before, after in pairwise(bounds))
    best = likelihood.row_bounds(differences, likelihood.optimum(differences))
    torch.testing.assert_close(bounds[-1], best, atol=1e-4, rtol=0)


@KINDS
def test_gradients_with_stored_locals_hold_them_fixed(kind: type):
    batch, likelihood = small.factored(B, K), _stored(kind)
    weights = torch.tensor([1.0, 1.5, 1.0, 3.0, 1.0], dtype=torch.float64)
    mean = batch.latents.mean.clone().requires_grad_()
    batch = batch.at(mean)
    bound = batch.expected(likelihood, label_weights=weights, **TRAINED)
    assert not likelihood.locals.values.requires_grad
    held = likelihood.row_bounds(batch.differences(weights), likelihood.locals(ROWS)).sum()
    torch.testing.assert_close(torch.autograd.grad(bound, mean), torch.autograd.grad(held, mean))


@KINDS
@pytest.mark.parametrize("local", ["optimal", "amortised", "stored"])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_extreme_utilities_give_finite_bounds_gradients_and_locals(
    kind: type, local: str, sampled: bool, dtype: torch.dtype
):
    if sampled and local == "optimal":
        return
    case = small.extreme(dtype)
    latents, n_rows = case.latents, len(case.classes)
    likelihood = kind(local, n_classes=3, n_features=2, n_rows=n_rows).to(dtype)
    weights = torch.tensor([1.0, 1.0, 50.0], dtype=dtype) if sampled else None
    x = torch.ones(n_rows, 2, dtype=dtype)
    bound = case.expected(likelihood, label_weights=weights, x=x, rows=torch.arange(n_rows))
    bound.backward()
    assert bound.isfinite()
    assert latents.mean.grad.isfinite().all()
    assert latents.variance.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in likelihood.parameters())
    assert all(buffer.isfinite().all() for buffer in likelihood.buffers())


@KINDS
def test_a_batch_of_one_class_and_no_other_has_a_finite_bound(kind: type):
    latents = Marginals(torch.zeros(2, 1, requires_grad=True), torch.ones(2, 1, requires_grad=True))
    likelihood = kind("stored", n_classes=9, n_rows=2)
    case = small.Case(latents, small.identity(1, torch.float32), small.one_hot([0, 0], 1))
    bound = case.expected(likelihood, label_weights=torch.ones(1), rows=torch.arange(2))
    bound.backward()
    assert bound.isfinite()
    assert latents.mean.grad.tolist() == [[0.0], [0.0]]
    assert likelihood.locals.values.isfinite().all()


def test_the_entropy_of_the_mixture_is_that_of_dense_integration():
    x = np.linspace(-80, 80, 400_001)
    density = sum(p * np.exp(-(x**2) / (2 * c)) / np.sqrt(2 * np.pi * c) for p, c in augment_reduce.LOGISTIC_MIXTURE)
    entropy = -np.sum(density * np.log(density)) * (x[1] - x[0])
    assert entropy == pytest.approx(augment_reduce._MIXTURE_ENTROPY, abs=1e-9)


def test_probabilities_are_those_of_the_softmax():
    utilities = small.factored(3, 4).utilities
    for likelihood in (AugmentReduceSoftmax(), AugmentReduceLogit()):
        assert torch.equal(likelihood.probabilities(utilities), softmax_probabilities(utilities))
