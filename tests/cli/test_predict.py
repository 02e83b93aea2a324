"""`extremegp predict`."""

from __future__ import annotations

import csv
import gzip
import inspect
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from tests.cli.conftest import CLASSES, N_FEATURES, N_LABELS, Run

import extremegp
from extremegp.data import convert, read_xc, svmlight, text, xc
from extremegp.data.features import Features, TextFeatures, UnitFeatures
from extremegp.engine import matrices
from extremegp.progress import ProgressBar
from extremegp.storage.streams import text_blocks

_NAMES = ["red", "green, dark", "blue", "black"]


@pytest.fixture(scope="module")
def expected(files: Path, model: Path) -> list[list[tuple[int, float]]]:
    """The two most probable labels of every test row, and their probabilities."""
    x = read_xc(files / "test.txt").X
    classifier = extremegp.load(model)
    probabilities = classifier.predict_proba(x)
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :2]
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


def test_sets_of_labels_are_those_of_python(files: Path, model: Path, tmp_path: Path, run: Run) -> None:
    out, classifier = tmp_path / "sets.jsonl", extremegp.load(model)
    X = read_xc(files / "test.txt").X
    calls: dict[str, tuple[list[str], dict[str, Any]]] = {
        "f1": ([], {}),
        "cost": (["--cost-missed", "3"], {"cost_missed": 3.0}),
        "size": (["--top-k", "2"], {"size": 2}),
        "threshold": (["--threshold", "0.2"], {"threshold": 0.2}),
    }
    for by, (options, arguments) in calls.items():
        for least in (None, 0.5):
            of_least = [] if least is None else ["--least-f1", str(least)]
            result = run("predict", model, files / "test.txt", "--out", out, "--decide", by, *options, *of_least)
            assert result.exit_code == 0, result.output
            found = [set(json.loads(line)["labels"]) for line in out.read_text().splitlines()]
            expected = classifier.decide(X, by, least_f1=least, **arguments).labels
            names = classifier.classes_
            assert found == [{str(names[k]) for k in row.indices} for row in scipy.sparse.csr_matrix(expected)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--threshold", "0.5"], "--decide threshold"),
        (["--decide", "f1", "--cost-wrong", "2"], "--decide cost"),
        (["--least-f1", "0.5"], "--decide"),
        (["--decide", "f1", "--least-f1", "2"], "2"),
        (["--decide", "cost", "--cost-wrong", "0"], "cost_wrong"),
        (["--decide", "f1", "--approximate", "0.9"], "--decide"),
    ],
)
def test_decisions_that_contradict_themselves_are_refused(
    files: Path, model: Path, tmp_path: Path, run: Run, options: list[str], told: str
) -> None:
    result = run("predict", model, files / "test.txt", "--out", tmp_path / "x.jsonl", *options)
    assert (result.exit_code, told in result.output) == (2, True)


def test_texts_without_labels_are_accepted(text_model: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "new.jsonl").write_text('{"text": "word0 filler"}\n{"text": "word1 never seen"}\n')
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


# Rows in blocks


def _in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers give a few lines or rows at a time."""
    for module in (xc, svmlight, text):
        monkeypatch.setattr(module, "text_blocks", partial(text_blocks, block_bytes=200))
    monkeypatch.setattr(matrices, "_BLOCK_ENTRIES", 30)


@pytest.mark.parametrize("kind", ["txt", "svm", "jsonl", "mapped", "txt.gz"])
def test_blocks_of_rows_give_what_all_at_once_give(
    files: Path, model: Path, text_model: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    data, fitted = tmp_path / f"test.{kind}", text_model if kind == "jsonl" else model
    lines = (files / "test.txt").read_text().splitlines(keepends=True)
    match kind:
        case "jsonl":
            data.write_bytes((files / "test.jsonl").read_bytes() + b"\n")
        case "svm":
            # The only feature 0, which says what features count from, comes last.
            rows = [re.sub(r" 0:\S+", "", line) for line in lines[1:]]
            data.write_text("# a comment\n" + "".join(rows[:-1]) + lines[-1])
        case "mapped":
            convert(files / "test.txt", data)
        case "txt.gz":
            data.write_bytes(gzip.compress((files / "test.txt").read_bytes()))
        case _:
            data.write_text("".join(lines))
    whole = _predict(run, fitted, data, tmp_path / "whole.csv").read_text()
    sizes: list[int] = []
    _in_small_blocks(monkeypatch)
    for step in (UnitFeatures, TextFeatures):
        transform = step.transform

        def watched(self: Features, X: Any, transform: Any = transform) -> Any:
            sizes.append(len(X) if isinstance(X, list) else X.shape[0])
            return transform(self, X)

        monkeypatch.setattr(step, "transform", watched)
    blocks = _predict(run, fitted, data, tmp_path / "blocks.csv").read_text()
    assert sum(sizes) == 20
    assert max(sizes) <= 10
    for first, second in zip(csv.reader(whole.splitlines()), csv.reader(blocks.splitlines()), strict=True):
        assert first[:3] == second[:3]
        assert first[3] == second[3] or float(first[3]) == pytest.approx(float(second[3]), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "content", "naming"),
    [
        ("new.txt", "40 8 4\n" + "0 0:1 1:1 2:1\n" * 39 + "0 9:1\n", "new.txt:41: feature '9'"),
        ("new.txt", "40 8 4\n" + "0 0:1 1:1 2:1\n" * 39, "new.txt: the header says 40 rows but only 39 follow"),
        ("new.svm", "0 1:1 2:1\n" * 39 + "0 1:1 9:1\n", "new.svm:40: the file has 9 features"),
        ("new.svm", "0 1:1 2:1\n" * 39 + "0 1:x\n", "new.svm:40: not a row"),
        ("new.jsonl", '{"text": "word0 filler"}\n' * 39 + "{\n", "new.jsonl:40: not valid JSON"),
        ("new.jsonl", "\n \n", "new.jsonl: the file has no records"),
    ],
)
def test_an_error_in_a_late_block_names_its_line_and_leaves_no_file(
    model: Path,
    text_model: Path,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: str,
    naming: str,
) -> None:
    (tmp_path / name).write_text(content)
    _in_small_blocks(monkeypatch)
    fitted = text_model if name == "new.jsonl" else model
    for out in ("o.csv", "o.npz"):
        run.fails("predict", fitted, tmp_path / name, "--out", tmp_path / out, naming=naming)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_progress_tells_rows_and_time_left(
    files: Path, model: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _in_small_blocks(monkeypatch)
    args = ("predict", model, files / "test.txt", "--out", tmp_path / "o.csv")
    assert run(*args).stderr == ""
    monkeypatch.setattr(
        inspect.unwrap(ProgressBar.__init__), "__kwdefaults__", {"patience": 0.0, "interval": 0.0, "quiet": False}
    )
    lines = run(*args).stderr.splitlines()
    shown = [re.fullmatch(r"(\d+) rows, +(\d+) %, (?:0|0\.\d+|\d+) s (?:left|so far)", line) for line in lines]
    assert all(shown)
    assert [100 * int(match[1]) / 20 for match in shown if match] == [int(match[2]) for match in shown if match]
    assert lines[-1].startswith("20 rows, 100 %")
    assert run(*args, "--quiet").stderr == ""


# Approximate search


def test_approximate_search_reports_its_recall(files: Path, tmp_path: Path, run: Run) -> None:
    pytest.importorskip("faiss")
    fitted = tmp_path / "model"
    options = ("--set", "epochs=5", "--set", "n_inducing=10", "--set", "mean_function=zero", "--quiet")
    assert run("train", files / "train.txt", "--out", fitted, *options).exit_code == 0
    exact = _predict(run, fitted, files / "train.txt", tmp_path / "exact.csv").read_text()
    args = ("predict", fitted, files / "train.txt", "--top-k", 2, "--approximate", 0.98, "--out")
    assert "approximate: recall 1.0000 of the exact best (60 rows;" in run(*args, tmp_path / "o.csv").stdout
    assert [line.split(",")[:3] for line in (tmp_path / "o.csv").read_text().splitlines()] == [
        line.split(",")[:3] for line in exact.splitlines()
    ]
    setting = json.loads(run(*args, tmp_path / "o.csv", "--json", "-").stdout)["approximate"]
    assert (setting["recall"], setting["n_rows"]) == (1.0, 60)
    few = run("predict", fitted, files / "test.txt", "--approximate", 0.98, "--out", tmp_path / "few.csv")
    assert "recall not measured on so few rows" in few.stdout


@pytest.mark.parametrize(
    ("options", "naming"),
    [
        (["--approximate", "1.5"], "--approximate must be a recall above 0 and at most 1"),
        (["--approximate", "0.9", "--given", "known.jsonl"], "--given"),
        (["--approximate", "0.9"], "mean_function='zero'"),
    ],
)
def test_approximate_search_that_is_not_possible_is_refused(
    files: Path, model: Path, tmp_path: Path, run: Run, options: list[str], naming: str
) -> None:
    run.fails("predict", model, files / "test.txt", "--out", tmp_path / "o.csv", *options, naming=naming)
    assert list(tmp_path.iterdir()) == []


# Known labels


def test_known_labels_condition_the_others_and_are_left_out(files: Path, model: Path, tmp_path: Path, run: Run) -> None:
    x = read_xc(files / "test.txt").X
    known = np.zeros((20, N_LABELS))
    known[0, 1], known[1, [0, 2]], known[2, 3], known[3] = 1, [1, -1], -1, 1
    lines = [
        {"labels": [_NAMES[k] for k in np.flatnonzero(row > 0)], "absent": [_NAMES[k] for k in np.flatnonzero(row < 0)]}
        for row in known
    ]
    given = tmp_path / "known.jsonl"
    given.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    best = extremegp.load(model).predict_topk(x, 2, given=known)
    out = _predict(run, model, files / "test.txt", tmp_path / "o.jsonl", "--given", given)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["labels"] for record in records] == [[_NAMES[k] for k in row if k >= 0] for row in best.labels]
    for record, scores in zip(records, best.scores, strict=True):
        assert record["probabilities"] == pytest.approx([p for p in scores if p > 0], rel=1e-5)
    assert records[3] == {"labels": [], "probabilities": []}
    matrix = scipy.sparse.load_npz(
        _predict(run, model, files / "test.txt", tmp_path / "o.npz", "--given", given, "--by", "utility")
    )
    assert matrix.shape == (20, N_LABELS)
    assert (matrix[3].nnz, matrix[1].nnz, matrix[0, 1]) == (0, 2, 0)


@pytest.mark.parametrize("suffix", [".txt", ".svm"])
def test_labels_by_number_are_known_to_be_present(
    files: Path, model: Path, tmp_path: Path, run: Run, suffix: str
) -> None:
    given = tmp_path / f"known{suffix}"
    rows = "".join(f"{i % N_LABELS} 0:1\n" for i in range(20))
    given.write_text((f"20 1 {N_LABELS}\n" if suffix == ".txt" else "") + rows)
    known = np.eye(N_LABELS)[np.arange(20) % N_LABELS]
    best = extremegp.load(model).predict_topk(read_xc(files / "test.txt").X, 2, given=known)
    out = _predict(run, model, files / "test.txt", tmp_path / "o.txt", "--given", given)
    found = [[int(pair.split(":")[0]) for pair in line.split()] for line in out.read_text().splitlines()]
    assert found == best.labels.tolist()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"labels": []}\n' * 19, "has 19 rows of known labels, but there are 20 rows to predict"),
        ('{"labels": ["mauve"]}\n' * 20, "1: the model has no label 'mauve'"),
        ('{"labels": []}\n{"absent": ["red"]}\n', "2: expected an object like"),
        ('{"labels": "red"}\n', '1: "labels" must be a list of strings'),
        ('{"labels": ["red"], "absent": ["red"]}\n', "1: the label 'red' is both present and absent"),
        ('{"labels": [}\n', "1: not valid JSON"),
        (f"20 1 {N_LABELS + 1}\n" + "0 0:1\n" * 20, f"has {N_LABELS + 1} labels, but the model has {N_LABELS}"),
        ("9 0:1\n" * 20, "the label 9 is out of range"),
    ],
)
def test_known_labels_that_cannot_be_used_are_named(
    files: Path, model: Path, tmp_path: Path, run: Run, content: str, message: str
) -> None:
    given = tmp_path / ("known.jsonl" if content.startswith("{") else "known.txt")
    given.write_text(content)
    out = tmp_path / "o.jsonl"
    line = run.fails("predict", model, files / "test.txt", "--out", out, "--given", given, naming=given.name)
    assert message in line
    assert not out.exists()


# One class per row


@pytest.mark.parametrize("uncertainty", [False, True])
def test_classes_come_by_name_most_probable_first(
    class_files: Path, class_model: Path, tmp_path: Path, run: Run, uncertainty: bool
) -> None:
    classifier = extremegp.load(class_model)
    x = np.load(class_files / "test.npy")
    p = classifier.predict_proba(x)
    order = np.argsort(-p, axis=1, kind="stable")[:, :2]
    parts = np.stack(classifier.predict_uncertainty(x), axis=1)
    options = ["--uncertainty"] if uncertainty else []
    keys = ["total", "aleatoric", "epistemic", "variance", "novelty"] if uncertainty else []
    out = _predict(run, class_model, class_files / "test.npy", tmp_path / "o.jsonl", *options)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(list(record) == ["labels", "probabilities", *keys] for record in records)
    assert [record["labels"] for record in records] == CLASSES[order].tolist()
    expected = np.take_along_axis(p, order, axis=1)
    np.testing.assert_allclose([record["probabilities"] for record in records], expected, rtol=1e-4, atol=1e-7)
    for suffix, delimiter in ((".csv", ","), (".tsv", "\t")):
        out = _predict(run, class_model, class_files / "test.csv", tmp_path / f"o{suffix}", *options)
        header, *lines = csv.reader(out.read_text().splitlines(), delimiter=delimiter)
        assert header == ["row", "rank", "label", "probability", *keys]
        assert [line[2] for line in lines] == CLASSES[order].ravel().tolist()
        if uncertainty:
            found = np.array([line[4:] for line in lines], dtype=float)
            np.testing.assert_allclose(found, np.repeat(parts, 2, axis=0), rtol=1e-4, atol=1e-6)
    if uncertainty:
        np.testing.assert_allclose([[record[key] for key in keys] for record in records], parts, rtol=1e-4, atol=1e-6)


def test_numbers_and_matrices_of_classes_are_in_sorted_order(
    class_files: Path, class_model: Path, tmp_path: Path, run: Run
) -> None:
    p = extremegp.load(class_model).predict_proba(np.load(class_files / "test.npy"))
    text = _predict(run, class_model, class_files / "test.npy", tmp_path / "o.txt").read_text()
    assert [int(line.split(":")[0]) for line in text.splitlines()] == p.argmax(axis=1).tolist()
    out = _predict(run, class_model, class_files / "test.npy", tmp_path / "o.npz", "--top-k", 9)
    np.testing.assert_allclose(scipy.sparse.load_npz(out).toarray(), p, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "out", "naming"),
    [
        (["--given", "known.jsonl"], "o.csv", "--given is for many labels per row, but"),
        (["--by", "utility"], "o.csv", "--by is for many labels per row, but"),
        (["--approximate", "0.9"], "o.csv", "--approximate is for many labels per row, but"),
        (["--uncertainty"], "o.txt", "--uncertainty needs --out to end in .jsonl, .tsv or .csv"),
        (["--uncertainty"], "o.npz", "--uncertainty needs --out to end in .jsonl, .tsv or .csv"),
        (["--x-key", "X"], "o.csv", "--x-key is for .npz files"),
    ],
)
def test_options_that_classes_have_no_use_for_are_named(
    class_files: Path, class_model: Path, tmp_path: Path, run: Run, options: list[str], out: str, naming: str
) -> None:
    run.fails("predict", class_model, class_files / "test.npy", "--out", tmp_path / out, *options, naming=naming)
    assert list(tmp_path.iterdir()) == []


def test_known_labels_and_uncertainty_do_not_go_together(files: Path, model: Path, tmp_path: Path, run: Run) -> None:
    args = ("predict", model, files / "test.txt", "--out", tmp_path / "o.csv", "--uncertainty")
    run.fails(*args, "--given", files / "test.txt", naming="leave out it or --given")


def test_a_threshold_is_a_p_value(files: Path, model: Path, tmp_path: Path, run: Run) -> None:
    args = ("predict", model, files / "test.txt", "--out", tmp_path / "o.csv", "--novelty-threshold")
    run.fails(*args, "1.5", naming="--novelty-threshold must be a p-value")
