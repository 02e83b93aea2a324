"""The functions of labels that training did not know, by the few rows that have them and the rows near those.

A trained function of a label that no row has is low everywhere near the data, with the variance of rare labels. From
there a row that has the label raises it, and rows beside that have it not keep it low, as a Laplace approximation has
it: the most probable function given these rows, the regression of the label taken as known. Other rows say what they
said before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

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


def telling_rows(covariances: Float[Tensor, "N P"], present: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows that have a label, and those nearest to them that have it not.

    Args:
        covariances: of all rows with those that have the label.
        present: numbers of these.
    """
    near = covariances.amax(1).numpy().copy()
    near[present] = -np.inf
    others = np.argsort(-near, kind="stable")[: min(_NEAR, len(near) - len(present))]
    return np.concatenate([present, np.sort(others)])


def most_probable(rows: LabelRows, scale: float, variances: Float[Tensor, " M"]) -> Float[Tensor, " M"]:
    """The weights v ~ N(0, diag d) of a function s a'v at the most of sum_i w_i log p(y_i | f_i), by Newton's steps.

    Args:
        rows: that tell of the label.
        scale: s.
        variances: d.
    """
    raised = rows.a * (scale * variances)
    covariance = scale * raised @ rows.a.T
    signs = torch.where(rows.present, 1.0, -1.0).double()
    amounts = torch.zeros_like(rows.known)

    def value(amounts: Tensor) -> float:
        along = covariance @ amounts
        likely = torch.nn.functional.logsigmoid(signs * (rows.known + along))
        return float(rows.weights @ likely - 0.5 * amounts @ along)

    best = value(amounts)
    for _ in range(_STEPS):
        missing = torch.sigmoid(-signs * (rows.known + covariance @ amounts))
        slope = rows.weights * missing * (1 - missing)
        system = torch.eye(len(amounts)).double() + slope.unsqueeze(1) * covariance
        step = torch.linalg.solve(system, rows.weights * signs * missing - amounts)
        share = 1.0
        while (found := value(amounts + share * step)) < best and share > 1e-9:
            share /= 2
        amounts = amounts + share * step
        gained, best = found - best, found
        if gained < _ENOUGH:
            break
    return raised.T @ amounts
