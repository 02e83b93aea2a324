"""Models that earlier versions saved: they load, and predict what they did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import extremegp

FOLDER = Path(__file__).with_name("format1")
TOKENS = [[{"w": "a"}, {"w": "c"}, {"w": "e"}]]


@pytest.mark.parametrize("name", ["labels", "classes", "sequences", "sequences-gp", "sequences-crf", "trees"])
def test_models_of_format_1_load_and_predict_what_they_did(name: str):
    expected = np.load(FOLDER / "expected.npz")[name]
    model: Any = extremegp.load(FOLDER / name)
    if name.startswith("sequences"):
        found = model.predict_marginals(TOKENS)[0]
    elif name == "trees":
        found = model.predict_proba(["red apple", "green car"])
    else:
        found = model.predict_proba(np.load(FOLDER / "inputs.npy"))
    # Other machines round otherwise.
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["labels", "sequences", "trees"])
def test_and_are_saved_again_as_models_of_today(name: str, tmp_path: Path):
    model: Any = extremegp.load(FOLDER / name)
    model.save(tmp_path / "model")
    again: Any = extremegp.load(tmp_path / "model")
    assert again.settings_ == model.settings_
    assert again.history_ == model.history_
