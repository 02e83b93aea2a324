"""The training rows by their features: lists that rows can be added to and taken out of."""

from __future__ import annotations

from typing import Any, Self, no_type_check

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from extremegp.engine.compiled import compiled, times_dense

# A list that is full goes to the end of the arrays, with room for twice as many.
_GROWTH, _LEAST_ROOM = 2, 4


class ColumnLists:
    """X by columns, D x N: for every feature the rows that have it, ascending, and their values.

    Args:
        columns: X as CSC.

    Attributes:
        n_rows: N.
        starts: where the list of every feature begins.
        ends: where it ends.
        rows: of all lists.
        values: of all lists.
    """

    def __init__(self, columns: scipy.sparse.csc_matrix) -> None:
        self.n_rows = columns.shape[0]
        self.starts, self.ends = (part.astype(np.int64) for part in (columns.indptr[:-1], columns.indptr[1:]))
        self.rows, self.values = columns.indices, columns.data
        self._limits, self._used = self.ends.copy(), len(columns.data)

    @classmethod
    def of(cls, x: scipy.sparse.csr_matrix) -> Self:
        """The lists of rows, N x D."""
        return cls(x.tocsc())

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
        """What compiled code takes of them."""
        return self.starts, self.ends, self.rows, self.values

    def times(self, dense: NDArray[np.float32]) -> NDArray[np.float32]:
        """X' B, D x R, for an array B, N x R."""
        out = np.empty((len(self.starts), dense.shape[1]), dtype=np.float32)
        times_dense(len(self.starts), *self.arrays(), np.ascontiguousarray(dense, dtype=np.float32), out)
        return out

    def append(self, features: NDArray[np.int32], values: NDArray[np.float32]) -> None:
        """Add a row after all others.

        Args:
            features: that it has, each once.
            values: of these.
        """
        room = int(_room_needed(features, self.starts, self.ends, self._limits))
        if self._used + room > len(self.rows):
            size = max(2 * len(self.rows), self._used + room)
            self.rows, self.values = (_enlarged(part, size, self._used) for part in (self.rows, self.values))
        self._used = _append(features, values, self.n_rows, *self.arrays(), self._limits, self._used)
        self.n_rows += 1

    def remove(self, row: int) -> None:
        """Take a row out; those after it have the numbers before theirs from then on."""
        if not self.rows.flags.writeable:
            self.rows, self.values = self.rows.copy(), self.values.copy()
        _remove(row, *self.arrays())
        self.n_rows -= 1


def _enlarged(array: NDArray[Any], size: int, used: int) -> NDArray[Any]:
    larger = np.zeros(size, array.dtype)
    larger[:used] = array[:used]
    return larger


@compiled
@no_type_check
def _room_for(length: int) -> int:
    return max(_LEAST_ROOM, _GROWTH * length)


@compiled
@no_type_check
def _room_needed(features: Any, starts: Any, ends: Any, limits: Any) -> int:
    """Entries that moving full lists takes."""
    room = 0
    for feature in features:
        if ends[feature] == limits[feature]:
            room += _room_for(ends[feature] - starts[feature])
    return room


@compiled
@no_type_check
def _append(
    features: Any, values: Any, row: int, starts: Any, ends: Any, rows: Any, data: Any, limits: Any, used: int
) -> int:  # fmt: skip
    """Add a row to its lists; returns how many entries of the arrays are in use then."""
    for j in range(len(features)):
        feature = features[j]
        if ends[feature] == limits[feature]:
            length = ends[feature] - starts[feature]
            for q in range(length):
                rows[used + q], data[used + q] = rows[starts[feature] + q], data[starts[feature] + q]
            starts[feature], ends[feature] = used, used + length
            used += _room_for(length)
            limits[feature] = used
        rows[ends[feature]], data[ends[feature]] = row, values[j]
        ends[feature] += 1
    return used


@compiled
@no_type_check
def _remove(row: int, starts: Any, ends: Any, rows: Any, data: Any) -> None:
    for feature in range(len(starts)):
        place = starts[feature]
        for q in range(starts[feature], ends[feature]):
            if rows[q] != row:
                rows[place], data[place] = rows[q] - (rows[q] > row), data[q]
                place += 1
        for q in range(place, ends[feature]):
            rows[q], data[q] = 0, 0
        ends[feature] = place
