"""Whether a row is like the training rows: its distance to the nearest of them, and what share of these is as far away.

The distance weighs features as the features step does and knows nothing of labels: weights that a classifier learns
make little of whatever its labels do not depend on, and rows that differ there would then look alike.

A distance is compared with those of training rows, each of them without itself. Where a new row and the training
rows are exchangeable, the share of these that are at least as far away is a p-value: at most a share of p of such rows
has one of p or less, up to the rounding of 1 / (1 + N) (Vovk, Gammerman and Shafer 2005, chapter 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse, vstack
from torch import Tensor

from extremegp.engine.blocks import Block, Columns, columns_of
from extremegp.engine.centres import dense_rows
from extremegp.engine.matrices import FloatMatrix, mostly_zero, suited_form
from extremegp.errors import ModelFormatError
from extremegp.prediction.compared_rows import ComparedRows, directed_rows, of_one_norm, without_columns
from extremegp.storage.matrices import matrix_of, matrix_tensors
from extremegp.storage.tensors import all_finite

MOST_ROWS, MOST_LEFT_OUT = 16_384, 5_000
"""Training rows that are kept, and of these rows whose own distances are."""
_FEWEST_ROWS, _MOST_ENTRIES = 256, 1 << 23
"""Training rows that are kept, and numbers of theirs, up to which they are all kept; but not fewer than the first."""
_DIGITS = 5

Unknown = Float[np.ndarray, "N n_blocks"]
"""Shares of the squared norms of rows, from 0 to 1."""


class Novelty:
    """Distances of rows from the training rows, and p-values of these distances.

    The distance is the mean over the `NEIGHBOURS` nearest training rows of 1 - cos of the angle, where rows are mostly
    zeros or all of one length, else of the Euclidean distance; its unit is the mean of training rows. Features that
    training does not know, such as the words of a text that are not in the vocabulary, count as being at a right angle
    to everything.

    Of several blocks of features, each has a distance and a p-value of its own, and the distance of the row is minus
    the sum of the logarithms of these (R. A. Fisher's statistic), which is then compared as that of one block is.

    Args:
        rows: the training rows that are kept, M x D_b of every block, CSR or arrays; those that are directions are at
            unit norm but for what is unknown of them.
        directions: of which blocks only the direction of rows counts.
        left_out: of L of the M rows and every block, the distance of each from the others.
    """

    def __init__(
        self,
        rows: Sequence[FloatMatrix],
        directions: Sequence[bool],
        left_out: Float[np.ndarray, "L n_blocks"],
    ) -> None:
        self._rows = [ComparedRows(*part) for part in zip(rows, directions, strict=True)]
        means = left_out.mean(axis=0, dtype=np.float64)
        self._scales, self._left_out = np.where(means > 0, means, 1), left_out
        self._of_blocks = np.sort(self._scaled(left_out), axis=0)
        self.left_out = self._joined(left_out, own=True)
        self._sorted = np.sort(self.left_out)

    @classmethod
    def fit(
        cls,
        x: FloatMatrix,
        blocks: Sequence[Block] = (),
        *,
        unknown: Unknown | None = None,
        rare: NDArray[np.int64] | None = None,
    ) -> Novelty:
        """Learn the distances of training rows: of all, or of as many as fit, drawn at random but always the same.

        Args:
            x: inputs, N x D.
            blocks: of the features.
            unknown: of every row and block, the share of the squared norm that is of unknown features.
            rare: columns that would be unknown if one of the rows that have them was missing.
        """
        chosen = _chosen(x)
        own = _drawn(len(chosen), MOST_LEFT_OUT)
        x = x[chosen]
        shares = None if unknown is None else unknown[chosen]
        rare = np.zeros(0, np.int64) if rare is None else rare
        kept, distances = [], np.empty((len(own), max(1, len(blocks))), np.float32)
        for b, part in enumerate(columns_of(blocks) or [Columns(0, x.shape[1], dense=not issparse(x))]):
            matrix = _suited(part, x)
            directed = mostly_zero(matrix) or of_one_norm(matrix)
            rows = ComparedRows(directed_rows(matrix, _share(shares, b)) if directed else matrix, directed)
            of_block = rare[(rare >= part.start) & (rare < part.stop)] - part.start
            queries = without_columns(rows.matrix[own], of_block) if directed else rows.prepared(matrix[own])
            distances[:, b] = rows.distances(queries.__getitem__, len(own), own=own)
            kept.append(rows)
        return cls([rows.matrix for rows in kept], [rows.directed for rows in kept], distances)

    @property
    def n_rows(self) -> int:
        """M, how many training rows are kept."""
        return int(self._rows[0].matrix.shape[0])

    def distances(self, x: FloatMatrix, unknown: Unknown | None = None) -> Float[np.ndarray, " N"]:
        """How far rows are from the nearest training rows; of one block about 1 where they are like these.

        Args:
            x: inputs, N x D.
            unknown: as in `fit`.
        """
        widths = [kept.matrix.shape[1] for kept in self._rows]
        ends = np.cumsum(widths).tolist()
        found = np.empty((x.shape[0], len(widths)), np.float32)
        for b, kept in enumerate(self._rows):
            part = Columns(ends[b] - widths[b], ends[b], dense=not issparse(kept.matrix))
            share = _share(unknown, b)

            def queries(
                rows: slice, part: Columns = part, kept: ComparedRows = kept, share: Any = share
            ) -> FloatMatrix:
                return kept.prepared(part.of_matrix(x[rows]), None if share is None else share[rows])

            found[:, b] = kept.distances(queries, x.shape[0])
        return self._joined(found)

    def p_values(self, x: FloatMatrix, unknown: Unknown | None = None) -> Float[np.ndarray, " N"]:
        """(1 + how many of L training rows are as far from the others as the row is, or farther) / (1 + L).

        L is M, or 5000 where there are more.

        Args:
            x: inputs, N x D.
            unknown: as in `fit`.
        """
        size = len(self._sorted)
        farther = size - np.searchsorted(self._sorted, self.distances(x, unknown), side="left")
        p: NDArray[np.float64] = (1 + farther) / (1 + size)
        return p

    def changed(
        self,
        stay: NDArray[np.bool_],
        known: NDArray[np.bool_],
        x: FloatMatrix | None,
        unknown: NDArray[np.float32] | None,
    ) -> Novelty:
        """The same with other rows.

        Args:
            stay: which of the M rows stay.
            known: which of the L distances do.
            x: rows that come after them; their own distances are none of those that others are compared with.
            unknown: as in `fit`.
        """
        rows: list[FloatMatrix] = []
        end = 0
        for b, kept in enumerate(self._rows):
            matrix, start = kept.matrix[stay], end
            end = start + matrix.shape[1]
            if x is not None:
                part = Columns(start, end, dense=not issparse(matrix)).of_matrix(x)
                new: Any = directed_rows(csr_matrix(part), _share(unknown, b)) if kept.directed else part
                if issparse(matrix):
                    both: list[Any] = [matrix, csr_matrix(new)]
                    matrix = csr_matrix(vstack(both))
                else:
                    matrix = np.concatenate([matrix, dense_rows(new)])
            rows.append(matrix)
        return Novelty(rows, [kept.directed for kept in self._rows], self._left_out[known])

    def to_tensors(self) -> dict[str, Tensor]:
        """What `from_tensors` takes."""
        tensors = {
            "left_out": torch.from_numpy(self._left_out),
            "directions": torch.tensor([kept.directed for kept in self._rows]),
        }
        for b, kept in enumerate(self._rows):
            tensors |= matrix_tensors(kept.matrix, f"{b}.")
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], widths: Sequence[int], source: str | Path) -> Novelty:
        """What `to_tensors` gave.

        Args:
            tensors: by name.
            widths: how many features every block has.
            source: where they are from, for messages.

        Raises:
            ModelFormatError: they are of other features, or altered.
        """
        n_blocks, left_out, directions = len(widths), tensors.get("left_out"), tensors.get("directions")
        if (
            left_out is None
            or left_out.dtype != torch.float32
            or left_out.ndim != 2
            or left_out.shape[1] != n_blocks
            or not len(left_out)
            or not all_finite(left_out)
            or left_out.min() < 0
            or directions is None
            or directions.dtype != torch.bool
            or directions.shape != (n_blocks,)
        ):
            raise ModelFormatError(f"{source}: the tensors novelty.* do not fit {n_blocks} blocks of features")
        first = tensors.get("0.rows", tensors.get("0.starts"))
        n_rows = 0 if first is None or not first.ndim else len(first) - ("0.rows" not in tensors)
        if n_rows < len(left_out):
            raise ModelFormatError(f"{source}: the tensors novelty.* have fewer rows than distances")
        named = {f"novelty.{name}": tensor for name, tensor in tensors.items()}
        rows = [matrix_of(named, f"novelty.{b}.", (n_rows, width), source) for b, width in enumerate(widths)]
        return cls(rows, directions.tolist(), left_out.numpy())

    def _scaled(self, distances: NDArray[np.float32]) -> NDArray[np.float64]:
        """In units of the mean; rounded so that equal rows are equally far, whatever they were worked out beside."""
        scaled: NDArray[np.float64] = np.round(distances / self._scales, _DIGITS)
        return scaled

    def _joined(self, distances: NDArray[np.float32], *, own: bool = False) -> NDArray[np.float64]:
        """One distance of those of all blocks; `own` if they are those of training rows."""
        scaled, size = self._scaled(distances), len(self._left_out)
        if scaled.shape[1] == 1:
            return scaled[:, 0]
        joined = np.zeros(len(scaled))
        for values, known in zip(scaled.T, self._of_blocks.T, strict=True):
            # A training row is among those that are as far as itself already.
            farther = size - np.searchsorted(known, values, side="left") + (not own)
            joined -= np.log(farther / (size + 1))
            # Farther than any training row is farther still the farther it is.
            joined += np.log(np.maximum(values / (known[-1] or 1), 1))
        return np.round(joined, _DIGITS)


class NewRow(NamedTuple):
    """A row that came after training: its number, features (1 x D), and the share of these that is unknown."""

    serial: int
    x: csr_matrix
    unknown: NDArray[np.float32] | None


class KeptRowSerials:
    """Which training rows a `Novelty` keeps, by numbers that they have for good.

    Args:
        rows: of the M rows that are kept.
        left_out: of the L rows whose own distances are.

    Attributes:
        gone: rows that are no training rows any more, to be let go of.
    """

    def __init__(self, rows: NDArray[np.int64], left_out: NDArray[np.int64]) -> None:
        self.rows, self.left_out, self.gone = rows, left_out, set[int]()

    @classmethod
    def of_fit(cls, x: FloatMatrix) -> KeptRowSerials:
        """Of a novelty that was fitted to rows 0 to N - 1."""
        rows = _chosen(x)
        return cls(rows, rows[_drawn(len(rows), MOST_LEFT_OUT)])

    def renumbered(self, serials: NDArray[np.int64]) -> KeptRowSerials:
        """The same by places among the rows that there are, which have these numbers."""
        return KeptRowSerials(*(np.searchsorted(serials, part) for part in (self.rows, self.left_out)))

    def apply(self, novelty: Novelty, new: Sequence[NewRow]) -> Novelty | None:
        """The novelty without the rows that are gone and with new ones, as many as it may keep; None if none stays.

        Args:
            novelty: as these say.
            new: rows that came since.
        """
        gone = np.fromiter(self.gone, np.int64, len(self.gone))
        stay, known = (~np.isin(part, gone) for part in (self.rows, self.left_out))
        self.rows, self.left_out, self.gone = self.rows[stay], self.left_out[known], set()
        taken = new[: max(0, MOST_ROWS - len(self.rows))]
        if not len(self.left_out) or not len(self.rows):
            return None
        self.rows = np.append(self.rows, np.array([each.serial for each in taken], np.int64))
        shares = [each.unknown for each in taken if each.unknown is not None]
        parts: list[Any] = [each.x for each in taken]
        x = csr_matrix(vstack(parts)) if parts else None
        return novelty.changed(stay, known, x, np.concatenate(shares) if shares else None)


def _chosen(x: FloatMatrix) -> NDArray[np.int64]:
    """The training rows that are kept, whichever the seed of training is."""
    n_rows = x.shape[0]
    # The number of stored entries where X is sparse.
    per_row = max(1, int(x.size) // n_rows)
    most = min(n_rows, MOST_ROWS, max(_FEWEST_ROWS, _MOST_ENTRIES // per_row))
    return _drawn(n_rows, most)


def _drawn(n: int, most: int) -> NDArray[np.int64]:
    """All numbers below n, or as many as may be, drawn at random."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, most, replace=False))


def _suited(part: Columns, x: FloatMatrix) -> FloatMatrix:
    """The columns of a block in the form that is suited to their numbers, however they are held."""
    columns = part.of_matrix(x)
    form: FloatMatrix = np.ascontiguousarray(columns, np.float32) if part.dense else suited_form(csr_matrix(columns))
    return suited_form(form)


def _share(unknown: NDArray[np.float32] | None, block: int) -> NDArray[np.float32] | None:
    return None if unknown is None else unknown[:, block]
