"""Features that speak against a label: rows that have them have it less often than the rows that are like them.

A word is none of its own synonyms, though all words that are like it have it as theirs. What nearest rows say of a
label is right on average, and wrong wherever such a feature is. So the rows with label k that the nearest rows let
one expect among those with feature f, E_fk, are set beside those that there are, O_fk. Where the log-ratio
log (O_fk + 1) / (E_fk + 1), with one more row in each to shrink it (as the gamma prior of DuMouchel 1999 does), is far
below 0, the feature excludes the label, more or less.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, no_type_check

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from extremegp.engine.compiled import in_lanes, keep_best
from extremegp.label_tree.columns import ColumnLists
from extremegp.label_tree.evidence import SHARES
from extremegp.label_tree.evidence_gain import Gain, gain_of
from extremegp.label_tree.neighbours import nearest_of
from extremegp.label_tree.tree import are_starts

if TYPE_CHECKING:
    from sklearn.isotonic import IsotonicRegression

_NEAR, _POWER = SHARES[1]
_BEST, _LEAST_SHARE = 40, 0.01
# Fewer than a prediction reads: all rows are looked for here.
_MOST_READ = 50_000
# Log-ratios beyond it are what chance makes of rare features.
_GREATEST = -0.5
_PILOT_ROWS, _MOST_ROWS, _JUDGING_ROWS, _BLOCK_ROWS = 5000, 100_000, 1000, 1024
_LEAST_PROBABILITY, _LEAST_GAIN = 1e-6, 0.005


class Pairs(NamedTuple):
    """Pairs of a label and a feature, by labels.

    Attributes:
        starts: where the pairs of each label start, K + 1.
        features: ascending for each label.
        log_ratios: of these.
    """

    starts: NDArray[np.int64]
    features: NDArray[np.int32]
    log_ratios: NDArray[np.float32]

    def lowest(
        self, x: scipy.sparse.csr_matrix, rows: NDArray[np.int64], labels: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """The lowest log-ratio of a label and any feature of a row, or 0.

        Args:
            x: inputs, B x D.
            rows: ascending.
            labels: one for each of these.
        """
        found, ends = np.zeros(len(rows), np.float32), np.searchsorted(rows, np.arange(x.shape[0] + 1))
        lowest_log_ratios(x.shape[0], x.indptr, x.indices, x.shape[1], ends, labels, *self, found)
        return found


class Exclusions(nn.Module):
    """The pairs that a model knows.

    Args:
        n_pairs: how many.
        n_features: D.
        n_labels: K.
    """

    starts: Tensor
    features: Tensor
    log_ratios: Tensor

    def __init__(self, n_pairs: int, n_features: int, n_labels: int) -> None:
        super().__init__()
        self.register_buffer("starts", torch.zeros(n_labels + 1, dtype=torch.int64))
        self.register_buffer("features", torch.zeros(n_pairs, dtype=torch.int32))
        self.register_buffer("log_ratios", torch.zeros(n_pairs))
        self.index_limits = {"starts": n_pairs + 1, "features": n_features}

    def pairs(self) -> Pairs:
        """As arrays."""
        return Pairs(self.starts.numpy(), self.features.numpy(), self.log_ratios.numpy())

    def is_sound(self) -> bool:
        """Whether the labels' pairs follow each other."""
        return are_starts(self.starts.numpy(), len(self.features))


class _Expected(NamedTuple):
    """Labels that nearest rows have, of some rows: with the shares of these, and whether the rows have them too."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int32]
    shares: NDArray[np.float32]
    present: NDArray[np.bool_]


class ExclusionSearch:
    """Finds exclusions, on some rows first, and on more only if on rows held out these say something.

    Args:
        x: inputs, N x D, with ascending columns.
        y: labels, N x K.
        seen_y: of the rows that are not held out, what they count.
        seen: which rows these are, ascending.
        held_out: the others.
        weights: what the rows count, N.
        rng: decides which rows are looked at.
    """

    def __init__(
        self,
        x: scipy.sparse.csr_matrix,
        y: scipy.sparse.csr_matrix,
        seen_y: scipy.sparse.csr_matrix,
        seen: NDArray[np.int64],
        held_out: NDArray[np.int64],
        *,
        weights: NDArray[np.float32],
        rng: np.random.Generator,
    ) -> None:
        self._x, self._y, self._seen_y, self._weights = x, y, seen_y, weights
        self._columns = ColumnLists.of(x)
        self._judging = np.sort(rng.permutation(held_out)[:_JUDGING_ROWS])
        order = rng.permutation(seen)
        self._parts = order[:_PILOT_ROWS], order[_PILOT_ROWS:_MOST_ROWS]
        self.pairs: Pairs | None = None
        self.gain = Gain(0.0, 0.0)

    def steps(self) -> Iterator[float]:
        """The search, a block of rows at a time: how much of it is done. `pairs` are what it has found."""
        n_rows, expected = sum(map(len, self._parts)), []
        for part in self._parts:
            if not len(part):
                continue
            for start in range(0, len(part), _BLOCK_ROWS):
                expected.append(self._expected(np.sort(part[start : start + _BLOCK_ROWS])))
                yield min(1.0, len(expected) * _BLOCK_ROWS / n_rows)
            joined = _Expected(*map(np.concatenate, zip(*expected, strict=True)))
            calibrated = _calibration(joined)
            found = self._found(joined, calibrated)
            if part is self._parts[0]:
                self.gain = self._gain(found, calibrated)
                if not self.gain.is_enough(_LEAST_GAIN):
                    return
            self.pairs = found

    def _expected(self, rows: NDArray[np.int64]) -> _Expected:
        near = nearest_of(self._x[rows], self._columns, rows, _MOST_READ)
        shape = len(rows), _BEST
        labels, shares, present = np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(shape, np.bool_)
        sizes = np.zeros(len(rows), np.int64)
        best_shares(
            len(rows), *near, self._weights, self._seen_y.indptr, self._seen_y.indices, rows, self._y.indptr,
            self._y.indices, self._y.shape[1], labels, shares, present, sizes,
        )  # fmt: skip
        taken = (np.arange(_BEST) < sizes[:, None]) & (shares >= _LEAST_SHARE)
        return _Expected(np.repeat(rows, taken.sum(axis=1)), labels[taken], shares[taken], present[taken])

    def _found(self, of: _Expected, calibrated: IsotonicRegression) -> Pairs:
        order, k = np.argsort(of.labels, kind="stable"), self._y.shape[1]
        rows, weights = of.rows[order], self._weights[of.rows[order]]
        starts = np.append(0, np.cumsum(np.bincount(of.labels, minlength=k)))
        chances = calibrated.predict(of.shares[order]) if len(order) else of.shares
        expected = (chances * weights).astype(np.float32)
        observed = (of.present[order] * weights).astype(np.float32)
        arguments = (starts, rows, expected, observed, self._x.indptr, self._x.indices, self._x.shape[1])
        sizes = np.zeros(k, np.int64)
        excluding_features(k, *arguments, np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), sizes)
        places = np.append(0, np.cumsum(sizes))
        found = Pairs(places, np.zeros(places[-1], np.int32), np.zeros(places[-1], np.float32))
        excluding_features(k, *arguments, *found, sizes)
        return found

    def _gain(self, pairs: Pairs, calibrated: IsotonicRegression) -> Gain:
        """How much more probable the labels of rows held out are with the exclusions than without."""
        of = self._expected(self._judging)
        if not len(of.rows):
            return Gain(0.0, 0.0)
        place = np.searchsorted(self._judging, of.rows)
        chances = calibrated.predict(of.shares).clip(_LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
        without = np.log(chances / (1 - chances))[:, None]
        with_them = np.column_stack([without, pairs.lowest(self._x[self._judging], place, of.labels)])
        return gain_of(with_them, without, of.present, place, self._weights[of.rows])


def _calibration(of: _Expected) -> IsotonicRegression:
    """How probable labels with a share are."""
    from sklearn.isotonic import IsotonicRegression

    some = np.linspace(0, len(of.shares) - 1, min(len(of.shares), 200_000)).round().astype(np.int64)
    shares, present = of.shares[some], of.present[some]
    if not len(some):
        # Rows without any that is near.
        shares, present = np.zeros(1, np.float32), np.zeros(1, np.bool_)
    return IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(shares, present)


@in_lanes
@no_type_check
def best_shares(
    lane: int, n_lanes: int, nearest: Any, similarities: Any, sizes: Any, row_weights: Any, y_indptr: Any,
    y_labels: Any, own: Any, own_indptr: Any, own_labels: Any, n_labels: int, labels: Any, shares: Any, present: Any,
    n_found: Any,
) -> None:  # fmt: skip
    """Labels with the largest shares among the nearest rows, as `gather_evidence` has them.

    Args:
        lane: which part of the work.
        n_lanes: of how many.
        nearest: training rows, B x m, best first.
        similarities: their inner products.
        sizes: how many there are.
        row_weights: what the training rows count (N).
        y_indptr: with `y_labels` the labels that count, N x K.
        y_labels: see `y_indptr`.
        own: the training rows that are looked at, B.
        own_indptr: with `own_labels` the labels that these have, N x K.
        own_labels: see `own_indptr`.
        n_labels: K.
        labels: results from here on, B x m'.
        shares: of these.
        present: whether the row has them.
        n_found: how many there are.
    """
    sums, touched = np.zeros(n_labels, np.float32), np.empty(n_labels, np.int32)
    seen, has = np.zeros(n_labels, np.bool_), np.zeros(n_labels, np.bool_)
    for i in range(lane, len(nearest), n_lanes):
        n_touched, n_near, total = 0, min(_NEAR, sizes[i]), np.float32(1e-9)
        for q in range(n_near):
            total += max(similarities[i, q], np.float32(0)) ** _POWER * row_weights[nearest[i, q]]
        for q in range(n_near):
            weight = max(similarities[i, q], np.float32(0)) ** _POWER * row_weights[nearest[i, q]] / total
            for j in range(y_indptr[nearest[i, q]], y_indptr[nearest[i, q] + 1]):
                label = y_labels[j]
                if not seen[label]:
                    seen[label] = True
                    touched[n_touched] = label
                    n_touched += 1
                sums[label] += weight
        size = keep_best(sums, touched, n_touched, labels[i], shares[i])
        for j in range(own_indptr[own[i]], own_indptr[own[i] + 1]):
            has[own_labels[j]] = True
        for q in range(size):
            present[i, q] = has[labels[i, q]]
        for j in range(own_indptr[own[i]], own_indptr[own[i] + 1]):
            has[own_labels[j]] = False
        for t in range(n_touched):
            sums[touched[t]], seen[touched[t]] = 0, False
        n_found[i] = size


@in_lanes
@no_type_check
def excluding_features(
    lane: int, n_lanes: int, starts: Any, rows: Any, expected: Any, observed: Any, indptr: Any, indices: Any,
    n_features: int, places: Any, features: Any, log_ratios: Any, sizes: Any,
) -> None:  # fmt: skip
    """Features of the rows that may have a label, where these have it much less often than is expected.

    Args:
        lane: which part of the work.
        n_lanes: of how many.
        starts: with `rows` the rows that may have each label, K + 1.
        rows: see `starts`.
        expected: what they are expected to count with it.
        observed: what they do.
        indptr: with `indices` the features of the rows, N x D.
        indices: see `indptr`.
        n_features: D.
        places: where the pairs of each label go, K + 1; without any they are counted only.
        features: results from here on, ascending for each label.
        log_ratios: of these features.
        sizes: how many each label has, K.
    """
    sums, touched = np.zeros((n_features, 2), np.float32), np.empty(n_features, np.int32)
    seen = np.zeros(n_features, np.bool_)
    for label in range(lane, len(starts) - 1, n_lanes):
        n_touched, n_kept = 0, 0
        for q in range(starts[label], starts[label + 1]):
            for j in range(indptr[rows[q]], indptr[rows[q] + 1]):
                feature = indices[j]
                if not seen[feature]:
                    seen[feature] = True
                    touched[n_touched] = feature
                    n_touched += 1
                sums[feature, 0] += observed[q]
                sums[feature, 1] += expected[q]
        for t in range(n_touched):
            feature = touched[t]
            seen[feature] = False
            sums[feature, 0] = np.log((sums[feature, 0] + 1) / (sums[feature, 1] + 1))
            sums[feature, 1] = 0
            if sums[feature, 0] < _GREATEST:
                touched[n_kept] = feature
                n_kept += 1
            else:
                sums[feature, 0] = 0
        ordered = np.sort(touched[:n_kept])
        for t in range(n_kept):
            if len(places):
                features[places[label] + t], log_ratios[places[label] + t] = ordered[t], sums[ordered[t], 0]
            sums[ordered[t], 0] = 0
        sizes[label] = n_kept


@in_lanes
@no_type_check
def lowest_log_ratios(
    lane: int, n_lanes: int, indptr: Any, indices: Any, n_features: int, ends: Any, labels: Any, starts: Any,
    features: Any, log_ratios: Any, found: Any,
) -> None:  # fmt: skip
    """Of some labels of every row, the lowest log-ratio with any of its features.

    Args:
        lane: which part of the work.
        n_lanes: of how many.
        indptr: with `indices` the features of the rows, B x D.
        indices: see `indptr`.
        n_features: D.
        ends: with `labels` the labels of the rows, B + 1.
        labels: see `ends`.
        starts: with `features` and `log_ratios` the pairs of each label, K + 1.
        features: see `starts`.
        log_ratios: see `starts`.
        found: result, for each of the labels, 0 before.
    """
    has = np.zeros(n_features, np.bool_)
    for i in range(lane, len(indptr) - 1, n_lanes):
        for j in range(indptr[i], indptr[i + 1]):
            has[indices[j]] = True
        for q in range(ends[i], ends[i + 1]):
            for t in range(starts[labels[q]], starts[labels[q] + 1]):
                if has[features[t]] and log_ratios[t] < found[q]:
                    found[q] = log_ratios[t]
        for j in range(indptr[i], indptr[i + 1]):
            has[indices[j]] = False
