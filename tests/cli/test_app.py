"""Help, version, exit codes and what a person sees when something goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
import typer
from tests.cli.conftest import Run
from typer.testing import CliRunner

import extremegp
from extremegp.cli import app
from extremegp.cli.app import OneLineErrors

_COMMANDS = ("demo", "train", "predict", "evaluate", "convert", "info", "presets")
_COLOUR_VARIABLES = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def _python(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in _COLOUR_VARIABLES}
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, env=environment, check=False)


def _failing(problem: BaseException | Warning) -> typer.Typer:
    """A command line of which the one command raises, or warns of, `problem`."""
    failing = typer.Typer(cls=OneLineErrors, pretty_exceptions_enable=False)

    @failing.callback()
    def root() -> None: ...

    @failing.command()
    def go() -> None:
        if isinstance(problem, Warning):
            warnings.warn(problem, stacklevel=1)
        else:
            raise problem

    return failing


def test_without_arguments_the_help_is_shown(run: Run) -> None:
    result = run()
    assert result.exit_code == 0
    assert "extremegp demo" in result.stdout


@pytest.mark.parametrize("command", _COMMANDS)
def test_the_help_of_every_command_has_an_example(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"extremegp {command}" in result.stdout.split("Example")[1] or command == "presets"
    assert "--json" in result.stdout
    assert "--quiet" in result.stdout


def test_the_version_is_the_library_s(run: Run) -> None:
    assert run("--version").stdout == f"extremegp {extremegp.__version__}\n"


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_help_loads_neither_torch_nor_scikit_learn(command: str) -> None:
    code = f"import sys; from extremegp.cli import app; app(['{command}', '--help'], standalone_mode=False)"
    result = _python("-c", f"{code}; print(sorted({{'torch', 'sklearn', 'scipy', 'numpy'}} & set(sys.modules)))")
    assert result.stdout.splitlines()[-1] == "[]"


def test_as_a_module_into_a_pipe_there_are_no_escape_codes() -> None:
    result = _python("-m", "extremegp", "presets")
    assert result.returncode == 0
    assert "ARD-S-B" in result.stdout
    assert "\x1b" not in result.stdout + result.stderr


def test_as_a_module_a_mistake_has_exit_code_2_and_one_line() -> None:
    result = _python("-m", "extremegp", "presets", "--bogus")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "--bogus" in result.stderr


@pytest.mark.parametrize(
    ("args", "naming"),
    [
        (["evalute"], "'evaluate'"),
        (["--bogus"], "--bogus"),
        (["train"], "DATA"),
        (["train", "data.txt"], "--out"),
        (["train", "data.txt", "--out", "m", "--seed", "-1"], "--seed"),
        (["predict", "m", "data.txt", "--out", "o.jsonl", "--top-k", "0"], "--top-k"),
        (["predict", "m", "data.txt", "--out", "o.jsonl", "--by", "luck"], "--by"),
        (["evaluate", "m", "data.txt", "--format", "arff"], "--format"),
    ],
)
def test_usage_errors_name_what_is_wrong(run: Run, args: list[str], naming: str) -> None:
    run.fails(*args, naming=naming)


def test_an_error_of_several_lines_is_shown_on_one() -> None:
    result = CliRunner().invoke(_failing(extremegp.errors.DataError("first\nsecond")), ["go"])
    assert (result.exit_code, result.stderr) == (2, "error: first second\n")


def test_an_error_of_the_system_names_the_file() -> None:
    result = CliRunner().invoke(_failing(PermissionError(13, "Permission denied", "there.txt")), ["go"])
    assert (result.exit_code, result.stderr) == (2, "error: there.txt: Permission denied\n")


def test_an_interrupt_has_exit_code_130() -> None:
    result = CliRunner().invoke(_failing(KeyboardInterrupt()), ["go"])
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


def test_a_bug_has_exit_code_1_and_keeps_its_traceback() -> None:
    result = CliRunner().invoke(_failing(ZeroDivisionError()), ["go"])
    assert result.exit_code == 1
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line() -> None:
    result = CliRunner().invoke(_failing(UserWarning("jitter\nraised")), ["go"])
    assert (result.exit_code, result.stderr) == (0, "warning: jitter raised\n")


def test_the_package_names_what_it_exports() -> None:
    assert set(extremegp.__all__) <= set(dir(extremegp))
    assert extremegp.load.__module__ == "extremegp.estimators"
    with pytest.raises(AttributeError, match="no_such_name"):
        extremegp.no_such_name  # noqa: B018


def test_every_command_is_tested_for_its_help() -> None:
    assert {command.callback.__name__ for command in app.registered_commands if command.callback} == set(_COMMANDS)
