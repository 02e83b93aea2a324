"""Which options are for which tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from extremegp.cli.options import TaskName
from extremegp.errors import SettingsError

if TYPE_CHECKING:
    from extremegp.cli.tasks import Task

_ROWS: tuple[TaskName, ...] = ("multilabel", "multiclass")
_LABELS: tuple[TaskName, ...] = ("multilabel",)
_SEQUENCES: tuple[TaskName, ...] = ("sequence",)
_GIVEN: tuple[TaskName, ...] = ("multilabel", "sequence")

TASKS_OF: dict[str, tuple[TaskName, ...]] = {
    **dict.fromkeys(("--labels", "--valid-labels", "--features", "--ks", "--top-k", "--explain", "--promise"), _ROWS),
    **dict.fromkeys(("--format", "--x-key", "--y-key", "--label-column", "--first-label", "--ignore-labels"), _ROWS),
    **dict.fromkeys(
        ("--text-column", "--vector-column", "--vectors", "--id-column", "--weight-column", "--valid-vectors"),
        _ROWS,
    ),
    **dict.fromkeys(
        (
            "--propensity",
            "--by",
            "--threshold",
            "--decide",
            "--cost-wrong",
            "--cost-missed",
            "--least-f1",
            "--approximate",
            "--labels-names",
        ),
        _LABELS,
    ),
    **dict.fromkeys(("--labels-column", "--label-columns", "--label-separator", "--vocabulary", "--language"), _LABELS),
    **dict.fromkeys(
        ("--template", "--decoding", "--separator", "--encoding", "--k-best", "--probabilities", "--unknown-label"),
        _SEQUENCES,
    ),
    **dict.fromkeys(
        ("--scheme", "--spans"),
        _SEQUENCES,
    ),
    "--given": _GIVEN,
}
"""The tasks of options that are not for all of them."""

_WHAT: dict[TaskName, str] = {
    "multilabel": "many labels per row",
    "multiclass": "one class per row",
    "sequence": "sequences of tokens",
}
_INSTEAD = {"--labels-names": "; --labels takes names of classes"}


_NOT_OF_A_MODEL = {"--out", "--overwrite", "--fresh", "--json", "--quiet"}


def given(context: typer.Context) -> dict[str, Any]:
    """The options that were given and have to do with what a model becomes, by name."""
    return {
        max(parameter.opts, key=len): context.params[str(parameter.name)]
        for parameter in context.command.params
        if parameter.param_type_name == "option"
        and not {*parameter.opts} & _NOT_OF_A_MODEL
        and getattr(context.get_parameter_source(str(parameter.name)), "name", "") == "COMMANDLINE"
    }


def refuse_foreign(context: typer.Context, task: Task[Any], because: str, *, own: Sequence[str] = ()) -> None:
    """Refuse options that a task has no use for; `because` says what decided the task.

    `own` are options that the command has another use for, whatever the task.
    """
    wanted = {
        option
        for parameter in context.command.params
        if context.params[str(parameter.name)] not in (parameter.default, [], ())
        for option in parameter.opts
    }
    for option, tasks in TASKS_OF.items():
        if option not in wanted or option in own or task.name in tasks:
            continue
        if task.name == "sequence":
            raise SettingsError(f"{option} is not for sequences, which are read in columns, but {because}")
        raise SettingsError(f"{option} is for {_WHAT[tasks[0]]}, but {because}{_INSTEAD.get(option, '')}")
