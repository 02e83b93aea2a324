"""What goes wrong in a command, as one line on standard error and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn, TextIO

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from extremegp.cli.parameters import parameter_types
from extremegp.cli.pipes import with_its_name
from extremegp.cli.settings import OWNED, nearest
from extremegp.errors import ExtremeGPError

# Newer versions of typer carry click inside: this is the base of usage errors in all of them.
_ClickException: type[Exception] = typer.BadParameter.mro()[2]


class _AsWritten:
    """Help texts are shown as they are written, where Rich would take [ann] for markup, and flags ask for no value."""

    help: str | None
    params: list[Any]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for described in (self, *self.params):
            if getattr(described, "help", None):
                described.help = escape(described.help)

    def get_params(self, ctx: Any) -> Any:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        return parameters


class PlainHelp(_AsWritten, TyperCommand):
    """A command with help as it is written."""


class OneLineErrors(_AsWritten, TyperGroup):
    """A group of commands that never shows a traceback for bad input: exit code 2 and one line instead."""

    def main(self, *args: Any, **options: Any) -> Any:
        if not options.get("standalone_mode", True):
            return super().main(*args, **options)
        options["standalone_mode"] = False
        with warnings.catch_warnings():
            warnings.showwarning = _Warner()
            try:
                code = super().main(*args, **options)
            except ExtremeGPError as error:
                _fail(str(error))
            except _ClickException as error:
                _fail(_explained(error, [*(args[0] if args else options.get("args") or sys.argv[1:])]))
            except OSError as error:
                where = "" if error.filename is None else f"{error.filename}: "
                _fail(f"{where}{error.strerror or error}")
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # What reads the output wants no more of it; Python would say so again at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from error
        except KeyboardInterrupt as interrupt:
            say(str(interrupt) or "interrupted")
            raise typer.Exit(130) from interrupt


def say(message: str) -> None:
    """One line on standard error."""
    print(" ".join(with_its_name(message).split()), file=sys.stderr, flush=True)


def _explained(error: Any, args: list[str]) -> str:
    """What a mistake of usage is, and what was probably meant."""
    problem: str = error.format_message().replace("Value error, ", "")
    # Not all versions of typer suggest commands.
    if problem.startswith("No such command") and "Did you mean" not in problem:
        likely = nearest(problem.split("'")[1], error.ctx.command.list_commands(error.ctx))
        return problem + "".join(f" Did you mean {name!r}?" for name in likely[:1])
    if type(error).__name__ == "NoSuchOption" and error.option_name.startswith("--"):
        return _parameter_hint(error, args) or problem
    return problem


def _parameter_hint(error: Any, args: list[str]) -> str | None:
    """How to set what an unknown option calls a parameter of an estimator, or nearly so, if it does."""
    from extremegp.cli.tasks import TASKS

    option: str = error.option_name
    known = {name for task in TASKS.values() for of in task.estimators.values() for name in parameter_types(of)}
    name = option.removeprefix("--").replace("-", "_")
    if name not in known:
        close = [] if error.possibilities else nearest(name, known, cutoff=0.8)
        if not close:
            return None
        name = close[0]
    if name in OWNED:
        return f"No such option: {option}; {OWNED[name]}"
    command = "" if error.ctx is not None and error.ctx.command.name == "train" else "extremegp train "
    return f"No such option: {option}; it is a parameter of models: {command}--set {name}={_value_of(option, args)}"


def _value_of(option: str, args: list[str]) -> str:
    """What stands after an option, or what to put there."""
    for arg, following in zip(args, [*args[1:], "-"], strict=True):
        if arg.startswith(f"{option}="):
            return arg.partition("=")[2]
        if arg == option:
            return "VALUE" if following.startswith("-") and not following[1:2].isdigit() else following
    return "VALUE"


def _fail(problem: str) -> NoReturn:
    say(f"error: {problem}")
    sys.exit(2)


class _Warner:
    """Shows warnings on a line each, and each once: a file may be looked at twice."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str | Path,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if str(message) not in self._shown:
            self._shown.add(str(message))
            say(f"warning: {message}")
