"""What goes wrong in a command, as one line on standard error and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from extremegp.cli.pipes import with_its_name
from extremegp.errors import ExtremeGPError

# Newer versions of typer carry click inside: this is the base of usage errors in all of them.
_ClickException: type[Exception] = typer.BadParameter.mro()[2]


class OneLineErrors(TyperGroup):
    """A group of commands that never shows a traceback for bad input: exit code 2 and one line instead."""

    def main(self, *args: Any, **options: Any) -> Any:
        if not options.get("standalone_mode", True):
            return super().main(*args, **options)
        options["standalone_mode"] = False
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                code = super().main(*args, **options)
            except ExtremeGPError as error:
                _fail(str(error))
            except _ClickException as error:
                _fail(error.format_message())  # type: ignore[attr-defined]
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


def _fail(problem: str) -> NoReturn:
    say(f"error: {problem}")
    sys.exit(2)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str | Path,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    say(f"warning: {message}")
