"""Data frames and columns of pandas, Polars and the like, known by what they offer: none of these need be installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse

from extremegp.engine.matrices import FloatCSR
from extremegp.errors import DataError

NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
"""Types of single numbers."""
_SHOWN = 5


def is_frame(X: Any) -> bool:
    """Whether X has rows and columns with names."""
    return hasattr(X, "columns") and len(getattr(X, "shape", ())) == 2


def is_sparse(X: Any) -> bool:
    """Whether X is a sparse matrix, or a data frame whose columns all are sparse and leave out zeros."""
    if issparse(X) or not (is_frame(X) and hasattr(X, "sparse")):
        return bool(issparse(X))
    return not any(kind.fill_value for kind in X.dtypes)


def column_names(X: Any) -> list[str] | None:
    """The names of the columns of a data frame, if all of them are strings, as scikit-learn takes them."""
    names = list(getattr(X, "columns", ()))
    return names if names and all(isinstance(name, str) for name in names) else None


def label_names(Y: Any) -> list[str | int] | None:
    """The names of the label columns of a data frame: strings or integers, unless they merely count the columns."""
    names = list(Y.columns) if is_frame(Y) else []
    if not names or not all(isinstance(name, (str, int, np.integer)) and not isinstance(name, bool) for name in names):
        return None
    plain = [name if isinstance(name, str) else int(name) for name in names]
    return None if plain == list(range(len(plain))) else plain


def shortened(names: list[str]) -> str:
    """The first of some names, for a message."""
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def column(X: Any, i: int) -> Any:
    """The i-th column of a data frame."""
    return X.iloc[:, i] if hasattr(X, "iloc") else X[X.columns[i]]


def values(series: Any) -> list[Any]:
    """The values of a column, list or array of one dimension as Python has them."""
    for method in ("to_list", "to_pylist", "tolist"):
        if hasattr(series, method):
            found: list[Any] = getattr(series, method)()
            return found
    return list(series)


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or what pandas says for a missing one."""
    of_pandas = type(value).__name__ in ("NAType", "NaTType")
    return value is None or of_pandas or (isinstance(value, float) and bool(value != value))


def lists_of(Y: Any) -> list[Any] | tuple[Any, ...] | None:
    """The rows of what has a list for each row, as a list, an array of objects or a column; None for a matrix."""
    if isinstance(Y, (list, tuple)):
        return Y
    if issparse(Y) or len(getattr(Y, "shape", ())) != 1 or (isinstance(Y, np.ndarray) and Y.dtype != object):
        return None
    return values(Y)


def matrix_of(Y: Any, name: str) -> FloatCSR | NDArray[Any]:
    """A data frame of numbers: CSR where all of its columns are sparse, else an array, NaN where a value is missing.

    Raises:
        DataError: a column holds other things than numbers; calls the data frame `name`.
    """
    if is_sparse(Y):
        return csr_matrix(Y.sparse.to_coo())
    array = np.asarray(Y)
    if array.dtype != object:
        return array
    # Columns of different types, or of types that know missing values.
    return np.stack([_numbers(column(Y, i), f"{name}'s column {label!r}") for i, label in enumerate(Y.columns)], axis=1)


def _numbers(series: Any, what: str) -> NDArray[np.float64]:
    found = values(series)
    for row, value in enumerate(found):
        if not isinstance(value, NUMBERS) and not is_missing(value):
            raise DataError(
                f"{what} holds a {type(value).__name__} at row {row} (counted from 0), where a number is due"
            )
    return np.asarray([np.nan if is_missing(value) else float(value) for value in found])


def texts_of(X: Any) -> list[str]:
    """N texts, given as a list, an array, a column, or a data frame or array of one column.

    Raises:
        DataError: there are none, several columns, or something that is not a string (its row is named).
    """
    shape = getattr(X, "shape", None)
    if isinstance(X, (str, bytes)) or issparse(X) or not isinstance(X, Iterable) or shape == ():
        raise DataError(f"expected a list of texts, not {type(X).__name__}; for one text pass [text]")
    if shape is not None and len(shape) > 1:
        X = _only_column(X)
    texts = values(X)
    if not texts:
        raise DataError("there are no texts; pass at least one")
    for row, text in enumerate(texts):
        if is_missing(text):
            raise DataError(f"text {row} (counted from 0) is missing; drop the row, or make it the empty text ''")
        if not isinstance(text, str):
            raise DataError(
                f"text {row} (counted from 0) is of type {type(text).__name__}, not a string; pass one string a row, "
                "or choose other features than 'text' for numbers"
            )
    return texts


def _only_column(X: Any) -> Any:
    """The column of texts of a data frame or array."""
    if len(X.shape) > 2 or X.shape[1] != 1:
        names = column_names(X) or []
        of = f" ({shortened(names)})" if names else ""
        remedy = "choose other features than 'text' for numbers"
        if np.asarray(X).dtype.kind in "OUST":
            texts = [
                name for i, name in enumerate(names) if any(isinstance(cell, str) for cell in values(column(X, i)))
            ]
            remedy = f"pass the one that has them, such as {f'X[{texts[0]!r}]' if texts else 'X[:, 0]'}"
        raise DataError(
            f"features='text' takes one column of texts, but the shape of X is {tuple(X.shape)}{of}: {remedy}"
        )
    return column(X, 0) if is_frame(X) else X[:, 0]
