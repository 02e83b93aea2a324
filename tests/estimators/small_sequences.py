"""A small sequence classifier and small data for its tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from extremegp import SequenceGPClassifier

Sequences = list[list[dict[str, str]]]


def small_tagger(**changes: Any) -> SequenceGPClassifier:
    small = {
        "latents": "random-features",
        "n_random_features": 20,
        "n_inducing": 4,
        "posterior": "mean-field",
        "n_draws": 4,
        "epochs": 2,
        "batch_size": 6,
        "verbose": False,
        "random_state": 0,
    }
    return SequenceGPClassifier(**{**small, **changes})


def sticky(n_sequences: int = 14, *, n_labels: int = 3, seed: int = 0) -> tuple[Sequences, list[list[str]]]:
    """Words that give their label away, and the word "same", whose label is that of the token before; and a letter."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for length in rng.integers(1, 8, size=n_sequences):
        codes, words = [], []
        for t in range(length):
            repeats = t > 0 and rng.random() < 0.6
            codes.append(codes[-1] if repeats else int(rng.integers(n_labels)))
            words.append("same" if repeats else f"w{codes[-1]}")
        X.append([{"word": word, "letter": str(rng.choice(list("abcd")))} for word in words])
        y.append([f"label {code}" for code in codes])
    return X, y
