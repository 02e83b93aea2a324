"""Small files and one trained model for the tests of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from extremegp.cli import app
from extremegp.data import write_jsonl, write_xc

N_FEATURES, N_LABELS = 8, 4


class Run:
    """`Run()("train", path, ...)`: a command in this process; a bug surfaces as itself."""

    def __call__(self, *args: object) -> Any:
        result = CliRunner().invoke(app, [str(arg) for arg in args])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def fails(self, *args: object, naming: str) -> str:
        """The one line on standard error of a command that must end with exit code 2."""
        result = self(*args)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("error: ")
        assert naming in result.stderr
        return str(result.stderr)


@pytest.fixture(scope="session")
def run() -> Run:
    return Run()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.txt, test.txt (XC), train.jsonl, test.jsonl and names.txt; label k is where feature k is large."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for name, n_rows in (("train", 60), ("test", 20)):
        y = (rng.random((n_rows, N_LABELS)) < 0.4).astype(int)
        x = np.round(rng.random((n_rows, N_FEATURES)), 3)
        x[:, :N_LABELS] += 2 * y
        write_xc(folder / f"{name}.txt", x, y)
        texts = [" ".join(f"word{k}" for k in np.flatnonzero(row)) + " filler" for row in y]
        write_jsonl(folder / f"{name}.jsonl", texts, [[f"tag{k}" for k in np.flatnonzero(row)] for row in y])
    (folder / "names.txt").write_text("red\ngreen, dark\nblue\nblack\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def model(files: Path, run: Run) -> Path:
    """A model of train.txt with label names; tests must not change it."""
    folder = files / "model"
    result = run(
        *("train", files / "train.txt", "--out", folder, "--set", "epochs=40", "--set", "n_inducing=20"),
        *("--labels-names", files / "names.txt", "--quiet"),
    )
    assert (result.exit_code, result.output) == (0, "")
    return folder


@pytest.fixture(scope="session")
def text_model(files: Path, run: Run) -> Path:
    """A model of train.jsonl."""
    folder = files / "text-model"
    result = run("train", files / "train.jsonl", "--out", folder, "--set", "epochs=40", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    return folder
