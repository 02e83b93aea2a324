"""What the README and the documentation show works: Python blocks run, and commands and their options exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

from extremegp.cli import app
from extremegp.cli.settings import parse_settings
from extremegp.cli.tasks import TASKS, Task

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SEQUENCE_OPTIONS = {"--template", "--separator", "--encoding"}
CLASS_OPTIONS = {"--labels", "--label-column", "--x-key", "--y-key", "--first-label"}
SHELL = ("bash", "console", "sh", "shell")


def blocks(page: Path, *languages: str) -> Iterator[tuple[int, str]]:
    """Fenced blocks of some languages, with the 0-based line at which they start."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(rf"^```(?:{'|'.join(languages)})\b[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield text[: match.start(1)].count("\n"), match[1]


def script(page: Path) -> str:
    """The page's Python blocks as one program; every line keeps its number, so that errors name the place."""
    lines: list[str] = []
    for start, block in blocks(page, "python"):
        lines += [""] * (start - len(lines)) + block.splitlines()
    return "\n".join(lines) + "\n"


def commands(page: Path) -> Iterator[list[str]]:
    """Calls of `extremegp` in the page's shell blocks, as words."""
    for _, block in blocks(page, *SHELL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words[:1] == ["extremegp"]:
                yield words[1:]


def task_of(words: list[str], options: set[str]) -> Task[Any]:
    """What a command trains for."""
    if "sequence" in words or SEQUENCE_OPTIONS & options:
        return TASKS["sequence"]
    return TASKS["multiclass" if "multiclass" in words or CLASS_OPTIONS & options else "multilabel"]


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


PYTHON_PAGES = [page for page in PAGES if any(blocks(page, "python"))]
SHELL_PAGES = [page for page in PAGES if any(commands(page))]


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=page_id)
def test_python_blocks_compile(page: Path) -> None:
    compile(script(page), str(page), "exec")


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON_PAGES, ids=page_id)
def test_python_blocks_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    program = tmp_path / page.with_suffix(".py").name
    program.write_text(script(page), encoding="utf-8")
    environment = os.environ | {"MPLCONFIGDIR": str(tmp_path / "matplotlib")}
    done = subprocess.run(
        [sys.executable, program.name], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", SHELL_PAGES, ids=page_id)
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in commands(page):
        if words[0].startswith("-"):
            assert words in (["--help"], ["-h"], ["--version"])
            continue
        assert words[0] in COMMANDS, words
        known = {option for parameter in COMMANDS[words[0]].params for option in parameter.opts} | {"--help", "-h"}
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        assert set(options) <= known, words
        for option, value in pairwise(words):
            task = task_of(words, set(options))
            if option == "--set":
                parse_settings([value], task.estimators["factor"])
            if option == "--preset":
                assert value in task.presets


def test_pages_have_blocks_to_check() -> None:
    assert len(PYTHON_PAGES) >= 6
    assert sum(1 for page in SHELL_PAGES for _ in commands(page)) >= 10


def check_docs(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """The check of continuous integration on a page of its own."""
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "index.md").write_text(text, encoding="utf-8")
    settings = {"INHERIT": str(ROOT / "mkdocs.yml"), "nav": [{"Home": "index.md"}], "plugins": ["search"], "hooks": []}
    (folder / "mkdocs.yml").write_text(json.dumps(settings | {"extra_css": []}), encoding="utf-8")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (command,) = re.findall(r'^phase "docs" (.*)$', ci, re.MULTILINE)
    words = [sys.executable, "-m", *shlex.split(command.replace("$scratch", str(folder)))]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_check_of_the_docs_passes_a_page_without_fault(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    done = check_docs(tmp_path, "# Home\n\n[here](#home) and \\(x^2\\)\n")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "link", ["[page](nowhere.md)", "[part](#nowhere)", "![picture](none.png)", "[page](/index.md)"]
)
def test_a_broken_link_fails_the_check_of_the_docs(link: str, tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    done = check_docs(tmp_path, f"# Home\n\n{link}\n")
    assert done.returncode != 0
    assert "WARNING" in done.stderr


def test_the_first_page_claims_what_the_readme_does() -> None:
    index, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/index.md", "README.md"))
    for part in ("claim", "results"):
        assert f'--8<-- "README.md:{part}"' in index
        assert readme.count(f"--8<-- [start:{part}]") == readme.count(f"--8<-- [end:{part}]") == 1
