"""`extremegp learn` and `extremegp forget`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Run
from tests.label_tree.small import small_classifier

import extremegp
from extremegp.errors import DataError, ModelFormatError
from extremegp.storage import journal
from extremegp.storage.models import JOURNAL

TEXTS = [f"word{a} word{b} word{a + b}" for a in range(12) for b in range(12)]
LABELS = [[f"label{a % 4}", f"other{b % 3}"] for a in range(12) for b in range(12)]
NEW = [{"text": "word1 word2 word3", "labels": ["label1", "shiny"]}, {"text": "word4 unheard", "labels": ["other2"]}]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree") / "model"
    small_classifier(features="text").fit(TEXTS, LABELS).save(folder)
    return folder


@pytest.fixture
def tree(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "model"))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    path = tmp_path / "new.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in NEW))
    return path


def test_what_was_learnt_is_known_to_the_next_process(tree: Path, new: Path, tmp_path: Path, run: Run) -> None:
    result = run("learn", tree, new, "--json", tmp_path / "told.json")
    assert result.exit_code == 0
    assert "2 rows learnt ('144' to '145'), 1 new labels; the model has 146 rows" in result.output
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["ids"], told["new_labels"], told["n_rows"], told["n_labels"]) == (["144", "145"], ["shiny"], 146, 8)
    expected = small_classifier(features="text").fit(TEXTS, LABELS)
    expected.learn([row["text"] for row in NEW], [row["labels"] for row in NEW])
    loaded = extremegp.load(tree)
    assert loaded.ids_.names == expected.ids_.names
    np.testing.assert_array_equal(loaded.predict_proba(TEXTS[:20]), expected.predict_proba(TEXTS[:20]))
    np.testing.assert_array_equal(
        loaded.predict_novelty(["word4 unheard"]), expected.predict_novelty(["word4 unheard"])
    )
    assert run("info", tree).exit_code == 0


def test_calls_follow_each_other(tree: Path, new: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "ids.txt").write_text("premier\nsecond\n")
    assert run("learn", tree, new, "--ids", tmp_path / "ids.txt", "--quiet").output == ""
    assert run("learn", tree, new, "--new-labels", "error", "--quiet").exit_code == 0
    (tmp_path / "gone.txt").write_text("premier\n\n3\n")
    result = run("forget", tree, "--ids", tmp_path / "gone.txt", "--json", tmp_path / "told.json")
    assert "2 rows forgotten; the model has 146 rows" in result.output
    assert json.loads((tmp_path / "told.json").read_text())["n_rows"] == 146
    assert not (tree / JOURNAL).exists()
    loaded = extremegp.load(tree)
    assert loaded.ids_.names == [*map(str, range(3)), *map(str, range(4, 144)), "second", "144", "145"]
    assert b"premier" not in b"".join(path.read_bytes() for path in tree.iterdir())


def test_models_with_landmarks_and_of_classes_learn_too(text_model: Path, new: Path, tmp_path: Path, run: Run) -> None:
    landmarks = Path(shutil.copytree(text_model, tmp_path / "landmarks"))
    before = extremegp.load(landmarks)
    assert before.settings_.latents == "landmarks"
    new.write_text('{"text": "word0 word1 filler", "labels": ["odd"]}\n')
    assert run("learn", landmarks, new).exit_code == 0
    assert run("forget", landmarks, "--ids", "-", input="3\n").exit_code == 0
    again = extremegp.load(landmarks)
    assert (again.n_rows_, len(again.classes_)) == (before.n_rows_, len(before.classes_) + 1)
    table = tmp_path / "rows.csv"
    rng = np.random.default_rng(0)
    lines = [f"{a:.3f},{b:.3f},{'up' if a + b > 0 else 'down'}" for a, b in rng.normal(size=(60, 2))]
    table.write_text("\n".join(["a,b,class", *lines]) + "\n")
    options = ("--label-column", "class", "--quiet")
    assert run("train", table, "--out", tmp_path / "classes", *options).exit_code == 0
    table.write_text("a,b,class\n3,3,far\n3.1,3,up\n")
    result = run("learn", tmp_path / "classes", table, "--label-column", "class")
    assert (result.exit_code, "2 rows learnt ('60' to '61'), 1 new labels" in result.output) == (0, True), result.output
    assert run("learn", tmp_path / "classes", table, *options, "--new-labels", "ignore").exit_code == 2


def test_ids_come_from_standard_input(tree: Path, run: Run) -> None:
    assert run("forget", tree, "--ids", "-", input="5\n6\n").exit_code == 0
    assert extremegp.load(tree).n_rows_ == 142


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["learn", "MODEL", "none.jsonl"], "no such file"),
        (["learn", "MODEL", "NEW", "--new-labels", "error"], "'shiny'"),
        (["learn", "MODEL", "NEW", "--ids", "one.txt"], "1 ids for 2 rows"),
        (["learn", "MODEL", "NEW", "--ids", "known.txt"], "'17'"),
        (["learn", "MODEL", "vectors.npy"], "text"),
        (["forget", "MODEL", "--ids", "none.txt"], "no such file"),
        (["forget", "MODEL", "--ids", "empty.txt"], "no names"),
        (["forget", "MODEL", "--ids", "twice.txt"], "twice"),
        (["forget", "MODEL", "--ids", "unknown.txt"], "'nobody'"),
        (["forget", "MODEL", "--ids", "bytes.txt"], "UTF-8"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    tree: Path, new: Path, tmp_path: Path, run: Run, arguments: list[str], told: str
) -> None:
    for name, text in {"one": "a", "known": "a\n17", "empty": "\n", "twice": "1\n1", "unknown": "1\nnobody"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe1")
    np.save(tmp_path / "vectors.npy", np.ones((2, 3), np.float32))
    places = {"MODEL": tree, "NEW": new}
    result = run(*(places.get(each, tmp_path / each if "." in each else each) for each in arguments))
    assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
    assert told in result.output
    assert extremegp.load(tree).n_rows_ == 144


def test_other_kinds_of_model_say_what_to_do(files: Path, tmp_path: Path, run: Run) -> None:
    model = tmp_path / "by steps"
    settings = ("--set", "latents=gp", "--set", "epochs=1", "--set", "n_inducing=5")
    assert run("train", files / "train.txt", "--out", model, *settings, "--quiet").exit_code == 0
    for arguments in (("learn", model, files / "test.txt"), ("forget", model, "--ids", "-")):
        result = run(*arguments, input="1\n")
        assert (result.exit_code, len(result.output.splitlines())) == (2, 1)
        assert "--model tree" in result.output


def test_a_model_that_a_server_holds_is_not_changed(
    tree: Path, new: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_WAIT_SECONDS", 0.2)
    held = extremegp.load(tree)
    kept = held.keep_journal(tree)
    result = run("learn", tree, new)
    assert (result.exit_code, "another process" in result.output) == (2, True)
    held.learn(["word1"], [["label1"]])
    kept.close()
    assert extremegp.load(tree).n_rows_ == 145


def test_a_model_that_was_changed_meanwhile_is_to_be_loaded_again(tree: Path) -> None:
    early, late = extremegp.load(tree), extremegp.load(tree)
    kept = late.keep_journal(tree)
    late.add_labels(["a"]).rename_label("a", "b").learn(["word1"], [["b"]])
    kept.close()
    with pytest.raises(DataError, match="load it again"):
        early.keep_journal(tree)
    again = extremegp.load(tree)
    kept = again.keep_journal(tree)
    again.forget(["144"])
    again.save(tree)
    again.learn(["word2"], [["b"]], ids=["x"])
    kept.close()
    assert extremegp.load(tree).ids_.names[-2:] == ["143", "x"]


@pytest.mark.parametrize(
    "change",
    [
        {"features": [[0, 10**6]]},
        {"features": [[1, 0]]},
        {"features": [["a", 1]]},
        {"values": [[1.0]]},
        {"values": [["x", 1.0]]},
        {"labels": [[99]]},
        {"labels": [[-1]]},
        {"ids": ["17"]},
        {"ids": ["a", "b"]},
        {"ids": [["a"]]},
        {"new_labels": ["label1"]},
        {"new_labels": [{}]},
        {"weights": [-1.0]},
        {"shares": [[2.0]]},
        {"call": "explode"},
        {"call": "forget", "ids": ["nobody"]},
        {"call": "rename_label"},
        {"call": "add_labels", "names": [[]]},
    ],
)
def test_a_hostile_journal_is_refused(tree: Path, change: dict[str, object]) -> None:
    held = journal.Journal(tree)
    sound = {
        "call": "learn",
        "ids": ["a"],
        "features": [[0, 1]],
        "values": [[1.0, 2.0]],
        "labels": [[0]],
        "new_labels": [],
    }
    held.append(sound | change)
    held.close()
    with pytest.raises(ModelFormatError, match="journal"):
        extremegp.load(tree)


def test_a_long_journal_becomes_a_new_model(tree: Path, new: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST_CALLS", 2)
    for n_rows in (146, 148):
        assert run("learn", tree, new).exit_code == 0
        assert (tree / JOURNAL).exists()
        assert extremegp.load(tree).n_rows_ == n_rows
    assert run("learn", tree, new).exit_code == 0
    assert not (tree / JOURNAL).exists()
    assert extremegp.load(tree).n_rows_ == 150
