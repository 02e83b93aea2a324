"""`extremegp train`."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import N_FEATURES, N_LABELS, Process, Run

import extremegp
from extremegp import MultiLabelGPClassifier
from extremegp.data import read_xc

_QUICK = ("--set", "epochs=2", "--set", "n_inducing=5")


def _tensors(model: Path) -> bytes:
    return (model / "tensors.safetensors").read_bytes()


def test_the_model_is_the_one_that_the_library_trains(files: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "model"
    run("train", files / "train.txt", "--out", out, "--preset", "SE-FX-SB", *_QUICK, "--seed", 3, "--features", "raw")
    data = read_xc(files / "train.txt")
    MultiLabelGPClassifier(
        kernel="se",
        mean_function="zero",
        learn_inducing=False,
        epochs=2,
        n_inducing=5,
        random_state=3,
        features="raw",
        verbose=False,
    ).fit(data.X, data.Y).save(tmp_path / "same")
    assert _tensors(out) == _tensors(tmp_path / "same")


def test_the_summary_names_sizes_quality_and_the_next_command(files: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "my model"
    result = run("train", files / "train.txt", "--out", out, "--valid", files / "test.txt", *_QUICK)
    assert result.exit_code == 0
    for part in ("rows", "60", "ELBO per row", "validation P@1", f"Next: extremegp evaluate '{out}' TEST_DATA"):
        assert part in result.stdout
    assert not Path(f"{out}.checkpoint").exists()


def test_the_json_holds_the_result(files: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "model"
    args = ("train", files / "train.txt", "--out", out, "--valid", files / "test.txt", *_QUICK, "--json")
    result = json.loads(run(*args, "-").stdout)
    history = extremegp.load(out).history_
    assert (result["n_rows"], result["n_features"], result["n_labels"]) == (60, N_FEATURES, N_LABELS)
    assert (result["epochs"], result["resumed"], result["features"]) == (2, False, "unit")
    assert result["settings"]["n_inducing"] == 5
    assert result["elbo_per_row"] == pytest.approx(history[-1]["elbo"] / 60)
    assert result["validation_P@1"] == max(record["validation_P@1"] for record in history)


def test_elbo_per_row_counts_the_rows_trained_on(files: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "model"
    args = ("--set", "validation_fraction=0.25", "--json", "-")
    result = json.loads(run("train", files / "train.txt", "--out", out, *_QUICK, *args).stdout)
    assert result["elbo_per_row"] == pytest.approx(extremegp.load(out).history_[-1]["elbo"] / 45)


def test_set_beats_the_preset(files: Path, tmp_path: Path, run: Run) -> None:
    args = ("--preset", "ARD-FX", "--set", "kernel=linear", "--json", "-")
    result = json.loads(run("train", files / "train.txt", "--out", tmp_path / "m", *_QUICK, *args).stdout)
    assert (result["settings"]["kernel"], result["settings"]["learn_inducing"]) == ("linear", False)


def test_jsonl_is_read_as_text_with_named_labels(text_model: Path) -> None:
    classifier = extremegp.load(text_model)
    assert classifier.features_.kind == "text"
    assert list(classifier.classes_) == ["tag0", "tag1", "tag2", "tag3"]


def test_svmlight_is_recognised(files: Path, tmp_path: Path, run: Run) -> None:
    rows = (files / "train.txt").read_text().split("\n", 1)[1]
    (tmp_path / "train.svm").write_text(rows)
    result = run("train", tmp_path / "train.svm", "--out", tmp_path / "m", *_QUICK, "--json", "-")
    assert json.loads(result.stdout)["n_features"] == N_FEATURES


def test_names_of_numbered_labels_are_stored(model: Path) -> None:
    assert list(extremegp.load(model).classes_) == ["red", "green, dark", "blue", "black"]


def test_a_model_is_only_replaced_on_request(files: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "model"
    args = ("train", files / "train.txt", "--out", out, *_QUICK, "--quiet")
    assert run(*args).exit_code == 0
    before = _tensors(out)
    run.fails(*args, "--seed", 1, naming="--overwrite")
    assert _tensors(out) == before
    assert run(*args, "--seed", 1, "--overwrite").exit_code == 0
    assert _tensors(out) != before


def test_a_time_budget_reaches_the_estimator(files: Path, tmp_path: Path, run: Run) -> None:
    run("train", files / "train.txt", "--out", tmp_path / "m", *_QUICK, "--time-budget", "1h30m")
    assert extremegp.load(tmp_path / "m").time_budget == 5400


def test_a_memory_limit_reaches_the_estimator_and_what_cannot_fit_is_refused(
    files: Path, tmp_path: Path, run: Run
) -> None:
    args = ("train", files / "train.txt", "--out", tmp_path / "m", *_QUICK, "--max-memory")
    run.fails(*args, "1M", naming="max_memory is 0.00 GB: raise it")
    assert not (tmp_path / "m").exists()
    assert run(*args, "64G").exit_code == 0


@pytest.mark.parametrize(
    ("args", "naming"),
    [
        (["--max-memory", "much"], "max_memory must be bytes, or a size"),
        (["--set", "kernal=se"], "did you mean 'kernel'"),
        (["--set", "n_inducing=many"], "n_inducing"),
        (["--set", "n_inducing=0"], "n_inducing must be an integer at least 1"),
        (["--set", "kernel=cosine"], "kernel"),
        (["--set", "learning_rate=-1"], "learning_rate"),
        (["--set", "patience=2"], "patience"),
        (["--set", "device=abacus"], "abacus"),
        (["--preset", "ARDX"], "did you mean 'ARD'"),
        (["--time-budget", "soon"], "--time-budget"),
        (["--features", "text"], "train.txt"),
        (["--valid", "missing.txt"], "missing.txt"),
        (["--labels-names", "missing.txt"], "missing.txt"),
        (["--json", "no/such/folder/x.json"], "no/such/folder"),
        (["--format", "jsonl"], "train.txt:1"),
    ],
)
def test_bad_options_are_named(files: Path, tmp_path: Path, run: Run, args: list[str], naming: str) -> None:
    run.fails("train", files / "train.txt", "--out", tmp_path / "m", *args, naming=naming)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("name", "content", "naming"),
    [
        ("empty.txt", "", "empty.txt"),
        ("value.txt", "2 3 2\n0 0:1\n1 1:x\n", "value.txt:3"),
        ("label.txt", "2 3 2\n0 0:1\n7 1:1\n", "label.txt:3"),
        ("short.txt", "3 3 2\n0 0:1\n", "short.txt"),
        ("what.txt", "hello world\n", "what.txt:1"),
        ("texts.jsonl", '{"text": "a b"}\n', "texts.jsonl"),
        ("broken.jsonl", '{"text": "a", "labels": []}\n{"text"\n', "broken.jsonl:2"),
        ("cut.txt.gz", "not gzip", "cut.txt.gz"),
    ],
)
def test_bad_data_are_named_with_their_line(tmp_path: Path, run: Run, name: str, content: str, naming: str) -> None:
    (tmp_path / name).write_text(content)
    run.fails("train", tmp_path / name, "--out", tmp_path / "m", naming=naming)


def test_missing_data_are_named(tmp_path: Path, run: Run) -> None:
    run.fails("train", tmp_path / "none.txt", "--out", tmp_path / "m", naming="none.txt")


def test_a_wrong_number_of_label_names_is_named(files: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "three.txt").write_text("a\nb\nc\n")
    args = ("train", files / "train.txt", "--out", tmp_path / "m", "--labels-names")
    run.fails(*args, tmp_path / "three.txt", naming="three.txt: has 3 names, but the data have 4 labels")
    (tmp_path / "twice.txt").write_text("a\nb\na\nc\n")
    run.fails(*args, tmp_path / "twice.txt", naming="twice.txt:3")


def test_something_else_at_the_destination_is_left_alone(files: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    run.fails("train", files / "train.txt", "--out", tmp_path, "--overwrite", naming=str(tmp_path))
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.fixture(scope="module")
def uninterrupted(files: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("uninterrupted") / "model"
    assert Process(files / "train.txt", out).finished().returncode == 0
    return _tensors(out)


def test_a_killed_run_resumes_to_the_same_bits(files: Path, tmp_path: Path, uninterrupted: bytes) -> None:
    process = Process(files / "train.txt", tmp_path / "model")
    assert process.interrupted(signal.SIGKILL).returncode == -signal.SIGKILL
    result = process.finished()
    assert result.returncode == 0
    assert f"resuming from {process.checkpoint}" in result.stderr
    assert _tensors(tmp_path / "model") == uninterrupted
    assert not process.checkpoint.exists()


def test_ctrl_c_saves_and_resumes_to_the_same_bits(files: Path, tmp_path: Path, uninterrupted: bytes) -> None:
    process = Process(files / "train.txt", tmp_path / "model")
    stopped = process.interrupted(signal.SIGINT)
    # But for progress, which is told on a busy machine.
    told = [line for line in stopped.stderr.splitlines() if not line.endswith("so far")]
    assert (stopped.returncode, len(told)) == (130, 1)
    assert str(process.checkpoint) in told[0]
    assert process.finished().returncode == 0
    assert _tensors(tmp_path / "model") == uninterrupted


def test_a_model_of_classes_resumes_to_the_same_bits(class_files: Path, tmp_path: Path) -> None:
    options = ("--label-column", "species", "--valid", str(class_files / "valid.csv"))
    whole = Process(class_files / "train.csv", tmp_path / "whole", *options)
    assert whole.finished().returncode == 0
    process = Process(class_files / "train.csv", tmp_path / "model", *options)
    assert process.interrupted(signal.SIGINT).returncode == 130
    result = process.finished()
    assert (result.returncode, f"resuming from {process.checkpoint}" in result.stderr) == (0, True)
    folders = tmp_path / "whole", tmp_path / "model"
    first, second = ((folder / "tensors.safetensors").read_bytes() for folder in folders)
    assert first == second
    # The date and the seconds that training took are no part of the model.
    first_config, second_config = (json.loads((folder / "config.json").read_text()) for folder in folders)
    assert first_config | {"run": None} == second_config | {"run": None}


def test_the_summary_of_classes_names_their_accuracy(class_files: Path, tmp_path: Path, run: Run) -> None:
    args = ("train", class_files / "train.npz", "--x-key", "measured", "--y-key", "kind")
    args += ("--valid", class_files / "valid.npz", "--set", "epochs=5")
    result = run(*args, "--out", tmp_path / "model", "--json", tmp_path / "result.json")
    for part in (
        "classes",
        "likelihood",
        "softmax",
        "validation accuracy %",
        "TEST_DATA --x-key measured --y-key kind",
    ):
        assert part in result.stdout
    written = json.loads((tmp_path / "result.json").read_text())
    history = extremegp.load(tmp_path / "model").history_
    assert (written["n_rows"], written["n_features"], written["n_classes"]) == (60, 2, 3)
    assert written["validation_accuracy"] == max(record["validation_accuracy"] for record in history)


def test_a_checkpoint_of_another_run_is_refused_and_fresh_discards_it(
    files: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    args = ("train", files / "train.txt", "--out", out, "--set", "checkpoint_seconds=0", *_QUICK)
    # As if the machine had stopped at the end of training: the checkpoint stays.
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: os.unlink(path) if ".tmp" in path.name else None)
    run(*args)
    monkeypatch.undo()
    shutil.rmtree(out)
    assert Path(f"{out}.checkpoint").exists()
    run.fails(*args, "--seed", 1, "--quiet", naming="--fresh")
    run.fails(*args, "--valid", files / "test.txt", "--quiet", naming="--fresh")
    assert run(*args, "--seed", 1, "--fresh", "--quiet").exit_code == 0
    assert np.isfinite(extremegp.load(out).history_[-1]["elbo"])
