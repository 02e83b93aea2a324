"""The training rows whose inputs are most alike, and what their labels say."""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import numpy as np
from numpy.typing import NDArray

from extremegp.label_tree._compiled import in_lanes, keep_best


class NearestRows(NamedTuple):
    """The training rows that are nearest to each of B inputs.

    Attributes:
        rows: B x m, best first.
        similarities: their inner products with the input.
        sizes: how many there are.
    """

    rows: NDArray[np.int32]
    similarities: NDArray[np.float32]
    sizes: NDArray[np.int64]


@in_lanes
@no_type_check
def nearest_rows(
    lane: int, n_lanes: int, indptr: Any, indices: Any, data: Any, column_indptr: Any, column_rows: Any,
    column_data: Any, n_rows: int, own: Any, most_read: int, nearest: Any, similarities: Any, sizes: Any,
) -> None:  # fmt: skip
    """The rows with the largest inner products x'x_i, by the lists of the rows that have each feature.

    Args:
        lane: which part of the work.
        n_lanes: of how many.
        indptr: with `indices` and `data` the inputs, CSR, B x D.
        indices: see `indptr`.
        data: see `indptr`.
        column_indptr: with `column_rows` and `column_data` the training inputs by columns, D x N.
        column_rows: see `column_indptr`.
        column_data: see `column_indptr`.
        n_rows: N.
        own: the training row that an input is, which is none of its neighbours; -1 for new inputs. Rows that are in the
            training data have one neighbour less.
        most_read: entries of lists to read for an input; the longest lists, of the commonest features, are left out
            first, but the shortest is always read.
        nearest: results from here on: rows, B x m, best first.
        similarities: their inner products.
        sizes: how many there are.
    """
    sums, touched = np.zeros(n_rows, np.float32), np.empty(n_rows, np.int32)
    seen = np.zeros(n_rows, np.bool_)
    for i in range(lane, len(indptr) - 1, n_lanes):
        start, end = indptr[i], indptr[i + 1]
        lengths = np.empty(end - start, np.int64)
        for j in range(start, end):
            lengths[j - start] = column_indptr[indices[j] + 1] - column_indptr[indices[j]]
        n_touched, n_read = 0, 0
        for j in np.argsort(lengths, kind="mergesort"):
            n_read += lengths[j]
            if n_read > most_read and n_read > lengths[j]:
                break
            feature, value = indices[start + j], data[start + j]
            for q in range(column_indptr[feature], column_indptr[feature + 1]):
                row = column_rows[q]
                if not seen[row]:
                    seen[row] = True
                    touched[n_touched] = row
                    n_touched += 1
                sums[row] += value * column_data[q]
        size = keep_best(sums, touched, n_touched, nearest[i], similarities[i])
        order = np.argsort(-similarities[i, :size], kind="mergesort")
        similarities[i, :size], nearest[i, :size] = similarities[i, :size][order], nearest[i, :size][order]
        if own[i] >= 0:
            n_others = 0
            for t in range(size):
                if nearest[i, t] != own[i]:
                    nearest[i, n_others], similarities[i, n_others] = nearest[i, t], similarities[i, t]
                    n_others += 1
            size = n_others
        sizes[i] = size
        for t in range(n_touched):
            sums[touched[t]], seen[touched[t]] = 0, False
