"""What a regression of the labels does not know of the rows of a pool, together: their posterior covariance.

The pool has features a(x) = L^-1 k_Z(x) by way of M of its own rows Z (Williams and Seeger 2001), brought to the
length 1 that k(x, x) = 1 asks for: what rows have in common is kept, and rows that Z says little of are not taken for
rows of which all is known. Given the training rows their covariance is a(x)' (I + sum_i w_i a_i a_i' / s^2)^-1 a(x').
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.kept_rows import KeptRows
from extremegp.engine.lengthscales import chosen
from extremegp.engine.sparse import Matrix

N_POINTS = 512
"""Rows of the pool that features go by way of."""
_MOST_TRAINING_ROWS = 50_000
_PIECE = 4096
_LEAST_LENGTH = 1e-3


class KnownRegression(NamedTuple):
    """A regression of the labels in closed form, and the rows that it stands on.

    Attributes:
        kernel: rows under its kernel, with k(x, x) = 1.
        noise: s^2.
        x: the training rows, N x D.
        counts: w, what each of these counts, N; None for 1.
    """

    kernel: KeptRows
    noise: float
    x: Matrix
    counts: NDArray[np.float64] | None = None


@torch.no_grad()
def covariance_root(known: KnownRegression, pool: Matrix, rng: np.random.Generator) -> Float[np.ndarray, "B M"]:
    """R of the posterior covariance R R' of the rows of a pool.

    Args:
        known: the regression; of more than 50,000 training rows so many stand for all.
        pool: the rows, B x D.
        rng: decides which of them features go by way of.
    """
    points = np.sort(rng.choice(pool.shape[0], min(N_POINTS, pool.shape[0]), replace=False))
    landmarks = known.kernel.of_others(pool[points])
    whitener = landmarks.whitener()

    def features(x: Matrix) -> Iterator[Tensor]:
        for start in range(0, x.shape[0], _PIECE):
            yield from (block @ whitener for block in landmarks.covariances(x[start : start + _PIECE]))

    factor = torch.linalg.cholesky(_precision(known, features))
    root = torch.linalg.solve_triangular(factor, torch.eye(len(factor), dtype=factor.dtype), upper=False).T.float()
    parts = []
    for a in features(pool):
        # What is like no other row keeps the variance of the prior.
        lengths = a.norm(dim=1, keepdim=True).clamp(min=_LEAST_LENGTH)
        parts.append((a / lengths) @ root)
    found: Float[np.ndarray, "B M"] = torch.cat(parts).numpy()
    return found


def _precision(known: KnownRegression, features: Callable[[Matrix], Iterator[Tensor]]) -> Float[Tensor, "M M"]:
    """I + sum_i w_i a_i a_i' / s^2 over the training rows."""
    n_rows = known.x.shape[0]
    some = chosen(n_rows, min(n_rows, _MOST_TRAINING_ROWS))
    counts = np.ones(n_rows) if known.counts is None else known.counts
    precisions = torch.from_numpy(counts[some] * (n_rows / len(some) / known.noise))
    total, start = torch.zeros(1).double(), 0
    for a in features(known.x if len(some) == n_rows else known.x[some]):
        total = total + a.T.double() @ (a.double() * precisions[start : start + len(a), None])
        start += len(a)
    total.diagonal().add_(1.0)
    return total
