from __future__ import annotations

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.label_tree.small import D, K, N, change_tensor, small_classifier, small_data

import extremegp
from extremegp import LabelTreeGPClassifier
from extremegp.errors import ModelFormatError
from extremegp.label_tree import tree

LEVEL = "model.trees.0.levels.0."
LAST = "model.trees.1.levels.1."


@pytest.fixture(scope="module")
def saved(fitted: LabelTreeGPClassifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    fitted.save(folder)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def change_settings(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["settings"] |= changes
    (folder / "config.json").write_text(json.dumps(config))


def test_a_loaded_model_predicts_to_the_same_bits(fitted: LabelTreeGPClassifier, saved: Path):
    loaded = extremegp.load(saved)
    x, _ = small_data(1)
    assert isinstance(loaded, LabelTreeGPClassifier)
    assert loaded.settings_ == fitted.settings_
    np.testing.assert_array_equal(loaded.predict_proba(x), fitted.predict_proba(x))
    for by in ("utility", "probability"):
        mine, other = (model.predict_topk(x, 7, by=by) for model in (fitted, loaded))
        np.testing.assert_array_equal(mine.labels, other.labels)
        np.testing.assert_array_equal(mine.scores, other.scores)


def test_the_copy_that_hostile_files_start_from_loads(copy: Path):
    change_tensor(copy, "model.background", lambda tensor: tensor)
    change_settings(copy, beam=3)
    assert extremegp.load(copy).settings_.beam == 3


LIMITS = {
    "model.trees.0.order": K,
    f"{LEVEL}features": D,
    f"{LAST}targets": K,
    "model.rows.indices": D,
    "model.rows.labels": K,
}
INTEGERS = [
    *(f"{level}{name}" for level in (LEVEL, LAST) for name in ("first_children", "blocks", "features", "entries")),
    *LIMITS,
    "model.rows.indptr",
    "model.rows.label_indptr",
]


@pytest.mark.parametrize("value", [-1, 10**6])
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("name", sorted({*INTEGERS}))
def test_an_index_out_of_range_is_refused(copy: Path, name: str, place: int, value: int):
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor[place] = value
        return tensor

    change_tensor(copy, name, change)
    with pytest.raises(ModelFormatError, match=r"out of range|contradict"):
        extremegp.load(copy)


@pytest.mark.parametrize("name", LIMITS)
def test_the_limit_itself_is_out_of_range(copy: Path, name: str):
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor[-1] = LIMITS[name]
        return tensor

    change_tensor(copy, name, change)
    with pytest.raises(ModelFormatError, match="out of range"):
        extremegp.load(copy)


def swapped(tensor: torch.Tensor) -> torch.Tensor:
    """Two different neighbours in the middle the other way round."""
    place = int(torch.nonzero(tensor[1:-2] != tensor[2:-1])[0]) + 1
    tensor[[place, place + 1]] = tensor[[place + 1, place]]
    return tensor


@pytest.mark.parametrize(
    "name",
    [
        # The first level has one block.
        *(f"{LEVEL}{name}" for name in ("features", "entries")),
        *(f"{LAST}{name}" for name in ("first_children", "blocks", "features", "entries")),
        "model.rows.indptr",
        "model.rows.label_indptr",
    ],
)
def test_what_must_ascend_does(copy: Path, name: str):
    change_tensor(copy, name, swapped)
    with pytest.raises(ModelFormatError, match="contradict"):
        extremegp.load(copy)


@pytest.mark.parametrize("entries", [1, 2, 3, 1 << 22])
def test_the_order_is_checked_across_the_blocks_that_it_is_checked_in(fitted: LabelTreeGPClassifier, entries: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "_BLOCK_ENTRIES", entries)
        assert fitted.model_.is_sound()
        altered = deepcopy(fitted.model_)
        features = altered.trees[1].levels[1].features
        for place in (torch.nonzero(features[:-1] < features[1:])[:, 0] + 1).tolist():
            before = features[place].item()
            features[place] = features[place - 1]
            # Of equal features the second may still begin a block.
            assert altered.is_sound() == (place in altered.trees[1].levels[1].blocks.tolist())
            features[place] = before


def test_a_label_stands_in_a_tree_once(copy: Path):
    change_tensor(copy, "model.trees.1.order", lambda order: order.index_fill(0, torch.tensor([3]), int(order[4])))
    with pytest.raises(ModelFormatError, match="contradict"):
        extremegp.load(copy)


def test_targets_are_children_of_their_own_block(copy: Path):
    def change(targets: torch.Tensor) -> torch.Tensor:
        targets[0] = targets.max()
        return targets

    change_tensor(copy, f"{LAST}targets", change)
    with pytest.raises(ModelFormatError, match="contradict"):
        extremegp.load(copy)


OF_REGRESSION = [("regression.noise", 0.0), ("regression.noise", -1.0), ("regression.precision", 0.0)]


@pytest.mark.parametrize(
    ("name", "value"), [("background", 0.0), ("background", 1.5), ("scale", 0.0), ("scale", -1.0), *OF_REGRESSION]
)
def test_numbers_outside_their_domain_are_refused(copy: Path, name: str, value: float):
    change_tensor(copy, f"model.{name}", lambda tensor: torch.full_like(tensor, value))
    with pytest.raises(ModelFormatError, match="contradict"):
        extremegp.load(copy)


@pytest.mark.parametrize("name", [f"{LEVEL}weights", "model.rows.values", "model.log_counts", "model.centre"])
def test_nan_is_refused(copy: Path, name: str):
    change_tensor(copy, name, lambda tensor: torch.full_like(tensor, torch.nan))
    with pytest.raises(ModelFormatError, match="NaN"):
        extremegp.load(copy)


@pytest.mark.parametrize(
    "changes",
    [
        {"beam": 0},
        {"beam": 2**39},
        {"beam": -1},
        {"beam": 2.5},
        {"beam": True},
        {"beam": None},
        {"n_inducing": 0},
        {"n_inducing": 2**39},
        {"n_labels": 0},
        {"n_labels": "24"},
        {"n_features": 2**39},
        {"n_rows": N - 1},
        {"n_stored": 2**50},
        {"n_positives": 0},
        {"n_regressed": -1},
        {"n_regressed": 0},
        {"n_regressed": 2**39},
        {"n_regressed": 2.5},
        {"n_regressed": True},
        {"n_regressed": None},
        {"n_excluded": -1},
        {"n_excluded": 5},
        {"n_excluded": 2**39},
        {"n_excluded": True},
        {"n_directions": -1},
        {"n_directions": 3},
        {"n_directions": 2**39},
        {"most_read": -1},
        {"most_read": []},
        {"trees": []},
        {"trees": [[]]},
        {"trees": 3},
        {"trees": None},
        {"trees": "abc"},
        {"trees": [[[1, 2, 3]]]},
        {"trees": [[[1, 2, 3, 4, 5]]]},
        {"trees": [[[1, 24, 0, -4]]]},
        {"trees": [[[2**39, 2**39, 2**39, 2**39]]]},
        {"trees": {"a": 1}},
        {"another": 1},
    ],
)
def test_hostile_settings_are_refused(copy: Path, changes: dict[str, Any]):
    change_settings(copy, **changes)
    with pytest.raises(ModelFormatError):
        extremegp.load(copy)


@pytest.mark.parametrize("settings", [None, [], "x", 3, {}])
def test_settings_of_another_type_are_refused(copy: Path, settings: Any):
    config = json.loads((copy / "config.json").read_text())
    config["settings"] = settings
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFormatError):
        extremegp.load(copy)


def test_more_candidates_are_found_and_ranked_where_rows_have_many_labels():
    few, many = (small_classifier(n_best=n_best).fit(*small_data()) for n_best in (2, 7))
    x = small_data(1)[0]
    n_few, n_many = (np.bincount(model.model_.evidence(model.features_.transform(x)).rows) for model in (few, many))
    assert n_few.max() <= 6
    assert n_many.max() > 7
    assert np.all(n_many >= n_few)
    assert (few.predict_topk(x, K).labels >= 0).sum(axis=1).max() == n_few.max()


def test_as_many_candidates_as_most_rows_have_labels():
    classifier = small_classifier()
    for labels, expected in ((5, 60), (113, 113), (900, 300)):
        assert classifier._training(1000, 1000, 0, labels).n_best == expected
