r"""The scatter of instances around the functions, estimated once a model is trained.

The posterior q(h(x)) says how well the functions are known, not how the labels of one instance go together: with many
training rows its variance tends to zero, and a known label would then tell nothing about the others. Labels that come
together, or exclude each other, beyond what the features say are a matter of the instance:

    h_i = h(x_i) + e_i,    e_i ~ N(0, L L') .

Only conditional prediction uses it. L, and the weight of the functions' own variance, maximise the predictive
probability of the other labels of a training row given one of its labels, whichever is drawn.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.integrals.logistic import softplus_moments
from extremegp.engine.latents.base import Marginals
from extremegp.engine.mixing import FactorMixing
from extremegp.engine.utilities import Utilities
from extremegp.prediction.known_labels import InstanceNoise, find_mode

_BATCH = 256
_PASSES = 40
_FEWEST_STEPS, _MOST_STEPS = 40, 400
_LEARNING_RATE = 0.05
_START_VARIANCE = 0.05
_SAMPLED_LABELS = 1024
_OPERATIONS = 2e11
"""Of matrix products in all: a few seconds of one core."""
_LEAST_PROBABILITY = 1e-6


def estimate_instance_noise(
    utilities: Utilities,
    y: scipy.sparse.csr_matrix,
    *,
    rng: np.random.Generator,
    propensities: Float[Tensor, " K"] | None = None,
    weights: NDArray[np.float64] | None = None,
) -> InstanceNoise:
    """Find the scatter by stochastic gradient ascent, in seconds whatever the size of the data.

    Of more than 1024 labels, those absent from a batch are represented by a sample, weighted to stand for all of them.

    Args:
        utilities: of N training rows, mixed of P latent functions.
        y: labels of these rows, N x K indicator with at least one label, or the probabilities of labels, which count as
            independent of each other: a row with hardly any label counts by what it has.
        rng: draws rows and labels.
        propensities: with which probability a label that applies is recorded in y; 1 by default.
        weights: what each row counts, N; 1 by default.
    """
    latents, mixing = utilities.latents, cast(FactorMixing, utilities.mixing)  # only factor models take known labels
    loadings, bias = mixing.loadings.detach(), mixing.bias.detach()
    labelled = np.flatnonzero(np.diff(y.indptr))
    counted = _row_weights(y, weights)
    log_weight = loadings.new_zeros(()).requires_grad_()
    factor = (_START_VARIANCE**0.5 * torch.eye(loadings.shape[1]).to(loadings)).requires_grad_()
    optimiser = torch.optim.Adam([log_weight, factor], lr=_LEARNING_RATE)
    batch_size = min(_BATCH, len(labelled))
    n_steps = _number_of_steps(len(labelled), batch_size, loadings)
    for step in range(n_steps):
        optimiser.param_groups[0]["lr"] = _LEARNING_RATE * (1.0 - step / n_steps)
        rows = np.sort(rng.choice(labelled, batch_size, replace=False))
        batch = y[rows]
        index = torch.from_numpy(rows).to(loadings.device)
        here, here_offset = latents.rows(index), None if utilities.offset is None else utilities.offset[index]
        known = _one_label_each(batch, rng).to(loadings.device)
        labels, weights = _labels_to_sum_over(batch, rng)
        target = torch.from_numpy(batch[:, labels].toarray()).to(loadings)
        columns = torch.from_numpy(labels).to(loadings.device)
        offset = 0.0 if here_offset is None else here_offset.gather(1, known[:, None])[:, 0]
        moved = _shift(here, loadings[known], bias[known] + offset, log_weight.exp(), factor)
        shift = moved @ loadings[columns].T
        with torch.no_grad():
            mean = torch.addmm(bias[columns], here.mean, loadings[columns].T) + shift
            if here_offset is not None:
                mean += here_offset[:, columns]
            recorded = 1.0 if propensities is None else propensities[columns]
            gradient = _gradient(mean, here.variance @ loadings[columns].square().T, target, recorded)
            gradient *= torch.where(target > 0, 1.0, torch.from_numpy(weights).to(loadings))
            gradient[columns == known[:, None]] = 0.0
            if counted is not None:
                gradient *= torch.from_numpy(counted[rows]).to(loadings)[:, None]
        optimiser.zero_grad()
        ((shift * gradient).sum() / batch_size).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return InstanceNoise(log_weight.detach().exp(), factor.detach())


def _number_of_steps(n_rows: int, batch_size: int, loadings: Float[Tensor, "K P"]) -> int:
    n_labels, n_functions = loadings.shape
    # Seven products of a batch with all labels or all functions, forward and backward, two operations each.
    operations = 14.0 * batch_size * n_functions * (min(n_labels, 2 * _SAMPLED_LABELS) + 2 * n_functions)
    affordable = min(_MOST_STEPS, _OPERATIONS / operations)
    return int(max(_FEWEST_STEPS, min(affordable, _PASSES * n_rows / batch_size)))


def _shift(
    latents: Marginals,
    known: Float[Tensor, "B P"],
    bias: Float[Tensor, " B"],
    weight: Float[Tensor, ""],
    factor: Float[Tensor, "P P"],
) -> Float[Tensor, "B P"]:
    """How far the latent functions move once a label with these loadings is known to be present."""
    covariance = weight * latents.variance * known + (known @ factor) @ factor.T
    variance = (covariance * known).sum(1)
    mean = bias + (latents.mean * known).sum(1)
    with torch.no_grad():
        wide, present = mean.double()[:, None], torch.ones_like(mean, dtype=torch.float64)[:, None]
        mode = find_mode(wide, variance.double().sqrt()[:, None, None], present)
        gradient, curvature = (part[:, 0].to(mean.dtype) for part in mode)
        # g solves g = sigma(-mean - variance g), from which follows its derivative by the variance.
        slope = -curvature * gradient / (1.0 + curvature * variance)
    return (gradient + slope * (variance - variance.detach()))[:, None] * covariance


def _gradient(
    mean: Tensor, variance: Tensor, target: Tensor, recorded: Float[Tensor, "*L"] | float
) -> Float[Tensor, "B L"]:
    """The derivative of -log p(y) by the mean of every utility."""
    _, p, half_slope = softplus_moments(mean, variance)
    p = p.clamp(_LEAST_PROBABILITY, 1.0 - _LEAST_PROBABILITY)
    return (target * (-1.0 / p) + (1.0 - target) * (recorded / (1.0 - recorded * p))) * (2.0 * half_slope)


def _row_weights(y: scipy.sparse.csr_matrix, weights: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    """What each row counts, of mean one: its weight, times how many labels it has where these are less than one."""
    if weights is None and (y.data >= 1).all():
        return None
    counted = np.minimum(np.asarray(y.sum(axis=1), dtype=np.float64).ravel(), 1.0)
    counted = counted if weights is None else counted * weights
    return np.asarray(counted / counted.mean())


def _one_label_each(batch: scipy.sparse.csr_matrix, rng: np.random.Generator) -> Int[Tensor, " B"]:
    """One of the labels of every row, drawn alike, or by their probabilities."""
    counts, drawn = np.diff(batch.indptr), rng.random(batch.shape[0])
    chosen = batch.indptr[:-1] + (drawn * counts).astype(np.int64)
    if (batch.data < 1).any():
        ends = np.cumsum(batch.data, dtype=np.float64)
        last = batch.indptr[1:] - 1
        before = np.append(0.0, ends)[batch.indptr[:-1]]
        chosen = np.searchsorted(ends, before + drawn * (ends[last] - before), side="right")
        chosen = np.clip(chosen, batch.indptr[:-1], last)
    return torch.from_numpy(batch.indices[chosen].astype(np.int64))


def _labels_to_sum_over(
    batch: scipy.sparse.csr_matrix, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Labels, and how much each counts where it is absent."""
    n_labels = batch.shape[1]
    if n_labels <= _SAMPLED_LABELS:
        return np.arange(n_labels), np.ones(n_labels)
    present = np.unique(batch.indices).astype(np.int64)
    # In time for the sample, not for all labels; how many of it are absent is left to chance.
    drawn = np.setdiff1d(rng.choice(n_labels, _SAMPLED_LABELS, replace=False), present, assume_unique=True)
    weights = np.repeat([1.0, (n_labels - len(present)) / max(1, len(drawn))], [len(present), len(drawn)])
    return np.concatenate([present, drawn]), weights
