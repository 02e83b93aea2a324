"""Which of K Gaussian utilities wins, under Gumbel noise (softmax), Gaussian noise or none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.quasirandom import SobolEngine

from extremegp.engine.integrals.log_sum_exp import (
    CHUNK_ELEMENTS,
    EULER_GAMMA,
    GUMBEL_VARIANCE,
    PREDICTION,
    chunks,
    log_sum_exp_moments,
    quantile,
)
from extremegp.engine.utilities import Utilities

# Of more classes those that hardly matter are taken together.
_ALL_EXACT = 256
_MIN_EXACT = 128
_NEGLIGIBLE = 1e-6  # what the others may add to the error
_DRAWS = 128
_WINNER_DRAWS = 4096
_SIDE = 8.0  # standard deviations to either side of a Gaussian that count
_WINNER_NODES = 300  # deviations in the range of the winner
_SOBOL_ELEMENTS = 1 << 22


@torch.no_grad()
def softmax_probabilities(utilities: Utilities) -> Float[Tensor, "B K"]:
    """p(y = k) = E softmax_k(f), the posterior integrated out; rows add up to one.

    With a function for every class the error is 1e-7 relative to each probability, down to 1e-13. With more than 256
    classes those that hardly matter enter by E e^f alone, with errors that add up to less than 1e-5. Under a mixing
    that makes utilities correlated it is an average over 128 quasi-random draws of the latent functions, the same ones
    for every row and call: an error of about 0.01.
    """
    if utilities.independent:
        mean, variance = utilities.marginals()
        p = _independent_softmax(mean.double(), variance.double())
    else:
        p = sum((f.softmax(2).sum(0) for f in _utility_draws(utilities, _DRAWS)), torch.zeros(()))
    return (p / p.sum(1, keepdim=True)).to(utilities.latents.mean.dtype)


@torch.no_grad()
def max_probabilities(utilities: Utilities, noise_variance: float = 0.0) -> Float[Tensor, "B K"]:
    """P(f_k + e_k is the largest) for independent noise e_k of this variance; rows add up to one.

    With a function for every class the error is below 1e-6 unless the standard deviations of classes that may win are
    smaller than a 300th of the range they compete in: those are rounded up to that. Equal utilities share. Under a
    mixing that makes utilities correlated it is how often each wins in 4096 quasi-random draws of the latent functions,
    the same ones for every row and call: a standard error of at most 0.008.

    Args:
        utilities: of B inputs.
        noise_variance: of the noise, 0 for the latent utilities themselves.
    """
    if utilities.independent:
        mean, variance = utilities.marginals()
        p = _independent_highest(mean.double(), variance.double() + noise_variance)
    else:
        like = utilities.latents.mean
        p = like.new_zeros(len(like), utilities.n_utilities)
        generator = torch.Generator().manual_seed(1)
        for f in _utility_draws(utilities, _WINNER_DRAWS):
            if noise_variance > 0:
                noise = [torch.randn(f.shape[2], generator=generator, dtype=f.dtype) for _ in f]
                f = f + math.sqrt(noise_variance) * torch.stack(noise).to(f.device).unsqueeze(1)
            winners = f.argmax(2).T
            p.scatter_add_(1, winners, p.new_ones(()).expand(winners.shape))
    return (p / p.sum(1, keepdim=True)).to(utilities.latents.mean.dtype)


@torch.no_grad()
def drawn_probabilities(
    utilities: Utilities, conditional: Callable[[Tensor], Tensor], n_samples: int = 64
) -> Float[Tensor, "B K"]:
    """p(y = k) as the mean over draws of the latent functions, the same ones for every row and call.

    Args:
        utilities: of B inputs.
        conditional: p(y | f), see `ClassLikelihood.conditional`.
        n_samples: how many draws.
    """
    like = utilities.latents.mean
    mean = like.new_zeros(len(like), utilities.n_utilities)
    for f in _utility_draws(utilities, n_samples):
        mean += conditional(f).sum(0) / n_samples
    return mean


def entropy_parts(
    utilities: Utilities,
    conditional: Callable[[Tensor], Tensor],
    n_samples: int = 64,
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """How uncertain the class is, in nats: in total, and for known utilities (aleatoric).

    The total is the entropy of the mean probabilities, the second the mean entropy. Both come from the same draws, so
    that their difference, the information of the label on the utilities, is never negative.

    Args:
        utilities: of B inputs.
        conditional: p(y | f), see `ClassLikelihood.conditional`.
        n_samples: draws of the latent functions, the same ones for every row and call.
    """
    like = utilities.latents.mean
    mean = like.new_zeros(len(like), utilities.n_utilities)
    aleatoric = like.new_zeros(len(like))
    for f in _utility_draws(utilities, n_samples):
        p = conditional(f)
        mean += p.sum(0) / n_samples
        aleatoric += torch.special.entr(p).sum(2).sum(0) / n_samples
    total = torch.special.entr(mean).sum(1)
    return torch.maximum(total, aleatoric), aleatoric


@torch.no_grad()
def probit_probabilities(mean: Float[Tensor, "B K"], variance: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """P(f_k + e_k is the largest) for independent f and e_k ~ N(0, 1/2): differences then have unit noise."""
    return _independent_highest(mean.double(), variance.double() + 0.5).to(mean.dtype)


def _independent_softmax(mean: Float[Tensor, "B K"], variance: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """Rows add up to one as far as the integrals are exact."""
    if mean.shape[1] <= _ALL_EXACT:
        return log_sum_exp_moments(mean, variance, PREDICTION).by_mean.clamp_(min=0.0)
    # What -log F lacks of its first order E e^f e^{-t}: at most e^{2(m + v - t)} / 2, for v -> 0 by 1 - e^{-v} less.
    narrow = (-torch.expm1(-variance)).clamp_(min=1e-3)
    location = _low_quantile(mean + EULER_GAMMA, (variance + GUMBEL_VARIANCE).sqrt(), 1e-3).unsqueeze(1)
    errors = 0.5 * narrow * (2 * (mean + variance - location)).clamp_(max=50.0).exp_()
    probabilities = mean + variance / 2
    for rows, leading, others in _leading(errors):
        log_moments = probabilities[rows]
        log_rest = log_moments.gather(1, others).logsumexp(1)
        moments = log_sum_exp_moments(
            mean[rows].gather(1, leading), variance[rows].gather(1, leading), PREDICTION, log_rest=log_rest
        )
        first_order = log_moments.scatter_(1, leading, 0.0).add_(moments.log_inverse.unsqueeze(1)).exp_()
        probabilities[rows] = first_order.scatter_(1, leading, moments.by_mean.clamp_(min=0.0))
    return probabilities


def _independent_highest(mean: Float[Tensor, "B K"], variance: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """Rows add up to one as far as the integrals are exact."""
    deviation = torch.maximum(variance.sqrt(), 1e-7 * (1.0 + mean.abs().amax(1, keepdim=True)))
    if mean.shape[1] <= _ALL_EXACT:
        return _highest(mean, deviation)[0]
    location = _low_quantile(mean, deviation, _NEGLIGIBLE).unsqueeze(1)
    probabilities = torch.empty_like(mean)
    for rows, leading, _ in _leading(torch.special.ndtr((mean - location) / deviation)):
        p, centre, spread = _highest(mean[rows].gather(1, leading), deviation[rows].gather(1, leading))
        # The others win in less than two of a million cases; a Gaussian in place of the winner shares those out.
        scale = (deviation[rows].square() + spread.unsqueeze(1)).sqrt()
        share = torch.special.ndtr((mean[rows] - centre.unsqueeze(1)) / scale).scatter_(1, leading, 0.0)
        share *= (_NEGLIGIBLE / share.sum(1, keepdim=True)).clamp_(max=1.0)
        probabilities[rows] = share.scatter_(1, leading, p)
    return probabilities


def _highest(
    mean: Float[Tensor, "B K"], deviation: Float[Tensor, "B K"]
) -> tuple[Float[Tensor, "B K"], Float[Tensor, " B"], Float[Tensor, " B"]]:
    """int N(t; m_k, s_k^2) prod_{l != k} Phi((t - m_l) / s_l) dt, and mean and variance of the largest."""
    low, high = _low_quantile(mean, deviation, 1e-13), (mean + _SIDE * deviation).amax(1)
    least = (high - low) / _WINNER_NODES
    deviation = torch.maximum(deviation, least.unsqueeze(1))
    low, high = low - _SIDE * least, torch.maximum(high, (mean + _SIDE * deviation).amax(1))
    may_win = mean + _SIDE * deviation >= low.unsqueeze(1)
    # The largest of K varies on a scale that is smaller than theirs by sqrt(2 log K).
    step = deviation.masked_fill(~may_win, math.inf).amin(1) / (2 + math.sqrt(2 * math.log(mean.shape[1])))
    nodes = ((high - low) / step).ceil().nan_to_num_(0.0).long() + 1
    out, moments = torch.empty_like(mean), mean.new_empty(2, len(mean))
    for rows, count in chunks(nodes, torch.arange(len(mean), device=mean.device), 3 * mean.shape[1]):
        t = torch.arange(count, dtype=mean.dtype, device=mean.device) * step[rows].unsqueeze(1)
        scale = deviation[rows].unsqueeze(2)
        z = (t.unsqueeze(1) - (mean[rows] - low[rows].unsqueeze(1)).unsqueeze(2)) / scale
        log_cdf = torch.special.log_ndtr(z)
        log_cdf = log_cdf.sum(1, keepdim=True) - log_cdf
        density = log_cdf.sub_(z.square_().mul_(0.5)).exp_().mul_(step[rows].view(-1, 1, 1) / math.sqrt(2 * math.pi))
        density /= scale
        out[rows] = density.sum(2)
        winner = density.sum(1)
        centre = (winner * t).sum(1)
        moments[0, rows] = centre + low[rows]
        moments[1, rows] = (winner * (t - centre.unsqueeze(1)).square()).sum(1)
    return out, moments[0], moments[1]


def _low_quantile(mean: Float[Tensor, "B K"], deviation: Float[Tensor, "B K"], level: float) -> Float[Tensor, " B"]:
    low, high = ((mean + side * deviation).amax(1) for side in (-_SIDE, _SIDE))
    return quantile(mean, deviation, low, high, level)


def _leading(
    errors: Float[Tensor, "B K"],
) -> Iterator[tuple[Int[Tensor, " R"], Int[Tensor, "R C"], Int[Tensor, "R others"]]]:
    """Rows by the number C of their classes that are left when errors of the others add up to a negligible one."""
    sums, order = errors.sort(1)
    needed = (sums.cumsum_(1) > _NEGLIGIBLE).sum(1).clamp_(min=_MIN_EXACT)
    # Counts in powers of 2 keep the groups few.
    counts = torch.exp2(needed.double().log2().ceil()).long().clamp_(max=errors.shape[1])
    for count in sorted(set(counts.tolist())):
        rows = (counts == count).nonzero().squeeze(1)
        yield rows, order[rows, -count:], order[rows, :-count]


def _utility_draws(utilities: Utilities, count: int) -> Iterator[Float[Tensor, "S B K"]]:
    """The utilities at `count` draws of the latent functions, a few at a time; the same ones for every row and call.

    The draws are quasi-random unless they are many in many dimensions; then they are pseudo-random.
    """
    mean = utilities.latents.mean
    chunk = max(1, CHUNK_ELEMENTS // max(1, len(mean) * max(utilities.n_utilities, utilities.n_noise)))
    for noise in _normal_draws(count, utilities.n_noise, chunk):
        yield utilities.sample(noise.to(mean).unsqueeze(1).expand(-1, len(mean), -1))


def _normal_draws(count: int, size: int, chunk: int) -> Iterator[Float[Tensor, "S size"]]:
    if size <= min(_SOBOL_ELEMENTS // count, SobolEngine.MAXDIM):
        for start in range(0, count, chunk):
            yield _sobol(count, size)[start : start + chunk]
        return
    generator = torch.Generator().manual_seed(0)
    for start in range(0, count, chunk):
        # One call for each draw: what a call returns depends on its size.
        yield torch.stack([torch.randn(size, generator=generator) for _ in range(min(chunk, count - start))])


@lru_cache(maxsize=8)
def _sobol(count: int, size: int) -> Float[Tensor, "count size"]:
    engine = SobolEngine(size, scramble=True, seed=0)  # type: ignore[no-untyped-call]
    uniform = engine.draw(count, dtype=torch.float64)
    normal: Tensor = torch.special.ndtri(uniform.clamp_(1e-10, 1.0 - 1e-10)).float()
    return normal
