"""Expectations of softplus, sigma and sigma' under a Gaussian, by dense integration in float64 and in mpmath."""

from __future__ import annotations

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray


def softplus_moments(mean: ArrayLike, variance: ArrayLike) -> NDArray[np.float64]:
    """E softplus(f), E sigma(f), E sigma'(f), stacked in front of the broadcast shape; variance > 0.

    The trapezoidal rule on a grid that covers both the Gaussian and its product with e^f. The integrands are positive
    and analytic in |Im f| < pi, so the step below leaves a relative error near that of float64 itself in either tail.
    """
    mean, variance = np.broadcast_arrays(np.asarray(mean, float), np.asarray(variance, float))
    result = np.empty((3, *mean.shape))
    for at in np.ndindex(mean.shape):
        m, s = -abs(mean[at]), np.sqrt(variance[at])
        step = min(s / 3, 0.4)
        # Offsets from the mean, so that a tiny step does not drown in the rounding of m + offset.
        offset = np.arange(np.floor(-12 * s / step), np.ceil((s * s + 12 * s) / step) + 1) * step
        weight = step / (np.sqrt(2 * np.pi) * s) * np.exp(-0.5 * (offset / s) ** 2)
        f = m + offset
        e = np.exp(-np.abs(f))
        softplus = weight @ (np.maximum(f, 0) + np.log1p(e))
        sigmoid = weight @ (np.where(f < 0, e, 1) / (1 + e))
        slope = weight @ (e / (1 + e) ** 2)
        result[:, *at] = (softplus - m, 1 - sigmoid, slope) if mean[at] > 0 else (softplus, sigmoid, slope)
    return result


def softplus_moments_mpmath(mean: float, variance: float) -> list[float]:
    """The same three numbers by adaptive quadrature in 40 digits: slow, and sharing no step with the one above."""
    with mpmath.workdps(40):
        m, v = mpmath.mpf(mean), mpmath.mpf(variance)
        s = mpmath.sqrt(v)
        low, high = m - 30 * s, max(m, m + v) + 30 * s
        inner = [m - 8 * s, m, m + 8 * s, m + v - 8 * s, m + v, m + v + 8 * s, -8, 0, 8]
        points = sorted({low, high, *(mpmath.mpf(p) for p in inner if low < p < high)})

        def expect(function: object) -> float:
            return float(mpmath.quad(lambda f: mpmath.npdf(f, m, s) * function(f), points))  # type: ignore[operator]

        return [
            expect(lambda f: mpmath.log1p(mpmath.exp(f))),
            expect(lambda f: 1 / (1 + mpmath.exp(-f))),
            expect(lambda f: 1 / ((1 + mpmath.exp(-f)) * (1 + mpmath.exp(f)))),
        ]


def expected_log_recorded(label: float, mean: float, variance: float, propensity: float) -> float:
    """E log p(label | f), f ~ N(mean, variance), where a label that applies is recorded with some probability only."""
    standard = np.linspace(-12, 12, 4001)
    density = np.exp(-0.5 * standard**2) / np.sqrt(2 * np.pi)
    f = mean + np.sqrt(variance) * standard
    # 1 - p sigma(f) without a difference.
    chance = propensity / (1 + np.exp(-f)) if label else (1 - propensity) + propensity / (1 + np.exp(f))
    return float(np.sum(density * np.log(chance)) * (standard[1] - standard[0]))
