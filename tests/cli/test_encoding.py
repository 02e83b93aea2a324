"""Output on terminals whose encoding lacks a character."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from extremegp import MultiLabelGPClassifier
from extremegp.cli import main


@pytest.fixture(scope="module")
def fruit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fruit") / "model"
    classifier = MultiLabelGPClassifier(features="text", n_inducing=4, epochs=2, random_state=0, verbose=False)
    classifier.fit(["red apple", "green car"] * 6, [["水果"], ["Müll"]] * 6).save(folder)
    return folder


def printed(monkeypatch: pytest.MonkeyPatch, encoding: str, *args: object) -> tuple[str, str]:
    """What a command writes to standard output and standard error of an encoding."""
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding=encoding) for name in ("stdout", "stderr")}
    monkeypatch.setattr(sys, "argv", ["extremegp", *map(str, args)])
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    with pytest.raises(SystemExit) as ended:
        main()
    for stream in streams.values():
        stream.flush()
    out, err = (stream.buffer.getvalue().decode(encoding) for stream in streams.values())  # type: ignore[attr-defined]
    assert ended.value.code == (2 if err else 0)
    return out, err


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_a_character_that_the_terminal_lacks_is_replaced(monkeypatch: pytest.MonkeyPatch, fruit: Path, encoding: str):
    out, err = printed(monkeypatch, encoding, "info", fruit)
    assert "??" in out
    assert ("Müll" in out) == (encoding == "cp1252")
    assert err == ""


def test_errors_are_shown_there_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    out, err = printed(monkeypatch, "cp1252", "info", tmp_path / "模型")
    assert out == ""
    assert "??: no such model folder" in err


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8"])
def test_json_keeps_every_character(monkeypatch: pytest.MonkeyPatch, fruit: Path, encoding: str):
    out, _ = printed(monkeypatch, encoding, "info", fruit, "--json", "-")
    assert {row["label"] for row in json.loads(out)["frequent_labels"]} == {"水果", "Müll"}
    assert ("水果" in out) == (encoding == "utf-8")
