"""Which functions a model of sequences has where nobody says: by the likelihood of training sequences held out.

Linear functions, and Gaussian processes by way of training tokens, with one lengthscale or those of the regression of
the labels, all at their most probable values, each from little to much variance. Every one is trained in a second or
so, from where the last one stands, on three quarters of the sequences, and judged by the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from extremegp.engine import chain
from extremegp.engine.landmarks import Landmarks
from extremegp.engine.latents import LinearFunctions
from extremegp.engine.lengthscales import Learnt, chosen
from extremegp.engine.mean import points_kept
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.engine.selection import Selection
from extremegp.estimators.examples import Examples
from extremegp.prediction.predictor import Predictor
from extremegp.prediction.shared_covariance import known_codes
from extremegp.settings.memory import memory_left, memory_limit
from extremegp.settings.resolve import model_settings, training_settings
from extremegp.training import NoReporter, ProgressReporter, Reporter, World
from extremegp.training.landmarks import learnt_of_labelled, set_kernel
from extremegp.training.whole import GAIN, train_whole

VARIANCES = (1.0, 3.0, 10.0, 30.0, 100.0)
_SHARE, _ENOUGH, _MOST_SPLITS = 0.25, 2000, 3  # tokens held out
_N_LANDMARKS = 2000
_MOST_TOKENS = _MOST_OF_LANDMARKS = 30_000
_SHARE_OF_BUDGET = 0.3
_BY = "the mean log-likelihood of training tokens, by sequences held out, highest"


class _Functions(NamedTuple):
    """What may be chosen, beside the variance; the cheapest first."""

    latents: str
    kernel: str
    lengthscale: float
    first: int  # of the variances


class _OutOfTimeError(Exception):
    """The share of the time budget that there is for the choice is over."""


_CANDIDATES = (
    _Functions("linear-point", "linear", 1.0, 2),
    _Functions("landmarks-point", "se", 0.7, 3),
    _Functions("landmarks-point", "ard", 3.0, 3),
    _Functions("landmarks-point", "ard", 1.7, 3),
)


def choose_functions(
    params: dict[str, Any],
    data: Examples,
    translate: Callable[[dict[str, Any], Examples], dict[str, Any]],
    rng: np.random.Generator,
    world: World,
) -> tuple[dict[str, Any], Selection | None]:
    """The parameters of the functions that tell sequences held out best, and what was tried.

    Args:
        params: of the estimator.
        data: the training sequences.
        translate: from these to those that `model_settings` and `training_settings` take, for data.
        rng: decides what is held out.
        world: the processes that choose together, each with all data and the same `rng`.
    """
    splits = [*_splits(data, rng)]
    best = _CANDIDATES[0]
    # Of linear functions of very many tokens it would take longer than they do.
    covariance = {"weight_covariance": "shared" if data.x.shape[0] <= _MOST_OF_LANDMARKS else "factorised"}
    if not splits:
        return _params(best, VARIANCES[best.first]) | covariance, None
    reporter = ProgressReporter() if params["verbose"] and world.leads else NoReporter()
    try:
        (large,) = world.any(_are_large(params, splits, data.x.shape[0], world.local_size))
        tried = _tried(params, splits, translate, reporter, world, large=large)
    finally:
        reporter.close()
    if not tried:
        return _params(best, VARIANCES[best.first]) | covariance, None
    won = max(tried, key=lambda key: tried[key])
    named: dict[str, str | float] = dict(zip(("latents", "kernel", "lengthscale", "prior_variance"), won, strict=True))
    found = _params(_Functions(*won[:3], 0), won[3]) | covariance
    return found, Selection.of(_BY, named, tried.items())


def _are_large(params: dict[str, Any], splits: list[_Split], n_tokens: int, n_processes: int) -> bool:
    """Whether Gaussian processes by way of landmarks would take too long, or more memory than there is."""
    rows = sum(split.kept.x.shape[0] + split.held.x.shape[0] for split in splits)
    landmarks = min(n_tokens, _N_LANDMARKS)
    # Features of all rows twice; K_Z, its factors and the eigenvectors.
    needed = n_processes * (4 * 2 * rows * landmarks + 8 * 6 * landmarks**2)
    return n_tokens > _MOST_OF_LANDMARKS or needed > memory_left(memory_limit(params["max_memory"]))


def _tried(
    params: dict[str, Any],
    splits: list[_Split],
    translate: Callable[[dict[str, Any], Examples], dict[str, Any]],
    reporter: Reporter,
    world: World,
    *,
    large: bool,
) -> dict[tuple[str, str, float, float], float]:
    """What functions are worth, with the variances that were looked at."""
    started, budget = time.monotonic(), params["time_budget"]
    tried: dict[tuple[str, str, float, float], float] = {}
    for place, functions in enumerate(_CANDIDATES):
        if large and functions.latents == "landmarks-point":
            continue
        reporter.work("choosing functions by sequences held out", place / len(_CANDIDATES))
        trials = [split.trial(params, functions, translate, world) for split in splits]

        def score(place: int, trials: list[_Trial] = trials, functions: _Functions = functions) -> float:
            key = (*functions[:3], VARIANCES[place])
            if key not in tried:
                if budget is not None and world.most(time.monotonic() - started)[0] > _SHARE_OF_BUDGET * budget:
                    raise _OutOfTimeError
                mean = float(np.mean([trial.score(VARIANCES[place]) for trial in trials]))
                tried[key] = world.said_by_first(mean)
            return tried[key]

        try:
            at = functions.first
            step = 1 if score(at + 1) > score(at) else -1
            while 0 <= at + step < len(VARIANCES) and score(at + step) > score(at):
                at += step
        except _OutOfTimeError:
            break
    return tried


def _params(functions: _Functions, variance: float) -> dict[str, Any]:
    return {
        "latents": functions.latents,
        "kernel": functions.kernel if functions.latents == "landmarks-point" else "auto",
        "lengthscale": functions.lengthscale,
        "prior_variance": variance,
        "transitions": "point",
        "optimizer": "lbfgs",
    }


def _splits(data: Examples, rng: np.random.Generator) -> Iterator[_Split]:
    """Training sequences with others held out: as often as it takes to judge by enough tokens."""
    assert data.lengths is not None
    n_held, n_tokens = round(_SHARE * data.n_units), 0
    if n_held == 0:
        return
    for _ in range(_MOST_SPLITS):
        order = rng.permutation(data.n_units)
        order = order[: max(4, int(np.searchsorted(np.cumsum(data.lengths[order]), _MOST_TOKENS)))]
        n_own = round(_SHARE * len(order))
        split = _Split(data.part(order[n_own:]), data.part(order[:n_own]), rng)
        if split.kept.y.nnz == 0 or split.held.y.nnz == 0:
            continue
        yield split
        n_tokens += split.held.x.shape[0]
        if n_tokens >= _ENOUGH:
            return


class _Split:
    """Sequences to learn from and others to judge by."""

    def __init__(self, kept: Examples, held: Examples, rng: np.random.Generator) -> None:
        self.kept, self.held, self.rng = kept, held, rng

    @cached_property
    def learnt(self) -> Learnt:
        return learnt_of_labelled(self.start)

    @property
    def start(self) -> TrainingData:
        return TrainingData(self.kept.x, self.kept.y, self.rng, weights=self.kept.row_weights)

    def trial(
        self,
        params: dict[str, Any],
        functions: _Functions,
        translate: Callable[[dict[str, Any], Examples], dict[str, Any]],
        world: World,
    ) -> _Trial:
        """What some functions make of it."""
        if functions.latents == "linear-point":
            kept, held = self.kept.in_suited_form(), self.held.in_suited_form()
        else:
            points = self.kept.x[chosen(self.kept.x.shape[0], _N_LANDMARKS)]
            landmarks = Landmarks(*points_kept(points), points.shape[1])
            set_kernel(landmarks, points, functions.kernel, functions.lengthscale, lambda: self.learnt)
            a = landmarks.rotate(self.kept.x, self.kept.row_weights).numpy()
            kept, held = self.kept._replace(x=a), self.held._replace(x=landmarks(self.held.x).numpy())
        budget = params["time_budget"]
        asked = params | _params(_CANDIDATES[0], VARIANCES[0])
        asked["time_budget"] = None if budget is None else _SHARE_OF_BUDGET * budget
        return _Trial(translate(asked, kept), kept, held, self.rng, world)


class _Trial:
    """Functions linear in some features of a split, trained with one variance after the other."""

    def __init__(
        self, params: dict[str, Any], kept: Examples, held: Examples, rng: np.random.Generator, world: World
    ) -> None:
        (n_rows, n_features), n_labels = kept.x.shape, kept.y.shape[1]
        settings = model_settings(params, n_rows=n_rows, n_features=n_features, n_labels=n_labels)
        self._training = training_settings(params, model=settings, n_rows=kept.n_units, seed=0)
        self._kept, self._held, self._model, self._world = kept, held, settings.build(), world
        self._model.start(TrainingData(kept.x, kept.y, rng, weights=kept.row_weights))

    def score(self, variance: float) -> float:
        """The log-likelihood of a token held out."""
        kept, latents = self._kept, cast(LinearFunctions, self._model.latents)
        with torch.no_grad():
            latents.log_prior_variance.fill_(math.log(variance))
        options: dict[str, Any] = {"lengths": kept.lengths, "weights": kept.weights, "world": self._world}
        reporter = NoReporter()
        (record,) = train_whole(
            self._model, kept.x, kept.y, self._training, reporter=reporter, gain=10 * GAIN, **options
        )
        budget = self._training.time_budget
        if budget is not None and record["seconds"] * (1 + 1 / max(record["iterations"], 1)) > budget:
            # What was stopped on the way says nothing of what it would have become.
            raise _OutOfTimeError
        return _log_likelihood(self._model, self._held)


def _log_likelihood(model: VariationalModel, held: Examples) -> float:
    assert held.lengths is not None
    codes, ends = known_codes(held.y), np.cumsum(held.lengths)
    found = []
    for block in Predictor(model, n_draws=1).blocks(held.x, held.lengths):
        first, last = block.sequences.start, block.sequences.stop - 1
        own = torch.from_numpy(codes[ends[first] - held.lengths[first] : ends[last]])
        found.append(block.partial_log_prob(chain.pad(own, block.lengths, dim=-1)).numpy())
    weights = np.ones(len(held.lengths)) if held.weights is None else held.weights
    n_labelled = np.add.reduceat(codes >= 0, ends - held.lengths) @ weights
    return float(np.concatenate(found) @ weights / n_labelled)
