"""What estimators say of rows that are new to them, at default settings but for how long they train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.stats import kstest
from sklearn.base import clone

import extremegp
from extremegp import LabelTreeGPClassifier, MultiClassGPClassifier, MultiLabelGPClassifier, SequenceGPClassifier
from extremegp.data import make_features
from extremegp.datasets import load_debtags
from extremegp.errors import ModelFormatError, SettingsError
from extremegp.estimators.distances import fit_novelty
from extremegp.storage import models

N_WORDS = 60
ESTIMATORS: list[Any] = [
    MultiLabelGPClassifier(n_inducing=8, epochs=2, random_state=0, verbose=False),
    MultiClassGPClassifier(n_inducing=8, epochs=2, random_state=0, verbose=False),
    LabelTreeGPClassifier(leaf_size=2, random_state=0, verbose=False),
]
each = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)


def texts(n: int, seed: int) -> tuple[list[str], list[str]]:
    """Texts of words of one of two subjects, and the subjects."""
    rng = np.random.default_rng(seed)
    subjects = rng.integers(2, size=n)
    own = [rng.choice(N_WORDS, size=6) + N_WORDS * subject for subject in subjects]
    return [" ".join(f"word{w}" for w in words) for words in own], [f"s{subject}" for subject in subjects]


def fitted(estimator: Any, X: Any, y: list[str], **options: Any) -> Any:
    targets: Any = y if isinstance(estimator, MultiClassGPClassifier) else [[name] for name in y]
    return clone(estimator).set_params(**options.pop("params", {})).fit(X, targets, **options)


@each
def test_texts_of_known_words_have_uniform_p_values_and_those_of_unknown_words_small_ones(
    estimator: Any, tmp_path: Path
):
    X, y = texts(400, 0)
    model = fitted(estimator, X, y, params={"features": "text"})
    new, _ = texts(300, 1)
    p = model.predict_novelty(new)
    assert kstest(p, "uniform").statistic < 0.1
    with pytest.warns(UserWarning, match="2 of 2 texts have no word"):
        np.testing.assert_allclose(model.predict_novelty(["", "never seen"]), 1 / 401)
    half = [text + " never seen before by anyone at all" for text in new]
    assert (model.predict_novelty(half) < 0.01).mean() > 0.9
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(extremegp.load(tmp_path / "model").predict_novelty(new), p)


@each
def test_rows_without_any_feature_have_the_smallest_p_value(estimator: Any):
    rng = np.random.default_rng(0)
    x = (rng.random((150, 40)) < 0.2).astype(np.float32)
    x[:, 0] = 1
    model = fitted(estimator, scipy.sparse.csr_matrix(x), [f"s{row[1]:.0f}" for row in x])
    np.testing.assert_allclose(model.predict_novelty(scipy.sparse.csr_matrix((2, 40), dtype=np.float32)), 1 / 151)


def test_dense_rows_far_away_have_the_smallest_p_value():
    x = np.random.default_rng(0).normal(size=(150, 3))
    model = fitted(ESTIMATORS[1], x, [f"s{row[0] > 0}" for row in x])
    np.testing.assert_allclose(model.predict_novelty([[40, 0, 0], [0, -9e9, 0]]), 1 / 151)


def test_texts_beside_vectors_are_new_where_either_is():
    X, y = texts(200, 0)
    vectors = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    model = fitted(ESTIMATORS[1], {"text": X, "vector": vectors}, y, params={"features": "auto"})
    new, _ = texts(50, 1)
    near, far = np.zeros((50, 3), np.float32), np.full((50, 3), 20, np.float32)
    like, unlike = model.predict_novelty({"text": new, "vector": near}), {"text": new, "vector": far}
    assert np.median(like) > 0.3
    assert model.predict_novelty(unlike).max() < 0.01
    assert np.median(model.predict_novelty({"text": ["never seen"] * 50, "vector": near})) < 0.1


@each
def test_rows_of_weight_zero_are_no_training_rows_and_other_weights_change_no_distance(estimator: Any):
    rng = np.random.default_rng(0)
    x = (rng.random((120, 40)) < 0.2).astype(np.float32)
    y = [f"s{row[1]:.0f}" for row in x]
    weights = np.where(np.arange(120) < 80, rng.uniform(0.5, 2, size=120), 0)
    p = fitted(estimator, x, y, sample_weight=weights).predict_novelty(x)
    np.testing.assert_array_equal(p, fitted(estimator, x[:80], y[:80]).predict_novelty(x))


def test_tokens_have_p_values_and_those_of_unknown_features_small_ones(tmp_path: Path):
    rng = np.random.default_rng(0)
    X = [[{"word": f"w{w}", "last": f"l{w % 3}"} for w in rng.integers(8, size=5)] for _ in range(40)]
    y = [[token["last"] for token in sequence] for sequence in X]
    model = SequenceGPClassifier(epochs=2, random_state=0, verbose=False).fit(iter(X), y)
    found = model.predict_novelty(iter([X[0], [{"word": "new", "last": "l1"}, {"other": "new"}]]))
    assert [len(p) for p in found] == [5, 2]
    assert found[0].min() > 0.02
    assert found[1][0] < 0.01
    np.testing.assert_allclose(found[1][1], 1 / 201)
    model.save(tmp_path / "model")
    again = extremegp.load(tmp_path / "model").predict_novelty(X)
    np.testing.assert_array_equal(np.concatenate(again), np.concatenate(model.predict_novelty(X)))


def test_tokens_of_numbers_have_p_values():
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(4, 3)) for _ in range(50)]
    model = SequenceGPClassifier(epochs=2, random_state=0, verbose=False).fit(X, [["a", "b", "a", "b"]] * 50)
    np.testing.assert_allclose(model.predict_novelty([np.full((1, 3), 30.0)])[0], 1 / 201)


def test_p_values_of_held_out_texts_are_uniform():
    texts = load_debtags()[0].texts
    order = np.random.default_rng(0).permutation(len(texts))
    train, held_out = order[:3000], order[3000:]
    features = make_features("text").fit([texts[i] for i in train])
    novelty = fit_novelty(features, [texts[i] for i in train], features.transform([texts[i] for i in train]))
    new = [texts[i] for i in held_out]
    p = novelty.p_values(features.transform(new), features.unknown_shares(new))
    assert kstest(p, "uniform").statistic < 0.05


def test_models_without_distances_load_and_say_so_and_altered_ones_are_refused(tmp_path: Path):
    X, y = texts(40, 0)
    model = fitted(ESTIMATORS[1], X, y, params={"features": "text"})
    model.save(tmp_path / "model")
    config, tensors = models.read_model(tmp_path / "model")
    config = {key: part for key, part in config.items() if key not in ("sha256", "format_version")}
    old = {name: tensor for name, tensor in tensors.items() if not name.startswith("novelty.")}
    models.write_model(tmp_path / "old", config, old)
    loaded = extremegp.load(tmp_path / "old")
    assert loaded.novelty_ is None
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    with pytest.raises(SettingsError, match="earlier version"):
        loaded.predict_novelty(X)
    loaded.save(tmp_path / "again")
    models.write_model(tmp_path / "altered", config, old | {"novelty.left_out": tensors["novelty.left_out"][:5]})
    with pytest.raises(ModelFormatError, match=r"altered: .*novelty"):
        extremegp.load(tmp_path / "altered")
