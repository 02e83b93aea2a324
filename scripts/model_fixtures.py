"""Write small models of today's format, and what they predict, for the tests of formats: run once for every format.

python scripts/model_fixtures.py tests/storage/format2
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from extremegp import LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier, SequenceGPClassifier

TOKENS = [[{"w": "a"}, {"w": "c"}, {"w": "e"}]]
TEXTS = ["red apple", "green car"]
QUICK: dict[str, Any] = {"random_state": 0, "verbose": False, "epochs": 3, "n_inducing": 3}


def taggers() -> dict[str, SequenceGPClassifier]:
    """Small models of sequences, by the name of their folder."""
    rng = np.random.default_rng(0)
    codes = [rng.integers(5, size=4) for _ in range(10)]
    x, y = [[{"w": "abcde"[c]} for c in row] for row in codes], [["xyz"[c % 3] for c in row] for row in codes]
    kinds: dict[str, dict[str, Any]] = {
        "sequences": {},
        "sequences-learnt": {"frequencies": "var-fixed", "kernel": "se"},
        "sequences-deep": {"n_layers": 2, "n_hidden": 2, "n_reduced": 2, "frequencies": "var-resampled"},
        "sequences-gp": {"latents": "gp"},
        "sequences-crf": {"latents": "linear-point", "transitions": "point"},
    }
    small = {**QUICK, "n_random_features": 6, "n_draws": 7}
    return {name: SequenceGPClassifier(**small, **kind).fit(x, y) for name, kind in kinds.items()}


def main(folder: Path) -> None:
    """Train the models and save them."""
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(5, 4)).astype(np.float32)
    x = rng.normal(size=(30, 4)).astype(np.float32)
    indicator = (x[:, :3] > 0).astype(int)
    labels = MultiLabelGPClassifier(**QUICK, validation_fraction=0.2).fit(x, indicator)
    classes = MultiClassGPClassifier(**QUICK).fit(x, np.array(["a", "b", "c"])[indicator.sum(axis=1) % 3])
    texts, names = ["red apple", "green apple", "red car", "green car"] * 10, [["fruit", "red"], ["fruit"], ["red"], []]
    trees = LabelTreeGPClassifier(features="text", leaf_size=2, n_inducing=3, random_state=0, verbose=False)
    trees.fit(texts, names * 10)
    expected = {
        "labels": labels.predict_proba(inputs),
        "classes": classes.predict_proba(inputs),
        "trees": trees.predict_proba(TEXTS),
    }
    models: dict[str, Any] = {"labels": labels, "classes": classes, "trees": trees}
    for name, tagger in taggers().items():
        models[name], expected[name] = tagger, tagger.predict_marginals(TOKENS)[0]
    for name, model in models.items():
        model.save(folder / name)
    np.savez(folder / "expected.npz", **expected)
    np.save(folder / "inputs.npy", inputs)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
