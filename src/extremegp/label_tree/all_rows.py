"""Gaussian process regression of all labels at once on all training rows, with a linear kernel.

The regression of label k is t_k(x) = mu_k + sum_i w_i(x) (y_ik - mu_k), with row weights w = (X X' + S)^-1 X x that are
the same for all labels, and S = diag(s^2 / c_i) of rows that count c_i (Rasmussen and Williams 2006, 2.2). The weights
are found by a few steps of conjugate gradients (Hestenes and Stiefel 1952), preconditioned by the directions in which
the rows spread most: every step reads the rows twice, whatever K, and nothing of size N^2 is made. As many steps as are
taken here say as much as the exact solution; they are part of the model, as the noise is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, no_type_check

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from sklearn.utils.extmath import row_norms
from torch import Tensor, nn

from extremegp.engine.compiled import in_lanes, matmul
from extremegp.engine.selection import Selection
from extremegp.label_tree.columns import ColumnLists
from extremegp.label_tree.growing import Growing

NOISES = (0.1, 0.3, 1.0, 3.0)
"""Variances of the noise that are tried, beside the mean square of the rows."""
MOST_ROWS, MOST_FEATURES, MOST_ENTRIES = 100_000, 1_000_000, 20_000_000
"""N, D and stored entries of X, up to which a regression on all rows is tried."""
_STEPS = 6
_BLOCK = 64
# Rows with less than that of the largest weight are left out of sums over rows.
_LEAST_WEIGHT = 1e-3
_LEAST_SPREAD = 1e-6


class Solved(NamedTuple):
    """What rows count in the regression at each of some inputs.

    Attributes:
        inputs: which these are.
        weights: w, B x N.
        variance: v = x'x - x'X' (X X' + S)^-1 X x, B.
    """

    inputs: slice
    weights: NDArray[np.float32]
    variance: NDArray[np.float32]


class AllRowsRegression(nn.Module):
    """The regression of the labels on all rows.

    Args:
        n_rows: N.
        n_directions: R, of the preconditioner.

    Attributes:
        noise: s^2.
        directions: orthonormal columns that X X' nearly has as eigenvectors, N x R.
        spreads: its eigenvalues there.
    """

    noise: Tensor
    directions: Tensor
    spreads: Tensor

    def __init__(self, n_rows: int, n_directions: int) -> None:
        super().__init__()
        self._rest: float | None = None
        # P, with X X' ~ P P', its P'P, and of that the eigenvalues and vectors: once rows have come or gone.
        self._projected: Growing | None = None
        self._gram = torch.zeros(0, 0, dtype=torch.float64)
        self._axes: tuple[Tensor, Tensor] | None = None
        self._basis: NDArray[np.float32] | None = None
        self.register_buffer("noise", torch.ones(()))
        self.register_buffer("directions", torch.zeros(n_rows, n_directions))
        self.register_buffer("spreads", torch.ones(n_directions))

    def of(
        self,
        x: scipy.sparse.csr_matrix,
        own: NDArray[np.int64],
        rows: scipy.sparse.csr_matrix,
        columns: ColumnLists,
        counts: NDArray[np.float32],
    ) -> Iterator[Solved]:
        """Weights and variances at inputs, some inputs at a time.

        Args:
            x: inputs, B x D.
            own: the training rows that they are, which are left out for them; -1 of new inputs.
            rows: X, N x D.
            columns: the same by columns.
            counts: c, N.
        """
        squares = row_norms(x, squared=True)
        noises = float(self.noise) / counts
        for start in range(0, x.shape[0], _BLOCK):
            inputs = slice(start, min(start + _BLOCK, x.shape[0]))
            among = own[inputs]
            place = np.flatnonzero(among >= 0)
            left_out = torch.from_numpy(among[place]), torch.from_numpy(place)
            across = torch.from_numpy((rows @ x[inputs].T).toarray())
            across[left_out] = 0
            found = self._solve(across, left_out, rows, columns, torch.from_numpy(noises))
            variance = squares[inputs] - (found * across).sum(0).numpy()
            solved = found.numpy()
            yield Solved(inputs, np.ascontiguousarray(solved.T), np.maximum(variance, 0))

    def add(self, x: scipy.sparse.csr_matrix, columns: ColumnLists) -> None:
        """Go on with more rows, as they lie in the directions of the others.

        Args:
            x: the new rows, B x D.
            columns: X by columns without them.
        """
        projected = self._started()
        if self._basis is None:
            spreads = self.spreads.numpy()
            along = columns.times(self.directions.numpy()) / np.sqrt(spreads)
            # Rows have nothing in directions that they do not spread in.
            self._basis = np.where(spreads > _LEAST_SPREAD * spreads.max(), along, 0).astype(np.float32)
        new = matmul(x, self._basis)
        projected.extend(new)
        self._gram += torch.from_numpy(new.T @ new)
        self._rest = self._axes = None

    def remove(self, row: int) -> None:
        """Go on without a row."""
        projected = self._started()
        gone = torch.from_numpy(projected.array[row].copy())
        projected.cut(row, row + 1)
        self._gram -= torch.outer(gone, gone)
        self._rest = self._axes = None

    def settle(self) -> None:
        """Have the directions of the rows that there are now."""
        if self._projected is not None:
            found = directions_of_rows(self._projected.array)
            self.directions, self.spreads = found["directions"], found["spreads"]
            self._projected = self._basis = self._axes = None

    def _started(self) -> Growing:
        if self._projected is None:
            self._projected = Growing(self.directions.numpy() * np.sqrt(self.spreads.numpy()))
            self._gram = torch.diag(self.spreads.double())
        return self._projected

    def _preconditioner(self, rest: float) -> tuple[Tensor, Tensor]:
        """P and C, with I / (rest + s^2) + P C P' the inverse of X X' + s^2 I, were it constant outside directions."""
        noise = float(self.noise)
        if self._projected is None:
            return self.directions, torch.diag(1 / (self.spreads + noise) - 1 / (rest + noise))
        self._axes = self._axes or _axes(self._gram)
        spreads, rotation = self._axes
        along = (1 / (spreads + noise) - 1 / (rest + noise)) / spreads
        return torch.from_numpy(self._projected.array), ((rotation * along) @ rotation.T).float()

    def choose(self, mean_square: float, error: Callable[[], float]) -> Selection:
        """Take the noise with the least error at training rows, each left out.

        Args:
            mean_square: of the rows, which noises are tried beside.
            error: what the regression with its present noise has, a sum of squares.

        Returns:
            What was tried.
        """
        errors = {}
        for relative in NOISES:
            self.noise.fill_(relative * mean_square)
            errors[relative * mean_square] = error()
        best = min(errors, key=lambda noise: errors[noise])
        self.noise.fill_(best)
        what = "squared error of the candidates of training rows left out, least"
        return Selection.of(what, {"noise of all rows": best}, [((noise,), found) for noise, found in errors.items()])

    def _solve(
        self,
        target: Float[Tensor, "N B"],
        left_out: tuple[Tensor, Tensor],
        rows: scipy.sparse.csr_matrix,
        columns: ColumnLists,
        noises: Float[Tensor, " N"],
    ) -> Float[Tensor, "N B"]:
        """(X X' + S)^-1 target, of each column by itself and without the rows that are left out there.

        As many steps without a row are as good as those for a new input, which a column of the inverse would not be.
        """
        noise = float(self.noise)
        # The mean square of the rows: the eigenvalues of X X' outside the directions, more or less.
        rest = self._rest = self._rest or float(np.square(rows.data, dtype=np.float64).sum() / rows.shape[0])
        directions, along = self._preconditioner(rest)

        def preconditioned(vectors: Tensor) -> Tensor:
            changed = vectors / (rest + noise) + directions @ (along @ (directions.T @ vectors))
            changed[left_out] = 0
            return changed

        found, residual = torch.zeros_like(target), target.clone()
        step = direction = preconditioned(residual)
        size = (residual * step).sum(0)
        for _ in range(_STEPS):
            image = torch.from_numpy(matmul(rows, columns.times(direction.numpy())))
            image += noises.unsqueeze(1) * direction
            image[left_out] = 0
            length = size / (direction * image).sum(0).clamp(min=1e-30)
            found += length * direction
            residual -= length * image
            step = preconditioned(residual)
            before, size = size, (residual * step).sum(0)
            direction = step + (size / before.clamp(min=1e-30)) * direction
        return found

    def is_sound(self) -> bool:
        """Whether the noise is positive and the spreads are none below zero."""
        return bool(self.noise > 0) and bool((self.spreads >= 0).all())


def directions_of_rows(projected: NDArray[np.float32]) -> dict[str, Tensor]:
    """The buffers of an `AllRowsRegression` of rows in their principal directions, N x R."""
    projections = torch.from_numpy(projected)
    spreads, rotation = _axes((projections.T @ projections).double())
    directions = projections @ (rotation / spreads.sqrt()).float()
    return {"noise": torch.ones(()), "directions": directions, "spreads": spreads.float()}


def _axes(gram: Float[Tensor, "R R"]) -> tuple[Float[Tensor, " R"], Float[Tensor, "R R"]]:
    """Squared lengths of projections P along their principal axes, none zero, and the axes as columns, by P'P."""
    spreads, rotation = torch.linalg.eigh(gram)
    return spreads.clamp(min=1e-12 * float(spreads[-1])), rotation


@in_lanes
@no_type_check
def sums_over_rows(
    lane: int, n_lanes: int, weights: Any, y_indptr: Any, y_labels: Any, frequencies: Any, ends: Any, labels: Any,
    found: Any,
) -> None:  # fmt: skip
    """Of some labels of every input, t_k = mu_k + sum_i w_i (y_ik - mu_k).

    Args:
        lane: which part of the work.
        n_lanes: of how many.
        weights: w, B x N.
        y_indptr: with `y_labels` the labels of the training rows, N x K.
        y_labels: see `y_indptr`.
        frequencies: mu, K.
        ends: with `labels` the labels of the inputs, B + 1.
        labels: see `ends`.
        found: result, for each of the labels.
    """
    sums = np.zeros(len(frequencies), np.float32)
    for i in range(lane, len(weights), n_lanes):
        rest, largest = np.float32(1), np.float32(0)
        for row in range(weights.shape[1]):
            rest -= weights[i, row]
            largest = max(largest, abs(weights[i, row]))
        sums[:] = 0
        for row in range(weights.shape[1]):
            weight = weights[i, row]
            if abs(weight) > _LEAST_WEIGHT * largest:
                for j in range(y_indptr[row], y_indptr[row + 1]):
                    sums[y_labels[j]] += weight
        for q in range(ends[i], ends[i + 1]):
            found[q] = sums[labels[q]] + rest * frequencies[labels[q]]
