"""Targets of classes that are not certain: a probability for each class of every row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse

from extremegp.data.classes import ClassSpace
from extremegp.engine.matrices import FloatCSR, entry_position
from extremegp.errors import DataError

_TOLERANCE = 1e-3
"""By how much probabilities may fail to add up to one, as rounded ones do."""


def are_class_probabilities(y: Any) -> bool:
    """Whether targets are N x K numbers, K of at least two, and not a class for each row."""
    if not issparse(y) and not hasattr(y, "shape"):
        if (
            not isinstance(y, (list, tuple))
            or not y
            or not all(isinstance(row, (list, tuple, np.ndarray)) for row in y)
        ):
            return False
        if len({len(row) if np.ndim(row) == 1 else -1 for row in y}) > 1:
            return False
        y = np.asarray(y)
    if len(y.shape) != 2 or y.shape[1] < 2:
        return False
    kinds = {np.dtype(kind).kind for kind in y.dtypes} if hasattr(y, "dtypes") else {y.dtype.kind}
    return kinds <= set("biuf")


def encode_class_probabilities(y: Any, name: str = "y") -> tuple[FloatCSR, ClassSpace]:
    """Bring probabilities of classes into the one form that the library computes on.

    Args:
        y: N x K numbers from 0 to 1 whose rows add up to one (within 0.001; they are scaled to it), sparse or not. The
            columns of a data frame are named after the classes; those of others are the classes 0 to K - 1.
        name: what to call y in messages.

    Returns:
        N x K float32 CSR, what is zero not stored, with columns in the order of the classes; and these.

    Raises:
        DataError: a value is outside 0 to 1, a row does not add up to one (it is named), or the columns of a data frame
            have no different names of one kind.
    """
    space, order = _classes(y, name)
    given: Any = y if issparse(y) else np.asarray(y)
    matrix = csr_matrix(given, dtype=np.float64, copy=True)
    matrix.sum_duplicates()
    bad = np.flatnonzero(~((matrix.data >= 0) & (matrix.data <= 1)))
    if bad.size:
        row, column = entry_position(matrix, int(bad[0]))
        raise DataError(
            f"{name} has one column for each class and must hold probabilities from 0 to 1, but has "
            f"{matrix.data[bad[0]]:g} at row {row}, column {column} (counted from 0)"
        )
    totals = np.asarray(matrix.sum(axis=1)).ravel()
    bad = np.flatnonzero(np.abs(totals - 1) > _TOLERANCE)
    if bad.size:
        raise DataError(
            f"{name} should be a 1d array of one class a row, or one probability for each class; its shape is "
            f"{matrix.shape}, but row {bad[0]} (counted from 0) adds up to {totals[bad[0]]:g}, not 1: scale it, or for "
            "several labels a row use MultiLabelGPClassifier"
        )
    matrix.data /= np.repeat(totals, np.diff(matrix.indptr))
    found: FloatCSR = csr_matrix(matrix[:, order], dtype=np.float32)
    found.eliminate_zeros()
    found.sort_indices()
    return found, space


def class_probabilities_of(y: Any, space: ClassSpace, name: str = "y") -> FloatCSR:
    """Probabilities of known classes, N x K; as `encode_class_probabilities`.

    Raises:
        DataError: the classes of the columns are others, or what `encode_class_probabilities` refuses.
    """
    found, own = encode_class_probabilities(y, name)
    if own != space and not (_unnamed(y) and len(own) == len(space)):
        raise DataError(f"the columns of {name} stand for {own!r}, but the model has {space!r}")
    return found


def _unnamed(y: Any) -> bool:
    return not hasattr(y, "columns")


def _classes(y: Any, name: str) -> tuple[ClassSpace, NDArray[np.int64]]:
    """The classes of the columns, and the columns in the order of the classes."""
    n_classes = np.shape(y)[1]
    if _unnamed(y):
        return ClassSpace(np.arange(n_classes)), np.arange(n_classes)
    try:
        space = ClassSpace(list(y.columns))
    except DataError as error:
        raise DataError(f"the columns of {name} are no names of classes: {error}") from error
    return space, np.argsort(space.encode(list(y.columns)), kind="stable")


def refuse_soft_sequences(y: Any) -> None:
    """Refuse sequences of probabilities in place of labels.

    Raises:
        DataError: a sequence has them.
    """
    several = (list, tuple, np.ndarray)
    for s, labels in enumerate(y if isinstance(y, several) else ()):
        if isinstance(labels, several) and len(labels) and isinstance(labels[0], several):
            raise DataError(
                f"y[{s}] has several numbers for each token: there are no soft labels of sequences, for they do not "
                "say how likely whole labellings are; give the sequence once for each that it may have, with its "
                "probability as sample_weight"
            )
