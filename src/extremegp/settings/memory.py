"""The memory that training will need, worked out before it starts, and settings that fit into what there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil
import torch
from torch import nn

from extremegp.engine.part import StepSizes, parts_of
from extremegp.engine.weight_covariance import covariance_bytes, is_exact
from extremegp.errors import MemoryPlanError, SettingsError
from extremegp.settings.model import ModelSettings
from extremegp.settings.training import TrainingSettings

_CGROUP = Path("/sys/fs/cgroup")
_BYTES_PER_LABEL = 100  # of what has a number or two for each label, where they are sampled
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_ALLOWANCE = 128 << 20  # for what libraries load while training starts, and for gaps between arrays
_LEAST_BATCH, _MOST_SAMPLED, _LEAST_SAMPLED, _LEAST_LATENT, _LEAST_INDUCING = 32, 2000, 250, 16, 50
_LEAST_FEATURES, _LEAST_POINTS = 50, 250


def available_memory() -> int:
    """Bytes that this process may still use: free memory, or what its control group's limit leaves if that is less."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - used))


def training_memory(
    settings: ModelSettings,
    *,
    n_rows: int,
    batch_size: int,
    n_stored: int,
    labels_per_step: int | None = None,
    item_size: int = 4,
    optimizer_state: Literal["full", "half"] = "full",
    n_copies: int = 0,
    n_sequences: int = 0,
    batch_stored: int = 0,
    n_draws: int = 1,
    n_classes: int = 1,
    weight_covariance: Literal["auto", "shared", "factorised"] = "factorised",
) -> int:
    """Bytes that training takes at its peak, within a factor of two.

    Every learnt parameter is held with its gradient and two moments; what a step takes beside, each part knows. Where
    labels are sampled, the mixing has gradients and temporary copies for the rows of a step only.

    Args:
        settings: the model.
        n_rows: N.
        batch_size: B, the rows of a batch; of sequences, the tokens of a batch of the longest.
        n_stored: stored entries of inputs and labels.
        labels_per_step: L, the labels that a step looks at; None for all.
        item_size: bytes of a number of the wide arrays.
        optimizer_state: of sampled labels, as `RowAdam` takes it.
        n_copies: of all parameters: one of the best ones so far, one of those that a run resumes from.
        n_sequences: S, the sequences of a batch; 0 where rows stand alone.
        batch_stored: stored entries of the inputs of a batch of sequences.
        n_draws: R, draws of a step.
        n_classes: classes that a row may have, where labels are soft.
        weight_covariance: whether weights get a covariance for all functions in the end, "shared"; "auto" is where that
            is exact.
    """
    k = settings.n_labels
    with torch.device("meta"):
        model = settings.build()
    sampled = labels_per_step is not None
    sizes = StepSizes(batch_size, labels_per_step or k, batch_stored, n_sequences, n_draws, sampled, n_classes)
    narrow = _learnt(model.latents) + _learnt(model.likelihood)
    held = sum(tensor.numel() for tensor in model.latents.state_dict().values()) - _learnt(model.latents)
    wide, of_labels = _learnt(model.mixing), 0
    mixing = 4 * wide
    if labels_per_step is not None:
        width, half = wide // k, optimizer_state == "half"
        mixing = ((1 if half else 3) * k + 8 * labels_per_step) * width
        # Moments in bfloat16; counts of steps, the sampler's arrays and the clusters of hard labels.
        of_labels = k * (_BYTES_PER_LABEL + (4 * width if half else 0))
    parts = [*parts_of(model)]
    arrays = 4 * narrow + held + mixing + n_copies * (narrow + wide) + sum(part.step_elements(sizes) for part in parts)
    training: int = item_size * arrays + of_labels + sum(part.step_bytes(sizes) for part in parts) + 12 * n_stored
    training += sum(part.fit_bytes(n_rows) for part in parts)
    # Covariances are fitted once training is over.
    n_weights = [weighted.n_weights for _, weighted in model.latents.with_weights()]
    if weight_covariance == "factorised" or (weight_covariance == "auto" and not is_exact(n_weights, n_rows)):
        return training
    of_weights = sum(covariance_bytes(n, n_rows) for n in n_weights)
    return max(training, of_weights + item_size * narrow + 12 * n_stored)


def _learnt(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def check_memory(needed: int, *, settings: str, available: int | None = None) -> None:
    """Refuse a plan that cannot fit.

    Args:
        needed: bytes.
        settings: the settings to lower, for the message.
        available: bytes there are; by default measured.

    Raises:
        MemoryPlanError: `needed` is more than there is.
    """
    available = available_memory() if available is None else available
    if needed > available:
        raise MemoryPlanError(
            f"training would need about {needed / 2**30:.1f} GB and {available / 2**30:.1f} GB are free: "
            f"lower {settings}"
        )


class Plan(NamedTuple):
    """Settings to train with.

    Attributes:
        model: the model.
        training: its training.
        lowered: the parameters that had to be lowered, with what they would have been and what they are.
    """

    model: ModelSettings
    training: TrainingSettings
    lowered: dict[str, tuple[Any, Any]]


def memory_limit(value: Any) -> int | None:
    """Bytes of a limit as `max_memory` takes it: an integer, or a text such as "8G" or "500M" (powers of 1024).

    Raises:
        SettingsError: it is neither, nor None.
    """
    size = None
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        size = round(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
    if value is not None and (size is None or size < 1):
        raise SettingsError(f"max_memory must be bytes, or a size such as '8G' or '500M'; it is {value!r}")
    return size


def memory_left(limit: int | None, n_processes: int = 1) -> int:
    """Bytes that training may take in all `n_processes` processes of this machine.

    Raises:
        MemoryPlanError: with what is in memory already, a process has passed the limit.
    """
    if limit is None:
        return available_memory()
    held = int(psutil.Process().memory_info().rss) + _ALLOWANCE
    if held >= limit:
        raise MemoryPlanError(
            f"the data and the program alone need {held / 2**30:.2f} GB, and max_memory is {limit / 2**30:.2f} GB: "
            "raise it, or convert the data by `extremegp convert` so that they stay on disk"
        )
    # Rounded, so that a run that resumes comes to the same plan.
    grain = max(1, limit // 32)
    return min(available_memory(), n_processes * max(0, limit - -(-held // grain) * grain))


def plan_within(
    available: int,
    params: dict[str, Any],
    *,
    resolve: Callable[[dict[str, Any]], tuple[ModelSettings, TrainingSettings]],
    needed: Callable[[ModelSettings, TrainingSettings], int],
    advice: str,
) -> Plan:
    """The settings that parameters ask for, with those that are "auto" lowered as far as memory asks for it.

    In this order: batch_size, n_sampled_labels, optimizer_state, n_latent, n_inducing, and of random features how many
    there are; of a regression alone n_mean_points and n_inducing. Once the plan fits, those that were lowered first are
    raised again as far as it still does: nothing is lowered that does not help.

    Args:
        available: bytes there are.
        params: of an estimator, as `model_settings` takes them.
        resolve: from parameters to settings.
        needed: bytes that settings take.
        advice: the settings to lower, for the message.

    Raises:
        SettingsError: a parameter is outside its domain.
        MemoryPlanError: the settings do not fit, however low.
    """
    model, training = resolve(params)
    if needed(model, training) <= available:
        return Plan(model, training, {})
    rungs = {name: of for name, of in _rungs(model, training).items() if params.get(name) == "auto" and of[1:]}
    at = dict.fromkeys(rungs, 0)

    def settings() -> tuple[ModelSettings, TrainingSettings]:
        return resolve(params | {name: rungs[name][place] for name, place in at.items() if place})

    def fits() -> bool:
        return needed(*settings()) <= available

    for name, values in rungs.items():
        while at[name] < len(values) - 1 and not fits():
            at[name] += 1
    check_memory(needed(*settings()), settings=advice, available=available)
    for name in rungs:
        while at[name]:
            at[name] -= 1
            if not fits():
                at[name] += 1
                break
    lowered = {name: (rungs[name][0], rungs[name][place]) for name, place in at.items() if place}
    return Plan(*settings(), lowered)


def _rungs(model: ModelSettings, training: TrainingSettings) -> dict[str, list[Any]]:
    """What every parameter may be, from what it is without a limit downwards, in the order of lowering."""
    n_inducing = _halved(model.n_inducing, _LEAST_INDUCING)
    if model.is_closed:
        return {"n_mean_points": _halved(model.n_mean_points, _LEAST_POINTS), "n_inducing": n_inducing}
    if model.latents == "landmarks":
        return {"batch_size": _halved(training.batch_size, _LEAST_BATCH), "n_inducing": n_inducing}
    sampled = training.n_sampled_labels
    samples: list[int | None] = [*_halved(_MOST_SAMPLED if sampled is None else sampled, _LEAST_SAMPLED)]
    if sampled is None:
        samples = [None, *(n for n in samples if n is not None and n < model.n_labels)]
    return {
        "batch_size": _halved(training.batch_size, _LEAST_BATCH),
        "n_sampled_labels": samples,
        "optimizer_state": ["full", "half"] if training.optimizer_state == "full" else ["half"],
        # A function for each class is another model than a mixture.
        "n_latent": _halved(model.n_latent, _LEAST_LATENT) if model.mixing == "factor" else [model.n_latent],
        "n_inducing": n_inducing,
        "n_random_features": _halved(model.n_random_features, _LEAST_FEATURES),
    }


def _halved(value: int, least: int) -> list[int]:
    values = [value]
    while values[-1] // 2 >= least:
        values.append(values[-1] // 2)
    return values


def described(plan: Plan, available: int) -> str:
    """What was lowered, in a line."""
    changes = [f"{name} from {before or 'all'} to {after}" for name, (before, after) in plan.lowered.items()]
    return f"to fit into {available / 2**30:.1f} GB of memory, lowered {', '.join(changes)}"
