"""Many labels per row in the files that people have: tables, arrays with labels beside, corpora and vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from tests.cli.conftest import QUICK, Run

import extremegp
from extremegp import MultiLabelGPClassifier
from extremegp.data import read_records

# Some rows of the corpora have no label, and so no word.
pytestmark = pytest.mark.filterwarnings("ignore:.* texts have no word that is known from training")

WORDS = {"red": "red", "fruit": "apple", "vehicle": "car"}
OPTIONS = ("--text-column", "title", "--text-column", "body")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 rows whose labels are told by words of their texts, and by the signs of three numbers."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    for part, n_rows in (("train", 60), ("test", 20)):
        Y = rng.random((n_rows, 3)) < 0.4
        names = [[name for name, has in zip(WORDS, row, strict=True) if has] for row in Y]
        frame = pd.DataFrame(
            {
                "sku": [f"{part}-{i}" for i in range(n_rows)],
                "title": [" ".join(WORDS[name] for name in row) for row in names],
                "body": [f"thing{i % 2}" for i in range(n_rows)],
                "tags": [";".join(row) for row in names],
            }
        )
        for k, name in enumerate(WORDS):
            frame[f"tag_{name}"] = Y[:, k].astype(int)
            frame[f"emb_{k}"] = np.where(Y[:, k], 1.0, -1.0) + 0.1 * rng.normal(size=n_rows)
        frame.to_csv(folder / f"{part}.csv", index=False)
        frame.to_csv(folder / f"{part}.tsv", index=False, sep="\t")
        emb = frame[["emb_0", "emb_1", "emb_2"]].to_numpy(np.float32)
        frame.assign(tags=names, emb=list(emb)).to_parquet(folder / f"{part}.parquet")
        records = [{"title": t, "tags": n, "emb": e.tolist()} for t, n, e in zip(frame.title, names, emb, strict=True)]
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        np.save(folder / f"{part}.npy", emb)
        scipy.sparse.save_npz(folder / f"{part}-sparse.npz", scipy.sparse.csr_matrix(emb))
        np.savez(folder / f"{part}.npz", X=emb, y=Y.astype(np.int8))
        np.save(folder / f"{part}-labels.npy", Y.astype(np.int8))
        scipy.sparse.save_npz(folder / f"{part}-labels.npz", scipy.sparse.csr_matrix(Y.astype(np.int8)))
        (folder / f"{part}-tags.txt").write_text("".join(";".join(row) + "\n" for row in names))
        uris = [" ".join(f"<http://e.org/{name}>" for name in row) for row in names]
        lines = zip(frame.title, uris, strict=True)
        (folder / f"{part}-corpus.tsv").write_text("".join(f"{text}\t{uri}\n" for text, uri in lines))
        corpus = pd.DataFrame({"document_id": frame.sku, "text": frame.title, "subject_uris": uris})
        corpus.to_csv(folder / f"{part}-corpus.csv", index=False)
        (folder / part).mkdir()
        for sku, title, row in zip(frame.sku, frame.title, names, strict=True):
            (folder / part / f"{sku}.txt").write_text(title)
            (folder / part / f"{sku}.tsv").write_text("".join(f"<http://e.org/{name}>\t{name}\n" for name in row))
    (folder / "vocabulary.tsv").write_text("<http://e.org/red>\tRed things\n<http://e.org/fruit>\tFruit\n")
    return folder


FORMATS: dict[str, tuple[str, list[str], list[str]]] = {
    "csv, lists": ("{}.csv", ["--labels-column", "tags", "--label-separator", ";"], [*OPTIONS]),
    "csv, 0 and 1": ("{}.csv", ["--label-columns", "tag_*"], ["--text-column", "title"]),
    "csv, numbers": ("{}.csv", ["--label-columns", "tag_*"], ["--vector-column", "emb_*"]),
    "tsv": ("{}.tsv", ["--labels-column", "tags", "--label-separator", ";"], [*OPTIONS]),
    "parquet, lists": ("{}.parquet", ["--labels-column", "tags"], [*OPTIONS]),
    "parquet, vectors": ("{}.parquet", ["--labels-column", "tags"], ["--vector-column", "emb"]),
    "jsonl, other keys": ("{}.jsonl", ["--labels-column", "tags"], ["--text-column", "title"]),
    "jsonl, vectors": ("{}.jsonl", ["--labels-column", "tags"], ["--text-column", "title"]),
    "csv, texts and vectors": (
        "{}.csv",
        ["--label-columns", "tag_*"],
        ["--text-column", "body", "--vector-column", "emb_*"],
    ),
    "jsonl, texts and vectors": (
        "{}.jsonl",
        ["--labels-column", "tags"],
        ["--text-column", "title", "--vector-column", "emb"],
    ),
    "csv, vectors beside texts": (
        "{}.csv",
        ["--label-columns", "tag_*"],
        ["--text-column", "body", "--vectors", "{}.npy"],
    ),
    "csv, vectors apart": ("{}.csv", ["--label-columns", "tag_*", "--vectors", "{}.npy"], []),
    "csv, labels apart": ("{}.csv", ["--labels", "{}-tags.txt", "--label-separator", ";"], ["--text-column", "title"]),
    "npy, lists": ("{}.npy", ["--labels", "{}-tags.txt", "--label-separator", ";"], []),
    "npy, matrix": ("{}.npy", ["--labels", "{}-labels.npy"], []),
    "npy, sparse matrix": ("{}.npy", ["--labels", "{}-labels.npz"], []),
    "npz": ("{}.npz", ["--task", "multilabel"], []),
    "sparse": ("{}-sparse.npz", ["--labels", "{}-tags.txt", "--label-separator", ";"], []),
    "annif, tsv": ("{}-corpus.tsv", [], []),
    "annif, csv": ("{}-corpus.csv", [], []),
    "annif, folder": ("{}", [], []),
}


def _arguments(folder: Path, part: str, data: str, options: list[str]) -> list[object]:
    return [folder / data.format(part), *(str(folder / o.format(part)) if "{}" in o else o for o in options)]


@pytest.mark.parametrize("name", FORMATS)
def test_many_labels_are_trained_evaluated_and_predicted(folder: Path, tmp_path: Path, run: Run, name: str) -> None:
    data, labelled, inputs = FORMATS[name]
    model, out = tmp_path / "model", tmp_path / "out.jsonl"
    args = _arguments(folder, "train", data, [*labelled, *inputs])
    result = run("train", *args, "--out", model, *QUICK)
    assert (result.exit_code, result.output) == (0, "")
    trained = extremegp.load(model)
    assert isinstance(trained, MultiLabelGPClassifier)
    texts = "--text-column" in inputs or name.startswith("annif")
    vectors = not {"--vector-column", "--vectors"}.isdisjoint([*labelled, *inputs])
    expected = ("blocks" if vectors else "text") if texts else "unit" if name == "sparse" else "standard"
    assert trained.features_.kind == expected
    test = _arguments(folder, "test", data, [*(o for o in labelled if o not in ("--task", "multilabel")), *inputs])
    metrics = json.loads(run("evaluate", model, *test, "--json", "-").stdout)["metrics"]
    # Of a row without labels every ranking counts as nothing.
    assert metrics["nDCG@3"] > 0.95 * pd.read_csv(folder / "test.csv").tags.notna().mean()
    new = _arguments(folder, "test", "{}.npy" if "--vectors" in labelled else data, inputs)
    assert run("predict", model, *new, "--out", out, "-q").exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 20
    has_ids = data in ("{}-corpus.csv", "{}")
    assert [row.get("id") for row in rows] == [f"test-{i}" for i in _order(data)] if has_ids else [None] * 20


def _order(data: str) -> list[int]:
    return sorted(range(20), key=str) if data == "{}" else list(range(20))


def test_the_shell_trains_what_the_library_does(folder: Path, tmp_path: Path, run: Run) -> None:
    args = (*OPTIONS, "--labels-column", "tags", "--label-separator", ";", "--seed", 3, *QUICK)
    assert run("train", folder / "train.csv", *args, "--out", tmp_path / "m").exit_code == 0
    train, test = (
        read_records(folder / f"{part}.csv", text=["title", "body"], labels="tags", label_separator=";")
        for part in ("train", "test")
    )
    classifier = MultiLabelGPClassifier(features="text", epochs=20, n_inducing=10, random_state=3)
    classifier.fit(train.texts, train.labels)
    np.testing.assert_array_equal(
        classifier.predict_proba(test.texts), extremegp.load(tmp_path / "m").predict_proba(test.texts)
    )


def test_rows_count_by_their_weights(folder: Path, tmp_path: Path, run: Run) -> None:
    frame = pd.read_csv(folder / "train.csv").fillna({"title": ""})
    frame.assign(weight=[1] * 40 + [0] * 20).to_csv(tmp_path / "weighted.csv", index=False)
    frame[:40].to_csv(tmp_path / "fewer.csv", index=False)
    columns = ("--text-column", "title", "--label-columns", "tag_*")
    args = (*columns, "--weight-column", "weight", "--out", tmp_path / "m", *QUICK)
    assert run("train", tmp_path / "weighted.csv", *args).exit_code == 0
    assert run("train", tmp_path / "fewer.csv", *columns, "--out", tmp_path / "n", *QUICK).exit_code == 0
    texts = (frame.title + " red")[40:].tolist()
    weighted, fewer = (extremegp.load(tmp_path / name).predict_proba(texts) for name in "mn")
    np.testing.assert_array_equal(weighted, fewer)
    frame.assign(weight=-1).to_csv(tmp_path / "negative.csv", index=False)
    args = (*columns, "--weight-column", "weight", "--out", tmp_path / "o", *QUICK)
    run.fails("train", tmp_path / "negative.csv", *args, naming="must be finite and not negative")


def test_columns_of_shares_are_soft_labels(folder: Path, tmp_path: Path, run: Run) -> None:
    frame = pd.read_csv(folder / "train.csv").fillna({"title": ""}).assign(tag_red=0.25)
    frame.to_csv(tmp_path / "soft.csv", index=False)
    args = ("--text-column", "title", "--label-columns", "tag_*", "--out", tmp_path / "m", *QUICK)
    assert run("train", tmp_path / "soft.csv", *args).exit_code == 0
    model = extremegp.load(tmp_path / "m")
    red = model.predict_proba((frame.title + " car").tolist())[:, model.classes_.tolist().index("tag_red")]
    assert 0.15 < red.mean() < 0.35


def test_ids_are_kept(folder: Path, tmp_path: Path, run: Run) -> None:
    args = (*OPTIONS, "--labels-column", "tags", "--label-separator", ";", "--id-column", "sku")
    assert run("train", folder / "train.csv", *args, "--out", tmp_path / "m", *QUICK).exit_code == 0
    assert run("convert", folder / "train.csv", tmp_path / "train", *args, "-q").exit_code == 0
    assert (
        run("convert", folder / "test.csv", tmp_path / "test", *args, "--like", tmp_path / "train", "-q").exit_code == 0
    )
    features = ("--features", "tfidf")
    assert run("train", tmp_path / "train", *features, "--out", tmp_path / "mapped", *QUICK).exit_code == 0
    args = ("--out", tmp_path / "x.tsv", "-q")
    found = []
    of_table = [folder / "test.csv", *OPTIONS, "--id-column", "sku"]
    for model, data in ((tmp_path / "m", of_table), (tmp_path / "mapped", [tmp_path / "test"])):
        assert run("predict", model, *data, *args).exit_code == 0
        found.append(pd.read_csv(tmp_path / "x.tsv", sep="\t"))
        assert found[-1].columns.tolist() == ["row", "id", "rank", "label", "probability"]
    assert found[0].id.tolist() == [f"test-{i}" for i in range(20) for _ in range(3)]
    pd.testing.assert_frame_equal(found[0][["row", "id", "rank", "label"]], found[1][["row", "id", "rank", "label"]])
    np.testing.assert_allclose(found[0].probability, found[1].probability, atol=1e-4)


@pytest.mark.parametrize("data", ["train-corpus.tsv", "train-corpus.csv", "train"])
def test_corpora_convert_to_what_training_reads(folder: Path, tmp_path: Path, run: Run, data: str) -> None:
    assert run("convert", folder / data, tmp_path / "d", "-q").exit_code == 0
    assert run("train", folder / data, "--out", tmp_path / "text", *QUICK).exit_code == 0
    assert run("train", tmp_path / "d", "--features", "tfidf", "--out", tmp_path / "mapped", *QUICK).exit_code == 0
    text, mapped = (extremegp.load(tmp_path / name) for name in ("text", "mapped"))
    assert text.classes_.tolist() == mapped.classes_.tolist() == sorted(f"http://e.org/{name}" for name in WORDS)
    assert text.settings_.n_features == mapped.settings_.n_features


def test_a_vocabulary_names_labels_and_tells_of_others(folder: Path, tmp_path: Path, run: Run) -> None:
    model, vocabulary = tmp_path / "m", ("--vocabulary", folder / "vocabulary.tsv")
    result = run("train", folder / "train-corpus.tsv", *vocabulary, "--out", model, *QUICK)
    assert result.exit_code == 0
    assert "1 labels (" in result.stderr
    assert "unknown to the vocabulary, and kept: http://e.org/vehicle" in result.stderr
    assert extremegp.load(model).label_titles_ == ["Fruit", "Red things", "http://e.org/vehicle"]
    line = json.loads(run("predict", model, folder / "test-corpus.tsv", "--out", "-").stdout.splitlines()[0])
    titles = {"http://e.org/red": "Red things", "http://e.org/fruit": "Fruit"}
    assert line["names"] == [titles.get(label, label) for label in line["labels"]]
    assert "Fruit (http://e.org/fruit)" in run("info", model).stdout.replace("\n", "")
    per_class = tmp_path / "each.csv"
    shown = run("evaluate", model, folder / "test-corpus.tsv", "--per-class", per_class, "--json", "-").stdout
    assert json.loads(shown)["labels"]["http://e.org/red"]["name"] == "Red things"
    assert pd.read_csv(per_class).name.tolist() == ["Fruit", "Red things", "http://e.org/vehicle"]
    table = run("predict", model, folder / "test-corpus.tsv", "--out", "-", "--to", "csv").stdout.splitlines()
    assert table[0] == "row,rank,label,name,probability"
    (folder / "new.tsv").write_text("".join(f"<http://e.org/{name}>\tNew {name}\n" for name in WORDS))
    args = ("--vocabulary", folder / "new.tsv", "--out", "-")
    line = json.loads(run("predict", model, folder / "test-corpus.tsv", *args).stdout.splitlines()[0])
    assert line["names"] == [f"New {label.rpartition('/')[2]}" for label in line["labels"]]


def test_deprecated_labels_are_replaced(folder: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "v.ttl").write_text(
        "@prefix skos: <http://www.w3.org/2004/02/skos/core#> . @prefix owl: <http://www.w3.org/2002/07/owl#> .\n"
        "@prefix dct: <http://purl.org/dc/terms/> . @prefix e: <http://e.org/> .\n"
        'e:red a skos:Concept ; skos:prefLabel "Red"@en . e:fruit a skos:Concept ; skos:prefLabel "Fruit"@en .\n'
        "e:vehicle a skos:Concept ; owl:deprecated true ; dct:isReplacedBy e:red .\n"
    )
    args = ("--vocabulary", tmp_path / "v.ttl", "--out", tmp_path / "m", *QUICK)
    result = run("train", folder / "train-corpus.tsv", *args)
    assert result.exit_code == 0
    assert "deprecated, and replaced" in result.stderr
    assert extremegp.load(tmp_path / "m").label_titles_ == ["Fruit", "Red"]


def test_classes_of_texts_and_vectors_in_a_table(folder: Path, tmp_path: Path, run: Run) -> None:
    args = ("--text-column", "title", "--vector-column", "emb_*", "--label-column", "body")
    assert run("train", folder / "train.csv", *args, "--out", tmp_path / "m", *QUICK).exit_code == 0
    result = json.loads(run("evaluate", tmp_path / "m", folder / "test.csv", *args, "--json", "-").stdout)
    assert result["n_rows"] == 20
    text = ("--text-column", "title", "--label-column", "body")
    naming = "holds texts in a table, but texts and feature vectors are needed, as in training: name vectors beside"
    run.fails("evaluate", tmp_path / "m", folder / "test.csv", *text, naming=naming)
    np.save(tmp_path / "few.npy", np.ones((19, 3)))
    args = (*text, "--vectors", tmp_path / "few.npy")
    run.fails("evaluate", tmp_path / "m", folder / "test.csv", *args, naming="few.npy: has 19 vectors, but")
    np.save(tmp_path / "wide.npy", np.ones((20, 4)))
    args = (*text, "--vectors", tmp_path / "wide.npy")
    run.fails("evaluate", tmp_path / "m", folder / "test.csv", *args, naming="has 4 features, but the model has 3")


def test_classes_of_texts_in_a_table(folder: Path, tmp_path: Path, run: Run) -> None:
    args = ("--text-column", "title", "--label-column", "body", "--out", tmp_path / "m", *QUICK)
    assert run("train", folder / "train.csv", *args).exit_code == 0
    args = ("--text-column", "title", "--label-column", "body")
    assert json.loads(run("evaluate", tmp_path / "m", folder / "test.csv", *args, "--json", "-").stdout)["n_rows"] == 20


@pytest.mark.parametrize("sample", ["train.npy --labels full.txt", "full.csv --text-column title --label-column tags"])
def test_lists_of_labels_are_not_taken_for_classes(folder: Path, tmp_path: Path, run: Run, sample: str) -> None:
    frame = pd.read_csv(folder / "train.csv").fillna({"tags": "red"})
    frame.to_csv(folder / "full.csv", index=False)
    (folder / "full.txt").write_text("".join(f"{tags}\n" for tags in frame.tags))
    words = [str(folder / word) if Path(word).suffix else word for word in sample.split()]
    args = ("--out", tmp_path / "m", *QUICK)
    line = run.fails("train", *words, *args, naming="looks like several labels with ';' between them")
    assert "--task multilabel" in line
    assert "--task multiclass" in line
    assert list(tmp_path.iterdir()) == []
    assert run("train", *words, "--task", "multiclass", *args).exit_code == 0
    assert "red;fruit" in extremegp.load(tmp_path / "m").classes_


def test_labels_beside_those_that_data_have_are_asked_about(files: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "tags.txt").write_text("a;b\n" * 60)
    args = ("--labels", tmp_path / "tags.txt", "--label-separator", ";", "--out", tmp_path / "m", *QUICK)
    for name in ("train.jsonl", "train.txt"):
        line = run.fails("train", files / name, *args, naming=f"{name}: has labels of its own, and")
        assert "--ignore-labels" in line
    assert run("train", files / "train.jsonl", "--ignore-labels", *args).exit_code == 0
    assert extremegp.load(tmp_path / "m").classes_.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("args", "naming"),
    [
        ("train.csv", "train.csv: nothing says which columns have the labels"),
        ("train.csv --labels-column tags --text-column title", "train.csv:2: the column 'tags'"),
        ("train.csv --labels-column tags --label-columns tag_*", "both say which labels rows have"),
        ("train.csv --text-column name --label-columns tag_*", "has no column 'name'"),
        ("train.csv --text-column title --label-columns label_*", "has no columns like 'label_*'"),
        ("train.csv --label-separator ; --text-column title", "--label-separator goes with --labels-column"),
        ("train.npy --labels train-tags.txt --text-column title", "--text-column is for tables"),
        ("train.npy --labels test-tags.txt --label-separator ;", "test-tags.txt: has 20 labels, but"),
        ("train.csv --label-columns tag_* --vector-column emb_* --vectors train.npy", "--vectors and --vector-column"),
        ("train.csv --label-columns tag_* --text-column title --features unit", "features must be text"),
        ("train-corpus.tsv --valid test.csv", "error"),
    ],
)
def test_what_cannot_be_is_named(folder: Path, tmp_path: Path, run: Run, args: str, naming: str) -> None:
    words: list[Any] = [folder / word if Path(word).suffix else word for word in args.split()]
    run.fails("train", *words, "--out", tmp_path / "m", *QUICK, naming=naming)


def test_columns_of_labels_may_come_in_another_order(folder: Path, tmp_path: Path, run: Run) -> None:
    args = ("--text-column", "title", "--label-columns", "tag_*")
    assert run("train", folder / "train.csv", *args, "--out", tmp_path / "m", *QUICK).exit_code == 0
    frame = pd.read_csv(folder / "test.csv")
    frame[frame.columns[::-1]].to_csv(tmp_path / "turned.csv", index=False)
    results = [
        json.loads(run("evaluate", tmp_path / "m", file, *args, "--json", "-").stdout)["metrics"]["P@1"]
        for file in (folder / "test.csv", tmp_path / "turned.csv")
    ]
    assert results[0] == results[1] > 0.6
    frame.rename(columns={"tag_red": "tag_blue"}).to_csv(tmp_path / "other.csv", index=False)
    run.fails(
        "evaluate", tmp_path / "m", tmp_path / "other.csv", *args, naming="only one of the two has tag_blue, tag_red"
    )
