"""A regression that judges the labels of its own rows, as noisy as tells planted errors best.

The noise that predicts best is not the one that finds errors best: a row that is far from others bends a regression of
little noise, and errors of other labels bend it too. So errors are planted in some of the rows, as many labels taken
away as added, and of several noises that one is taken which ranks them highest, each row left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score
from torch import Tensor

from extremegp.training.feature_changes import FeatureChanges, FeatureRows, without_own
from extremegp.training.known_rows import KnownRows

_TIMES = (1.0, 3.0, 10.0, 30.0, 100.0)
"""The noise of the regression, that are tried."""
_ROWS, _SHARE = 3000, 0.05
_MOST_PAIRS = 4_000_000  # of a row and a label, that errors are planted among


class JudgingRegression:
    """The regression of a model with landmarks, with a noise of its own.

    Args:
        features: the regression.
        rows: all that it is of.
        frequencies: mu of its labels, K.

    Attributes:
        noise: that tells planted errors best.
    """

    def __init__(self, features: FeatureChanges, rows: KnownRows, frequencies: Float[Tensor, " K"]) -> None:
        self._landmarks, self._frequencies = features.landmarks, frequencies
        inverses, basis = torch.linalg.eigh(features.ridge.inverse())
        squares = (1 / inverses - features.noise).clamp(min=0.0).unsqueeze(1)
        projected = basis.T @ features.centred(frequencies)
        n = rows.x.shape[0]
        n_some = min(n, _ROWS, max(1, _MOST_PAIRS // len(frequencies)))
        some = features.of_rows(rows.some(np.linspace(0, n - 1, n_some).round().astype(np.int64)))
        told = dict(_told(some, basis, squares, projected, frequencies, features.noise))
        self.noise = max(told, key=lambda noise: told[noise])
        precision = squares + self.noise
        self._inverse = (basis / precision.T) @ basis.T
        self._coefficients = basis @ (projected / precision)

    def left_out(self, rows: KnownRows) -> Float[Tensor, "n K"]:
        """t_k of some of its rows, each without itself."""
        a, weights = self._landmarks.exactly(rows.x), torch.from_numpy(rows.weights)
        return without_own((a, weights, rows.y), self._frequencies, self._inverse, self._coefficients)


def _told(
    rows: FeatureRows,
    basis: Float[Tensor, "M M"],
    squares: Float[Tensor, "M 1"],
    projected: Float[Tensor, "M K"],
    frequencies: Float[Tensor, " K"],
    noise: float,
) -> Iterator[tuple[float, float]]:
    """Noises, and the geometric mean of the precisions at which each tells planted errors of some rows."""
    a, weights, y = rows
    a = a @ basis
    known = y.toarray()
    recorded, errors = planted(known > 0, np.random.default_rng(0))
    labels = torch.from_numpy(np.where(errors, recorded, known)).double()
    projected = projected + (a * weights.unsqueeze(1)).T @ (labels - torch.from_numpy(known))
    for times in _TIMES:
        precision = squares + times * noise
        hat = (weights * (a.square() @ precision.reciprocal()).squeeze(1)).clamp(max=1 - 1e-4).unsqueeze(1)
        t = ((frequencies + a @ (projected / precision) - hat * labels) / (1 - hat)).numpy()
        if not errors.any():
            yield times * noise, -times
            continue
        added = average_precision_score(errors[recorded], -t[recorded])
        removed = average_precision_score(errors[~recorded], t[~recorded])
        yield times * noise, float(np.sqrt(added * removed))


def planted(truth: NDArray[np.bool_], rng: np.random.Generator) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Labels with errors, and where these are: as many taken away as added at pairs drawn at random.

    Args:
        truth: which labels rows have, n x K.
        rng: decides which.
    """
    errors = np.zeros_like(truth)
    positives, negatives = (np.argwhere(part) for part in (truth, ~truth))
    m = min(int(_SHARE * len(positives)), len(negatives))
    for pairs in (positives, negatives):
        errors[tuple(pairs[rng.choice(len(pairs), m, replace=False)].T)] = True
    return truth ^ errors, errors
