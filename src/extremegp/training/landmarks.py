"""Where Gaussian processes with landmarks start: kernel and amplitude, by what predicts rows held out.

Weights of the features come from the regression of the labels in closed form (`learn_lengthscales`). What a classifier
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
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from extremegp.engine.batch import Batch
from extremegp.engine.blocks import Block
from extremegp.engine.feature_regression import FeatureRegression
from extremegp.engine.landmarks import Landmarks
from extremegp.engine.latents import FeatureGP
from extremegp.engine.lengthscales import Learnt, chosen, learn_lengthscales
from extremegp.engine.likelihoods.base import Likelihood
from extremegp.engine.matrices import column_means
from extremegp.engine.mean import points_kept
from extremegp.engine.mixing import FactorMixing, IdentityMixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.engine.selection import Selection
from extremegp.engine.sparse import SparseRows, fill
from extremegp.training.schedule import epoch_batches, one_cycle

SCALES = tuple(3.0**power for power in range(-4, 3))
AMPLITUDES = tuple(float(variance) for variance in (0.3, 1, 3, 10, 30, 100))
"""What weights are multiplied by, and variances of utilities, that are tried."""
_ROWS, _HELD, _LANDMARKS, _LABELS = 2400, 0.25, 500, 200
_SHARED = 0.3  # variance of utilities that are mixed of functions, at the start
_EPOCHS, _BATCH, _STEP, _RATE = 8, 120, 0.3, 0.05
_NOTICED = 0.005
_BY = f"the mean log-likelihood of rows held out (differences below {100 * _NOTICED:g} % count as none)"
_FIRST = (3, 3)  # where it is looked first: a third of the weights, variance 10


class Choice(NamedTuple):
    """What was chosen.

    Attributes:
        learnt: weights of the features and shares of blocks, as the regression has them.
        scale: of the weights, beside them.
        variance: of the utilities.
        tried: the mean log-likelihood of rows held out, by scale and variance.
    """

    learnt: Learnt
    scale: float
    variance: float
    tried: dict[tuple[float, float], float]

    def selections(self, *, mixed: bool) -> list[Selection]:
        """What was tried for hyper-parameters, and what won, for functions that are mixed or one for each label."""
        won = {"weight_scale": self.scale, "utility_variance": self.variance}
        by = _BY if self.tried else "default: there are too few rows to hold any out"
        if mixed:
            by += "; functions that are mixed take the scale alone"
        return [self.learnt.selection(self.scale, with_noise=False), Selection.of(by, won, self.tried.items())]


def choose(data: TrainingData, likelihood: Likelihood, blocks: Sequence[Block] = ()) -> Choice:
    """The kernel and the variance of the utilities for training data.

    Args:
        data: what is trained on; its generator decides the rows that are looked at.
        likelihood: of the labels.
        blocks: blocks of the features.
    """
    learnt = learn_lengthscales(data.x, data.y, rng=data.rng, weights=data.weights, blocks=blocks)
    trial = _Trial.of(data, likelihood, learnt, blocks)
    if trial is None:
        return Choice(learnt, 1.0, 1.0, {})
    tried: dict[tuple[float, float], float] = {}

    def score(scale: int, variance: int) -> float:
        key = SCALES[scale], AMPLITUDES[variance]
        if key not in tried:
            tried[key] = trial.score(*key)
        return tried[key]

    at = _climbed(score, _FIRST, (len(SCALES), len(AMPLITUDES)))
    return Choice(learnt, SCALES[at[0]], AMPLITUDES[at[1]], tried)


def _climbed(score: Callable[[int, int], float], at: tuple[int, int], sizes: tuple[int, int]) -> tuple[int, int]:
    """A place of a grid with no better neighbour along either axis, from one place upwards."""
    while True:
        neighbours = [(at[0], at[1] + 1), (at[0], at[1] - 1), (at[0] + 1, at[1]), (at[0] - 1, at[1])]
        inside = [place for place in neighbours if all(0 <= i < size for i, size in zip(place, sizes, strict=True))]
        better = next((place for place in inside if _is_better(score(*place), score(*at))), None)
        if better is None:
            return at
        # On along the same way as long as it leads up, so that few places are tried.
        step = better[0] - at[0], better[1] - at[1]
        at = better
        while all(0 <= i + d < size for i, d, size in zip(at, step, sizes, strict=True)):
            after = at[0] + step[0], at[1] + step[1]
            if not _is_better(score(*after), score(*at)):
                break
            at = after


def _is_better(score: float, other: float) -> bool:
    """Whether a mean log-likelihood is higher by more than chance makes of rows held out."""
    return score > other + _NOTICED * abs(other)


class _Trial(NamedTuple):
    """Rows to train on and rows held out, and what is the same whatever is tried."""

    landmarks: Landmarks
    weights: Tensor
    x: tuple[scipy.sparse.csr_matrix | NDArray[np.float32], scipy.sparse.csr_matrix | NDArray[np.float32]]
    y: tuple[scipy.sparse.csr_matrix, scipy.sparse.csr_matrix]
    row_weights: tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]
    likelihood: Likelihood
    seed: int

    @classmethod
    def of(cls, data: TrainingData, likelihood: Likelihood, learnt: Learnt, blocks: Sequence[Block]) -> _Trial | None:
        """Some rows; None where there are too few of them."""
        rng, n_rows = data.rng, min(_ROWS, data.n_rows)
        order = rng.choice(data.n_rows, n_rows, replace=False)
        held = round(_HELD * n_rows)
        if held < 1:
            return None
        fitted, tested = np.sort(order[held:]), np.sort(order[:held])
        y = data.y
        if likelihood.labels_independent and not likelihood.has_classes and y.shape[1] > _LABELS:
            labels = np.sort(rng.choice(y.shape[1], _LABELS, replace=False))
            y, likelihood = y[:, labels], likelihood.select(torch.from_numpy(labels))
        x = data.x[fitted]
        kept, n_stored = points_kept(x, min(_LANDMARKS, len(fitted)), blocks)
        landmarks = Landmarks(kept, n_stored, data.x.shape[1], blocks=blocks)
        rows = landmarks.kept
        rows.keep(x[chosen(len(fitted), kept)])
        if len(rows.blocks) > 1:
            rows.shares.copy_(torch.from_numpy(learnt.shares))
        weights = torch.from_numpy(np.exp(learnt.log_weights))
        of_rows = (None, None) if data.weights is None else (data.weights[fitted], data.weights[tested])
        return cls(
            landmarks,
            weights,
            (x, data.x[tested]),
            (y[fitted], y[tested]),
            of_rows,
            likelihood,
            int(rng.integers(2**31)),
        )

    def score(self, scale: float, variance: float) -> float:
        """Mean log-likelihood of the rows held out."""
        with torch.no_grad():
            self.landmarks.kept.weights.copy_(self.weights * scale)
            a, held = self.landmarks.rotate(self.x[0], self.row_weights[0]), self.landmarks(self.x[1])
        model, logits = of_features(a, self.y[0], self.likelihood, variance, self.row_weights[0])
        natural_fit(model, a, self.y[0], self.row_weights[0], logits, seed=self.seed)
        with torch.no_grad():
            predicted = self.likelihood.predict(model.utilities(model.latents.condition(), held)).expectations
        scores = log_scores(predicted, self.y[1], classes=self.likelihood.has_classes)
        return float(np.average(scores, weights=self.row_weights[1]))


def of_features(
    a: Float[Tensor, "N M"],
    y: scipy.sparse.csr_matrix,
    likelihood: Likelihood,
    variance: float,
    weights: NDArray[np.float64] | None,
) -> tuple[VariationalModel, NDArray[np.float32]]:
    """The model of features, as it starts, and what its mean function says of each row without the row itself."""
    n_utilities = likelihood.n_utilities(y.shape[1])
    frequencies = column_means(y, weights)
    scales = torch.full((n_utilities,), 0.5 * math.log(variance))
    bias = likelihood.prior_bias(frequencies, y.shape[0], np.full(n_utilities, variance))
    mixing = IdentityMixing(scales, torch.from_numpy(bias).float(), learn_scales=False, learn_bias=False)
    latents = FeatureGP(n_utilities, a.shape[1])
    latents.spread(a, variance * likelihood.curvature(frequencies))
    assert likelihood.link is not None
    mean = FeatureRegression(a.shape[1], y.shape[1], link=likelihood.link)
    return VariationalModel(latents, mixing, likelihood, mean), mean.fit(a, y, weights=weights).logits


def natural_fit(
    model: VariationalModel,
    a: Float[Tensor, "N M"],
    y: scipy.sparse.csr_matrix,
    weights: NDArray[np.float64] | None,
    mean_logits: NDArray[np.float32],
    *,
    seed: int,
) -> None:
    """A few passes over few rows."""
    assert model.mean_function is not None
    optimizer = torch.optim.Adam([model.mean_function.slope], lr=_RATE)
    n_rows = len(a)
    batches = [rows for epoch in range(_EPOCHS) for rows in epoch_batches(n_rows, _BATCH, seed=seed, epoch=epoch)]
    for step, rows in enumerate(batches):
        batch = Batch(
            a[rows],
            SparseRows.from_scipy(y[rows], dtype=a.dtype, device=a.device),
            scale=n_rows / len(rows),
            weights=None if weights is None else torch.from_numpy(weights[rows]).float(),
            mean_logits=torch.from_numpy(mean_logits[rows]),
        )
        model.zero_grad()
        (-model.elbo(batch).bound / n_rows).backward()  # type: ignore[no-untyped-call]
        share = one_cycle(step / len(batches))
        model.latents.natural_step(_STEP * share, n_rows)
        optimizer.param_groups[0]["lr"] = _RATE * share
        optimizer.step()


def log_scores(expectations: Float[Tensor, "B K"], y: scipy.sparse.csr_matrix, *, classes: bool) -> NDArray[np.float64]:
    """Log-likelihoods of the labels of every row under what is expected of them, B."""
    p = expectations.double().clamp(1e-12, 1 - 1e-12)
    present = y.tocoo()
    rows, columns, values = (torch.from_numpy(part) for part in (present.row, present.col, present.data.astype(float)))
    rows, columns = rows.long(), columns.long()
    found = p[rows, columns]
    if classes:
        of_rows, terms = torch.zeros(len(p), dtype=torch.float64), found.log()
    else:
        of_rows, terms = torch.log1p(-p).sum(1), torch.logit(found)
    scores: NDArray[np.float64] = of_rows.index_add_(0, rows, values * terms).numpy()
    return scores


def start_on_landmarks(model: VariationalModel, data: TrainingData) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Start a model of functions with landmarks, in place: its kernel, its prior, and a first posterior.

    Args:
        model: whose latent functions have landmarks and whose mixing keeps their scales.
        data: what is trained on.

    Returns:
        The features of the training rows, of which the model is to be trained, and what its mean function says of each
        without the row itself.
    """
    latents, mixing, likelihood, landmarks = model.latents, model.mixing, model.likelihood, model.features
    assert landmarks is not None
    latents, mean = cast(FeatureGP, latents), cast(FeatureRegression, model.mean_function)
    likelihood.start(data)
    rows = landmarks.kept
    choice = choose(data, likelihood, rows.blocks)
    with torch.no_grad():
        rows.keep(data.x[chosen(data.n_rows, len(rows))])
        fill(rows.weights, choice.scale * np.exp(choice.learnt.log_weights))
        if len(rows.blocks) > 1:
            fill(rows.shares, choice.learnt.shares)
        features = landmarks.rotate(data.x, data.weights)
        regressed = mean.fit(features, data.y, weights=data.weights)
        data.selections.extend([*choice.selections(mixed=not mixing.independent), regressed.selection])
        applies = data.frequencies if data.propensities is None else data.frequencies / data.propensities
        if not mixing.independent:
            mixing = cast(FactorMixing, mixing)
            # What labels have in common is less than what each has of its own.
            mixing.start_loadings(data)
            mixing.loadings.mul_(math.sqrt(_SHARED))
            mixing.prior = likelihood.prior(applies, data.n_counted)
            variances, curvature = (
                mixing.loadings.square().sum(1).double().numpy(),
                np.full(latents.n_functions, _SHARED),
            )
        else:
            mixing = cast(IdentityMixing, mixing)
            mixing.log_scales.fill_(0.5 * math.log(choice.variance))
            variances = np.full(len(mixing.bias), choice.variance)
            curvature = choice.variance * likelihood.curvature(data.frequencies)
        fill(mixing.bias, likelihood.prior_bias(applies, data.n_counted, variances))
        latents.spread(features, curvature)
    return features.numpy(), regressed.logits
