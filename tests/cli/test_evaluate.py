"""`extremegp evaluate`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    hamming_loss,
    jaccard_score,
    precision_recall_fscore_support,
)
from tests.cli.conftest import N_LABELS, Run
from tests.reference import risks as reference

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
    rows = reference.of_labels(y.tolist(), p.astype(np.float64).tolist())
    expected = reference.areas(rows, "log_loss")
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    # The entropies are those that the model itself tells.
    np.testing.assert_allclose(rows[2], classifier.predict_uncertainty(data.X).total, rtol=1e-5)
    assert metrics["seconds"] > 0
    assert {"PSP@5", "nDCG@5", "ece", "ece_top"} <= metrics.keys()


@pytest.mark.parametrize("by", ["probability", "utility"])
def test_of_many_labels_the_best_of_each_row_are_measured(
    files: Path, model: Path, run: Run, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = _evaluated(run, model, files / "test.txt", "--by", by)
    monkeypatch.setattr(task, "DENSE_LABELS", N_LABELS - 1)
    best = _evaluated(run, model, files / "test.txt", "--by", by)
    areas = {f"aurc_log_loss{{}}_{what}" for what in ("by_entropy", "by_max_p", "best")}
    of_all = {"log_loss", "brier", "ece", "ece_top", *(name.format("") for name in areas)}
    of_best = {name.format("_top20") for name in areas}
    assert best.keys() - everything.keys() == {"log_loss_top20", "ece_top20", *of_best}
    assert "ECE@3" in best
    assert everything.keys() - best.keys() == of_all
    for name in everything.keys() - of_all - {"seconds"}:
        assert best[name] == pytest.approx(everything[name])
    # All labels are among the 20 best.
    assert best["log_loss_top20"] == pytest.approx(everything["log_loss"] / N_LABELS, rel=1e-5)
    for name in areas:
        assert best[name.format("_top20")] == pytest.approx(everything[name.format("")] / N_LABELS, rel=1e-5)
    assert best["ece_top20"] == pytest.approx(everything["ece"], rel=1e-5)


@pytest.mark.parametrize("threshold", [0.5, 0.25])
def test_decisions_and_labels_are_those_of_scikit_learn(
    files: Path, model: Path, tmp_path: Path, run: Run, threshold: float
) -> None:
    data, out = read_xc(files / "test.txt"), tmp_path / "each.csv"
    y, p = data.Y.toarray().astype(int), extremegp.load(model).predict_proba(data.X)
    args = ("evaluate", model, files / "test.txt", "--threshold", threshold, "--per-class", out, "--json", "-")
    found = json.loads(run(*args).stdout)
    predicted, metrics = p >= threshold, found["metrics"]
    for average, name in (("micro", "micro"), ("macro", "macro"), ("samples", "example")):
        for measure, score in (("f1", f1_score), ("jaccard", jaccard_score)):
            expected = score(y, predicted, average=average, zero_division=0)
            assert metrics[f"{name}_{measure}"] == pytest.approx(expected, rel=1e-12)
    assert metrics["subset_accuracy"] == accuracy_score(y, predicted)
    assert metrics["hamming_loss"] == pytest.approx(hamming_loss(y, predicted))
    assert metrics["macro_average_precision"] == pytest.approx(average_precision_score(y, p))
    assert metrics["best_micro_f1"] == pytest.approx(f1_score(y, p >= metrics["best_threshold"], average="micro"))
    assert metrics["best_micro_f1"] >= metrics["micro_f1"]
    assert (found["threshold"], found["exact_above"]) == (threshold, 0)
    names = ["red", "green, dark", "blue", "black"]
    header, *lines = csv.reader(out.read_text().splitlines())
    assert header[:6] == ["class", "support", "predicted", "precision", "recall", "f1"]
    assert header[6:10] == ["best_threshold", "best_precision", "best_recall", "best_f1"]
    assert header[10:] == ["average_precision", "count", "mean_probability", "frequency", "ece"]
    assert [line[0] for line in lines] == list(found["labels"]) == names
    parts = precision_recall_fscore_support(y, predicted, zero_division=0)
    for k, (line, of_label) in enumerate(zip(lines, found["labels"].values(), strict=True)):
        assert list(of_label) == header[1:]
        assert [float(cell) for cell in line[1:]] == pytest.approx([*of_label.values()], rel=1e-5)
        assert [of_label[name] for name in header[3:6]] == pytest.approx([part[k] for part in parts[:3]])
        assert (of_label["support"], of_label["predicted"]) == (y[:, k].sum(), predicted[:, k].sum())
        assert of_label["best_f1"] == pytest.approx(f1_score(y[:, k], p[:, k] >= of_label["best_threshold"]))
        calibration = of_label["count"], of_label["mean_probability"], of_label["frequency"]
        assert calibration == pytest.approx((20, p[:, k].mean(dtype=np.float64), y[:, k].mean()))


def test_tables_say_what_was_chosen_on_the_rows(files: Path, model: Path, run: Run) -> None:
    metrics = _evaluated(run, model, files / "test.txt")
    shown = run("evaluate", model, files / "test.txt").stdout
    lines = [line.split() for line in shown.splitlines()]
    shares = (f"{100 * metrics[f'micro_{name}']:.2f}" for name in ("precision", "recall", "f1", "jaccard"))
    assert ["micro", *shares] in lines
    assert ["ECE@3", f"{metrics['ECE@3']:.4g}"] in lines
    assert ["best_macro_f1", f"{100 * metrics['best_macro_f1']:.2f}"] in lines
    assert f"the threshold {metrics['best_threshold']:.3g}" in shown
    assert "chosen on these rows, and not applied" in shown
    for loss, of_all in (("error", 1 - metrics["P@1"]), ("log_loss", metrics["log_loss"])):
        areas = (metrics[f"aurc_{loss}_{what}"] for what in ("by_entropy", "by_max_p", "best"))
        numbers = [f"{number:.4g}" for number in (of_all, *areas)]
        assert any(line[0] == loss and line[-4:] == numbers for line in lines if line)
    assert "aurc" not in shown
    assert "Labels of probability 0.5 or more" in shown
    assert "Labels with the lowest F1" in shown
    # ECE is no ranking.
    assert [line[0] for line in lines if line[1:2] == [f"{100 * metrics['P@1']:.2f}"]][:2] == ["P", "nDCG"]
    assert not any(line[:1] == ["ECE"] for line in lines)


def test_of_very_many_labels_it_is_said_what_is_not_known(
    files: Path, model: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = json.loads(run("evaluate", model, files / "test.txt", "--ks", "1,2", "--json", "-").stdout)
    for name, value in (("DENSE_LABELS", N_LABELS - 1), ("TOP_JUDGED", 2), ("CANDIDATES", 2)):
        monkeypatch.setattr(task, name, value)
    args = ("evaluate", model, files / "test.txt", "--ks", "1,2", "--threshold", "0.5")
    found = json.loads(run(*args, "--json", "-", "--per-class", tmp_path / "each.tsv").stdout)
    data = read_xc(files / "test.txt")
    p = np.sort(extremegp.load(model).predict_proba(data.X), axis=1)
    assert found["exact_above"] == pytest.approx(p[:, -2].max())
    assert "labels" not in found
    assert len((tmp_path / "each.tsv").read_text().splitlines()) == 1 + N_LABELS
    for name in ("P@2", "ECE@2"):
        assert found["metrics"][name] == pytest.approx(whole["metrics"][name])
    shown = run(*args).stdout
    above = f"{found['exact_above']:.3g}"
    assert f"of the most probable labels alone; no probability above {above} is missing" in shown
    by_utility = run(*args, "--by", "utility")
    assert "of the most probable labels alone." in by_utility.stdout
    assert json.loads(run(*args, "--by", "utility", "--json", "-").stdout)["exact_above"] == 1


@pytest.mark.parametrize("dense", [True, False])
def test_the_picture_of_many_labels_is_drawn(
    files: Path, model: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, *, dense: bool
) -> None:
    monkeypatch.setattr(task, "DENSE_LABELS", 20_000 if dense else 1)
    picture = tmp_path / "picture.svg"
    assert run("evaluate", model, files / "test.txt", "--plot", picture, "--quiet").output == ""
    assert picture.read_bytes().startswith(b"<?xml")


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
    assert (written["n_unseen_labels"], written["n_unseen_label_entries"]) == (0, 0)
    assert "metric, %" in result.stdout


def test_labels_never_seen_are_counted(text_model: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "new.jsonl").write_text('{"text": "word0 filler", "labels": ["tag0", "novel"]}\n')
    result = json.loads(run("evaluate", text_model, tmp_path / "new.jsonl", "--json", "-").stdout)
    assert (result["n_unknown_label_entries"], result["metrics"]["R@5"]) == (1, 1.0)
    assert "1 labels that training never saw" in run("evaluate", text_model, tmp_path / "new.jsonl").stdout


def test_true_labels_without_a_training_row_are_counted(tmp_path: Path, run: Run) -> None:
    (tmp_path / "train.txt").write_text("8 4 5\n" + "0 0:1 1:1\n1 2:1 3:1\n" * 4)
    (tmp_path / "test.txt").write_text("3 4 5\n0,3 0:1\n1,3 2:1\n4 3:1\n")
    trained = run(
        "train", tmp_path / "train.txt", "--out", tmp_path / "m", "--features", "raw", "--set", "epochs=1", "--quiet"
    )
    assert trained.exit_code == 0
    result = json.loads(run("evaluate", tmp_path / "m", tmp_path / "test.txt", "--json", "-").stdout)
    assert (result["n_unseen_labels"], result["n_unseen_label_entries"]) == (2, 3)
    assert result["n_unknown_label_entries"] == 0
    shown = run("evaluate", tmp_path / "m", tmp_path / "test.txt").stdout
    assert "3 of the true labels (60.00 %) have no training row, 2 of them different" in shown


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
        (["--per-class", "no-folder/x.csv"], "no-folder"),
        (["--threshold", "0"], "--threshold must be a probability above 0"),
        (["--threshold", "nan"], "--threshold must be a probability above 0"),
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
