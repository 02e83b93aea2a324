"""How errors and losses fall when a model predicts only where it is confident: selective prediction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from extremegp.errors import DataError


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Losses of the predictions that are kept when only the most confident are (El-Yaniv & Wiener, JMLR 2010).

    Args:
        coverage: B, share of the predictions that is kept, 1 / B to 1.
        risk: B, mean loss of the kept predictions: of errors, the share that is wrong.
        best_risk: B, risk had every prediction been more confident than all of greater loss.
    """

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]
    best_risk: NDArray[np.float64]

    @property
    def area(self) -> float:
        """Mean risk over coverages, AURC (Geifman et al., ICLR 2019)."""
        return float(self.risk.mean())

    @property
    def best_area(self) -> float:
        """The least area that confidences could give these losses."""
        return float(self.best_risk.mean())

    @property
    def excess_area(self) -> float:
        """What of the area better confidences could take away, E-AURC (Geifman et al., ICLR 2019)."""
        return max(0.0, self.area - self.best_area)


def risk_coverage(correct: ArrayLike, confidence: ArrayLike) -> RiskCoverage:
    """Find how the error falls as the least confident predictions are left out.

    Args:
        correct: B booleans, whether each prediction is right.
        confidence: as in `loss_coverage`.

    Returns:
        Coverage and risk at each number of predictions kept.

    Raises:
        DataError: there are no predictions, `correct` is not boolean, shapes differ, or a confidence is NaN.
    """
    right = np.asarray(correct)
    if right.dtype != np.bool_:
        raise DataError(
            f"selective prediction needs a boolean for each prediction; got {right.dtype} of shape {right.shape}"
        )
    return loss_coverage(~right, confidence)


def loss_coverage(losses: ArrayLike, confidence: ArrayLike) -> RiskCoverage:
    """Find how the mean loss falls as the least confident predictions are left out.

    Args:
        losses: B finite numbers, what each prediction costs.
        confidence: B numbers, greater where a loss is likely to be less. Among equal ones every order is as likely, and
            the risk is the mean over orders.

    Returns:
        Coverage and risk at each number of predictions kept.

    Raises:
        DataError: there are no predictions, losses are not finite, shapes differ, or a confidence is NaN.
    """
    costs, given = np.asarray(losses), np.asarray(confidence)
    numeric = costs.dtype.kind in "biuf" and given.dtype.kind in "biuf"
    if not numeric or costs.ndim != 1 or costs.shape != given.shape:
        raise DataError(
            f"selective prediction needs a loss and a confidence for each prediction; got {costs.dtype} of shape "
            f"{costs.shape} and {given.dtype} of shape {given.shape}"
        )
    if len(costs) == 0:
        raise DataError("selective prediction needs one or more predictions; got none")
    for place in np.flatnonzero(~np.isfinite(costs))[:1]:
        raise DataError(f"the loss of prediction {place} is {costs[place]}, which has no mean")
    for place in np.flatnonzero(np.isnan(given))[:1]:
        raise DataError(f"the confidence of prediction {place} is NaN, which has no rank")
    order = np.argsort(given, kind="stable")[::-1]
    ranked, of_ranked = given[order], costs[order].astype(np.float64)
    starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    sizes = np.diff(np.append(starts, len(ranked)))
    tied = np.add.reduceat(of_ranked, starts)
    kept = np.arange(1, len(ranked) + 1)
    within = kept - np.repeat(starts, sizes)
    sums = np.repeat(tied.cumsum() - tied, sizes) + within * np.repeat(tied, sizes) / np.repeat(sizes, sizes)
    return RiskCoverage(kept / len(ranked), sums / kept, np.sort(of_ranked).cumsum() / kept)
