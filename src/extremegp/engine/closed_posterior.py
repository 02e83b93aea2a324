"""The posterior of the regression of labels on features, in closed form: one shape of variances for all labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

_MOST_LEVERAGE = 1 - 1e-4


class ClosedPosterior(NamedTuple):
    """What is known of g_k(x) = mu_k + a(x)'b_k + what a lacks, with g_k ~ GP(mu_k, s_k^2 k) beforehand.

    Attributes:
        amplitudes: s_k^2 at the maximum of the evidence, K.
        shrinkage: of the variance of each coordinate of b, what is left of 1.
        left_out: variance of every training row without that row, beside the amplitudes, N.
    """

    amplitudes: Float[Tensor, " K"]
    shrinkage: Float[Tensor, " M"]
    left_out: Float[Tensor, " N"]


def closed_posterior(
    pieces: Callable[[], Iterator[Float[Tensor, "n M"]]],
    y: scipy.sparse.csr_matrix,
    frequencies: Float[Tensor, " K"],
    noise: float,
    weights: NDArray[np.float64] | None = None,
) -> ClosedPosterior:
    """That of features whose weighted sum of squares is diagonal (`Landmarks`): a division for each coordinate.

    Args:
        pieces: gives the features of the training rows a(x_i), some rows at a time, from the first on; called twice.
        y: labels, N x K.
        frequencies: mu.
        noise: variance s^2 of the noise, beside covariances of 1.
        weights: precisions of the rows; None for 1.
    """
    own = torch.ones(y.shape[0]).double() if weights is None else torch.from_numpy(weights).double()
    # In float64, for weights may be of any size.
    squares, projected = torch.zeros(1).double(), torch.zeros(1).double()
    total = torch.zeros(1).double()
    for rows, a in _numbered(pieces()):
        residuals = torch.from_numpy(y[rows].toarray()).double() - frequencies
        squares = squares + own[rows] @ a.square().double()
        total = total + own[rows] @ residuals.square()
        projected = projected + a.double().T @ (own[rows, None] * residuals)
    precision = squares + noise
    # s_k^2 at the maximum of the evidence: (y - mu)' (A A' + s^2 I)^-1 (y - mu) / N.
    explained = (projected.square() / precision.unsqueeze(1)).sum(0)
    # Rows of equal weights are so many, whatever these are; those of integers are as often there.
    n_counted = max(float(own.sum()), float(own.sum() ** 2 / own.square().sum()))
    amplitudes = ((total - explained) / (noise * n_counted)).clamp(min=0.0)
    shrinkage = (noise / precision).float()
    left_out = [
        variance_left_out(a, shrinkage, noise, None if weights is None else own[rows].float())
        for rows, a in _numbered(pieces())
    ]
    return ClosedPosterior(amplitudes.float(), shrinkage, torch.cat(left_out))


def variance_left(a: Float[Tensor, "B M"], shrinkage: Float[Tensor, " M"]) -> Float[Tensor, " B"]:
    """v(x) in [0, 1] of inputs with features a: with what these lack of the prior."""
    squares = a.square()
    return (1 - squares.sum(1)).clamp(min=0.0) + squares @ shrinkage


def variance_left_out(
    a: Float[Tensor, "B M"],
    shrinkage: Float[Tensor, " M"],
    noise: float,
    weights: Float[Tensor, " B"] | None = None,
) -> Float[Tensor, " B"]:
    """v of training rows, each without itself: a'L^-1 a is then s^2 h / (1 - w h), with w h its leverage."""
    squares = a.square()
    hat = squares @ (shrinkage / noise)
    leverage = hat if weights is None else weights * hat
    return (1 - squares.sum(1)).clamp(min=0.0) + noise * hat / (1 - leverage.clamp(max=_MOST_LEVERAGE))


def _numbered(pieces: Iterator[Float[Tensor, "n M"]]) -> Iterator[tuple[slice, Float[Tensor, "n M"]]]:
    start = 0
    for a in pieces:
        yield slice(start, start + len(a)), a
        start += len(a)
