"""Whether draws have the moments that they should, as far as their number can tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

_STANDARD_ERRORS = 5.0


def same_sequence(lengths: Sequence[int]) -> NDArray[np.bool_]:
    """Which of the rows of sequences, one after the other, belong together, B x B."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return owner[:, None] == owner[None, :]


def assert_gaussian_moments(draws: Tensor, mean: Array, covariances: Array, lengths: Sequence[int]) -> None:
    """R x B x P draws of independent functions, which sequences draw independently.

    Args:
        draws: the draws.
        mean: B x P.
        covariances: of every function at all inputs, P x B x B; between sequences it is not looked at.
        lengths: of the sequences.
    """
    r, b, p = draws.shape
    expected = np.zeros((p, b, p, b))
    for function, covariance in enumerate(covariances):
        expected[function, :, function, :] = covariance * same_sequence(lengths)
    expected = expected.reshape(p * b, p * b)
    centred = (draws.detach().numpy().astype(np.float64) - mean).transpose(2, 1, 0).reshape(p * b, r)
    variances = np.diag(expected)
    _assert_within(centred.mean(1), 0.0, np.sqrt(variances / r))
    _assert_within(centred @ centred.T / r, expected, np.sqrt((np.outer(variances, variances) + expected**2) / r))


def assert_equal_moments(first: Array, second: Array) -> None:
    """Two sets of draws, R x n and R' x n, of whatever distribution."""
    products = [np.einsum("ri,rj->rij", part, part).reshape(len(part), -1) for part in (first, second)]
    for one, other in ((first, second), products):
        error = np.sqrt(one.var(0) / len(one) + other.var(0) / len(other))
        _assert_within(one.mean(0), other.mean(0), error)


def assert_equal_means(first: Array, second: Array) -> None:
    """Two sets of draws, R and R' numbers, of whatever distribution."""
    error = np.sqrt(first.var(ddof=1) / len(first) + second.var(ddof=1) / len(second))
    _assert_within(first.mean(), second.mean(), error)


def assert_mean(draws: Array, mean: float | Array) -> None:
    """R x *n draws, of whatever distribution."""
    _assert_within(draws.mean(0), mean, draws.std(0, ddof=1) / np.sqrt(len(draws)))


def _assert_within(got: Array, expected: float | Array, standard_error: Array) -> None:
    np.testing.assert_array_less(np.abs(got - expected), _STANDARD_ERRORS * standard_error + 1e-9)
