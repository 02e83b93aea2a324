from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.models import random_inputs, sparse_rows
from tests.moments import assert_gaussian_moments
from torch.autograd import gradcheck

from extremegp.engine.draws import sequence_noise
from extremegp.engine.sparse import Inputs, SparseRows

D, P, R = 4, 2, 20_000
LENGTHS = [3, 1, 2]
X = random_inputs(sum(LENGTHS), D, density=0.6)

INPUTS = pytest.mark.parametrize("inputs", [torch.from_numpy, sparse_rows], ids=["dense", "sparse"])
DEVIATIONS = pytest.mark.parametrize("shape", [(D, P), (D,)], ids=["own", "shared"])


def _noise(x: Inputs, deviations: torch.Tensor, n_draws: int = R, lengths: list[int] = LENGTHS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return sequence_noise(x, deviations, torch.tensor(lengths), (n_draws, P), generator)


def _deviations(*shape: int) -> torch.Tensor:
    return 0.3 + 2 * torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@DEVIATIONS
@INPUTS
def test_noise_is_that_of_one_set_of_weights_for_each_sequence_and_function(
    inputs: Callable[[np.ndarray], Inputs], shape: tuple[int, ...]
):
    deviations = _deviations(*shape)
    scales = np.broadcast_to(deviations.numpy().reshape(D, -1), (D, P))
    covariances = np.array([[[(x * scale**2) @ z for z in X] for x in X] for scale in scales.T])
    draws = _noise(inputs(X), deviations)
    assert draws.shape == (R, len(X), P)
    assert_gaussian_moments(draws, np.zeros((len(X), P)), covariances, LENGTHS)


@INPUTS
def test_the_same_input_twice_in_a_sequence_has_the_same_draws_and_elsewhere_others(
    inputs: Callable[[np.ndarray], Inputs],
):
    x = X[[1, 2, 1, 1]]
    draws = _noise(inputs(x), _deviations(D, P), 5, [3, 1])
    torch.testing.assert_close(draws[:, 0], draws[:, 2], rtol=1e-13, atol=1e-13)
    assert ((draws[:, 0] - draws[:, 3]).abs() > 1e-6).all()


@DEVIATIONS
@INPUTS
def test_gradients_at_a_fixed_seed_are_those_of_finite_differences(
    inputs: Callable[[np.ndarray], Inputs], shape: tuple[int, ...]
):
    assert gradcheck(lambda s: _noise(inputs(X), s, 3), (_deviations(*shape).requires_grad_(),))


def test_gradients_reach_dense_inputs():
    deviations = _deviations(D, P)
    assert gradcheck(lambda x: _noise(x, deviations, 3), (torch.from_numpy(X).requires_grad_(),))


def test_equal_generators_give_equal_draws_and_a_generator_goes_on():
    x, deviations, lengths = sparse_rows(X), _deviations(D, P), torch.tensor(LENGTHS)
    first, second = (torch.Generator().manual_seed(3) for _ in range(2))
    one = sequence_noise(x, deviations, lengths, (2, P), first)
    assert torch.equal(one, sequence_noise(x, deviations, lengths, (2, P), second))
    assert not torch.equal(one, sequence_noise(x, deviations, lengths, (2, P), first))


def test_sequences_without_stored_entries_have_no_noise():
    x = np.zeros((3, D))
    x[2] = X[1]
    draws = _noise(sparse_rows(x), _deviations(D, P), 4, [2, 1])
    assert (draws[:, :2] == 0).all()
    assert (draws[:, 2] != 0).all()
    deviations = _deviations(D, P).requires_grad_()
    nothing = _noise(sparse_rows(np.zeros((3, D))), deviations, 4, [2, 1])
    assert torch.equal(nothing, torch.zeros(4, 3, P, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(nothing.sum(), deviations)
    assert (gradient == 0).all()


def test_a_column_stored_twice_counts_twice():
    x = scipy.sparse.csr_matrix((np.array([1.0, 2.0, 3.0]), np.array([1, 1, 1]), np.array([0, 2, 3])), shape=(2, D))
    draws = _noise(SparseRows.from_scipy(x, dtype=torch.float64), _deviations(D, P), 5, [2])
    torch.testing.assert_close(draws[:, 0], draws[:, 1], rtol=1e-13, atol=1e-13)


def test_weights_of_features_that_a_sequence_lacks_are_never_drawn():
    narrow = sparse_rows(X)
    wide = replace(narrow, n_columns=10**9)
    # With one deviation for each of so many features, nothing else would fit.
    deviations = torch.ones(1, dtype=torch.float64).expand(10**9)
    draws = sequence_noise(wide, deviations, torch.tensor(LENGTHS), (3, P), torch.Generator().manual_seed(0))
    expected = _noise(narrow, torch.ones(D, dtype=torch.float64), 3)
    torch.testing.assert_close(draws, expected, rtol=1e-13, atol=1e-13)
