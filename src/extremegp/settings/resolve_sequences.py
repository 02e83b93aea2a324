"""Hyper-parameters of `SequenceGPClassifier` to settings that a model can be built and trained with."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from extremegp.data.sequence_features import WEIGHTINGS, SequenceFeatures
from extremegp.data.templates import Template
from extremegp.engine.latents.random_features import FEATURE_KERNELS, FREQUENCIES
from extremegp.engine.likelihoods.linear_chain import CHAIN_OBJECTIVES, TRANSITIONS
from extremegp.errors import SettingsError
from extremegp.settings.model import KERNEL_NAMES, POSTERIOR_NAMES
from extremegp.settings.resolve import choice, number
from extremegp.settings.sequence_building import SEQUENCE_LATENTS, SequenceSettings
from extremegp.training import TrainingSettings

# Random features of wide inputs are dear: what is beyond this is reduced first, or takes linear functions.
_MOST_FEATURES = 50_000
_REDUCED = 100
# Steps that bring a model from its start to where more steps change little, by latents.
_STEPS = {"random-features": 1000, "gp": 300, "linear": 400, "linear-mean-field": 400, "linear-point": 300}
_RATES = {"random-features": 0.01, "gp": 0.05, "linear": 0.3, "linear-mean-field": 0.3, "linear-point": 0.3}

# Factorised posteriors of functions that share their weights are too wide: less KL predicts better.
_KL_WEIGHTS = {"random-features": 0.3, "gp": 0.1, "linear": 0.1, "linear-mean-field": 0.1}


class SequenceSizes(NamedTuple):
    """What training data decide: S sequences of N tokens with D features, at most L of a token, and V labels."""

    n_sequences: int
    n_rows: int
    n_features: int
    n_labels: int
    n_stored: int = 1


def sequence_features(params: dict[str, Any]) -> SequenceFeatures:
    """The features step that an estimator's parameters ask for.

    Raises:
        SettingsError: a parameter is outside its domain.
        DataError: the template has a line that cannot be read.
    """
    template = params["template"]
    if isinstance(template, str):
        template = Template.parse(template)
    elif template is not None and not isinstance(template, Template):
        raise SettingsError(f"template must be the text of a CRF++ template, or None; it is {template!r}")
    if template is not None and template.indexed and params["transitions"] != "indexed":
        raise SettingsError(
            'the template has B lines with %x[..], whose transitions depend on the input: use transitions="indexed" '
            "(SDGP2), or a bare B"
        )
    hash_size = params["hash_size"]
    return SequenceFeatures(
        template=template,
        min_count=number("min_count", params["min_count"], low=1, integer=True),
        hash_size=None if hash_size is None else number("hash_size", hash_size, low=1, integer=True),
        weighting=choice("weighting", params["weighting"], WEIGHTINGS),
    )


def sequence_settings(params: dict[str, Any], sizes: SequenceSizes) -> SequenceSettings:
    """The model that an estimator's parameters ask for.

    Raises:
        SettingsError: a parameter is outside its domain, or two do not go together.
    """
    latents = choice("latents", params["latents"], ("auto", *SEQUENCE_LATENTS))
    if latents == "auto":
        asked = params["linear_term"] or params["n_layers"] != 1 or params["n_reduced"] not in ("auto", None)
        latents = "random-features" if asked or sizes.n_features <= _MOST_FEATURES else "linear-mean-field"
    kernel = params["kernel"]
    if kernel == "auto":
        kernel = {"random-features": "arccos1", "gp": "arccos0"}.get(latents, "linear")
    n_reduced = params["n_reduced"]
    if n_reduced == "auto":
        wide = sizes.n_features > _MOST_FEATURES or params["n_layers"] != 1
        n_reduced = _REDUCED if latents == "random-features" and wide and sizes.n_features > _REDUCED else None
    return check_sequence_settings(
        SequenceSettings(
            n_features=sizes.n_features,
            n_labels=sizes.n_labels,
            latents=latents,
            linear_term=params["linear_term"],
            transitions=params["transitions"],
            objective=params["objective"],
            prior_variance=number("prior_variance", params["prior_variance"], low=0, open_low=True),
            kernel=kernel,
            ard=params["ard"],
            frequencies=params["frequencies"],
            n_layers=number("n_layers", params["n_layers"], low=1, integer=True),
            n_hidden=number("n_hidden", params["n_hidden"], low=1, integer=True),
            n_random_features=number("n_random_features", params["n_random_features"], low=1, integer=True),
            n_reduced=0 if n_reduced is None else number("n_reduced", n_reduced, low=1, integer=True),
            feed_forward=params["feed_forward"],
            n_inducing=min(number("n_inducing", params["n_inducing"], low=1, integer=True), sizes.n_rows),
            support_size=sizes.n_stored,
            posterior=params["posterior"],
        )
    )


def check_sequence_settings(settings: SequenceSettings) -> SequenceSettings:
    """The settings themselves, if every one is in its domain: they may come from a file.

    Raises:
        SettingsError: one is not.
    """
    choice("latents", settings.latents, SEQUENCE_LATENTS)
    choice("transitions", settings.transitions, TRANSITIONS)
    choice("objective", settings.objective, CHAIN_OBJECTIVES)
    choice("frequencies", settings.frequencies, FREQUENCIES)
    choice("posterior", settings.posterior, POSTERIOR_NAMES)
    for name in ("n_features", "n_random_features", "n_hidden", "n_inducing"):
        number(name, getattr(settings, name), low=1, high=2**40, integer=True)
    number("n_labels", settings.n_labels, low=2, high=2**20, integer=True)
    number("n_layers", settings.n_layers, low=1, high=100, integer=True)
    number("n_reduced", settings.n_reduced, low=0, high=2**40, integer=True)
    number("support_size", settings.support_size, low=1, high=settings.n_features, integer=True)
    number("prior_variance", settings.prior_variance, low=0, open_low=True)
    for name in ("linear_term", "ard", "feed_forward"):
        choice(name, getattr(settings, name), (True, False))
    choice("kernel", settings.kernel, FEATURE_KERNELS if settings.latents == "random-features" else KERNEL_NAMES)
    if settings.linear_term and settings.latents.startswith("linear"):
        raise SettingsError(f'linear_term adds linear functions, which latents="{settings.latents}" are already')
    if settings.n_layers > 1 and settings.latents != "random-features":
        raise SettingsError('n_layers above 1 needs latents="random-features"')
    if settings.transitions == "none" and settings.objective != "exact":
        raise SettingsError('objective="pseudo-likelihood" is of transitions, and transitions="none" has none')
    return settings


def sequence_training(
    params: dict[str, Any], *, model: SequenceSettings, sizes: SequenceSizes, seed: int
) -> TrainingSettings:
    """The training that an estimator's parameters ask for, of a model on S sequences.

    Raises:
        SettingsError: a parameter is outside its domain.
    """
    batch_size, epochs, rate = params["batch_size"], params["epochs"], params["learning_rate"]
    if batch_size == "auto":
        # About 2000 tokens: a step is then dominated by work, not by its overhead.
        batch_size = math.ceil(2000 * sizes.n_sequences / sizes.n_rows)
    batch_size = min(number("batch_size", batch_size, low=1, integer=True), sizes.n_sequences)
    if epochs == "auto":
        epochs = max(15, math.ceil(_STEPS[model.latents] * batch_size / sizes.n_sequences))
    if rate == "auto":
        rate = _RATES[model.latents]
    optimizer = choice("optimizer", params["optimizer"], ("auto", "natural", "adam"))
    step, kl_weight = params["natural_step"], params["kl_weight"]
    if kl_weight == "auto":
        kl_weight = _KL_WEIGHTS.get(model.latents, 1.0)
    budget, patience = params["time_budget"], params["patience"]
    return TrainingSettings(
        epochs=number("epochs", epochs, low=1, integer=True),
        batch_size=batch_size,
        learning_rate=number("learning_rate", rate, low=0, open_low=True),
        # The gradient of a covariance by draws is too noisy for natural steps.
        optimizer="adam" if optimizer == "auto" else optimizer,
        natural_step=0.05 if step == "auto" else number("natural_step", step, low=0, high=1, open_low=True),
        kl_weight=number("kl_weight", kl_weight, low=0),
        n_draws=number("n_train_draws", params["n_train_draws"], low=1, high=10_000, integer=True),
        frequencies_from=number("frequencies_from", params["frequencies_from"], low=0, high=1),
        hyperparameters_from=number("hyperparameters_from", params["hyperparameters_from"], low=0, high=1),
        seed=seed,
        patience=None if patience is None else number("patience", patience, low=1, integer=True),
        time_budget=None if budget is None else number("time_budget", budget, low=0, open_low=True),
        checkpoint_seconds=number("checkpoint_seconds", params["checkpoint_seconds"], low=0),
    )
