"""Whether numbers tell of labels what others do not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_STANDARD_ERRORS = 2.0
_LEAST_PROBABILITY = 1e-9


def says_more(
    values: NDArray[Any],
    fewer: NDArray[Any],
    present: NDArray[np.bool_],
    rows: NDArray[np.int64],
    weights: NDArray[Any],
    *,
    least_gain: float,
) -> bool:
    """Whether labels are more probable by some numbers than by fewer of them.

    Logistic regressions on both, learnt on one half of the rows and judged on the other, tell: the log-likelihood of a
    row has to rise by two standard errors.

    Args:
        values: numbers that speak for pairs of a row and a label.
        fewer: without those that are in doubt.
        present: whether the row has the label.
        rows: of the pairs.
        weights: what the rows of the pairs count.
        least_gain: the share of the log-likelihood by which it has to rise, as numbers cost time.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    halves = rows % 2
    if any(len(np.unique(present[halves == half])) < 2 for half in (0, 1)):
        return False
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
    by_chance = _STANDARD_ERRORS * gains.std() / np.sqrt(len(gains))
    return bool(gains.mean() > max(by_chance, -least_gain * of_rows[1].mean()))
