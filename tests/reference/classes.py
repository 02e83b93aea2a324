"""Likelihoods of one class out of K by loops, dense integration and Monte Carlo."""

from __future__ import annotations

from collections.abc import Iterator

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, expit, log_ndtr, logsumexp
from tests.reference.expectations import softplus_moments

Array = NDArray[np.float64]


def log_minus_expected_log_ndtr(mean: float, variance: float) -> list[float]:
    """Logs of -E log Phi, E h and -E h', f ~ N(mean, variance): the trapezoidal rule with 8000 steps, in log space."""
    s = np.sqrt(variance)
    low = min(mean - 14 * s, mean / (1 + variance) - 14 * s / np.sqrt(1 + variance))
    f = np.linspace(low, mean + 14 * s, 8001)
    log_weight = -0.5 * ((f - mean) / s) ** 2 - np.log(s * np.sqrt(2 * np.pi)) + np.log(f[1] - f[0])
    log_upper = log_ndtr(-np.abs(f))
    log_value = np.where(f < 5, np.log(-log_ndtr(np.minimum(f, 5))), log_upper + 0.5 * np.exp(log_upper))
    log_mills = np.where(
        f < 0,
        0.5 * np.log(2 / np.pi) - np.log(erfcx(np.maximum(-f, 0) / np.sqrt(2))),
        -0.5 * f**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(f),
    )
    # h + f by Laplace's continued fraction where it would be a difference of nearly equal numbers.
    x = np.maximum(-f, 8.0)
    fraction = np.zeros_like(x)
    for k in range(60, 0, -1):
        fraction = k / (x + fraction)
    log_slope = log_mills + np.log(np.where(f < -8, fraction, np.exp(log_mills) + f))
    return [float(logsumexp(log_weight + term)) for term in (log_value, log_mills, log_slope)]


def log_ndtr_derivatives(f: float) -> list[float]:
    """log Phi, phi / Phi and the derivative of that, in 40 digits."""
    with mpmath.workdps(40 + int(f * f / 4)):
        x = mpmath.mpf(f)
        mills = mpmath.npdf(x) / mpmath.ncdf(x)
        return [float(mpmath.log(mpmath.ncdf(x))), float(mills), float(-mills * (mills + x))]


def one_vs_each(mean: Array, variance: Array, c: int, weights: Array | None = None) -> float:
    """sum_{l != c} w_l E log sigma(f_c - f_l) for independent f_k ~ N(mean_k, variance_k)."""
    total = 0.0
    for k in range(len(mean)):
        if k != c:
            softplus = softplus_moments(mean[k] - mean[c], variance[k] + variance[c])[0]
            total -= float(softplus) * (1.0 if weights is None else weights[k])
    return total


def probit_one_vs_each(mean: Array, variance: Array, c: int) -> float:
    """sum_{l != c} E log Phi(f_c - f_l) for independent f_k."""
    return -sum(
        np.exp(log_minus_expected_log_ndtr(mean[c] - mean[k], variance[c] + variance[k])[0])
        for k in range(len(mean))
        if k != c
    )


def augment_reduce_softmax(mean: Array, variance: Array, c: int, alpha: float) -> float:
    """X 17, term by term."""
    total = 1.0
    for k in range(len(mean)):
        if k != c:
            total += np.exp(mean[k] - mean[c] + (variance[k] + variance[c]) / 2)
    return float(1.0 - np.log(alpha) - total / alpha)


def augment_reduce_logit(mean: Array, variance: Array, c: int, mu: float, beta: float) -> float:
    """X 15 with a logistic q(eps) itself, the expectation over eps a dense sum."""
    e = np.linspace(-45, 45, 3001)
    weight = np.exp(-np.abs(e)) / (1 + np.exp(-np.abs(e))) ** 2 * (e[1] - e[0])
    eps = mu + beta * e
    log_q = -np.abs(e) - 2 * np.log1p(np.exp(-np.abs(e))) - np.log(beta)
    term = -np.abs(eps) - 2 * np.log1p(np.exp(-np.abs(eps))) - log_q
    for k in range(len(mean)):
        if k != c:
            term -= softplus_moments(mean[k] - mean[c] - eps, np.full_like(eps, variance[k] + variance[c]))[0]
    return float(weight @ term)


def log_highest_probability(mean: Array, variance: Array, c: int) -> float:
    """log P(f_c is the highest), independent f_k: Simpson's rule between nodes at the scale of every class in turn."""
    s = np.sqrt(variance)
    others = [k for k in range(len(mean)) if k != c]

    def log_integrand(f: Array) -> Array:
        z = (f[:, None] - mean[others]) / s[others]
        return log_ndtr(z).sum(1) - 0.5 * ((f - mean[c]) / s[c]) ** 2 - np.log(s[c] * np.sqrt(2 * np.pi))

    low, high = (mean - 40 * s).min(), (mean + 40 * s).max()
    for _ in range(60):  # ternary search for the mode of a concave function
        probe = np.linspace(low, high, 7)
        best = int(log_integrand(probe).argmax())
        low, high = probe[max(best - 1, 0)], probe[min(best + 1, 6)]
    near = s[c] * np.geomspace(1e-7, 9, 4000)
    nodes = [low + np.concatenate([-near, near]), *(mean[k] + s[k] * np.linspace(-9, 9, 2001) for k in others)]
    x = np.unique(np.concatenate(nodes))
    x = x[np.abs(x - low) <= 9 * s[c]]
    middle = 0.5 * (x[1:] + x[:-1])
    log_width = np.log(np.diff(x) / 6)
    terms = [log_width + log_integrand(x[:-1]), log_width + log_integrand(x[1:])]
    return float(logsumexp(np.concatenate([*terms, log_width + np.log(4) + log_integrand(middle)])))


def log_softmax(f: Array, c: int) -> Array:
    return f[:, c] - logsumexp(f, axis=1)


def log_robust_max(f: Array, c: int, epsilon: float) -> Array:
    return np.where(f.argmax(axis=1) == c, np.log1p(-epsilon), np.log(epsilon / (f.shape[1] - 1)))


def log_multinomial_probit(f: Array, c: int) -> Array:
    """log P(f_c + e_c > f_l + e_l for all l != c), e_k ~ N(0, 1/2), a dense sum over e_c far into the tail."""
    e = np.arange(-6.0, 90.0, 0.25)
    terms = np.broadcast_to(-(e**2) - 0.5 * np.log(np.pi) + np.log(0.25), (len(f), len(e)))
    for k in range(f.shape[1]):
        if k != c:
            terms = terms + log_ndtr(np.sqrt(2) * (f[:, c, None] - f[:, k, None] + e))
    return logsumexp(terms, axis=1)


def log_logistic_race(f: Array, c: int) -> Array:
    """log P(f_c + e_c > f_l + e_l for all l != c) for standard logistic e_k, a dense sum over e_c far into the tail."""
    e = np.arange(-40.0, 200.0, 0.3)
    weight = np.exp(-np.abs(e)) / (1 + np.exp(-np.abs(e))) ** 2 * (e[1] - e[0])
    product = np.ones((len(f), len(e)))
    for k in range(f.shape[1]):
        if k != c:
            product *= expit(f[:, c, None] - f[:, k, None] + e)
    return np.log(product @ weight)


def expected_in_chunks(draws: Iterator[Array], log_likelihood: object) -> tuple[float, float]:
    """Mean of a log likelihood over draws of f, and the standard error of the mean."""
    values = np.concatenate([log_likelihood(f) for f in draws])  # type: ignore[operator]
    return float(values.mean()), float(values.std() / np.sqrt(len(values)))
