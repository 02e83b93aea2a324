from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from extremegp.datasets import DebtagsDataset, load_debtags
from extremegp.errors import SettingsError

SCRIPT = Path(__file__).parents[2] / "scripts" / "build_debtags.py"


@pytest.fixture(scope="module")
def parts() -> tuple[DebtagsDataset, DebtagsDataset]:
    return load_debtags()


@pytest.fixture(scope="module")
def nearest(parts: tuple[DebtagsDataset, DebtagsDataset]) -> np.ndarray:
    """Of each test text, the tf-idf cosine to the training text closest to it."""
    train, test = parts
    vectorizer = TfidfVectorizer(min_df=2, sublinear_tf=True)
    features = vectorizer.fit_transform(train.texts)
    rows = vectorizer.transform(test.texts)
    return np.concatenate(
        [(rows[i : i + 500] @ features.T).toarray().max(axis=1) for i in range(0, rows.shape[0], 500)]
    )


def build(folder: Path, records: list[list[Any]], hash_seed: str = "0") -> dict[str, bytes]:
    folder.mkdir()
    source = folder / "packages.json"
    source.write_text(json.dumps(records), encoding="utf-8")
    subprocess.run(
        [sys.executable, str(SCRIPT), "--packages", str(source), "--out", str(folder / "out")],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    return {part: (folder / "out" / f"debtags-{part}.jsonl.xz").read_bytes() for part in ("train", "test")}


def names(packed: bytes) -> set[str]:
    return {json.loads(line)["name"] for line in lzma.decompress(packed).decode().splitlines()}


def record(name: str, text: str, *tags: str) -> list[Any]:
    return [name, text, "utils", [], ["role::program", "use::editing", "works-with::text", "interface::x11", *tags]]


def description(seed: int, length: int = 40) -> str:
    drawn = np.random.default_rng(seed).integers(0, 10**6, size=length)
    return "summary\n" + " ".join(f"word{number}" for number in drawn)


@pytest.fixture(scope="module")
def records() -> list[list[Any]]:
    """Strangers s*, and relatives by name, by paragraph and by wording, each pair on its own."""
    made = [record(f"s{chr(97 + i // 26)}{chr(97 + i % 26)}tranger", description(i)) for i in range(200)]
    paragraph = "The quick brown fox jumps over the lazy dog and then does so again and again."
    for i in range(60):
        tag = f"{chr(97 + i // 26)}{chr(97 + i % 26)}"
        made.append(record(f"lib{tag}kin1", description(1000 + i)))
        made.append(record(f"python3-{tag}kin", description(2000 + i)))
        made.append(record(f"para{tag}left", description(3000 + i) + f"\n.\n{paragraph} {tag}"))
        made.append(record(f"qara{tag}right", description(4000 + i) + f"\n.\n{paragraph.upper()} {tag}"))
        made.append(record(f"near{tag}left", description(5000 + i)))
        made.append(record(f"mear{tag}right", description(5000 + i).replace("summary\n", "summary\nanother ")))
    return made


def test_sizes_are_those_documented(parts: tuple[DebtagsDataset, DebtagsDataset]) -> None:
    train, test = parts
    assert (len(train.texts), len(test.texts), len(train.label_names)) == (6616, 1910, 423)
    for part, mean in ((train, 8.28), (test, 8.31)):
        assert len(part.texts) == len(part.labels) == len(part.names)
        assert np.mean([len(row) for row in part.labels]) == pytest.approx(mean, abs=0.005)
    assert len({label for row in test.labels for label in row}) == 413


def test_every_row_has_a_name_a_text_and_distinct_labels(parts: tuple[DebtagsDataset, DebtagsDataset]) -> None:
    for part in parts:
        assert all(part.names)
        assert all(len(text.strip()) >= 100 for text in part.texts)
        assert all(row and len(row) == len(set(row)) for row in part.labels)


def test_every_label_is_frequent_in_training_and_known_to_both_parts(
    parts: tuple[DebtagsDataset, DebtagsDataset],
) -> None:
    train, test = parts
    flat = [label for row in train.labels for label in row]
    known, counts = np.unique(flat, return_counts=True)
    assert counts.min() >= 10
    assert train.label_names == test.label_names == known.tolist()
    assert {label for row in test.labels for label in row} <= set(train.label_names)
    assert not any(label.endswith("TODO") for label in train.label_names)


def test_no_package_and_no_text_is_in_both_parts_or_twice(parts: tuple[DebtagsDataset, DebtagsDataset]) -> None:
    train, test = parts
    for values in (train.names + test.names, [" ".join(text.lower().split()) for text in train.texts + test.texts]):
        assert len(values) == len(set(values))


def test_training_holds_hardly_any_near_twin_of_a_test_text(nearest: np.ndarray) -> None:
    assert np.mean(nearest > 0.9) < 0.001
    assert np.mean(nearest > 0.7) < 0.01


def test_training_still_tells_something_about_test_texts(nearest: np.ndarray) -> None:
    assert np.median(nearest) > 0.2


def test_well_known_packages_carry_the_tags_they_should(parts: tuple[DebtagsDataset, DebtagsDataset]) -> None:
    labels = {name: row for part in parts for name, row in zip(part.names, part.labels, strict=True)}
    assert {"use::editing", "section::graphics", "role::program"} <= set(labels["inkscape"])
    assert {"use::gameplaying", "section::games", "game::strategy"} <= set(labels["0ad"])


def test_loading_one_part_gives_the_same_as_loading_both(parts: tuple[DebtagsDataset, DebtagsDataset]) -> None:
    assert (load_debtags("train"), load_debtags("test")) == parts
    assert load_debtags(None) == parts


def test_parts_share_no_mutable_state() -> None:
    train, test = load_debtags()
    train.label_names.clear()
    assert test.label_names
    assert load_debtags("train").label_names


def test_an_unknown_split_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="'valid'"):
        load_debtags("valid")  # type: ignore[call-overload]


def test_files_stay_small() -> None:
    bundled = files("extremegp").joinpath("data", "bundled")
    assert sum(len(file.read_bytes()) for file in bundled.iterdir() if file.name.endswith(".xz")) < 1_500_000


def test_build_gives_the_same_bytes_again_whatever_the_order_and_hash_seed(
    tmp_path: Path, records: list[list[Any]]
) -> None:
    assert build(tmp_path / "a", records, "1") == build(tmp_path / "b", records[::-1], "2")


def test_build_keeps_relatives_on_one_side(tmp_path: Path, records: list[list[Any]]) -> None:
    built = build(tmp_path / "a", records)
    train, test = names(built["train"]), names(built["test"])
    assert len(train) > 300
    assert len(test) > 50
    assert not train & test
    for i in range(60):
        tag = f"{chr(97 + i // 26)}{chr(97 + i % 26)}"
        for left, right in (
            (f"lib{tag}kin1", f"python3-{tag}kin"),
            (f"para{tag}left", f"qara{tag}right"),
            (f"near{tag}left", f"mear{tag}right"),
        ):
            assert {left, right} <= train or {left, right} <= test, (left, right)


def test_build_drops_rare_and_placeholder_labels_and_poor_packages(tmp_path: Path, records: list[list[Any]]) -> None:
    poor = ["poor", description(9000), "utils", [], ["role::program"]]
    brief = record("brief", "too short")
    rare = record("zrare", description(9001), "field::astronomy")
    every = [*records, poor, brief, rare]
    built = build(tmp_path / "a", [[*fields, [*tags, "suite::TODO"]] for *fields, tags in every])
    lines = [json.loads(line) for packed in built.values() for line in lzma.decompress(packed).decode().splitlines()]
    by_name = {line["name"]: line["labels"] for line in lines}
    assert not {"poor", "brief"} & set(by_name)
    assert by_name["zrare"] == ["interface::x11", "role::program", "section::utils", "use::editing", "works-with::text"]
