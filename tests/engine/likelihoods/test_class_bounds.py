"""Every bound lies below a Monte Carlo estimate of what it bounds, whatever the utilities."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.likelihoods import small
from tests.models import loadings_of
from tests.reference import classes as reference

from extremegp.engine.likelihoods import (
    AugmentReduceLogit,
    AugmentReduceSoftmax,
    ClassLikelihood,
    OneVsEach,
    ProbitOneVsEach,
    RobustMax,
)

N_CHUNK = 5_000


def _draws(batch: small.Case, n_draws: int, seed: int) -> Iterator[np.ndarray]:
    """Utilities of the first row."""
    rng = np.random.default_rng(seed)
    mean, deviation = batch.latents.mean[0].numpy(), batch.latents.variance[0].sqrt().numpy()
    loadings, bias = loadings_of(batch.mixing).numpy(), batch.mixing.bias.detach().numpy()
    offset = 0.0 if batch.offset is None else batch.offset[0].numpy()
    for _ in range(n_draws // N_CHUNK):
        yield (mean + deviation * rng.normal(size=(N_CHUNK, len(mean)))) @ loadings.T + bias + offset


def _augment_reduce(batch: small.Case, kind: type, seed: int) -> dict[str, float]:
    """The bound with every kind of local parameters, and with some at random."""
    differences = batch.differences().detach()
    locals_ = 2.0 * torch.randn(1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    known = {"x": torch.zeros(1, 2, dtype=torch.float64), "rows": torch.tensor([0])}
    n_outputs = 1 if kind is AugmentReduceSoftmax else 2
    bounds = {"any": kind().row_bounds(differences, locals_[:, :n_outputs]).item()}
    for local in ("optimal", "amortised", "stored"):
        likelihood = kind(local, n_classes=differences.mean.shape[1], n_features=2, n_rows=1).double()
        bounds[local] = batch.expected(likelihood, **known).item()
    return bounds


def _batch(n_classes: int, spread: float, variance: float, factors: bool, seed: int) -> small.Case:
    if factors:
        return small.factored(1, n_classes, spread=spread, seed=seed)
    return small.independent(1, n_classes, spread=spread, variance=variance, seed=seed)


BATCH = st.builds(
    _batch,
    st.integers(2, 12),
    st.floats(0.0, 5.0),
    st.sampled_from([0.0, 0.3, 3.0, 30.0]),
    st.booleans(),
    st.integers(0, 2**31),
)


def _check_softmax(batch: small.Case, n_draws: int) -> None:
    c = int(batch.y.columns)
    expected, error = reference.expected_in_chunks(_draws(batch, n_draws, 1), lambda f: reference.log_softmax(f, c))
    bounds = _augment_reduce(batch, AugmentReduceSoftmax, 2)
    bounds["one-vs-each"] = batch.expected(OneVsEach()).item()
    for name, bound in bounds.items():
        assert bound <= expected + 4.5 * error + 1e-5 * (1 + abs(expected)), name


def _check_logit(batch: small.Case, n_draws: int) -> None:
    c = int(batch.y.columns)
    expected, error = reference.expected_in_chunks(
        _draws(batch, n_draws, 1), lambda f: reference.log_logistic_race(f, c)
    )
    for name, bound in _augment_reduce(batch, AugmentReduceLogit, 2).items():
        assert bound <= expected + 4.5 * error + 1e-5 * (1 + abs(expected)), name


def _check_own(batch: small.Case, n_draws: int) -> None:
    """The probit bound against the multinomial probit; robust-max, which is exact, against itself."""
    c = int(batch.y.columns)
    expected, error = reference.expected_in_chunks(
        _draws(batch, n_draws // 20, 1), lambda f: reference.log_multinomial_probit(f, c)
    )
    assert batch.expected(ProbitOneVsEach()).item() <= expected + 4.5 * error + 1e-4 * (1 + abs(expected))
    if batch.offset is None:
        expected, error = reference.expected_in_chunks(
            _draws(batch, n_draws, 1), lambda f: reference.log_robust_max(f, c, 1e-2)
        )
        assert batch.expected(RobustMax(1e-2)).item() == pytest.approx(expected, abs=4.5 * error + 1e-3)


@settings(max_examples=25)
@given(BATCH)
def test_bounds_on_the_softmax_lie_below_its_expectation(batch: small.Case):
    _check_softmax(batch, 200_000)


@settings(max_examples=15)
@given(BATCH)
def test_the_logit_bound_lies_below_the_logistic_race(batch: small.Case):
    _check_logit(batch, 10_000)


@settings(max_examples=15)
@given(BATCH)
def test_the_probit_bound_and_the_robust_maximum_agree_with_samples(batch: small.Case):
    _check_own(batch, 100_000)


@pytest.mark.slow
@settings(max_examples=20)
@given(BATCH)
def test_a_million_samples_agree_too(batch: small.Case):
    _check_softmax(batch, 1_000_000)
    _check_logit(batch, 50_000)
    _check_own(batch, 1_000_000)


@pytest.mark.parametrize("likelihood", [AugmentReduceSoftmax(), OneVsEach()], ids=["softmax", "one-vs-each"])
def test_bounds_are_tight_where_they_can_be(likelihood: ClassLikelihood):
    # Without variance the first is the softmax itself, and for two classes so is the second.
    case = small.independent(4, 2)
    exact = torch.log_softmax(case.latents.mean, 1).gather(1, case.classes[:, None]).sum().item()
    assert case.at(variance=0 * case.latents.variance).expected(likelihood).item() == pytest.approx(exact, rel=1e-9)
