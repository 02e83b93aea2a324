"""Everything that decides how training goes on, in one atomic file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from extremegp.errors import ModelFormatError
from extremegp.storage.tensors import all_finite, check_state, copy_state, read_tensors, write_tensors
from extremegp.training.distributed import World
from extremegp.training.hard_labels import HardLabels
from extremegp.training.row_adam import RowAdam
from extremegp.training.shards import Shards

_FORMAT = "extremegp checkpoint 1"


@dataclass
class Progress:
    """Where a run stands.

    Attributes:
        step: optimiser steps made.
        total_steps: steps of the whole schedule.
        step_scales: factor on the learning rate of every learnt parameter, in the model's order.
        bound_sum: sum of the ELBO estimates of the current epoch.
        seconds: training time so far, all sessions together.
        best_score: best validation score so far.
        best_epoch: the epoch that had it.
        history: one record per finished epoch.
    """

    step: int
    total_steps: int
    step_scales: list[float]
    bound_sum: float = 0.0
    seconds: float = 0.0
    best_score: float | None = None
    best_epoch: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


def save_checkpoint(
    path: str | Path,
    *,
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    best: Mapping[str, Tensor],
    progress: Progress,
    fingerprint: str,
    shards: Shards | None = None,
    hard: HardLabels | None = None,
) -> None:
    """Write model, optimiser moments, best parameters so far and progress; `fingerprint` names data and settings.

    Of a model in `shards`, the first process writes what all of them hold: the file is that of one process.
    """
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    for number, optimizer in enumerate(optimizers):
        for index, moments in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer{number}.{index}.{name}": tensor for name, tensor in moments.items()}
    if hard is not None:
        tensors |= {f"hard.{name}": tensor for name, tensor in hard.state().items()}
    whole = tensors if shards is None else shards.collect(tensors, shards.per_label_of(optimizers))
    if whole is not None:
        write_tensors(path, whole, {"format": _FORMAT, "fingerprint": fingerprint, "progress": asdict(progress)})


def load_checkpoint(
    path: str | Path,
    *,
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    fingerprint: str,
    shards: Shards | None = None,
    hard: HardLabels | None = None,
) -> tuple[Progress, dict[str, Tensor]]:
    """Restore model and optimisers in place; give back the progress and the best parameters.

    Of a model in `shards`, the first process reads the file, and each gets its part.

    Raises:
        ModelFormatError: the file is damaged, or was written by a run on other data or with other settings.
    """
    world = World() if shards is None else shards.world
    tensors, header = world.together(lambda: read_tensors(path) if world.leads else ({}, {}))
    header = world.said_by_first(header)
    if shards is not None:
        tensors = shards.spread(tensors, shards.per_label_of(optimizers))
    result = world.together(lambda: _restore(path, tensors, header, model, optimizers, fingerprint))
    if hard is not None:
        hard.restore(_part(tensors, "hard."), model.mixing, source=path)  # type: ignore[arg-type]
    return result


def _restore(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    header: Mapping[str, Any],
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    fingerprint: str,
) -> tuple[Progress, dict[str, Tensor]]:
    if header.get("format") != _FORMAT:
        raise ModelFormatError(f"{path}: not a checkpoint of this version")
    if header.get("fingerprint") != fingerprint:
        raise ModelFormatError(
            f"{path}: this checkpoint was written with other data or settings; "
            "repeat the original command, or start anew without resuming"
        )
    progress = _progress(header.get("progress"), path)
    if len(progress.step_scales) != sum(len(optimizer.param_groups) for optimizer in optimizers):
        raise ModelFormatError(f"{path}: its step scales do not fit the model")
    best = _part(tensors, "best.")
    if best:
        check_state(model, best, source=path)
    copy_state(model, _part(tensors, "model."), source=path)
    for number, optimizer in enumerate(optimizers):
        _restore_moments(optimizer, _part(tensors, f"optimizer{number}."), path)
    return progress, best


def _progress(record: Any, path: str | Path) -> Progress:
    sound = (
        isinstance(record, dict)
        and record.keys() == {entry.name for entry in fields(Progress)}
        and all(isinstance(record[name], int) for name in ("step", "total_steps", "best_epoch"))
        and all(isinstance(record[name], (int, float)) for name in ("bound_sum", "seconds"))
        and isinstance(record["best_score"], (int, float, type(None)))
        and isinstance(record["history"], list)
        and isinstance(record["step_scales"], list)
        and all(isinstance(scale, float) for scale in record["step_scales"])
        and 0 <= record["step"] <= record["total_steps"]
    )
    if not sound:
        raise ModelFormatError(f"{path}: its progress record is damaged")
    return Progress(**record)


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _restore_moments(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], path: str | Path) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        index, _, moment = name.partition(".")
        if not index.isdecimal():
            raise ModelFormatError(f"{path}: unexpected optimiser entry {name!r}")
        state.setdefault(int(index), {})[moment] = tensor
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, moments in state.items():
        if number >= len(parameters) or moments.keys() != {"step", "exp_avg", "exp_avg_sq"}:
            raise ModelFormatError(f"{path}: optimiser state {number} does not fit the model")
        dtype, shape = parameters[number].dtype, parameters[number].shape
        layout = {"step": (torch.Size(), torch.float32), "exp_avg": (shape, dtype), "exp_avg_sq": (shape, dtype)}
        if isinstance(optimizer, RowAdam):
            layout = optimizer.layout(parameters[number])
        if any((moments[name].shape, moments[name].dtype) != expected for name, expected in layout.items()):
            raise ModelFormatError(f"{path}: optimiser state {number} has the wrong shape")
        if not all(map(all_finite, moments.values())):
            raise ModelFormatError(f"{path}: optimiser state {number} holds NaN or infinity")
        # PyTorch moves the moments to the parameter's device, but leaves counts of steps where they are.
        moments["step"] = moments["step"].to(parameters[number].device)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
