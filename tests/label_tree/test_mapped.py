"""Models of label trees that are open while their tensors stay in the file."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.label_tree.small import small_classifier, small_data

import extremegp
from extremegp import LabelTreeGPClassifier
from extremegp.label_tree import LabelTreeSettings, LevelSizes
from extremegp.label_tree.model import LabelTreeModel

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what memory holds")


@pytest.fixture
def folder(fitted: LabelTreeGPClassifier, tmp_path: Path) -> Path:
    fitted.save(tmp_path / "model")
    return tmp_path / "model"


def answers(model: Any) -> list[Any]:
    x, _ = small_data(1)
    best = model.predict_topk(x, 7)
    return [best.labels, best.scores, model.predict_proba(x), model.predict_novelty(x)]


def assert_same(model: Any, expected: list[Any]) -> None:
    for mine, other in zip(answers(model), expected, strict=True):
        np.testing.assert_array_equal(mine, other)


def is_mapped(folder: Path) -> bool:
    return str(folder) in Path("/proc/self/maps").read_text(encoding="utf-8")


@linux
@pytest.mark.parametrize("mapped", [True, False])
def test_a_model_is_mapped_unless_it_shall_not_be_and_predicts_to_the_same_bits(
    fitted: LabelTreeGPClassifier, folder: Path, mapped: bool
):
    loaded = extremegp.load(folder, mapped=mapped)
    assert is_mapped(folder) == mapped
    assert_same(loaded, answers(fitted))
    del loaded


def test_a_mapped_model_outlives_its_folder(fitted: LabelTreeGPClassifier, folder: Path):
    loaded = extremegp.load(folder)
    shutil.rmtree(folder)
    assert_same(loaded, answers(fitted))


def test_a_mapped_model_stays_itself_when_another_is_saved_in_its_place(fitted: LabelTreeGPClassifier, folder: Path):
    loaded, other = extremegp.load(folder), small_classifier(random_state=1).fit(*small_data(2))
    other.save(folder)
    assert_same(loaded, answers(fitted))
    assert_same(extremegp.load(folder), answers(other))


def test_a_mapped_model_can_be_saved_in_its_own_place(fitted: LabelTreeGPClassifier, folder: Path):
    before = (folder / "tensors.safetensors").read_bytes()
    loaded = extremegp.load(folder)
    loaded.save(folder)
    assert (folder / "tensors.safetensors").read_bytes() == before
    assert_same(loaded, answers(fitted))
    assert_same(extremegp.load(folder), answers(fitted))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_a_mapped_model_are_whole(fitted: LabelTreeGPClassifier, folder: Path, copied: Any):
    loaded = copied(extremegp.load(folder))
    # Altered in place, as nothing may while the model itself is open.
    (folder / "tensors.safetensors").write_bytes(b"")
    assert_same(loaded, answers(fitted))


def test_what_is_written_to_a_mapped_model_does_not_reach_the_file(fitted: LabelTreeGPClassifier, folder: Path):
    loaded: Any = extremegp.load(folder)
    loaded.model_.trees[0].levels[0].weights.zero_()
    assert not np.array_equal(loaded.predict_proba(small_data(1)[0]), fitted.predict_proba(small_data(1)[0]))
    assert_same(extremegp.load(folder), answers(fitted))


def enlarged(fitted: LabelTreeGPClassifier, factor: int) -> LabelTreeGPClassifier:
    """The same functions, of a tree whose every weight is made of many."""
    state, trees = fitted.model_.state_dict(), []
    for t, levels in enumerate(fitted.settings_.trees):
        trees.append(tuple(LevelSizes(*sizes[:3], factor * sizes[3]) for sizes in levels))
        for number in range(len(levels)):
            level = f"trees.{t}.levels.{number}."
            state[f"{level}entries"] = factor * state[f"{level}entries"]
            for name, scale in (("targets", 1), ("weights", factor), ("precisions", 1)):
                state[f"{level}{name}"] = state[f"{level}{name}"].div(scale).to(state[f"{level}{name}"].dtype)
                state[f"{level}{name}"] = state[f"{level}{name}"].repeat_interleave(factor)
    settings = LabelTreeSettings(**{**vars(fitted.settings_), "trees": tuple(trees)})
    large = copy.deepcopy(fitted)
    large.settings_, large.model_ = settings, LabelTreeModel(settings)
    large.model_.load_state_dict(state)
    return large


# What a process needs that predicts with a small model is not of the large one.
_COLD = """
import json, sys
import numpy, psutil, scipy.sparse
import extremegp

small, large, n_features = sys.argv[1], sys.argv[2], int(sys.argv[3])
x = scipy.sparse.csr_matrix(numpy.ones((1, n_features), numpy.float32))
extremegp.load(small).predict_topk(x)
compiler = "torch._dynamo" in sys.modules

def high():
    status = open("/proc/self/status").read()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])

start, peak = psutil.Process().memory_info().rss, high()
model = extremegp.load(large)
loaded = psutil.Process().memory_info().rss - start
model.predict_topk(x)
first = psutil.Process().memory_info().rss - start
print(json.dumps({"loaded": loaded, "first": first, "peak": high() - peak, "compiler": compiler}))
"""


@linux
def test_a_process_that_opens_a_large_model_takes_little_beside_the_file(
    fitted: LabelTreeGPClassifier, folder: Path, tmp_path: Path
):
    weights = sum(sizes.weights for levels in fitted.settings_.trees for sizes in levels)
    large = enlarged(fitted, 2**23 // weights)
    large.save(tmp_path / "large")
    size = (tmp_path / "large" / "tensors.safetensors").stat().st_size
    assert size > 2**25
    command = [sys.executable, "-c", _COLD, str(folder), str(tmp_path / "large"), str(fitted.settings_.n_features)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found["loaded"] < size / 2
    assert found["first"] < 1.5 * size
    assert found["peak"] < 1.5 * size
    # It takes longer to import than all else.
    assert not found["compiler"]


def test_the_larger_model_is_the_same(fitted: LabelTreeGPClassifier, tmp_path: Path):
    large = enlarged(fitted, 3)
    large.save(tmp_path / "large")
    loaded = extremegp.load(tmp_path / "large")
    x, _ = small_data(1)
    np.testing.assert_allclose(loaded.predict_proba(x), fitted.predict_proba(x), atol=1e-3)
    assert torch.equal(loaded.model_.trees[0].order, fitted.model_.trees[0].order)
