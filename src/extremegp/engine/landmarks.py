"""Features of inputs by way of rows of the training data: the coordinates in which a Gaussian process is linear."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.blocks import Block
from extremegp.engine.kept_rows import KeptRows
from extremegp.engine.linalg import principal, principal_of
from extremegp.engine.part import Part, StepSizes
from extremegp.engine.sparse import Inputs, Matrix

_PIECE = 4096  # rows


class Landmarks(Part):
    """a(x) = W k_Z(x), with M rows Z of the training data, all of them where they are few, and a fixed kernel k.

    W whitens: a(x)'a(z) is k(x, z) as far as it goes through Z, and 1 - a'a is what it lacks of k(x, x) = 1. And W
    rotates such that the features of the training rows have a diagonal sum of squares A'A: in these coordinates ridge
    regression of any label is a division, and the covariance (I + A' diag(lambda) A)^-1 of a posterior is diagonal
    wherever the curvature lambda of the label is the same for all rows, and nearly so elsewhere.

    Args:
        n_points: M.
        n_stored: stored entries of the rows; None to keep them as an array.
        n_features: D.
        blocks: blocks of the features.
        held: whether what is trained holds the features of all rows.
    """

    basis: Float[Tensor, "M M"]

    def __init__(
        self,
        n_points: int,
        n_stored: int | None,
        n_features: int,
        *,
        blocks: Sequence[Block] = (),
        held: bool = True,
    ) -> None:
        super().__init__()
        self.held = held
        self.kept = KeptRows(n_points, n_stored, n_features, blocks=blocks, lone=True)
        self.register_buffer("basis", torch.zeros(n_points, n_points))
        # What the basis is rounded from, once landmarks were dropped.
        self.unrounded: Tensor | None = None
        self._double: tuple[Tensor, int, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.kept)

    @torch.no_grad()
    def rotate(self, x: Matrix, weights: NDArray[np.float64] | None = None) -> Float[Tensor, "N M"]:
        """Set W from the landmarks and the rows trained on; the features of these.

        Args:
            x: the rows, N x D.
            weights: what each counts in A'A; None for 1.
        """
        like = self.basis
        whitener = self.kept.whitener().to(like)
        features = torch.cat([block.to(like) @ whitener for block in self.kept.covariances(x)])
        rotation = principal(features, None if weights is None else torch.from_numpy(weights).to(like))
        like.copy_(whitener @ rotation)
        for start in range(0, len(features), _PIECE):
            rows = slice(start, start + _PIECE)
            features[rows] = features[rows] @ rotation
        return features

    @torch.no_grad()
    def turn(self, x: Matrix, weights: NDArray[np.float64] | None = None) -> None:
        """Set W as `rotate` does, without ever holding the features of all rows."""
        like = self.basis
        like.copy_(self.kept.whitener().to(like))
        of_pieces: Iterable[Tensor | None] = itertools.repeat(None)
        if weights is not None:
            of_pieces = torch.split(torch.from_numpy(weights).to(like), _PIECE)
        like.copy_(like @ principal_of(zip(self.pieces(x), of_pieces, strict=False)))

    def pieces(self, x: Matrix) -> Iterator[Float[Tensor, "n M"]]:
        """a(x) of many rows, some at a time."""
        return (self._nearly(x[start : start + _PIECE]) for start in range(0, x.shape[0], _PIECE))

    @torch.no_grad()
    def forward(self, x: Matrix | Inputs) -> Float[Tensor, "N M"]:
        """a(x) of rows.

        On a CPU they are worked out in float64: to whiten is to divide by the roots of small eigenvalues, so that what
        float32 rounds off of covariances would be in the third digit of small features, and depend on how many rows are
        worked out at once.
        """
        return self.exactly(x).to(self.basis) if self.basis.device.type == "cpu" else self._nearly(x)

    def _nearly(self, x: Matrix | Inputs) -> Float[Tensor, "N M"]:
        """a(x) of rows in float32."""
        return torch.cat([block.to(self.basis) @ self.basis for block in self.kept.covariances(x)])

    @torch.no_grad()
    def exactly(self, x: Matrix | Inputs) -> Float[Tensor, "N M"]:
        """a(x) of rows in float64: the same whatever rows they are worked out beside."""
        basis = self.in_double()
        return torch.cat([block.cpu() @ basis for block in self.kept.covariances(x, torch.float64)])

    def unwhitened(self, coefficients: Float[Tensor, "M *P"]) -> Float[Tensor, "M *P"]:
        """W c: a(x)'c is k_Z(x)' W c."""
        basis = self.in_double()
        return basis @ coefficients

    def in_double(self) -> Float[Tensor, "M M"]:
        """The basis in float64, made once."""
        if self.unrounded is not None:
            return self.unrounded
        basis, known = self.basis, self._double
        if known is None or known[0] is not basis or known[1] != basis._version:
            known = self._double = basis, basis._version, basis.double().cpu()
        return known[2]

    @torch.no_grad()
    def drop(self, row: int) -> Float[Tensor, " M"]:
        """Leave nothing of a landmark, and go on with the others: a'a is then k as far as it goes through these.

        The features keep their number, and lose the one direction, of length 1, that is returned: W W' = K_Z^-1 becomes
        that of the others.
        """
        basis = self.in_double()
        self._double = None
        direction: Tensor = basis[row] / basis[row].norm()
        basis.addr_(basis @ direction, direction, alpha=-1)
        basis[row] = 0
        self.unrounded = basis
        self.basis.copy_(basis)
        self.kept.blank(row)
        return direction

    def fit_bytes(self, n_rows: int) -> int:
        # Features of rows; K_Z, its factors and the eigenvectors.
        return 4 * (n_rows if self.held else min(n_rows, 3 * _PIECE)) * len(self) + 8 * 6 * len(self) ** 2

    def step_elements(self, sizes: StepSizes) -> int:
        return 3 * sizes.rows * len(self) if self.held else 0


class LandmarkCovariances(Part):
    """k_Z(x), what the features of landmarks are before they are whitened.

    Args:
        landmarks: Z.
    """

    def __init__(self, landmarks: Landmarks) -> None:
        super().__init__()
        self.landmarks = landmarks

    @torch.no_grad()
    def forward(self, x: Matrix | Inputs) -> Float[Tensor, "N M"]:
        """Of rows, in float64."""
        return torch.cat(list(self.landmarks.kept.covariances(x, torch.float64)))
