"""`extremegp evaluate`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import N_LABELS, Run

import extremegp
from extremegp.cli.tasks import labels as task
from extremegp.data import read_xc
from extremegp.metrics import PROPENSITY_PRESETS, propensities, psp_at_k


def _evaluated(run: Run, *args: object) -> dict[str, float]:
    result = run("evaluate", *args, "--json", "-")
    assert result.exit_code == 0
    metrics: dict[str, float] = json.loads(result.stdout)["metrics"]
    return metrics


@pytest.mark.parametrize("by", ["probability", "utility"])
def test_metrics_are_those_of_the_dense_predictions(files: Path, model: Path, run: Run, by: str) -> None:
    data, classifier = read_xc(files / "test.txt"), extremegp.load(model)
    y, utilities, p = data.Y.toarray(), classifier.decision_function(data.X), classifier.predict_proba(data.X)
    metrics = _evaluated(run, model, files / "test.txt", "--by", by)
    order = np.argsort(-(p if by == "probability" else utilities), axis=1)
    for k in (1, 3):
        hits = np.take_along_axis(y, order[:, :k], axis=1).sum(axis=1)
        assert metrics[f"P@{k}"] == pytest.approx((hits / k).mean())
        labelled = y.sum(axis=1) > 0
        assert metrics[f"R@{k}"] == pytest.approx((hits[labelled] / y.sum(axis=1)[labelled]).mean())
    happened = np.where(y > 0, p, 1 - p.astype(np.float64))
    assert metrics["log_loss"] == pytest.approx(-np.log(happened).sum(axis=1).mean(), rel=1e-5)
    assert metrics["brier"] == pytest.approx(np.square(p - y).sum(axis=1).mean(), rel=1e-5)
    assert metrics["seconds"] > 0
    assert {"PSP@5", "nDCG@5", "ece", "ece_top"} <= metrics.keys()


@pytest.mark.parametrize("by", ["probability", "utility"])
def test_of_many_labels_the_best_of_each_row_are_measured(
    files: Path, model: Path, run: Run, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = _evaluated(run, model, files / "test.txt", "--by", by)
    monkeypatch.setattr(task, "DENSE_LABELS", N_LABELS - 1)
    best = _evaluated(run, model, files / "test.txt", "--by", by)
    of_all = {"log_loss", "brier", "ece", "ece_top"}
    assert best.keys() - everything.keys() == {"log_loss_top20", "ece_top20"}
    assert everything.keys() - best.keys() == of_all
    for name in everything.keys() - of_all - {"seconds"}:
        assert best[name] == pytest.approx(everything[name])
    # All labels are among the 20 best.
    assert best["log_loss_top20"] == pytest.approx(everything["log_loss"] / N_LABELS, rel=1e-5)
    assert best["ece_top20"] == pytest.approx(everything["ece"], rel=1e-5)


def test_propensities_come_from_the_training_data(files: Path, model: Path, run: Run) -> None:
    data, train = read_xc(files / "test.txt"), read_xc(files / "train.txt")
    probabilities = extremegp.load(model).predict_proba(data.X)
    counts = np.asarray(train.Y.sum(axis=0)).ravel()
    for option, (a, b) in ({"1.5,0.7": (1.5, 0.7)} | dict(PROPENSITY_PRESETS)).items():
        psp = psp_at_k(data.Y, probabilities, propensities(counts, 60, a, b), (1,))[0]
        metrics = _evaluated(run, model, files / "test.txt", "--propensity", option)
        assert metrics["PSP@1"] == pytest.approx(psp)


def test_the_ranks_can_be_chosen(files: Path, model: Path, run: Run) -> None:
    metrics = _evaluated(run, model, files / "test.txt", "--ks", "2,4")
    assert "P@2" in metrics
    assert "P@1" not in metrics
    assert metrics["R@4"] == 1.0


def test_the_table_is_in_percent(files: Path, model: Path, run: Run) -> None:
    fraction = _evaluated(run, model, files / "test.txt")["P@1"]
    shown = run("evaluate", model, files / "test.txt").stdout
    assert next(line.split()[:2] for line in shown.splitlines() if line.startswith("  P ")) == [
        "P",
        f"{100 * fraction:.2f}",
    ]


def test_json_goes_to_a_file_beside_the_table(files: Path, model: Path, tmp_path: Path, run: Run) -> None:
    result = run("evaluate", model, files / "test.txt", "--json", tmp_path / "m.json")
    written = json.loads((tmp_path / "m.json").read_text())
    assert (written["n_rows"], written["n_labels"], written["n_unknown_label_entries"]) == (20, N_LABELS, 0)
    assert "metric, %" in result.stdout


def test_labels_never_seen_are_counted(text_model: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "new.jsonl").write_text('{"text": "word0 filler", "labels": ["tag0", "novel"]}\n')
    result = json.loads(run("evaluate", text_model, tmp_path / "new.jsonl", "--json", "-").stdout)
    assert (result["n_unknown_label_entries"], result["metrics"]["R@5"]) == (1, 1.0)
    assert "1 labels that training never saw" in run("evaluate", text_model, tmp_path / "new.jsonl").stdout


@pytest.mark.parametrize(
    ("args", "naming"),
    [
        (["--ks", "0,1"], "--ks"),
        (["--ks", "one"], "--ks"),
        (["--ks", ""], "--ks"),
        (["--propensity", "reddit"], "--propensity"),
        (["--propensity", "1,2,3"], "--propensity"),
        (["--propensity", "-1,2"], "positive"),
        (["--json", "no-folder/x.json"], "no-folder"),
    ],
)
def test_bad_options_are_named(files: Path, model: Path, run: Run, args: list[str], naming: str) -> None:
    run.fails("evaluate", model, files / "test.txt", *args, naming=naming)


@pytest.mark.parametrize(
    ("name", "content", "naming"),
    [
        ("labels.txt", "1 8 5\n0 0:1\n", "labels.txt: has 5 labels, but the model has 4"),
        ("label.svm", "9 1:1\n", "label.svm:1"),
        ("row.txt", "1 8 4\n0 9:1\n", "row.txt:2"),
    ],
)
def test_data_that_do_not_fit_are_named(
    model: Path, tmp_path: Path, run: Run, name: str, content: str, naming: str
) -> None:
    (tmp_path / name).write_text(content)
    run.fails("evaluate", model, tmp_path / name, naming=naming)


def test_texts_need_labels_and_a_model_of_texts(
    files: Path, model: Path, text_model: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "new.jsonl").write_text('{"text": "word0"}\n')
    run.fails("evaluate", text_model, tmp_path / "new.jsonl", naming='new.jsonl: has no "labels"')
    run.fails("evaluate", text_model, files / "test.txt", naming="test.txt")
    run.fails("evaluate", model, tmp_path / "new.jsonl", naming="new.jsonl")
