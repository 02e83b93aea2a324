"""The training rows of a model with a closed form, which come and go by it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from extremegp.data import FloatCSR, FloatMatrix
from extremegp.engine.matrices import column_counts
from extremegp.errors import ModelFormatError
from extremegp.storage.matrices import matrix_of, matrix_tensors
from extremegp.training.known_rows import KnownRows

_X, _Y, _WEIGHTS = "learning.x.", "learning.y.", "learning.weights"


class HeldRows:
    """Inputs, labels and weights of N rows, to which others are added at little cost.

    Args:
        x: inputs, N x D.
        y: labels, N x K.
        weights: what each row counts; None for 1.

    Attributes:
        labelled: which rows have labels.
    """

    def __init__(self, x: FloatMatrix, y: FloatCSR, weights: NDArray[np.float64] | None = None) -> None:
        self._blocks: list[KnownRows] = [KnownRows(x, y, np.ones(x.shape[0]) if weights is None else weights)]
        # The block of each row, and its place there.
        self._places = np.stack([np.zeros(x.shape[0], np.int64), np.arange(x.shape[0])], axis=1)
        self.labelled = np.diff(y.indptr) > 0
        self._counts = column_counts(x) if scipy.sparse.issparse(x) else None

    def __len__(self) -> int:
        return len(self._places)

    def add(self, x: FloatCSR, y: FloatCSR, weights: NDArray[np.float32] | None) -> KnownRows:
        """Add rows after all others; returns them in the form of those."""
        own = self._form(x), y, np.ones(x.shape[0]) if weights is None else weights.astype(np.float64)
        rows = KnownRows(*own)
        numbers = np.stack([np.full(x.shape[0], len(self._blocks)), np.arange(x.shape[0])], axis=1)
        self._places = np.concatenate([self._places, numbers])
        self._blocks.append(rows)
        self.labelled = np.append(self.labelled, np.diff(y.indptr) > 0)
        if self._counts is not None:
            self._counts = self._counts + column_counts(x)
        return rows

    def remove(self, place: int) -> NDArray[np.int64]:
        """Take a row out; the features that no other row has."""
        x = self.row(place).x
        self._places, self.labelled = np.delete(self._places, place, axis=0), np.delete(self.labelled, place)
        if self._counts is None or isinstance(x, np.ndarray):
            return np.zeros(0, np.int64)
        features = x.indices[x.data != 0].astype(np.int64)
        self._counts[features] -= 1
        return np.asarray(features[self._counts[features] == 0])

    def unused(self, features: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of some features no row has."""
        return features[:0] if self._counts is None else features[self._counts[features] == 0]

    def row(self, place: int) -> KnownRows:
        """A row by itself."""
        block: int
        row: int
        block, row = self._places[place].tolist()
        return self._blocks[block].some(slice(row, row + 1))

    def all(self) -> KnownRows:
        """All of them, with nothing left of those that are gone."""
        if len(self._blocks) > 1 or len(self._places) < self._blocks[0].x.shape[0]:
            own = [self._places[self._places[:, 0] == number, 1] for number in range(len(self._blocks))]
            kept = [[part[rows] for part in block] for block, rows in zip(self._blocks, own, strict=True)]
            x, y, weights = zip(*kept, strict=True)
            self._blocks = [KnownRows(_stacked(x), _stacked(y), np.concatenate(weights))]
            self._places = np.stack([np.zeros(len(self), np.int64), np.arange(len(self))], axis=1)
        return self._blocks[0]

    def relabel(self, places: NDArray[np.int64], n_labels: int) -> None:
        """Have more labels, among which those of today have these places."""
        self._blocks = [block._replace(y=_relabelled(block.y, places, n_labels)) for block in self._blocks]

    def to_tensors(self, *, with_inputs: bool) -> dict[str, torch.Tensor]:
        """What `from_tensors` takes."""
        x, y, weights = self.all()
        tensors = matrix_tensors(y, _Y) | {_WEIGHTS: torch.from_numpy(weights)}
        return tensors | matrix_tensors(x, _X) if with_inputs else tensors

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, torch.Tensor],
        shape: tuple[int, int, int],
        source: str | Path,
        inputs: FloatMatrix | None = None,
    ) -> HeldRows | None:
        """What `to_tensors` gave; None where there is nothing of it.

        Args:
            tensors: of a model.
            shape: N, D and K.
            source: of the model, for messages.
            inputs: of the rows, where they are kept elsewhere.

        Raises:
            ModelFormatError: they are altered.
        """
        weights = tensors.get(_WEIGHTS)
        if weights is None:
            return None
        n_rows, n_features, n_labels = shape
        x = matrix_of(tensors, _X, (n_rows, n_features), source) if inputs is None else inputs
        y = matrix_of(tensors, _Y, (n_rows, n_labels), source)
        sound = weights.dtype == torch.float64 and weights.shape == (n_rows,) and torch.isfinite(weights).all()
        if not sound or not (weights > 0).all() or not scipy.sparse.issparse(y) or (y.data <= 0).any():
            raise ModelFormatError(f"{source}: the rows of the model are damaged")
        return cls(x, y, weights.numpy().copy())

    def _form(self, x: FloatCSR) -> FloatMatrix:
        return x if scipy.sparse.issparse(self._blocks[0].x) else np.asarray(x.toarray(), np.float32)


def _stacked(parts: Any) -> Any:
    if scipy.sparse.issparse(parts[0]):
        return scipy.sparse.csr_matrix(scipy.sparse.vstack(parts), dtype=np.float32)
    return np.concatenate(parts)


def _relabelled(y: FloatCSR, places: NDArray[np.int64], n_labels: int) -> FloatCSR:
    columns = places[y.indices].astype(np.int32)
    matrix = scipy.sparse.csr_matrix((y.data, columns, y.indptr), shape=(y.shape[0], n_labels))
    return matrix if matrix.has_sorted_indices else matrix.sorted_indices()
