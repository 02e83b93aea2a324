from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.models import random_inputs, random_labels

import extremegp
from extremegp import MultiLabelGPClassifier
from extremegp.errors import DataError, ExtremeGPError, MemoryPlanError, SettingsError
from extremegp.estimators import multilabel
from extremegp.training import TrainingInterrupted

N, D, K = 40, 6, 5


def _classifier(**changes: Any) -> MultiLabelGPClassifier:
    small = {"n_inducing": 5, "n_latent": 3, "epochs": 3, "batch_size": 16, "verbose": False, "random_state": 0}
    return MultiLabelGPClassifier(**{**small, **changes})


def _data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return random_inputs(N, D, seed=seed).astype(np.float32), random_labels(N, K, seed=seed + 1).astype(np.int64)


@pytest.fixture(scope="module")
def trained() -> MultiLabelGPClassifier:
    return _classifier().fit(*_data())


@pytest.fixture
def new_x() -> np.ndarray:
    return random_inputs(9, D, seed=7).astype(np.float32)


_MULTI_CLASS = "fits a target of several classes, one per row, which this estimator refuses by design"
_MULTI_CLASS_COLUMN = "fits a single column of values such as 1 and 2, which is no indicator and is refused"
EXPECTED_FAILED_CHECKS = {
    "check_classifiers_classes": _MULTI_CLASS,
    "check_decision_proba_consistency": _MULTI_CLASS,
    "check_classifiers_train": "expects predictions of shape (n,) where labels are given as n lists of names",
    "check_classifier_not_supporting_multiclass": "expects the words 'Only binary classification is supported'",
    "check_estimators_dtypes": _MULTI_CLASS_COLUMN,
    "check_classifier_data_not_an_array": _MULTI_CLASS_COLUMN,
    "check_fit2d_1feature": _MULTI_CLASS_COLUMN,
    "check_estimator_sparse_array": "expects two columns of probabilities where there is one label",
    "check_estimator_sparse_matrix": "expects two columns of probabilities where there is one label",
    "check_n_features_in_after_fitting": "expects the name of the class in a message that says 'the model' instead",
    "check_classifiers_multilabel_representation_invariance": (
        "fits an indicator written as nested lists, which would be read as lists of label names and is refused"
    ),
    "check_classifier_multioutput": (
        "expects probabilities in the order of the decision function; integrating over the posterior changes it"
    ),
}


@parametrize_with_checks(
    [_classifier(epochs=2)], expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS, xfail_strict=True
)
@pytest.mark.filterwarnings("ignore:Number of distinct clusters:sklearn.exceptions.ConvergenceWarning")
def test_the_contract_of_scikit_learn(estimator: Any, check: Callable[[Any], None]):
    check(estimator)


# Targets


def _names(y: np.ndarray) -> list[list[str]]:
    return [[f"label {k}" for k in np.flatnonzero(row)] for row in y]


def test_predictions_come_in_the_form_of_the_targets(new_x: np.ndarray):
    x, y = _data()
    dense = _classifier().fit(x, y).predict(new_x)
    sparse = _classifier().fit(x, scipy.sparse.coo_matrix(y)).predict(new_x)
    lists = _classifier().fit(x, _names(y)).predict(new_x)
    assert isinstance(dense, np.ndarray)
    assert dense.dtype == np.int64
    assert dense.shape == (9, K)
    assert scipy.sparse.issparse(sparse)
    assert isinstance(lists, list)
    np.testing.assert_array_equal(sparse.toarray(), dense)
    assert lists == _names(dense)


def test_classes_are_names_or_column_numbers(trained: MultiLabelGPClassifier):
    assert trained.classes_.tolist() == list(range(K))
    named = _classifier().fit(_data()[0][:3], [["b", "a"], [], ["c"]])
    assert named.classes_.tolist() == ["a", "b", "c"]
    assert named.label_counts_.tolist() == [1, 1, 1]
    assert named.n_rows_ == 3


# Rankings


@pytest.mark.parametrize("k", [1, 3, K, K + 2])
@pytest.mark.parametrize("by", ["utility", "probability"])
def test_top_k_is_the_head_of_the_dense_ranking(trained: MultiLabelGPClassifier, new_x: np.ndarray, k: int, by: str):
    scores = trained.decision_function(new_x) if by == "utility" else trained.predict_proba(new_x)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    best = trained.predict_topk(new_x, k, by=by)
    np.testing.assert_array_equal(best.labels[:, :K], order)
    np.testing.assert_array_equal(best.scores[:, :K], np.take_along_axis(scores, order, axis=1))
    stored = trained.predict_topk(new_x, k, by=by, output="csr")
    assert stored.shape == (9, K)
    expected = np.zeros((9, K), dtype=np.float32)
    np.put_along_axis(expected, order, np.take_along_axis(scores, order, axis=1), axis=1)
    np.testing.assert_array_equal(stored.toarray(), expected)


def test_blocks_of_rows_do_not_change_predictions(
    trained: MultiLabelGPClassifier, new_x: np.ndarray, monkeypatch: pytest.MonkeyPatch
):
    from extremegp import prediction

    methods = ("predict_proba", "decision_function", "predict", "predict_latent")
    whole = {name: getattr(trained, name)(new_x) for name in methods}
    monkeypatch.setattr(prediction, "_BLOCK_ELEMENTS", 2 * 512)
    for name in methods:
        np.testing.assert_allclose(getattr(trained, name)(new_x), whole[name], rtol=1e-5, atol=1e-6)


def test_the_score_is_precision_at_one(trained: MultiLabelGPClassifier):
    x, y = _data()
    first = trained.decision_function(x).argmax(axis=1)
    hits = y[np.arange(N), first]
    assert 0 < hits.mean() < 1
    assert trained.score(x, y) == pytest.approx(hits.mean())
    weights = np.arange(N, dtype=float)
    assert trained.score(x, y, sample_weight=weights) == pytest.approx(np.average(hits, weights=weights))


def test_labels_never_seen_count_against_the_score():
    x, y = _data()
    classifier = _classifier().fit(x, _names(y))
    assert classifier.score(x[:2], [["new"], ["newer", "newest"]]) == 0.0


def test_utilities_are_those_of_the_latent_functions(trained: MultiLabelGPClassifier, new_x: np.ndarray):
    mean, variance = trained.predict_latent(new_x)
    assert mean.shape == variance.shape == (9, 3)
    assert (variance > 0).all()
    mixing = trained.model_.mixing
    expected = mean @ mixing.loadings.numpy().T + mixing.bias.numpy()
    np.testing.assert_allclose(trained.decision_function(new_x), expected, rtol=1e-5, atol=1e-5)


# Learning


def test_it_learns_labels_that_the_features_tell():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4)).astype(np.float32)
    y = np.stack([x[:, 0] > 0, x[:, 1] > 0.5, x[:, 0] * x[:, 1] > 0], axis=1)
    classifier = _classifier(n_inducing=40, epochs=60, kernel="ard", batch_size=50).fit(x[:300], y[:300])
    accuracy = (classifier.predict(x[300:]) == y[300:]).mean(axis=0)
    assert (accuracy > 0.8).all()
    probabilities = classifier.predict_proba(x)
    assert ((probabilities > 0.45) & (probabilities < 0.5)).any()
    assert ((probabilities > 0.5) & (probabilities < 0.55)).any()
    np.testing.assert_array_equal(classifier.predict(x), probabilities >= 0.5)
    assert classifier.history_[-1]["elbo"] > classifier.history_[0]["elbo"]


@pytest.mark.parametrize("features", ["unit", "raw", "tfidf"])
def test_sparse_and_dense_inputs_give_the_same_model(features: str, new_x: np.ndarray):
    x, y = np.ceil(3 * np.abs(_data()[0])), _data()[1]
    dense = _classifier(features=features).fit(x, y)
    sparse = _classifier(features=features).fit(scipy.sparse.csc_matrix(x), y)
    new = np.ceil(np.abs(new_x))
    expected = dense.predict_proba(new)
    np.testing.assert_allclose(sparse.predict_proba(scipy.sparse.csr_matrix(new)), expected, rtol=2e-3)
    np.testing.assert_allclose(dense.predict_proba(scipy.sparse.coo_array(new)), expected, rtol=1e-4)


@pytest.mark.parametrize(("x_type", "y_type"), [(np.int64, bool), (bool, np.float32), (np.float64, np.uint8)])
def test_types_of_numbers_do_not_matter(x_type: type, y_type: type):
    x, y = (_data()[0] > 0).astype(np.float32), _data()[1]
    expected = _classifier().fit(x, y).decision_function(x)
    classifier = _classifier().fit(x.astype(x_type), y.astype(y_type))
    np.testing.assert_array_equal(classifier.decision_function(x.astype(x_type)), expected)


def test_equal_seeds_give_equal_models_and_others_do_not():
    first, second, other = (_classifier(random_state=seed).fit(*_data()) for seed in (0, 0, 1))
    x, _ = _data()
    np.testing.assert_array_equal(first.predict_proba(x), second.predict_proba(x))
    assert not np.array_equal(first.predict_proba(x), other.predict_proba(x))
    assert all(
        torch.equal(tensor, second.model_.state_dict()[name]) for name, tensor in first.model_.state_dict().items()
    )


def test_fitting_leaves_the_data_and_the_global_generators_alone():
    x, y = _data()
    before = x.copy(), y.copy()
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    _classifier().fit(x, y)
    assert torch.equal(torch.get_rng_state(), state[0])
    np.testing.assert_array_equal(np.random.get_state()[1], state[1])  # noqa: NPY002
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(y, before[1])


@pytest.mark.parametrize(
    "changes",
    [
        {"kernel": "linear"},
        {"kernel": "linear-ell", "posterior": "mean-field"},
        {"kernel": "se", "posterior": "full"},
        {"kernel": "se+linear", "posterior": "full-u"},
        {"kernel": "ard", "linear_term": True},
        {"learn_inducing": False, "normalise_inducing": False},
        {"dtype": "float64", "features": "raw"},
        {"kl_weight": 0.0, "relative_jitter": 0.0, "n_latent": 12},
        {"epochs": "auto", "batch_size": "auto", "n_latent": "auto", "time_budget": 0.2},
        {"validation_fraction": 0.3, "patience": 1, "epochs": 6},
        {"random_state": None},
        {"random_state": np.random.RandomState(3)},
        {"n_inducing": np.int64(4), "learning_rate": np.float32(0.02), "relative_jitter": np.float32(1e-5)},
    ],
    ids=str,
)
def test_every_setting_trains_saves_and_loads(changes: dict[str, Any], tmp_path: Path, new_x: np.ndarray):
    classifier = _classifier(**changes).fit(*_data())
    probabilities = classifier.predict_proba(new_x)
    assert np.isfinite(probabilities).all()
    classifier.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    assert isinstance(loaded, MultiLabelGPClassifier)
    np.testing.assert_array_equal(loaded.predict_proba(new_x), probabilities)
    np.testing.assert_array_equal(loaded.decision_function(new_x), classifier.decision_function(new_x))
    assert loaded.history_ == classifier.history_
    assert loaded.n_features_in_ == D
    for name, value in classifier.get_params().items():
        if name not in ("random_state", "verbose"):
            assert loaded.get_params()[name] == value, name


def test_names_and_texts_survive_saving(tmp_path: Path):
    texts = ["red apple", "green apple", "red car", "green car"] * 3
    labels = [["fruit", "röd"], ["fruit"], ["röd"], []] * 3
    classifier = _classifier(features="text").fit(texts, labels)
    classifier.save(tmp_path / "m")
    loaded = extremegp.load(tmp_path / "m")
    assert loaded.predict(texts) == classifier.predict(texts)
    np.testing.assert_array_equal(loaded.predict_proba(texts), classifier.predict_proba(texts))
    assert loaded.score(texts, labels) == classifier.score(texts, labels)


def test_a_loaded_model_replaces_itself_and_can_be_fitted_again(trained: MultiLabelGPClassifier, tmp_path: Path):
    trained.save(tmp_path / "m")
    loaded = extremegp.load(tmp_path / "m")
    loaded.set_params(verbose=False, random_state=0).fit(*_data())
    loaded.save(tmp_path / "m")
    x, _ = _data()
    np.testing.assert_array_equal(extremegp.load(tmp_path / "m").predict_proba(x), trained.predict_proba(x))


# Validation and checkpoints


def test_explicit_validation_data_are_scored_every_epoch():
    x, y = _data()
    classifier = _classifier().fit(x[:30], y[:30], validation=(x[30:], y[30:]))
    scores = [record["validation_P@1"] for record in classifier.history_]
    assert len(scores) == 3
    assert classifier.score(x[30:], y[30:]) == pytest.approx(max(scores))


def test_names_in_validation_that_training_lacks_are_no_error():
    x, y = _data()
    names = _names(y)
    classifier = _classifier().fit(x[:30], names[:30], validation=(x[30:], [["unheard of"], *names[31:]]))
    assert "validation_P@1" in classifier.history_[0]


def test_training_resumes_from_its_checkpoint_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import signal

    path = tmp_path / "run.ckpt"
    options = {"checkpoint": path, "validation_fraction": 0.25, "epochs": 5}
    expected = _classifier(**{**options, "checkpoint": None}).fit(*_data())

    class Interrupting(multilabel.NoReporter):
        def step(self, step: int, total_steps: int, elbo: float) -> None:
            if step == 5:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(multilabel, "NoReporter", Interrupting)
    with pytest.raises(TrainingInterrupted):
        _classifier(**options).fit(*_data())
    monkeypatch.undo()
    assert path.exists()
    with pytest.raises(ExtremeGPError, match="other data or settings"):
        _classifier(**{**options, "learning_rate": 0.1}).fit(*_data())
    with pytest.raises(ExtremeGPError, match="other data or settings"):
        _classifier(**options).fit(*_data(seed=9))
    resumed = _classifier(**options).fit(*_data())
    assert not path.exists()
    x, _ = _data()
    np.testing.assert_array_equal(resumed.predict_proba(x), expected.predict_proba(x))


def test_a_damaged_checkpoint_is_refused(tmp_path: Path):
    (tmp_path / "run.ckpt").write_bytes(b"\x00" * 100)
    with pytest.raises(ExtremeGPError, match="not a readable"):
        _classifier(checkpoint=tmp_path / "run.ckpt").fit(*_data())


# scikit-learn's machinery


def test_parameters_are_got_set_and_cloned(trained: MultiLabelGPClassifier):
    classifier = _classifier(kernel="se")
    copy = clone(classifier.set_params(n_latent=2, kl_weight=0.5))
    assert copy.get_params() == classifier.get_params()
    assert copy.n_latent == 2
    assert not hasattr(clone(trained), "model_")


def test_it_ends_a_pipeline():
    texts = ["red apple", "green apple", "red car", "green car"] * 3
    labels = [["fruit", "red"], ["fruit"], ["red"], []] * 3
    pipeline = make_pipeline(TfidfVectorizer(), _classifier(epochs=100)).fit(texts, labels)
    assert pipeline.predict(["red apple", "green car"]) == [["fruit", "red"], []]
    assert pipeline.score(texts[:3], labels[:3]) == 1.0


def test_it_can_be_searched_over():
    x, y = _data()
    search = GridSearchCV(_classifier(), {"kernel": ["se", "linear"], "n_latent": np.array([1, 2])}, cv=KFold(2))
    search.fit(x, y)
    assert set(search.best_params_) == {"kernel", "n_latent"}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(x).shape == (N, K)


def test_fitted_or_not_it_can_be_pickled(trained: MultiLabelGPClassifier, new_x: np.ndarray):
    unfitted = pickle.loads(pickle.dumps(_classifier(kernel="se")))
    assert unfitted.get_params()["kernel"] == "se"
    copy = pickle.loads(pickle.dumps(trained))
    np.testing.assert_array_equal(copy.predict_proba(new_x), trained.predict_proba(new_x))


@pytest.mark.parametrize(
    "act",
    [
        lambda c, x, path: c.predict(x),
        lambda c, x, path: c.predict_proba(x),
        lambda c, x, path: c.predict_topk(x),
        lambda c, x, path: c.decision_function(x),
        lambda c, x, path: c.predict_latent(x),
        lambda c, x, path: c.score(x, _data()[1]),
        lambda c, x, path: c.save(path / "m"),
    ],
)
def test_before_fit_nothing_else_works(act: Callable[..., Any], tmp_path: Path):
    with pytest.raises(NotFittedError):
        act(_classifier(), _data()[0], tmp_path)


# Odd but legal data


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("x", "y"),
    [
        (_data()[0], _data()[1][:, :1]),
        (_data()[0][1:2], np.ones((1, 3))),
        (np.ones((1, 1)), np.ones((1, 1))),
        (_data()[0], np.ones((N, 2))),
        (_data()[0], np.eye(N, 3)),
        (_data()[0][:3], _data()[1][:3] | np.eye(3, K, dtype=np.int64)),
        (np.tile(_data()[0][1:3], (20, 1)), _data()[1]),
        (np.ones((N, D)), _data()[1]),
        (np.zeros((N, D)), _data()[1]),
        (scipy.sparse.csr_matrix((N, D)), _data()[1]),
        (1e30 * _data()[0], _data()[1]),
        (1e-30 * _data()[0], _data()[1]),
    ],
    ids=[
        "one label",
        "one row",
        "one number",
        "labels in every row",
        "labels in few rows",
        "fewer rows than inducing",
        "two distinct rows",
        "one distinct row",
        "zeros",
        "empty rows",
        "huge",
        "tiny",
    ],
)
@pytest.mark.parametrize("kernel", ["ard+linear", "linear", "se"])
def test_odd_but_legal_data_train_to_finite_probabilities(x: Any, y: np.ndarray, kernel: str):
    classifier = _classifier(kernel=kernel).fit(x, y)
    probabilities = classifier.predict_proba(x)
    assert probabilities.shape == y.shape
    assert np.isfinite(probabilities).all()


def test_a_label_in_every_row_is_predicted_everywhere():
    x, y = _data()
    y[:, 2] = 1
    assert _classifier(epochs=20).fit(x, y).predict(x)[:, 2].all()


def test_a_row_without_features_gets_the_frequencies_of_the_labels():
    x, y = _data()
    classifier = _classifier(epochs=200, kernel="linear").fit(x, y)
    probabilities = classifier.predict_proba(np.zeros((1, D)))
    np.testing.assert_allclose(probabilities[0], y.mean(axis=0), atol=0.15)


# Bad data and bad settings: one line that says what and where


X, Y = _data()


def _with(matrix: np.ndarray, value: float) -> np.ndarray:
    changed = matrix.astype(float)
    changed[3, 2] = value
    return changed


BAD_FITS: dict[str, tuple[dict[str, Any], Any, Any, str]] = {
    "kernel": ({"kernel": "foo"}, X, Y, "kernel must be one of"),
    "kernel no string": ({"kernel": None}, X, Y, "kernel"),
    "posterior": ({"posterior": "foo"}, X, Y, "posterior must be one of"),
    "features": ({"features": "foo"}, X, Y, "features must be one of"),
    "features no string": ({"features": ["unit"]}, X, Y, "features must be one of"),
    "n_inducing zero": ({"n_inducing": 0}, X, Y, "n_inducing must be"),
    "n_inducing float": ({"n_inducing": 2.5}, X, Y, "n_inducing must be"),
    "n_latent negative": ({"n_latent": -1}, X, Y, "n_latent must be"),
    "n_latent bool": ({"n_latent": True}, X, Y, "n_latent must be"),
    "kl_weight": ({"kl_weight": -1}, X, Y, "kl_weight must be"),
    "kl_weight NaN": ({"kl_weight": float("nan")}, X, Y, "kl_weight must be"),
    "epochs": ({"epochs": "many"}, X, Y, "epochs must be"),
    "epochs zero": ({"epochs": 0}, X, Y, "epochs must be"),
    "batch_size": ({"batch_size": 0}, X, Y, "batch_size must be"),
    "learning_rate zero": ({"learning_rate": 0}, X, Y, "learning_rate must be"),
    "learning_rate none": ({"learning_rate": None}, X, Y, "learning_rate must be"),
    "learning_rate infinite": ({"learning_rate": float("inf")}, X, Y, "learning_rate must be"),
    "validation_fraction": ({"validation_fraction": 1.5}, X, Y, "validation_fraction must be"),
    "patience": ({"patience": 0, "validation_fraction": 0.2}, X, Y, "patience must be"),
    "patience without validation": ({"patience": 2}, X, Y, "patience needs validation"),
    "time_budget": ({"time_budget": -5}, X, Y, "time_budget must be"),
    "relative_jitter": ({"relative_jitter": 1.0}, X, Y, "relative_jitter must be"),
    "dtype": ({"dtype": "float16"}, X, Y, "dtype must be one of"),
    "device": ({"device": "toaster"}, X, Y, "device"),
    "linear_term": ({"linear_term": "yes"}, X, Y, "linear_term must be"),
    "learn_inducing": ({"learn_inducing": 2}, X, Y, "learn_inducing must be"),
    "normalise_inducing": ({"normalise_inducing": "no"}, X, Y, "normalise_inducing must be"),
    "NaN in X": ({}, _with(X, np.nan), Y, "NaN at row 3, column 2"),
    "infinity in X": ({}, _with(X, np.inf), Y, "infinity"),
    "NaN in sparse X": ({}, scipy.sparse.csr_matrix(_with(X, np.nan)), Y, "NaN at row 3, column 2"),
    "X 1-D": ({}, X[0], Y, "1D array"),
    "X without rows": ({}, X[:0], Y[:0], "0 sample"),
    "X without columns": ({}, X[:, :0], Y, "0 feature"),
    "X of texts": ({}, ["a", "b"], Y[:2], "Expected 2D array"),
    "X no texts": ({"features": "text"}, X, Y, "not a string"),
    "X a single text": ({"features": "text"}, "abc", Y, "list of texts"),
    "X negative for tf-idf": ({"features": "tfidf"}, -X, Y, "counts"),
    "lengths": ({}, X, Y[:-1], "X has 40 rows and Y has 39"),
    "Y none": ({}, X, None, "requires y"),
    "Y of twos": ({}, X, 2 * Y, "only 0 and 1"),
    "NaN in Y": ({}, X, _with(Y, np.nan), "only 0 and 1"),
    "Y 1-D": ({}, X, Y[:, 0], "one value per row"),
    "Y without columns": ({}, X, Y[:, :0], "at least one"),
    "Y of strings": ({}, X, Y.astype(str), "dtype"),
    "Y bare names": ({}, X[:2], ["a", "b"], "one value per row"),
    "Y a dict": ({}, X, {"a": 1}, "not dict"),
    "Y as nested lists": ({}, X, Y.tolist(), "nested lists"),
    "no labels": ({}, X, np.zeros_like(Y), "no row has any label"),
    "no names": ({}, X[:2], [[], []], "no labels"),
}


@pytest.mark.parametrize("name", BAD_FITS)
def test_what_cannot_be_fitted_is_said_in_one_line(name: str):
    settings, x, y, message = BAD_FITS[name]
    with pytest.raises(ExtremeGPError, match=message) as caught:
        _classifier(**settings).fit(x, y)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


BAD_CALLS: dict[str, tuple[Callable[[MultiLabelGPClassifier], Any], type[Exception], str]] = {
    "width": (lambda c: c.predict(X[:, :-1]), DataError, "5 features"),
    "sparse width": (lambda c: c.predict(scipy.sparse.csr_matrix(X[:, :-1])), DataError, "5 features"),
    "NaN": (lambda c: c.predict_proba(_with(X, np.nan)), DataError, "NaN"),
    "no rows": (lambda c: c.predict(X[:0]), DataError, "0 sample"),
    "1-D": (lambda c: c.predict(X[0]), DataError, "1D array"),
    "k zero": (lambda c: c.predict_topk(X, 0), SettingsError, "k must be"),
    "k float": (lambda c: c.predict_topk(X, 2.0), SettingsError, "k must be"),  # type: ignore[arg-type]
    "by": (lambda c: c.predict_topk(X, by="size"), SettingsError, "by must be"),  # type: ignore[arg-type]
    "output": (lambda c: c.predict_topk(X, output="list"), SettingsError, "output must be"),
    "score lengths": (lambda c: c.score(X, Y[:-1]), DataError, "40 rows and Y has 39"),
    "score labels": (lambda c: c.score(X, Y[:, :-1]), DataError, "Y has 4 labels"),
    "score names": (lambda c: c.score(X, _names(Y)), DataError, "without names"),
    "save over a file": (lambda c: c.save(__file__), DataError, "not a saved model"),
    "validation width": (lambda c: clone(c).fit(X, Y, validation=(X[:, :-1], Y)), DataError, "5 features"),
    "validation labels": (lambda c: clone(c).fit(X, Y, validation=(X, Y[:, :-1])), DataError, "have 4 columns"),
    "validation lengths": (lambda c: clone(c).fit(X, Y, validation=(X, Y[:-1])), DataError, "39"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_are_refused_in_one_line(name: str, trained: MultiLabelGPClassifier):
    act, kind, message = BAD_CALLS[name]
    with pytest.raises(kind, match=message) as caught:
        act(trained)
    assert "\n" not in str(caught.value)


def test_a_plan_larger_than_memory_is_refused_before_it_is_tried(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(MemoryPlanError, match="lower n_inducing"):
        _classifier(n_latent=10**12).fit(X, Y)


@pytest.mark.parametrize("learning_rate", [1e3, 1e10])
def test_divergence_is_said_and_never_predicted(learning_rate: float):
    outcome: Any
    try:
        outcome = _classifier(learning_rate=learning_rate, epochs=5).fit(X, Y).predict_proba(X)
    except ExtremeGPError as error:
        outcome = str(error)
    assert "\n" not in outcome if isinstance(outcome, str) else np.isfinite(outcome).all()


def test_a_short_training_is_silent(capsys: pytest.CaptureFixture[str]):
    _classifier(verbose=True).fit(X, Y)
    assert capsys.readouterr() == ("", "")
