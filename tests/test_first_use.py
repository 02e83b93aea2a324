"""What everyone does first, with every kind of model and file, on nothing but the package and what it needs.

Continuous integration runs this file, with `--noconftest`, on the oldest versions that `pyproject.toml` allows and on
each Python.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from typer.testing import CliRunner

import extremegp
from extremegp import (
    LabelTreeGPClassifier,
    MultiClassGPClassifier,
    MultiLabelGPClassifier,
    SequenceGPClassifier,
    load,
    plots,
)
from extremegp.cli import app
from extremegp.data import read_jsonl, read_svmlight, read_xc, write_jsonl, write_xc

WORDS = ("apple", "birch", "cedar", "daisy")
CODES = np.arange(60) % len(WORDS)
TEXTS = [f"{WORDS[code]} number {row}" for row, code in enumerate(CODES)]
LABELS = [[WORDS[code], "plant"] for code in CODES]
VECTORS = (np.eye(len(WORDS))[CODES] + np.random.default_rng(0).normal(scale=0.1, size=(60, 4))).astype(np.float32)
SENTENCES = [[{"word": WORDS[(start + step) % 4]} for step in range(3)] for start in range(12)]
TAGS = [[token["word"].upper() for token in sentence] for sentence in SENTENCES]
QUICK: dict[str, Any] = {"random_state": 0, "verbose": False}


def many_labels(**changes: Any) -> MultiLabelGPClassifier:
    return MultiLabelGPClassifier(**{"n_inducing": 8, "n_latent": 4, "epochs": 30, **QUICK, **changes})


@pytest.mark.parametrize(
    ("classifier", "X", "Y"),
    [
        (many_labels(features="text"), TEXTS, LABELS),
        (many_labels(optimizer="adam", posterior="full-u", kernel="se"), csr_matrix(VECTORS), LABELS),
        (LabelTreeGPClassifier(features="text", **QUICK), TEXTS, LABELS),
        (MultiClassGPClassifier(n_inducing=8, epochs=30, **QUICK), VECTORS, np.array(WORDS)[CODES]),
    ],
    ids=["texts", "sparse rows", "tree", "classes"],
)
def test_a_classifier_learns_and_is_the_same_when_loaded(classifier: Any, X: Any, Y: Any, tmp_path: Path) -> None:
    probabilities = classifier.fit(X, Y).predict_proba(X)
    assert np.isfinite(probabilities).all()
    assert classifier.score(X, Y) > 0.9
    classifier.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(X), probabilities)


@pytest.mark.parametrize("latents", ["linear", "random-features", "gp"])
def test_a_tagger_learns_and_is_the_same_when_loaded(latents: str, tmp_path: Path) -> None:
    tagger = SequenceGPClassifier(latents=latents, n_inducing=4, epochs=30, **QUICK).fit(SENTENCES, TAGS)
    assert tagger.score(SENTENCES, TAGS) > 0.9
    tagger.save(tmp_path / "tagger")
    again: Any = load(tmp_path / "tagger")
    for found, expected in zip(again.predict_marginals(SENTENCES), tagger.predict_marginals(SENTENCES), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_files_of_rows_hold_what_was_written(tmp_path: Path) -> None:
    labels = csr_matrix(np.eye(4)[CODES])
    write_xc(tmp_path / "rows.txt", csr_matrix(VECTORS), labels)
    read = read_xc(tmp_path / "rows.txt")
    np.testing.assert_allclose(read.X.toarray(), VECTORS, rtol=1e-5)
    np.testing.assert_array_equal(read.Y.toarray(), labels.toarray())
    (tmp_path / "rows.svm").write_text("0 1:1.5 5:0.25\n1 2:1\n", encoding="utf-8")
    assert read_svmlight(tmp_path / "rows.svm").X.toarray()[0].tolist() == [1.5, 0, 0, 0, 0.25]
    write_jsonl(tmp_path / "rows.jsonl.zst", TEXTS, LABELS)
    assert list(read_jsonl(tmp_path / "rows.jsonl.zst").texts) == TEXTS


def command(*words: object) -> str:
    """Standard output of a command, run in this process."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_is_trained_on_judged_and_predicted_at_a_shell(suffix: str, tmp_path: Path) -> None:
    table = pd.DataFrame(VECTORS, columns=list("abcd")).assign(species=np.array(WORDS)[CODES])
    data = tmp_path / f"table{suffix}"
    table.to_csv(data, index=False) if suffix == ".csv" else table.to_parquet(data)
    model, judged, predicted = tmp_path / "model", tmp_path / "judged.json", tmp_path / "predicted.jsonl"
    command("train", data, "--label-column", "species", "--out", model, "--set", "epochs=30", "--quiet")
    command("evaluate", model, data, "--label-column", "species", "--json", judged, "--plot", tmp_path / "plot.png")
    assert json.loads(judged.read_text(encoding="utf-8"))["metrics"]["accuracy"] > 0.9
    command("predict", model, data, "--out", predicted)
    assert len(predicted.read_text(encoding="utf-8").splitlines()) == len(table)


def test_texts_are_trained_on_at_a_shell_and_the_model_is_the_librarys(tmp_path: Path) -> None:
    data = tmp_path / "texts.jsonl"
    write_jsonl(data, TEXTS, LABELS)
    command("train", data, "--out", tmp_path / "model", "--set", "epochs=30", "--set", "n_inducing=8", "--quiet")
    assert load(tmp_path / "model").score(TEXTS, LABELS) > 0.9
    assert command("--version").strip().endswith(extremegp.__version__)


def test_pictures_are_drawn(tmp_path: Path) -> None:
    classifier = many_labels(features="text").fit(TEXTS, LABELS)
    plots.learning_curve(classifier.history_).savefig(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 0
