"""Small files and one trained model for the tests of the command line."""

from __future__ import annotations

import gzip
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from extremegp.cli import app
from extremegp.data import write_jsonl, write_xc

N_FEATURES, N_LABELS = 8, 4
CLASSES = np.array(["ash", "birch", "cedar"])
QUICK = ("--set", "epochs=20", "--set", "n_inducing=10", "--quiet")
QUICK_TAGGER = ("--preset", "CRF", "--set", "epochs=8")
TEMPLATE = "# words and tags\nU0:%x[0,0]\nU1:%x[-1,1]/%x[0,1]\n\nB\n"
TAGS = {"a": "DT", "the": "DT", "cat": "NN", "dog": "NN", "big": "JJ", "sees": "VB", "runs": "VB"}


class Run:
    """`Run()("train", path, ...)`: a command in this process; a bug surfaces as itself."""

    def __call__(self, *args: object, input: str | None = None) -> Any:
        result = CliRunner().invoke(app, [str(arg) for arg in args], input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def fails(self, *args: object, naming: str) -> str:
        """The one line on standard error of a command that must end with exit code 2."""
        result = self(*args)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("error: ")
        assert naming in result.stderr
        return str(result.stderr)


class Process:
    """A training run in a process of its own that saves its progress after every step."""

    def __init__(self, data: Path, out: Path, *options: str) -> None:
        self.command = [sys.executable, "-m", "extremegp", "train", str(data), "--out", str(out), *options]
        self.command += ["--set", "epochs=60", "--set", "n_inducing=20", "--set", "checkpoint_seconds=0"]
        self.checkpoint = Path(f"{out}.checkpoint")
        self.out = out

    def interrupted(self, number: signal.Signals) -> subprocess.CompletedProcess[str]:
        """Send a signal at some moment after the first progress was saved."""
        process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not self.checkpoint.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.1))
        process.send_signal(number)
        output, errors = process.communicate()
        assert not self.out.exists(), "training ended before the signal came"
        return subprocess.CompletedProcess(self.command, process.returncode, output, errors)

    def finished(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def run() -> Run:
    return Run()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.txt, test.txt (XC), train.jsonl, test.jsonl and names.txt; label k is where feature k is large."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for name, n_rows in (("train", 60), ("test", 20)):
        y = (rng.random((n_rows, N_LABELS)) < 0.4).astype(int)
        x = np.round(rng.random((n_rows, N_FEATURES)), 3)
        x[:, :N_LABELS] += 2 * y
        write_xc(folder / f"{name}.txt", x, y)
        texts = [" ".join(f"word{k}" for k in np.flatnonzero(row)) + " filler" for row in y]
        write_jsonl(folder / f"{name}.jsonl", texts, [[f"tag{k}" for k in np.flatnonzero(row)] for row in y])
    (folder / "names.txt").write_text("red\ngreen, dark\nblue\nblack\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def model(files: Path, run: Run) -> Path:
    """A model of train.txt with label names; tests must not change it."""
    folder = files / "model"
    result = run(
        *("train", files / "train.txt", "--out", folder, "--set", "epochs=40", "--set", "n_inducing=20"),
        *("--labels-names", files / "names.txt", "--quiet"),
    )
    assert (result.exit_code, result.output) == (0, "")
    return folder


@pytest.fixture(scope="session")
def text_model(files: Path, run: Run) -> Path:
    """A model of train.jsonl."""
    folder = files / "text-model"
    result = run("train", files / "train.jsonl", "--out", folder, "--set", "epochs=40", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    return folder


def blobs(part: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Points of the plane around three centres, which no line through the origin has two of, and their centre."""
    rng = np.random.default_rng({"train": 1, "valid": 2, "test": 3}[part])
    codes = rng.permutation(np.arange(60 if part == "train" else 24) % 3)
    points = np.array([[5.0, 1.0], [1.0, 5.0], [-4.0, -4.0]])[codes] + 0.6 * rng.normal(size=(len(codes), 2))
    return np.round(points, 3).astype(np.float32), codes


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()) if path.suffix == ".gz" else header + array.tobytes())


@pytest.fixture(scope="session")
def class_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`blobs` as train, valid and test in every format, with classes by name and by number."""
    folder = tmp_path_factory.mktemp("classes")
    for part in ("train", "valid", "test"):
        x, codes = blobs(part)
        stem, names = str(folder / part), CLASSES[codes]
        np.save(f"{stem}.npy", x)
        np.save(f"{stem}-names.npy", names)
        Path(f"{stem}-names.txt").write_text("".join(f"{name}\n" for name in names))
        Path(f"{stem}-codes.txt").write_text("".join(f"{code}\n" for code in codes))
        write_idx(Path(f"{stem}-images.idx.gz"), np.uint8(10 * x + 80).reshape(-1, 2, 1))
        write_idx(Path(f"{stem}-codes.idx"), np.uint8(codes))
        np.savez(f"{stem}.npz", measured=x, kind=names, other=np.arange(4))
        frame = pd.DataFrame({"width": x[:, 0], "species": names, "height": x[:, 1]})
        frame.to_csv(f"{stem}.csv", index=False)
        frame.to_csv(f"{stem}.tsv.gz", index=False, sep="\t")
        frame[["height", "species", "width"]].to_parquet(f"{stem}.parquet")
        rows = [f"{code} 1:{a} 2:{b}\n" for code, (a, b) in zip(codes, x.tolist(), strict=True)]
        Path(f"{stem}.svm").write_text("".join(rows))
        write_xc(f"{stem}.txt", x, np.eye(3, dtype=int)[codes])
        texts = [f"a {name} tree with {name} leaves" for name in names]
        write_jsonl(f"{stem}.jsonl", texts, [[name] for name in names])
    return folder


@pytest.fixture(scope="session")
def class_model(class_files: Path, run: Run) -> Path:
    """A model of train.csv; tests must not change it."""
    folder = class_files / "model"
    result = run("train", class_files / "train.csv", "--label-column", "species", "--out", folder, *QUICK)
    assert (result.exit_code, result.output) == (0, "")
    return folder


def columns(part: str) -> list[list[tuple[str, str, str]]]:
    """Sequences of word, tag and chunk: whether a noun starts a chunk depends on the word before it."""
    rng = np.random.default_rng({"train": 1, "valid": 2, "test": 3}[part])
    sequences = []
    for _ in range(50 if part == "train" else 15):
        tokens: list[tuple[str, str, str]] = []
        for word in rng.choice(list(TAGS), size=rng.integers(1, 9)).tolist():
            inside = TAGS[word] != "DT" and bool(tokens) and tokens[-1][2] != "O"
            # Nothing tells where these are, so that there is something wrong to count.
            label = "O" if TAGS[word] == "VB" or rng.random() < 0.1 else "I-NP" if inside else "B-NP"
            tokens.append((word, TAGS[word], label))
        sequences.append(tokens)
    return sequences


def written(sequences: Any, separator: str = " ") -> str:
    return "\n".join("".join(separator.join(token) + "\n" for token in tokens) for tokens in sequences)


@pytest.fixture(scope="session")
def sequence_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """train.txt, valid.txt and test.txt, bare.txt without labels, and chunks.template."""
    folder = tmp_path_factory.mktemp("sequences")
    for part in ("train", "valid", "test"):
        (folder / f"{part}.txt").write_text(written(columns(part)))
    (folder / "bare.txt").write_text(written([[token[:2] for token in tokens] for tokens in columns("test")]))
    (folder / "chunks.template").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def tagger(sequence_files: Path, run: Run) -> Path:
    """A model of train.txt by the default template; tests must not change it."""
    folder = sequence_files / "tagger"
    args = ("train", sequence_files / "train.txt", "--task", "sequence", "--out", folder, *QUICK_TAGGER, "--quiet")
    result = run(*args)
    assert (result.exit_code, result.output) == (0, "")
    return folder
