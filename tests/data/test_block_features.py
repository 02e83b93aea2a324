from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from extremegp.data import BlockFeatures, chosen_features, make_features, open_dataset
from extremegp.data.features import Features
from extremegp.data.mapped_writer import MappedWriter
from extremegp.engine.matrices import is_mapped
from extremegp.errors import DataError, ModelFormatError, SettingsError

rng = np.random.default_rng(0)
TEXTS = ["red apple", "green apple", "", "red car and car", "green car"]
VECTORS = rng.normal(size=(5, 3)).astype(np.float32)
VECTORS[1, 1] = 0
PRICES = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
COUNTS = sparse.csr_matrix(rng.poisson(0.8, (5, 4)).astype(np.float32))
KINDS: Any = {"name": "text", "vector": "unit", "price": "standard", "counts": "tfidf"}
X = {"name": TEXTS, "vector": VECTORS, "price": PRICES, "counts": COUNTS}


def beside(inputs: Any, kinds: Any = KINDS) -> np.ndarray:
    """Every block by its own step."""
    parts = []
    for name, kind in kinds.items():
        block = inputs[name].reshape(-1, 1) if name == "price" else inputs[name]
        part = make_features(kind).fit(block).transform(block)
        parts.append(part.toarray() if sparse.issparse(part) else part)
    return np.concatenate(parts, axis=1)


def test_the_features_of_all_blocks_stand_beside_each_other_as_their_own_steps_give_them() -> None:
    step = make_features(KINDS).fit(X)
    assert isinstance(step, BlockFeatures)
    assert list(step.blocks) == list(KINDS)
    x = step.transform(X)
    assert isinstance(x, sparse.csr_matrix)
    assert x.dtype == np.float32
    x.check_format(full_check=True)
    assert x.has_sorted_indices
    np.testing.assert_array_equal(x.toarray(), beside(X))
    widths = [len(step.blocks["name"].to_state()[1]["idf"]), 3, 1, 4]
    assert [block.n_features for block in step.layout] == widths
    assert [block.dense for block in step.layout] == [False, True, True, False]
    assert [block.unit for block in step.layout] == [True, True, False, True]


def test_dense_blocks_make_an_array() -> None:
    kinds: Any = {"vector": "raw", "price": "scale"}
    step = make_features(kinds).fit({"price": PRICES, "vector": VECTORS})
    x = step.transform({"vector": VECTORS, "price": PRICES})
    assert isinstance(x, np.ndarray)
    np.testing.assert_array_equal(x, beside(X, kinds))


def test_a_data_frame_has_texts_vectors_and_numbers_in_its_columns() -> None:
    frame = pd.DataFrame({"name": TEXTS, "vector": list(VECTORS), "price": PRICES, "counts": COUNTS.toarray().tolist()})
    expected = beside(X | {"counts": COUNTS.toarray()})
    np.testing.assert_array_equal(make_features(KINDS).fit(frame).transform(frame).toarray(), expected)


def test_dense_and_sparse_blocks_agree_whichever_form_training_had() -> None:
    step = make_features(KINDS).fit(X)
    other = X | {"vector": sparse.csr_matrix(VECTORS), "counts": COUNTS.toarray()}
    assert step.transform(other).toarray() == pytest.approx(step.transform(X).toarray())


def test_a_restored_step_gives_the_same_bits() -> None:
    step = make_features(KINDS).fit(X)
    weighed = step.weigh([0.5, 2.0, 1.0, 3.0], step.transform(X))
    config, arrays = step.to_state()
    restored = Features.from_state(json.loads(json.dumps(config)), arrays)
    again = restored.transform(X)
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(again, name), getattr(weighed, name))
    factors = np.repeat([0.5, 2.0, 1.0, 3.0], [block.n_features for block in step.layout])
    np.testing.assert_allclose(again.toarray(), beside(X) * factors, rtol=1e-6)
    assert restored.layout == step.layout


@pytest.mark.parametrize(
    "change",
    [
        {"blocks": None},
        {"blocks": []},
        {"n_features": 5},
        {"blocks": [{"name": "a", "dense": 1, "factor": 1.0, "step": {"kind": "raw", "n_features": 2}}]},
        {"blocks": [{"name": "a", "dense": True, "factor": -1.0, "step": {"kind": "raw", "n_features": 2}}]},
        {"blocks": [{"name": "a", "dense": True, "factor": 1.0, "step": {"kind": "blocks", "n_features": 2}}]},
        {"blocks": 2 * [{"name": "a", "dense": True, "factor": 1.0, "step": {"kind": "raw", "n_features": 1}}]},
    ],
)
def test_altered_state_is_refused(change: Any) -> None:
    block = {"name": "a", "dense": True, "factor": 1.0, "step": {"kind": "raw", "n_features": 2}}
    config = {"kind": "blocks", "n_features": 2, "blocks": [block]}
    assert Features.from_state(config, {}).transform({"a": np.ones((1, 2))}).tolist() == [[1, 1]]
    with pytest.raises(ModelFormatError, match="stored features step"):
        Features.from_state(config | change, {})


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({"name": TEXTS}, "X lacks the block 'counts', 'price', 'vector'"),
        (X | {"id": PRICES}, "X also has the block 'id'"),
        (X | {"price": PRICES[:4]}, "different numbers of rows: 'name' has 5, 'vector' has 5, 'price' has 4"),
        (X | {"vector": VECTORS[:, :2]}, "block 'vector': X has 2 features"),
        (X | {"name": ["a", None, "b", "c", "d"]}, "block 'name': text 1"),
        (X | {"price": PRICES * np.nan}, "block 'price'.*NaN"),
        (X | {"vector": pd.Series([[1, 2, 3]] * 4 + [[1, 2]])}, "block 'vector': row 4"),
        (X | {"price": ["a"] * 5}, "block 'price'"),
        (TEXTS, "must be a mapping from their names to texts or matrices, or a data frame; it is of type list"),
        ({}, "no blocks"),
        ({1: TEXTS}, "names of blocks are strings"),
    ],
)
def test_bad_blocks_are_refused_by_name(inputs: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        make_features(KINDS).fit(X).transform(inputs)


def test_kinds_of_blocks_are_checked() -> None:
    for kinds, problem in (({}, "mapping"), ({"a": "bm25"}, "not 'bm25'"), ({"a": {"b": "raw"}}, "must be one kind")):
        with pytest.raises(SettingsError, match=problem):
            make_features(kinds)  # type: ignore[arg-type]


def test_kinds_are_chosen_for_every_block() -> None:
    chosen = {"name": "text", "vector": "standard", "price": "root", "counts": "unit"}
    assert chosen_features("auto", X) | {"price": "root"} == chosen
    assert chosen_features({"name": "auto", "vector": "raw"}, X) == {"name": "text", "vector": "raw"}
    assert chosen_features("auto", pd.DataFrame({"name": TEXTS, "vector": list(VECTORS)})) == {
        "name": "text",
        "vector": "standard",
    }
    assert chosen_features("auto", pd.DataFrame({"a": PRICES, "b": -PRICES})) == "standard"
    assert chosen_features("auto", TEXTS) == "text"
    assert chosen_features("unit", X) == "unit"


def test_blocks_on_disk_make_features_on_disk(tmp_path: Path) -> None:
    with MappedWriter(tmp_path / "counts") as writer:
        writer.append(COUNTS, np.ones((5, 1)))
        writer.finish()
    np.save(tmp_path / "vectors.npy", VECTORS)
    inputs = {
        "vector": np.load(tmp_path / "vectors.npy", mmap_mode="r"),
        "counts": open_dataset(tmp_path / "counts").X,
    }
    kinds: Any = {"vector": "unit", "counts": "tfidf"}
    step = make_features(kinds).fit(inputs)
    x = step.transform(inputs)
    assert is_mapped(x)
    np.testing.assert_array_equal(x.toarray(), beside(X, kinds))
    weighed = step.weigh([2.0, 0.5], x)
    assert is_mapped(weighed)
    np.testing.assert_array_equal(weighed.toarray(), beside(X, kinds) * np.repeat([2, 0.5], [3, 4]).astype(np.float32))
