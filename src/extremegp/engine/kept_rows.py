"""Rows that a model keeps, and their covariances with other rows under a kernel that is learnt in closed form."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor

from extremegp.engine.blocks import Block, columns_of
from extremegp.engine.families import FAMILIES
from extremegp.engine.lengthscales import Learnt
from extremegp.engine.linalg import JitterWarning, inverse_cholesky
from extremegp.engine.part import Part
from extremegp.engine.scaled_rows import ScaledRows, as_array, as_csr
from extremegp.engine.sparse import Inputs, Matrix, fill

_JITTER = 1e-5  # of a covariance with ones on its diagonal


class KeptRows(Part):
    """M rows Z and a kernel of sum_d w_d (x_d - z_d)^2, of one of `FAMILIES`, or a sum of such kernels of blocks.

    Args:
        n_points: M.
        n_stored: stored entries of the rows; None to keep them as an array.
        n_features: D.
        blocks: blocks of the features, each of which then has a kernel of its own; the kernel is their sum weighted by
            `shares`, which add up to one. Dense blocks are kept as an array, others by their stored entries.
        lone: whether a row without any feature of a sparse block is like no other row in that block, whatever the
            distance: nothing is known of it.
    """

    points: Float[Tensor, "M n_dense"]
    rows: Int[Tensor, " n_stored"]
    columns: Int[Tensor, " n_stored"]
    values: Float[Tensor, " n_stored"]
    weights: Float[Tensor, " D"]
    family: Int[Tensor, ""]
    shares: Float[Tensor, " n_blocks"]

    def __init__(
        self,
        n_points: int,
        n_stored: int | None,
        n_features: int,
        *,
        blocks: Sequence[Block] = (),
        lone: bool = False,
    ) -> None:
        super().__init__()
        self.n_points, self.lone = n_points, lone
        self.blocks = tuple(blocks) or (Block(n_features, dense=n_stored is None),)
        if n_dense := sum(block.n_features for block in self.blocks if block.dense):
            self.register_buffer("points", torch.zeros(n_points, n_dense))
        if n_stored is not None:
            self.register_buffer("rows", torch.zeros(n_stored, dtype=torch.int64))
            self.register_buffer("columns", torch.zeros(n_stored, dtype=torch.int64))
            self.register_buffer("values", torch.zeros(n_stored))
        self.register_buffer("weights", torch.ones(n_features))
        self.register_buffer("family", torch.tensor(0))
        if len(self.blocks) > 1:
            self.register_buffer("shares", torch.full((len(self.blocks),), 1 / len(self.blocks)))
        self.index_limits = {"rows": n_points, "columns": n_features, "family": len(FAMILIES)}
        self.value_limits = {"weights": (0.0, math.inf), "shares": (0.0, math.inf)}
        self._scaled: tuple[ScaledRows, tuple[Any, ...]] | None = None

    def __len__(self) -> int:
        return self.n_points

    def expect(self, names: Collection[str]) -> None:
        """Models of earlier versions know the first family alone."""
        if "family" not in names:
            self._buffers.pop("family", None)

    @torch.no_grad()
    def set_kernel(self, learnt: Learnt) -> None:
        """Take weights, family and shares of the blocks that were learnt."""
        fill(self.weights, np.exp(learnt.log_weights))
        self.family.fill_(learnt.family)
        if len(self.blocks) > 1:
            fill(self.shares, learnt.shares)

    def covariances(self, x: Matrix | Inputs) -> Iterator[Float[Tensor, "n M"]]:
        """k(x_i, z_j) of rows x, a block of rows at a time."""
        points = self.scaled_points()
        return points.of_rows(x).covariances(points)

    def gram(self) -> Float[Tensor, "M M"]:
        """k(z_i, z_j)."""
        points = self.scaled_points()
        gram = torch.cat(list(points.covariances(points)))
        # Each is as like itself as can be, lone or not.
        gram.fill_diagonal_(1.0)
        return gram

    def whitener(self) -> Float[Tensor, "M M"]:
        """L^-T, K_Z = L L': k_Z(x)' L^-T are the whitened features of rows x."""
        gram = self.gram().double()
        gram.diagonal().add_(_JITTER)
        with warnings.catch_warnings():
            # Rows that are nearly the same need more of it, and features then lack what it adds.
            warnings.simplefilter("ignore", JitterWarning)
            return inverse_cholesky(gram, relative_jitter=0.0, dtype=self.weights.dtype).T

    @torch.no_grad()
    def keep(self, points: Matrix) -> None:
        """Set the rows."""
        parts = columns_of(self.blocks)
        if arrays := [as_array(part.of_matrix(points)) for part in parts if part.dense]:
            self.points.copy_(torch.cat(arrays, dim=1))
        if stored := [as_csr(part.of_matrix(points)).tocoo() for part in parts if not part.dense]:
            first = [part.start for part in parts if not part.dense]
            columns = np.concatenate([kept.col + start for kept, start in zip(stored, first, strict=True)])
            rows, values = (np.concatenate([getattr(kept, name) for kept in stored]) for name in ("row", "data"))
            for buffer, array in ((self.rows, rows), (self.columns, columns), (self.values, values)):
                buffer.copy_(torch.from_numpy(array))

    @torch.no_grad()
    def keep_under(self, points: Matrix, kernel: KeptRows) -> None:
        """Set the rows, under the kernel of others."""
        self.keep(points)
        self.weights.copy_(kernel.weights)
        self.family.copy_(kernel.family)
        if len(self.blocks) > 1:
            self.shares.copy_(kernel.shares)

    def scaled_points(self) -> ScaledRows:
        """The rows in the coordinates of the kernel."""
        # Loading replaces or overwrites the buffers; a copy of what the points were made of tells.
        held = [
            buffer
            for name in ("points", "values", "weights", "family", "shares")
            if (buffer := self._buffers.get(name)) is not None
        ]
        source = tuple(of for buffer in held for of in (buffer, buffer._version))
        if self._scaled is None or not all(a is b for a, b in zip(self._scaled[1], source, strict=True)):
            shares = self.shares.tolist() if len(self.blocks) > 1 else [1.0]
            scale = self.weights.sqrt().cpu()
            family = int(self.family) if "family" in self._buffers else 0
            parts = columns_of(self.blocks)
            self._scaled = ScaledRows(self._kept(), parts, scale, shares, family=family, lone=self.lone), source
        return self._scaled[0]

    def _kept(self) -> list[Any]:
        """The rows, the columns of every block by themselves."""
        parts, kept, start, matrix = columns_of(self.blocks), [], 0, None
        if "values" in self._buffers:
            shape = (self.n_points, len(self.weights))
            entries = (self.values.cpu().numpy(), (self.rows.cpu().numpy(), self.columns.cpu().numpy()))
            matrix = scipy.sparse.csr_matrix(entries, shape=shape)
        for part in parts:
            if part.dense:
                kept.append(self.points[:, start : start + part.stop - part.start])
                start += part.stop - part.start
            else:
                kept.append(part.of_matrix(matrix))
        return kept
