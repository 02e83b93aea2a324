"""The training rows whose inputs are most alike, and what their labels say."""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from extremegp.engine.compiled import compiled, in_lanes, keep_best
from extremegp.label_tree.columns import ColumnLists
from extremegp.label_tree.evidence import N_NEIGHBOURS

MOST_READ = 1_000_000
"""Entries of lists of rows that a search reads of an input."""


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


def nearest_of(
    x: scipy.sparse.csr_matrix, columns: ColumnLists, own: NDArray[np.int64], most_read: int = MOST_READ
) -> NearestRows:
    """The rows nearest to B inputs; see `nearest_rows`."""
    n = x.shape[0]
    rows, similarities = np.zeros((n, N_NEIGHBOURS + 1), np.int32), np.zeros((n, N_NEIGHBOURS + 1), np.float32)
    sizes = np.zeros(n, np.int64)
    nearest_rows(
        n, x.indptr, x.indices, x.data, *columns.arrays(), columns.n_rows, own, most_read, rows, similarities, sizes,
    )  # fmt: skip
    return NearestRows(rows, similarities, sizes)


@compiled
@no_type_check
def _add_products(
    features: Any, values: Any, column_starts: Any, column_ends: Any, column_rows: Any, column_data: Any,
    most_read: int, sums: Any, seen: Any, touched: Any,
) -> int:  # fmt: skip
    """Add an input's inner products with the rows to `sums`, and leave the rows in `touched`: how many."""
    lengths = np.empty(len(features), np.int64)
    for j in range(len(features)):
        lengths[j] = column_ends[features[j]] - column_starts[features[j]]
    n_touched, n_read = 0, 0
    for j in np.argsort(lengths, kind="mergesort"):
        n_read += lengths[j]
        if n_read > most_read and n_read > lengths[j]:
            break
        feature, value = features[j], values[j]
        for q in range(column_starts[feature], column_ends[feature]):
            row = column_rows[q]
            if not seen[row]:
                seen[row] = True
                touched[n_touched] = row
                n_touched += 1
            sums[row] += value * column_data[q]
    return n_touched


@in_lanes
@no_type_check
def nearest_rows(
    lane: int, n_lanes: int, indptr: Any, indices: Any, data: Any, column_starts: Any, column_ends: Any,
    column_rows: Any, column_data: Any, n_rows: int, own: Any, most_read: int, nearest: Any, similarities: Any,
    sizes: Any,
) -> None:  # fmt: skip
    """The rows with the largest inner products x'x_i, by the lists of the rows that have each feature.

    Args:
        lane: which part of the work.
        n_lanes: of how many.
        indptr: with `indices` and `data` the inputs, CSR, B x D.
        indices: see `indptr`.
        data: see `indptr`.
        column_starts: with the next three the training inputs by columns, see `ColumnLists`.
        column_ends: see `ColumnLists`.
        column_rows: see `ColumnLists`.
        column_data: see `ColumnLists`.
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
        of_input = slice(indptr[i], indptr[i + 1])
        n_touched = _add_products(
            indices[of_input], data[of_input], column_starts, column_ends, column_rows, column_data, most_read, sums,
            seen, touched,
        )  # fmt: skip
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


@in_lanes
@no_type_check
def unexplained_rows(
    lane: int, n_lanes: int, indptr: Any, indices: Any, data: Any, row_indptr: Any, row_indices: Any, row_data: Any,
    column_starts: Any, column_ends: Any, column_rows: Any, column_data: Any, own: Any, weights: Any, n_features: int,
    most_read: int, rows: Any, sizes: Any,
) -> None:  # fmt: skip
    """The rows that a regression on other rows speaks of least, with the largest |x_j'(x - sum_i w_i x_i)|.

    They are what the regression's loss falls fastest by, if they are taken into it: rows that share with the input what
    the others lack, and rows that share with the others what the input lacks.

    Args:
        lane: which part of the work.
        n_lanes: of how many.
        indptr: with `indices` and `data` the inputs, CSR, B x D.
        indices: see `indptr`.
        data: see `indptr`.
        row_indptr: with `row_indices` and `row_data` the training rows, CSR, N x D.
        row_indices: see `row_indptr`.
        row_data: see `row_indptr`.
        column_starts: with the next three the same by columns, see `ColumnLists`.
        column_ends: see `ColumnLists`.
        column_rows: see `ColumnLists`.
        column_data: see `ColumnLists`.
        own: the training row that an input is, which is not taken; -1 for new inputs.
        weights: w of the rows that are taken already, B x m.
        n_features: of the difference, to look at: the largest.
        most_read: see `nearest_rows`.
        rows: in the first m columns the rows that are taken already, B x m'; the others follow, best first.
        sizes: how many are taken already, and in the end how many there are.
    """
    n_rows, n_known = len(row_indptr) - 1, weights.shape[1]
    sums, touched = np.zeros(n_rows, np.float32), np.empty(n_rows, np.int32)
    seen = np.zeros(n_rows, np.bool_)
    difference, place = np.zeros(len(column_starts), np.float32), np.zeros(len(column_starts), np.bool_)
    entries, sizes_of = np.empty(len(difference), np.int32), np.zeros(len(difference), np.float32)
    largest, scores = np.empty(n_features, np.int32), np.empty(n_features, np.float32)
    best, best_scores = np.empty(rows.shape[1] - n_known, np.int32), np.empty(rows.shape[1] - n_known, np.float32)
    for i in range(lane, len(indptr) - 1, n_lanes):
        n_entries, size = 0, min(sizes[i], n_known)
        for j in range(indptr[i], indptr[i + 1]):
            entries[n_entries] = indices[j]
            n_entries += 1
            place[indices[j]] = True
            difference[indices[j]] = data[j]
        for q in range(size):
            for j in range(row_indptr[rows[i, q]], row_indptr[rows[i, q] + 1]):
                if not place[row_indices[j]]:
                    entries[n_entries] = row_indices[j]
                    n_entries += 1
                    place[row_indices[j]] = True
                difference[row_indices[j]] -= weights[i, q] * row_data[j]
        for t in range(n_entries):
            sizes_of[entries[t]] = abs(difference[entries[t]])
        n_largest = keep_best(sizes_of, entries, n_entries, largest, scores)
        features = np.sort(largest[:n_largest])
        n_touched = _add_products(
            features, difference[features], column_starts, column_ends, column_rows, column_data, most_read, sums,
            seen, touched,
        )  # fmt: skip
        for t in range(n_touched):
            sums[touched[t]] = abs(sums[touched[t]])
        for q in range(size):
            if seen[rows[i, q]]:
                sums[rows[i, q]] = -1
        if own[i] >= 0 and seen[own[i]]:
            sums[own[i]] = -1
        n_best = keep_best(sums, touched, n_touched, best, best_scores)
        for t in np.argsort(-best_scores[:n_best], kind="mergesort"):
            if best_scores[t] >= 0:
                rows[i, size] = best[t]
                size += 1
        sizes[i] = size
        for t in range(n_touched):
            sums[touched[t]], seen[touched[t]] = 0, False
        for t in range(n_entries):
            difference[entries[t]], place[entries[t]] = 0, False
