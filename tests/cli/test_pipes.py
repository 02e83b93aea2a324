"""Standard input and output in place of files."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "extremegp"]


def piped(content: bytes, *args: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *map(str, args)], input=content, capture_output=True, check=False)


def test_data_come_from_a_pipe_and_labels_go_into_one(files: Path, text_model: Path, tmp_path: Path) -> None:
    content = (files / "test.jsonl").read_bytes()
    whole = piped(b"", "predict", text_model, files / "test.jsonl", "--out", tmp_path / "out.jsonl", "-q")
    assert whole.returncode == 0
    result = piped(content, "predict", text_model, "-", "--out", "-")
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout == (tmp_path / "out.jsonl").read_bytes()
    assert piped(gzip.compress(content), "predict", text_model, "-", "--out", "-").stdout == result.stdout
    table = piped(content, "predict", text_model, "-", "--out", "-", "--to", "tsv", "--top-k", 1)
    assert table.stdout.splitlines()[0] == b"row\trank\tlabel\tprobability"
    assert len(table.stdout.splitlines()) == 21
    measured = piped(content, "evaluate", text_model, "-", "--json", "-")
    assert json.loads(measured.stdout)["n_rows"] == 20
    converted = piped(content, "convert", "-", tmp_path / "data", "-q")
    assert (converted.returncode, converted.stderr) == (0, b"")
    assert (tmp_path / "data" / "dataset.json").exists()


def test_a_fault_in_a_pipe_is_named_after_it(text_model: Path) -> None:
    result = piped(b'{"text": "a"}\n{"text": 3}\n', "predict", text_model, "-", "--out", "-")
    assert result.returncode == 2
    assert result.stderr == b'error: standard input:2: "text" must be a string, not a number\n'
    result = piped(b"", "predict", text_model, "-", "--out", "-")
    assert (result.returncode, result.stderr) == (2, b"error: standard input: is empty\n")
    columns = ("--text-column", "title", "--labels-column", "labels")
    result = piped(b"text,labels\na,b\n", "evaluate", text_model, "-", "--format", "csv", *columns)
    assert (result.returncode, result.stderr.startswith(b"error: standard input: has no column 'title'")) == (2, True)


def test_texts_without_a_known_word_are_counted(text_model: Path) -> None:
    result = piped(b'{"text": "word1"}\n{"text": "never seen"}\n', "predict", text_model, "-", "--out", "-")
    assert result.returncode == 0
    assert result.stderr.startswith(b"warning: 1 of 2 texts have no word that is known from training")


def test_a_folder_cannot_be_standard_output(files: Path) -> None:
    result = piped(b"", "convert", files / "test.jsonl", "-")
    assert (result.returncode, result.stderr) == (2, b"error: a data set is a folder: name one for it, not '-'\n")


def test_a_pipe_that_closes_early_is_no_fault(files: Path, text_model: Path, tmp_path: Path) -> None:
    many = tmp_path / "many.jsonl"
    many.write_bytes(b'{"text": "word1 filler"}\n' * 20_000)
    command = [*COMMAND, "predict", str(text_model), str(many), "--out", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"labels"')
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_terminal_is_no_data(text_model: Path, command: str) -> None:
    import pty

    main, terminal = pty.openpty()
    out = ["--out", "-"] if command == "predict" else []
    args = [*COMMAND, command, str(text_model), "-", *out]
    result = subprocess.run(args, stdin=terminal, capture_output=True, check=False)
    assert result.returncode == 2
    assert b"that is a terminal: pipe data in, or name a file" in result.stderr
    assert main > 0
