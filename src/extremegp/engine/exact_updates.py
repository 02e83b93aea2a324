"""Regressions in closed form that rows come to and go from: what a fit works out, changed by one row at a time.

A row that comes or goes changes the matrix of the normal equations by a rank of one, and its inverse with it (the
formula of Sherman and Morrison for features, a border for covariances of rows): the same as a fit to the rows that
there are then, at the square of the size in place of its cube.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

_MOST_PENDING = 64
_LEAST_LEFT = 1e-6  # of the precision of a row's own direction, once the row is gone


class Change(NamedTuple):
    """What a solution changes by: the outer product of two vectors, M and T.

    Attributes:
        direction: H^-1 a of the row, before.
        amounts: of the targets.
        factor: by how much of the outer product of the direction with itself H^-1 is less.
    """

    direction: Float[Tensor, " M"]
    amounts: Float[Tensor, " T"]
    factor: float


class RidgeUpdates:
    """B = H^-1 A'WY with H = A'WA + s2 I, for features A of rows, their weights W and targets Y.

    The last changes are kept as outer products, which cost M each, and are multiplied out together.

    Args:
        noise: s2.
        pieces: features (n x M), weights (n) and targets (n x T) of the rows, some rows at a time, in float64.
    """

    def __init__(self, noise: float, pieces: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
        precision, projected = torch.zeros(1).double(), torch.zeros(1).double()
        for a, weights, targets in pieces:
            weighed = a * weights.unsqueeze(1)
            precision = precision + weighed.T @ a
            projected = projected + weighed.T @ targets
        precision.diagonal().add_(noise)
        factor = torch.linalg.cholesky(precision)
        self._inverse = torch.cholesky_inverse(factor)
        self._solution = torch.cholesky_solve(projected, factor)
        self._begin()

    def _begin(self) -> None:
        m, t = self._solution.shape
        self._n_pending = 0
        self._directions = self._inverse.new_zeros(_MOST_PENDING, m)
        self._factors = self._inverse.new_zeros(_MOST_PENDING)
        self._amounts = self._inverse.new_zeros(_MOST_PENDING, t)

    @property
    def n_pending(self) -> int:
        """Changes since all was multiplied out."""
        return self._n_pending

    def change(self, a: Float[Tensor, " M"], targets: Float[Tensor, " T"], weight: float) -> Change | None:
        """Take in a row, or let go of one by the negative of its weight; None where too little would be left of H.

        Of infinite weight and without targets, it is a direction that the solution shall not have from then on.
        """
        a, n = a.double(), self._n_pending
        directions, amounts = self._directions[:n], self._amounts[:n]
        along = directions @ a
        direction = self._inverse @ a - directions.T @ (self._factors[:n] * along)
        share = float(a @ direction)
        if math.isinf(weight):
            factor = 1 / share
        else:
            left = 1 + weight * share
            if left < _LEAST_LEFT:
                return None
            factor = weight / left
        added = factor * (targets.double() - (self._solution.T @ a + amounts.T @ along))
        self._directions[n], self._factors[n], self._amounts[n] = direction, factor, added
        self._n_pending += 1
        if self._n_pending == _MOST_PENDING:
            self._multiply_out()
        return Change(direction, added, factor)

    def solution(self) -> Float[Tensor, "M T"]:
        """B."""
        self._multiply_out()
        return self._solution

    def inverse(self) -> Float[Tensor, "M M"]:
        """H^-1."""
        self._multiply_out()
        return self._inverse

    def place_targets(self, places: Tensor, n_targets: int) -> None:
        """Have more targets: those of today at these places, and others that are zero for every row."""
        solution = self.solution()
        self._solution = solution.new_zeros(len(solution), n_targets)
        self._solution[:, places] = solution
        self._begin()

    def rotate(self) -> tuple[Float[Tensor, "M M"], Float[Tensor, " M"]]:
        """Take coordinates in which H is diagonal: the rotation V, a -> V'a, and the diagonal of H^-1."""
        values, rotation = torch.linalg.eigh(self.inverse())
        values = values.clamp(min=0.0)
        self._inverse, self._solution = torch.diag(values), rotation.T @ self._solution
        return rotation, values

    def _multiply_out(self) -> None:
        n, self._n_pending = self._n_pending, 0
        if n:
            directions = self._directions[:n]
            self._inverse.addmm_((directions * self._factors[:n, None]).T, directions, alpha=-1)
            self._solution.addmm_(directions.T, self._amounts[:n])


class GramUpdates:
    """R = A^-1 Y with A the covariance of rows, noise included, and Y their targets.

    Rows have slots; the last takes the slot of one that goes.

    Args:
        covariance: A, N x N, in float64.
        targets: Y, N x T.
    """

    def __init__(self, covariance: Float[Tensor, "N N"], targets: Float[Tensor, "N T"]) -> None:
        factor = torch.linalg.cholesky(covariance)
        self._size = len(covariance)
        self._inverse = torch.cholesky_inverse(factor)
        self._solution = torch.cholesky_solve(targets, factor)

    def __len__(self) -> int:
        return self._size

    def solution(self) -> Float[Tensor, "N T"]:
        """R, by slots."""
        return self._solution[: self._size]

    def inverse(self) -> Float[Tensor, "N N"]:
        """A^-1, by slots."""
        return self._inverse[: self._size, : self._size]

    def add(self, covariances: Float[Tensor, " N"], own: float, targets: Float[Tensor, " T"]) -> None:
        """Take in a row, at the last slot.

        Args:
            covariances: with the rows that there are, by slots.
            own: of itself, noise included.
            targets: of it.
        """
        self._make_room()
        n = self._size
        direction = self.inverse() @ covariances
        left = own - float(covariances @ direction)
        own_solution = (targets - self.solution().T @ covariances) / left
        self.solution().addr_(direction, own_solution, alpha=-1)
        self.inverse().addr_(direction, direction, alpha=1 / left)
        self._inverse[n, :n] = self._inverse[:n, n] = direction / -left
        self._inverse[n, n] = 1 / left
        self._solution[n] = own_solution
        self._size += 1

    def remove(self, slot: int) -> None:
        """Let go of the row in a slot."""
        last = self._size - 1
        for matrix in (self.inverse(), self.inverse().T, self.solution()):
            matrix[[slot, last]] = matrix[[last, slot]]
        column, own = self._inverse[:last, last].clone(), float(self._inverse[last, last])
        solution = self._solution[last].clone()
        for rest in (self._inverse[last], self._inverse[:, last], self._solution[last]):
            rest.zero_()
        self._size = last
        self.solution().addr_(column, solution, alpha=-1 / own)
        self.inverse().addr_(column, column, alpha=-1 / own)

    def place_targets(self, places: Tensor, n_targets: int) -> None:
        """As `RidgeUpdates.place_targets`."""
        solution = self._solution
        self._solution = solution.new_zeros(len(solution), n_targets)
        self._solution[:, places] = solution

    def _make_room(self) -> None:
        if self._size < len(self._inverse):
            return
        room = self._size + max(_MOST_PENDING, self._size // 8)
        inverse, solution = self._inverse, self._solution
        self._inverse = inverse.new_zeros(room, room)
        self._inverse[: self._size, : self._size] = inverse
        self._solution = solution.new_zeros(room, solution.shape[1])
        self._solution[: self._size] = solution
