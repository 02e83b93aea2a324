r"""Prediction where some labels of an instance are known already (T 4.37).

An instance's latent values are h ~ N(m, V), V = a diag(v) + L L', where N(m, diag v) is the posterior of the functions
and (a, L) is the `InstanceNoise`; a spread of the utilities (`Spread`) adds what is of each label by itself. The known
labels O, with signs s (1 present, -1 absent), turn this into

    p(h | y_O) ~ N(h; m, V) prod_{o in O} sigma(s_o f_o),    f = Phi h + b .

Its mode solves a problem in |O| unknowns, h* = m + V Phi_O' g with g_o = s_o sigma(-s_o f*_o), and Laplace's
approximation around it has the covariance

    V - V Phi_O' W^1/2 B^-1 W^1/2 Phi_O V,    W = diag sigma'(f*_O),    B = I + W^1/2 Phi_O V Phi_O' W^1/2

(Rasmussen and Williams 2006, "Gaussian Processes for Machine Learning", algorithm 3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, cast

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from torch import Tensor

from extremegp.engine.latents.base import Marginals
from extremegp.engine.mixing import FactorMixing
from extremegp.engine.utilities import Utilities

_TOLERANCE = 1e-10
_MAX_STEPS = 100
_MAX_HALVINGS = 50
_LEAST, _EPS = 1e-300, 2.0**-53
# Elements of the largest temporary, in float64.
_BLOCK_ELEMENTS = 1 << 21

GivenVariance = Literal["laplace", "map"]


class InstanceNoise(NamedTuple):
    """How the latent values of an instance scatter around the functions: V = weight diag(v) + factor factor'.

    Attributes:
        weight: what the posterior variance v of the functions counts for, not negative.
        factor: L, a square root of the covariance of what the functions do not explain.
    """

    weight: Float[Tensor, ""]
    factor: Float[Tensor, "P P"]

    def given(
        self, utilities: Utilities, given: scipy.sparse.csr_matrix, *, variance: GivenVariance = "laplace"
    ) -> Marginals:
        """Utilities of instances some of whose labels are known, see `utilities_given`."""
        return utilities_given(utilities, given, self, variance=variance)

    def mean_given(self, utilities: Utilities, given: scipy.sparse.csr_matrix) -> Float[Tensor, "B K"]:
        """The means of these alone."""
        return mean_utilities_given(utilities, given, self)

    @classmethod
    def none(cls, like: Tensor, n_functions: int) -> InstanceNoise:
        """No scatter: V is the posterior of the functions alone, as in the papers."""
        return cls(like.new_ones(()), like.new_zeros(n_functions, 0))


class Mode(NamedTuple):
    """The mode of the utilities of O known labels in B rows.

    Attributes:
        gradient: g = d log p(y_O | f) / df at the mode.
        curvature: W, the diagonal of -d^2 log p(y_O | f) / df^2 there.
    """

    gradient: Float[Tensor, "B O"]
    curvature: Float[Tensor, "B O"]


@torch.no_grad()
def utilities_given(
    utilities: Utilities,
    given: scipy.sparse.csr_matrix,
    noise: InstanceNoise,
    *,
    variance: GivenVariance = "laplace",
) -> Marginals:
    """Utilities of B instances some of whose labels are known.

    The variance of a utility is that of the functions, Phi_k diag(v) Phi_k', reduced by the share of its variance under
    V that the known labels take away. Without noise this is Laplace's approximation itself; with noise, probabilities
    stay what training calibrated where nothing is known. Rows without known labels come out as from
    `Utilities.marginals`, to the bit.

    Args:
        utilities: without the known labels.
        given: known labels, B x K: 1 for a label that is present, -1 for one that is absent, no entry for the others.
        noise: scatter of the instances.
        variance: "laplace" as said; "map" leaves the variance as it was, which saves a product of |O| times the size.

    Returns:
        Means Phi h* + b and variances of the K utilities, B x K each.
    """
    mean, ratio = utilities.latents.mean.clone(), None
    if variance == "laplace":
        ratio = mean.new_ones(len(mean), utilities.n_utilities)
    for rows, labels, signs in known_groups(given, mean):
        known = _Known(utilities, rows, labels, signs, noise)
        mean[rows] += known.shift().to(mean.dtype)
        if ratio is not None:
            known.reduce(ratio)
    means, variances = _moved(utilities, mean).marginals()
    if ratio is not None:
        variances.mul_(ratio)
    # A spread is of each label by itself: known labels say nothing of that of the others.
    return Marginals(means, variances if utilities.spread is None else variances.add_(utilities.spread.variance()))


@torch.no_grad()
def mean_utilities_given(
    utilities: Utilities, given: scipy.sparse.csr_matrix, noise: InstanceNoise
) -> Float[Tensor, "B K"]:
    """The means of `utilities_given` alone, where variances are not needed."""
    mean = utilities.latents.mean.clone()
    for rows, labels, signs in known_groups(given, mean):
        mean[rows] += _Known(utilities, rows, labels, signs, noise).shift().to(mean.dtype)
    return _moved(utilities, mean).means()


def _moved(utilities: Utilities, mean: Float[Tensor, "B P"]) -> Utilities:
    """The utilities with other means of the latent functions."""
    return Utilities(utilities.mixing, Marginals(mean, utilities.latents.variance), utilities.offset)


def find_mode(mean: Float[Tensor, "B O"], root: Float[Tensor, "B O Q"], signs: Float[Tensor, "B O"]) -> Mode:
    """The maximum over f of log N(f; mean, root root') + sum_o log sigma(s_o f_o).

    At the mode f = mean + K g, so that t_o = s_o g_o = sigma(-s_o f_o) minimises the convex

        1/2 t' S K S t + t' S mean + sum_o [t_o log t_o + (1 - t_o) log(1 - t_o)],    0 < t_o < 1,    S = diag s.

    Newton's method takes few steps there for means and covariances of any size, where in f it crawls through the tails
    of the logistic function. Steps stay inside the box and are halved until they descend, so it converges from any
    start. It stops once every t_o is within 1e-10 of sigma(-s_o f_o).

    Args:
        mean: means of the utilities, float64.
        root: a square root of their covariance K, which may be singular.
        signs: 1 or -1, and 0 for a pad, whose utility has no say.
    """
    root, mean = root * signs[..., None], mean * signs
    t = torch.sigmoid(-mean).clamp(_LEAST, 1.0 - _EPS)
    offset = _covariance_product(root, t)
    value = _dual_objective(mean, offset, t)
    for _ in range(_MAX_STEPS):
        if (t - torch.sigmoid(-mean - offset)).abs().max() < _TOLERANCE:
            break
        scale = (t * (1.0 - t)).sqrt()
        residual = mean + offset + torch.logit(t)
        step = -scale * solver(scale[..., None] * root)((scale * residual)[..., None])[..., 0]
        length = torch.ones_like(value)
        for _ in range(_MAX_HALVINGS):
            new = t + length[:, None] * step
            # Nineteen twentieths of the way to the walls of the box, at most.
            new = new.clamp(0.05 * t, 1.0 - 0.05 * (1.0 - t)).clamp(_LEAST, 1.0 - _EPS)
            offset = _covariance_product(root, new)
            new_value = _dual_objective(mean, offset, new)
            # Rounding must not stop the last steps, whose gain is below it.
            worse = new_value > value + 1e-12 * (1.0 + value.abs())
            if not worse.any():
                break
            length = torch.where(worse, 0.5 * length, length)
        t, value = new, new_value
    return Mode(signs * t, signs.square() * t * (1.0 - t))


def _dual_objective(mean: Tensor, offset: Tensor, t: Tensor) -> Float[Tensor, " B"]:
    return (t * (0.5 * offset + mean) + torch.xlogy(t, t) + torch.xlogy(1.0 - t, 1.0 - t)).sum(1)


def _covariance_product(root: Tensor, vector: Tensor) -> Tensor:
    return torch.matmul(root, torch.matmul(root.mT, vector[..., None]))[..., 0]


def solver(scaled: Float[Tensor, "B O Q"]) -> Callable[[Float[Tensor, "B O R"]], Float[Tensor, "B O R"]]:
    """x -> (I + S S')^-1 x, by a Cholesky factor of the smaller of O x O and Q x Q (Woodbury)."""
    n_known, width = scaled.shape[1:]
    wide = n_known > width
    gram = scaled.mT @ scaled if wide else scaled @ scaled.mT
    gram.diagonal(dim1=-2, dim2=-1).add_(1.0)
    factor = torch.linalg.cholesky(gram)
    if wide:
        return lambda x: x - scaled @ torch.cholesky_solve(scaled.mT @ x, factor)
    return lambda x: torch.cholesky_solve(x, factor)


class _Known:
    """Rows of a block with about equally many known labels, and what these do to the latent functions."""

    def __init__(
        self,
        utilities: Utilities,
        rows: Int[Tensor, " G"],
        labels: Int[Tensor, "G O"],
        signs: Float[Tensor, "G O"],
        noise: InstanceNoise,
    ) -> None:
        self.rows, self.noise = rows, noise
        latents, offset = utilities.latents, utilities.offset
        self.mixing = mixing = cast(FactorMixing, utilities.mixing)  # only factor models take known labels
        self.loadings = mixing.loadings[labels].double() * signs.abs()[..., None]
        self.factor = noise.factor.double()
        self.variance = noise.weight.double() * latents.variance[rows].double()
        roots = [self.loadings * self.variance.sqrt()[:, None], self.loadings @ self.factor]
        if utilities.spread is not None:
            own = utilities.spread.rows(rows).variance(labels).double() * signs.abs()
            roots.append(torch.diag_embed(own.sqrt()))
        self.root = torch.cat(roots, dim=2)
        mean = mixing.bias[labels].double() + torch.matmul(
            self.loadings, latents.mean[rows].double()[..., None]
        ).squeeze(2)
        if offset is not None:
            mean = mean + offset[rows].gather(1, labels).double()
        self.mode = find_mode(mean, self.root, signs)

    def shift(self) -> Float[Tensor, "G P"]:
        """V Phi_O' g, by which the means of the latent functions move."""
        return self._covariance_times(torch.matmul(self.mode.gradient[:, None], self.loadings)).squeeze(1)

    def reduce(self, ratio: Float[Tensor, "B K"]) -> None:
        """Set the rows of `ratio` to the share of the variance of every utility that is left."""
        mixing = self.mixing
        scale = self.mode.curvature.sqrt()[..., None]
        right = scale * self._covariance_times(self.loadings)
        left = solver(scale * self.root)(right)
        right, left = right.to(ratio.dtype), left.to(ratio.dtype)
        variance = self.variance.to(ratio.dtype)
        step = max(1, 2 * _BLOCK_ELEMENTS // (right.shape[0] * right.shape[1]))
        for start in range(0, mixing.n_utilities, step):
            labels = slice(start, start + step)
            loadings = mixing.loadings[labels]
            taken = ((right @ loadings.T) * (left @ loadings.T)).sum(1)
            whole = variance @ loadings.square().T + (loadings @ self.noise.factor).square().sum(1)
            # A label without any loading has no variance to lose.
            whole.clamp_(min=torch.finfo(whole.dtype).tiny)
            ratio[self.rows, labels] = (1.0 - taken / whole).clamp_(0.0, 1.0)

    def _covariance_times(self, rows: Float[Tensor, "G O P"]) -> Float[Tensor, "G O P"]:
        return rows * self.variance[:, None] + (rows @ self.factor) @ self.factor.T


def known_groups(
    given: scipy.sparse.csr_matrix, like: Float[Tensor, "B P"]
) -> Iterator[tuple[Int[Tensor, " G"], Int[Tensor, "G O"], Float[Tensor, "G O"]]]:
    """Rows with known labels, grouped by their number, so that pads at most double it and memory stays bounded.

    Yields:
        Row numbers; the known labels of each row, padded; their signs, 0 where padded.
    """
    counts = np.diff(given.indptr)
    order = np.argsort(-counts, kind="stable")
    order = order[: np.count_nonzero(counts)]
    start = 0
    while start < len(order):
        width = int(counts[order[start]])
        rows = order[start : start + max(1, _BLOCK_ELEMENTS // (width * 2 * like.shape[1]))]
        rows = rows[2 * counts[rows] > width]
        start += len(rows)
        position = np.arange(width)
        inside = position < counts[rows, None]
        entries = np.where(inside, given.indptr[rows, None] + position, 0)
        labels = torch.from_numpy(given.indices[entries].astype(np.int64))
        signs = torch.from_numpy(np.where(inside, given.data[entries], 0.0).astype(np.float64))
        yield torch.from_numpy(rows.astype(np.int64)).to(like.device), labels.to(like.device), signs.to(like.device)
