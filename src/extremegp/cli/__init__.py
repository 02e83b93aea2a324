"""The command line: `extremegp train`, `predict`, `evaluate`, `learn`, `convert`, `info` and so on.

Commands import what computes only when they run, so that `--help` answers at once.
"""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from typing import Annotated

import typer

from extremegp.__about__ import __version__
from extremegp.cli.app import OneLineErrors, PlainHelp
from extremegp.cli.audit import audit
from extremegp.cli.convert import convert
from extremegp.cli.demo import demo
from extremegp.cli.evaluate import evaluate
from extremegp.cli.export import export
from extremegp.cli.forget import forget
from extremegp.cli.guarantee import guarantee
from extremegp.cli.info import info
from extremegp.cli.learn import learn
from extremegp.cli.predict import predict
from extremegp.cli.presets import presets
from extremegp.cli.report import report
from extremegp.cli.select import select
from extremegp.cli.serve import serve
from extremegp.cli.train import train
from extremegp.errors import SettingsError
from extremegp.threads import let_waiting_threads_sleep

__all__ = ["app", "main"]

app = typer.Typer(
    cls=OneLineErrors,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = (
    demo,
    train,
    predict,
    evaluate,
    report,
    guarantee,
    select,
    audit,
    learn,
    forget,
    serve,
    export,
    convert,
    info,
    presets,
)
for _command in _COMMANDS:
    # The text at the top of a command's file is what its --help says.
    app.command(cls=PlainHelp, help=sys.modules[_command.__module__].__doc__)(_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"extremegp {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Gaussian processes for classification with very many labels.

    Start with `extremegp demo`, which trains on real data that come with the
    library in less than a minute. Then train a model on a file of your own, see
    how good it is, and predict:

    \b
      extremegp train train.txt --out model
      extremegp evaluate model test.txt
      extremegp predict model new.txt --out labels.jsonl

    Exit codes: 0 done; 1 a bug; 2 bad input or usage, with one line on standard
    error that says what to do; 130 interrupted.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line on `sys.argv`."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal lacks becomes a question mark, not an error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # Where a program calls this, numpy and torch may be loaded: threads are then as that program wants them.
    with suppress(SettingsError):
        let_waiting_threads_sleep()
    app(prog_name="extremegp")
