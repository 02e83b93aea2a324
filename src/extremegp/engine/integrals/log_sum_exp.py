r"""E log sum_k e^{f_k} of independent Gaussian utilities, and with it E softmax, by one integral without sampling.

Softmax picks the largest of f_k + g_k for independent standard Gumbel g_k, so that with f_k ~ N(m_k, v_k)

    F(x, v) = E exp(-e^{x + sqrt(v) z}),  z ~ N(0, 1);        P(f_k + g_k < t) = F(m_k - t, v_k)

and everything is an integral over the location t of the winner, with P(t) = prod_l F(m_l - t, v_l):

    E log sum_l e^{f_l}  =  int [1(t > 0) - P(t)] dt - gamma                      (gamma: the mean of g)
    E softmax_k          =  int P(t) h_k(t) dt,     h_k = -F_x(m_k - t, v_k) / F(m_k - t, v_k)

where the second line is the derivative of the first by m_k; that by v_k is -1/2 int P F_xx / F dt. As -F_x(x, v) =
e^{x + v/2} F(x + v, v), it is the tilted form e^{m_k + v_k/2} int e^{-t} F(m_k + v_k - t, v_k) prod_{l != k} F dt.

*The integral over t.* P is the distribution function of log Z + g, hence as smooth as that of g: its spectrum falls as
|Gamma(1 + i w)| ~ e^{-pi w / 2}, and the trapezoid rule converges exponentially. Beyond the last node P continues as
exp(-L e^{-t}), which is summed in closed form.

*F on that grid.* F(m - t_j, v) is an integral of exp(-e^{y - t_j}) over N(y; m, v). By the trapezoid rule over nodes
y_i it becomes a product of Gaussian weights with a matrix that no parameter enters. The weights cannot resolve v near
0, so the matrix takes up the difference: for any a

    F(m - t_j, v)  =  sum_i step N(y_i; m, v + a) F(y_i - t_j, -a).

F(x, -a) is the inverse Mellin transform of Gamma(s) e^{-a s^2 / 2}. Its spectrum e^{-pi w/2 + a w^2/2} is cut off
before it rises; a = step / 4 balances that error and the one of the rule over y, both e^{-pi^2 / (2 step)}. Rows whose
variances all are large take a step that is wider by a power of 2, and a = -step^2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.special import loggamma
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = 1 << 19
_MAX_NODES = 1024
EULER_GAMMA = 0.5772156649015329
GUMBEL_VARIANCE = math.pi**2 / 6
_SQRT_HALF = math.sqrt(0.5)
_BORDER_NODES = 20


class Rule(NamedTuple):
    """How finely and how far to integrate.

    Attributes:
        step: of the nodes y; that of t is twice as wide.
        below: how far the nodes y begin below those of t, at least.
        reach: standard deviations to either side that count.
        margin: how far beyond the location of the winner the closed form of the right tail begins.
        left: P at the first node t.
        tilted: whether e^{-t} P(t) has to be small there as well, for accuracy relative to small results.
    """

    step: float
    below: float
    reach: float
    margin: float
    left: float
    tilted: bool


TRAINING = Rule(step=0.25, below=9.0, reach=4.5, margin=6.0, left=1e-7, tilted=False)
PREDICTION = Rule(step=0.2, below=14.0, reach=7.0, margin=10.0, left=1e-12, tilted=True)


def expected_log_sum_exp(mean: Float[Tensor, "B K"], variance: Float[Tensor, "B K"]) -> Float[Tensor, " B"]:
    """E log sum_k e^{f_k} for independent f_k ~ N(mean_k, variance_k), differentiable once.

    Largest absolute error for variances up to 10 and K up to 50: 1e-6 of the value and the gradients in float64. In
    float32 rounding errors of K factors add up to 1e-4 of the value, 5e-6 of the gradients. Those come from the same
    pass and are all that is kept.

    Args:
        mean: float32 or float64.
        variance: not negative.
    """
    value: Tensor = _ExpectedLogSumExp.apply(mean, variance)
    return value


class _ExpectedLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor) -> Tensor:
        moments = log_sum_exp_moments(mean, variance, TRAINING, derivatives=any(ctx.needs_input_grad))
        ctx.save_for_backward(moments.by_mean, moments.by_variance)
        return moments.value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        by_mean, by_variance = ctx.saved_tensors
        return grad.unsqueeze(1) * by_mean, grad.unsqueeze(1) * by_variance


class Moments(NamedTuple):
    """E log sum exp with its derivatives, and int e^{-t} P(t) dt = E 1 / sum exp."""

    value: Float[Tensor, " B"]
    by_mean: Float[Tensor, "B K"]
    by_variance: Float[Tensor, "B K"]
    log_inverse: Float[Tensor, " B"]


def log_sum_exp_moments(
    mean: Float[Tensor, "B K"],
    variance: Float[Tensor, "B K"],
    rule: Rule,
    *,
    derivatives: bool = True,
    log_rest: Float[Tensor, " B"] | None = None,
) -> Moments:
    """The integrals; further classes may count by `log_rest`, the logarithm of their sum of E e^f."""
    low, high = _span(mean, variance, rule)
    if log_rest is not None:
        high = torch.maximum(high, log_rest + rule.margin)
    levels = _levels(variance.amin(1), high - low, rule)
    nodes = ((high - low) / (2 * rule.step) * torch.exp2(-levels)).ceil().long().clamp_(0, 2 * _MAX_NODES) + 2
    value, log_inverse = torch.empty_like(low), torch.empty_like(low)
    by_mean, by_variance = (torch.empty_like(mean), torch.empty_like(mean)) if derivatives else (mean, variance)
    per_node = 5 * mean.shape[1]
    for level in sorted(set(levels.tolist())):
        chosen = (levels == level).nonzero().squeeze(1)
        for rows, count in chunks(nodes, chosen, per_node):
            start = low.index_select(0, rows)
            piece = _moments_on_grid(
                mean.index_select(0, rows) - start.unsqueeze(1),
                variance.index_select(0, rows),
                rule.step * 2**level,
                level == 0,
                count,
                math.ceil(rule.below / rule.step),
                None if log_rest is None else log_rest.index_select(0, rows) - start,
                derivatives,
            )
            value[rows] = piece.value + start
            log_inverse[rows] = piece.log_inverse - start
            if derivatives:
                by_mean[rows], by_variance[rows] = piece.by_mean, piece.by_variance
    return Moments(value, by_mean, by_variance, log_inverse)


def _moments_on_grid(
    mean: Float[Tensor, "B K"],
    variance: Float[Tensor, "B K"],
    step: float,
    fine: bool,
    count: int,
    n_below: int,
    log_rest: Float[Tensor, " B"] | None,
    derivatives: bool,
) -> Moments:
    """The integrals by `count` nodes t = 0, 2 step, ..."""
    n_rows, n_classes = mean.shape
    extra = step / 4 if fine else -(step**2)
    spacing = 2 * step
    wide = variance + extra if fine else (variance + extra).clamp(min=0.65 * step**2)
    y = torch.arange(-n_below - 1, 2 * count - 1, dtype=mean.dtype, device=mean.device) * step
    weights = torch.sub(y, mean.reshape(-1, 1))
    weights.square_().mul_((-0.5 / wide).view(-1, 1)).exp_().mul_((step / (2 * math.pi * wide).sqrt()).view(-1, 1))
    # What lies below the nodes counts by its mass and, where 1 - F is e^x, by its E e^f: that takes the first place.
    # The border is soft, which leaves the trapezoid rule as accurate as without one.
    centre, softness = (_BORDER_NODES / 2 - n_below) * step, _BORDER_NODES / 10 * step
    border = slice(1, _BORDER_NODES + 2)
    weights[:, border] *= torch.special.ndtr((y[border] - centre) / softness)
    deviation = (wide + softness**2).sqrt()
    mass = torch.special.ndtr((centre - mean) / deviation)
    weights[:, 0] = 0.0
    if step < 1:  # else the border is so far down that e^x is nothing there
        moment = torch.special.log_ndtr((centre - mean - wide) / deviation)
        weights[:, 0] = moment.add_(mean).add_(wide - extra, alpha=0.5).exp_().view(-1)

    # Matrices of fewer nodes are parts of those of more.
    kernels = _kernels(step, -extra, n_below, 1 << (count - 1).bit_length(), mean.dtype, mean.device)
    kernels = kernels[: len(y), : 3 if derivatives else 1, :count].flatten(1)
    grid = (weights @ kernels).view(n_rows, n_classes, -1, count)
    survival = grid[:, :, 0].add_(mass.unsqueeze(2)).clamp_(min=torch.finfo(mean.dtype).eps ** 1.5)
    exponent = survival.log().sum(1)
    t = torch.arange(count, dtype=mean.dtype, device=mean.device) * spacing
    if log_rest is not None:
        exponent -= (log_rest.unsqueeze(1) - t).exp()
    below_t = exponent.exp()
    last = -exponent[:, -1]
    tail, tail_slope = _right_tail(last, spacing)
    value = tail - spacing * torch.expm1(exponent).sum(1) - 0.5 * spacing - EULER_GAMMA
    if not derivatives:
        return Moments(value, mean, variance, value)
    amounts = below_t.mul_(spacing)
    log_inverse = (amounts * torch.exp(-t)).sum(1)
    log_inverse = (log_inverse + torch.exp(-t[-1]) * (-spacing / math.expm1(-spacing) - spacing)).log()
    amounts[:, -1] += tail_slope
    ratio = amounts.unsqueeze(1) / survival
    by_mean = torch.linalg.vecdot(grid[:, :, 1], ratio).neg_()
    by_variance = torch.linalg.vecdot(grid[:, :, 2], ratio).mul_(-0.5)
    return Moments(value, by_mean, by_variance, log_inverse)


def _right_tail(last: Float[Tensor, " B"], spacing: float) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """sum_{n >= 1} spacing (1 - exp(-last e^{-n spacing})) and its derivative by `last`, which is small."""
    first, second, third = (-spacing / math.expm1(-n * spacing) - spacing for n in (1, 2, 3))
    slope = first - last * (second - last * third / 2)
    return last * (first - last * (second / 2 - last * third / 6)), slope


def _span(
    mean: Float[Tensor, "B K"], variance: Float[Tensor, "B K"], rule: Rule
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Where the integral over t begins and where its closed tail takes over."""
    deviation = variance.sqrt()
    high = torch.logsumexp(mean + torch.minimum(variance / 2, 2 * deviation), 1) + rule.margin
    high = torch.maximum(high, (mean + rule.reach * deviation).amax(1) + 0.6 * rule.margin)
    shift = variance if rule.tilted else 0.0
    low = (mean - rule.reach * deviation - shift).amax(1) - 3.5
    # A Gaussian of the same moments has the fatter left tail of the two.
    low = quantile(mean + EULER_GAMMA, (variance + GUMBEL_VARIANCE).sqrt(), low, high, rule.left, tilted=rule.tilted)
    return low, high


def quantile(
    mean: Float[Tensor, "B K"],
    deviation: Float[Tensor, "B K"],
    low: Float[Tensor, " B"],
    high: Float[Tensor, " B"],
    level: float,
    *,
    tilted: bool = False,
) -> Float[Tensor, " B"]:
    """A place between `low` and `high` below which the largest of the Gaussians lies less often than that."""
    scaled, rate = mean * (_SQRT_HALF / deviation), _SQRT_HALF / deviation
    top = high
    for _ in range(7):
        middle = 0.5 * (low + high)
        probability = torch.addcmul(scaled, rate, middle.unsqueeze(1), value=-1.0).erfc_().mul_(0.5).prod(1)
        if tilted:
            probability = probability * (top - middle).exp()
        enough = probability < level
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return low


def _levels(smallest: Float[Tensor, " B"], span: Float[Tensor, " B"], rule: Rule) -> Float[Tensor, " B"]:
    """By which powers of 2 the step may be wider, and has to be for the number of nodes to stay bounded.

    The largest of K Gaussians varies on the scale s / sqrt(2 log K) at least, which is s / 4 and more for K < 3000.
    """
    allowed = (1 + smallest.sqrt() / 4).log2().floor()
    needed = (span / (2 * rule.step * _MAX_NODES)).log2().ceil()
    return torch.maximum(allowed, needed).nan_to_num_(0.0, posinf=0.0).clamp_(min=0.0)


def chunks(
    nodes: Int[Tensor, " B"], chosen: Int[Tensor, " R"], per_node: int
) -> Iterator[tuple[Int[Tensor, " C"], int]]:
    """The chosen rows in chunks of similar numbers of nodes, each with the largest of them."""
    counts, order = nodes.index_select(0, chosen).sort(descending=True)
    rows, start = chosen.index_select(0, order), 0
    sizes = counts.tolist()
    while start < len(sizes):
        end = start + max(1, CHUNK_ELEMENTS // (per_node * sizes[start]))
        yield rows[start:end], sizes[start]
        start = end


@lru_cache(maxsize=64)
def _kernels(
    step: float, variance: float, n_below: int, count: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "Y 3 T"]:
    """F(y_i - t_j, variance) with its first two derivatives, below a row of what 1 - F is on the far left."""
    offsets = np.arange(-n_below - 2 * (count - 1), 2 * count - 1, dtype=np.float64)
    table = _survival(offsets * np.float64(step), variance, step)
    index = np.arange(len(offsets) - 2 * (count - 1))[:, None] - 2 * np.arange(count) + 2 * (count - 1)
    below = np.broadcast_to(-np.exp(-2 * step * np.arange(count)), (1, 3, count))
    kernels = np.concatenate([below, table[:, index].swapaxes(0, 1)])
    return torch.tensor(kernels, dtype=dtype, device=device)


def _survival(x: NDArray[np.float64], variance: float, step: float) -> NDArray[np.float64]:
    """F(x, variance), F_x and F_xx, 3 x |x|, for a grid of this step; the variance may be negative."""
    out = np.zeros((3, len(x)))
    order = np.arange(3)[:, None]
    n = np.arange(1, 40)[:, None]
    # Where the power series converges at once, it is accurate relative to 1 - F.
    series = x < (-2.0 if variance < 0 else -math.inf)
    terms = np.exp(n * x[series] + 0.5 * variance * n**2 - loggamma(n + 1)) * (-1.0) ** n
    for i in range(3):
        out[i, series] = (n**i * terms).sum(0)
    # On either side of the pole of Gamma at 0: F for Re s > 0, F - 1 for Re s < 0.
    width, cutoff = 0.005 / step, 1.4 * math.pi / step
    w = np.arange(-cutoff, cutoff, width) + width / 2
    for part, real in ((~series & (x < 0), -0.125 / step), (x >= 0, 0.125 / step)):
        s = real + 1j * w
        transform = np.exp(loggamma(s) + 0.5 * variance * s**2) * (-s) ** order
        out[:, part] = (transform @ np.exp(-np.outer(s, x[part]))).real * (width / (2 * math.pi))
    out[0, x < 0] += 1.0
    if variance < 0:
        out[:, x > 3.3] = 0.0
    return out
