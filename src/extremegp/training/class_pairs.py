"""Steps on rows of one class against one other class (T 3.36): the bound costs the same for any number of classes.

The optimiser still moves the parameters of all latent functions, those of the other classes by their momentum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from extremegp.engine.sparse import SparseRows
from extremegp.training.label_sampling import LabelBatch

_DRAW = 3  # third word of the seeds, see label_sampling


class ClassPair(NamedTuple):
    """What a step looks at.

    Attributes:
        rows: rows of one class.
        labels: the two classes, ascending.
        of_rows: which of the two the rows have, 0 or 1.
        n_rows: how many rows these stand for.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    of_rows: int
    n_rows: float

    def batch(self, n_classes: int, *, dtype: torch.dtype, device: torch.device) -> LabelBatch:
        """The labels of the step: the other class stands for all n - 1."""
        size = len(self.rows)
        weights = torch.full((2,), n_classes - 1.0, dtype=dtype, device=device)
        weights[self.of_rows] = 1.0
        return LabelBatch(
            torch.from_numpy(self.labels).to(device),
            weights,
            SparseRows(
                torch.arange(size + 1, device=device),
                torch.full((size,), self.of_rows, device=device),
                torch.ones(size, dtype=dtype, device=device),
                2,
            ),
        )


class ClassPairSampler:
    """Draws a class that some row has, B of its rows, and another class: a pure function of the seed and the step.

    The classes of rows are drawn alike, so that K' N_k / B times the sum over B rows of class k estimates the sum over
    all rows without bias, K' the number of classes that rows have.

    Args:
        y: one class for every row, N x K, none of them soft.
        batch_size: B; all rows of a class that has fewer.
        seed: decides the draws.
    """

    def __init__(self, y: scipy.sparse.csr_matrix, batch_size: int, *, seed: int) -> None:
        self._n_classes, self._batch_size, self._seed = y.shape[1], batch_size, seed
        order = np.argsort(y.indices, kind="stable")
        self._present, starts = np.unique(y.indices[order], return_index=True)
        self._members = np.split(order, starts[1:])

    def draw(self, step: int) -> ClassPair:
        """The pair and the rows of a step."""
        rng = np.random.default_rng([self._seed, step, _DRAW])
        which = int(rng.integers(len(self._present)))
        own, members = int(self._present[which]), self._members[which]
        other = int(rng.integers(self._n_classes - 1))
        other += other >= own
        rows = np.sort(rng.choice(members, min(self._batch_size, len(members)), replace=False))
        return ClassPair(
            rows,
            np.array(sorted((own, other))),
            of_rows=int(own > other),
            n_rows=float(len(self._present) * len(members)),
        )
