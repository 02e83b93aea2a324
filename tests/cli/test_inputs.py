"""One class per row, in every format of inputs and labels, and what is said where they cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.cli.conftest import CLASSES, QUICK, Run, blobs

import extremegp
from extremegp import MultiClassGPClassifier
from extremegp.data import ClassSpace
from extremegp.estimators import GPEstimator

FORMATS = {
    "npy, names as array": ("{}.npy", ["--labels", "{}-names.npy"], []),
    "npy, names as text": ("{}.npy", ["--labels", "{}-names.txt"], []),
    "npy, numbers as text": ("{}.npy", ["--labels", "{}-codes.txt"], []),
    "IDX": ("{}-images.idx.gz", ["--labels", "{}-codes.idx"], []),
    "npz": ("{}.npz", ["--x-key", "measured", "--y-key", "kind"], ["--x-key", "measured"]),
    "npz, labels apart": ("{}.npz", ["--x-key", "measured", "--labels", "{}-names.npy"], ["--x-key", "measured"]),
    "csv": ("{}.csv", ["--label-column", "species"], []),
    "tsv": ("{}.tsv.gz", ["--label-column", "-2"], []),
    "parquet": ("{}.parquet", ["--label-column", "species"], []),
    "svmlight": ("{}.svm", ["--first-label"], []),
    "svmlight, labels apart": ("{}.svm", ["--labels", "{}-names.txt", "--ignore-labels"], []),
    "xc": ("{}.txt", ["--first-label"], []),
    "xc, labels apart": ("{}.txt", ["--labels", "{}-names.npy", "--ignore-labels"], []),
    "jsonl": ("{}.jsonl", ["--first-label"], []),
    "jsonl, labels apart": ("{}.jsonl", ["--labels", "{}-codes.txt", "--ignore-labels"], []),
}


def _arguments(folder: Path, part: str, data: str, options: list[str]) -> list[object]:
    filled = [str(folder / option.format(part)) if "{" in option else option for option in options]
    return [folder / data.format(part), *filled]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_trains_evaluates_and_predicts(class_files: Path, tmp_path: Path, run: Run, name: str) -> None:
    data, labelled, unlabelled = FORMATS[name]
    model = tmp_path / "model"
    assert run("train", *_arguments(class_files, "train", data, labelled), "--out", model, *QUICK).exit_code == 0
    classifier = extremegp.load(model)
    numbered = isinstance(classifier.label_space_, ClassSpace) and classifier.label_space_.kind == "int"
    expected = np.arange(3) if numbered else CLASSES
    assert classifier.classes_.tolist() == expected.tolist()
    kind = classifier.features_.kind
    assert (kind == "text", kind == "unit") == (data == "{}.jsonl", data in ("{}.svm", "{}.txt"))
    result = run("evaluate", model, *_arguments(class_files, "test", data, labelled), "--json", "-")
    accuracy = json.loads(result.stdout)["metrics"]["accuracy"]
    assert accuracy > 0.9
    out = tmp_path / "predicted.jsonl"
    test = _arguments(class_files, "test", data, unlabelled)
    assert run("predict", model, *test, "--out", out, "--top-k", 1, "--quiet").exit_code == 0
    predicted = [json.loads(line)["labels"] for line in out.read_text().splitlines()]
    truth = [[str(expected[code])] for code in blobs("test")[1]]
    assert accuracy == np.mean([one == other for one, other in zip(predicted, truth, strict=True)])


def test_rows_of_one_label_are_classes_on_request_only(class_files: Path, tmp_path: Path, run: Run) -> None:
    for task, expected in (("auto", "MultiLabelGPClassifier"), ("multiclass", "MultiClassGPClassifier")):
        result = run(
            *("train", class_files / "train.svm", "--task", task, "--out", tmp_path / task, *QUICK[:-1], "--json", "-")
        )
        assert json.loads(result.stdout)["estimator"] == expected


def test_the_model_is_the_one_that_the_library_trains(class_files: Path, tmp_path: Path, run: Run) -> None:
    args = ("--labels", class_files / "train-names.txt", "--valid", class_files / "valid.npy")
    args += ("--valid-labels", class_files / "valid-names.npy", "--features", "raw", "--seed", 3)
    assert run("train", class_files / "train.npy", "--out", tmp_path / "model", *args, *QUICK).exit_code == 0
    (x, codes), (held_x, held) = blobs("train"), blobs("valid")
    classifier = MultiClassGPClassifier(features="raw", epochs=20, n_inducing=10, random_state=3, verbose=False)
    classifier.fit(x, CLASSES[codes], validation=(held_x, CLASSES[held])).save(tmp_path / "same")
    first, second = ((tmp_path / name / "tensors.safetensors").read_bytes() for name in ("model", "same"))
    assert first == second


# Columns by name


def test_columns_are_found_by_name_and_others_ignored(class_files: Path, class_model: Path, run: Run) -> None:
    frame = pd.read_csv(class_files / "test.csv")
    frame["colour"] = "green"
    shuffled = class_files / "shuffled.csv"
    frame[["colour", "species", "height", "width"]].to_csv(shuffled, index=False)
    metrics = [
        json.loads(run("evaluate", class_model, file, "--label-column", "species", "--json", "-").stdout)["metrics"]
        for file in (class_files / "test.csv", shuffled)
    ]
    assert metrics[0] | {"seconds": 0} == metrics[1] | {"seconds": 0}
    lines = []
    for file in (class_files / "test.csv", shuffled):
        out = file.with_suffix(".predicted.csv")
        assert run("predict", class_model, file, "--out", out, "--quiet").exit_code == 0
        lines.append(out.read_text())
    assert lines[0] == lines[1]


def test_missing_columns_are_named(class_files: Path, class_model: Path, tmp_path: Path, run: Run) -> None:
    pd.read_csv(class_files / "test.csv")[["species", "height"]].to_csv(tmp_path / "narrow.csv", index=False)
    out = tmp_path / "o.csv"
    line = run.fails("predict", class_model, tmp_path / "narrow.csv", "--out", out, naming="narrow.csv")
    assert "lacks the columns 'width'" in line


def test_feature_names_are_those_of_the_table_and_survive_saving(class_model: Path, tmp_path: Path) -> None:
    classifier = extremegp.load(class_model)
    assert classifier.feature_names_in_.tolist() == ["width", "height"]
    classifier.save(tmp_path / "again")
    assert extremegp.load(tmp_path / "again").feature_names_in_.tolist() == ["width", "height"]


@pytest.mark.parametrize("names", [["width"], ["width", "width"], ["width", 2], "width", {"width": 1}])
def test_altered_feature_names_are_refused(class_model: Path, tmp_path: Path, run: Run, names: Any) -> None:
    copy = tmp_path / "copy"
    extremegp.load(class_model).save(copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"feature_names": names}))
    run.fails("info", copy, naming="copy: the feature names are not 2 different strings")


def test_a_model_saved_without_feature_names_still_loads(class_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    extremegp.load(class_model).save(copy)
    config = json.loads((copy / "config.json").read_text())
    del config["feature_names"]
    (copy / "config.json").write_text(json.dumps(config))
    model: GPEstimator = extremegp.load(copy)
    assert not hasattr(model, "feature_names_in_")


# The first label of many


MANY = {
    "rows.svm": "1,0 1:5 2:1\n 1:9\n0,2 1:1 2:5\n2 1:-4 2:-4\n",
    "rows.txt": "4 2 3\n1,0 0:5 1:1\n 0:9\n0,2 0:1 1:5\n2 0:-4 1:-4\n",
    "rows.jsonl": "".join(
        json.dumps({"text": "tree of words", "labels": labels}) + "\n" for labels in (["1", "0"], [], ["0", "2"], ["2"])
    ),
}


@pytest.mark.parametrize("name", MANY)
def test_the_first_label_of_the_file_is_the_class(tmp_path: Path, run: Run, name: str) -> None:
    data, model = tmp_path / name, tmp_path / "model"
    data.write_text(MANY[name])
    args = ("train", data, "--first-label", "--out", model, "--set", "epochs=1")
    result = json.loads(run(*args, "--json", "-").stdout)
    assert (result["n_rows"], result["n_classes"], result["n_dropped_rows"]) == (3, 3, 1)
    written = json.loads(run("evaluate", model, data, "--first-label", "--json", "-").stdout)
    assert (written["n_rows"], written["n_dropped_rows"], written["n_unknown_rows"]) == (3, 1, 0)
    assert "1 rows without a label are left out" in run("evaluate", model, data, "--first-label").stdout
    line = run.fails("evaluate", model, data, naming=f"{name}: row 0 (counted from 0) has 2 labels")
    assert "--first-label" in line


# Errors


@pytest.mark.parametrize(
    ("args", "naming"),
    [
        ("train.npy", "train.npy: holds inputs without labels or classes: give them by --labels FILE"),
        ("train.csv", "train.csv: nothing says which columns have the labels: name them by --label-column"),
        ("train.csv --label-column genus", "train.csv: has no column 'genus'; its columns are 'width', 'species'"),
        ("train.csv --label-column 3", "has no column '3'"),
        ("train.csv --label-column species --labels train-names.txt", "--labels and --label-column both say"),
        ("train.csv --label-column species --y-key kind", "--y-key is for .npz files"),
        ("train.npy --labels widths.npy", "widths.npy: Unknown label type: continuous: the column of classes has"),
        ("train.npz", "train.npz: does not tell which array has the inputs; name it by x_key (--x-key)"),
        ("train.npz --x-key measured --y-key nothing", "train.npz: has no array 'nothing'; the arrays in it are"),
        ("train.npz --x-key measured --y-key other", "train.npz: the array 'measured' has 60 rows"),
        ("train.npz --x-key measured --y-key kind --labels train-names.txt", "--labels and --y-key both say"),
        ("train.npy --labels valid-names.txt", "valid-names.txt: has 24 labels, but"),
        ("train.npy --labels train.npy", "Y must hold only 0 and 1"),
        ("train.npy --labels nothing.txt", "nothing.txt: no such file"),
        ("train.npy --labels blank.txt", "blank.txt:2: the line is blank"),
        ("train.npy --labels same.txt", "same.txt: Classifier can't train when only one class is present"),
        ("train-names.txt --labels train-names.txt", "train-names.txt:1: the format is not recognised"),
        ("train.npy --labels train-names.txt --first-label", "--first-label is for data with many labels per row"),
        ("train.svm --labels train-names.txt --first-label", "--labels and --first-label both say"),
        ("train.npy --labels train-names.txt --x-key X", "--x-key is for .npz files, but"),
        ("train.svm --label-column 0", "--label-column is for tables"),
        (
            "train.npy --labels train-names.txt --task multilabel",
            "is a text, and nothing says what separates its labels",
        ),
        ("train.npy --task multilabel", "train.npy: holds inputs without labels or classes"),
        ("train.csv --task multilabel", "train.csv: nothing says which columns have the labels"),
        ("train.svm --first-label --task multilabel", "--first-label is for one class per row, but --task is"),
        (
            "train.svm --task multiclass --preset ARD",
            "--preset ARD is for many labels per row, but --task is multiclass",
        ),
        (
            "train.npy --labels train-names.txt --preset SE-FX",
            "--preset SE-FX is for many labels per row, but --labels",
        ),
        (
            "train.svm --task multilabel --preset RM-F",
            "--preset RM-F is for one class per row, but --task is multilabel",
        ),
        ("train.svm --task multiclass --preset RMF", "--preset 'RMF' is unknown; did you mean 'RM-F'"),
        ("train.svm --preset MLGFP", "did you mean 'MLGPF'"),
        (
            "train.svm --task multiclass --labels-names train-names.txt",
            "--labels-names is for many labels per row, but",
        ),
        ("train.svm --task multiclass --set n_sampled_labels=3", "did you mean 'n_sampled_classes'"),
        ("train.svm --task multiclass --set likelihood=logit", "likelihood must be one of auto, softmax"),
        ("train.svm --task multiclass --set propensity=auto", "the parameter 'propensity' is unknown"),
        (
            "train.svm --features words",
            "features must be auto or unit or tfidf or raw or scale or root or standard for",
        ),
        (
            "train.svm --task multiclass --features text",
            "features must be auto or unit or tfidf or raw or scale or root",
        ),
        ("train.jsonl --task multiclass --features scale", "features must be text for one class per row"),
        ("train.npy --labels train-names.txt --valid valid.npy", "give those of --valid by --valid-labels"),
        ("train.npy --labels train-names.txt --valid-labels valid-names.txt", "--valid is not given"),
        ("train.csv --label-column species --valid valid.csv --valid-labels valid-names.txt", "--labels is not given"),
        ("train.csv --label-column species --valid nothing.csv", "nothing.csv: no such file"),
        ("train.csv --label-column species --valid narrow.csv", "narrow.csv: lacks the columns 'height'"),
        ("train.csv --label-column species --valid valid.npy", "--label-column is for tables"),
        ("train.npy --labels train-codes.txt --valid valid.npy --valid-labels valid-names.txt", "valid-names.txt: the"),
        (
            "train.npy --labels train-codes.txt --valid wide.npy --valid-labels valid-codes.txt",
            "wide.npy: has 3 features",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_named(
    class_files: Path, tmp_path: Path, run: Run, args: str, naming: str
) -> None:
    (class_files / "blank.txt").write_text("ash\n\nbirch\n")
    (class_files / "same.txt").write_text("ash\n" * 60)
    np.save(class_files / "widths.npy", blobs("train")[0][:, 0])
    (class_files / "narrow.csv").write_text("width,species\n1,ash\n")
    np.save(class_files / "wide.npy", np.ones((24, 3)))
    words = [str(class_files / word) if Path(word).suffix else word for word in args.split()]
    run.fails("train", *words, "--out", tmp_path / "m", *QUICK, naming=naming)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "naming"),
    [
        ("test.csv", "test.csv: nothing says which columns have the labels"),
        ("test.csv --label-column width", "test.csv: the column 'width' cannot be both an input and the label"),
        ("test.npy", "test.npy: holds inputs without labels or classes"),
        ("test.npy --labels train-names.txt", "train-names.txt: has 60 labels, but"),
        ("test.npy --labels test-codes.npy", "test-codes.npy: the column of classes holds values of the kind 'int'"),
        ("wide.npy --labels test-names.txt", "wide.npy: has 3 features, but the model has 2"),
        ("test.svm", "test.svm: the column of classes holds values of the kind 'int'"),
        ("wide.svm --labels test-names.txt", "wide.svm:1: the file has 3 features but 2 were expected"),
        ("test.jsonl", "test.jsonl: holds texts in JSON lines, but feature vectors are needed, as in training"),
        ("test.csv --label-column species --by utility", "--by is for many labels per row, but"),
        ("test.csv --label-column species --by probability", "--by is for many labels per row, but"),
        ("test.csv --label-column species --propensity amazon", "--propensity is for many labels per row, but"),
        ("test.csv --label-column species --threshold 1", "--threshold is for many labels per row, but"),
        ("test.csv --label-column species --ks 0", "--ks must be positive integers"),
        ("test.csv --label-column species --per-class o.txt", "--per-class must end in .csv or .tsv"),
        ("test.csv --label-column species --per-class no-folder/o.csv", "no-folder/o.csv: cannot be written"),
        ("test.csv --label-column species --plot o.txt", "--plot must end in .png, .svg, .pdf"),
    ],
)
def test_what_a_model_cannot_be_measured_on_is_named(
    class_files: Path, class_model: Path, run: Run, args: str, naming: str
) -> None:
    np.save(class_files / "wide.npy", np.ones((24, 3)))
    np.save(class_files / "test-codes.npy", blobs("test")[1])
    (class_files / "wide.svm").write_text("0 3:1\n" * 24)
    words = [str(class_files / word) if Path(word).suffix else word for word in args.split()]
    run.fails("evaluate", class_model, *words, naming=naming)


def test_models_of_many_labels_refuse_what_is_for_classes(
    files: Path, class_files: Path, model: Path, tmp_path: Path, run: Run
) -> None:
    for option in (["--first-label"], ["--label-column", "y"]):
        run.fails(
            *("evaluate", model, files / "test.txt", *option),
            naming=f"{option[0]} is for one class per row, but {model} is for many labels per row",
        )
    names = ("--labels", class_files / "test-names.txt")
    run.fails("evaluate", model, files / "test.txt", *names, naming="test.txt: has labels of its own, and")
    run.fails("evaluate", model, class_files / "test.npy", naming="test.npy: holds inputs without labels or classes")
    for option, naming in (
        (["--per-class", tmp_path / "o.txt"], "--per-class must end in .csv or .tsv"),
        (["--plot", tmp_path / "o.csv"], "--plot must end in .png, .svg, .pdf"),
    ):
        run.fails("evaluate", model, files / "test.txt", *option, naming=naming)


def test_models_of_many_labels_predict_arrays(files: Path, model: Path, tmp_path: Path, run: Run) -> None:
    from extremegp.data import read_xc

    np.save(tmp_path / "x.npy", read_xc(files / "test.txt").X.toarray())
    outs = [tmp_path / "sparse.tsv", tmp_path / "dense.tsv"]
    for data, out in zip((files / "test.txt", tmp_path / "x.npy"), outs, strict=True):
        assert run("predict", model, data, "--out", out, "--quiet").exit_code == 0
    sparse, dense = (pd.read_csv(out, sep="\t") for out in outs)
    pd.testing.assert_frame_equal(sparse, dense, rtol=1e-4)
