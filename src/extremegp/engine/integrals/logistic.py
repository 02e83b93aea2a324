r"""Gaussian expectations of the logistic function and its integral, accurate relative to the result itself.

Under q(f) = N(m, v) a Bernoulli likelihood needs S = E softplus(f), its gradients dS/dm = E sigma(f) and
dS/dv = 1/2 E sigma'(f), and nothing else. Most labels are rare, so most elements lie where all three are as small as
e^m: an error that is small in absolute terms only would drown their gradients. Two rules cover every (m, v); both are
applied at -|m|, from where softplus(f) = f + softplus(-f) leads to m.

*v <= 0.9: Gauss-Hermite quadrature* with 10 nodes. The nodes m +- x_i sqrt(v) of a pair share their weight, hence one
logarithm: with t = e^m and c = t (e^{x sqrt v} + e^{-x sqrt v}) their softplus values add up to log(1 + c + t^2).

*v > 0.9: a scale mixture of normals* in place of the logistic density, sigma'(x) ~ sum_j p_j N(x; 0, c_j), which makes
every expectation a sum of normal densities and distribution functions with variances v + c_j (Monahan and Stefanski
1992, "Normal scale mixture approximations to F*(z) and computation of the logistic-normal integral"). The mixture has
Gaussian tails and so fails once m < -v/2, where the expectations follow the logistic tail. There it is put behind
the exact identities sigma(x) = e^x sigma(-x) and sigma(x)^2 = e^x sigma'(x), which complete the squares:

    E[sigma(f)]    = e^{m + v/2} E[sigma(-f - v)]        E[softplus(f)] = E[sigma(f)] + sum_j q_j Phi((m - c_j) / t_j)
    E[sigma'(f)]   = E[sigma(f)] - E[sigma(f)^2]         E[sigma(f)^2]  = sum_j q_j N(m; c_j, t_j^2)

with q_j = p_j e^{c_j/2} and t_j^2 = v + c_j.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, no_type_check

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from extremegp.engine.compiled import in_lanes

_QUADRATURE_NODES = 10
_QUADRATURE_LIMIT = 0.9
# (p_j, c_j), fitted here: least maximum relative error of the three expectations by the formulas above over
# 1/2 <= v <= 100, -30 <= m <= 0. Five terms do because the Gaussian smooths at least as much as N(0, 1/2) does.
LOGISTIC_MIXTURE = (
    (0.08715994310524136, 0.9149474628071002),
    (0.39773626077799610, 1.8791087712597143),
    (0.39035248888374810, 3.7911049253128466),
    (0.11798708577673403, 7.4944000006492750),
    (0.00676422145628049, 14.579998129576722),
)
_LOG2E = math.log2(math.e)
_SQRT_HALF = math.sqrt(0.5)
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
# Temporaries of this many elements mostly stay in cache, and are enough for torch to split over two threads.
_CPU_PIECE = 1 << 17
_GPU_PIECE = 1 << 21
_LANE_PIECE = 1 << 12
_RULE_ROWS = 8  # temporaries of the rule that needs most
_PICK_ROWS = 5  # mean, variance and three results of the elements picked out for a rule

Moments = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
_Rule = Callable[[Tensor, Tensor, Tensor, Tensor], None]


def expected_softplus(mean: Tensor, variance: Tensor) -> Tensor:
    """E softplus(f) = E log(1 + e^f) for f ~ N(mean, variance), elementwise and differentiable once.

    E log sigma(f) is `mean - expected_softplus(mean, variance)` and E log(1 - sigma(f)) is its negative. The gradients
    E sigma(f) and 1/2 E sigma'(f) come from the same pass and are all that is kept for the backward pass.

    Largest relative error over -30 <= mean <= 30, 0 <= variance <= 100:

    | | value | d/dmean | d/dvariance |
    |---|---|---|---|
    | float64, variance <= 1/2 | 3e-9 | 2e-8 | 2e-7 |
    | float64, variance <= 0.9 | 2e-7 | 6e-7 | 6e-6 |
    | float64, variance > 0.9 | 3e-6 | 6e-7 | 2e-6 |
    | float32, variance <= 0.9 | 2e-6 | 3e-6 | 8e-6 |
    | float32, variance > 0.9 | 2e-5 (5e-6 for mean within 20 of 0) | 3e-6 | 3e-6 |

    Args:
        mean: any shape, float32 or float64.
        variance: of a shape that broadcasts with `mean`, not negative (a negative entry gives NaN).

    Returns:
        Tensor of the broadcast shape in the wider of the two types; NaN where an input is NaN.

    Raises:
        TypeError: if an input is neither float32 nor float64.
    """
    value: Tensor = GaussianExpectation.apply(softplus_moments, *promoted(mean, variance))
    return value


def expected_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """E sigma(f) for f ~ N(mean, variance): the probability of a positive label, with the posterior integrated out.

    The accuracy is that of the d/dmean column of `expected_softplus`. The result carries no gradient.

    Args:
        mean: any shape, float32 or float64.
        variance: of a shape that broadcasts with `mean`, not negative (a negative entry gives NaN).

    Returns:
        Tensor of the broadcast shape in the wider of the two types, in [0, 1]; NaN where an input is NaN.

    Raises:
        TypeError: if an input is neither float32 nor float64.
    """
    if mean.device.type != "cpu":
        return softplus_moments(mean, variance)[1]
    mean, variance = promoted(mean.detach(), variance.detach())
    found = torch.empty(mean.numel(), dtype=mean.dtype)
    flat = (part.reshape(-1).numpy() for part in (mean, variance))
    _sigmoids(-(-mean.numel() // _LANE_PIECE), *flat, *_of_rules(), found.numpy())
    return found.view(mean.shape)


@in_lanes
@no_type_check
def _sigmoids(
    lane: int, n_lanes: int, means: Any, variances: Any, nodes: Any, node_weights: Any, shares: Any, scales: Any,
    found: Any,
) -> None:  # fmt: skip
    """E sigma by the rules of this file, an element at a time: of few elements in a hundredth of the time.

    Args:
        lane: which part of the work.
        n_lanes: of how many.
        means: n.
        variances: n.
        nodes: the positive half of those of the quadrature.
        node_weights: theirs.
        shares: p of the mixture.
        scales: c of the mixture.
        found: results, n.
    """
    for start in range(lane * _LANE_PIECE, len(means), n_lanes * _LANE_PIECE):
        for i in range(start, min(start + _LANE_PIECE, len(means))):
            mean, variance, total = -abs(float(means[i])), float(variances[i]), 0.0
            if variance <= _QUADRATURE_LIMIT:
                t, deviation = np.exp(mean), np.sqrt(variance)
                for j in range(len(nodes)):
                    rise = np.exp(nodes[j] * deviation)
                    pair = t * (rise + 1 / rise)
                    total += node_weights[j] * (pair + 2 * t * t) / (1 + pair + t * t)
            elif mean + variance / 2 < 0:
                for j in range(len(scales)):
                    total += shares[j] / 2 * math.erfc((mean + variance) / np.sqrt(2 * (variance + scales[j])))
                total *= np.exp(mean + variance / 2)
            else:
                for j in range(len(scales)):
                    total += shares[j] / 2 * math.erfc(-mean / np.sqrt(2 * (variance + scales[j])))
            found[i] = 1 - total if means[i] > 0 else total


@torch.no_grad()
def softplus_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """E softplus(f), E sigma(f) and 1/2 E sigma'(f) for f ~ N(mean, variance), for use inside an autograd function.

    They are `expected_softplus` and its derivatives by mean and variance, at the accuracy given there, without a graph.

    Args:
        mean: any shape, float32 or float64.
        variance: of a shape that broadcasts with `mean`, not negative (a negative entry gives NaN).

    Returns:
        Three new tensors of the broadcast shape in the wider of the two types; NaN where an input is NaN.

    Raises:
        TypeError: if an input is neither float32 nor float64.
    """
    mean, variance = promoted(mean, variance)
    flat_mean, flat_variance = mean.reshape(-1), variance.reshape(-1)
    out = mean.new_zeros(3, mean.numel())
    size = min(mean.numel(), _CPU_PIECE if mean.device.type == "cpu" else _GPU_PIECE)
    # One workspace for all pieces: fresh temporaries would be paid for in page faults, more than in arithmetic.
    work = mean.new_empty(1 + _PICK_ROWS + _RULE_ROWS, size)
    for start in range(0, mean.numel(), max(1, size)):
        piece = slice(start, start + size)
        _fill(flat_mean[piece], flat_variance[piece], out[:, piece], work)
    value, sigmoid, slope = (row.view(mean.shape) for row in out)
    return value, sigmoid, slope


@lru_cache(maxsize=32)
def _hermite(count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return tuple(nodes.tolist()), tuple((weights / weights.sum()).tolist())


@lru_cache(maxsize=1)
def _of_rules() -> tuple[NDArray[np.float64], ...]:
    """What `_sigmoids` takes of the two rules."""
    nodes, weights = (np.array(part[_QUADRATURE_NODES // 2 :]) for part in _hermite(_QUADRATURE_NODES))
    shares, scales = np.array(LOGISTIC_MIXTURE).T.copy()
    return nodes, weights, shares, scales


class GaussianExpectation(torch.autograd.Function):
    """An elementwise E g(f), f ~ N(mean, variance), whose gradients come from the pass that gives the value.

    Its first argument gives value, d/dmean and d/dvariance of all elements, as `softplus_moments` does.
    """

    @staticmethod
    def forward(ctx: Any, moments: Moments, mean: Tensor, variance: Tensor) -> Tensor:
        value, by_mean, by_variance = moments(mean, variance)
        ctx.save_for_backward(
            by_mean if ctx.needs_input_grad[1] else None, by_variance if ctx.needs_input_grad[2] else None
        )
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(None if saved is None else grad * saved for saved in ctx.saved_tensors)


def promoted(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the broadcast shape and the wider of the two types; TypeError if one is neither float32 nor float64."""
    for tensor in (mean, variance):
        if tensor.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"Gaussian expectations need float32 or float64 inputs, not {tensor.dtype}")
    dtype = torch.promote_types(mean.dtype, variance.dtype)
    shape = np.broadcast_shapes(mean.shape, variance.shape)
    return mean.to(dtype).expand(shape), variance.to(dtype).expand(shape)


def _fill(mean: Tensor, variance: Tensor, out: Tensor, work: Tensor) -> None:
    """Puts the moments of one flat piece of n elements in place of the zeros in `out`, 3 x n."""
    lower, work = work[0, : len(mean)], work[1:]
    torch.abs(mean, out=lower).neg_()
    narrow = variance <= _QUADRATURE_LIMIT
    count = int(narrow.sum())
    mostly_narrow = 2 * count >= len(mean)
    if mostly_narrow:
        # Cheaper than picking them out; what it leaves at the others is overwritten.
        _quadrature(lower, variance, out, work)
    if count < len(mean):
        tail = torch.add(lower, variance, alpha=0.5, out=work[0, : len(mean)]).lt(0).logical_and_(~narrow)
        if not mostly_narrow:
            _overwrite(_quadrature, narrow, lower, variance, out, work)
        _overwrite(_mixture_tail, tail, lower, variance, out, work)
        # NaN fails both comparisons and passes through here.
        _overwrite(_mixture_centre, ~(narrow | tail), lower, variance, out, work)
    value, sigmoid, slope = out
    slope.mul_(0.5)
    positive = torch.clamp(mean, min=0.0, out=lower)
    value.add_(positive)
    sigmoid.sub_(positive.sign_()).abs_()


def _overwrite(rule: _Rule, mask: Tensor, mean: Tensor, variance: Tensor, out: Tensor, work: Tensor) -> None:
    index = mask.nonzero().squeeze(1)
    if len(index) == 0:
        return
    picked = work[:_PICK_ROWS, : len(index)]
    some_mean, some_variance, some_out = picked[0], picked[1], picked[2:].zero_()
    # index_select and scatter_ are several times faster here than indexing with brackets and index_copy_.
    torch.index_select(mean, 0, index, out=some_mean)
    torch.index_select(variance, 0, index, out=some_variance)
    rule(some_mean, some_variance, some_out, work[_PICK_ROWS:])
    for whole, some in zip(out, some_out, strict=True):
        whole.scatter_(0, index, some)


def _quadrature(mean: Tensor, variance: Tensor, out: Tensor, work: Tensor) -> None:
    """Adds E softplus, E sigma and E sigma' for mean <= 0 by Gauss-Hermite, a pair of nodes at a time."""
    value, sigmoid, slope = out
    t, t2, one_plus_t2, four_t2, deviation, pair, inverse, work = work[:8, : len(mean)]
    torch.mul(mean, _LOG2E, out=t).exp2_()
    torch.square(t, out=t2)
    torch.add(t2, 1.0, out=one_plus_t2)
    torch.mul(t2, 4.0, out=four_t2)
    torch.sqrt(variance, out=deviation)
    nodes, weights = _hermite(_QUADRATURE_NODES)
    for node, weight in zip(nodes[_QUADRATURE_NODES // 2 :], weights[_QUADRATURE_NODES // 2 :], strict=True):
        torch.mul(deviation, node * _LOG2E, out=pair).exp2_()
        pair.add_(torch.reciprocal(pair, out=work)).mul_(t)
        torch.add(pair, t2, out=inverse)
        value.add_(torch.log1p(inverse, out=work), alpha=weight)
        inverse.add_(1.0).reciprocal_()
        sigmoid.addcmul_(torch.add(pair, t2, alpha=2.0, out=work), inverse, value=weight)
        # Both sums over the pair are put over one denominator: no difference of nearly equal terms is left.
        torch.addcmul(four_t2, pair, one_plus_t2, out=work).mul_(inverse)
        slope.addcmul_(work, inverse, value=weight)


def _mixture_centre(mean: Tensor, variance: Tensor, out: Tensor, work: Tensor) -> None:
    """Adds E softplus, E sigma and E sigma' for -variance/2 <= mean <= 0 by the mixture itself."""
    value, sigmoid, slope = out
    precision_root, density, work = work[:3, : len(mean)]
    for weight, scale in LOGISTIC_MIXTURE:
        torch.add(variance, scale, out=precision_root).rsqrt_()
        torch.mul(mean, precision_root, out=density)
        sigmoid.add_(torch.mul(density, -_SQRT_HALF, out=work).erfc_(), alpha=0.5 * weight)
        density.square_().mul_(-0.5 * _LOG2E).exp2_()
        slope.addcmul_(density, precision_root, value=weight * _INV_SQRT_2PI)
        value.addcdiv_(density, precision_root, value=weight * _INV_SQRT_2PI)
    value.addcmul_(mean, sigmoid)


def _mixture_tail(mean: Tensor, variance: Tensor, out: Tensor, work: Tensor) -> None:
    """Adds E softplus, E sigma and E sigma' for mean < -variance/2 by the mixture behind the tail's exact form."""
    value, sigmoid, slope = out
    precision_root, reflected, z, work = work[:4, : len(mean)]
    torch.add(mean, variance, out=reflected)
    for weight, scale in LOGISTIC_MIXTURE:
        tilted = weight * math.exp(0.5 * scale)
        torch.add(variance, scale, out=precision_root).rsqrt_()
        torch.mul(reflected, precision_root, out=work).mul_(_SQRT_HALF).erfc_()
        sigmoid.add_(work, alpha=0.5 * weight)
        torch.sub(mean, scale, out=z).mul_(precision_root)
        value.add_(torch.mul(z, -_SQRT_HALF, out=work).erfc_(), alpha=0.5 * tilted)
        z.square_().mul_(-0.5 * _LOG2E).exp2_()
        slope.addcmul_(z, precision_root, value=-tilted * _INV_SQRT_2PI)
    sigmoid.mul_(torch.add(mean, variance, alpha=0.5, out=work).mul_(_LOG2E).exp2_())
    value.add_(sigmoid)
    slope.add_(sigmoid)
