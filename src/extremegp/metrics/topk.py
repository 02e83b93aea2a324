"""The k best labels of each row, and the checks that every metric makes of its inputs.

One order holds everywhere: score descending, then label index ascending. Scores are rounded to float32 before they are
compared, so that an order survives being stored and read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix, issparse

from extremegp.errors import DataError, SettingsError

PAD = -1
# Elements of a dense block handled at once: the 64-bit keys made of them then stay in a processor's cache.
_CHUNK = 1 << 18


@dataclass(frozen=True, eq=False)
class TopK:
    """The k best labels of N rows, best first; ties go to the lower label index.

    A row with fewer than k labels ends in pads: label -1, score -inf. A label whose score is -inf is never a
    prediction, so pads and scores of -inf are the same entries.

    Args:
        labels: N x k label indices (int64), -1 where padded.
        scores: N x k scores (float32), -inf where padded.

    Raises:
        DataError: shapes differ, a score is NaN, a label repeats within a row, or the order above does not hold.
    """

    labels: NDArray[np.int64]
    scores: NDArray[np.float32]

    def __post_init__(self) -> None:
        labels, scores = np.asarray(self.labels), _as_float32(self.scores, "TopK scores")
        if labels.ndim != 2 or labels.shape != scores.shape or labels.dtype.kind not in "iu":
            raise DataError(
                f"TopK needs integer labels and scores of one shape N x k; got {labels.dtype} {labels.shape} "
                f"and {scores.dtype} {scores.shape}"
            )
        labels = labels.astype(np.int64, copy=False)
        check_positive_int(labels.shape[1], "k")
        if not np.array_equal(labels == PAD, scores == -np.inf) or labels.min(initial=PAD) < PAD:
            raise DataError("TopK pads with label -1 and score -inf together; other labels are at least 0")
        before, after = scores[:, :-1], scores[:, 1:]
        tie_in_order = (before == after) & ((labels[:, :-1] < labels[:, 1:]) | (labels[:, 1:] == PAD))
        if not np.all((before > after) | tie_in_order):
            raise DataError("TopK rows run from the best score down, ties by label index; build them with from_scores")
        by_label = np.sort(labels, axis=1)
        if np.any((by_label[:, 1:] == by_label[:, :-1]) & (by_label[:, 1:] != PAD)):
            raise DataError("a row of TopK holds the same label twice; a label is predicted at most once per row")
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "scores", scores)

    @property
    def k(self) -> int:
        """Number of columns."""
        return int(self.labels.shape[1])

    @classmethod
    def from_scores(cls, scores: ArrayLike, k: int) -> TopK:
        """Take the k best labels of each row of a dense block.

        Args:
            scores: B x K scores; -inf marks a label that must not be predicted.
            k: number of columns to keep; beyond K the columns are pads.

        Returns:
            B rows, k columns.

        Raises:
            DataError: scores are not a numeric B x K block, or hold NaN.
            SettingsError: k is not a positive integer.
        """
        block = np.asarray(scores)
        if block.ndim != 2:
            raise DataError(f"scores must be a block of rows x labels; got an array of shape {block.shape}")
        check_positive_int(k, "k")
        n_rows, n_labels = block.shape
        kept = min(k, n_labels)
        labels = np.full((n_rows, k), PAD, dtype=np.int64)
        best = np.full((n_rows, k), -np.inf, dtype=np.float32)
        step = max(1, _CHUNK // max(n_labels, 1))
        for start in range(0, n_rows if kept else 0, step):
            part = _as_float32(block[start : start + step], "scores")
            keys = np.partition(_keys(part), n_labels - kept, axis=1)[:, n_labels - kept :]
            keys.sort(axis=1)
            chosen = n_labels - 1 - (keys[:, ::-1] & 0xFFFFFFFF)
            labels[start : start + step, :kept] = chosen
            best[start : start + step, :kept] = np.take_along_axis(part, chosen, axis=1)
        labels[best == -np.inf] = PAD
        return cls(labels, best)

    @classmethod
    def from_csr(cls, scores: Any, k: int | None = None) -> TopK:
        """Take the k best stored entries of each row of a sparse matrix of scores.

        A stored zero is a prediction with score 0; an entry that is not stored is no prediction.

        Args:
            scores: N x K sparse scores.
            k: number of columns; the longest row's entries by default, and at least one.

        Returns:
            N rows, k columns.

        Raises:
            DataError: scores are not sparse N x K, hold NaN, or store a label twice in a row.
            SettingsError: k is not a positive integer.
        """
        if not bool(issparse(scores)) or len(scores.shape) != 2:
            raise DataError("from_csr reads a sparse matrix of rows x labels; use from_scores for a dense block")
        matrix = csr_matrix(scores)
        data = _as_float32(matrix.data, "scores")
        if k is None:
            k = max(1, int(np.diff(matrix.indptr).max(initial=0)))
        check_positive_int(k, "k")
        positions = leading_entries(matrix.indptr, matrix.indices, data, k)
        best = np.append(data, np.float32(-np.inf))[positions]
        labels = np.append(matrix.indices.astype(np.int64), PAD)[positions]
        labels[best == -np.inf] = PAD
        return cls(labels, best)

    @classmethod
    def concatenate(cls, parts: Sequence[TopK]) -> TopK:
        """Stack the rows of several blocks.

        Args:
            parts: at least one TopK, all of the same k.

        Returns:
            All rows in order.

        Raises:
            DataError: there are no parts, or their k differ.
        """
        if not parts or len({part.k for part in parts}) > 1:
            raise DataError(f"concatenate needs one or more TopK of the same k; got k = {[part.k for part in parts]}")
        return cls(np.concatenate([part.labels for part in parts]), np.concatenate([part.scores for part in parts]))

    def to_csr(self, n_labels: int) -> csr_matrix:
        """Give the scores as a sparse matrix; `from_csr(..., k)` brings the same TopK back.

        Args:
            n_labels: K, the number of columns of the result.

        Returns:
            N x K scores (float32), column indices sorted; pads are not stored, scores of 0 are.

        Raises:
            DataError: a label index is K or more.
        """
        check_labels(self, n_labels)
        stored = self.labels != PAD
        indptr = np.concatenate([[0], np.cumsum(stored.sum(axis=1))])
        matrix = csr_matrix((self.scores[stored], self.labels[stored], indptr), shape=(len(self.labels), n_labels))
        matrix.sort_indices()
        return matrix


def as_topk(predictions: Any, k: int) -> TopK:
    """Read predictions in any accepted form as a TopK of at least k columns.

    Args:
        predictions: a TopK, an N x K sparse matrix of scores, or an N x K dense block of scores.
        k: number of columns needed.

    Returns:
        A TopK; one that was given is returned as it is.

    Raises:
        DataError: the scores cannot be used.
        SettingsError: a TopK of fewer than k columns was given: what lies beyond its columns is unknown.
    """
    if not isinstance(predictions, TopK):
        return TopK.from_csr(predictions, k) if issparse(predictions) else TopK.from_scores(predictions, k)
    if predictions.k < k:
        raise SettingsError(f"a metric at k = {k} needs the {k} best labels; this TopK holds {predictions.k}")
    return predictions


def leading_entries(indptr: ArrayLike, indices: ArrayLike, values: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Find the k greatest entries of each CSR row, ties by column index.

    Args:
        indptr: N + 1 row starts.
        indices: column of each entry.
        values: value of each entry.
        k: number of entries to find.

    Returns:
        N x k positions into `values`, greatest first; -1 where the row has fewer entries.
    """
    starts, lengths, columns = np.asarray(indptr)[:-1], np.diff(indptr), np.asarray(indices)
    positions = np.full((len(starts), k), PAD, dtype=np.int64)
    # Rows of one length form a block: sorting many short rows costs a fraction of one sort over all entries.
    for length in np.unique(lengths[lengths > 0]):
        rows = np.flatnonzero(lengths == length)
        entries = starts[rows, None] + np.arange(length)
        order = np.lexsort((columns[entries], -values[entries]))[:, :k]
        positions[rows, : order.shape[1]] = np.take_along_axis(entries, order, axis=1)
    return positions


def indicator(truth: Any) -> csr_matrix:
    """Check the true labels and give them as a canonical CSR indicator; the input is left as it was.

    Args:
        truth: N x K of zeros and ones, sparse or dense; rows without labels are allowed.

    Returns:
        N x K with sorted indices, and only ones stored.

    Raises:
        DataError: not two-dimensional, no rows, or a value other than 0 and 1.
    """
    given: Any = truth if issparse(truth) else np.asarray(truth)
    if given.ndim != 2 or given.shape[0] == 0 or given.dtype.kind not in "biuf":
        raise DataError(f"true labels must be a 0/1 indicator of rows x labels, with rows; got shape {given.shape}")
    matrix = csr_matrix(given)
    if not (matrix.has_canonical_format and matrix.data.all()):
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    if not np.all(matrix.data == 1):
        other = matrix.data[matrix.data != 1][0]
        raise DataError(
            f"true labels must be 0 or 1, each stored once; found {other}. For counts or weights pass Y > 0"
        )
    return matrix


def check_labels(topk: TopK, n_labels: int) -> None:
    """Raise DataError unless every label of `topk` is below `n_labels`."""
    largest = int(topk.labels.max(initial=PAD))
    if largest >= n_labels:
        raise DataError(f"label {largest} is predicted, but there are {n_labels} labels (0 to {n_labels - 1})")


def check_positive_int(value: object, name: str) -> None:
    """Raise SettingsError unless `value` is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise SettingsError(f"{name} must be a positive integer; got {value!r}")


def _as_float32(scores: ArrayLike, name: str) -> NDArray[np.float32]:
    values = np.asarray(scores)
    if values.dtype.kind not in "biuf":
        raise DataError(f"{name} must be real numbers; got {values.dtype}")
    with np.errstate(over="ignore"):
        values = values.astype(np.float32, copy=False)
    if np.isnan(values).any():
        raise DataError(f"{name} hold NaN, which has no rank; look for a diverged model or missing input values")
    return values


def _keys(scores: NDArray[np.float32]) -> NDArray[np.int64]:
    """Keys that ascend as scores ascend and, among equal scores, as the column index descends.

    All keys of a row differ, so a partition of them is exact where one of the scores would break ties arbitrarily.
    """
    # Adding zero turns -0.0, which has other bits, into 0.0.
    bits = (scores + np.float32(0)).view(np.int32)
    # Negative floats ascend as their bits descend, sign aside.
    bits ^= (bits >> 31) & np.int32(0x7FFFFFFF)
    return (bits.astype(np.int64) << 32) | np.arange(scores.shape[1] - 1, -1, -1)
