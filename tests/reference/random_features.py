"""Deep networks of random features, one input and one layer at a time (D 2.37, 4.14)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Layer(NamedTuple):
    """Frequencies (inputs x R) and amplitude s of a layer."""

    omega: Array
    amplitude: float


def expansion(x: Array, layer: Layer, kernel: str) -> Array:
    """phi(x) of one input."""
    n_random = layer.omega.shape[1]
    waves = [sum(x[d] * layer.omega[d, r] for d in range(len(x))) for r in range(n_random)]
    if kernel == "se":
        units = [np.cos(wave) for wave in waves] + [np.sin(wave) for wave in waves]
    else:
        units = [np.sqrt(2) * max(0.0, wave) for wave in waves]
    return layer.amplitude / np.sqrt(n_random) * np.array(units)


def last_features(
    x: Array, layers: list[Layer], weights: list[Array], kernel: str, *, feed_forward: bool, reducer: Array | None
) -> Array:
    """phi of the last layer at every row of x; `weights` are those of the hidden layers."""
    rows = []
    for row in x:
        start = row if reducer is None else reducer.T @ row
        phi = expansion(start, layers[0], kernel)
        for layer, matrix in zip(layers[1:], weights, strict=True):
            f = matrix.T @ phi
            phi = expansion(np.concatenate([f, start]) if feed_forward else f, layer, kernel)
        rows.append(phi)
    return np.array(rows)
