"""Hyper-parameters as the user gave them to settings that a model can be built and trained with."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from typing import Any

from extremegp.building import KERNEL_NAMES, POSTERIOR_NAMES, ModelSettings
from extremegp.errors import SettingsError
from extremegp.training import TrainingSettings


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


def model_settings(params: dict[str, Any], *, n_rows: int, n_features: int, n_labels: int) -> ModelSettings:
    """The model that an estimator's parameters ask for, on N x D inputs with K labels.

    Raises:
        SettingsError: a parameter is outside its domain.
    """
    n_latent = params["n_latent"]
    n_latent = min(n_labels, 300) if n_latent == "auto" else number("n_latent", n_latent, low=1, integer=True)
    n_inducing = number("n_inducing", params["n_inducing"], low=1, integer=True)
    normalise = params["normalise_inducing"]
    if normalise == "auto":
        normalise = params["features"] != "raw"
    linear_term = params["linear_term"]
    if linear_term == "auto":
        # Where the inducing inputs cannot span feature space, an exact linear term gives the means what they lack.
        linear_term = n_features >= 2 * n_inducing
    return check_model_settings(
        ModelSettings(
            n_features=n_features,
            n_labels=n_labels,
            n_latent=n_latent,
            n_inducing=min(n_inducing, n_rows),
            kernel=params["kernel"],
            posterior=params["posterior"],
            linear_term=linear_term,
            learn_inducing=params["learn_inducing"],
            normalise_inducing=normalise,
            relative_jitter=number("relative_jitter", params["relative_jitter"], low=0, high=1e-3),
        )
    )


def check_model_settings(settings: ModelSettings) -> ModelSettings:
    """The settings themselves, if every one is in its domain: they may come from a file.

    Raises:
        SettingsError: one is not.
    """
    for name in ("n_features", "n_labels", "n_latent", "n_inducing"):
        number(name, getattr(settings, name), low=1, high=2**40, integer=True)
    choice("kernel", settings.kernel, KERNEL_NAMES)
    choice("posterior", settings.posterior, POSTERIOR_NAMES)
    for name in ("linear_term", "learn_inducing", "normalise_inducing"):
        choice(name, getattr(settings, name), (True, False))
    number("relative_jitter", settings.relative_jitter, low=0, high=1e-3)
    return settings


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
        # A linear term learns features that few rows have, and so takes longer; few rows make few steps per epoch.
        passes = (10500 if model.linear_term else 4000) / math.sqrt(n_rows)
        epochs = max(3, min(150, round(passes)), math.ceil(600 * batch_size / n_rows))
    else:
        epochs = number("epochs", epochs, low=1, integer=True)
    patience, budget = params["patience"], params["time_budget"]
    return TrainingSettings(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=number("learning_rate", params["learning_rate"], low=0, open_low=True),
        kl_weight=number("kl_weight", params["kl_weight"], low=0),
        seed=seed,
        patience=None if patience is None else number("patience", patience, low=1, integer=True),
        time_budget=None if budget is None else number("time_budget", budget, low=0, open_low=True),
        checkpoint_seconds=number("checkpoint_seconds", params["checkpoint_seconds"], low=0),
    )
