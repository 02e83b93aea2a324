"""A small classifier and small data for the tests of the estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.models import random_inputs, random_labels

from extremegp import MultiLabelGPClassifier

N, D, K = 40, 6, 5


def small_classifier(**changes: Any) -> MultiLabelGPClassifier:
    small = {
        "features": "unit",
        "mean_function": "zero",
        "n_inducing": 5,
        "n_latent": 3,
        "epochs": 3,
        "batch_size": 16,
        "verbose": False,
        "random_state": 0,
    }
    return MultiLabelGPClassifier(**{**small, **changes})


def small_data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return random_inputs(N, D, seed=seed).astype(np.float32), random_labels(N, K, seed=seed + 1).astype(np.int64)


def label_lists(y: np.ndarray) -> list[list[str]]:
    return [[f"label {k}" for k in np.flatnonzero(row)] for row in y]
