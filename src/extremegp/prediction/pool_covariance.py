"""What a regression of the labels does not know of the rows of a pool, together: their posterior covariance."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from extremegp.engine.kept_rows import KeptRows
from extremegp.engine.lengthscales import chosen, noises
from extremegp.engine.linalg import cholesky
from extremegp.engine.sparse import Matrix


class KnownRegression(NamedTuple):
    """A regression of the labels in closed form, and the rows that it stands on.

    Attributes:
        kernel: rows under its kernel, with k(x, x) = 1.
        noise: s^2.
        x: the training rows, N x D.
        counts: w, what each of these counts, N.
    """

    kernel: KeptRows
    noise: float
    x: Matrix
    counts: NDArray[np.float64]

    def beside(self, pool: Matrix, chosen_rows: NDArray[np.int64], most: int) -> KnownRegression:
        """On some training rows spread evenly over all, and some rows of a pool.

        Args:
            pool: rows, B x D.
            chosen_rows: which of them, as if they were known too.
            most: how many rows there are to be at most, half of them of the pool.
        """
        new = chosen_rows[chosen(len(chosen_rows), min(len(chosen_rows), most // 2))]
        own = chosen(self.x.shape[0], min(self.x.shape[0], most - len(new)))
        x = self.x if len(own) == self.x.shape[0] else self.x[own]
        if not len(new):
            return self._replace(x=x, counts=self.counts[own])
        return self._replace(x=_stacked(x, pool[new]), counts=np.append(self.counts[own], np.ones(len(new))))


@torch.no_grad()
def posterior_covariance(known: KnownRegression, pool: Matrix) -> Float[np.ndarray, "B B"]:
    """C = K_pp - K_pX (K_XX + S)^-1 K_Xp of the rows of a pool, with S = diag(s^2 / w).

    Args:
        known: the regression on N rows X, of which it makes an N x N matrix.
        pool: the rows, B x D.
    """
    among = known.kernel.of_others(pool)
    prior = among.gram()
    trained = known.kernel.of_others(known.x)
    covariance = trained.gram()
    covariance.diagonal().add_(noises(known.noise, torch.from_numpy(known.counts)).to(covariance))
    across = torch.cat([*trained.covariances(pool)]).T
    explained = torch.linalg.solve_triangular(cholesky(covariance), across, upper=False)
    found: Float[np.ndarray, "B B"] = (prior - explained.T @ explained).numpy()
    return found


def _stacked(x: Matrix, other: Matrix) -> Matrix:
    if not scipy.sparse.issparse(x) and not scipy.sparse.issparse(other):
        return np.concatenate([x, other])
    parts: list[Any] = [scipy.sparse.csr_matrix(part) for part in (x, other)]
    return scipy.sparse.csr_matrix(scipy.sparse.vstack(parts))
