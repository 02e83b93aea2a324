"""Calls that change a model, as a journal holds them, and doing them again."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from extremegp.data import FloatCSR
from extremegp.errors import DataError, ModelFormatError


class LearntRows(NamedTuple):
    """Rows as they are learnt, checked.

    Attributes:
        x: features, B x D.
        y: labels that are 1, B x K with the new ones.
        ids: what the rows are called.
        weights: what each counts; None for 1.
        shares: of their squared norms, what is unknown, B x n_blocks; None for nothing.
        new_labels: names of labels that come after those that the model has.
    """

    x: FloatCSR
    y: FloatCSR
    ids: list[str]
    weights: NDArray[np.float32] | None
    shares: NDArray[np.float32] | None
    new_labels: list[Any]

    def to_call(self) -> dict[str, Any]:
        """All of it as JSON, to the bit."""
        arrays = {"weights": self.weights, "shares": self.shares}
        return {
            "call": "learn",
            "ids": self.ids,
            "features": _parts(self.x.indices, self.x.indptr),
            "values": _parts(self.x.data, self.x.indptr),
            "labels": _parts(self.y.indices, self.y.indptr),
            "new_labels": self.new_labels,
            **{name: array.tolist() for name, array in arrays.items() if array is not None},
        }

    @classmethod
    def from_call(cls, call: dict[str, Any], n_features: int, n_labels: int) -> LearntRows:
        """What `to_call` gave.

        Args:
            call: as it was read.
            n_features: D.
            n_labels: K without the new ones.

        Raises:
            ValueError: it is no such call.
        """
        ids, new = call.get("ids"), call.get("new_labels")
        if not isinstance(ids, list) or not isinstance(new, list):
            raise ValueError("no rows")
        x = _matrix(call.get("features"), call.get("values"), len(ids), n_features)
        y = _matrix(call.get("labels"), None, len(ids), n_labels + len(new))
        weights, shares = (
            None if call.get(name) is None else np.array(call[name], dtype=np.float32) for name in ("weights", "shares")
        )
        if weights is not None and (weights.shape != (len(ids),) or not (weights > 0).all()):
            raise ValueError("weights")
        if shares is not None and (
            shares.ndim != 2 or len(shares) != len(ids) or not ((shares >= 0) & (shares <= 1)).all()
        ):
            raise ValueError("shares")
        return cls(x, y, ids, weights, shares, new)


def do_again(model: Any, call: dict[str, Any], source: object) -> None:
    """Do what a journal says.

    Args:
        model: a `LearnsRows`.
        call: what is to be done.
        source: of the call, for messages.

    Raises:
        ModelFormatError: it cannot be done.
    """
    try:
        kind = call.get("call")
        if kind == "learn":
            rows = LearntRows.from_call(call, model.settings_.n_features, model.settings_.n_labels)
            model.learn_rows(rows._replace(ids=model.ids_.new(rows.ids, len(rows.ids))))
        elif kind == "forget":
            model.forget(call["ids"])
        elif kind == "add_labels":
            model.add_labels(call["names"])
        elif kind == "rename_label":
            model.rename_label(call["old"], call["new"])
        else:
            raise ValueError(f"unknown call {kind!r}")
    except (DataError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelFormatError(f"{source}: the journal says what cannot be done ({error})") from error


def _parts(values: NDArray[Any], starts: NDArray[Any]) -> list[list[Any]]:
    return [values[start:end].tolist() for start, end in pairwise(starts)]


def _matrix(indices: Any, values: Any, n_rows: int, width: int) -> FloatCSR:
    """A CSR matrix of lists of indices, ascending, and of their values, 1 where there are none."""
    if not isinstance(indices, list) or len(indices) != n_rows or not all(isinstance(row, list) for row in indices):
        raise ValueError("rows")
    flat = [index for row in indices for index in row]
    if not all(type(index) is int and 0 <= index < width for index in flat):
        raise ValueError("indices")
    if any(first >= second for row in indices for first, second in pairwise(row)):
        raise ValueError("order")
    numbers = [1.0] * len(flat)
    if values is not None:
        if not isinstance(values, list) or [*map(len, values)] != [*map(len, indices)]:
            raise ValueError("values")
        numbers = [float(value) for row in values for value in row]
        if not all(map(math.isfinite, numbers)):
            raise ValueError("numbers")
    starts = np.cumsum([0, *map(len, indices)])
    columns = np.array(flat, dtype=np.int32)
    return scipy.sparse.csr_matrix((np.array(numbers, dtype=np.float32), columns, starts), shape=(n_rows, width))
