"""`extremegp guarantee`, and `predict --promise`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Run, blobs

import extremegp
from extremegp.data import read_xc
from extremegp.estimators.guarantees import Guarantee


def test_promises_are_those_of_python(files: Path, model: Path, run: Run, tmp_path: Path) -> None:
    out, test = tmp_path / "promise.json", files / "test.txt"
    options = ("--level", 0.6, "--promise", "recall", "--per", "band")
    result = run("guarantee", model, test, "--out", out, *options, "--json", tmp_path / "told.json")
    assert result.exit_code == 0
    classifier, data = extremegp.load(model), read_xc(test)
    expected = classifier.guarantee(data.X, data.Y, "recall", 0.6, per="band")
    found = Guarantee.load(out)
    assert found.cuts == expected.cuts
    told = json.loads((tmp_path / "told.json").read_text())
    assert [group["threshold"] for group in told["groups"]] == [cut.threshold for cut in expected.cuts]
    assert all(line in result.stderr + result.stdout for line in expected.told())
    run("predict", model, test, "--promise", out, "--out", tmp_path / "sets.jsonl", "--quiet")
    names = [str(name) for name in classifier.classes_]
    sets = classifier.decide(data.X, expected).labels
    for line, row in zip((tmp_path / "sets.jsonl").read_text().splitlines(), sets, strict=True):
        record = json.loads(line)
        own = row if isinstance(row, list) else [names[k] for k in np.flatnonzero(np.asarray(row.todense()).ravel())]
        assert sorted(record["labels"]) == sorted(own)
        assert len(record["probabilities"]) == len(record["labels"])


def test_classes_have_sets_too(class_files: Path, class_model: Path, run: Run, tmp_path: Path) -> None:
    x, codes = blobs("test")
    names = extremegp.load(class_model).classes_
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "y.txt").write_text("".join(f"{names[code]}\n" for code in codes))
    out = tmp_path / "promise.json"
    labels = ("--labels", tmp_path / "y.txt")
    assert run("guarantee", class_model, tmp_path / "x.npy", *labels, "--level", 0.8, "--out", out).exit_code == 0
    run("predict", class_model, tmp_path / "x.npy", "--promise", out, "--out", tmp_path / "sets.jsonl")
    expected = extremegp.load(class_model).decide(x, Guarantee.load(out)).labels
    for line, own in zip((tmp_path / "sets.jsonl").read_text().splitlines(), expected, strict=True):
        assert json.loads(line)["labels"] == own.tolist()
    run.fails(
        "guarantee", class_model, tmp_path / "x.npy", *labels, "--promise", "all", "--out", out, naming="--promise"
    )


def test_what_cannot_be_promised_is_one_line(
    files: Path, model: Path, class_model: Path, tagger: Path, run: Run, tmp_path: Path
) -> None:
    out, test = tmp_path / "promise.json", files / "test.txt"
    run.fails("guarantee", model, test, "--level", 1.5, "--out", out, naming="level")
    run.fails("guarantee", model, test, "--level", 1, "--out", out, naming="cannot be promised")
    assert not out.exists()
    run.fails("guarantee", tagger, test, "--out", out, naming="in Python")
    run.fails("predict", model, test, "--promise", out, "--out", tmp_path / "o.jsonl", naming="promise.json")
    run("guarantee", model, test, "--level", 0.5, "--out", out)
    both = ("--promise", out, "--out", tmp_path / "o.jsonl")
    run.fails("predict", model, test, *both, "--decide", "f1", naming="leave out one")
    run.fails("predict", model, test, *both, "--approximate", 0.9, naming="--promise")
    np.save(tmp_path / "x.npy", blobs("test")[0])
    run.fails("predict", class_model, tmp_path / "x.npy", *both, naming="promises recall")


@pytest.mark.parametrize("content", ["{}", "[]", "nonsense"])
def test_files_that_are_no_guarantee_are_named(
    files: Path, model: Path, run: Run, tmp_path: Path, content: str
) -> None:
    (tmp_path / "p.json").write_text(content)
    options = ("--promise", tmp_path / "p.json", "--out", tmp_path / "o.jsonl")
    run.fails("predict", model, files / "test.txt", *options, naming="p.json: is no guarantee")
