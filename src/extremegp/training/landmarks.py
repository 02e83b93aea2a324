"""Where Gaussian processes with landmarks start: kernel and amplitude, by what predicts rows held out.

Weights of the features come from the regression of the labels in closed form (`learn_kernel`). What a classifier
wants besides is how smooth its utilities are beside those of the regression, and how large: two numbers for all labels,
chosen by the log-likelihood of rows held out of a part of the training rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.blocks import Block
from extremegp.engine.feature_regression import FeatureRegression
from extremegp.engine.kernel_choice import learn_kernel
from extremegp.engine.landmarks import Landmarks
from extremegp.engine.latents import FeatureGP
from extremegp.engine.lengthscales import Learnt, chosen, learn_lengthscales
from extremegp.engine.likelihoods.base import Likelihood
from extremegp.engine.mixing import FactorMixing, IdentityMixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.engine.selection import Selection
from extremegp.engine.sparse import Matrix, fill
from extremegp.training.grids import climbed
from extremegp.training.label_variances import widen
from extremegp.training.landmark_trial import TRIAL_ROWS, HeldOut, SomeRows, Trial

CONTRASTS = (0.0, 0.5, 1.0)
FINE_SCALES = tuple(3.0 ** (half / 2) for half in range(-8, 9))
SCALES = tuple(3.0**power for power in range(-4, 3))
AMPLITUDES = tuple(float(variance) for variance in (0.3, 1, 3, 10, 30, 100))
"""What weights are multiplied by, and variances of utilities, that are tried."""
_SHARED = 0.3  # variance of utilities that are mixed of functions, at the start
_NOTICED = 0.005
_BY = f"the mean log-likelihood of rows held out (differences below {100 * _NOTICED:g} % count as none)"
_BY_EVIDENCE = "the evidence, one for each label; rows held out are told no better with a mean function"
_CHANCE, _PLAIN = 3.0, 10.0  # standard errors
_SCALE_ROWS, _SCALE_LABELS = 1200, 24
_FIRST = (3, 3)  # where it is looked first: a third of the weights, variance 10


class Choice(NamedTuple):
    """What was chosen.

    Attributes:
        learnt: weights of the features, and shares of the kernels of blocks.
        variances: of the utilities, one for each.
        with_mean: whether there is a mean function.
        selections: what was tried, and what won.
    """

    learnt: Learnt
    variances: NDArray[np.float64]
    with_mean: bool
    selections: list[Selection]


def choose(
    data: TrainingData, likelihood: Likelihood, blocks: Sequence[Block] = (), *, own_functions: bool = True
) -> Choice:
    """The kernel and the variances of the utilities for training data, and whether there is a mean function.

    A mean function is taken as known, and so it is for labels that are told better with it, by more than chance makes
    of rows held out. Else scale and variances, one for each label, are those of the evidence.

    Args:
        data: what is trained on; its generator decides the rows that are looked at.
        likelihood: of the labels.
        blocks: blocks of the features.
        own_functions: whether each label has a function of its own.
    """
    learnt = learn_kernel(data.x, data.y, rng=data.rng, weights=data.weights, blocks=blocks)
    n_utilities = likelihood.n_utilities(data.y.shape[1])
    trial = Trial.of(data, likelihood, learnt, blocks)
    if trial is None:
        by = "default: there are too few rows to hold any out"
        selection = Selection(by, {"weight_scale": 1.0, "utility_variance": 1.0})
        return Choice(learnt, np.ones(n_utilities), True, [*learnt.selections(with_noise=False), selection])
    tried: dict[tuple[float, float], HeldOut] = {}

    def score(place: tuple[int, int]) -> float:
        key = SCALES[place[0]], AMPLITUDES[place[1]]
        if key not in tried:
            tried[key] = trial.scores(learnt.log_weights + math.log(key[0]), key[1])
        return tried[key].mean

    at = climbed(score, _FIRST, (len(SCALES), len(AMPLITUDES)), _NOTICED)
    best = SCALES[at[0]], AMPLITUDES[at[1]]
    scaled = learnt._replace(log_weights=learnt.log_weights + math.log(best[0]))
    won = {"weight_scale": best[0], "utility_variance": best[1]}
    by = _BY if own_functions else f"{_BY}; functions that are mixed take the scale alone"
    selection = Selection.of(by, won, [(key, scores.mean) for key, scores in tried.items()])
    selections = [*scaled.selections(with_noise=False), selection]
    with_mean = Choice(scaled, np.full(n_utilities, best[1]), True, selections)
    if own_functions and likelihood.has_label_terms:
        # Where a mean function is plainly worth it the evidence is not looked at.
        without = trial.scores(scaled.log_weights, best[1], with_mean=False)
        if tried[best].is_better(without, _PLAIN):
            return with_mean
        log_weights = _best_weights(SomeRows.drawn(data, _SCALE_ROWS, learnt, blocks), learnt, likelihood, data.rng)
        without = trial.scores(log_weights, trial.variances(log_weights), with_mean=False)
        if not tried[best].is_better(without, _CHANCE):
            rows = SomeRows.drawn(data, TRIAL_ROWS, learnt, blocks)
            variances = rows.variances(log_weights, likelihood, np.arange(n_utilities)).variances
            found = learnt._replace(log_weights=log_weights)
            quantiles = np.quantile(variances, (0, 0.5, 1)).tolist()
            names = ("smallest_utility_variance", "median_utility_variance", "largest_utility_variance")
            own = Selection(_BY_EVIDENCE, dict(zip(names, quantiles, strict=True)))
            return Choice(found, variances, False, [*found.selections(with_noise=False), own])
    return with_mean


def _best_weights(
    rows: SomeRows, learnt: Learnt, likelihood: Likelihood, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Log weights with the highest evidence of some labels: learnt ones, times a scale, and of numbers nearer together.

    Few rows tell the weights of numbers apart by less than what is learnt from them says.
    """
    n_labels = rows.y.shape[1]
    labels = np.sort(rng.choice(n_labels, min(n_labels, _SCALE_LABELS), replace=False))
    found: dict[tuple[int, int], float] = {}
    together = learnt.log_weights.mean()
    contrasts = (1.0,) if scipy.sparse.issparse(rows.x) or len(learnt.shares) > 1 else CONTRASTS

    def log_weights(place: tuple[int, int]) -> NDArray[np.float32]:
        scale, contrast = FINE_SCALES[place[0]], contrasts[place[1]]
        return np.asarray(together + contrast * (learnt.log_weights - together) + math.log(scale), dtype=np.float32)

    def evidence(place: tuple[int, int]) -> float:
        if place not in found:
            found[place] = rows.variances(log_weights(place), likelihood, labels).evidence
        return found[place]

    sizes = len(FINE_SCALES), len(contrasts)
    return log_weights(climbed(evidence, (FINE_SCALES.index(1.0), len(contrasts) - 1), sizes, 0.0))


def start_on_landmarks(
    model: VariationalModel, data: TrainingData, known: VariationalModel | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Start a model of functions with landmarks, in place: its kernel, its prior, and a first posterior.

    Args:
        model: whose latent functions have landmarks and whose mixing keeps their scales.
        data: what is trained on.
        known: a model of such rows whose kernel and variances are taken, and whose functions it starts from, as far as
            its landmarks can tell them; None to choose all.

    Returns:
        The features of the training rows, of which the model is to be trained, and what its mean function says of each
        without the row itself.
    """
    latents, mixing, likelihood, landmarks = model.latents, model.mixing, model.likelihood, model.features
    assert landmarks is not None
    latents, mean = cast(FeatureGP, latents), cast(FeatureRegression, model.mean_function)
    likelihood.start(data)
    rows = landmarks.kept
    choice = choose(data, likelihood, rows.blocks, own_functions=mixing.independent) if known is None else _known(known)
    with torch.no_grad():
        rows.keep(data.x[chosen(data.n_rows, len(rows))])
        rows.set_kernel(choice.learnt)
        features = landmarks.rotate(data.x, data.weights)
        logits, selection = mean.fit(features, data.y, weights=data.weights)
        data.selections.extend([*choice.selections, *([selection] if choice.with_mean else [])])
        if not choice.with_mean:
            mean.leave_out()
        if not mixing.independent:
            mixing = cast(FactorMixing, mixing)
            # What labels have in common is less than what each has of its own.
            mixing.start_loadings(data)
            mixing.loadings.mul_(math.sqrt(_SHARED))
            mixing.prior = likelihood.prior(data.applies, data.n_counted)
            variances, curvature = (
                mixing.loadings.square().sum(1).double().numpy(),
                np.full(latents.n_functions, _SHARED),
            )
        else:
            mixing = cast(IdentityMixing, mixing)
            variances = choice.variances
            fill(mixing.log_scales, 0.5 * np.log(variances))
            curvature = variances * likelihood.curvature(data.frequencies)
        fill(mixing.bias, likelihood.prior_bias(data.applies, data.n_counted, variances))
        latents.spread(features, curvature)
        if known is not None:
            mixing.load_state_dict(known.mixing.state_dict() | {"bias": mixing.bias})
            mean.slope.copy_(cast(FeatureRegression, known.mean_function).slope)
            latents.posterior.q_mean.copy_(_told_by(landmarks, known))
    return features.numpy(), logits


def start_on_points(
    model: VariationalModel, data: TrainingData, kernel: str, lengthscale: float
) -> NDArray[np.float32]:
    """Start a model of the most probable functions with landmarks, in place; the features of the training rows.

    Args:
        model: whose latent functions have landmarks.
        data: what is trained on.
        kernel: "ard" for weights of the features that are those of the regression of the labels, "se" for 1.
        lengthscale: what distances are divided by.
    """
    landmarks = model.features
    assert landmarks is not None
    model.start(data)
    points = data.x[chosen(data.n_rows, len(landmarks))]
    set_kernel(landmarks, points, kernel, lengthscale, lambda: learnt_of_labelled(data))
    features: NDArray[np.float32] = landmarks.rotate(data.x, data.weights).numpy()
    return features


@torch.no_grad()
def set_kernel(
    landmarks: Landmarks, points: Matrix, kernel: str, lengthscale: float, learnt: Callable[[], Learnt]
) -> None:
    """Give landmarks their rows and the kernel that `start_on_points` takes."""
    found = learnt() if kernel == "ard" else Learnt(np.zeros(points.shape[1], np.float32), 1.0, np.ones(1, np.float32))
    landmarks.kept.keep(points)
    landmarks.kept.set_kernel(found._replace(log_weights=found.log_weights - np.float32(2 * math.log(lengthscale))))


def learnt_of_labelled(data: TrainingData) -> Learnt:
    """The kernel of the regression of the labels on rows that have one."""
    labelled = np.flatnonzero(np.diff(data.y.indptr))
    weights = None if data.weights is None else data.weights[labelled]
    learnt = learn_lengthscales(data.x[labelled], data.y[labelled], rng=data.rng, weights=weights)
    data.selections.extend(learnt.selections(with_noise=False))
    return learnt


def _known(model: VariationalModel) -> Choice:
    """What was chosen for a model."""
    assert model.features is not None
    mean, mixing = cast(FeatureRegression, model.mean_function), model.mixing
    variances = mixing.prior_variances().detach().double().cpu().numpy()
    return Choice(model.features.kept.known(), variances, not mean.is_left_out, [])


def _told_by(landmarks: Landmarks, known: VariationalModel) -> Tensor:
    """The means of another model's functions in the features by way of these landmarks: projections."""
    assert known.features is not None
    others, means = known.features, cast(FeatureGP, known.latents).posterior.q_mean.detach()
    points = landmarks.kept.scaled_points()
    covariances = torch.cat([*others.kept.scaled_points().covariances(points)]).to(means)
    return means @ (others.basis.T @ covariances @ landmarks.basis)


def finish_on_landmarks(
    model: VariationalModel, a: NDArray[np.float32], y: scipy.sparse.csr_matrix, weights: NDArray[np.float64] | None
) -> None:
    """What is left to do after training: see `widen`; not beside a mean function, which is taken as known.

    Args:
        model: of features.
        a: those of the training rows, N x M.
        y: labels, N x K.
        weights: what each row counts, N; None for 1.
    """
    mean = cast(FeatureRegression, model.mean_function)
    if mean.is_left_out:
        widen(model, a, y, weights)
