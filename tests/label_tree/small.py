"""Small data with many labels, and a model of them, for the tests of label trees."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray

from extremegp import LabelTreeGPClassifier
from extremegp.storage.tensors import read_tensors, write_tensors

N, D, K = 150, 40, 24


def small_data(seed: int = 0, n_rows: int = N) -> tuple[scipy.sparse.csr_matrix, NDArray[np.int64]]:
    """Rows with the words of their labels and some others; the last label has no row, the first row no label."""
    rng = np.random.default_rng(seed)
    y = (rng.random((n_rows, K)) < np.linspace(0.25, 0.04, K)).astype(np.int64)
    y[:, -1], y[0] = 0, 0
    words = np.random.default_rng(7).random((K, D)) < 0.1
    counts = rng.poisson(0.9 * (y @ words)) + (rng.random((n_rows, D)) < 0.05)
    counts[0, 0] = 1
    return scipy.sparse.csr_matrix(counts.astype(np.float32)), y


def small_classifier(**changes: Any) -> LabelTreeGPClassifier:
    small: dict[str, Any] = {
        "n_trees": 2,
        "leaf_size": 4,
        "n_inducing": 8,
        "held_out": 0.2,
        "random_state": 0,
        "verbose": False,
    }
    return LabelTreeGPClassifier(**{**small, **changes})


def change_tensor(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change a tensor of a saved model, and its digest."""
    tensors, header = read_tensors(folder / "tensors.safetensors")
    tensors[name] = change(tensors[name].clone())
    write_tensors(folder / "tensors.safetensors", tensors, header)
    config = json.loads((folder / "config.json").read_text())
    config["sha256"] = hashlib.sha256((folder / "tensors.safetensors").read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(config))
