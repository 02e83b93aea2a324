from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.models import random_inputs, random_labels

import extremegp
from extremegp.errors import DataError, ModelFormatError
from extremegp.estimators.base import GPEstimator
from extremegp.storage import models
from extremegp.storage.tensors import read_tensors, write_tensors

TENSORS = {"w": torch.arange(4.0)}
CONFIG = {"estimator": "Nothing", "value": 1, "label": "ä"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "model"
    models.write_model(target, CONFIG, TENSORS)
    return target


def _contents(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def test_configuration_and_tensors_come_back(folder: Path):
    config, tensors = models.read_model(folder)
    assert {name: config[name] for name in CONFIG} == CONFIG
    assert torch.equal(tensors["w"], TENSORS["w"])
    assert set(_contents(folder)) == {"config.json", "tensors.safetensors"}


def test_missing_parents_are_made_and_nothing_else_is_left_behind(tmp_path: Path):
    models.write_model(tmp_path / "a" / "b", CONFIG, TENSORS)
    models.write_model(tmp_path / "a" / "b", {**CONFIG, "value": 2}, TENSORS)
    assert models.read_model(tmp_path / "a" / "b")[0]["value"] == 2
    assert os.listdir(tmp_path / "a") == ["b"]


def test_an_empty_folder_may_become_a_model(tmp_path: Path):
    (tmp_path / "m").mkdir()
    models.write_model(tmp_path / "m", CONFIG, TENSORS)
    assert models.read_model(tmp_path / "m")[0]["value"] == 1


def _file(path: Path) -> None:
    path.write_text("precious")


def _other_folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("precious")


def _model_with_more(path: Path) -> None:
    models.write_model(path, CONFIG, TENSORS)
    (path / "notes.txt").write_text("precious")


def _half_a_model(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text("precious")


def _link_to_a_model(path: Path) -> None:
    models.write_model(path.with_name("real"), CONFIG, TENSORS)
    path.symlink_to(path.with_name("real"))


def _dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


@pytest.mark.parametrize(
    "make", [_file, _other_folder, _model_with_more, _half_a_model, _link_to_a_model, _dangling_link]
)
@pytest.mark.parametrize("act", [lambda path: models.write_model(path, CONFIG, TENSORS), models.check_writable])
def test_what_is_no_model_is_never_overwritten(
    tmp_path: Path, make: Callable[[Path], None], act: Callable[[Path], None]
):
    make(tmp_path / "m")
    before = {str(path): path.is_file() and path.read_bytes() for path in sorted(tmp_path.rglob("*"))}
    with pytest.raises(DataError):
        act(tmp_path / "m")
    assert {str(path): path.is_file() and path.read_bytes() for path in sorted(tmp_path.rglob("*"))} == before


def test_check_writable_accepts_what_can_be_written_and_leaves_it_alone(tmp_path: Path, folder: Path):
    before = _contents(folder)
    models.check_writable(folder)
    models.check_writable(tmp_path / "new")
    assert _contents(folder) == before
    assert os.listdir(tmp_path) == ["model"]


def test_a_folder_under_a_file_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for act in (lambda path: models.write_model(path, CONFIG, TENSORS), models.check_writable):
        with pytest.raises(DataError, match="cannot be written"):
            act(tmp_path / "file" / "m")


def _fail_in_config(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)


def _fail_in_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)


def _fail_in_the_last_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the system cannot exchange folders.
    monkeypatch.setattr(models, "_exchanged", lambda new, folder: False)
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)


@pytest.mark.parametrize("fail", [_fail_in_config, _fail_in_tensors, _fail_in_the_last_rename])
def test_a_write_that_fails_leaves_the_old_model_and_nothing_else(
    folder: Path, fail: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
):
    before = _contents(folder)
    fail(monkeypatch)
    with pytest.raises(DataError, match="cannot be written"):
        models.write_model(folder, {**CONFIG, "value": 2}, TENSORS)
    monkeypatch.undo()
    assert os.listdir(folder.parent) == ["model"]
    assert _contents(folder) == before


@pytest.mark.parametrize("name", ["config.json", "tensors.safetensors"])
def test_a_missing_file_is_refused(folder: Path, name: str):
    (folder / name).unlink()
    with pytest.raises(ModelFormatError, match=name):
        models.read_model(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not the configuration"),
        ("3", "not the configuration"),
        ("{}", "not the configuration"),
        ('{"format_version": 3}', "format version 3"),
        ('{"format_version": "1"}', "format version '1'"),
        ('{"format_version": 1}', "changed since it was saved"),
    ],
)
def test_a_configuration_that_is_not_ours_is_refused(folder: Path, text: str, message: str):
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelFormatError, match=message):
        models.read_model(folder)


def test_a_configuration_that_is_no_utf8_is_refused(folder: Path):
    (folder / "config.json").write_bytes(b'{"format_version": "\xff"}')
    with pytest.raises(ModelFormatError, match="not valid JSON"):
        models.read_model(folder)


def test_every_altered_byte_of_the_tensors_is_noticed(folder: Path):
    path = folder / "tensors.safetensors"
    content = path.read_bytes()
    for position in range(0, len(content), 5):
        altered = bytearray(content)
        altered[position] ^= 1
        path.write_bytes(altered)
        with pytest.raises(ModelFormatError):
            models.read_model(folder)


@pytest.mark.parametrize("make", [lambda path: None, _file])
def test_what_is_no_folder_is_refused(tmp_path: Path, make: Callable[[Path], None]):
    make(tmp_path / "m")
    with pytest.raises(ModelFormatError, match="no such model folder"):
        models.read_model(tmp_path / "m")


# From here on: whole estimators, whose configuration lies with a digest that fits.


@pytest.fixture(scope="module")
def trained() -> extremegp.MultiLabelGPClassifier:
    classifier = extremegp.MultiLabelGPClassifier(
        n_inducing=3, n_latent=2, epochs=1, linear_term=True, verbose=False, random_state=0
    )
    return classifier.fit(random_inputs(12, 4), random_labels(12, 3))


@pytest.fixture
def saved(trained: extremegp.MultiLabelGPClassifier, tmp_path: Path) -> Path:
    trained.save(tmp_path / "model")
    return tmp_path / "model"


def _rewrite(folder: Path, *, config: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> None:
    """Alter a model as someone would who recomputes the digest; None removes an entry."""
    old_tensors, _ = read_tensors(folder / "tensors.safetensors")
    new_tensors = {name: tensor for name, tensor in {**old_tensors, **(tensors or {})}.items() if tensor is not None}
    write_tensors(folder / "tensors.safetensors", new_tensors, {})
    new = {**json.loads((folder / "config.json").read_text()), **(config or {})}
    new["sha256"] = models._digest(folder / "tensors.safetensors")
    (folder / "config.json").write_text(json.dumps({name: value for name, value in new.items() if value is not None}))


def _settings(folder: Path, **changes: Any) -> dict[str, Any]:
    settings = json.loads((folder / "config.json").read_text())["settings"] | changes
    return {"settings": {name: value for name, value in settings.items() if value is not None}}


def _selection(**changes: Any) -> dict[str, Any]:
    selection = {"by": "x", "chosen": {"noise": 1.0}, "tried": [{"noise": 1.0, "score": -3.0}]} | changes
    return {"hyperparameters": [{name: value for name, value in selection.items() if value is not None}]}


def test_a_selection_of_hyper_parameters_is_read(saved: Path):
    _rewrite(saved, config=_selection())
    (found,) = extremegp.load(saved).hyperparameters_ or ()
    assert (found.by, found.chosen, found.tried) == ("x", {"noise": 1.0}, [{"noise": 1.0, "score": -3.0}])


def test_an_estimator_predicts_to_the_same_bits_once_loaded(trained: extremegp.MultiLabelGPClassifier, saved: Path):
    loaded = extremegp.load(saved)
    x = random_inputs(7, 4, seed=5)
    np.testing.assert_array_equal(loaded.predict_proba(x), trained.predict_proba(x))
    _rewrite(saved)
    np.testing.assert_array_equal(extremegp.load(saved).decision_function(x), trained.decision_function(x))


HUGE = 10**12
ALTERATIONS: dict[str, Callable[[Path], None]] = {
    "no settings": lambda folder: _rewrite(folder, config={"settings": None}),
    "settings no object": lambda folder: _rewrite(folder, config={"settings": [1]}),
    "setting missing": lambda folder: _rewrite(folder, config=_settings(folder, kernel=None)),
    "setting too many": lambda folder: _rewrite(folder, config=_settings(folder, evil=1)),
    "unknown kernel": lambda folder: _rewrite(folder, config=_settings(folder, kernel="foo")),
    "kernel no string": lambda folder: _rewrite(folder, config=_settings(folder, kernel=["se"])),
    "negative size": lambda folder: _rewrite(folder, config=_settings(folder, n_latent=-1)),
    "size no integer": lambda folder: _rewrite(folder, config=_settings(folder, n_latent=2.0)),
    "size a string": lambda folder: _rewrite(folder, config=_settings(folder, n_latent="2")),
    "huge features": lambda folder: _rewrite(folder, config=_settings(folder, n_features=HUGE)),
    "huge labels": lambda folder: _rewrite(folder, config=_settings(folder, n_labels=HUGE)),
    "huge latent": lambda folder: _rewrite(folder, config=_settings(folder, n_latent=HUGE)),
    "huge inducing": lambda folder: _rewrite(folder, config=_settings(folder, n_inducing=HUGE)),
    "huge everything": lambda folder: _rewrite(
        folder, config=_settings(folder, n_features=HUGE, n_labels=HUGE, n_latent=HUGE, n_inducing=HUGE)
    ),
    "huge inducing of a full posterior": lambda folder: _rewrite(
        folder, config=_settings(folder, n_inducing=HUGE, posterior="full")
    ),
    "sizes that overflow beside many numbers": lambda folder: _rewrite(
        folder,
        config=_settings(folder, n_features=10**10, n_inducing=HUGE),
        tensors={"model.padding": torch.zeros(10**6)},
    ),
    "sizes beyond 64 bits": lambda folder: _rewrite(folder, config=_settings(folder, n_features=10**30)),
    "jitter out of range": lambda folder: _rewrite(folder, config=_settings(folder, relative_jitter=1.0)),
    "jitter a string": lambda folder: _rewrite(folder, config=_settings(folder, relative_jitter="x")),
    "unknown estimator": lambda folder: _rewrite(folder, config={"estimator": "os.system"}),
    "estimator no string": lambda folder: _rewrite(folder, config={"estimator": [1]}),
    "unknown parameter": lambda folder: _rewrite(folder, config={"params": {"evil": 1}}),
    "parameter no scalar": lambda folder: _rewrite(folder, config={"params": {"kernel": ["se"]}}),
    "device smuggled in": lambda folder: _rewrite(folder, config={"params": {"device": "meta"}}),
    "no params": lambda folder: _rewrite(folder, config={"params": None}),
    "no features": lambda folder: _rewrite(folder, config={"features": None}),
    "unknown features": lambda folder: _rewrite(folder, config={"features": {"kind": "x", "n_features": 4}}),
    "other width of features": lambda folder: _rewrite(folder, config={"features": {"kind": "unit", "n_features": 5}}),
    "label names too few": lambda folder: _rewrite(folder, config={"labels": ["a"]}),
    "label names no list": lambda folder: _rewrite(folder, config={"labels": "abc"}),
    "label names twice": lambda folder: _rewrite(folder, config={"labels": ["a", "a", "b"]}),
    "label names no names": lambda folder: _rewrite(folder, config={"labels": [None, 1.5, {}]}),
    "unknown target kind": lambda folder: _rewrite(folder, config={"target_kind": "x"}),
    "target kind no string": lambda folder: _rewrite(folder, config={"target_kind": ["x"]}),
    "rows no number": lambda folder: _rewrite(folder, config={"n_rows": "many"}),
    "history no list": lambda folder: _rewrite(folder, config={"history": 3}),
    "history of no records": lambda folder: _rewrite(folder, config={"history": [3]}),
    "hyper-parameters no list": lambda folder: _rewrite(folder, config={"hyperparameters": {"by": "x"}}),
    "hyper-parameters of no records": lambda folder: _rewrite(folder, config={"hyperparameters": [3]}),
    "hyper-parameters without what was tried": lambda folder: _rewrite(folder, config=_selection(tried=None)),
    "hyper-parameters with more": lambda folder: _rewrite(folder, config=_selection(evil=1)),
    "hyper-parameters by a number": lambda folder: _rewrite(folder, config=_selection(by=1)),
    "hyper-parameters of which none was chosen": lambda folder: _rewrite(folder, config=_selection(chosen={})),
    "hyper-parameters that move the cursor": lambda folder: _rewrite(
        folder, config=_selection(chosen={"noise": "\x1b[2J"})
    ),
    "hyper-parameters that are endless": lambda folder: _rewrite(
        folder, config=_selection(tried=[{"noise": float("inf"), "score": 1.0}])
    ),
    "hyper-parameters that are true": lambda folder: _rewrite(
        folder, config=_selection(tried=[{"noise": True, "score": 1.0}])
    ),
    "hyper-parameters without a score": lambda folder: _rewrite(folder, config=_selection(tried=[{"noise": 1.0}])),
    "hyper-parameters of another name": lambda folder: _rewrite(
        folder, config=_selection(tried=[{"other": 1.0, "score": 1.0}])
    ),
    "no counts": lambda folder: _rewrite(folder, tensors={"label_counts": None}),
    "counts too few": lambda folder: _rewrite(folder, tensors={"label_counts": torch.zeros(2, dtype=torch.int64)}),
    "counts no integers": lambda folder: _rewrite(folder, tensors={"label_counts": torch.zeros(3)}),
    "tensor missing": lambda folder: _rewrite(folder, tensors={"model.mixing.bias": None}),
    "tensor too many": lambda folder: _rewrite(folder, tensors={"model.evil": torch.zeros(1)}),
    "tensor too short": lambda folder: _rewrite(folder, tensors={"model.mixing.bias": torch.zeros(2)}),
    "NaN": lambda folder: _rewrite(folder, tensors={"model.mixing.bias": torch.full((3,), float("nan"))}),
    "infinity": lambda folder: _rewrite(folder, tensors={"model.mixing.bias": torch.full((3,), float("inf"))}),
    "mixed types": lambda folder: _rewrite(folder, tensors={"model.mixing.bias": torch.zeros(3, dtype=torch.float64)}),
    "integers": lambda folder: _rewrite(
        folder,
        tensors={
            name: tensor.to(torch.int32)
            for name, tensor in read_tensors(folder / "tensors.safetensors")[0].items()
            if name.startswith("model.")
        },
    ),
    "a features array of a type NumPy lacks": lambda folder: _rewrite(
        folder, tensors={"features.idf": torch.zeros(4, dtype=torch.bfloat16)}
    ),
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_altered_estimator_is_refused_without_taking_memory(name: str, saved: Path):
    ALTERATIONS[name](saved)
    tracemalloc.start()
    with pytest.raises(ModelFormatError) as caught:
        extremegp.load(saved)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**24
    assert "\n" not in str(caught.value)


def test_a_loaded_estimator_can_be_saved_again(saved: Path, tmp_path: Path):
    loaded = extremegp.load(saved)
    assert isinstance(loaded, GPEstimator)
    loaded.save(tmp_path / "again")
    assert _contents(tmp_path / "again") == _contents(saved)


@pytest.mark.parametrize("column", [-1, 4, 2**40])
def test_a_support_beyond_the_features_is_refused(column: int, saved: Path, tmp_path: Path):
    x, y = random_inputs(20, 4), random_labels(20, 3)
    small = {"n_inducing": 3, "n_latent": 2, "epochs": 1, "verbose": False, "inducing": "sparse", "support_size": 2}
    folder = tmp_path / "sparse"
    extremegp.MultiLabelGPClassifier(**small, random_state=0).fit(x, y.astype(int)).save(folder)
    extremegp.load(folder)
    columns = read_tensors(folder / "tensors.safetensors")[0]["model.latents.inducing.columns"]
    columns[0, 0] = column
    _rewrite(folder, tensors={"model.latents.inducing.columns": columns})
    with pytest.raises(ModelFormatError, match="index out of range"):
        extremegp.load(folder)


@pytest.mark.parametrize(("name", "index"), [("rows", 20), ("rows", -1), ("columns", 10)])
def test_a_regression_on_points_or_features_that_are_not_there_is_refused(name: str, index: int, tmp_path: Path):
    x = scipy.sparse.csr_matrix(random_inputs(20, 10) * np.eye(10, dtype=np.float32)[np.arange(20) % 10])
    y = random_labels(20, 3)
    small = {"n_inducing": 3, "n_latent": 2, "epochs": 1, "verbose": False, "mean_function": "regression"}
    folder = tmp_path / "regressed"
    extremegp.MultiLabelGPClassifier(**small, random_state=0).fit(x, y.astype(int)).save(folder)
    extremegp.load(folder)
    indices = read_tensors(folder / "tensors.safetensors")[0][f"model.mean_function.{name}"]
    indices[0] = index
    _rewrite(folder, tensors={f"model.mean_function.{name}": indices})
    with pytest.raises(ModelFormatError, match="index out of range"):
        extremegp.load(folder)


CLASS_ALTERATIONS: dict[str, Callable[[Path], None]] = {
    "classes too few": lambda folder: _rewrite(folder, config={"labels": {"kind": "str", "names": ["a", "b"]}}),
    "classes of another kind": lambda folder: _rewrite(folder, config={"labels": {"kind": "int", "names": ["a"] * 3}}),
    "classes out of order": lambda folder: _rewrite(folder, config={"labels": {"kind": "str", "names": list("cba")}}),
    "classes no object": lambda folder: _rewrite(folder, config={"labels": ["a", "b", "c"]}),
    "no classes": lambda folder: _rewrite(folder, config={"labels": None}),
    "unknown likelihood": lambda folder: _rewrite(folder, config=_settings(folder, likelihood="os.system")),
    "likelihood no string": lambda folder: _rewrite(folder, config=_settings(folder, likelihood=[1])),
    "likelihood of labels": lambda folder: _rewrite(folder, config=_settings(folder, likelihood="bernoulli")),
    "unknown mixing": lambda folder: _rewrite(folder, config=_settings(folder, mixing="none")),
    "unknown latents": lambda folder: _rewrite(folder, config=_settings(folder, latents="trees")),
    "unknown local": lambda folder: _rewrite(folder, config=_settings(folder, local="global")),
    "too few functions": lambda folder: _rewrite(folder, config=_settings(folder, n_latent=2)),
    "huge local rows": lambda folder: _rewrite(folder, config=_settings(folder, n_local_rows=HUGE)),
    "separate inducing inputs": lambda folder: _rewrite(folder, config=_settings(folder, inducing="separate")),
    "other target kind": lambda folder: _rewrite(folder, config={"target_kind": "dense"}),
    "features without centre": lambda folder: _rewrite(folder, tensors={"features.centre": None}),
    "features not finite": lambda folder: _rewrite(folder, tensors={"features.factor": torch.full((4,), float("inf"))}),
    "visits below zero": lambda folder: _rewrite(
        folder, tensors={"model.likelihood.locals.visits": torch.full((30,), -1, dtype=torch.int64)}
    ),
}


@pytest.fixture(scope="module")
def class_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes") / "model"
    x, y = random_inputs(30, 4), np.array(["a", "b", "c"] * 10)
    options = {"likelihood": "ar-softmax", "local": "stored", "mean_function": "zero", "n_inducing": 3, "epochs": 1}
    extremegp.MultiClassGPClassifier(**options, random_state=0, verbose=False).fit(x, y).save(folder)
    extremegp.load(folder)
    return folder


@pytest.mark.parametrize("case", CLASS_ALTERATIONS)
def test_an_altered_class_model_is_refused(case: str, class_model: Path, tmp_path: Path):
    folder = tmp_path / "model"
    shutil.copytree(class_model, folder)
    CLASS_ALTERATIONS[case](folder)
    with pytest.raises(ModelFormatError) as caught:
        extremegp.load(folder)
    assert "\n" not in str(caught.value)
