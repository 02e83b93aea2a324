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
from numpy.typing import NDArray
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
        self._scaled: dict[torch.dtype, tuple[ScaledRows, tuple[Any, ...]]] = {}

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

    def covariances(self, x: Matrix | Inputs, dtype: torch.dtype = torch.float32) -> Iterator[Float[Tensor, "n M"]]:
        """k(x_i, z_j) of rows x, a block of rows at a time.

        In float64 they are the same whatever rows they are worked out beside.
        """
        points = self.scaled_points(dtype)
        return points.of_rows(x).covariances(points)

    def gram(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "M M"]:
        """k(z_i, z_j)."""
        points = self.scaled_points(dtype)
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

    def known(self, noise: float = 1.0) -> Learnt:
        """Weights, family and shares of the blocks, as `set_kernel` takes them, with the variance of a noise."""
        shares = self.shares.cpu().numpy() if len(self.blocks) > 1 else np.ones(1, np.float32)
        log_weights = self.weights.log().float().cpu().numpy()
        return Learnt(log_weights, noise, shares, int(self.family) if "family" in self._buffers else 0)

    @torch.no_grad()
    def keep_under(self, points: Matrix, kernel: KeptRows) -> None:
        """Set the rows, under the kernel of others."""
        self.keep(points)
        self.weights.copy_(kernel.weights)
        self.family.copy_(kernel.family)
        if len(self.blocks) > 1:
            self.shares.copy_(kernel.shares)

    def of_others(self, x: Matrix) -> KeptRows:
        """Other rows under the same kernel."""
        others = KeptRows(x.shape[0], self._n_stored(x), len(self.weights), blocks=self.blocks, lone=self.lone)
        others.set_kernel(self.known())
        others.keep(x)
        return others

    @torch.no_grad()
    def append(self, x: Matrix) -> None:
        """Keep more rows, after those that there are."""
        more = KeptRows(x.shape[0], self._n_stored(x), len(self.weights), blocks=self.blocks, lone=self.lone)
        more.keep(x)
        if "values" in self._buffers:
            more.rows += self.n_points
        for name in ("points", "rows", "columns", "values"):
            if name in self._buffers:
                self._buffers[name] = torch.cat([getattr(self, name), getattr(more, name)])
        self._resize(self.n_points + x.shape[0])

    @torch.no_grad()
    def remove(self, row: int) -> None:
        """Let go of a row; those after it move up."""
        if "points" in self._buffers:
            self.points = torch.cat([self.points[:row], self.points[row + 1 :]])
        if "values" in self._buffers:
            stay = self.rows != row
            self.rows, self.columns, self.values = self.rows[stay], self.columns[stay], self.values[stay]
            self.rows -= (self.rows > row).long()
        self._resize(self.n_points - 1)

    @torch.no_grad()
    def blank(self, row: int) -> None:
        """Leave nothing of a row but its place."""
        if "points" in self._buffers:
            self.points[row] = 0
        if "values" in self._buffers:
            own = self.rows == row
            self.columns[own], self.values[own] = 0, 0.0

    def kept(self) -> scipy.sparse.csr_matrix | NDArray[np.float32]:
        """The rows: an array where all features are dense."""
        parts: list[Any] = [part if scipy.sparse.issparse(part) else part.cpu().numpy() for part in self._kept()]
        if not any(map(scipy.sparse.issparse, parts)):
            return np.concatenate(parts, axis=1)
        return scipy.sparse.csr_matrix(scipy.sparse.hstack(parts), dtype=np.float32)

    @property
    def n_stored(self) -> int | None:
        """Stored entries of the rows; None where they are an array alone."""
        return len(self.values) if "values" in self._buffers else None

    def _n_stored(self, x: Matrix) -> int | None:
        sparse = [part for part in columns_of(self.blocks) if not part.dense]
        return sum(as_csr(part.of_matrix(x)).nnz for part in sparse) if sparse else None

    def _resize(self, n_points: int) -> None:
        self.n_points = n_points
        self.index_limits = {**self.index_limits, "rows": n_points}
        self._scaled = {}

    def scaled_points(self, dtype: torch.dtype = torch.float32) -> ScaledRows:
        """The rows in the coordinates of the kernel."""
        # Loading replaces or overwrites the buffers; a copy of what the points were made of tells.
        held = [
            buffer
            for name in ("points", "values", "weights", "family", "shares")
            if (buffer := self._buffers.get(name)) is not None
        ]
        source = tuple(of for buffer in held for of in (buffer, buffer._version))
        known = self._scaled.get(dtype)
        if known is None or not all(a is b for a, b in zip(known[1], source, strict=True)):
            shares = self.shares.tolist() if len(self.blocks) > 1 else [1.0]
            scale = self.weights.to(dtype).sqrt().cpu()
            family = int(self.family) if "family" in self._buffers else 0
            parts = columns_of(self.blocks)
            known = ScaledRows(self._kept(), parts, scale, shares, family=family, lone=self.lone), source
            self._scaled[dtype] = known
        return known[0]

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
