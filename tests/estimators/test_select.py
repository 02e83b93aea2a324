"""`select`: rows of a pool to annotate next, of every estimator of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.integrate import quad
from scipy.special import entr, expit
from scipy.stats import norm
from tests.label_tree.small import small_classifier as small_tree
from tests.label_tree.small import small_data

from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.errors import DataError, SettingsError
from extremegp.estimators import selecting

POOL = scipy.sparse.csr_matrix(small_data(3, 40)[0])
TWICE = scipy.sparse.csr_matrix(scipy.sparse.vstack([POOL, POOL]))
QUICK: dict[str, Any] = {"random_state": 0, "verbose": False}


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    x, y = small_data()
    rng = np.random.default_rng(0)
    points = rng.normal(size=(80, 3))
    classes = (points[:, 0] > 0) + (points[:, 1] > 0) * 1
    gp = {"latents": "gp", "epochs": 2, "n_inducing": 8, "n_latent": 4}
    return {
        "tree": small_tree().fit(x, y),
        "landmarks": MultiLabelGPClassifier(**QUICK).fit(x, y),
        "gp": MultiLabelGPClassifier(**gp, **QUICK).fit(x, y),
        "zero": MultiLabelGPClassifier(mean_function="zero", **gp, **QUICK).fit(x, y),
        "classes": MultiClassGPClassifier(**QUICK).fit(points, classes),
    }


def pool_of(name: str) -> Any:
    points = np.random.default_rng(5).normal(size=(40, 3))
    return np.vstack([points, points]) if name == "classes" else TWICE


@pytest.mark.parametrize("name", ["tree", "landmarks", "gp", "classes"])
def test_the_posterior_chooses_different_rows_and_the_same_ones_again(models: dict[str, Any], name: str) -> None:
    model, pool = models[name], pool_of(name)
    found = model.select(pool, 10)
    # Every row is there twice; where few rows are in doubt at all, these come before certain ones.
    assert len({int(row) % 40 for row in found.rows}) >= (5 if name == "classes" else 10)
    assert (np.diff(found.rows % 40) != 0).all()
    assert (np.diff(found.scores) <= 1e-6).all()
    np.testing.assert_array_equal(found.rows, model.select(pool, 10, seed=0).rows)
    assert sorted(model.select(pool, 80).rows.tolist()) == list(range(80))


@pytest.mark.parametrize("by", ["posterior", "least_confidence", "bald", "random"])
@pytest.mark.parametrize("name", ["tree", "classes"])
def test_rows_are_named_once_each(models: dict[str, Any], name: str, by: Any) -> None:
    found = models[name].select(pool_of(name), 25, by)
    assert (found.rows.dtype, found.scores.dtype) == (np.int64, np.float64)
    assert len(set(found.rows.tolist())) == 25
    assert np.isfinite(found.scores).all()
    assert (np.diff(found.scores) <= 1e-6).all()


def test_rounds_choose_rows_of_their_own(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selecting, "_ROUND", 8)
    found = models["tree"].select(TWICE, 30, seed=1)
    assert len(set(found.rows.tolist())) == 30
    np.testing.assert_array_equal(found.rows, models["tree"].select(TWICE, 30, seed=1).rows)
    assert found.rows.tolist() != models["tree"].select(TWICE, 30, seed=2).rows.tolist()
    assert sorted(models["tree"].select(TWICE, 80).rows.tolist()) == list(range(80))


def test_mutual_information_is_that_of_the_utilities_integrated_densely(models: dict[str, Any]) -> None:
    model = models["landmarks"]
    found = model.select(POOL[:3], 3, "bald")
    moments = model.predict_utilities(POOL[:3])

    def entropy(f: float) -> float:
        return float(entr(expit(f)) + entr(expit(-f)))

    def information(m: float, v: float) -> float:
        density, ends = norm(m, np.sqrt(v)).pdf, (m - 9 * np.sqrt(v), m + 9 * np.sqrt(v))
        p = quad(lambda f: density(f) * expit(f), *ends, limit=200)[0]
        return float(entr(p) + entr(1 - p) - quad(lambda f: density(f) * entropy(f), *ends, limit=200)[0])

    expected = [
        sum(information(float(m), float(v)) for m, v in zip(*of_row, strict=True))
        for of_row in zip(moments.mean, moments.variance, strict=True)
    ]
    np.testing.assert_allclose(found.scores, np.array(expected)[found.rows], rtol=1e-3)
    np.testing.assert_array_equal(found.rows, np.argsort(-np.array(expected)))


def test_confidence_is_that_of_the_probabilities(models: dict[str, Any]) -> None:
    p = models["landmarks"].predict_proba(POOL).astype(np.float64)
    entropies = (entr(p) + entr(1 - p)).sum(axis=1)
    found = models["landmarks"].select(POOL, 40, "least_confidence")
    np.testing.assert_allclose(found.scores, np.sort(entropies)[::-1], rtol=1e-5)
    pool = pool_of("classes")
    found = models["classes"].select(pool, 80, "least_confidence")
    most = models["classes"].predict_proba(pool).max(axis=1)
    np.testing.assert_allclose(found.scores, 1 - most[found.rows], rtol=1e-4)


def test_rows_like_learnt_ones_come_last(models: dict[str, Any]) -> None:
    x, y = small_data()
    model = MultiLabelGPClassifier(**QUICK).fit(x, y)
    first = model.select(POOL, 1).rows
    before = model.select(POOL, 40).scores[0]
    model.learn(POOL[first], np.zeros((1, y.shape[1]), np.int64))
    again = model.select(POOL, 40)
    assert again.rows[0] != first[0]
    assert before > again.scores[again.rows == first[0]][0]


def test_a_model_without_a_regression_says_so(models: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r'mean_function="zero".*by="bald"'):
        models["zero"].select(POOL, 2)
    assert len(models["zero"].select(POOL, 2, "bald").rows) == 2
    x, y = small_data()
    with pytest.raises(SettingsError, match="n_regressed is 0"):
        small_tree(n_regressed=0).fit(x, y).select(POOL, 2)


@pytest.mark.parametrize(
    ("pool", "options", "error", "message"),
    [
        (POOL, {"n": 41}, DataError, "41 rows are to be chosen, but the pool has 40"),
        (POOL, {"n": 0}, SettingsError, "n must be an integer at least 1"),
        (POOL, {"n": 2, "by": "margin"}, SettingsError, "by must be one of posterior"),
        (POOL, {"n": 2, "seed": -1}, SettingsError, "seed must be an integer"),
        (POOL[:, :5], {"n": 2}, DataError, "5 features"),
        (POOL[:0], {"n": 1}, DataError, "0 sample"),
        (np.full((3, 40), np.nan), {"n": 1}, DataError, "NaN"),
    ],
)
def test_bad_input_is_refused(models: dict[str, Any], pool: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        models["tree"].select(pool, **options)
