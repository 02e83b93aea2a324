"""`extremegp evaluate` for one class per row."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import (
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    log_loss,
    precision_recall_fscore_support,
)
from tests.cli.conftest import CLASSES, Run, blobs
from tests.reference import risks as reference

import extremegp


def _evaluated(run: Run, *args: object) -> dict[str, Any]:
    result = run("evaluate", *args, "--json", "-")
    assert result.exit_code == 0
    written: dict[str, Any] = json.loads(result.stdout)
    return written


@pytest.fixture(scope="module")
def noisy(class_files: Path) -> Path:
    """Test rows of which every third has the next class, so that there is something wrong to count."""
    x, codes = blobs("test")
    codes = np.where(np.arange(len(codes)) % 3, codes, (codes + 1) % 3)
    np.save(class_files / "noisy.npy", x)
    (class_files / "noisy.txt").write_text("".join(f"{CLASSES[code]}\n" for code in codes))
    return class_files / "noisy.npy"


def test_metrics_are_those_of_the_dense_predictions(noisy: Path, class_model: Path, run: Run) -> None:
    truth = noisy.with_suffix(".txt").read_text().split()
    p = extremegp.load(class_model).predict_proba(np.load(noisy)).astype(np.float64)
    predicted = CLASSES[p.argmax(axis=1)]
    written = _evaluated(run, class_model, noisy, "--labels", noisy.with_suffix(".txt"), "--ks", "1,2")
    metrics = written["metrics"]
    assert metrics["accuracy"] == np.mean(predicted == truth) == 1 - metrics["error"]
    two_best = CLASSES[np.argsort(-p, axis=1)[:, :2]]
    assert metrics["top2_accuracy"] == np.mean([one in two for one, two in zip(truth, two_best, strict=True)])
    assert metrics["nlpd"] == pytest.approx(log_loss(truth, p / p.sum(axis=1, keepdims=True)), rel=1e-4)
    one_hot = np.asarray(truth)[:, None] == CLASSES
    assert metrics["brier"] == pytest.approx(np.square(p - one_hot).sum(axis=1).mean(), rel=1e-4)
    assert metrics["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(truth, predicted))
    assert metrics["macro_f1"] == pytest.approx(f1_score(truth, predicted, average="macro"))
    codes = np.searchsorted(CLASSES, truth)
    expected = reference.areas(reference.of_classes(codes.tolist(), p.tolist()), "nlpd")
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert metrics["coverage"] == 1.0
    assert 0 < metrics["ece"] < 1
    assert metrics["seconds"] > 0
    assert (written["n_rows"], written["n_classes"], written["n_unknown_rows"]) == (24, 3, 0)


def test_the_table_of_classes_has_what_scikit_learn_counts(
    noisy: Path, class_model: Path, tmp_path: Path, run: Run
) -> None:
    args = (class_model, noisy, "--labels", noisy.with_suffix(".txt"), "--quiet", "--per-class")
    for name in ("each.csv", "each.tsv", "each.csv.gz"):
        assert run("evaluate", *args, tmp_path / name).output == ""
    content = (tmp_path / "each.csv").read_text()
    assert gzip.decompress((tmp_path / "each.csv.gz").read_bytes()).decode() == content
    assert (tmp_path / "each.tsv").read_text() == content.replace(",", "\t")
    header, *lines = csv.reader(content.splitlines())
    assert header == ["class", "support", "predicted", "precision", "recall", "f1"]
    truth = noisy.with_suffix(".txt").read_text().split()
    predicted = extremegp.load(class_model).predict(np.load(noisy)).tolist()
    parts = precision_recall_fscore_support(truth, predicted, labels=CLASSES)
    for line, name, precision, recall, f1, support in zip(lines, CLASSES, *parts, strict=True):
        assert line[:3] == [name, str(support), str(predicted.count(name))]
        assert [float(value) for value in line[3:]] == pytest.approx([precision, recall, f1], rel=1e-5)


def test_tables_name_shares_in_percent_and_the_worst_classes(noisy: Path, class_model: Path, run: Run) -> None:
    labels = ("--labels", noisy.with_suffix(".txt"))
    written = _evaluated(run, class_model, noisy, *labels)
    metrics = written["metrics"]
    shown = run("evaluate", class_model, noisy, *labels).stdout
    lines = [line.split() for line in shown.splitlines() if line.strip()]
    assert ["accuracy", f"{100 * metrics['accuracy']:.2f}"] in lines
    assert ["top3_accuracy", "100.00"] in lines
    assert ["nlpd", "(nats/row)", f"{metrics['nlpd']:.4g}"] in lines
    lowest, confusions = shown.split("Classes with the lowest F1")[1].split("Largest confusions")
    scores = [float(line.split()[-1]) for line in lowest.splitlines() if line.strip().startswith(tuple(CLASSES))]
    assert len(scores) == 3
    assert scores == sorted(scores)
    assert written["classes"].keys() == set(CLASSES)
    truth = noisy.with_suffix(".txt").read_text().split()
    predicted = extremegp.load(class_model).predict(np.load(noisy)).tolist()
    table = confusion_matrix(truth, predicted, labels=CLASSES)
    cells = {(cell["true"], cell["predicted"]): cell["count"] for cell in written["confusion"]}
    assert cells == {(CLASSES[i], CLASSES[j]): table[i, j] for i, j in np.argwhere(table)}
    assert list(cells.values()) == sorted(cells.values(), reverse=True)
    (true, other), count = next((pair, count) for pair, count in cells.items() if pair[0] != pair[1])
    assert [true, other, str(count), f"{100 * count / truth.count(true):.2f}"] in [
        line.split() for line in confusions.splitlines()
    ]


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_the_reliability_diagram_is_drawn(
    noisy: Path, class_model: Path, tmp_path: Path, run: Run, suffix: str, start: bytes
) -> None:
    picture = tmp_path / f"calibration{suffix}"
    args = ("evaluate", class_model, noisy, "--labels", noisy.with_suffix(".txt"), "--plot", picture, "--quiet")
    assert run(*args).output == ""
    assert picture.read_bytes().startswith(start)


def test_without_matplotlib_the_plot_is_refused_before_the_work(
    class_files: Path, class_model: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    args = ("evaluate", class_model, class_files / "test.npy", "--plot", tmp_path / "o.png")
    run.fails(*args, naming="--plot needs Matplotlib: pip install 'extremegp[plot]'")


def test_a_class_never_seen_counts_as_wrong(class_files: Path, class_model: Path, tmp_path: Path, run: Run) -> None:
    names = (class_files / "test-names.txt").read_text().split()
    before = _evaluated(run, class_model, class_files / "test.npy", "--labels", class_files / "test-names.txt")
    right = before["metrics"]["accuracy"] * 24
    predicted = extremegp.load(class_model).predict(np.load(class_files / "test.npy")).tolist()
    (tmp_path / "new.txt").write_text("".join(f"{name}\n" for name in ["elder", *names[1:]]))
    args = (class_model, class_files / "test.npy", "--labels", tmp_path / "new.txt")
    written = _evaluated(run, *args)
    assert (written["n_unknown_rows"], written["n_rows"]) == (1, 24)
    assert written["metrics"]["accuracy"] * 24 == pytest.approx(right - (predicted[0] == names[0]))
    assert "1 rows have a class that training never saw" in run("evaluate", *args).stdout


def test_names_of_digits_stay_names(class_files: Path, tmp_path: Path, run: Run) -> None:
    train, test = ([f"{code:02}" for code in blobs(part)[1]] for part in ("train", "test"))
    (tmp_path / "train.txt").write_text("\n".join(train) + "\n")
    # These alone would be taken for integers.
    x = np.load(class_files / "test.npy")
    (tmp_path / "test.txt").write_text("10\n" * len(test))
    model = tmp_path / "model"
    args = ("--labels", tmp_path / "train.txt", "--set", "epochs=1", "--quiet")
    assert run("train", class_files / "train.npy", "--out", model, *args).exit_code == 0
    assert extremegp.load(model).classes_.tolist() == ["00", "01", "02"]
    written = _evaluated(run, model, class_files / "test.npy", "--labels", tmp_path / "test.txt")
    assert written["n_unknown_rows"] == len(x)
