"""Models that earlier versions saved: they load, and predict what they did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import extremegp
from extremegp.storage.models import FORMAT_VERSION, read_model

TOKENS = [[{"w": "a"}, {"w": "c"}, {"w": "e"}]]
FOLDERS = [
    *sorted(path for path in Path(__file__).parent.glob("format*/*") if path.is_dir()),
]
NAMES = [f"{path.parent.name}/{path.name}" for path in FOLDERS]


def predictions(model: Any, folder: Path) -> Any:
    if folder.name.startswith("sequences"):
        return model.predict_marginals(TOKENS)[0]
    if folder.name == "trees":
        return model.predict_proba(["red apple", "green car"])
    return model.predict_proba(np.load(folder.parent / "inputs.npy"))


def test_there_are_models_of_every_format():
    """`scripts/model_fixtures.py` makes those of a new one."""
    formats = {path.parent.name for path in FOLDERS}
    assert formats == {f"format{version}" for version in range(1, FORMAT_VERSION + 1)}
    kinds = {"labels", "classes", "sequences", "sequences-gp", "sequences-crf", "trees"}
    for name in formats:
        assert kinds <= {path.name for path in FOLDERS if path.parent.name == name}
    for folder in FOLDERS:
        assert read_model(folder)[0]["format_version"] == int(folder.parent.name.removeprefix("format"))


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_old_models_load_and_predict_what_they_did(folder: Path):
    expected = np.load(folder.parent / "expected.npz")[folder.name]
    # Other machines round otherwise.
    np.testing.assert_allclose(predictions(extremegp.load(folder), folder), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_and_are_saved_again_as_models_of_today(folder: Path, tmp_path: Path):
    model: Any = extremegp.load(folder)
    model.save(tmp_path / "model")
    assert read_model(tmp_path / "model")[0]["format_version"] == FORMAT_VERSION
    again: Any = extremegp.load(tmp_path / "model")
    assert again.settings_ == model.settings_
    assert again.history_ == model.history_
    assert again.origin_ == model.origin_
    assert (model.hyperparameters_, again.hyperparameters_) == (None, None)
    np.testing.assert_array_equal(predictions(again, folder), predictions(model, folder))
