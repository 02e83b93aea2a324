"""Rows in the coordinates of a regression's kernels, and their covariances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch
from sklearn.utils.extmath import row_norms
from torch import Tensor

from extremegp.engine.blocks import Columns
from extremegp.engine.families import covariances_of
from extremegp.engine.sparse import Inputs, Matrix, SparseRows

_BLOCK_ELEMENTS = 1 << 24


class ScaledRows:
    """Rows in the coordinates where the kernel of a block is a function of ||x - z||, as CSR or as an array.

    Args:
        rows: the columns of every block by themselves.
        parts: where these stand among all columns.
        scale: by which columns are multiplied, D.
        shares: of the blocks in their sum.
        family: of the kernels, its number among `FAMILIES`.
        lone: whether a row without any entry in a sparse block has no covariance with others there.
    """

    def __init__(
        self,
        rows: Sequence[Any],
        parts: Sequence[Columns],
        scale: Tensor,
        shares: Sequence[float],
        *,
        family: int = 0,
        lone: bool = False,
    ) -> None:
        self.parts, self.scale, self.shares, self.family, self.lone = parts, scale, shares, family, lone
        scaled = [_scaled(x, scale[part.range], dense=part.dense) for x, part in zip(rows, parts, strict=True)]
        self.x, self.norms = ([*of_blocks] for of_blocks in zip(*scaled, strict=True))

    def __len__(self) -> int:
        return len(self.norms[0])

    def of_rows(self, x: Matrix | Inputs) -> ScaledRows:
        """Other rows in the same coordinates."""
        rows = [part.of_matrix(x) for part in self.parts]
        return ScaledRows(rows, self.parts, self.scale, self.shares, family=self.family, lone=self.lone)

    def covariances(self, points: ScaledRows) -> Iterator[Tensor]:
        """k(x_i, z_j), a block of rows at a time."""
        step = max(1, _BLOCK_ELEMENTS // max(1, len(points)))
        transposed = [z.T if part.dense else z.T.tocsr() for z, part in zip(points.x, self.parts, strict=True)]
        for start in range(0, max(1, len(self)), step):
            rows = slice(start, start + step)
            total = self._of_block(0, points, transposed[0], rows)
            if len(self.shares) > 1:
                total *= self.shares[0]
            for b in range(1, len(self.shares)):
                total += self._of_block(b, points, transposed[b], rows).mul_(self.shares[b])
            yield total

    def _of_block(self, b: int, points: ScaledRows, transposed: Any, rows: slice) -> Tensor:
        exponent = self.x[b][rows] @ transposed
        exponent = exponent if self.parts[b].dense else torch.from_numpy(exponent.toarray())
        exponent -= 0.5 * self.norms[b][rows, None]
        exponent -= 0.5 * points.norms[b]
        total = covariances_of(exponent.clamp_(max=0.0), self.family)
        if self.lone and not self.parts[b].dense:
            total *= (self.norms[b][rows, None] > 0) & (points.norms[b] > 0)
        return total


def _scaled(x: Matrix | Inputs, scale: Tensor, *, dense: bool) -> tuple[Any, Tensor]:
    """Rows times a scale, as an array or as CSR, and their squared norms."""
    if dense:
        array = as_array(x).to(scale.device) * scale
        return array, array.square().sum(1)
    matrix = scipy.sparse.csr_matrix(as_csr(x).multiply(scale.numpy()))
    return matrix, torch.from_numpy(row_norms(matrix, squared=True))


def as_csr(x: Matrix | Inputs) -> scipy.sparse.csr_matrix:
    """Rows with only their entries stored."""
    if isinstance(x, SparseRows):
        arrays = (x.values.cpu().numpy(), x.columns.cpu().numpy(), x.offsets.cpu().numpy())
        return scipy.sparse.csr_matrix(arrays, shape=x.shape)
    return scipy.sparse.csr_matrix(x.cpu().numpy() if isinstance(x, Tensor) else x)


def as_array(x: Matrix | Inputs) -> Tensor:
    """Rows as a float32 array."""
    if isinstance(x, Tensor):
        return x.float()
    array = as_csr(x).toarray() if isinstance(x, SparseRows) or scipy.sparse.issparse(x) else x
    # Arrays that are mapped from a file are not to be written.
    return torch.from_numpy(np.require(array, requirements="W")).float()
