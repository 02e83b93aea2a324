"""The table of tasks: commands look one up, and ask it for what they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extremegp.cli.console import load_libraries
from extremegp.cli.options import TaskName
from extremegp.cli.tasks.base import EvaluateRequest, PredictRequest, Task, Training, TrainRequest
from extremegp.cli.tasks.classes import OneClass
from extremegp.cli.tasks.labels import ManyLabels
from extremegp.cli.tasks.sequences import LabelledTokens
from extremegp.errors import ModelFormatError

__all__ = ["TASKS", "EvaluateRequest", "PredictRequest", "Task", "TrainRequest", "Training", "load_model"]

TASKS: dict[TaskName, Task[Any]] = {task.name: task for task in (ManyLabels(), OneClass(), LabelledTokens())}
"""All tasks by name."""


def load_model(folder: Path, *, quiet: bool) -> tuple[Any, Task[Any]]:
    """The model in a folder, and its task.

    Raises:
        ModelFormatError: it is no intact model of this version.
    """
    # Before the time that PyTorch takes.
    if not folder.is_dir():
        raise ModelFormatError(f"{folder}: no such model folder")
    load_libraries(quiet)
    from extremegp.estimators import load

    model = load(folder)
    name = type(model).__name__
    for task in TASKS.values():
        if name in task.estimators.values():
            return model, task
    raise ModelFormatError(f"{folder}: a {name}, which this command cannot use")
