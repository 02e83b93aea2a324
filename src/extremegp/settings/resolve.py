"""Hyper-parameters as the user gave them to settings that a model can be built and trained with."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremegp.engine.mean import EXACT_ROWS
from extremegp.errors import SettingsError
from extremegp.metrics.propensity import propensities
from extremegp.settings.model import (
    CLASS_LIKELIHOODS,
    INDUCING_NAMES,
    KERNEL_NAMES,
    LATENTS_NAMES,
    LOCAL_NAMES,
    MIXING_NAMES,
    POSTERIOR_NAMES,
    SPACES,
    ModelSettings,
)
from extremegp.settings.training import ALL_SAMPLINGS, CLASS_SAMPLINGS
from extremegp.training import TrainingSettings

_MOST_FUNCTIONS, _MOST_CLASSES = 500, 20_000
_MOST_LOADINGS = 5 * 10**7  # with full moments
_WHOLE = ("softmax", "softmax-mc", "robust-max")  # not sums over classes
# A regression as mean function is for data that it takes a minute or two on.
_MOST_ROWS, _MOST_TARGETS, _MOST_FEATURES, _MOST_POINTS = 200_000, 5 * 10**7, 4096, 8192


def number(
    name: str,
    value: Any,
    *,
    low: float,
    high: float = math.inf,
    integer: bool = False,
    open_low: bool = False,
) -> Any:
    """`value` if it is a number in the range, else a SettingsError that names the parameter and the range."""
    kind: type[Any] = numbers.Integral if integer else numbers.Real
    in_range = (
        isinstance(value, kind)
        and not isinstance(value, bool)
        and (low < value if open_low else low <= value)
        and value <= high
        and value != math.inf
    )
    if not in_range:
        what = "an integer" if integer else "a number"
        floor = f"above {low:g}" if open_low else f"at least {low:g}"
        ceiling = "" if high == math.inf else f" and at most {high:g}"
        raise SettingsError(f"{name} must be {what} {floor}{ceiling}; it is {value!r}")
    return int(value) if integer else float(value)


def choice(name: str, value: Any, options: Collection[Any]) -> Any:
    """`value` if it is one of the options, else a SettingsError that lists them."""
    if not isinstance(value, (str, bool)) or value not in options:
        raise SettingsError(f"{name} must be one of {', '.join(map(str, options))}; it is {value!r}")
    return value


def regression_points(params: dict[str, Any], *, n_rows: int, n_features: int, n_labels: int) -> int:
    """How many rows a regression as mean function keeps that an estimator's parameters ask for; 0 for none.

    Raises:
        SettingsError: a parameter is outside its domain.
    """
    wanted = choice("mean_function", params["mean_function"], ("auto", "zero", "regression"))
    points = params["n_mean_points"]
    if points == "auto":
        # As many as take about a minute, which is N points^2 multiplications.
        most = min(_MOST_POINTS, round((4e12 / n_rows) ** 0.5))
        points = n_rows if n_rows <= EXACT_ROWS else most
    points = min(number("n_mean_points", points, low=1, integer=True), n_rows)
    if wanted == "auto":
        fits = n_rows <= _MOST_ROWS and n_rows * n_labels <= _MOST_TARGETS
        wanted = "regression" if fits and n_features <= _MOST_FEATURES and params["latents"] == "gp" else "zero"
    return points if wanted == "regression" else 0


def model_settings(
    params: dict[str, Any],
    *,
    n_rows: int,
    n_features: int,
    n_labels: int,
    mean_points: tuple[int, int | None] = (0, 0),
) -> ModelSettings:
    """The model that an estimator's parameters ask for, on N x D inputs with K labels.

    Raises:
        SettingsError: a parameter is outside its domain.
    """
    mixing = params["mixing"]
    if mixing == "auto":
        # One function per class is dearer than a few mixed, but loses nothing.
        one_each = params["n_latent"] == "auto" and n_labels <= _MOST_FUNCTIONS
        mixing = "identity" if one_each and params["likelihood"] != "independent" else "factor"
    n_latent = params["n_latent"]
    if n_latent == "auto":
        n_latent = n_labels if mixing == "identity" else min(n_labels, 300)
    n_latent = number("n_latent", n_latent, low=1, integer=True)
    n_inducing = params["n_inducing"]
    n_inducing = 400 if n_inducing == "auto" else number("n_inducing", n_inducing, low=1, integer=True)
    normalise = params["normalise_inducing"]
    if normalise == "auto":
        normalise = params["features"] in ("unit", "tfidf", "text")
    linear_term = params["linear_term"]
    if linear_term == "auto":
        # Where the inducing inputs cannot span feature space, an exact linear term gives the means what they lack,
        # unless a regression does.
        linear_term = n_features >= 2 * n_inducing and not mean_points[0] and params["latents"] == "gp"
    choice("inducing_start", params["inducing_start"], ("kmeans", "rows"))
    choice("loadings_start", params["loadings_start"], ("random", "spectral"))
    inducing = params["inducing"]
    if inducing == "auto":
        inducing = "free" if n_features <= 4096 else "sparse"
    n_subspace, support_size = params["n_subspace"], params["support_size"]
    n_subspace = 500 if n_subspace == "auto" else number("n_subspace", n_subspace, low=1, integer=True)
    support_size = 64 if support_size == "auto" else number("support_size", support_size, low=1, integer=True)
    return check_model_settings(
        ModelSettings(
            n_features=n_features,
            n_labels=n_labels,
            n_latent=n_latent,
            n_inducing=min(n_inducing, n_rows),
            kernel=params["kernel"],
            posterior=params["posterior"],
            linear_term=linear_term,
            inducing=inducing,
            n_subspace=min(n_subspace, n_features, n_rows) if str(inducing).startswith("subspace") else 0,
            support_size=min(support_size, n_features) if inducing == "sparse" else 0,
            lengthscales_in=params["lengthscales_in"],
            learn_inducing=params["learn_inducing"],
            normalise_inducing=normalise,
            relative_jitter=number("relative_jitter", params["relative_jitter"], low=0, high=1e-3),
            n_mean_points=mean_points[0],
            n_mean_stored=mean_points[1],
            propensity=params["propensity"] is not None,
            likelihood=params["likelihood"],
            mixing=mixing,
            latents=params["latents"],
            local=params["local"],
            n_local_rows=n_rows if params["local"] == "stored" else 0,
        )
    )


def check_model_settings(settings: ModelSettings) -> ModelSettings:
    """The settings themselves, if every one is in its domain: they may come from a file.

    Raises:
        SettingsError: one is not.
    """
    for name in ("n_features", "n_labels", "n_latent", "n_inducing"):
        number(name, getattr(settings, name), low=1, high=2**40, integer=True)
    if str(settings.kernel) not in KERNEL_NAMES:
        names = ", ".join(name for name in KERNEL_NAMES if "white" not in name)
        raise SettingsError(f"kernel must be one of {names}, perhaps with '+white' after it; it is {settings.kernel!r}")
    choice("posterior", settings.posterior, POSTERIOR_NAMES)
    choice("inducing", settings.inducing, INDUCING_NAMES)
    choice("lengthscales_in", settings.lengthscales_in, SPACES)
    in_subspace = settings.inducing.startswith("subspace")
    most = min(settings.n_features, 2**40)
    number("n_subspace", settings.n_subspace, low=in_subspace, high=most if in_subspace else 0, integer=True)
    sparse = settings.inducing == "sparse"
    number("support_size", settings.support_size, low=sparse, high=most if sparse else 0, integer=True)
    if settings.lengthscales_in == "subspace" and settings.inducing != "subspace":
        raise SettingsError('lengthscales_in="subspace" needs inducing="subspace", a subspace that stays fixed')
    number("n_mean_points", settings.n_mean_points, low=0, high=2**40, integer=True)
    if settings.n_mean_stored is not None:
        number("n_mean_stored", settings.n_mean_stored, low=0, high=2**40, integer=True)
    _check_classes(settings)
    for name in ("linear_term", "learn_inducing", "normalise_inducing", "propensity"):
        choice(name, getattr(settings, name), (True, False))
    number("relative_jitter", settings.relative_jitter, low=0, high=1e-3)
    return settings


def class_params(params: dict[str, Any], *, features: str, n_classes: int) -> dict[str, Any]:
    """What `model_settings` and `training_settings` take, from the parameters of a `MultiClassGPClassifier`.

    Args:
        params: the parameters.
        features: the features step that was chosen.
        n_classes: K.

    Raises:
        SettingsError: a parameter is outside its domain, or two do not go together.
    """
    likelihood = choice("likelihood", params["likelihood"], ("auto", *CLASS_LIKELIHOODS))
    local = choice("local", params["local"], ("auto", *LOCAL_NAMES))
    sampling = choice("class_sampling", params["class_sampling"], CLASS_SAMPLINGS)
    n_sampled = params["n_sampled_classes"]
    if n_sampled == "auto":
        # The exact softmax is dearest per class, and has no estimate from a sample.
        all_classes = n_classes <= _MOST_CLASSES or likelihood in _WHOLE
        n_sampled = None if all_classes else 1000
    elif isinstance(n_sampled, float):
        share = number("n_sampled_classes as a share", n_sampled, low=0, high=1, open_low=True)
        n_sampled = max(1, round(share * n_classes))
    elif n_sampled is not None:
        n_sampled = number("n_sampled_classes", n_sampled, low=1, integer=True)
    sampled = n_sampled is not None or sampling == "pair"
    if likelihood == "auto":
        one_each = params["mixing"] == "identity" or (params["mixing"] == "auto" and params["n_latent"] == "auto")
        likelihood = "softmax" if one_each and n_classes <= _MOST_FUNCTIONS and not sampled else "ar-softmax"
    if sampled and likelihood in _WHOLE:
        raise SettingsError(
            f"likelihood={likelihood!r} takes all classes together, so that they cannot be sampled: use one-vs-each, "
            "ar-softmax or ar-logit, or n_sampled_classes=None and another class_sampling than 'pair'"
        )
    has_locals = likelihood in ("ar-softmax", "ar-logit")
    if local == "auto":
        local = "amortised" if sampled else "optimal"
    if has_locals and sampled and local == "optimal":
        raise SettingsError(
            "local='optimal' needs all classes, but they are sampled: use local='amortised' or 'stored'"
        )
    return params | {
        "features": features,
        "likelihood": likelihood,
        "local": local if has_locals else "optimal",
        "n_sampled_labels": n_sampled,
        "label_sampling": sampling,
        "propensity": None,
        "loadings_start": "random",
        "linear_term": params["linear_term"] if params["latents"] == "gp" else False,
    }


def _check_classes(settings: ModelSettings) -> None:
    """What models of one class per instance add."""
    likelihood, mixing = settings.likelihood, settings.mixing
    choice("likelihood", likelihood, ("bernoulli", *CLASS_LIKELIHOODS))
    choice("mixing", mixing, MIXING_NAMES)
    choice("latents", settings.latents, LATENTS_NAMES)
    choice("local", settings.local, LOCAL_NAMES)
    number("n_local_rows", settings.n_local_rows, low=0, high=2**40, integer=True)
    if mixing == "identity" and settings.n_latent != settings.n_labels:
        raise SettingsError(
            f'mixing="identity" has one latent function for each of {settings.n_labels} classes, not n_latent='
            f'{settings.n_latent}; use mixing="factor"'
        )
    if settings.inducing == "separate" and mixing != "identity":
        raise SettingsError('inducing="separate" gives every class inducing inputs of its own: use mixing="identity"')
    if likelihood == "robust-max" and mixing == "factor":
        raise SettingsError(
            'likelihood="robust-max" needs independent utilities, which mixing="factor" does not give: use '
            'mixing="identity" or likelihood="softmax"'
        )


def training_settings(params: dict[str, Any], *, model: ModelSettings, n_rows: int, seed: int) -> TrainingSettings:
    """The training that an estimator's parameters ask for, of a model on N rows.

    Raises:
        SettingsError: a parameter is outside its domain.
    """
    batch_size, epochs = params["batch_size"], params["epochs"]
    batch_size = (
        min(500, max(32, n_rows // 20))
        if batch_size == "auto"
        else number("batch_size", batch_size, low=1, integer=True)
    )
    batch_size = min(batch_size, n_rows)
    if epochs == "auto":
        # A linear term learns features that few rows have, and so takes longer, unless a regression has learnt them;
        # few rows make few steps per epoch.
        passes = (10500 if model.linear_term and not model.n_mean_points else 4000) / math.sqrt(n_rows)
        epochs = max(3, min(150, round(passes)), math.ceil(600 * batch_size / n_rows))
    else:
        epochs = number("epochs", epochs, low=1, integer=True)
    n_sampled = params["n_sampled_labels"]
    if n_sampled == "auto":
        n_sampled = None if model.n_labels <= 20_000 else 2000
    elif n_sampled is not None:
        n_sampled = min(number("n_sampled_labels", n_sampled, low=1, integer=True), model.n_labels)
    optimizer = choice("optimizer", params["optimizer"], ("auto", "natural", "adam"))
    if optimizer == "auto":
        # Measured: natural gradients end higher for all families that have them but this one. Those of a pair of
        # classes are so noisy that they need Adam's division by their size, and the robust maximum is not concave.
        unsteady = params["label_sampling"] == "pair" or model.likelihood == "robust-max"
        optimizer = "adam" if model.posterior == "mean-field" or unsteady else "natural"
    natural_step = params["natural_step"]
    if natural_step == "auto":
        # The less noise there is in the gradient of a batch, the longer a step may be.
        natural_step = max(0.05, 0.3 * batch_size / n_rows)
    else:
        natural_step = number("natural_step", natural_step, low=0, high=1, open_low=True)
    state = choice("optimizer_state", params["optimizer_state"], ("auto", "full", "half"))
    if state == "auto":
        state = "half" if n_sampled is not None and model.n_labels * model.n_latent > _MOST_LOADINGS else "full"
    patience, budget = params["patience"], params["time_budget"]
    samplings = ALL_SAMPLINGS if model.likelihood == "bernoulli" else CLASS_SAMPLINGS
    return TrainingSettings(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=number("learning_rate", params["learning_rate"], low=0, open_low=True),
        optimizer=optimizer,
        natural_step=natural_step,
        kl_weight=number("kl_weight", params["kl_weight"], low=0),
        n_sampled_labels=n_sampled,
        label_sampling=choice("label_sampling", params["label_sampling"], samplings),
        optimizer_state=state,
        seed=seed,
        patience=None if patience is None else number("patience", patience, low=1, integer=True),
        time_budget=None if budget is None else number("time_budget", budget, low=0, open_low=True),
        checkpoint_seconds=number("checkpoint_seconds", params["checkpoint_seconds"], low=0),
    )


def label_propensities(value: Any, *, label_counts: NDArray[np.int64], n_rows: int) -> NDArray[np.float64] | None:
    """The propensities of K labels that an estimator's parameter asks for; None where all labels count as recorded.

    Args:
        value: None; "auto" or a pair (a, b) for those of Jain et al. (2016); or K numbers in (0, 1].
        label_counts: training rows with each label, K.
        n_rows: N.

    Raises:
        SettingsError: it is none of these.
        DataError: "auto" or a pair, with fewer than 3 rows.
    """
    if value is None:
        return None
    if isinstance(value, str):
        choice("propensity", value, ("auto",))
        return propensities(label_counts, n_rows)
    if isinstance(value, tuple):
        if len(value) != 2:
            raise SettingsError(f"propensity as a tuple is the pair (a, b); it is {value!r}")
        a, b = (number("each of the pair propensity", part, low=0, open_low=True) for part in value)
        return propensities(label_counts, n_rows, a, b)
    given = np.asarray(value)
    if given.shape != label_counts.shape or given.dtype.kind not in "iuf" or not np.all((given > 0) & (given <= 1)):
        raise SettingsError(
            f"propensity must be 'auto', a pair (a, b), or an array of one number in (0, 1] for each of "
            f"{len(label_counts)} labels; it has shape {given.shape} and type {given.dtype}"
        )
    return given.astype(np.float64)
