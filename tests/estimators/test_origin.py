"""What models say of what made them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import extremegp
from extremegp import LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.engine.kernels import SquaredExponential
from extremegp.errors import ModelFormatError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
CODES = (X[:, 0] > 0).astype(int)
QUICK: dict[str, Any] = {"n_inducing": 4, "epochs": 2, "verbose": False}


def fitted(**changes: Any) -> MultiClassGPClassifier:
    return MultiClassGPClassifier(**{**QUICK, "random_state": 3, **changes}).fit(X, CODES)


def test_a_model_says_when_from_what_and_how_it_was_made(tmp_path: Path):
    before = datetime.now(UTC).replace(microsecond=0)
    fitted(validation_fraction=0.25, kernel=SquaredExponential(2.0)).save(tmp_path / "m")
    origin = extremegp.load(tmp_path / "m").origin_
    assert origin is not None
    assert origin.trained is not None
    assert before <= datetime.fromisoformat(origin.trained) <= datetime.now(UTC)
    assert (origin.version, origin.seed) == (extremegp.__version__, 3)
    assert origin.settings == {
        "n_inducing": 4,
        "epochs": 2,
        "validation_fraction": 0.25,
        "kernel": "SquaredExponential",
    }
    training, validation = origin.training, origin.validation
    assert validation is not None
    assert (training.n_rows, training.n_units, training.n_features, training.n_labels) == (30, 30, 3, 2)
    assert (validation.n_rows, training.source, origin.command) == (10, None, None)
    assert training.content != validation.content


def test_it_survives_being_loaded_and_saved_again(tmp_path: Path):
    fitted().save(tmp_path / "m")
    loaded = extremegp.load(tmp_path / "m")
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_bytes() == (tmp_path / "m" / "config.json").read_bytes()


def test_two_runs_with_one_seed_differ_in_one_place_alone(tmp_path: Path):
    for name in ("a", "b"):
        fitted().save(tmp_path / name)
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("a", "b")]
    runs = [config.pop("run") for config in configs]
    assert configs[0] == configs[1]
    assert [run.keys() for run in runs] == [{"trained", "seconds"}] * 2
    tensors = [(tmp_path / name / "tensors.safetensors").read_bytes() for name in ("a", "b")]
    assert tensors[0] == tensors[1]


def test_the_content_tells_data_apart(tmp_path: Path):
    contents = [
        MultiClassGPClassifier(**QUICK).fit(x, codes).origin_.training.content  # type: ignore[union-attr]
        for x, codes in ((X, CODES), (X + 1e-3, CODES), (X, 1 - CODES), (X.copy(), CODES.copy()))
    ]
    assert len(set(contents[:3])) == 3
    assert contents[3] == contents[0]


def test_without_a_seed_the_drawn_one_is_told():
    origin = fitted(random_state=None).origin_
    assert origin is not None
    assert origin.seed is None
    assert 0 <= origin.drawn_seed < 2**31


def test_label_trees_say_it_too(tmp_path: Path):
    y = (RNG.random((60, 6)) < 0.4).astype(int)
    trees = LabelTreeGPClassifier(leaf_size=2, random_state=0, verbose=False).fit(np.abs(RNG.normal(size=(60, 5))), y)
    trees.save(tmp_path / "m")
    origin = extremegp.load(tmp_path / "m").origin_
    assert origin == trees.origin_
    assert origin is not None
    assert (origin.training.n_rows, origin.training.n_labels) == (60, 6)
    assert origin.training.n_units == trees.n_held_out_


def altered(origin: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**origin, **changes}


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no object": lambda config: {"origin": 3},
    "incomplete": lambda config: {"origin": {"version": "1"}},
    "more": lambda config: {"origin": altered(config["origin"], evil=1)},
    "a version that is a list": lambda config: {"origin": altered(config["origin"], version=["1"])},
    "a long version": lambda config: {"origin": altered(config["origin"], version="1" * 10_000)},
    "a seed below zero": lambda config: {"origin": altered(config["origin"], seed=-1)},
    "a seed that is true": lambda config: {"origin": altered(config["origin"], drawn_seed=True)},
    "a huge seed": lambda config: {"origin": altered(config["origin"], seed=2**70)},
    "settings that are a list": lambda config: {"origin": altered(config["origin"], settings=[])},
    "deep settings": lambda config: {"origin": altered(config["origin"], settings={"a": [[[[[1]]]]]})},
    "endless numbers": lambda config: {"origin": altered(config["origin"], settings={"a": 1e400})},
    "a command that is a string": lambda config: {"origin": altered(config["origin"], command="rm")},
    "data that are a string": lambda config: {"origin": altered(config["origin"], training="x")},
    "rows below zero": lambda config: {
        "origin": altered(config["origin"], training=altered(config["origin"]["training"], n_rows=-1))
    },
    "a source that is a number": lambda config: {
        "origin": altered(config["origin"], training=altered(config["origin"]["training"], source=1))
    },
    "no run": lambda config: {"run": None},
    "a run without seconds": lambda config: {"run": {"trained": None}},
    "too few seconds": lambda config: {"run": {"trained": None, "seconds": [1.0]}},
    "seconds that are strings": lambda config: {"run": {"trained": None, "seconds": ["1", "2"]}},
    "no date": lambda config: {"run": {**config["run"], "trained": "yesterday"}},
    "a date that is a number": lambda config: {"run": {**config["run"], "trained": 20260101}},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "m"
    fitted().save(folder)
    return folder


@pytest.mark.parametrize("damage", DAMAGE)
def test_nothing_of_it_is_trusted(damage: str, saved: Path, tmp_path: Path):
    shutil.copytree(saved, tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **DAMAGE[damage](config)}))
    with pytest.raises(ModelFormatError, match=str(tmp_path / "m")):
        extremegp.load(tmp_path / "m")


def test_a_model_without_an_origin_loads(saved: Path, tmp_path: Path):
    shutil.copytree(saved, tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "origin": None}))
    assert extremegp.load(tmp_path / "m").origin_ is None


def test_labels_of_many_say_what_their_bound_is_of(tmp_path: Path):
    y = (RNG.random((40, 3)) < 0.5).astype(int)
    classifier = MultiLabelGPClassifier(**QUICK, validation_fraction=0.1).fit(X, y)
    assert classifier.origin_ is not None
    assert classifier.origin_.training.n_units == 36
