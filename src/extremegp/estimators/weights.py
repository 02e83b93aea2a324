"""Rows that count more or less than others, and labels that are probabilities: what all estimators make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from extremegp.data import FloatCSR
from extremegp.data.rows import take_rows
from extremegp.data.validation import check_weights
from extremegp.engine.likelihoods import Likelihood
from extremegp.engine.matrices import column_counts, column_sums, is_mapped
from extremegp.errors import DataError, SettingsError
from extremegp.metrics import TopK

_LEAST_WEIGHT, _LEAST_SHARE = 1e-30, 1e-12


def without_absent(
    X: Any, y: Any, sample_weight: Any, *, of: str = "row"
) -> tuple[Any, Any, NDArray[np.float64] | None]:
    """Inputs, targets and weights without the rows of weight 0; the weights are None where every row counts once.

    Raises:
        DataError: the weights cannot be used, or X has not as many rows as y.
    """
    weights = None if sample_weight is None else check_weights(sample_weight, _n_rows(y), of=of)
    if weights is not None:
        _check_range(weights, of)
    if weights is None or weights.all():
        return X, y, weights
    if _n_rows(X) != _n_rows(y):
        raise DataError(f"X has {_n_rows(X)} {of}s and y has {_n_rows(y)}: they must be the same in the same order")
    kept = np.flatnonzero(weights)
    return _taken(X, kept), _taken(y, kept), check_weights(weights[kept], len(kept))


def _check_range(weights: NDArray[np.float64], of: str) -> None:
    """Refuse weights that single precision cannot tell from 0 or from infinity beside the others."""
    least = max(_LEAST_WEIGHT, weights.max() * _LEAST_SHARE)
    for row in np.flatnonzero((weights > 0) & ((weights < least) | (weights > 1 / _LEAST_WEIGHT)))[:1]:
        raise DataError(
            f"sample_weight of {of} {row} (counted from 0) is {weights[row]:g}: weights other than 0 must lie between "
            f"{_LEAST_WEIGHT:g} and {1 / _LEAST_WEIGHT:g}, and the greatest be at most {1 / _LEAST_SHARE:g} times the "
            "least; give 0 to leave it out"
        )


def _n_rows(data: Any) -> int:
    if isinstance(data, Mapping):
        return _n_rows(next(iter(data.values()), ()))
    shape = getattr(data, "shape", None)
    return int(shape[0]) if shape else len(_indexable(data))


def _taken(data: Any, rows: NDArray[np.int64]) -> Any:
    if isinstance(data, Mapping):
        # Blocks of features.
        return {name: _taken(block, rows) for name, block in data.items()}
    return take_rows(data, rows) if is_mapped(data) else _safe_indexing(_indexable(data), rows)


def _indexable(data: Any) -> Any:
    """What may only say that an array can be made of it, as one."""
    return data if hasattr(data, "shape") or hasattr(data, "__len__") else np.asarray(data)


def are_soft(y: FloatCSR) -> bool:
    """Whether a label of some row is a probability between 0 and 1."""
    return not is_mapped(y) and bool((y.data < 1).any())


def label_counts(y: FloatCSR, weights: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
    """Rows with each label, K; of soft labels and weighted rows their sums, rounded."""
    if weights is None and not are_soft(y):
        return column_counts(y)
    return np.rint(column_sums(y.sign() if y.nnz and y.data.max() > 1 else y, weights)).astype(np.int64)


def check_likelihood(
    likelihood: Likelihood, y: FloatCSR, weights: NDArray[np.float64] | None, *, by_pairs: bool
) -> None:
    """Refuse weights and soft labels that a likelihood, or its training by pairs of classes, does not take.

    Raises:
        SettingsError: it does not.
    """
    name = type(likelihood).__name__
    if weights is not None and not likelihood.takes_weights:
        raise SettingsError(
            f"{name} takes no sample_weight: leave it out, or let its expected_log_prob count rows by batch.weights "
            "and set takes_weights = True"
        )
    if likelihood.has_counts or not are_soft(y):
        return
    if not likelihood.takes_soft_labels:
        raise SettingsError(f"{name} takes no soft labels: give labels that are 0 or 1")
    if likelihood.stores_rows:
        raise SettingsError(
            "local='stored' keeps parameters of the one class of each row, and soft labels have several: use "
            "local='optimal' or 'amortised'"
        )
    if by_pairs:
        raise SettingsError(
            "class_sampling='pair' takes the rows of one class, and soft labels have several: use 'frequency' or "
            "'uniform'"
        )


def first_gains(y: FloatCSR, best: TopK) -> NDArray[np.float64]:
    """1 for rows whose best label is one of theirs, else 0; of soft labels the probability that it is. N."""
    labels = best.labels[:, 0]
    found = np.asarray(y[np.arange(len(labels)), np.maximum(labels, 0)], dtype=np.float64).ravel()
    return np.where(labels >= 0, found, 0.0)


def weighted_mean(values: NDArray[Any], sample_weight: Any, *, of: str = "row") -> float:
    """The mean of N values, which count alike or by their weights.

    Raises:
        DataError: the weights cannot be used.
    """
    return float(np.average(values, weights=check_weights(sample_weight, len(values), of=of)))
