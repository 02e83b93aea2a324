"""Hyper-parameters as the user gave them to settings that a model can be built and trained with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from extremegp.engine.blocks import Block
from extremegp.engine.lengthscales import EXACT_ROWS
from extremegp.engine.likelihoods.augment_reduce import LOCALS
from extremegp.engine.part import Part
from extremegp.errors import SettingsError
from extremegp.metrics.propensity import propensities
from extremegp.settings.domains import choice, number
from extremegp.settings.latents import CLOSED, LANDMARK_STEPS, keeps_frequencies, landmark_settings
from extremegp.settings.model import WEIGHT_COVARIANCES, ModelSettings
from extremegp.settings.parts import CLASS_LIKELIHOODS, SEQUENCE_LATENTS, part_class
from extremegp.settings.training import ALL_SAMPLINGS, CLASS_SAMPLINGS, TrainingSettings

_MOST_FUNCTIONS, _MOST_CLASSES = 500, 20_000
_MOST_LOADINGS = 5 * 10**7  # with full moments
# A regression as mean function is for data that it takes a minute or two on.
_MOST_ROWS, _MOST_TARGETS, _MOST_FEATURES, _MOST_POINTS = 200_000, 5 * 10**7, 4096, 8192
# Random features of wide inputs are dear: what is beyond this is reduced first, or takes linear functions.
_MOST_RANDOM_FEATURES, _REDUCED = 50_000, 100
_BIAS_VARIANCE = 4.0  # of the labels of sequences
# Of sequences, by latents: steps that bring a model from its start to where more steps change little, peak rates of
# learning, and weights of the KL: factorised posteriors of functions that share their weights are too wide, so that
# less of it predicts better.
_POINTS = ("linear-point", "landmarks-point")
_STEPS = {"random-features": 1000, "linear": 400, "linear-mean-field": 400} | dict.fromkeys(("gp", *_POINTS), 300)
_RATES = {"random-features": 0.01, "gp": 0.05} | dict.fromkeys(("linear", "linear-mean-field", *_POINTS), 0.3)
_KL_WEIGHTS = {"random-features": 0.3, "gp": 0.1, "linear": 0.1, "linear-mean-field": 0.1}
# Measured on validation parts: a covariance that random features share needs no cold posterior.
_COVARIANCE_KL_WEIGHTS = _KL_WEIGHTS | {"random-features": 1.0} | dict.fromkeys(_POINTS, 0.1)


def regression_points(params: dict[str, Any], *, n_rows: int, n_features: int, n_labels: int) -> int:
    """How many rows a regression as mean function keeps that an estimator's parameters ask for; 0 for none.

    Raises:
        SettingsError: a parameter is outside its domain.
    """
    wanted = choice("mean_function", params["mean_function"], ("auto", "zero", "regression"))
    points = params["n_mean_points"]
    if params["latents"] == "landmarks":
        return 0
    if points == "auto":
        # As many as take about a minute, which is N points^2 multiplications.
        most = min(_MOST_POINTS, round((4e12 / n_rows) ** 0.5))
        points = n_rows if n_rows <= EXACT_ROWS else most
    points = min(number("n_mean_points", points, low=1, integer=True), n_rows)
    if wanted == "auto" and params["latents"] != "regression":
        fits = n_rows <= _MOST_ROWS and n_rows * n_labels <= _MOST_TARGETS
        fits = fits and n_features <= _MOST_FEATURES and params["latents"] == "gp"
        wanted = "regression" if fits and part_class("likelihood", params["likelihood"]).link else "zero"
    return 0 if wanted == "zero" else points


def model_settings(
    params: dict[str, Any],
    *,
    n_rows: int,
    n_features: int,
    n_labels: int,
    mean_points: tuple[int, int | None] = (0, 0),
    variance_points: tuple[int, int | None] = (0, 0),
    landmarks: tuple[int, int | None] = (1, None),
    blocks: tuple[Block, ...] = (),
) -> ModelSettings:
    """The model that an estimator's parameters ask for, on N x D inputs, perhaps in blocks, with K labels.

    Raises:
        SettingsError: a parameter is outside its domain.
    """
    if params["latents"] in CLOSED:
        sizes = {"n_features": n_features, "n_labels": n_labels}
        return landmark_settings(params, **sizes, landmarks=landmarks, mean_points=mean_points, blocks=blocks)
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
        of_unit = params["features"] in ("unit", "tfidf", "text")
        normalise = any(block.unit for block in blocks) if blocks else of_unit
    linear_term = params["linear_term"]
    if linear_term == "auto":
        # Where the inducing inputs cannot span feature space, an exact linear term gives the means what they lack,
        # unless a regression does.
        linear_term = n_features >= 2 * n_inducing and not mean_points[0] and params["latents"] == "gp"
    choice("inducing_start", params["inducing_start"], ("kmeans", "rows"))
    choice("loadings_start", params["loadings_start"], ("random", "spectral"))
    inducing, latents, kernel = params["inducing"], params["latents"], params["kernel"]
    if inducing == "auto":
        dense = isinstance(kernel, Part) and kernel.needs_dense
        inducing = "free" if n_features <= 4096 or dense else "sparse"
    n_subspace, support_size = params["n_subspace"], params["support_size"]
    n_subspace = 500 if n_subspace == "auto" else number("n_subspace", n_subspace, low=1, integer=True)
    support_size = 64 if support_size == "auto" else number("support_size", support_size, low=1, integer=True)
    same = ("kernel", "posterior", "lengthscales_in", "learn_inducing", "likelihood", "local")
    return ModelSettings(
        n_features=n_features,
        n_labels=n_labels,
        n_latent=n_latent,
        n_inducing=landmarks[0] if latents == "landmarks-point" else min(n_inducing, n_rows),
        n_landmark_stored=landmarks[1] if latents == "landmarks-point" else None,
        linear_term=linear_term,
        inducing=inducing,
        n_subspace=min(n_subspace, n_features, n_rows) if inducing in ("subspace", "subspace-basis") else 0,
        support_size=min(support_size, n_features) if inducing == "sparse" else 0,
        normalise_inducing=normalise,
        relative_jitter=number("relative_jitter", params["relative_jitter"], low=0, high=1e-3),
        n_mean_points=mean_points[0],
        n_mean_stored=mean_points[1],
        n_variance_points=variance_points[0],
        n_variance_stored=variance_points[1],
        learn_bias=not (variance_points[0] and mixing == "factor" and keeps_frequencies(params["likelihood"])),
        blocks=blocks,
        propensity=params["propensity"] is not None,
        mixing=mixing,
        latents=latents,
        n_local_rows=n_rows if params["local"] == "stored" else 0,
        prior_variance=_plain(params.get("prior_variance", 0.1 if linear_term else 1.0)),
        **{name: _plain(params[name]) for name in (*same, *_OF_SEQUENCES) if name in params},
    ).checked()


def _plain(value: Any) -> Any:
    """NumPy's numbers, as from a grid, as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def class_params(params: dict[str, Any], *, features: str, n_classes: int) -> dict[str, Any]:
    """What `model_settings` and `training_settings` take, from the parameters of a `MultiClassGPClassifier`.

    Args:
        params: the parameters.
        features: the features step that was chosen.
        n_classes: K.

    Raises:
        SettingsError: a parameter is outside its domain, or two do not go together.
    """
    likelihood = params["likelihood"]
    if not isinstance(likelihood, Part):
        choice("likelihood", likelihood, ("auto", *CLASS_LIKELIHOODS))
    of_sums = likelihood == "auto" or part_class("likelihood", likelihood).sums_over_labels
    local = choice("local", params["local"], ("auto", *LOCALS))
    sampling = choice("class_sampling", params["class_sampling"], CLASS_SAMPLINGS)
    n_sampled = params["n_sampled_classes"]
    if n_sampled == "auto":
        # The exact softmax is dearest per class, and has no estimate from a sample.
        all_classes = n_classes <= _MOST_CLASSES or not of_sums
        n_sampled = None if all_classes else 1000
    elif isinstance(n_sampled, float):
        share = number("n_sampled_classes as a share", n_sampled, low=0, high=1, open_low=True)
        n_sampled = max(1, round(share * n_classes))
    elif n_sampled is not None:
        n_sampled = number("n_sampled_classes", n_sampled, low=1, integer=True)
    sampled = n_sampled is not None or sampling == "pair"
    if likelihood == "auto":
        one_each = params["mixing"] == "identity" or (params["mixing"] == "auto" and params["n_latent"] == "auto")
        of_all = one_each and n_classes <= _MOST_FUNCTIONS and not sampled
        likelihood = "softmax" if of_all or params["latents"] in CLOSED else "ar-softmax"
    if sampled and not of_sums:
        raise SettingsError(
            f"likelihood={likelihood!r} takes all classes together, so that they cannot be sampled: use one-vs-each, "
            "ar-softmax or ar-logit, or n_sampled_classes=None and another class_sampling than 'pair'"
        )
    has_locals = part_class("likelihood", likelihood).has_locals
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


_OF_SEQUENCES = (
    "transitions",
    "objective",
    "linear_posterior",
    "learn_scales",
    "bias_variance",
    "ard",
    "frequencies",
    "n_layers",
    "n_hidden",
    "n_random_features",
    "n_reduced",
    "feed_forward",
)


def sequence_params(
    params: dict[str, Any], *, n_sequences: int, n_rows: int, n_features: int, n_stored: int
) -> dict[str, Any]:
    """What `model_settings` and `training_settings` take, from the parameters of a `SequenceGPClassifier`.

    Args:
        params: the parameters.
        n_sequences: S.
        n_rows: N, their tokens.
        n_features: D.
        n_stored: stored entries of the fullest token.

    Raises:
        SettingsError: a parameter is outside its domain, or two do not go together.
    """
    latents, linear_term = choice("latents", params["latents"], ("auto", *SEQUENCE_LATENTS)), params["linear_term"]
    if latents == "auto":
        asked = linear_term or params["n_layers"] != 1 or params["n_reduced"] not in ("auto", None)
        latents = "random-features" if asked or n_features <= _MOST_RANDOM_FEATURES else "linear-mean-field"
    kernel, n_reduced = params["kernel"], params["n_reduced"]
    if isinstance(kernel, str) and kernel == "auto":
        kernel = {"random-features": "arccos1", "gp": "arccos0", "landmarks-point": "ard"}.get(latents, "linear")
    if latents == "landmarks-point":
        choice("kernel", kernel, ("ard", "se"))
    if n_reduced == "auto":
        wide = n_features > _MOST_RANDOM_FEATURES or params["n_layers"] != 1
        n_reduced = _REDUCED if latents == "random-features" and wide and n_features > _REDUCED else None
    n_random, n_inducing = params["n_random_features"], params["n_inducing"]
    batch_size, epochs, rate = params["batch_size"], params["epochs"], params["learning_rate"]
    if batch_size == "auto":
        # About 2000 tokens: a step is then dominated by work, not by its overhead.
        batch_size = math.ceil(2000 * n_sequences / n_rows)
    batch_size = min(number("batch_size", batch_size, low=1, integer=True), n_sequences)
    if epochs == "auto":
        epochs = max(15, math.ceil(_STEPS[latents] * batch_size / n_sequences))
    step, kl_weight = params["natural_step"], params["kl_weight"]
    choice("weight_covariance", params["weight_covariance"], ("auto", *WEIGHT_COVARIANCES))
    of_points, covariance = latents in _POINTS, params["weight_covariance"]
    transitions = params["transitions"]
    if transitions == "auto":
        transitions = "point" if latents == "landmarks-point" else "gaussian"
    points = of_points and transitions in ("point", "none")
    if points and latents == "landmarks-point" and params["optimizer"] == "auto":
        params = params | {"optimizer": "lbfgs"}
    if params["optimizer"] == "lbfgs":
        if not points:
            needed = 'latents="linear-point" or "landmarks-point" with transitions="point" or "none"'
            raise SettingsError(f'optimizer="lbfgs" needs a bound without noise: {needed}')
        if params["patience"] is not None:
            raise SettingsError('optimizer="lbfgs" has no epochs for patience: use "adam"')
    return params | {
        "features": "raw",
        "likelihood": "linear-chain",
        "mixing": "identity",
        "n_latent": "auto",
        "latents": latents,
        "kernel": kernel,
        "n_reduced": 0 if n_reduced is None else number("n_reduced", n_reduced, low=1, integer=True),
        "n_random_features": 1000 if n_random == "auto" else n_random,
        # Inducing inputs are inputs of training, and stay there: as wide as these, and sparse.
        "lengthscale": number("lengthscale", params["lengthscale"], low=0, open_low=True),
        "n_inducing": (2000 if latents == "landmarks-point" else 500) if n_inducing == "auto" else n_inducing,
        "transitions": transitions,
        # Points are what was asked for.
        "weight_covariance": "factorised" if covariance == "auto" and of_points else covariance,
        "inducing": "sparse" if latents == "gp" else "free",
        "n_subspace": "auto",
        "support_size": n_stored,
        "lengthscales_in": "input",
        "learn_inducing": False,
        "normalise_inducing": False,
        "inducing_start": "rows",
        "loadings_start": "random",
        "relative_jitter": 1e-6,
        "linear_posterior": "point",
        # Other latents have a variance of their own, and that of points must not be learnt.
        "learn_scales": latents == "gp" and not linear_term,
        "bias_variance": _BIAS_VARIANCE,
        "local": "optimal",
        "propensity": None,
        "mean_function": "zero",
        "n_mean_points": "auto",
        "batch_size": batch_size,
        "epochs": epochs,
        "learning_rate": _RATES[latents] if rate == "auto" else rate,
        # The gradient of a covariance by draws is too noisy for natural steps.
        "optimizer": "adam" if params["optimizer"] == "auto" else params["optimizer"],
        "whole_optimizers": ("lbfgs",) if points else (),
        "natural_step": 0.05 if step == "auto" else step,
        "kl_weight": _KL_WEIGHTS.get(latents, 1.0) if kl_weight == "auto" else kl_weight,
        "covariance_kl_weight": _COVARIANCE_KL_WEIGHTS.get(latents, 1.0) if kl_weight == "auto" else kl_weight,
        "n_sampled_labels": None,
        "label_sampling": "frequency",
        "optimizer_state": "full",
    }


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
    landmarks = model.latents == "landmarks"
    if epochs == "auto" and landmarks:
        # Natural steps on features are there after some hundreds.
        epochs = max(3, math.ceil(LANDMARK_STEPS * batch_size / n_rows))
    elif epochs == "auto":
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
    optimizer = choice(
        "optimizer", params["optimizer"], ("auto", "natural", "adam", *params.get("whole_optimizers", ()))
    )
    if optimizer == "auto":
        # Measured: natural gradients end higher for all families that have them but this one. Those of a pair of
        # classes are so noisy that they need Adam's division by their size, and the robust maximum is not concave.
        unsteady = params["label_sampling"] == "pair" or not model.likelihood_class.is_concave
        mean_field = model.posterior == "mean-field" and not landmarks
        optimizer = "adam" if mean_field or unsteady else "natural"
    natural_step = params["natural_step"]
    if natural_step == "auto" and landmarks:
        # What functions are mixed to moves under them.
        natural_step = 0.3 if model.mixing == "identity" else 0.05
    elif natural_step == "auto":
        # The less noise there is in the gradient of a batch, the longer a step may be.
        natural_step = max(0.05, 0.3 * batch_size / n_rows)
    else:
        natural_step = number("natural_step", natural_step, low=0, high=1, open_low=True)
    state = choice("optimizer_state", params["optimizer_state"], ("auto", "full", "half"))
    if state == "auto":
        state = "half" if n_sampled is not None and model.n_labels * model.n_latent > _MOST_LOADINGS else "full"
    patience, budget = params["patience"], params["time_budget"]
    samplings = CLASS_SAMPLINGS if model.likelihood_class.has_classes else ALL_SAMPLINGS
    return TrainingSettings(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=number("learning_rate", params["learning_rate"], low=0, open_low=True),
        optimizer=optimizer,
        natural_step=natural_step,
        kl_weight=number("kl_weight", params["kl_weight"], low=0),
        n_draws=number("n_train_draws", params.get("n_train_draws", 1), low=1, high=10_000, integer=True),
        frequencies_from=number("frequencies_from", params.get("frequencies_from", 0.0), low=0, high=1),
        hyperparameters_from=number("hyperparameters_from", params.get("hyperparameters_from", 0.0), low=0, high=1),
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
