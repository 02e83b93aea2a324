"""How sure figures are: intervals by resampling test rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from extremegp.metrics.confusion import ratio

N_RESAMPLES = 1000
_AT_ONCE = 20
_TAILS, _NORMAL = (2.5, 97.5), 1.96

Interval = tuple[float, float]


@dataclass
class RowSums:
    """What figures are made of, for each of N rows or sequences, in parts that come one after the other.

    Attributes:
        ratios: figures that are a sum over rows divided by another: numerators and denominators.
        errors: calibration errors: of every row and bin the sum of probabilities less the true outcomes, and how many
            probabilities a row has.
        macro: figures that are means of F1 over labels: of rows and labels what is right, predicted and true.
    """

    ratios: dict[str, list[tuple[NDArray[Any], NDArray[Any]]]] = field(default_factory=dict)
    errors: dict[str, list[tuple[NDArray[Any], NDArray[Any]]]] = field(default_factory=dict)
    macro: dict[str, list[tuple[Any, Any, Any]]] = field(default_factory=dict)

    def add_mean(self, name: str, values: NDArray[Any]) -> None:
        """A mean over rows."""
        self.add_ratio(name, values, np.ones(len(values)))

    def add_ratio(self, name: str, part: NDArray[Any], whole: NDArray[Any]) -> None:
        """A sum over rows divided by another."""
        self.ratios.setdefault(name, []).append((part.astype(np.float64), whole.astype(np.float64)))

    def add_error(
        self,
        name: str,
        n_rows: int,
        rows: NDArray[Any],
        p: NDArray[Any],
        true: NDArray[Any],
        n_bins: int = 15,
    ) -> None:
        """A calibration error, of probabilities p whose outcomes are known and which belong to some of the rows."""
        bins = np.minimum((p * n_bins).astype(np.int64), n_bins - 1)
        excess = np.bincount(rows * n_bins + bins, p.astype(np.float64) - true, n_rows * n_bins)
        counts = np.bincount(rows, minlength=n_rows)
        self.errors.setdefault(name, []).append((excess.reshape(n_rows, n_bins).astype(np.float32), counts))

    def add_macro(self, name: str, right: Any, predicted: Any, true: Any) -> None:
        """A mean of F1 over labels."""
        first, second, third = (csr_matrix(part, dtype=np.float32) for part in (right, predicted, true))
        self.macro.setdefault(name, []).append((first, second, third))

    def intervals(self, seed: int, n_resamples: int = N_RESAMPLES) -> dict[str, Interval]:
        """95 % intervals by the bootstrap over rows (Efron and Tibshirani 1993, chapter 13).

        They are percentiles of resampled figures. Resampling adds noise to calibration errors, which are sums of
        absolute values, as sampling did: the intervals of these are reflected about the estimate (the basic bootstrap),
        and no less than 0. Resamples leave out many labels that one row has, which moves means over labels: theirs are
        the figure and 1.96 standard errors to both sides.

        Args:
            seed: decides the draws.
            n_resamples: how many.
        """
        if not self.ratios:
            return {}
        drawn: dict[str, list[NDArray[Any]]] = {}
        stacked = _Stacked(self)
        for weights in _resampled(stacked.n_rows, n_resamples, seed):
            for name, values in stacked.figures(weights).items():
                drawn.setdefault(name, []).append(values)
        estimates = stacked.figures(np.ones((1, stacked.n_rows)))
        found = {}
        for name, parts in drawn.items():
            values, estimate = np.concatenate(parts), float(estimates[name][0])
            low, high = (float(value) for value in np.percentile(values, _TAILS))
            if name in self.errors:
                low, high = max(0.0, 2 * estimate - high), max(0.0, 2 * estimate - low)
            elif name in self.macro:
                margin = _NORMAL * float(values.std(ddof=1))
                low, high = max(0.0, estimate - margin), min(1.0, estimate + margin)
            found[name] = low, high
        return found

    def estimates(self) -> dict[str, float]:
        """The figures themselves."""
        stacked = _Stacked(self)
        return {name: float(value[0]) for name, value in stacked.figures(np.ones((1, stacked.n_rows))).items()}


class _Stacked:
    """All rows, and figures of them with any weights."""

    def __init__(self, sums: RowSums) -> None:
        self._ratios = {name: _joined(parts) for name, parts in sums.ratios.items()}
        self._errors = {name: _joined(parts) for name, parts in sums.errors.items()}
        self._macro = {
            name: [_below([part[i] for part in parts]).T.tocsr() for i in range(3)]
            for name, parts in sums.macro.items()
        }
        self.n_rows = len(next(iter(self._ratios.values()))[0])

    def figures(self, weights: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Of each of R weights of the N rows, R x N, the figures."""
        found = {name: ratio(weights @ part, weights @ whole) for name, (part, whole) in self._ratios.items()}
        for name, (excess, counts) in self._errors.items():
            found[name] = ratio(np.abs(weights @ excess).sum(axis=1), weights @ counts)
        for name, parts in self._macro.items():
            right, predicted, true = (np.asarray(part @ weights.T) for part in parts)
            present = true > 0
            f1 = ratio(2 * right, predicted + true)
            found[name] = ratio((f1 * present).sum(axis=0), present.sum(axis=0))
        return found


def _joined(parts: list[tuple[NDArray[Any], NDArray[Any]]]) -> tuple[NDArray[Any], NDArray[Any]]:
    first, second = zip(*parts, strict=True)
    return np.concatenate(first), np.concatenate(second)


def _below(parts: list[Any]) -> csr_matrix:
    from scipy.sparse import vstack

    return csr_matrix(vstack(parts))


def _resampled(n_rows: int, n_resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each row is drawn, in some of the resamples at a time."""
    rng = np.random.default_rng(seed)
    for start in range(0, n_resamples, _AT_ONCE):
        n = min(_AT_ONCE, n_resamples - start)
        yield np.stack([np.bincount(rng.integers(0, n_rows, n_rows), minlength=n_rows) for _ in range(n)]).astype(
            np.float64
        )
