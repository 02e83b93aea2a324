"""How the error falls when a model predicts only where it is confident: selective prediction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from extremegp.errors import DataError


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Errors among the predictions that are kept when only the most confident are (El-Yaniv & Wiener, JMLR 2010).

    Args:
        coverage: B, share of the predictions that is kept, 1 / B to 1.
        risk: B, share of the kept predictions that is wrong.
    """

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]

    @property
    def best_risk(self) -> NDArray[np.float64]:
        """B, risk had every right prediction been more confident than every wrong one."""
        kept = np.arange(1, len(self.risk) + 1)
        n_right = len(self.risk) - round(len(self.risk) * self.risk[-1])
        return np.asarray(np.maximum(0, kept - n_right) / kept)

    @property
    def area(self) -> float:
        """Mean risk over coverages, AURC (Geifman et al., ICLR 2019)."""
        return float(self.risk.mean())

    @property
    def excess_area(self) -> float:
        """What of the area better confidences could take away, E-AURC (Geifman et al., ICLR 2019)."""
        return max(0.0, self.area - float(self.best_risk.mean()))


def risk_coverage(correct: ArrayLike, confidence: ArrayLike) -> RiskCoverage:
    """Find how the error falls as the least confident predictions are left out.

    Args:
        correct: B booleans, whether each prediction is right.
        confidence: B numbers, greater where a prediction is more likely to be right. Among equal ones every order is as
            likely, and the risk is the mean over orders.

    Returns:
        Coverage and risk at each number of predictions kept.

    Raises:
        DataError: there are no predictions, `correct` is not boolean, shapes differ, or a confidence is NaN.
    """
    right, given = np.asarray(correct), np.asarray(confidence)
    if right.dtype != np.bool_ or right.ndim != 1 or right.shape != given.shape or given.dtype.kind not in "biuf":
        raise DataError(
            f"selective prediction needs a boolean and a confidence for each prediction; got {right.dtype} of shape "
            f"{right.shape} and {given.dtype} of shape {given.shape}"
        )
    if len(right) == 0:
        raise DataError("selective prediction needs one or more predictions; got none")
    for place in np.flatnonzero(np.isnan(given))[:1]:
        raise DataError(f"the confidence of prediction {place} is NaN, which has no rank")
    order = np.argsort(given, kind="stable")[::-1]
    ranked = given[order]
    starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    sizes = np.diff(np.append(starts, len(ranked)))
    wrong = np.add.reduceat(~right[order], starts, dtype=np.int64)
    kept = np.arange(1, len(ranked) + 1)
    within = kept - np.repeat(starts, sizes)
    errors = np.repeat(wrong.cumsum() - wrong, sizes) + within * np.repeat(wrong, sizes) / np.repeat(sizes, sizes)
    return RiskCoverage(kept / len(ranked), errors / kept)
