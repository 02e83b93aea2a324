"""Rows that a model has, and what a regression of their labels is of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.sparse import Matrix


class KnownRows(NamedTuple):
    """Rows that a model has.

    Attributes:
        x: inputs, N x D.
        y: labels, N x K.
        weights: what each counts, N.
    """

    x: Matrix
    y: scipy.sparse.csr_matrix
    weights: NDArray[np.float64]

    def some(self, rows: slice | NDArray[np.int64]) -> KnownRows:
        """Some of them."""
        return KnownRows(self.x[rows], self.y[rows], self.weights[rows])


def targets_of(y: scipy.sparse.csr_matrix) -> Float[Tensor, "n T"]:
    """Labels, and ones."""
    return torch.from_numpy(np.hstack([y.toarray(), np.ones((y.shape[0], 1))])).double()
