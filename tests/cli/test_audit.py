"""`extremegp audit`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from tests.cli.conftest import Run
from tests.label_tree.small import small_classifier


def test_issues_are_written(tmp_path: Path, run: Run) -> None:
    rows = [
        (f"{a} {b} number{i}", [a, b]) for i in range(12) for a in ("red", "green", "blue") for b in ("car", "house")
    ]
    rows[4] = rows[4][0], ["blue"]
    data, model = tmp_path / "train.jsonl", tmp_path / "model"
    data.write_text("".join(json.dumps({"text": text, "labels": labels}) + "\n" for text, labels in rows))
    small_classifier(features="text").fit(*map(list, zip(*rows, strict=True))).save(model)
    table, lines, told = tmp_path / "issues.csv", tmp_path / "issues.jsonl", tmp_path / "told.json"
    result = run("audit", data, "--model", model, "--out", table, "--n", 4, "--json", told)
    assert result.exit_code == 0, result.output
    with table.open(newline="") as file:
        issues = list(csv.DictReader(file))
    assert json.loads(told.read_text())["n_issues"] == len(issues) == 4
    assert ("4", rows[4][0], "car", "missing") in {(i["row"], i["text"], i["label"], i["kind"]) for i in issues}
    result = run("audit", data, "--model", model, "--out", lines, "--kind", "wrong", "--least", 0.001, "--quiet")
    assert result.exit_code == 0, result.output
    assert all(json.loads(line)["kind"] == "wrong" for line in lines.read_text().splitlines())
    run.fails("audit", data, "--model", model, "--out", tmp_path / "issues.odd", naming=".csv")
    run.fails("audit", data, "--model", model, "--out", table, "--kind", "odd", naming="kinds")
    run.fails("audit", tmp_path / "none.jsonl", "--model", model, "--out", table, naming="none.jsonl")
