"""Settings that fit into memory: those left to the library are lowered until training does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil

from extremegp.errors import MemoryPlanError, SettingsError
from extremegp.settings.memory import available_memory, check_memory
from extremegp.settings.model import ModelSettings
from extremegp.training import TrainingSettings, World

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_ALLOWANCE = 128 << 20  # for what libraries load while training starts, and for gaps between arrays
_LEAST_BATCH, _MOST_SAMPLED, _LEAST_SAMPLED, _LEAST_LATENT, _LEAST_INDUCING = 32, 2000, 250, 16, 50


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


def memory_left(limit: int | None, world: World) -> int:
    """Bytes that training may take in all processes of this machine.

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
    return min(available_memory(), world.local_size * max(0, limit - -(-held // grain) * grain))


def plan_within(
    available: int,
    params: dict[str, Any],
    *,
    resolve: Callable[[dict[str, Any]], tuple[ModelSettings, TrainingSettings]],
    needed: Callable[[ModelSettings, TrainingSettings], int],
    advice: str,
) -> Plan:
    """The settings that parameters ask for, with those that are "auto" lowered as far as memory asks for it.

    In this order: batch_size, n_sampled_labels, optimizer_state, n_latent, n_inducing. Once the plan fits, those that
    were lowered first are raised again as far as it still does: nothing is lowered that does not help.

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
    rungs = {name: values for name, values in _rungs(model, training).items() if params[name] == "auto" and values[1:]}
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
        "n_inducing": _halved(model.n_inducing, _LEAST_INDUCING),
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
