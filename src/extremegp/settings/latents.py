"""Which latent functions a model has, where that is left to the library, and the settings of those with landmarks."""

from __future__ import annotations

from typing import Any

from extremegp.engine.blocks import Block
from extremegp.engine.part import Part
from extremegp.errors import SettingsError
from extremegp.settings.domains import choice, number
from extremegp.settings.model import ModelSettings
from extremegp.settings.parts import LATENTS, LIKELIHOODS, part_class

# Landmarks are for as many labels as have a function each, with M numbers for the mean and as many for the variance.
_MOST_LANDMARK_ROWS, _LANDMARKS, _FEW_LABELS = 30_000, 2000, 20
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


def latents_asked(params: dict[str, Any], *, n_rows: int, n_labels: int) -> dict[str, Any]:
    """An estimator's parameters with "auto" latents, kernel and mixing resolved.

    Gaussian processes with landmarks are the default wherever nothing is asked for that they do not have and N x K is
    moderate; else sparse Gaussian processes, which are trained by minibatches of any number of rows and labels.

    Raises:
        SettingsError: a parameter is outside its domain, or does not go with landmarks that are asked for.
    """
    latents, kernel = params["latents"], params["kernel"]
    if latents != "auto" and latents not in LATENTS:
        choice("latents", latents, ("auto", *LATENTS))
    likelihood = params["likelihood"]
    odd = [name for name, default in _WITHOUT_LANDMARKS.items() if not _is(params.get(name, default), default)]
    if not _is(kernel, "auto"):
        odd.insert(0, "kernel")
    # What is no likelihood is refused by who knows what there are.
    known = isinstance(likelihood, Part) or likelihood in LIKELIHOODS
    takes = likelihood == "auto" or (known and part_class("likelihood", likelihood).has_prior)
    of_labels = known and part_class("likelihood", likelihood).labels_independent
    if latents == "auto":
        moderate = n_rows <= _MOST_LANDMARK_ROWS and n_labels <= _MOST_OWN_FUNCTIONS
        latents = "landmarks" if not odd and takes and of_labels and moderate else "gp"
    elif latents == "landmarks" and (odd or not takes):
        what = f"{odd[0]}={params[odd[0]]!r}" if odd else f"likelihood={likelihood!r}"
        raise SettingsError(f'latents="landmarks" does not go with {what}: leave one of them out, or use latents="gp"')
    resolved = params | {"latents": latents, "kernel": "ard" if _is(kernel, "auto") else kernel}
    if latents == "landmarks":
        # So many labels go together, and a function for each is dear.
        resolved["mixing"] = "identity" if n_labels <= _MOST_OWN_FUNCTIONS else "factor"
    return resolved


def _is(value: Any, default: Any) -> bool:
    """Whether a parameter has this value, whatever its type."""
    return value is default or (type(value) is type(default) and bool(value == default))


def landmark_count(params: dict[str, Any], *, n_rows: int, n_labels: int) -> int:
    """M, how many rows are landmarks.

    Raises:
        SettingsError: `n_inducing` is outside its domain.
    """
    wanted = params["n_inducing"]
    if wanted == "auto":
        # Few functions leave time for features.
        wanted = _LANDMARKS if n_labels > _FEW_LABELS else 2 * _LANDMARKS
    return int(min(number("n_inducing", wanted, low=1, integer=True), n_rows))


def landmark_settings(
    params: dict[str, Any],
    *,
    n_features: int,
    n_labels: int,
    landmarks: tuple[int, int | None],
    blocks: tuple[Block, ...],
) -> ModelSettings:
    """The model with landmarks that an estimator's parameters ask for.

    Args:
        params: as `latents_asked` gives them.
        n_features: D.
        n_labels: K.
        landmarks: how many rows these are, and their stored entries.
        blocks: of the features.
    """
    return ModelSettings(
        n_features=n_features,
        n_labels=n_labels,
        n_latent=n_labels if params["mixing"] == "identity" else min(n_labels, _LANDMARK_FUNCTIONS),
        n_inducing=landmarks[0],
        n_landmark_stored=landmarks[1],
        kernel="ard",
        posterior="mean-field",
        normalise_inducing=False,
        learn_inducing=False,
        blocks=blocks,
        propensity=params["propensity"] is not None,
        likelihood=params["likelihood"],
        mixing=params["mixing"],
        latents="landmarks",
        learn_scales=False,
        learn_bias=False,
    ).checked()
