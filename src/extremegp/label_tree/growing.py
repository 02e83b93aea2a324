"""Arrays that things are added to and taken out of at little cost."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Growing:
    """An array with room at its end, so that what is added is all that is written.

    Args:
        array: what it starts as; it is copied.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self._room, self._size = np.array(array), len(array)

    @property
    def array(self) -> NDArray[Any]:
        """What it holds, as a view."""
        return self._room[: self._size]

    def extend(self, values: NDArray[Any]) -> None:
        """Add to the end."""
        size = self._size + len(values)
        if size > len(self._room):
            room = np.zeros((max(size, len(self._room) * 5 // 4 + 64), *self._room.shape[1:]), self._room.dtype)
            room[: self._size] = self.array
            self._room = room
        self._room[self._size : size] = values
        self._size = size

    def cut(self, start: int, stop: int) -> None:
        """Take out what lies from `start` to before `stop`, and leave nothing of it."""
        size = self._size - (stop - start)
        self._room[start:size] = self._room[stop : self._size]
        self._room[size : self._size] = 0
        self._size = size
