"""`extremegp select`: rows to annotate in every format."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run

import extremegp

N = 6


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    path = tmp_path / "pool.jsonl"
    texts = [f"word{i % 4} word{(i + 1) % 3} filler" for i in range(15)]
    path.write_text("".join(json.dumps({"text": text, "key": f"doc{i}"}) + "\n" for i, text in enumerate(texts)))
    return path


def texts_of(pool: Path) -> list[str]:
    return [json.loads(line)["text"] for line in pool.read_text().splitlines()]


def test_json_lines_have_what_the_model_suggests(text_model: Path, pool: Path, tmp_path: Path, run: Run) -> None:
    out, told = tmp_path / "next.jsonl", tmp_path / "told.json"
    result = run("select", text_model, pool, "--n", N, "--out", out, "--top-k", 2, "--json", told)
    assert result.exit_code == 0
    assert "6 of 15 rows, by posterior" in result.output
    rows, texts, model = (
        [json.loads(line) for line in out.read_text().splitlines()],
        texts_of(pool),
        extremegp.load(text_model),
    )
    chosen = model.select(texts, N)
    assert [row["row"] for row in rows] == chosen.rows.tolist() == json.loads(told.read_text())["rows"]
    best = model.predict_topk([texts[row] for row in chosen.rows], 2)
    for i, row in enumerate(rows):
        assert row.keys() == {"row", "score", "labels", "probabilities", "text"}
        assert row["text"] == texts[row["row"]]
        assert row["score"] == pytest.approx(chosen.scores[i], rel=1e-4)
        assert row["labels"] == model.classes_[best.labels[i]].tolist()
        assert row["probabilities"] == pytest.approx(best.scores[i].tolist(), rel=1e-3)


def test_tables_have_lists_in_json_and_ids(text_model: Path, pool: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "next.csv.gz"
    assert (
        run("select", text_model, pool, "--n", N, "--out", out, "--id-column", "key", "--by", "bald", "-q").output == ""
    )
    with gzip.open(out, "rt", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [*rows[0]] == ["row", "id", "score", "labels", "probabilities", "text"]
    assert [row["id"] for row in rows] == [f"doc{row['row']}" for row in rows]
    assert all(len(json.loads(row["labels"])) == len(json.loads(row["probabilities"])) > 0 for row in rows)
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)


def test_label_studio_gets_tasks_with_predictions(text_model: Path, pool: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "tasks.json"
    assert run("select", text_model, pool, "--n", N, "--out", out, "--by", "least_confidence").exit_code == 0
    tasks, known = json.loads(out.read_text()), set(extremegp.load(text_model).classes_)
    assert len(tasks) == N
    for task in tasks:
        # What the import of Label Studio asks for: data, and predictions with results that name the tags.
        assert task.keys() == {"data", "predictions"}
        assert task["data"]["text"] == texts_of(pool)[task["data"]["row"]]
        (prediction,) = task["predictions"]
        assert prediction["model_version"].startswith("extremegp ")
        assert 0 <= prediction["score"] <= 1
        (result,) = prediction["result"]
        assert (result["from_name"], result["to_name"], result["type"]) == ("labels", "text", "choices")
        assert result["value"].keys() == {"choices"}
        assert set(result["value"]["choices"]) <= known
        assert result["value"]["choices"]


def test_vectors_classes_and_standard_output(
    class_model: Path, class_files: Path, model: Path, files: Path, run: Run
) -> None:
    result = run("select", class_model, class_files / "test.csv", "-n", 4, "--by", "least_confidence", "--seed", 3)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len({row["row"] for row in rows}) == 4
    assert all("text" not in row and len(row["labels"]) == 3 for row in rows)
    assert run("select", model, files / "test.txt", "-n", 3, "--to", "csv").stdout.startswith("row,score,labels,")


def test_what_cannot_work_is_one_line(
    text_model: Path, pool: Path, model: Path, files: Path, tagger: Path, sequence_files: Path, tmp_path: Path, run: Run
) -> None:
    run.fails("select", text_model, pool, "--n", 16, naming="the pool has 15")
    run.fails("select", text_model, pool, "--n", 2, "--out", tmp_path / "next.xml", naming="--out must end in .csv")
    run.fails("select", text_model, pool, "--n", 2, "--json", "-", naming="--json -")
    run.fails("select", text_model, tmp_path / "none.jsonl", "--n", 2, naming="no such file")
    run.fails("select", text_model, files / "test.txt", "--n", 2, naming="texts")
    run.fails("select", model, files / "test.txt", "-n", 2, "--to", "label-studio", naming="show texts")
    run.fails("select", tagger, sequence_files / "bare.txt", "-n", 2, naming="is not chosen")
    assert not (tmp_path / "next.xml").exists()
