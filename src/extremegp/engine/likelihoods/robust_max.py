r"""The robust maximum: the class of the highest utility, but for a share of errors over all others (T 3.39-3.41).

It needs the probability pi that f_c is the highest of independent Gaussian utilities, the integral of

    e^{L(f)},    L(f) = log N(f; m_c, v_c) + sum_{l != c} log Phi((f - m_l) / sqrt(v_l)) .

L is concave, but e^L may have a wall where the variance of another class is tiny, slopes of any scale elsewhere, and
its mass many standard deviations from m_c. So the nodes follow the integrand: from Newton's method for the mode, at a
geometric spacing around it, to cells of equal shares of width, height, logarithm and turning, found twice, and at last
a Gauss-Legendre rule in each cell.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from extremegp.engine.batch import Batch
from extremegp.engine.integrals.probit import log_ndtr_derivatives
from extremegp.engine.integrals.races import max_probabilities
from extremegp.engine.likelihoods.base import ClassEntries, ClassLikelihood
from extremegp.engine.utilities import Utilities

_FALL = 18.0  # in L, beyond which nothing counts
_FIRST_NODES = 12  # on either side of the mode
_FIRST_SPACING = 1e-4
_CELLS = (32, 32, 24)
_NODES_PER_CELL = 4
_NEWTON_STEPS = 60
_LEAST_VARIANCE = 1e-12  # relative to the row's largest
_DECIDED = 1e5  # standard deviations of a difference
_CERTAIN = 40.0
"""Where log Phi and all its derivatives are zero in float64."""
_PIECE = 1 << 18


class RobustMax(ClassLikelihood):
    """p(y = c | f) = 1 - epsilon if f_c is the highest utility, epsilon / (K - 1) if not (T 3.39).

    The utilities have to be independent given the inputs: one latent function for each class.

    Args:
        epsilon: share of errors, in (0, 1).
    """

    needs_independent = True
    is_concave = is_smooth = False
    step_arrays = 8

    def __init__(self, epsilon: float = 1e-3) -> None:
        super().__init__()
        self.epsilon = epsilon

    def expected_log_prob(self, utilities: Utilities, batch: Batch) -> Float[Tensor, ""]:
        """Exact up to quadrature (T 3.40), the sum over the batch.

        Raises:
            ValueError: if utilities are mixed of shared latent functions, or there are weights: this is no sum over
                classes.
        """
        if batch.label_weights is not None:
            raise ValueError("the robust maximum is no sum over classes: it cannot be estimated from a sample of them")
        if not utilities.independent:
            raise ValueError(
                "the robust maximum needs independent utilities, and those mixed of shared latent functions are not: "
                "use one latent function for each class"
            )
        entries = ClassEntries.of(utilities, batch)
        chance = log_highest_probability(*entries.utilities.marginals(), entries.classes).exp()
        right, wrong = math.log1p(-self.epsilon), math.log(self.epsilon / max(utilities.n_utilities - 1, 1))
        return entries.sum(right * chance + wrong * (1.0 - chance))

    def conditional(self, f: Float[Tensor, "*S B K"]) -> Float[Tensor, "*S B K"]:
        """1 - epsilon for the class of the highest utility, the rest for all others (T 3.39)."""
        others = torch.full_like(f, self.epsilon / max(f.shape[-1] - 1, 1))
        return others.scatter(-1, f.argmax(-1, keepdim=True), 1.0 - self.epsilon)

    def probabilities(self, utilities: Utilities) -> Float[Tensor, "B K"]:
        """(1 - epsilon) P(k is highest) + epsilon / (K - 1) (1 - P(k is highest)) (T 3.41)."""
        chance = max_probabilities(utilities, noise_variance=0.0)
        return (1.0 - self.epsilon) * chance + self.epsilon / max(utilities.n_utilities - 1, 1) * (1.0 - chance)


def log_highest_probability(
    mean: Float[Tensor, "B K"], variance: Float[Tensor, "B K"], classes: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """log P(f_c > f_l for all l != c) for independent f_k ~ N(mean_k, variance_k), differentiable once.

    Relative error of the probability below 1e-4 for ratios of variances from 1e-8 to 1e8, however small it is; about
    1e-5 for ratios from 1e-4 to 1e4. It is computed in float64 with memory for a few values of each utility.

    Args:
        mean: float32 or float64.
        variance: not negative; those below 1e-12 of the row's largest count as that.
        classes: c of every row.
    """
    largest = variance.detach().amax(1, keepdim=True)
    floor = (_LEAST_VARIANCE * largest).clamp(min=1e-30)
    result: Tensor = _LogHighest.apply(mean.double(), torch.maximum(variance.double(), floor.double()), classes)
    return result.to(mean.dtype)


class _LogHighest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, classes: Tensor) -> Tensor:
        out, by_mean, by_variance = mean.new_empty(len(mean)), torch.empty_like(mean), torch.empty_like(variance)
        rows = max(1, _PIECE // (mean.shape[1] * max(_CELLS)))
        for start in range(0, len(mean), rows):
            piece = slice(start, start + rows)
            integrand = _Integrand(mean[piece], variance[piece], classes[piece])
            out[piece], by_mean[piece], by_variance[piece] = integrand.integrate()
        ctx.save_for_backward(by_mean, by_variance)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        by_mean, by_variance = ctx.saved_tensors
        return grad.unsqueeze(1) * by_mean, grad.unsqueeze(1) * by_variance, None


class _Integrand:
    """e^L of R rows. Abscissae are offsets from m_c in units of sqrt(v_c), so that L has -x^2/2 in it."""

    def __init__(self, mean: Float[Tensor, "R K"], variance: Float[Tensor, "R K"], classes: Int[Tensor, " R"]) -> None:
        self.own = classes.unsqueeze(1)
        self.variance = variance
        deviation = variance.sqrt()
        self.scale = deviation.gather(1, self.own)
        # Further apart a pair is decided, and the rounding of L would be more than its fall.
        furthest = _DECIDED * (variance.gather(1, self.own) + variance).sqrt()
        self.shift = (mean.gather(1, self.own) - mean).clamp(-furthest, furthest) / deviation
        self.slope = self.scale / deviation

    def _arguments(self, x: Float[Tensor, "R n"]) -> Float[Tensor, "R n K"]:
        z = torch.addcmul(self.shift.unsqueeze(1), self.slope.unsqueeze(1), x.unsqueeze(2))
        return z.scatter_(2, self.own.unsqueeze(1).expand(-1, x.shape[1], 1), _CERTAIN)

    def log(self, x: Float[Tensor, "R n"]) -> Float[Tensor, "R n"]:
        return log_ndtr_derivatives(self._arguments(x))[0].sum(2) - 0.5 * x.square()

    def mode(self) -> Float[Tensor, "R 1"]:
        """By Newton's method from m_c: dL/df is convex and positive left of its zero, so that no step passes it."""
        x = torch.zeros_like(self.scale)
        for _ in range(_NEWTON_STEPS):
            _, mills, curvature = log_ndtr_derivatives(self._arguments(x).squeeze(1))
            decrease = 1.0 - (self.slope.square() * curvature).sum(1, keepdim=True)
            step = ((self.slope * mills).sum(1, keepdim=True) - x) / decrease
            x = x + step
            if not (step * decrease.sqrt() > 0.05).any():
                break
        return x

    def integrate(self) -> tuple[Float[Tensor, " R"], Float[Tensor, "R K"], Float[Tensor, "R K"]]:
        """log of the integral, and its derivatives by the means and the variances."""
        mode = self.mode()
        highest = self.log(mode)
        side = torch.logspace(math.log10(_FIRST_SPACING), 0.0, _FIRST_NODES, dtype=mode.dtype, device=mode.device)
        side = side * math.sqrt(2.0 * _FALL)
        x = mode + torch.cat([-side.flip(0), side.new_zeros(1), side])
        for n_cells in _CELLS:
            x = _equal_shares(x, self.log(x) - highest, n_cells)
        nodes, weights = (
            torch.tensor(part, dtype=x.dtype, device=x.device)
            for part in np.polynomial.legendre.leggauss(_NODES_PER_CELL)
        )
        half, middle = 0.5 * x.diff(dim=1), 0.5 * (x[:, 1:] + x[:, :-1])
        parts = []
        for node, weight in zip(nodes, weights, strict=True):
            at = middle + node * half
            z = self._arguments(at)
            log_cdf, mills, _ = log_ndtr_derivatives(z)
            parts.append((at, z, mills, log_cdf.sum(2) - 0.5 * at.square() + (weight * half).log()))
        log_total = torch.logsumexp(torch.cat([part[3] for part in parts], 1), 1)
        by_mean, by_variance = torch.zeros_like(self.shift), torch.zeros_like(self.shift)
        for at, z, mills, log_term in parts:
            share = (log_term - log_total.unsqueeze(1)).exp()
            by_mean -= (share.unsqueeze(2) * mills).sum(1)
            by_variance -= (share.unsqueeze(2) * mills * z).sum(1)
            own_mean, own_variance = (
                (share * at).sum(1, keepdim=True),
                (share * (at.square() - 1.0)).sum(1, keepdim=True),
            )
            by_mean.scatter_add_(1, self.own, own_mean)
            by_variance.scatter_add_(1, self.own, own_variance)
        return (
            log_total - 0.5 * math.log(2.0 * math.pi),
            by_mean / self.variance.sqrt(),
            0.5 * by_variance / self.variance,
        )


def _equal_shares(x: Float[Tensor, "R n"], log_height: Float[Tensor, "R n"], n_cells: int) -> Float[Tensor, "R ends"]:
    """Ends of cells with equal shares of what makes a curve through these points hard to integrate."""
    height = log_height.clamp(max=0.5).exp()
    dx = x.diff(dim=1)
    tails = (0.2 * log_height).exp()
    width = 0.5 * dx * (tails[:, 1:] + tails[:, :-1])
    slope = height.diff(dim=1) * width.sum(1, keepdim=True) / dx.clamp(min=torch.finfo(x.dtype).tiny)
    angle = slope.atan().diff(dim=1).abs()
    none = torch.zeros_like(angle[:, :1])
    turning = torch.cat([angle, none], 1) + torch.cat([none, angle], 1)
    parts = (width, height.diff(dim=1).abs(), log_height.clamp(min=-_FALL).diff(dim=1).abs(), turning)
    shares = torch.stack([part / part.sum(1, keepdim=True) for part in parts]).sum(0)
    ends = torch.cat([none, shares.cumsum(1)], 1)
    wanted = ends[:, -1:] * torch.linspace(0.0, 1.0, n_cells + 1, dtype=x.dtype, device=x.device)
    right = torch.searchsorted(ends, wanted, right=True).clamp_(1, x.shape[1] - 1)
    low, high = ends.gather(1, right - 1), ends.gather(1, right)
    fraction = ((wanted - low) / (high - low).clamp(min=torch.finfo(x.dtype).tiny)).clamp_(0.0, 1.0)
    return torch.lerp(x.gather(1, right - 1), x.gather(1, right), fraction)
