"""`extremegp predict`."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from tests.cli.conftest import N_FEATURES, N_LABELS, Run

import extremegp
from extremegp.data import read_xc

_NAMES = ["red", "green, dark", "blue", "black"]


@pytest.fixture(scope="module")
def expected(files: Path, model: Path) -> list[list[tuple[int, float]]]:
    """The two labels of every test row with the greatest mean utility, and their probabilities."""
    x = read_xc(files / "test.txt").X
    classifier = extremegp.load(model)
    best = np.argsort(-classifier.decision_function(x), axis=1, kind="stable")[:, :2]
    probabilities = classifier.predict_proba(x)
    return [[(int(k), float(probabilities[i, k])) for k in row] for i, row in enumerate(best)]


def _predict(run: Run, model: Path, data: Path, out: Path, *options: object) -> Path:
    result = run("predict", model, data, "--out", out, "--top-k", 2, "--quiet", *options)
    assert (result.exit_code, result.output) == (0, "")
    return out


def test_jsonl_has_an_object_per_row(
    files: Path, model: Path, tmp_path: Path, run: Run, expected: list[list[tuple[int, float]]]
) -> None:
    lines = _predict(run, model, files / "test.txt", tmp_path / "o.jsonl").read_text().splitlines()
    assert len(lines) == len(expected)
    for line, row in zip(lines, expected, strict=True):
        record = json.loads(line)
        assert record["labels"] == [_NAMES[k] for k, _ in row]
        assert record["probabilities"] == pytest.approx([p for _, p in row], rel=1e-5)


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_tables_have_a_line_per_label(
    files: Path,
    model: Path,
    tmp_path: Path,
    run: Run,
    expected: list[list[tuple[int, float]]],
    suffix: str,
    delimiter: str,
) -> None:
    with _predict(run, model, files / "test.txt", tmp_path / f"o{suffix}").open(newline="") as stream:
        header, *lines = csv.reader(stream, delimiter=delimiter)
    assert header == ["row", "rank", "label", "probability"]
    flat = [(i, rank, k, p) for i, row in enumerate(expected) for rank, (k, p) in enumerate(row, 1)]
    assert [(int(i), int(rank), label) for i, rank, label, _ in lines] == [(i, r, _NAMES[k]) for i, r, k, _ in flat]
    assert [float(line[3]) for line in lines] == pytest.approx([p for *_, p in flat], rel=1e-5)


def test_text_has_scores_by_label_number(
    files: Path, model: Path, tmp_path: Path, run: Run, expected: list[list[tuple[int, float]]]
) -> None:
    lines = _predict(run, model, files / "test.txt", tmp_path / "o.txt").read_text().splitlines()
    pairs = [[pair.split(":") for pair in line.split(" ")] for line in lines]
    assert [[int(k) for k, _ in row] for row in pairs] == [[k for k, _ in row] for row in expected]
    assert [float(p) for row in pairs for _, p in row] == pytest.approx(
        [p for row in expected for _, p in row], rel=1e-5
    )


def test_npz_is_a_sparse_matrix_of_the_probabilities(
    files: Path, model: Path, tmp_path: Path, run: Run, expected: list[list[tuple[int, float]]]
) -> None:
    matrix = scipy.sparse.load_npz(_predict(run, model, files / "test.txt", tmp_path / "o.npz"))
    dense = np.zeros((len(expected), N_LABELS))
    for i, row in enumerate(expected):
        for k, p in row:
            dense[i, k] = p
    assert matrix.nnz == 2 * len(expected)
    np.testing.assert_allclose(matrix.toarray(), dense, rtol=1e-6)


def test_compression_follows_the_suffix(files: Path, model: Path, tmp_path: Path, run: Run) -> None:
    plain = _predict(run, model, files / "test.txt", tmp_path / "o.jsonl").read_bytes()
    packed = _predict(run, model, files / "test.txt", tmp_path / "o.jsonl.gz").read_bytes()
    assert gzip.decompress(packed) == plain


def test_ranking_by_probability_gives_descending_probabilities(
    files: Path, model: Path, tmp_path: Path, run: Run
) -> None:
    out = _predict(run, model, files / "test.txt", tmp_path / "o.jsonl", "--by", "probability")
    probabilities = [json.loads(line)["probabilities"] for line in out.read_text().splitlines()]
    assert all(first >= second for first, second in probabilities)


def test_texts_without_labels_are_accepted(text_model: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "new.jsonl").write_text('{"text": "word0 filler"}\n{"text": "never seen"}\n')
    lines = _predict(run, text_model, tmp_path / "new.jsonl", tmp_path / "o.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["labels"][0] == "tag0"
    assert len(lines) == 2


def test_svmlight_may_lack_the_last_features(model: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "new.svm").write_text("0 0:1.5 2:0.5\n1 0:0.1 1:2\n")
    lines = _predict(run, model, tmp_path / "new.svm", tmp_path / "o.jsonl").read_text().splitlines()
    assert len(lines) == 2


def test_more_labels_than_there_are_gives_all(files: Path, model: Path, tmp_path: Path, run: Run) -> None:
    out = _predict(run, model, files / "test.txt", tmp_path / "o.jsonl", "--top-k", 99)
    assert sorted(json.loads(out.read_text().splitlines()[0])["labels"]) == sorted(_NAMES)


def test_the_json_counts_what_was_written(files: Path, model: Path, tmp_path: Path, run: Run) -> None:
    result = run("predict", model, files / "test.txt", "--out", tmp_path / "o.txt", "--json", "-")
    summary = json.loads(result.stdout)
    assert (summary["n_rows"], summary["n_labels"], summary["top_k"]) == (20, N_LABELS, 5)
    assert summary["seconds"] > 0


def test_other_features_than_the_model_s_are_refused(model: Path, tmp_path: Path, run: Run) -> None:
    for n_features in (N_FEATURES - 1, N_FEATURES + 1):
        (tmp_path / "other.txt").write_text(f"1 {n_features} 4\n0 0:1\n")
        line = run.fails("predict", model, tmp_path / "other.txt", "--out", tmp_path / "o.txt", naming="other.txt")
        assert f"{n_features} features, but the model has {N_FEATURES}" in line


@pytest.mark.parametrize(
    ("data", "out", "naming"),
    [
        ("missing.txt", "o.jsonl", "missing.txt"),
        ("test.jsonl", "o.jsonl", "test.jsonl"),
        ("test.txt", "o.pdf", "--out"),
        ("test.txt", "o.npz.gz", "--out"),
        ("test.txt", "no-folder/o.jsonl", "no-folder"),
        ("test.txt", "", "is a directory"),
    ],
)
def test_bad_files_are_named(
    files: Path, model: Path, tmp_path: Path, run: Run, data: str, out: str, naming: str
) -> None:
    run.fails("predict", model, files / data, "--out", tmp_path / out, naming=naming)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_model_is_named(files: Path, tmp_path: Path, run: Run) -> None:
    run.fails("predict", tmp_path / "none", files / "test.txt", "--out", tmp_path / "o.txt", naming="none")
