"""Small data in the form of the real ones."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from extremegp.data import write_columns, write_xc

Tokens = list[list[str]]
FOLDS = [(sorted({*range(12)} - {*held}), held) for held in ([0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [0, 5, 10])]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the dataset "tiny", whose label k is feature k, and images of three shapes as "mnist"."""
    folder = tmp_path_factory.mktemp("datasets")
    rng = np.random.default_rng(0)
    (folder / "tiny").mkdir()
    for part, n_rows in (("train", 200), ("test", 80)):
        x = scipy.sparse.csr_matrix((rng.random((n_rows, 12)) < 0.3).astype(np.float32))
        write_xc(folder / "tiny" / f"{part}.txt.xz", x, x[:, :6])
    (folder / "mnist").mkdir()
    arrays = {}
    shapes = (slice(1, 5), slice(2, 4)), (slice(2, 4), slice(1, 5)), (slice(1, 5), slice(1, 5))
    for part, n_rows in (("train", 90), ("test", 30)):
        digits = np.arange(n_rows) % 3
        images = rng.integers(0, 60, size=(n_rows, 6, 6), dtype=np.uint8)
        for image, digit in zip(images, digits, strict=True):
            image[shapes[digit]] += np.uint8(150)
        arrays |= {f"x_{part}": images, f"y_{part}": digits}
    np.savez(folder / "mnist" / "mnist.npz", **arrays)
    return folder


def made_sequences() -> tuple[list[Tokens], list[list[str]]]:
    """Twelve sequences whose tokens tell their labels "0" to "2" and more; the label "3" is in the first one only."""
    rng = np.random.default_rng(0)
    y = [[str(label) for label in rng.integers(3, size=length)] for length in rng.integers(3, 7, size=12)]
    y[0][1] = "3"
    return [[[f"{int(label) + 1}", f"{rng.integers(10, 30)}"] for label in labels] for labels in y], y


def made_chunks(n_sentences: int, seed: int) -> tuple[list[list[tuple[str, str]]], list[list[str]]]:
    """Noun phrases of two words and verbs in turn."""
    rng = np.random.default_rng(seed)
    sequences, labels = [], []
    for n_phrases in rng.integers(1, 4, size=n_sentences):
        sequences.append(
            [
                (str(rng.choice(words)), tag)
                for _ in range(n_phrases)
                for words, tag in ((["a", "the"], "DT"), (["cat", "dog"], "NN"), (["sees", "likes"], "VBZ"))
            ]
        )
        labels.append(["B-NP", "I-NP", "B-VP"] * n_phrases)
    return sequences, labels


@pytest.fixture(scope="module")
def sequence_datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two of the sets of `gpstruct`, and `conll2000`."""
    folder = tmp_path_factory.mktemp("sequences")
    (folder / "gpstruct").mkdir()
    X, y = made_sequences()
    lines = [
        "\n".join(f"{label} {' '.join(f'{name}:1' for name in names)}" for names, label in zip(*pair, strict=True))
        for pair in zip(X, y, strict=True)
    ]
    sides = [" | ".join(" ".join(map(str, side)) for side in fold) for fold in FOLDS]
    for name in ("basenp", "chunking"):
        (folder / "gpstruct" / f"{name}.svm.xz").write_bytes(lzma.compress(("\n\n".join(lines) + "\n\n").encode()))
        (folder / "gpstruct" / f"{name}.folds.txt").write_text("\n".join(sides) + "\n", encoding="ascii")
    (folder / "conll2000").mkdir()
    for seed, (part, n_sentences) in enumerate((("train", 30), ("test", 12))):
        write_columns(folder / "conll2000" / f"{part}.txt.xz", *made_chunks(n_sentences, seed))
    return folder
