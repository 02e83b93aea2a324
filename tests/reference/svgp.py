"""Sparse variational Gaussian processes with Bernoulli labels, re-derived in NumPy float64: slow and obvious.

Everything is written in the space of the inducing variables u with explicit covariance matrices, loops and matrix
inverses, so that it shares neither formulas nor parametrisation with the library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.special import gamma, kv

Array = NDArray[np.float64]
Covariance = Callable[[Array, Array], float]


def linear(weights: Array) -> Covariance:
    return lambda x, z: float(sum(w * a * b for w, a, b in zip(weights, x, z, strict=True)))


def squared_exponential(weights: Array, variance: float = 1.0) -> Covariance:
    def covariance(x: Array, z: Array) -> float:
        distance = sum(w * (a - b) ** 2 for w, a, b in zip(weights, x, z, strict=True))
        return float(variance * np.exp(-0.5 * distance))

    return covariance


def se_plus_linear(weights: Array, mixture: float) -> Covariance:
    stationary, dot = squared_exponential(weights), linear(weights)
    return lambda x, z: mixture * stationary(x, z) + (1 - mixture) * dot(x, z)


def weighted_distance(weights: Array, x: Array, z: Array) -> float:
    return float(np.sqrt(sum(w * (a - b) ** 2 for w, a, b in zip(weights, x, z, strict=True))))


def matern(weights: Array, smoothness: float) -> Covariance:
    """The general form with a Bessel function."""

    def covariance(x: Array, z: Array) -> float:
        r = weighted_distance(weights, x, z)
        if r < 1e-9:
            return 1.0
        scaled = np.sqrt(2 * smoothness) * r
        return float(2 ** (1 - smoothness) / gamma(smoothness) * scaled**smoothness * kv(smoothness, scaled))

    return covariance


def arc_cosine(weights: Array, order: int) -> Covariance:
    """2 E[step(w.x) step(w.z) (w.x)^n (w.z)^n], w standard normal: the angle of w in the plane of x and z, by quad."""

    def covariance(x: Array, z: Array) -> float:
        x, z = np.sqrt(weights) * x, np.sqrt(weights) * z
        norms = np.linalg.norm(x) * np.linalg.norm(z)
        if norms == 0:
            # step(0) = 1/2
            return 0.5 if order == 0 else 0.0
        u, v = x / np.linalg.norm(x), z / np.linalg.norm(z)
        angle = 2 * np.arctan2(np.linalg.norm(u - v), np.linalg.norm(u + v))
        # A plane Gaussian has E r^2n = 2^n n! and a uniform angle; the steps leave a sector of it.
        sector = quad(lambda t: (np.cos(t) * np.cos(t - angle)) ** order, angle - np.pi / 2, np.pi / 2)[0]
        return float(2 * 2**order / (2 * np.pi) * norms**order * sector)

    return covariance


def white(variance: float) -> Covariance:
    """Noise of an observation; here an observation is known by its inputs."""
    return lambda x, z: variance * float(np.array_equal(x, z))


def gram(covariance: Covariance, x: Array, z: Array) -> Array:
    return np.array([[covariance(a, b) for b in z] for a in x])


def with_jitter(k_z: Array, relative_jitter: float) -> Array:
    return k_z + relative_jitter * np.mean(np.diag(k_z)) * np.eye(len(k_z))


@dataclass
class Variational:
    """q(u_p) = N(mean_p, covariance_p) for P functions at the inducing inputs Z of covariance k_z (with jitter)."""

    covariance_function: Covariance
    z: Array
    k_z: Array
    means: Array
    covariances: Array

    def marginals(self, x: Array) -> tuple[Array, Array]:
        """N x P means k_x' K_Z^-1 m and variances k_xx - k_x' K_Z^-1 k_x + k_x' K_Z^-1 S K_Z^-1 k_x."""
        precision = np.linalg.inv(self.k_z)
        mean, variance = np.empty((2, len(x), len(self.means)))
        for i, row in enumerate(x):
            k_x = np.array([self.covariance_function(row, point) for point in self.z])
            projection = precision @ k_x
            for p, (m, s) in enumerate(zip(self.means, self.covariances, strict=True)):
                mean[i, p] = projection @ m
                variance[i, p] = (
                    self.covariance_function(row, row) - k_x @ precision @ k_x + projection @ s @ projection
                )
        return mean, variance

    def joint(self, x: Array) -> Array:
        """P x N x N covariances where, given u, values at different inputs are independent (FITC)."""
        projection = gram(self.covariance_function, x, self.z) @ np.linalg.inv(self.k_z)
        prior = [self.covariance_function(row, row) for row in x]
        remainder = np.diag(prior - np.diag(projection @ self.k_z @ projection.T))
        return np.array([projection @ s @ projection.T + remainder for s in self.covariances])

    def kl(self) -> float:
        return sum(gaussian_kl(m, s, self.k_z) for m, s in zip(self.means, self.covariances, strict=True))


@dataclass
class Independent:
    """Functions that each have a covariance of their own."""

    parts: list[Variational]

    def marginals(self, x: Array) -> tuple[Array, Array]:
        means, variances = zip(*(part.marginals(x) for part in self.parts), strict=True)
        return np.hstack(means), np.hstack(variances)

    def joint(self, x: Array) -> Array:
        return np.concatenate([part.joint(x) for part in self.parts])

    def kl(self) -> float:
        return sum(part.kl() for part in self.parts)

    @property
    def means(self) -> Array:
        return np.concatenate([part.means for part in self.parts])

    @property
    def covariances(self) -> Array:
        return np.concatenate([part.covariances for part in self.parts])


def gaussian_kl(mean: Array, covariance: Array, prior_covariance: Array) -> float:
    """KL[N(mean, covariance) || N(0, prior_covariance)]."""
    precision = np.linalg.inv(prior_covariance)
    log_dets = np.linalg.slogdet(prior_covariance)[1] - np.linalg.slogdet(covariance)[1]
    return float(0.5 * (np.trace(precision @ covariance) + mean @ precision @ mean - len(mean) + log_dets))


def expected_log_bernoulli(label: float, mean: float, variance: float) -> float:
    """E log p(label | f), f ~ N(mean, variance), by the trapezoidal rule on 4001 points within twelve deviations."""
    standard = np.linspace(-12, 12, 4001)
    density = np.exp(-0.5 * standard**2) / np.sqrt(2 * np.pi)
    f = mean + np.sqrt(variance) * standard
    signed = f if label else -f
    return float(np.sum(density * -np.logaddexp(0, -signed)) * (standard[1] - standard[0]))


def expected_log_likelihood(y: Array, mean_h: Array, variance_h: Array, loadings: Array, bias: Array) -> float:
    """The sum over N rows and K labels of E log p(y_ik | f_ik), f = Phi h + b."""
    total = 0.0
    for i in range(len(y)):
        for k in range(len(bias)):
            mean = sum(loadings[k, p] * mean_h[i, p] for p in range(loadings.shape[1])) + bias[k]
            variance = sum(loadings[k, p] ** 2 * variance_h[i, p] for p in range(loadings.shape[1]))
            total += expected_log_bernoulli(y[i, k], mean, variance)
    return total


def log_evidence(y: Array, k_x: Array, loadings: Array, bias: Array, *, nodes: int) -> float:
    """log p(y) by a tensor grid of Gauss-Hermite nodes over the N P values of the latent functions."""
    n, p = len(y), loadings.shape[1]
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    root = np.linalg.cholesky(k_x)
    grid = np.stack(np.meshgrid(*[points] * (n * p), indexing="ij"), axis=-1).reshape(-1, p, n)
    mass = np.prod(np.stack(np.meshgrid(*[weights] * (n * p), indexing="ij"), axis=-1).reshape(-1, n * p), axis=-1)
    h = grid @ root.T
    f = np.einsum("kp,gpn->gnk", loadings, h) + bias
    log_likelihood = -np.logaddexp(0, np.where(y == 1, -f, f)).sum(axis=(1, 2))
    return float(np.log(mass @ np.exp(log_likelihood)))


def lower_triangular(raw: Array) -> Array:
    return np.tril(raw, -1) + np.diag(np.exp(np.diag(raw)))
