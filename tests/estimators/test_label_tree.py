from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from tests.estimators.small import label_lists
from tests.label_tree.small import D, K, N, small_classifier, small_data

from extremegp import LabelTreeGPClassifier, MultiLabelGPClassifier
from extremegp.errors import DataError, MemoryPlanError, SettingsError
from extremegp.label_tree import combiner


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combiner, "_STEPS", 6)


@pytest.fixture(scope="module")
def fitted() -> Iterator[LabelTreeGPClassifier]:
    """On many rows, with a narrow beam; tests must not change it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combiner, "_STEPS", 200)
        yield small_classifier(beam=2, n_inducing=40).fit(*small_data(n_rows=500))


def test_probabilities_are_calibrated_on_new_rows(fitted: LabelTreeGPClassifier):
    x, y = small_data(5, n_rows=400)
    probabilities = fitted.predict_proba(x)
    assert probabilities.sum() == pytest.approx(y.sum(), rel=0.15)
    for low, high in ((0.0, 0.1), (0.1, 0.4), (0.4, 0.8), (0.8, 1.0)):
        there = (probabilities >= low) & (probabilities < high)
        assert there.sum() > 30
        spread = np.sqrt((probabilities[there] * (1 - probabilities[there])).sum())
        assert abs(probabilities[there].sum() - y[there].sum()) < 4 * spread + 0.1 * y[there].sum()


def test_the_model_finds_labels_far_better_than_their_frequencies(fitted: LabelTreeGPClassifier):
    x, y = small_data(5, n_rows=400)
    has_label = y.any(axis=1)
    frequent = y[has_label][:, np.argmax(fitted.label_counts_)].mean()
    assert fitted.score(x[has_label], y[has_label]) > frequent + 0.3


def test_the_best_labels_are_those_of_all_probabilities(fitted: LabelTreeGPClassifier):
    x, _ = small_data(5)
    candidates = np.zeros((N, K), bool)
    for rows, evidence, _, _ in fitted.predictor().candidates(fitted.features_.transform(x)):
        candidates[rows][evidence.rows, evidence.labels] = True
    assert 0 < candidates.mean() < 1
    every = {"probability": fitted.predict_proba(x), "utility": fitted.decision_function(x)}
    background = float(fitted.model_.background)
    np.testing.assert_allclose(every["probability"][~candidates], background, rtol=1e-6)
    np.testing.assert_allclose(every["utility"][~candidates], np.log(background / (1 - background)), rtol=1e-5)
    for by, scores in every.items():
        best = fitted.predict_topk(x, K, by=by)
        for i in range(N):
            order = sorted(np.flatnonzero(candidates[i]), key=lambda label, i=i: (-scores[i, label], label))
            assert best.labels[i, : len(order)].tolist() == order
            assert np.all(best.labels[i, len(order) :] == -1)
            np.testing.assert_array_equal(best.scores[i, : len(order)], scores[i, order])
            assert np.all(best.scores[i, len(order) :] == -np.inf)
    sparse = fitted.predict_topk(x, 3, output="csr")
    assert (sparse.shape, sparse.nnz) == ((N, K), int((fitted.predict_topk(x, 3).labels >= 0).sum()))


def test_likely_labels_are_predicted_in_the_form_of_training(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(combiner, "_STEPS", 30)
    x, y = small_data()
    dense, sparse = small_classifier().fit(x, y), small_classifier().fit(x, scipy.sparse.csr_matrix(y))
    named = small_classifier().fit(x, label_lists(y))
    expected = (dense.predict_proba(x) >= 0.5).astype(np.int64)
    assert expected.any()
    found = dense.predict(x)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, expected)
    assert scipy.sparse.issparse(sparse.predict(x))
    np.testing.assert_array_equal(sparse.predict(x).toarray(), expected)
    names = named.predict(x)
    assert {label for row in names for label in row} <= set(named.classes_)
    assert names == named.label_space_.decode(scipy.sparse.csr_matrix(named.predict_proba(x) >= 0.5))


def test_equal_seeds_give_equal_models_and_other_seeds_others():
    x, y = small_data()
    first, again, other = (small_classifier(random_state=seed).fit(x, y).predict_proba(x) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_sparse_and_dense_inputs_and_unsorted_columns_are_the_same():
    x, y = small_data()
    backwards = scipy.sparse.csr_matrix(x.toarray()[:, ::-1])[:, ::-1]
    assert not backwards.has_sorted_indices
    # Scaling to unit norm rounds in other places where inputs are dense.
    expected = small_classifier(features="raw").fit(x, y).predict_proba(x)
    for given in (x.toarray(), x.toarray().astype(np.float64), x.tocsc(), backwards):
        found = small_classifier(features="raw").fit(given, y).predict_proba(given)
        np.testing.assert_array_equal(found, expected)


def test_the_model_keeps_rows_of_its_own():
    x, y = small_data()
    labels = scipy.sparse.csr_matrix(y, dtype=np.float32)
    classifier = small_classifier(features="raw").fit(x, labels)
    new, _ = small_data(1)
    before = classifier.predict_proba(new)
    x.data[:], x.indices[:], labels.indices[:] = 0, 0, 0
    np.testing.assert_array_equal(classifier.predict_proba(new), before)


def test_few_labels_make_a_tree_of_one_leaf():
    x, y = small_data()
    classifier = small_classifier(leaf_size=100).fit(x, y)
    assert [len(tree) for tree in classifier.settings_.trees] == [1, 1]
    assert classifier.score(x[1:], y[1:]) > 0.5


def test_rows_that_come_twice_train():
    x, y = small_data()
    twice = small_classifier().fit(scipy.sparse.vstack([x, x]), np.concatenate([y, y]))
    assert np.isfinite(twice.predict_proba(x)).all()
    same = small_classifier().fit(x[[5] * 40], y[[5] * 40])
    assert np.isfinite(same.predict_proba(x)).all()


def test_the_fewest_rows_train():
    classifier = small_classifier().fit(np.eye(3, dtype=np.float32), [["a"], [], ["b"]])
    probabilities = classifier.predict_proba(np.eye(3, dtype=np.float32))
    assert probabilities.shape == (3, 2)
    assert np.all((probabilities > 0) & (probabilities < 1))


@pytest.mark.parametrize(
    ("x", "y", "naming"),
    [
        (np.full((4, 2), np.nan), [[1], [1], [0], [0]], "NaN"),
        (np.full((4, 2), np.inf), [[1], [1], [0], [0]], "infinity"),
        (np.full((4, 2), 1e25), [[1], [1], [0], [0]], "float32"),
        (np.eye(4), [[1], [0], [0], [0]], "fewer than two rows"),
        (np.eye(4), [[0], [0], [0], [0]], "fewer than two rows"),
        (np.eye(4), [[1], [1], [1]], "4 rows and Y has 3"),
        (np.eye(4), None, "requires y"),
    ],
)
def test_data_that_cannot_be_used_are_refused(x: Any, y: Any, naming: str):
    with pytest.raises(DataError, match=naming):
        small_classifier(features="raw").fit(x, y if y is None else np.array(y))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("n_trees", [0, 1.5, "3", None, True, 1001]),
        ("leaf_size", [1, 2.5, "a"]),
        ("prior_variance", [0, -1, np.inf, np.nan, "a"]),
        ("n_weights", [0, 2.5, "many", None]),
        ("threshold", [-0.1, np.nan, "a"]),
        ("held_out", [0, 0.6, -1, "a"]),
        ("n_inducing", [0, 10_001, "auto"]),
        ("beam", [0, 10_001, None]),
        ("time_budget", [0, -1, "10m"]),
        ("checkpoint_seconds", [-1, None]),
        ("max_memory", ["much", 0]),
    ],
)
def test_a_parameter_outside_its_domain_is_refused(name: str, values: list[Any]):
    for value in values:
        classifier = small_classifier(**{name: value})
        with pytest.raises(SettingsError, match=name):
            classifier.check_params()
        with pytest.raises(SettingsError, match=name):
            classifier.fit(*small_data())


def test_unknown_features_are_refused():
    with pytest.raises(SettingsError, match="features"):
        small_classifier(features="cosine").fit(*small_data())


def test_more_memory_than_there_may_be_is_refused():
    with pytest.raises(MemoryPlanError):
        small_classifier(max_memory=1000).fit(*small_data())


def test_what_the_model_cannot_take_into_account_is_no_argument(fitted: LabelTreeGPClassifier):
    x, y = small_data()
    assert set(fitted.cannot_take) == {"given", "approximate"}
    assert set(MultiLabelGPClassifier().cannot_take) == set()
    for name, value in {"given": y, "approximate": 0.9}.items():
        with pytest.raises(TypeError, match=name):
            fitted.predict_topk(x, **{name: value})


def test_rankings_outside_their_domain_are_refused(fitted: LabelTreeGPClassifier):
    x, _ = small_data()
    for call in (
        lambda: fitted.predict_topk(x, 0),
        lambda: fitted.predict_topk(x, by="size"),
        lambda: fitted.predict_topk(x, output="list"),
    ):
        with pytest.raises(SettingsError):
            call()


def test_inputs_of_another_width_are_refused(fitted: LabelTreeGPClassifier):
    with pytest.raises(DataError, match=str(D)):
        fitted.predict_topk(np.ones((2, D + 1)))


def test_an_estimator_that_is_not_fitted_says_so():
    for call in (lambda c: c.predict(np.eye(3)), lambda c: c.predict_topk(np.eye(3)), lambda c: c.predictor()):
        with pytest.raises(NotFittedError):
            call(small_classifier())


def test_validation_is_reported():
    x, y = small_data()
    new = small_data(1)
    classifier = small_classifier().fit(x, y, validation=new)
    assert classifier.history_[-1]["validation_P@1"] == classifier.score(*new)
    assert {"epoch", "elbo", "seconds"} <= classifier.history_[0].keys()


def test_columns_take_names():
    x, y = small_data()
    classifier = small_classifier().fit(x, y, label_names=[f"n{k}" for k in range(K)])
    assert classifier.classes_.tolist() == [f"n{k}" for k in range(K)]
    assert isinstance(classifier.predict(x), np.ndarray)


def test_weights_are_no_more_than_asked_for_or_fit():
    x, y = small_data()
    narrow = small_classifier(n_weights=2, threshold=0.0, leaf_size=100).fit(x, y).settings_
    assert all(level.weights <= 2 * level.nodes for tree in narrow.trees for level in tree)
    wide = small_classifier(threshold=0.0, leaf_size=100).fit(x, y).settings_
    assert wide.trees[0][0].weights > narrow.trees[0][0].weights


def test_it_is_an_estimator_of_scikit_learn(fitted: LabelTreeGPClassifier):
    x, _ = small_data(1)
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "model_")
    assert "leaf_size=4" in repr(fitted)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(x), fitted.predict_proba(x))
    assert LabelTreeGPClassifier().set_params(beam=3).beam == 3


def test_texts_train():
    texts = ["red apple", "green apple", "red car", "green car"] * 25
    labels = [["fruit", "red"], ["fruit"], ["red"], []] * 25
    classifier = small_classifier(features="text", leaf_size=2).fit(texts, labels)
    assert classifier.predict_topk(["green apple"], 1).labels.tolist() == [[0]]
