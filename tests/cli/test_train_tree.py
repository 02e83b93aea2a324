"""`extremegp train --model tree`, and the other commands on what it makes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from sklearn.metrics import average_precision_score, f1_score
from tests.cli.conftest import N_FEATURES, N_LABELS, Run
from tests.label_tree.test_training import InterruptAfter
from tests.reference import risks as reference

import extremegp
from extremegp import LabelTreeGPClassifier, MultiLabelGPClassifier
from extremegp.cli.tasks import labels as task
from extremegp.label_tree import combiner, levels, parts_folder, training

_QUICK = ("--quiet", "--set", "n_inducing=5")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combiner, "_STEPS", 6)


@pytest.fixture
def few_labels_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("FACTOR_LABELS", "TREE_LABELS"):
        monkeypatch.setattr(task, limit, N_LABELS - 1)


@pytest.fixture(scope="module")
def tree_model(files: Path, run: Run) -> Path:
    """Of train.txt with label names; tests must not change it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combiner, "_STEPS", 40)
        folder = files / "tree"
        names = ("--labels-names", files / "names.txt")
        result = run("train", files / "train.txt", "--out", folder, "--model", "tree", *_QUICK, *names)
    assert (result.exit_code, result.output) == (0, "")
    return folder


@pytest.mark.parametrize("dense", [True, False])
def test_trees_are_evaluated_label_by_label(
    files: Path, tree_model: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, *, dense: bool
) -> None:
    monkeypatch.setattr(task, "DENSE_LABELS", 20_000 if dense else 1)
    args = ("--per-class", tmp_path / "each.csv", "--plot", tmp_path / "labels.png", "--json", "-")
    metrics = json.loads(run("evaluate", tree_model, files / "test.txt", *args).stdout)["metrics"]
    data = extremegp.data.read_xc(files / "test.txt")
    y, p = data.Y.toarray().astype(int), extremegp.load(tree_model).predict_proba(data.X)
    assert metrics["micro_f1"] == pytest.approx(f1_score(y, p >= 0.5, average="micro"))
    assert metrics["macro_average_precision"] == pytest.approx(average_precision_score(y, p))
    expected = reference.areas(reference.of_labels(y.tolist(), p.astype(float).tolist()), "log_loss")
    # Without the dense probabilities losses are of the candidates, which are all labels here, and means over these.
    name, scale = ("log_loss", 1) if dense else ("log_loss_top20", N_LABELS)
    assert metrics["aurc_error_by_max_p"] == pytest.approx(expected["aurc_error_by_max_p"])
    areas = (f"aurc_{{}}_{what}" for what in ("by_entropy", "by_max_p", "best"))
    for area in areas:
        assert scale * metrics[area.format(name)] == pytest.approx(expected[area.format("log_loss")], rel=1e-4)
    assert len((tmp_path / "each.csv").read_text().splitlines()) == 1 + N_LABELS
    assert (tmp_path / "labels.png").read_bytes().startswith(b"\x89PNG")


def test_the_model_is_the_one_that_the_library_trains(files: Path, tmp_path: Path, run: Run) -> None:
    args = ("--model", "tree", "--seed", 3, "--features", "raw", "--set", "leaf_size=2", *_QUICK)
    assert run("train", files / "train.txt", "--out", tmp_path / "m", *args).exit_code == 0
    data = extremegp.data.read_xc(files / "train.txt")
    LabelTreeGPClassifier(features="raw", random_state=3, leaf_size=2, n_inducing=5, verbose=False).fit(
        data.X, data.Y
    ).save(tmp_path / "same")
    found, expected = ((tmp_path / name / "tensors.safetensors").read_bytes() for name in ("m", "same"))
    assert found == expected


@pytest.mark.usefixtures("few_labels_are_many")
@pytest.mark.parametrize(
    ("args", "estimator"),
    [
        ([], LabelTreeGPClassifier),
        (["--model", "auto", "--set", "time_budget=600"], LabelTreeGPClassifier),
        (["--set", "leaf_size=2"], LabelTreeGPClassifier),
        (["--model", "factor", "--set", "epochs=1"], MultiLabelGPClassifier),
        (["--set", "epochs=1"], MultiLabelGPClassifier),
        (["--preset", "SE-FX", "--set", "epochs=1"], MultiLabelGPClassifier),
    ],
)
def test_many_labels_make_trees_unless_options_say_otherwise(
    files: Path, tmp_path: Path, run: Run, args: list[str], estimator: type
) -> None:
    assert run("train", files / "train.txt", "--out", tmp_path / "m", *_QUICK, *args).exit_code == 0
    assert type(extremegp.load(tmp_path / "m")) is estimator


@pytest.mark.usefixtures("few_labels_are_many")
def test_many_names_make_trees_too(files: Path, tmp_path: Path, run: Run) -> None:
    assert run("train", files / "train.jsonl", "--out", tmp_path / "m", *_QUICK).exit_code == 0
    classifier = extremegp.load(tmp_path / "m")
    assert isinstance(classifier, LabelTreeGPClassifier)
    assert list(classifier.classes_) == ["tag0", "tag1", "tag2", "tag3"]


def test_few_labels_make_no_trees_unless_settings_are_of_trees(files: Path, tmp_path: Path, run: Run) -> None:
    assert run("train", files / "train.txt", "--out", tmp_path / "a", *_QUICK, "--time-budget", "100s").exit_code == 0
    assert type(extremegp.load(tmp_path / "a")) is MultiLabelGPClassifier
    assert run("train", files / "train.txt", "--out", tmp_path / "b", *_QUICK, "--set", "beam=3").exit_code == 0
    assert type(extremegp.load(tmp_path / "b")) is LabelTreeGPClassifier


@pytest.mark.parametrize(
    ("args", "naming"),
    [
        (["--task", "multiclass"], "--model tree is for many labels per row"),
        (["--preset", "SE-FX"], "--preset SE-FX is another model"),
        (["--preset", "OVE"], "--model tree is for many labels per row"),
        (["--set", "epochs=3"], "epochs"),
        (["--set", "leaf_size=1"], "leaf_size must be"),
        (["--set", "n_trees=many"], "n_trees must be an integer"),
        (["--set", "beam=3", "--set", "epochs=3", "--model", "auto"], "beam"),
        (["--max-memory", "much"], "max_memory"),
        (["--max-memory", "1K"], "max_memory"),
        (["--time-budget", "soon"], "--time-budget"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    files: Path, tmp_path: Path, run: Run, args: list[str], naming: str
) -> None:
    run.fails("train", files / "train.txt", "--out", tmp_path / "m", "--model", "tree", *args, naming=naming)
    assert list(tmp_path.iterdir()) == []


def test_budgets_reach_the_estimator(files: Path, tmp_path: Path, run: Run) -> None:
    args = ("--model", "tree", "--time-budget", "90s", "--max-memory", "64G", "--json", "-", *_QUICK)
    result = json.loads(run("train", files / "train.txt", "--out", tmp_path / "m", *args).stdout)
    assert (result["estimator"], result["n_rows"]) == ("LabelTreeGPClassifier", 60)
    assert (result["n_features"], result["n_labels"]) == (N_FEATURES, N_LABELS)
    assert extremegp.load(tmp_path / "m").time_budget == 90


def test_evaluate_measures_it(files: Path, tree_model: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("evaluate", tree_model, files / "test.txt", "--json", "-")
    every = json.loads(run(*args).stdout)["metrics"]
    assert every["P@1"] > 0.6
    assert {"log_loss", "ece"} <= every.keys()
    monkeypatch.setattr(task, "DENSE_LABELS", 1)
    top = json.loads(run(*args).stdout)["metrics"]
    assert (top["P@1"], top["nDCG@3"]) == (every["P@1"], every["nDCG@3"])


def test_info_shows_it(tree_model: Path, run: Run) -> None:
    result = json.loads(run("info", tree_model, "--json", "-").stdout)
    classifier = extremegp.load(tree_model)
    assert result["estimator"] == "LabelTreeGPClassifier"
    assert result["settings"]["n_rows"] == 60
    of_trees = sum(level["weights"] + level["nodes"] if isinstance(level, dict) else level[1] + level[3]
                   for tree in result["settings"]["trees"] for level in tree)  # fmt: skip
    of_combiner = sum(parameter.numel() for parameter in classifier.model_.combiner.parameters())
    assert result["n_parameters"] == of_trees + of_combiner
    assert "n_labels" in run("info", tree_model, "--all").stdout


@pytest.mark.parametrize("by", ["probability", "utility"])
def test_predictions_are_those_of_the_library(files: Path, tree_model: Path, tmp_path: Path, run: Run, by: str) -> None:
    out = tmp_path / "labels.jsonl"
    run("predict", tree_model, files / "test.txt", "--out", out, "--top-k", 2, "--by", by)
    classifier = extremegp.load(tree_model)
    x = extremegp.data.read_xc(files / "test.txt").X
    best, every = classifier.predict_topk(x, 2, by=by), classifier.predict_proba(x)
    for line, labels, probabilities in zip(out.read_text().splitlines(), best.labels, every, strict=True):
        record = json.loads(line)
        assert record["labels"] == [classifier.classes_[label] for label in labels]
        assert record["probabilities"] == pytest.approx(probabilities[labels].tolist(), rel=1e-5)


def test_rows_with_fewer_candidates_have_shorter_lists(
    files: Path, tree_model: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = extremegp.label_tree.LabelTreeModel.evidence

    def without_some(self: object, x: object, own: object = None) -> object:
        """Row i has its first i candidates."""
        found = evidence(self, x, own)
        place = np.arange(len(found.rows)) - np.searchsorted(found.rows, found.rows)
        some = place < found.rows
        return found._replace(rows=found.rows[some], labels=found.labels[some], values=found.values[some])

    monkeypatch.setattr(extremegp.label_tree.LabelTreeModel, "evidence", without_some)
    lengths = [min(i, N_LABELS) for i in range(20)]
    for suffix in ("jsonl", "tsv", "csv", "txt", "npz"):
        args = ("--out", tmp_path / f"out.{suffix}", "--top-k", 9)
        assert run("predict", tree_model, files / "test.txt", *args).exit_code == 0
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [len(record["labels"]) for record in records] == lengths
    assert all(np.isfinite(record["probabilities"]).all() for record in records)
    lines = (tmp_path / "out.txt").read_text().split("\n")[:-1]
    assert [len(line.split()) for line in lines] == lengths
    for suffix, delimiter in (("tsv", "\t"), ("csv", ",")):
        rows = [int(line.split(delimiter)[0]) for line in (tmp_path / f"out.{suffix}").read_text().splitlines()[1:]]
        assert np.bincount(rows, minlength=20).tolist() == lengths
    assert np.diff(scipy.sparse.load_npz(tmp_path / "out.npz").indptr).tolist() == lengths


@pytest.mark.parametrize(
    ("args", "naming"),
    [
        (["--approximate", "0.9"], "a model of label trees searches its trees: leave out approximate"),
        (["--given", "train.txt"], "a model of label trees cannot take given labels into account"),
    ],
)
def test_what_the_model_cannot_do_is_refused(
    files: Path, tree_model: Path, tmp_path: Path, run: Run, args: list[str], naming: str
) -> None:
    args = [str(files / arg) if arg.endswith(".txt") else arg for arg in args]
    run.fails("predict", tree_model, files / "train.txt", "--out", tmp_path / "out.tsv", *args, naming=naming)
    assert list(tmp_path.iterdir()) == []


def test_the_same_command_resumes_and_cleans_up(
    files: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "_BATCH_WORK", 30)
    out, expected = tmp_path / "m", tmp_path / "expected"
    checkpoint = Path(f"{out}.checkpoint")
    command = ("train", files / "train.txt", "--model", "tree", "--set", "leaf_size=2", *_QUICK)
    run(*command, "--out", expected)
    with monkeypatch.context() as patch:
        patch.setattr(training, "GracefulInterrupt", InterruptAfter)
        result = run(*command, "--out", out)
    assert result.exit_code == 130
    assert str(checkpoint) in result.stderr
    assert checkpoint.exists()
    assert parts_folder(checkpoint).is_dir()
    kept = shutil.copytree(tmp_path, tmp_path.with_name(tmp_path.name + "-kept"))
    assert "--fresh" in run.fails(*command, "--out", out, "--seed", 1, naming="other data or settings")
    assert json.loads(run(*command, "--out", out, "--json", "-").stdout)["resumed"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "m"]
    assert (out / "tensors.safetensors").read_bytes() == (expected / "tensors.safetensors").read_bytes()
    fresh = run(*command, "--out", kept / "m", "--seed", 1, "--fresh", "--json", "-")
    assert not json.loads(fresh.stdout)["resumed"]
    assert sorted(path.name for path in kept.iterdir()) == ["expected", "m"]
