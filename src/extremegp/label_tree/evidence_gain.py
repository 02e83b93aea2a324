"""How much numbers tell of labels that others do not."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremegp.engine.selection import Selection

_STANDARD_ERRORS = 2.0
_LEAST_PROBABILITY = 1e-9


class Gain(NamedTuple):
    """By which share of the log-likelihood of rows that of some numbers is above that of fewer.

    Attributes:
        share: of the log-likelihood.
        error: its standard error.
    """

    share: float
    error: float

    def is_enough(self, least: float) -> bool:
        """Whether it is at least a share, as numbers cost time, and more than chance makes of nothing."""
        return self.share > max(least, _STANDARD_ERRORS * self.error)

    def selection(self, what: str, *, used: bool) -> Selection:
        """What was tried, and whether it is used."""
        tried = [(("used",), self.share), (("not used",), 0.0)]
        return Selection.of(
            "gain of log-likelihood on rows held out, as a share", {what: "used" if used else "not used"}, tried
        )


def gain_of(
    values: NDArray[Any],
    fewer: NDArray[Any],
    present: NDArray[np.bool_],
    rows: NDArray[np.int64],
    weights: NDArray[Any],
) -> Gain:
    """How much more probable labels are by some numbers than by fewer of them.

    Logistic regressions on both, learnt on one half of the rows and judged on the other, tell.

    Args:
        values: numbers that speak for pairs of a row and a label.
        fewer: without those that are in doubt.
        present: whether the row has the label.
        rows: of the pairs.
        weights: what the rows of the pairs count.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    halves = rows % 2
    if any(len(np.unique(present[halves == half])) < 2 for half in (0, 1)):
        return Gain(0.0, 0.0)
    of_rows = []
    for numbers in (values, fewer):
        chances = np.empty(len(present))
        for half in (0, 1):
            kind = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
            kind.fit(
                numbers[halves == half],
                present[halves == half],
                logisticregression__sample_weight=weights[halves == half],
            )
            chances[halves != half] = kind.predict_proba(numbers[halves != half])[:, 1]
        logarithms = np.log(np.where(present, chances, 1 - chances).clip(_LEAST_PROBABILITY))
        of_rows.append(np.bincount(rows, weights * logarithms))
    gains = of_rows[0] - of_rows[1]
    before = max(float(-of_rows[1].mean()), _LEAST_PROBABILITY)
    return Gain(float(gains.mean()) / before, float(gains.std() / np.sqrt(len(gains))) / before)
