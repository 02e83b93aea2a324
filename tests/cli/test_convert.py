from __future__ import annotations

import bz2
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from tests.cli.conftest import QUICK, Run

from extremegp.cli.convert import Watch
from extremegp.data import (
    convert,
    make_features,
    mapped,
    mapped_writer,
    open_dataset,
    read_dataset,
    words,
    write_jsonl,
    write_xc,
)
from extremegp.data.mapped_writer import MappedWriter
from extremegp.data.record_streams import TextFile
from extremegp.data.svmlight import SvmlightStream
from extremegp.errors import DataError, SettingsError
from extremegp.storage.streams import text_blocks

READERS = ("extremegp.data.xc", "extremegp.data.svmlight", "extremegp.data.text")
TEXTS = ["red apple", "green apple red", "red car", "green car", "a lone word", "apple car apple"]
TAGS = [["fruit", "red"], ["fruit"], ["red"], [], ["zest"], ["fruit", "car"]]


def small_blocks(patch: pytest.MonkeyPatch, block_bytes: int) -> None:
    for module in READERS:
        patch.setattr(f"{module}.text_blocks", partial(text_blocks, block_bytes=block_bytes))


def source(folder: Path, kind: str, n_rows: int = 24) -> Path:
    rng = np.random.default_rng(0)
    x = np.round(rng.random((n_rows, 9)), 2) * (rng.random((n_rows, 9)) < 0.5)
    x[0, 8] = 1
    y = (rng.random((n_rows, 4)) < 0.4).astype(int)
    y[0, 3] = 1
    path = folder / {"xc": "data.txt", "svmlight": "data.svm", "jsonl": "data.jsonl"}[kind]
    if kind == "xc":
        write_xc(path, x, y)
    elif kind == "svmlight":
        rows = ("# by hand\n" + svm_row(x[i], y[i]) + "\n" * (i % 3) for i in range(n_rows))
        path.write_text("".join(rows))
    else:
        write_jsonl(path, TEXTS * (n_rows // 6), TAGS * (n_rows // 6))
    return path


def svm_row(x: Any, y: Any) -> str:
    return ",".join(map(str, np.flatnonzero(y))) + "".join(f" {j + 1}:{x[j]}" for j in np.flatnonzero(x)) + "\n"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def same(a: csr_matrix, b: csr_matrix) -> bool:
    return a.shape == b.shape and all(
        np.array_equal(getattr(a, part), getattr(b, part)) for part in ("indptr", "indices", "data")
    )


@pytest.mark.parametrize("kind", ["xc", "svmlight"])
@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_a_converted_file_equals_what_its_reader_gives(tmp_path: Path, run: Run, kind: str, suffix: str) -> None:
    path = source(tmp_path, kind)
    expected = read_dataset(path)
    if suffix:
        compress = {".gz": gzip.compress, ".bz2": bz2.compress}[suffix]
        path = path.with_name(path.name + suffix)
        path.write_bytes(compress(path.with_suffix("").read_bytes()))
    result = run("convert", path, tmp_path / "out")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "24 rows, 9 features, 4 labels" in result.stdout
    data = open_dataset(tmp_path / "out")
    assert same(data.X, expected.X)
    assert same(data.Y, expected.Y)
    np.testing.assert_array_equal(data.first_labels, expected.first_labels)
    assert not list((tmp_path / "out").glob("*.part"))
    assert not (tmp_path / "out" / "progress.json").exists()


values = st.sampled_from(["1", "0", "-2.5", "1e-3", "0.0", "7"])
lines = st.tuples(st.lists(st.integers(0, 5), max_size=3, unique=True), st.dictionaries(st.integers(0, 6), values))


@given(rows=st.lists(lines, min_size=1, max_size=12), block_bytes=st.integers(1, 80), first=st.sampled_from([0, 1]))
def test_any_rows_in_blocks_of_any_size(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[list[int], dict[int, str]]],
    block_bytes: int,
    first: int,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    text = [
        ",".join(map(str, labels)) + " " + " ".join(f"{j + first}:{v}" for j, v in sorted(pairs.items()))
        for labels, pairs in rows
    ]
    (folder / "a.txt").write_text(f"{len(rows)} 9 6\n" + "\n".join(text) + "\n", newline="\r\n")
    # Rows of neither labels nor features are blank lines in this format.
    (folder / "a.svm").write_text("9 8:1\n" + "\n".join(text))
    for name, format in (("a.txt", "xc"), ("a.svm", "svmlight")):
        expected = read_dataset(folder / name, format)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            small_blocks(patch, block_bytes)
            convert(folder / name, folder / format, format)  # type: ignore[arg-type]
        data = open_dataset(folder / format)
        assert same(data.X, expected.X)
        assert same(data.Y, expected.Y)
        np.testing.assert_array_equal(data.first_labels, expected.first_labels)


def test_counts_of_texts_weighted_are_what_the_text_features_give(tmp_path: Path, run: Run) -> None:
    path = source(tmp_path, "jsonl")
    assert "--features tfidf" in run("convert", path, tmp_path / "out").stdout
    result = json.loads(run("convert", path, tmp_path / "out", "--overwrite", "--json", "-").stdout)
    assert (result["n_rows"], result["n_labels"], result["vocabulary"]) == (24, 4, True)
    data, texts = open_dataset(tmp_path / "out"), read_dataset(path)
    expected = make_features("text").fit(texts.texts)
    assert (tmp_path / "out" / "vocabulary.txt").read_text().split() == expected._words
    np.testing.assert_array_equal(
        make_features("tfidf").fit(data.X).transform(data.X).toarray(), expected.transform(texts.texts).toarray()
    )
    assert data.label_names == ["car", "fruit", "red", "zest"]
    assert [sorted(data.label_names[k] for k in row.indices) for row in data.Y] == [sorted(tags) for tags in TAGS * 4]
    assert [-1 if k < 0 else data.label_names[k] for k in data.first_labels[:4]] == ["fruit", "fruit", "red", -1]


def test_rare_words_are_forgotten_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(words, "MAX_WORDS", 20)
    path = tmp_path / "many.jsonl"
    write_jsonl(path, [f"common usual rare{i} odd{i}" for i in range(200)], [["a"]] * 200)
    assert words.find_words(TextFile(path, "jsonl")) == (["common", "usual"], ["a"])


def test_test_data_go_like_training_data(tmp_path: Path, run: Run) -> None:
    path, like = source(tmp_path, "jsonl"), tmp_path / "train"
    assert run("convert", path, like, "--quiet").output == ""
    other = tmp_path / "other.jsonl"
    write_jsonl(other, ["apple apple unseen", "lone"], [["novel", "red"], ["novel"]])
    run("convert", other, tmp_path / "test", "--like", like, "--quiet")
    data, train = open_dataset(tmp_path / "test"), open_dataset(like)
    assert data.label_names == train.label_names
    vocabulary = (like / "vocabulary.txt").read_text().split()
    assert [(vocabulary[j], v) for j, v in zip(data.X.indices, data.X.data, strict=True)] == [("apple", 2), ("lone", 1)]
    assert data.Y.toarray().tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
    assert data.first_labels.tolist() == [2, -1]
    write_jsonl(other, ["apple apple unseen", "lone"])
    run.fails("convert", other, tmp_path / "bare", naming='no "labels"')
    convert(other, tmp_path / "without", like=like)
    assert open_dataset(tmp_path / "without").Y.nnz == 0
    run.fails("convert", source(tmp_path, "xc"), tmp_path / "x", "--like", like, naming="made of texts")


def test_svmlight_like_training_data_counts_from_where_it_did(tmp_path: Path, run: Run) -> None:
    convert(source(tmp_path, "svmlight"), tmp_path / "train")
    assert json.loads((tmp_path / "train" / "dataset.json").read_text())["first_feature"] == 1
    other = tmp_path / "other.svm"
    other.write_text("1 1:2\n0 3:1\n")
    convert(other, tmp_path / "test", like=tmp_path / "train")
    data = open_dataset(tmp_path / "test")
    assert (data.X.shape, data.Y.shape) == ((2, 9), (2, 4))
    assert data.X.indices.tolist() == [0, 2]
    other.write_text("1 0:2\n")
    run.fails("convert", other, tmp_path / "bad", "--like", tmp_path / "train", naming="Invalid index 0")
    other.write_text("1 10:2\n")
    run.fails("convert", other, tmp_path / "worse", "--like", tmp_path / "train", naming="10 features but 9")
    (texts := tmp_path / "texts.jsonl").write_text('{"text": "a", "labels": ["b"]}\n')
    run.fails("convert", texts, tmp_path / "texts", "--like", tmp_path / "train", naming="made of numbers")


class Stopped(BaseException):
    """What a kill is to a test: nothing may clean up after it but what also would after a kill."""


@pytest.mark.parametrize("kind", ["xc", "svmlight", "jsonl"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt(), Stopped()])
def test_a_conversion_that_stops_at_any_block_resumes_to_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, failure: BaseException
) -> None:
    path = source(tmp_path, kind)
    small_blocks(monkeypatch, 100)
    convert(path, tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    n_blocks, kept = sum(1 for _ in text_blocks(path, 100)), []
    for stop in range(n_blocks):
        out = tmp_path / f"stopped{stop}"
        append, calls = MappedWriter.append_block, iter(range(stop))

        def failing(self: MappedWriter, rows: Any, calls: Any = calls, append: Any = append) -> None:
            append(self, rows)
            if next(calls, None) is None:
                # What was appended after the last progress is cut off again.
                raise failure

        with monkeypatch.context() as patch:
            patch.setattr(MappedWriter, "append_block", failing)
            with pytest.raises(type(failure)):
                convert(path, out)
        assert not (out / "dataset.json").exists()
        with pytest.raises(DataError, match="unfinished"):
            open_dataset(out)
        rows = json.loads((out / "progress.json").read_text())["done"][0]
        kept.append(rows)
        watch = Watching()
        convert(path, out, watch=watch)
        assert watch.told == [("resumed", rows)]
        assert contents(out) == expected
    assert kept[0] == 0
    assert kept == sorted(kept)
    assert len(set(kept)) == n_blocks


class Watching:
    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.read: list[tuple[str, int, int, int]] = []

    def resumed(self, rows: int) -> None:
        self.told.append(("resumed", rows))

    def restarted(self, reason: str) -> None:
        self.told.append(("restarted", reason))

    def reading(self, phase: str, rows: int, read: int, total: int) -> None:
        self.read.append((phase, rows, read, total))


def test_what_is_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, 100)
    path, watch = source(tmp_path, "jsonl"), Watching()
    convert(path, tmp_path / "out", watch=watch)
    assert [phase for phase, *_ in watch.read] == sorted((phase for phase, *_ in watch.read), reverse=True)
    for wanted in ("words", "rows"):
        told = [(rows, read, total) for phase, rows, read, total in watch.read if phase == wanted]
        size = path.stat().st_size
        assert told == sorted(told)
        assert told[-1] == (24, size, size)


def interrupted(path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, after: int = 2) -> None:
    def failing(self: MappedWriter, rows: Any, calls: Any = iter(range(after))) -> None:  # noqa: B008
        if next(calls, None) is None:
            raise KeyboardInterrupt
        append(self, rows)

    append = MappedWriter.append_block
    with monkeypatch.context() as patch:
        small_blocks(patch, 100)
        patch.setattr(MappedWriter, "append_block", failing)
        with pytest.raises(KeyboardInterrupt):
            convert(path, out)


def test_a_changed_source_starts_anew_with_a_message(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = source(tmp_path, "xc"), tmp_path / "out"
    interrupted(path, out, monkeypatch)
    source(tmp_path, "xc", n_rows=30)
    result = run("convert", path, out)
    assert "has changed since the conversion began; starting anew" in result.stderr
    assert open_dataset(out).X.shape[0] == 30


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"source": 1}', b"\xff"])
def test_damaged_progress_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes) -> None:
    path, out = source(tmp_path, "xc"), tmp_path / "out"
    interrupted(path, out, monkeypatch)
    (out / "progress.json").write_bytes(damage)
    convert(path, out)
    assert same(open_dataset(out).X, read_dataset(path).X)


def test_progress_that_promises_too_much_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = source(tmp_path, "svmlight"), tmp_path / "out"
    interrupted(path, out, monkeypatch)
    saved = json.loads((out / "progress.json").read_text())
    (out / "progress.json").write_text(json.dumps(saved | {"done": [10**6, 10**6, 10**6]}))
    with pytest.raises(DataError, match="shorter than the progress"):
        convert(path, out)
    (out / "progress.json").write_text(json.dumps(saved | {"learnt": {}}))
    with pytest.raises(DataError, match=r"progress\.json: is damaged"):
        convert(path, out)


def test_what_is_there_already_is_not_replaced_unasked(tmp_path: Path, run: Run) -> None:
    path, out = source(tmp_path, "xc"), tmp_path / "out"
    run("convert", path, out)
    run.fails("convert", path, out, naming="--overwrite")
    other = source(tmp_path, "svmlight", n_rows=6)
    assert run("convert", other, out, "--overwrite", "--quiet").exit_code == 0
    assert open_dataset(out).X.shape[0] == 6
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("")
    run.fails("convert", path, tmp_path / "thesis", "--overwrite", naming="a folder with other things")
    run.fails("convert", path, path, naming="is a file")
    run.fails("convert", out, tmp_path / "again", naming="converted data set already")
    run.fails("convert", tmp_path / "absent", tmp_path / "again", naming="no such file")
    run.fails("convert", path, tmp_path / "again", "--like", tmp_path / "absent", naming="no such folder")
    assert not (tmp_path / "again").exists()
    with pytest.raises(SettingsError, match="format must be"):
        convert(path, tmp_path / "again", "csv")  # type: ignore[arg-type]


def test_a_bad_row_is_named_and_can_be_corrected(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, 100)
    path, out = source(tmp_path, "xc"), tmp_path / "out"
    text = path.read_text()
    path.write_text(text.replace("\n", "\n9 0:x\n", 15).replace("\n9 0:x\n", "\n", 14))
    run.fails("convert", path, out, naming="data.txt:16: ")
    path.write_text(text)
    assert run("convert", path, out, "--quiet").exit_code == 0


def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source(tmp_path, "svmlight")
    sizes = SvmlightStream.sizes

    def touched(self: SvmlightStream) -> Any:
        os.utime(path, ns=(0, 0))
        return sizes(self)

    monkeypatch.setattr(SvmlightStream, "sizes", touched)
    with pytest.raises(DataError, match="has changed while it was converted"):
        convert(path, tmp_path / "out")


def test_files_without_rows(tmp_path: Path, run: Run) -> None:
    for name, text, problem in (
        ("a.jsonl", "\n\n", "no word"),
        ("b.jsonl", '{"text": "a word", "labels": []}\n' * 2, "no row has any label"),
        ("c.jsonl", '{"text": "a word", "labels": ["x\\ny"]}\n' * 2, "line break"),
        ("d.svm", "# nothing\n", "no rows"),
        ("e.txt", "3 2 2\n0 0:1\n", "only 1 follow"),
    ):
        (tmp_path / name).write_text(text)
        run.fails("convert", tmp_path / name, tmp_path / f"{name}.out", naming=problem)


def test_interruptions_end_with_130_and_a_line(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(MappedWriter, "append_block", stopped)
    result = run("convert", source(tmp_path, "xc"), tmp_path / "out")
    assert result.exit_code == 130
    assert result.stderr == "interrupted; what is done is kept: the same command goes on\n"


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monotonic, clock = time.monotonic, iter([0.0, 0.0, 0.0, 20.0, 21.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    watch = Watch(quiet=False)
    for read in (1 << 20, 3 << 20, 4 << 20):
        watch.reading("rows", 7, read, 5 << 20)
    assert capsys.readouterr().err == "rows: 7 rows, 3 of 5 MiB, 20 s so far\n"
    monkeypatch.setattr(time, "monotonic", monotonic)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    watch = Watch(quiet=False)
    watch.reading("rows", 1234, 1 << 20, 5 << 20)
    watch.bar.close()
    assert "1234" in capsys.readouterr().err


def test_train_evaluate_and_predict_take_the_folder(tmp_path: Path, run: Run, files: Path) -> None:
    for name in ("train", "test"):
        like = ("--like", tmp_path / "train") if name == "test" else ()
        run("convert", files / f"{name}.txt", tmp_path / name, *like, "--quiet")
    models = {"text": (files / "train.txt", files / "test.txt"), "folder": (tmp_path / "train", tmp_path / "test")}
    outputs = []
    for name, (train, test) in models.items():
        model = tmp_path / f"model-{name}"
        assert run("train", train, "--out", model, "--valid", test, *QUICK).exit_code == 0
        result = run("evaluate", model, test, "--json", "-")
        metrics = json.loads(result.stdout)["metrics"]
        del metrics["seconds"]
        run("predict", model, test, "--out", tmp_path / f"{name}.tsv", "--quiet")
        outputs.append((metrics, (tmp_path / f"{name}.tsv").read_text()))
    assert outputs[0] == outputs[1]


def test_names_of_labels_go_with_the_data(tmp_path: Path, run: Run, files: Path) -> None:
    convert(files / "train.jsonl", tmp_path / "train")
    convert(files / "test.jsonl", tmp_path / "test", like=tmp_path / "train")
    write_jsonl(tmp_path / "other.jsonl", ["word0 filler word1 word2 word3"] * 2, [["x", "y", "z", "w"]] * 2)
    convert(tmp_path / "other.jsonl", tmp_path / "other")
    model = tmp_path / "model"
    assert run("train", tmp_path / "train", "--features", "tfidf", "--out", model, *QUICK).exit_code == 0
    run("predict", model, tmp_path / "test", "--out", tmp_path / "out.tsv", "--top-k", 1, "--quiet")
    assert "tag" in (tmp_path / "out.tsv").read_text()
    run.fails("evaluate", model, tmp_path / "other", naming="labels of other names")
    run.fails("predict", model, files / "test.jsonl", "--out", tmp_path / "x.tsv", naming="feature vectors are needed")
    run.fails("train", tmp_path / "train", "--features", "text", "--out", tmp_path / "m", naming="converted data set")


def test_classes_of_a_converted_data_set(tmp_path: Path, run: Run, class_files: Path) -> None:
    convert(class_files / "train.txt", tmp_path / "train")
    result = run("train", tmp_path / "train", "--task", "multiclass", "--out", tmp_path / "model", *QUICK)
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["xc", "svmlight", "jsonl"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    small_blocks(monkeypatch, 1 << 16)
    for module in (mapped, mapped_writer):
        monkeypatch.setattr(module, "BLOCK_ROWS", 1 << 10)
    peaks = []
    for n_rows in (6_000, 60_000):
        path = source(tmp_path, kind, n_rows)
        convert(path, tmp_path / "first", overwrite=True)
        tracemalloc.start()
        convert(path, tmp_path / "out", overwrite=True)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_process_resumes(tmp_path: Path, number: signal.Signals) -> None:
    rng = np.random.default_rng(0)
    x = csr_matrix((rng.random((60_000, 300)) < 0.2).astype(np.float32))
    path = tmp_path / "data.txt"
    write_xc(path, x, csr_matrix(np.eye(10, dtype=np.float32)[rng.integers(10, size=60_000)]))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "extremegp", "convert", str(path), str(out), "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (out / "x_data.part").exists() or (out / "x_data.part").stat().st_size < 10_000:
        assert process.poll() is None
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.2))
    process.send_signal(number)
    assert process.wait() != 0, "the conversion ended before the signal came"
    subprocess.run(command, check=True)
    assert same(open_dataset(out).X, x)


def test_what_words_are_is_set_as_in_training(tmp_path: Path, run: Run) -> None:
    data = tmp_path / "d.jsonl"
    write_jsonl(data, ["Red car", "red Car", "car"] * 2, [["a"], ["b"], ["a"]] * 2)
    args = ("--set", "lowercase=false", "--set", "ngram_range=1,2", "-q")
    assert run("convert", data, tmp_path / "d", *args).exit_code == 0
    words = (tmp_path / "d" / "vocabulary.txt").read_text().split("\n")[:-1]
    assert words == ["Car", "Red", "Red car", "car", "red", "red Car"]
    run.fails("convert", data, tmp_path / "e", "--set", "epochs=3", naming="--set: the parameter 'epochs' is unknown")
    naming = "--like takes words as the other data set has them"
    run.fails("convert", data, tmp_path / "e", "--like", tmp_path / "d", *args[:2], naming=naming)
