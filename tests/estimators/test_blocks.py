"""Estimators of texts and vectors together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone

import extremegp
from extremegp import LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.data import open_dataset
from extremegp.data.mapped_writer import MappedWriter
from extremegp.errors import DataError

N = 96
rng = np.random.default_rng(0)
COLOUR, SIDE = rng.integers(2, size=N), rng.integers(2, size=N)
TEXTS = [f"{('red', 'green')[c]} thing number{i % 7}" for i, c in enumerate(COLOUR)]
VECTORS = (rng.normal(size=(N, 6)) + 4 * (SIDE[:, None] - 0.5) * np.eye(6)[0]).astype(np.float32)
X = {"text": TEXTS, "vector": VECTORS}
KINDS = {"text": "text", "vector": "standard"}
CLASSES = np.array(["rl", "rr", "gl", "gr"])[2 * COLOUR + SIDE]
LABELS = [[("red", "green")[c], ("left", "right")[s]] for c, s in zip(COLOUR, SIDE, strict=True)]
SMALL: dict[str, Any] = {"n_inducing": 12, "epochs": 30, "random_state": 0}
ESTIMATORS: list[Any] = [
    MultiClassGPClassifier(features=KINDS, **SMALL),
    MultiLabelGPClassifier(features=KINDS, latents="gp", **SMALL),
    MultiLabelGPClassifier(features=KINDS, mean_function="zero", linear_term=True, inducing="sparse", **SMALL),
    MultiClassGPClassifier(features=KINDS, latents="linear", **SMALL | {"epochs": 100, "learning_rate": 0.1}),
    LabelTreeGPClassifier(features=KINDS, leaf_size=2, random_state=0),
]
NAMES = ["classes", "labels", "labels-linear-term", "linear", "trees"]


def targets(estimator: Any) -> Any:
    return CLASSES if isinstance(estimator, MultiClassGPClassifier) else LABELS


def right(estimator: Any, X: Any) -> float:
    """The share of rows with exactly the right labels."""
    found = estimator.predict(X)
    if isinstance(estimator, MultiClassGPClassifier):
        return float((found == CLASSES).mean())
    return float(np.mean([set(some) == set(own) for some, own in zip(found, LABELS, strict=True)]))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
def test_what_two_blocks_say_is_learnt_together_saved_and_loaded(estimator: Any, tmp_path: Path) -> None:
    fitted = clone(estimator).fit(X, targets(estimator))
    assert right(fitted, X) > 0.9
    fitted.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    assert loaded.features == KINDS
    np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    frame = pd.DataFrame({"vector": list(VECTORS), "text": TEXTS})
    np.testing.assert_array_equal(loaded.predict_proba(frame), fitted.predict_proba(X))


@pytest.mark.parametrize("estimator", ESTIMATORS[:2], ids=NAMES[:2])
def test_weights_of_blocks_are_learnt(estimator: Any) -> None:
    noise = {"text": TEXTS, "vector": rng.normal(size=(N, 6))}
    of_colour = np.array(["red", "green"])[COLOUR]
    y = of_colour if isinstance(estimator, MultiClassGPClassifier) else [[name] for name in of_colour]
    model = clone(estimator).fit(noise, y).model_
    assert model.mean_function.shares[0] > model.mean_function.shares[1]
    kernel = model.latents.kernel
    assert float(kernel.left.log_variance) != float(kernel.right.log_variance)


@pytest.mark.parametrize("estimator", [ESTIMATORS[0], ESTIMATORS[4]], ids=[NAMES[0], NAMES[4]])
def test_sparse_and_dense_blocks_give_the_same_probabilities(estimator: Any) -> None:
    fitted = clone(estimator).fit(X, targets(estimator))
    other = X | {"vector": sparse.csr_matrix(VECTORS)}
    np.testing.assert_allclose(fitted.predict_proba(other), fitted.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("estimator", [ESTIMATORS[1], ESTIMATORS[4]], ids=[NAMES[1], NAMES[4]])
def test_blocks_on_disk_give_the_same_model(estimator: Any, tmp_path: Path) -> None:
    counts = sparse.csr_matrix(rng.poisson(0.5, (N, 20)) + 3 * np.eye(20)[COLOUR]).astype(np.float32)
    with MappedWriter(tmp_path / "counts") as writer:
        writer.append(counts, np.ones((N, 1)))
        writer.finish()
    np.save(tmp_path / "vectors.npy", VECTORS)
    inputs = {"text": counts, "vector": VECTORS}
    mapped = {"text": open_dataset(tmp_path / "counts").X, "vector": np.load(tmp_path / "vectors.npy", mmap_mode="r")}
    estimator = clone(estimator).set_params(features={"text": "tfidf", "vector": "standard"})
    of_memory, of_disk = (clone(estimator).fit(given, LABELS) for given in (inputs, mapped))
    assert right(of_disk, mapped) > 0.8
    if isinstance(estimator, LabelTreeGPClassifier):  # Rows on disk are trained on in another order.
        np.testing.assert_array_equal(of_disk.predict_proba(mapped), of_memory.predict_proba(inputs))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
def test_auto_features_take_blocks_as_they_come(estimator: Any) -> None:
    chosen = clone(estimator).set_params(features="auto").fit(X, targets(estimator))
    assert {name: step.kind for name, step in chosen.features_.blocks.items()} == KINDS


def test_a_validation_part_has_the_blocks_too() -> None:
    estimator = MultiClassGPClassifier(features=KINDS, **SMALL)
    history = estimator.fit(X, CLASSES, validation=(X, CLASSES)).history_
    assert history[-1]["validation_accuracy"] > 0.9
    assert clone(estimator).set_params(validation_fraction=0.2).fit(X, CLASSES).settings_.blocks


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
def test_bad_blocks_are_refused_in_one_sentence(estimator: Any) -> None:
    for given, problem in (
        ({"text": TEXTS}, "lacks the block 'vector'"),
        (X | {"id": SIDE}, "also has the block 'id'"),
        (X | {"vector": VECTORS[:-1]}, "different numbers of rows"),
        (TEXTS, "must be a mapping"),
    ):
        with pytest.raises(DataError, match=problem):
            clone(estimator).fit(given, targets(estimator))
    with pytest.raises(DataError, match="X is a mapping of blocks, so features must be 'auto' or a kind for each"):
        clone(estimator).set_params(features="unit").fit(X, targets(estimator))
