"""`extremegp predict --explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Run

import extremegp
from extremegp.cli import explaining
from extremegp.data import read_dataset, write_jsonl
from extremegp.estimators import Explanation, Share


@pytest.fixture(scope="module")
def trees(files: Path, run: Run) -> Path:
    folder = files / "explained-trees"
    small = ("--set", "leaf_size=2", "--set", "n_trees=2", "--set", "n_inducing=8")
    result = run("train", files / "train.jsonl", "--out", folder, "--model", "tree", *small, "--quiet")
    assert result.exit_code == 0
    return folder


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _predicted(run: Run, model: Path, data: Path, out: Path, *options: object) -> Path:
    result = run("predict", model, data, "--out", out, "--explain", "--quiet", *options)
    assert (result.exit_code, result.output) == (0, "")
    return out


def _check(record: dict[str, Any], expected: list[Explanation]) -> None:
    """A line says what `explain` says of its labels, in their order."""
    assert [each["label"] for each in record["explanations"]] == record["labels"]
    by_label = {str(each.label): each for each in expected}
    for each in record["explanations"]:
        why = by_label[each["label"]]
        for name in ("probability", "frequency", "regression"):
            assert each[name] == pytest.approx(getattr(why, name), rel=1e-4)
        for name in ("documents", "features"):
            assert sum(share["share"] for share in each[name]) == pytest.approx(
                why.regression - why.frequency, abs=1e-4
            )
            assert each[name][-1]["name"] == "others"
        assert each["parts"].keys() == why.parts.keys()


@pytest.mark.parametrize("options", [(), ("--by", "utility"), ("--decide", "f1"), ("--decide", "cost")])
def test_json_lines_have_the_explanations_of_the_labels(
    files: Path, trees: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr(explaining, "ROWS", 3)
    out = _predicted(run, trees, files / "test.jsonl", tmp_path / "o.jsonl", "--top-k", 2, *options)
    texts = read_dataset(files / "test.jsonl").texts  # type: ignore[union-attr]
    classifier: Any = extremegp.load(trees)
    records = _records(out)
    assert len(records) == len(texts)
    assert any(record["labels"] for record in records)
    for record, expected in zip(records, classifier.explain(texts, classifier.classes_.tolist()), strict=True):
        _check(record, expected)


def test_classes_are_explained_too(class_files: Path, tmp_path: Path, run: Run) -> None:
    model, data = tmp_path / "model", class_files / "test.csv"
    args = ("train", class_files / "train.csv", "--label-column", "species", "--out", model, "--set", "n_inducing=20")
    assert run(*args, "--quiet").exit_code == 0
    x = np.load(class_files / "test.npy")
    records = _records(_predicted(run, model, data, tmp_path / "o.jsonl", "--top-k", 1))
    for record, expected in zip(records, extremegp.load(model).explain(x, k=3), strict=True):  # type: ignore[attr-defined]
        _check(record, expected)
        assert set(record["explanations"][0]["parts"]) == {"prior", "regression"}


def test_text_has_a_table_for_every_label(files: Path, trees: Path, tmp_path: Path, run: Run) -> None:
    out = _predicted(run, trees, files / "test.jsonl", tmp_path / "o.txt", "--top-k", 2)
    blocks = out.read_text(encoding="utf-8").strip().split("\n\n")
    records = _records(_predicted(run, trees, files / "test.jsonl", tmp_path / "o.jsonl", "--top-k", 2))
    assert len(blocks) == len(records)
    for number, (block, record) in enumerate(zip(blocks, records, strict=True)):
        first, *lines = block.splitlines()
        assert first == f"row {number}"
        titles = [line for line in lines if not line.startswith("    ")]
        assert [title.split(":")[0].strip() for title in titles] == record["labels"]
        for title, p in zip(titles, record["probabilities"], strict=True):
            assert f"probability {p:.4f}" in title
        assert sum(line.split() == ["document", "share", "feature", "share"] for line in lines) == len(titles)
        for each in record["explanations"]:
            assert any(each["documents"][0]["name"] in line for line in lines)


def test_hostile_names_stay_on_their_line() -> None:
    shares = [Share("a\nb\x1b[31m" + 50 * "c", 0.25), Share("others", -1e-9)]
    text = explaining.as_text(0, "id\r\n", [Explanation("l", 0.5, 0.1, 0.35, shares, shares, {})], ["evil\ntitle"])
    lines = text.splitlines()
    assert lines[0] == "row 0: id"
    assert lines[1].startswith("  evil title: probability 0.5000")
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 120
    assert lines[4].split() == ["others", "+0.0000", "others", "+0.0000"]


def test_ids_and_titles_come_along(files: Path, trees: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "names.tsv").write_text("".join(f"<tag{k}>\tcalled {k}\n" for k in range(4)), encoding="utf-8")
    (tmp_path / "new.jsonl").write_text('{"text": "word1 word2", "key": "first"}\n', encoding="utf-8")
    options = ("--text-column", "text", "--id-column", "key", "--vocabulary", tmp_path / "names.tsv", "--top-k", 1)
    (record,) = _records(_predicted(run, trees, tmp_path / "new.jsonl", tmp_path / "o.jsonl", *options))
    assert record["id"] == "first"
    assert [each["name"] for each in record["explanations"]] == record["names"]
    text = _predicted(run, trees, tmp_path / "new.jsonl", tmp_path / "o.txt", *options).read_text(encoding="utf-8")
    assert text.startswith(f"row 0: first\n  {record['names'][0]}: ")


def test_a_row_without_labels_has_nothing_to_explain(files: Path, trees: Path, tmp_path: Path, run: Run) -> None:
    write_jsonl(tmp_path / "new.jsonl", ["filler"], [[]])
    options = ("--decide", "threshold", "--threshold", "1")
    out = _predicted(run, trees, tmp_path / "new.jsonl", tmp_path / "o.txt", *options)
    assert out.read_text() == "row 0\n  no labels\n\n"
    (record,) = _records(_predicted(run, trees, tmp_path / "new.jsonl", tmp_path / "o.jsonl", *options))
    assert (record["labels"], record["explanations"]) == ([], [])


def test_what_cannot_be_explained_is_refused_before_the_work(
    files: Path,
    model: Path,
    class_files: Path,
    class_model: Path,
    trees: Path,
    sequence_files: Path,
    tagger: Path,
    tmp_path: Path,
    run: Run,
) -> None:
    data = files / "test.jsonl"
    run.fails("predict", trees, data, "--explain", "--out", tmp_path / "o.csv", naming=".jsonl, or in .txt")
    run.fails("predict", trees, data, "--explain", "--out", tmp_path / "o.npz", naming=".jsonl, or in .txt")
    out = tmp_path / "o.jsonl"
    # Sparse Gaussian processes keep no rows.
    run.fails("predict", class_model, class_files / "test.csv", "--explain", "--out", out, naming="trained by steps")
    given = ("--given", files / "test.txt")
    run.fails("predict", model, files / "test.txt", "--explain", "--out", out, *given, naming="leave out it or --given")
    run.fails("predict", tagger, sequence_files / "test.txt", "--explain", naming="not for sequences")
    assert not [*tmp_path.iterdir()]
