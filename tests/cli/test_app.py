"""Help, version, exit codes and what a person sees when something goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from tests.cli.conftest import Run
from typer.testing import CliRunner

import extremegp.data
from extremegp.cli import app
from extremegp.cli.app import OneLineErrors

_COMMANDS = (
    "demo",
    "train",
    "predict",
    "evaluate",
    "guarantee",
    "select",
    "audit",
    "report",
    "learn",
    "forget",
    "serve",
    "export",
    "convert",
    "info",
    "presets",
)
_HEAVY = ("torch", "sklearn", "numba")
_COLOUR_VARIABLES = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def _python(*args: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in _COLOUR_VARIABLES} | variables
    command = [sys.executable, *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)


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
    # A server ends with no result.
    assert "--json" in result.stdout or command == "serve"
    assert "--quiet" in result.stdout


def test_the_version_is_the_library_s(run: Run) -> None:
    assert run("--version").stdout == f"extremegp {extremegp.__version__}\n"


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_help_loads_neither_torch_nor_scikit_learn(command: str) -> None:
    code = f"import sys; from extremegp.cli import app; app(['{command}', '--help'], standalone_mode=False)"
    result = _python("-c", f"{code}; print(sorted({{'torch', 'sklearn', 'scipy', 'numpy'}} & set(sys.modules)))")
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("args", "naming"),
    [
        ("--help", ""),
        ("--version", extremegp.__version__),
        ("presets", "ARD-S-B"),
        ("train --epochs 5 train.txt --out m", "--set epochs=5"),
        ("train train.txt --out m --preset ARDFX", "'ARD-FX'"),
        ("train train.txt --out m --set epoch=5", "'epochs'"),
        ("train train.txt --out m --set epochs=many", "an integer or auto"),
        ("train train.txt --out m --features text", "features must be auto or unit or tfidf or raw"),
        ("train train.txt --out m --label-column 0", "--label-column is for tables"),
        ("train train.txt --out m --valid nothing.txt", "nothing.txt: no such file"),
        ("train nothing.txt --out m", "nothing.txt: no such file"),
        ("train nothing.txt --task sequence --out m", "nothing.txt: no such file"),
        ("train train.jsonl --task sequence --out m", "train.jsonl:1: the line is a JSON object"),
        ("predict m train.txt --out o.jsonl", "m: no such model folder"),
        ("evaluate . nothing.txt", "nothing.txt: no such file"),
        ("info m", "m: no such model folder"),
    ],
)
def test_mistakes_are_told_before_what_computes_is_loaded(files: Path, args: str, naming: str) -> None:
    code = "import sys; from extremegp.cli import main\ntry: main()\n"
    code += f"finally: print('loaded', *({{*{_HEAVY}}} & {{*sys.modules}}))"
    result = _python("-c", code, *args.split(), cwd=files)
    assert naming in result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "loaded"


def test_at_a_terminal_loading_is_told_of_before_it_is_done(tmp_path: Path, files: Path) -> None:
    args = ("-m", "extremegp", "train", str(files / "train.txt"), "--out", str(tmp_path / "m"), "--set", "epochs=0")
    assert "loading PyTorch" in _python(*args, FORCE_COLOR="1", TTY_INTERACTIVE="1").stderr
    assert "loading" not in _python(*args).stderr
    assert "loading" not in _python(*args, "--quiet", FORCE_COLOR="1", TTY_INTERACTIVE="1").stderr


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
        (["train", "data.txt", "--out", "m", "--formt", "xc"], "--format"),
        (["train", "--epochs", "5", "data.txt", "--out", "m"], "it is a parameter of models: --set epochs=5"),
        (["train", "data.txt", "--out", "m", "--n-inducing=600"], "it is a parameter of models: --set n_inducing=600"),
        (["train", "data.txt", "--out", "m", "--kl-weight", "-0.5"], "--set kl_weight=-0.5"),
        (["train", "data.txt", "--out", "m", "--epoch", "5"], "--set epochs=5"),
        (["train", "data.txt", "--out", "m", "--n_trees"], "--set n_trees=VALUE"),
        (["train", "data.txt", "--out", "m", "--n-layers", "--quiet"], "--set n_layers=VALUE"),
        (["train", "data.txt", "--out", "m", "--verbose"], "use --quiet"),
        (["predict", "m", "data.txt", "--n-draws", "9"], "a parameter of models: extremegp train --set n_draws=9"),
        (["train", "data.txt", "--out", "m", "--task", "foo"], "Invalid value for '--task': 'foo' is not one of"),
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


@pytest.mark.parametrize("command", _COMMANDS)
def test_help_shows_every_text_as_it_is_written(run: Run, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 2000)
    shown = " ".join(run(command, "--help").stdout.split())
    function = next(known.callback for known in app.registered_commands if known.callback.__name__ == command)
    for name, hint in get_type_hints(function, include_extras=True).items():
        text = "" if name in ("context", "return") else get_args(hint)[-1].help
        assert " ".join(text.split()) in shown
    assert "<bool>" not in shown
    assert "BOOLEAN" not in shown


def test_help_names_the_extra_that_approximate_search_needs(run: Run) -> None:
    assert "extremegp[ann]" in "".join(run("predict", "--help").stdout.replace("│", "").split())


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


def test_public_names_are_there_at_first_use() -> None:
    code = "import extremegp, sys; print('torch' in sys.modules, set(extremegp.__all__) <= set(dir(extremegp)))"
    code += "; from extremegp import *; print('torch' in sys.modules, MultiLabelGPClassifier, datasets.load_debtags)"
    lines = _python("-c", code).stdout.splitlines()
    assert lines[0] == "False True"
    assert lines[1].startswith("True <class ")


@pytest.mark.parametrize("package", [extremegp, extremegp.data])
def test_packages_have_all_the_names_that_they_list(package: Any) -> None:
    assert all(hasattr(package, name) for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_every_command_is_tested_for_its_help() -> None:
    assert {command.callback.__name__ for command in app.registered_commands if command.callback} == set(_COMMANDS)
