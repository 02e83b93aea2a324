"""What is published with the package: its README, its addresses, and the versions that it promises to work with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
RUN_TIME_EXTRAS = ("ann", "plot", "sequences", "tables", "zst")


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)]*)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def published(repository: str) -> str:
    pytest.importorskip("hatchling")
    from hatch_build import published

    return published(README, repository)


def test_links_of_the_readme_lead_to_files() -> None:
    paths = [link for link in links(README) if not link.startswith("http")]
    assert len(paths) > 10
    for path in paths:
        assert (ROOT / path).is_file(), path


def test_links_of_the_published_readme_lead_to_the_repository() -> None:
    found = links(published("https://code.example/owner/name"))
    assert len(found) == len(links(README))
    for link in found:
        place = re.fullmatch(r"https://code\.example/owner/name/(blob|raw)/main/(.+)", link)
        assert place, link
        assert (ROOT / place[2]).is_file()
        assert (place[1] == "raw") == link.endswith(".png")


def test_without_a_repository_the_published_readme_has_its_words_and_no_dead_links() -> None:
    text = published("")
    assert links(text) == []
    assert "for CPU and GPU.\n" in text
    assert "([one class out of many]" in README
    assert "(one class out of many)" in text
    blocks = re.findall(r"```.*?```", README, re.DOTALL)
    assert re.findall(r"```.*?```", text, re.DOTALL) == blocks


def test_the_address_of_the_repository_gives_the_project_its_links() -> None:
    pytest.importorskip("hatchling")
    from hatch_build import PublishedMetadata

    metadata: dict[str, Any] = {}
    PublishedMetadata(str(ROOT), {"repository": "https://code.example/owner/name/"}).update(metadata)
    assert metadata["urls"] == {
        "Documentation": "https://code.example/owner/name/blob/main/docs/index.md",
        "Source": "https://code.example/owner/name",
        "Changelog": "https://code.example/owner/name/blob/main/CHANGELOG.md",
    }


def test_the_package_can_be_described() -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "metadata"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    described = json.loads(done.stdout)
    assert described["readme"]["content-type"] == "text/markdown"
    assert described["readme"]["text"].startswith("# extremegp\n")
    assert all(url.startswith("https://") for url in described.get("urls", {}).values())


def test_the_pythons_of_the_classifiers_are_those_that_continuous_integration_runs() -> None:
    promised = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d", line)}
    assert PROJECT["requires-python"].removeprefix(">=") in promised
    assert promised == set(re.findall(r"interpreter (3\.\d+)", CI))


def test_the_oldest_versions_tested_are_the_oldest_allowed() -> None:
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    extras = [text for extra in RUN_TIME_EXTRAS for text in PROJECT["optional-dependencies"][extra]]
    for requirement in map(Requirement, [*PROJECT["dependencies"], *extras]):
        (bound,) = requirement.specifier
        assert bound.operator == ">="
        oldest = pins[requirement.name.lower()]
        assert requirement.specifier.contains(oldest)
        assert re.fullmatch(rf"{re.escape(bound.version)}(\.0)*", oldest), requirement


def test_the_readme_runs_the_tests_as_continuous_integration_does() -> None:
    (command,) = re.findall(r'^phase "tests" (.*)$', CI, re.MULTILINE)
    assert f"&& {command}\n" in README
