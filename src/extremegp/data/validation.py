"""Checks on feature matrices at the doors of the library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse

from extremegp.data.frames import NUMBERS, column, is_frame, is_missing, lists_of, values
from extremegp.engine.matrices import (
    FloatCSR,
    FloatMatrix,
    entry_position,
    first_fault,
    is_mapped,
)
from extremegp.errors import DataError

_PRINTED = re.compile(r":\s*array=.*\.(?=\s*Reshape your data)", re.DOTALL)
_OF_TEXTS = 'set features="text" of the estimator and fit it, which makes features of their words'


def check_inputs(
    X: Any,
    n_features: int | None = None,
    name: str = "X",
    *,
    expected_by: str = "the model",
    of_texts: str = _OF_TEXTS,
) -> FloatMatrix:
    """Check a feature matrix and bring it into one of the two forms that the library computes on.

    Args:
        X: N x D numbers: any scipy sparse format, or whatever NumPy makes a 2-D array of bool, int or float. An array
            of objects passes if all of them are numbers, as in scikit-learn, and a column of N lists or arrays of D.
        n_features: the D that X must have, if known.
        name: what to call X in messages.
        expected_by: who wants `n_features` columns, in messages.
        of_texts: what to do with texts, in messages.

    Returns:
        Sparse X as float32 CSR, N x D, column indices sorted, entries of the same position summed; other X as
        C-contiguous float32 array, N x D. The memory is X's own where nothing had to change, so treat it as
        read-only; X itself is never changed. Where `is_mapped(X)`, it is looked through in blocks and never copied,
        unless columns are out of order.

    Raises:
        DataError: X is not 2-D, has no rows or columns, another number of columns than `n_features`, a type that is
            not a real number, or a NaN, an infinity or a value outside float32 (at a row and column that are named).
        TypeError: X holds objects that are not numbers.
    """
    if is_mapped(X) and _sound(X, name):
        _check_width(X, n_features, name, expected_by)
        mapped: FloatCSR = X
        return mapped
    # It takes seconds to load, which whoever only tells formats apart need not wait for.
    from sklearn.utils.validation import check_array

    X = _stacked(X)
    try:
        checked = check_array(X, accept_sparse="csr", dtype="numeric", ensure_all_finite=False, input_name=name)
        sparse: bool = issparse(checked)
        if sparse:
            # A hand-made matrix may point outside its own columns; nothing below would notice.
            checked.check_format(full_check=True)
    except (TypeError, ValueError) as error:
        # scikit-learn and NumPy would print texts.
        _refuse_texts(X, name, of_texts)
        if isinstance(error, TypeError):
            raise
        _refuse_others(X, name)
        if "convert string to float" in str(error):
            raise DataError(f"{name} holds texts, not numbers: {of_texts}") from None
        # The message for one dimension prints the array, over several lines.
        raise DataError(" ".join(_PRINTED.sub(".", str(error)).split())) from error
    if checked.dtype.kind not in "biuf":
        _refuse_texts(X if is_frame(X) else checked, name, of_texts)
        raise DataError(f"{name} has dtype {checked.dtype}; pass bool, integer or float numbers")
    _check_width(checked, n_features, name, expected_by)
    # What overflows is refused, and infinities of both signs have no sum.
    with np.errstate(over="ignore", invalid="ignore"):
        return _sparse(checked, name) if sparse else _dense(checked, name)


def _stacked(X: Any) -> Any:
    """A column of lists or arrays, as a data frame holds vectors, as a list of these."""
    rows = None if isinstance(X, (list, tuple)) else lists_of(X)
    return list(rows) if rows and all(isinstance(row, (list, tuple, np.ndarray)) for row in rows) else X


def _refuse_texts(X: Any, name: str, remedy: str) -> None:
    """Say where X holds a text, if it does, without printing it."""
    for row, where, n_columns, value in _cells(X):
        if isinstance(value, (str, bytes)):
            if n_columns > 1:
                remedy = f"encode such columns as numbers, or pass one column of texts alone and {remedy}"
            raise DataError(f"{name} holds texts, not numbers, as at row {row}{where} (counted from 0): {remedy}")


def _refuse_others(X: Any, name: str) -> None:
    """Say where X holds something that is no number, if it does."""
    for row, where, _, value in _cells(X):
        if not isinstance(value, (*NUMBERS, complex)) and not is_missing(value):
            kind = type(value).__name__
            raise DataError(f"{name} holds a {kind} at row {row}{where} (counted from 0), where a number is needed")


def _cells(X: Any) -> Iterator[tuple[int, str, int, Any]]:
    """Row, place in it, number of columns and value of everything in X, which need not be a matrix."""
    if is_frame(X):
        for i, label in enumerate(X.columns):
            for row, value in enumerate(values(column(X, i))):
                yield row, f" of the column {label!r}", X.shape[1], value
        return
    rows = X.tolist() if isinstance(X, np.ndarray) and X.dtype.kind in "OSU" else lists_of(X)
    if isinstance(X, (str, bytes, dict)):
        rows = [X]
    elif not isinstance(rows, (list, tuple)):
        rows = () if rows is None else [rows]
    for row, cells in enumerate(rows):
        cells = cells if isinstance(cells, (list, tuple, np.ndarray)) else [cells]
        for value in cells:
            yield row, "", len(cells), value


def check_weights(
    weights: Any, n_rows: int, name: str = "sample_weight", *, of: str = "row"
) -> NDArray[np.float64] | None:
    """Check what each of N rows counts.

    Args:
        weights: N numbers that are not negative, or one for all rows; None counts every row once.
        n_rows: N.
        name: what to call them in messages.
        of: what there is a weight for.

    Returns:
        N weights, or None where every row counts once.

    Raises:
        DataError: they are not N finite numbers, one is negative, or all are zero; names the row.
    """
    if weights is None:
        return None
    try:
        checked = np.asarray(weights)
        checked = checked.astype(np.float64) if checked.dtype.kind in "biufO" else checked
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be {n_rows} numbers, one for each {of}: {error}") from error
    if checked.dtype != np.float64:
        raise DataError(f"{name} must be {n_rows} numbers, one for each {of}, not of dtype {checked.dtype}")
    if checked.ndim == 0:
        checked = np.full(n_rows, checked)
    if checked.shape != (n_rows,):
        raise DataError(f"{name} must be {n_rows} numbers, one for each {of}; its shape is {checked.shape}")
    # What is beyond single precision would be infinite in training.
    bad = np.flatnonzero(~((checked >= 0) & (checked <= np.finfo(np.float32).max)))
    if bad.size:
        raise DataError(
            f"{name} must be finite and not negative, but is {checked[bad[0]]:g} at {of} {bad[0]} (counted from 0); "
            f"a {of} of weight 0 is left out"
        )
    if n_rows and not checked.any():
        raise DataError(f"{name} is zero for every {of}: there is nothing to learn from; give some a positive weight")
    return None if (checked == 1).all() else checked


def _sound(X: FloatCSR, name: str) -> bool:
    """Whether a mapped matrix can be used as it is; else it must be put in order, which copies it."""
    if min(X.shape) < 1:
        return False
    fault = first_fault(X)
    if fault is not None and fault.where == "value":
        _refuse(X.data[fault.at], *entry_position(X, fault.at), name)
    return fault is None


def _check_width(X: Any, n_features: int | None, name: str, expected_by: str) -> None:
    if n_features is not None and X.shape[1] != n_features:
        raise DataError(
            f"{name} has {X.shape[1]} features, but {expected_by} is expecting {n_features} features as input; "
            "build it with the same feature columns as in training"
        )


def _dense(checked: NDArray[Any], name: str) -> NDArray[np.float32]:
    X = np.ascontiguousarray(checked, dtype=np.float32)
    # The sum needs no mask of the size of X; it also is non-finite wherever an entry is.
    if not np.isfinite(X.sum(dtype=np.float64)):
        for row in range(X.shape[0]):
            bad = np.flatnonzero(~np.isfinite(X[row]))
            if bad.size:
                _refuse(checked[row, bad[0]], row, int(bad[0]), name)
    return X


def _sparse(checked: Any, name: str) -> FloatCSR:
    X: FloatCSR = csr_matrix(checked, dtype=np.float32)
    _check_entries(X, checked.data, name)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
        _check_entries(X, X.data, name)
    return X


def _check_entries(X: FloatCSR, original: NDArray[Any], name: str) -> None:
    bad = np.flatnonzero(~np.isfinite(X.data))
    if bad.size:
        _refuse(original[bad[0]], *entry_position(X, int(bad[0])), name)


def _refuse(value: Any, row: int, column: int, name: str) -> None:
    if np.isnan(value):
        what, remedy = "NaN", "impute or drop missing values first"
    elif np.isinf(value):
        what, remedy = "infinity (inf)", "clip it or drop the row"
    else:
        what, remedy = f"{value}, which is too large for float32 (inf)", "scale the column down"
    raise DataError(f"{name} contains {what} at row {row}, column {column} (counted from 0); {remedy}")
