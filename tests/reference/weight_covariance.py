"""The posterior covariance of weights that functions share, by an inverse of the whole precision matrix."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def covariance(phi: NDArray[np.float64], curvature: NDArray[np.float64], prior_variance: float) -> NDArray[np.float64]:
    """(I / t + sum_i lambda_i phi_i phi_i')^-1, F x F."""
    precision = np.eye(phi.shape[1]) / prior_variance
    for row, weight in zip(phi, curvature, strict=True):
        precision += weight * np.outer(row, row)
    return np.linalg.inv(precision)


def divergence(covariance: NDArray[np.float64], prior_variance: float) -> float:
    """KL[N(0, S) || N(0, t I)]."""
    size = len(covariance)
    log_det = np.linalg.slogdet(covariance / prior_variance)[1]
    return float(0.5 * (np.trace(covariance) / prior_variance - size - log_det))
