"""`extremegp report`."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run
from tests.report.pages import checked


def _evaluated(run: Run, *args: object) -> dict[str, float]:
    result = run("evaluate", *args, "--json", "-")
    assert result.exit_code == 0
    found: dict[str, float] = json.loads(result.stdout)["metrics"]
    return {name: value for name, value in found.items() if name != "seconds" and value is not None}


def _reported(run: Run, out: Path, *args: object) -> tuple[dict[str, Any], str]:
    result = run("report", *args, "--out", out, "--json", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), out.read_text(encoding="utf-8")


@pytest.mark.parametrize("options", [(), ("--threshold", "0.3", "--ks", "1,2", "--propensity", "amazon")])
def test_the_figures_of_many_labels_are_those_of_evaluate(
    files: Path, model: Path, tmp_path: Path, run: Run, options: tuple[str, ...]
) -> None:
    expected = _evaluated(run, model, files / "test.txt", *options)
    told, html = _reported(run, tmp_path / "r.html", model, files / "test.txt", *options)
    page = checked(html)
    assert {name: value for name, (value,) in page.figures["all-figures"].items()} == pytest.approx(expected)
    assert {name: value for name, value in told["metrics"].items() if value is not None} == pytest.approx(expected)
    assert (told["n_rows"], told["bytes"]) == (20, (tmp_path / "r.html").stat().st_size)
    first = page.figures["figures"]["P@1"]
    assert first == [pytest.approx(expected["P@1"])]
    assert told["intervals"]["P@1"][0] <= expected["P@1"] <= told["intervals"]["P@1"][1]
    # Names of labels, the source and the seed of training.
    assert "green, dark" in page.text
    assert "test.txt" in page.text
    assert "hash of its numbers" in page.text
    assert hashlib.sha256((files / "test.txt").read_bytes()).hexdigest() in page.text


def test_the_figures_of_classes_are_those_of_evaluate(
    class_files: Path, class_model: Path, tmp_path: Path, run: Run
) -> None:
    args = (class_model, class_files / "test.csv", "--label-column", "species")
    told, html = _reported(run, tmp_path / "r.html", *args)
    page = checked(html)
    assert {name: value for name, (value,) in page.figures["all-figures"].items()} == pytest.approx(
        _evaluated(run, *args)
    )
    assert told["n_rows"] == 24
    assert "There are no explanations: " in page.text


def test_the_figures_of_sequences_are_those_of_evaluate(
    sequence_files: Path, tagger: Path, tmp_path: Path, run: Run
) -> None:
    args = (tagger, sequence_files / "test.txt", "--decoding", "viterbi")
    told, html = _reported(run, tmp_path / "r.html", *args)
    page = checked(html)
    assert {name: value for name, (value,) in page.figures["all-figures"].items()} == pytest.approx(
        _evaluated(run, *args), rel=1e-6
    )
    assert told["n_rows"] == 15
    assert page.figures["spans"].keys() == {"NP"}


def test_rows_have_their_ids_and_can_be_left_out(files: Path, text_model: Path, tmp_path: Path, run: Run) -> None:
    data = tmp_path / "new.jsonl"
    rows = [{"text": f"word{i % 4} secret{i}", "labels": [f"tag{i % 4}"], "key": f"id-{i}"} for i in range(12)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    args = (text_model, data, "--text-column", "text", "--labels-column", "labels", "--id-column", "key")
    _, html = _reported(run, tmp_path / "r.html", *args, "--title", "<i>Mine</i>")
    page = checked(html)
    assert "id-" in page.text
    assert "secret" in page.text
    assert "<i>Mine</i>" in page.text
    _, html = _reported(run, tmp_path / "r.html", *args, "--no-rows")
    assert "id-" not in checked(html).text
    assert "secret" not in html


def test_bad_input_is_one_line_and_leaves_no_file(
    files: Path, model: Path, sequence_files: Path, tagger: Path, tmp_path: Path, run: Run
) -> None:
    out, data = tmp_path / "r.html", files / "test.txt"
    run.fails("report", model, data, "--out", tmp_path / "r.pdf", naming="--out must end in .html")
    run.fails("report", model, data, "--out", tmp_path / "none" / "r.html", naming="there is no folder")
    run.fails("report", model, tmp_path / "none.txt", "--out", out, naming="no such file")
    run.fails("report", tmp_path / "none", data, "--out", out, naming="no such model folder")
    run.fails("report", model, data, "--out", out, "--ks", "0", naming="--ks")
    run.fails("report", model, data, "--out", out, "--threshold", "2", naming="--threshold")
    run.fails("report", model, data, "--out", out, "--propensity", "odd", naming="--propensity")
    run.fails("report", model, data, "--out", out, "--decoding", "viterbi", naming="--decoding")
    run.fails("report", tagger, sequence_files / "test.txt", "--out", out, "--ks", "1", naming="not for sequences")
    run.fails("report", tagger, sequence_files / "bare.txt", "--out", out, naming="columns")
    run.fails("report", model, files / "test.jsonl", "--out", out, naming="test.jsonl")
    assert not [*tmp_path.iterdir()]


def test_a_full_disk_leaves_what_was_there(
    files: Path, model: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r.html"
    out.write_text("before")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        run.fails("report", model, files / "test.txt", "--out", out, naming="No space left on device")
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    assert out.read_text() == "before"
