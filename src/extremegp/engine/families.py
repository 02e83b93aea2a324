"""Families of stationary kernels, as functions of the squared distance of rows in the coordinates of their weights.

All are one at distance zero and positive definite in any dimension (Rasmussen and Williams 2006, 4.2.1): they differ in
how rough functions are, and in how far rows reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

_LEAST = 1e-12  # of a squared distance, where roots have a gradient


def _squared_exponential(exponent: Tensor) -> Tensor:
    return exponent.exp()


def _rational_quadratic(exponent: Tensor) -> Tensor:
    """1 / (1 + r^2 / 2): squared exponentials of all lengthscales, in shares with as much weight on long ones."""
    return (1 - exponent).reciprocal()


def _matern52(exponent: Tensor) -> Tensor:
    r = _scaled_distance(exponent, 5)
    return (1 + r + r.square() / 3) * (-r).exp()


def _matern32(exponent: Tensor) -> Tensor:
    r = _scaled_distance(exponent, 3)
    return (1 + r) * (-r).exp()


def _matern12(exponent: Tensor) -> Tensor:
    return (-_scaled_distance(exponent, 1)).exp()


def _scaled_distance(exponent: Tensor, order: int) -> Tensor:
    return exponent.mul(-2).clamp(min=_LEAST).sqrt() * math.sqrt(order)


_OF_NAMES: dict[str, Callable[[Tensor], Tensor]] = {
    "squared exponential": _squared_exponential,
    "matern 5/2": _matern52,
    "matern 3/2": _matern32,
    "matern 1/2": _matern12,
    "rational quadratic": _rational_quadratic,
}
FAMILIES = (*_OF_NAMES,)
"""Their names; a model saves the number of its own."""


def covariances_of(exponent: Tensor, family: int) -> Tensor:
    """Covariances of a family, by its number, from -1/2 of squared distances."""
    return _OF_NAMES[FAMILIES[family]](exponent)
