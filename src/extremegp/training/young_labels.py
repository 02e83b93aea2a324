"""The functions of labels that training did not know, by the few rows that have them and the rows near those.

A trained function of a label that no row has is low everywhere near the data, with the variance of rare labels. From
there a row that has the label raises it, and rows beside that have it not keep it low, as a Laplace approximation has
it: the most probable function given these rows, the regression of the label taken as known. Other rows say what they
said before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import scipy.special
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.exact_updates import Change, RidgeUpdates
from extremegp.engine.landmarks import Landmarks
from extremegp.training.known_rows import KnownRows

_NEAR = 16
_STEPS, _ENOUGH = 100, 1e-12


class LabelRows(NamedTuple):
    """Rows that tell of a label.

    Attributes:
        a: their features, n x M.
        known: their utilities, but for the function of the label, n.
        present: whether they have the label, n.
        weights: what each counts, n.
    """

    a: Float[Tensor, "n M"]
    known: Float[Tensor, " n"]
    present: Bool[Tensor, " n"]
    weights: Float[Tensor, " n"]


class _Telling(NamedTuple):
    """Rows that tell of a label, some of which have it.

    Attributes:
        rows: their places among all.
        present: whether they have it.
        least: covariance, with the nearest row that has it, from which on a row is one of these.
    """

    rows: NDArray[np.int64]
    present: NDArray[np.bool_]
    least: float

    @classmethod
    def of(cls, covariances: Float[Tensor, "N P"], present: NDArray[np.int64]) -> _Telling:
        """Those that have a label, and those nearest to them that have it not.

        Args:
            covariances: of all rows with those that have the label.
            present: places of these.
        """
        near = covariances.amax(1).numpy().copy()
        near[present] = -np.inf
        n = min(_NEAR, len(near) - len(present))
        others = np.sort(np.argsort(-near, kind="stable")[:n])
        least = float(near[others].min()) if n == _NEAR else -np.inf
        has = np.arange(len(present) + n) < len(present)
        return cls(np.concatenate([present, others]), has, least)


class YoungLabels:
    """The rows that tell of labels that training did not know, kept so that a row more changes little.

    Args:
        landmarks: of the features.
        ridge: the regression on them.
        all_rows: gives the rows that there are.

    Attributes:
        solved: what was last found for each label.
    """

    def __init__(self, landmarks: Landmarks, ridge: RidgeUpdates, all_rows: Callable[[], KnownRows]) -> None:
        self._landmarks, self._ridge, self._all_rows = landmarks, ridge, all_rows
        self.begin_anew()

    def begin_anew(self) -> None:
        """Keep nothing: labels, landmarks or coordinates are others."""
        self._known, self._telling, self._asked = False, dict[int, _Telling](), set[int]()
        self._having: tuple[NDArray[np.int64], Any] = np.zeros(0, np.int64), None
        self.solved = dict[int, Solved]()
        # Rows that tell of any label, their features a, a H^-1 and weights, by place.
        self._places, self._weights = np.zeros(0, np.int64), np.zeros(0)
        self._a = self._along = torch.zeros(0, len(self._landmarks)).double()
        self._changes: list[Change] = []

    def add(self, row: KnownRows, place: int, young: NDArray[np.bool_], change: Change) -> None:
        """Know of a row more, which changed the regression."""
        if not self._known:
            return
        self._changes.append(change)
        own = row.y.indices[young[row.y.indices] & (row.y.data != 0)]
        self._asked |= {*own.tolist()}
        places, x = self._having
        if x is None:
            return
        points = self._landmarks.kept.scaled_points(torch.float64).of_rows(row.x)
        near = torch.cat([*points.covariances(points.of_rows(x))])[0].numpy()
        for label, telling in self._telling.items():
            of_label = np.searchsorted(places, telling.rows[telling.present])
            if near[of_label].max() > telling.least:
                self._asked.add(label)

    def remove(self, place: int, change: Change | None) -> None:
        """Know of a row that went; without a change of the regression all is worked out anew."""
        if change is None or not self._known:
            self.begin_anew()
            return
        self._changes.append(change)
        self._asked |= {label for label, telling in self._telling.items() if place in telling.rows}
        self._telling = {
            label: telling._replace(rows=telling.rows - (telling.rows > place))
            for label, telling in self._telling.items()
            if label not in self._asked
        }
        self._keep(self._places[self._places != place])
        self._places = self._places - (self._places > place)
        places, x = self._having
        if x is not None:
            kept = places != place
            self._having = places[kept] - (places[kept] > place), x[kept] if kept.any() else None

    def told(self, young: NDArray[np.bool_]) -> Iterator[tuple[int, LabelRows, Callable[[Tensor], Tensor]]]:
        """Every young label that some row has, with the rows that tell of it.

        Args:
            young: which labels are, K.

        Returns:
            An iterator of labels, of their rows, whose utilities are not known yet, and of what makes of a column of
            the regression's solution its value at each row, were that not in it.
        """
        self._catch_up(young)
        hat = torch.from_numpy(self._weights) * (self._along * self._a).sum(1)
        hat = hat.clamp(max=1 - 1e-4)
        for label, (rows, present, _) in sorted(self._telling.items()):
            some = torch.from_numpy(np.searchsorted(self._places, rows))
            a, labelled = self._a[some], torch.from_numpy(present)

            def left_out(fitted: Tensor, own: Tensor = hat[some], labelled: Tensor = labelled) -> Tensor:
                return (fitted - own * labelled) / (1 - own)

            yield label, LabelRows(a, torch.zeros(0), labelled, torch.from_numpy(self._weights)[some]), left_out

    def _catch_up(self, young: NDArray[np.bool_]) -> None:
        if self._changes:
            directions = torch.stack([change.direction for change in self._changes])
            factors = torch.tensor([change.factor for change in self._changes]).double()
            self._along -= ((self._a @ directions.T) * factors) @ directions
            self._changes = []
        asked = self._asked if self._known else {*np.flatnonzero(young).tolist()}
        self._known, self._asked = True, set()
        if not asked:
            return
        rows = self._all_rows()
        columns = scipy.sparse.csc_matrix(rows.y[:, sorted(asked)])
        columns.eliminate_zeros()
        scaled = self._landmarks.kept.scaled_points(torch.float64)
        for number, label in enumerate(sorted(asked)):
            own = np.sort(columns.indices[columns.indptr[number] : columns.indptr[number + 1]]).astype(np.int64)
            self._telling.pop(label, None)
            self.solved.pop(label, None)
            if len(own):
                points = scaled.of_rows(rows.x[own])
                self._telling[label] = _Telling.of(torch.cat([*points.of_rows(rows.x).covariances(points)]), own)
        none = [np.zeros(0, np.int64)]
        every = np.unique(np.concatenate(none + [telling.rows for telling in self._telling.values()]))
        having = np.unique(np.concatenate(none + [each.rows[each.present] for each in self._telling.values()]))
        self._having = having, rows.x[having] if len(having) else None
        new = np.setdiff1d(every, self._places)
        self._keep(np.intersect1d(every, self._places))
        if len(new):
            a = self._landmarks.exactly(rows.x[new])
            order = np.argsort(np.concatenate([self._places, new]))
            self._places = np.concatenate([self._places, new])[order]
            self._weights = np.concatenate([self._weights, rows.weights[new]])[order]
            self._a = torch.cat([self._a, a])[order]
            self._along = torch.cat([self._along, a @ self._ridge.inverse()])[order]

    def _keep(self, places: NDArray[np.int64]) -> None:
        """Of the rows that tell, only these."""
        kept = np.isin(self._places, places)
        self._places, self._weights = self._places[kept], self._weights[kept]
        self._a, self._along = self._a[kept], self._along[kept]


class Solved(NamedTuple):
    """The most probable function given some rows, and what it was found by.

    Attributes:
        covariance: of the rows under the function, n x n.
        amounts: v = s d a' amounts.
    """

    covariance: NDArray[np.float64]
    amounts: NDArray[np.float64]


def most_probable(
    rows: LabelRows, scale: float, variances: Float[Tensor, " M"], start: Solved | None = None
) -> tuple[Float[Tensor, " M"], Solved]:
    """The weights v ~ N(0, diag d) of a function s a'v at the most of sum_i w_i log p(y_i | f_i), by Newton's steps.

    Args:
        rows: that tell of the label.
        scale: s.
        variances: d.
        start: what was found for the same rows when the regression was another.
    """
    raised = rows.a * (scale * variances)
    if start is None:
        start = Solved((scale * raised @ rows.a.T).numpy(), np.zeros(len(raised)))
    covariance, amounts = start
    known, weights = rows.known.numpy(), rows.weights.numpy()
    signs, one = np.where(rows.present.numpy(), 1.0, -1.0), np.eye(len(amounts))

    def value(amounts: NDArray[np.float64]) -> float:
        along = covariance @ amounts
        return float(-weights @ np.logaddexp(0, -signs * (known + along)) - 0.5 * amounts @ along)

    best = value(amounts)
    for _ in range(_STEPS):
        missing = scipy.special.expit(-signs * (known + covariance @ amounts))
        slope = weights * missing * (1 - missing)
        step = np.linalg.solve(one + slope[:, None] * covariance, weights * signs * missing - amounts)
        share = 1.0
        while (found := value(amounts + share * step)) < best - _ENOUGH and share > 1e-9:
            share /= 2
        amounts = amounts + share * step
        gained, best = found - best, found
        if gained < _ENOUGH:
            break
    return raised.T @ torch.from_numpy(amounts), Solved(covariance, amounts)
