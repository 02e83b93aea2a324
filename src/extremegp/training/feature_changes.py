"""A regression on features by way of landmarks, as rows come and go."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import scipy.sparse
import torch
from jaxtyping import Float
from torch import Tensor

from extremegp.engine.exact_updates import Change, RidgeUpdates
from extremegp.engine.landmarks import Landmarks
from extremegp.training.known_rows import KnownRows, targets_of

_PIECE = 1024

FeatureRows = tuple[Tensor, Tensor, scipy.sparse.csr_matrix]
"""Features (n x M), weights and labels of rows."""


class FeatureChanges:
    """A ridge regression of labels, and of ones, on features by way of landmarks, which are worked out in float64."""

    def __init__(self, landmarks: Landmarks, noise: float, rows: KnownRows) -> None:
        self.landmarks, self.noise = landmarks, noise
        n_rows, m = rows.x.shape[0], len(landmarks)
        self._projected = torch.zeros(m, rows.y.shape[1] + 1).double()

        def pieces() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
            for start, stop in pairwise([*range(0, n_rows, _PIECE), n_rows]):
                own, weights = landmarks.exactly(rows.x[start:stop]), torch.from_numpy(rows.weights[start:stop])
                targets = targets_of(rows.y[start:stop])
                self._projected.addmm_((own * weights.unsqueeze(1)).T, targets)
                yield own, weights, targets

        self.ridge = RidgeUpdates(noise, pieces())
        self._changes: list[Change] | None = None

    def taken(self) -> list[Change] | None:
        """The changes since it was last asked; None where there were others than those, at first."""
        changes, self._changes = self._changes, []
        return changes

    def add(self, row: KnownRows, targets: Float[Tensor, " T"]) -> Change:
        a, weight = self.landmarks.exactly(row.x)[0], float(row.weights[0])
        change = self._note(self.ridge.change(a, targets, weight))
        self._projected.addr_(a, targets, alpha=weight)
        return change

    def remove(self, row: KnownRows, targets: Float[Tensor, " T"], landmark: int | None) -> Float[Tensor, " M"] | bool:
        """Let go of a row; the direction of its landmark if it was one, False where too little would be left."""
        a, weight = self.landmarks.exactly(row.x)[0], float(row.weights[0])
        change = self.ridge.change(a, targets, -weight)
        direction = True if landmark is None else self.landmarks.drop(landmark)
        if change is None:
            return False
        self._note(change)
        self._projected.addr_(a, targets, alpha=-weight)
        if isinstance(direction, Tensor):
            self._note(self.ridge.change(direction, torch.zeros_like(targets), math.inf))
        return direction

    def place_targets(self, places: Tensor, n_labels: int) -> None:
        self.ridge.place_targets(places, n_labels + 1)
        projected = self._projected
        self._projected = projected.new_zeros(len(projected), n_labels + 1)
        self._projected[:, places] = projected
        self._changes = None

    def explained(self, frequencies: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
        """Of the sums of squares of the labels around their frequencies, what the features explain."""
        return (self.centred(frequencies) * _centred(self.ridge.solution(), frequencies)).sum(0)

    def centred(self, frequencies: Float[Tensor, " K"]) -> Float[Tensor, "M K"]:
        """A'W (Y - mu)."""
        return _centred(self._projected, frequencies)

    def of_rows(self, rows: KnownRows) -> FeatureRows:
        """Features, weights and labels."""
        return self.landmarks.exactly(rows.x), torch.from_numpy(rows.weights), rows.y

    def left_out(self, rows: FeatureRows, frequencies: Float[Tensor, " K"]) -> Float[Tensor, "n K"]:
        return without_own(rows, frequencies, self.ridge.inverse(), _centred(self.ridge.solution(), frequencies))

    def variance_left_out(self, rows: FeatureRows) -> Float[Tensor, " n"]:
        a, hat = rows[0], _leverages(rows, self.ridge.inverse())
        own = self.noise * ((a @ self.ridge.inverse()) * a).sum(1) / (1 - hat.squeeze(1))
        return (1 - a.square().sum(1)).clamp(min=0.0) + own

    def rotate(self) -> tuple[Tensor, Tensor]:
        rotation, values = self.ridge.rotate()
        self._projected = rotation.T @ self._projected
        self._changes = None
        return rotation, values

    def _note(self, change: Change | None) -> Change:
        assert change is not None
        if self._changes is not None:
            self._changes.append(change)
        return change


def without_own(
    rows: FeatureRows,
    frequencies: Float[Tensor, " K"],
    inverse: Float[Tensor, "M M"],
    coefficients: Float[Tensor, "M K"],
) -> Float[Tensor, "n K"]:
    """t_k = mu_k + a'b_k of rows that a ridge regression was fitted to, each as if it had not been.

    Args:
        rows: some of them.
        frequencies: mu.
        inverse: of A'WA and the noise.
        coefficients: b.
    """
    hat = _leverages(rows, inverse)
    return (frequencies + rows[0] @ coefficients - hat * targets_of(rows[2])[:, :-1]) / (1 - hat)


def _leverages(rows: FeatureRows, inverse: Float[Tensor, "M M"]) -> Float[Tensor, "n 1"]:
    a, weights, _ = rows
    return (weights * ((a @ inverse) * a).sum(1)).clamp(max=1 - 1e-4).unsqueeze(1)


def _centred(columns: Float[Tensor, "M T"], frequencies: Float[Tensor, " K"]) -> Float[Tensor, "M K"]:
    return columns[:, :-1] - torch.outer(columns[:, -1], frequencies)
