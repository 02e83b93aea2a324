"""Which latent functions a model has, where that is left to the library, and the settings of those by a regression."""

from __future__ import annotations

from typing import Any

import numpy as np

from extremegp.engine.blocks import Block
from extremegp.engine.lengthscales import EXACT_ROWS
from extremegp.engine.part import Part
from extremegp.errors import SettingsError
from extremegp.settings.domains import choice, number
from extremegp.settings.model import ModelSettings
from extremegp.settings.parts import LATENTS, LIKELIHOODS, part_class

# Landmarks are for as many labels as have a function each, with M numbers for the mean and as many for the variance.
_MOST_LANDMARK_ROWS, _LANDMARKS, _FEW_LABELS = 30_000, 2000, 20
_MOST_REGRESSED = 500
CLOSED = ("landmarks", "regression")
"""Latents that take a regression in closed form, of features or alone."""
LANDMARK_STEPS = 220
"""Of training, after which more change little."""
_MOST_OWN_FUNCTIONS, _LANDMARK_FUNCTIONS = 600, 100
_WITHOUT_LANDMARKS: dict[str, Any] = {
    "linear_term": "auto",
    "posterior": "shared-basis",
    "n_latent": "auto",
    "mixing": "auto",
    "inducing": "auto",
    "n_subspace": "auto",
    "support_size": "auto",
    "lengthscales_in": "input",
    "inducing_start": "kmeans",
    "learn_inducing": True,
    "normalise_inducing": "auto",
    "mean_function": "auto",
    "n_mean_points": "auto",
    "loadings_start": "random",
    "n_sampled_labels": "auto",
    "n_sampled_classes": "auto",
    "label_sampling": "frequency",
    "class_sampling": "frequency",
    "local": "auto",
    "optimizer_state": "auto",
}
"""What only other latent functions have, by its default."""
_OF_STEPS: dict[str, Any] = {
    "batch_size": "auto",
    "epochs": "auto",
    "learning_rate": 0.02,
    "optimizer": "auto",
    "natural_step": "auto",
    "kl_weight": 1.0,
    "patience": None,
}
"""What only training by steps has, by its default."""


def latents_asked(params: dict[str, Any], *, n_rows: int, n_labels: int) -> dict[str, Any]:
    """An estimator's parameters with "auto" latents, kernel and mixing resolved.

    Where nothing is asked for that they do not have, and N x K is moderate, labels have Gaussian processes with
    landmarks, and classes the regression of their indicators alone; else there are sparse Gaussian processes, which are
    trained by minibatches of any number of rows and labels.

    Raises:
        SettingsError: a parameter is outside its domain, or does not go with latents that are asked for.
    """
    latents, kernel, likelihood = params["latents"], params["kernel"], params["likelihood"]
    of_rows = [name for name in LATENTS if name != "landmarks-point"]
    if latents != "auto" and latents not in of_rows:
        choice("latents", latents, ("auto", *of_rows))
    # What is no likelihood is refused by who knows what there are.
    known = isinstance(likelihood, Part) or likelihood in LIKELIHOODS
    part = part_class("likelihood", likelihood) if known else None
    takes = likelihood == "auto" or (part is not None and part.has_prior)
    if latents == "auto":
        of_labels = part is not None and part.labels_independent
        most_rows, most_labels = (
            (_MOST_LANDMARK_ROWS, _MOST_OWN_FUNCTIONS) if of_labels else (EXACT_ROWS, _MOST_REGRESSED)
        )
        closed = "landmarks" if of_labels else "regression"
        moderate = n_rows <= most_rows and n_labels <= most_labels
        latents = closed if takes and moderate and not _beside(params, closed) else "gp"
    elif latents in CLOSED and ((odd := _beside(params, latents)) or not takes):
        what = f"{odd[0]}={params[odd[0]]!r}" if odd else f"likelihood={likelihood!r}"
        raise SettingsError(f'latents="{latents}" does not go with {what}: leave one of them out, or use latents="gp"')
    resolved = params | {"latents": latents, "kernel": "ard" if _is(kernel, "auto") else kernel}
    if latents in CLOSED:
        # So many labels go together, and a function for each is dear.
        own = latents == "regression" or n_labels <= _MOST_OWN_FUNCTIONS
        resolved["mixing"] = "identity" if own else "factor"
    return resolved


def _beside(params: dict[str, Any], latents: str) -> list[str]:
    """The parameters that ask for what these latents do not have."""
    defaults = {"kernel": "auto"} | _WITHOUT_LANDMARKS
    if latents == "regression":
        defaults = {name: value for name, value in (defaults | _OF_STEPS).items() if name != "n_mean_points"}
    return [name for name, default in defaults.items() if not _is(params.get(name, default), default)]


def _is(value: Any, default: Any) -> bool:
    """Whether a parameter has this value, whatever its type."""
    if isinstance(value, np.generic):
        value = value.item()
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (value, default))
    return value is default or ((numbers or type(value) is type(default)) and bool(value == default))


def landmark_count(params: dict[str, Any], *, n_rows: int, n_labels: int) -> int:
    """M, how many rows are landmarks.

    Raises:
        SettingsError: `n_inducing` is outside its domain.
    """
    wanted = params["n_inducing"]
    if wanted == "auto":
        # Few functions leave time for features; of a regression they are for variances alone.
        many = n_labels > _FEW_LABELS or params["latents"] == "regression"
        wanted = _LANDMARKS if many else 2 * _LANDMARKS
    return int(min(number("n_inducing", wanted, low=1, integer=True), n_rows))


def variance_points(params: dict[str, Any], n_points: int) -> int:
    """How many rows the variance of a mean function goes through that is a regression on so many; 0 for none."""
    carried = params["latents"] == "gp" and part_class("likelihood", params["likelihood"]).is_smooth
    return min(n_points, _LANDMARKS) if carried else 0


def keeps_frequencies(likelihood: Any) -> bool:
    """Whether biases can follow what keeps labels at their frequencies far from all data, while loadings move."""
    part = part_class("likelihood", likelihood)
    return bool(part.has_prior and part.labels_independent)


def landmark_settings(
    params: dict[str, Any],
    *,
    n_features: int,
    n_labels: int,
    landmarks: tuple[int, int | None],
    mean_points: tuple[int, int | None],
    blocks: tuple[Block, ...],
) -> ModelSettings:
    """The model with landmarks, or of a regression alone, that an estimator's parameters ask for.

    Args:
        params: as `latents_asked` gives them.
        n_features: D.
        n_labels: K.
        landmarks: how many rows these are, and their stored entries.
        mean_points: how many rows the regression keeps, and theirs; of features none.
        blocks: of the features.
    """
    return ModelSettings(
        n_features=n_features,
        n_labels=n_labels,
        n_latent=n_labels if params["mixing"] == "identity" else min(n_labels, _LANDMARK_FUNCTIONS),
        n_inducing=landmarks[0],
        n_landmark_stored=landmarks[1],
        n_mean_points=mean_points[0],
        n_mean_stored=mean_points[1],
        kernel="ard",
        posterior="mean-field",
        normalise_inducing=False,
        learn_inducing=False,
        blocks=blocks,
        propensity=params["propensity"] is not None,
        likelihood=params["likelihood"],
        mixing=params["mixing"],
        latents=params["latents"],
        learn_scales=False,
        learn_bias=False,
    ).checked()
