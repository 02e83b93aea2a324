"""What training rows are called, so that they can be forgotten by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from extremegp.errors import DataError, ModelFormatError
from extremegp.estimators.weights import without_absent

_LONGEST = 1000


class RowIds:
    """Names of N rows, each once, in the order of the rows.

    Args:
        names: of the rows.
        next_number: what a row without a name is called next.
    """

    def __init__(self, names: Sequence[str], next_number: int) -> None:
        self.names, self.next_number = list(names), next_number
        # Rows come in ascending order of these and go, so that places need not be written anew for each that goes.
        self._serials = np.arange(len(self.names))
        self._next_serial = len(self.names)
        self._serial_of: dict[str, int] | None = None

    @classmethod
    def numbered(cls, n_rows: int) -> Self:
        """Names "0" to N - 1."""
        return cls([*map(str, range(n_rows))], n_rows)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: str) -> bool:
        return name in self._known()

    def place(self, name: str) -> int:
        """The number of a row by its name."""
        return int(np.searchsorted(self._serials, self._known()[name]))

    def serials(self) -> NDArray[np.int64]:
        """A number for each row that it keeps, N, ascending."""
        return self._serials

    def new(self, ids: Iterable[Any] | None, n: int) -> list[str]:
        """Names for n more rows: those that are given, or numbers.

        Raises:
            DataError: they are not n different ones, known already, or no names.
        """
        if ids is None:
            found: list[str] = []
            number = self.next_number
            while len(found) < n:
                if str(number) not in self:
                    found.append(str(number))
                number += 1
            return found
        names = checked_ids(ids)
        if len(names) != n:
            raise DataError(f"there are {len(names)} ids for {n} rows")
        for name in names:
            if name in self:
                raise DataError(f"the id {name!r} is that of a row that the model has: forget that row first")
        return names

    def add(self, names: Sequence[str]) -> None:
        """Call rows that come after all others by these names, which `new` has checked."""
        known = self._known()
        self._serials = np.append(self._serials, np.arange(self._next_serial, self._next_serial + len(names)))
        for name in names:
            known[name] = self._next_serial
            self._next_serial += 1
        self.names += names
        self.next_number = max([self.next_number, *(int(name) + 1 for name in names if _is_number(name))])

    def remove(self, name: str) -> int:
        """Take a row out; returns which it was."""
        place = self.place(name)
        del self._known()[name], self.names[place]
        self._serials = np.delete(self._serials, place)
        return place

    def to_bytes(self) -> NDArray[np.uint8]:
        """The names as `from_bytes` takes them."""
        return np.frombuffer("\n".join(self.names).encode(), dtype=np.uint8)

    @classmethod
    def from_bytes(cls, stored: NDArray[np.uint8], next_number: Any, n_rows: int) -> Self:
        """What `to_bytes` gave.

        Raises:
            ModelFormatError: it is altered.
        """
        try:
            names = checked_ids(stored.tobytes().decode().split("\n"))
        except (UnicodeDecodeError, DataError) as error:
            raise ModelFormatError(f"the names of its rows are damaged ({error})") from error
        if len(names) != n_rows or type(next_number) is not int or not 0 <= next_number < 2**62:
            raise ModelFormatError(f"there are not {n_rows} names of rows")
        return cls(names, next_number)

    def _known(self) -> dict[str, int]:
        if self._serial_of is None:
            self._serial_of = dict(zip(self.names, self._serials.tolist(), strict=True))
        return self._serial_of


def checked_ids(ids: Iterable[Any]) -> list[str]:
    """Names of rows as strings.

    Raises:
        DataError: one is no string or integer, empty or not a line, or comes twice.
    """
    if isinstance(ids, (str, bytes)):
        raise DataError(f"ids must be a list, not the single string {ids!r}; pass [{ids!r}]")
    names = []
    for each in ids:
        if isinstance(each, bool) or not isinstance(each, (str, int, np.integer)):
            raise DataError(f"an id must be a string or an integer, not {each!r}")
        name = str(each)
        if not name or len(name) > _LONGEST or "\n" in name:
            raise DataError(f"an id must be one line of 1 to {_LONGEST} characters, not {name[:80]!r}")
        names.append(name)
    if len(set(names)) < len(names):
        (twice, _), *_ = Counter(names).most_common(1)
        raise DataError(f"the id {twice!r} comes twice")
    return names


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 18


def named_rows(ids: list[Any] | None, n_rows: int) -> RowIds:
    """Names of training rows: those that are given, or "0" to N - 1.

    Raises:
        DataError: they are not N different ones, or no names.
    """
    names = RowIds.numbered(n_rows)
    if ids is not None:
        names = RowIds([], 0)
        names.add(names.new(ids, n_rows))
    return names


def without_absent_ids(
    X: Any, Y: Any, sample_weight: Any, ids: Iterable[Any] | None
) -> tuple[Any, Any, NDArray[np.float64] | None, list[Any] | None]:
    """As `without_absent`, and the names of the rows that stay."""
    names = None if ids is None else checked_ids(ids)
    if names is not None and sample_weight is not None and not np.isscalar(sample_weight):
        counted = np.asarray(sample_weight, dtype=np.float64).ravel()
        if len(counted) != len(names):
            raise DataError(f"there are {len(names)} ids for {len(counted)} rows")
        names = [name for name, weight in zip(names, counted, strict=True) if weight]
    return *without_absent(X, Y, sample_weight), names
