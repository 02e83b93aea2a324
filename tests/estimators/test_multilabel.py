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
from tests.estimators.small import D, K, N, label_lists, small_classifier, small_data
from tests.models import random_inputs

import extremegp
from extremegp import MultiLabelGPClassifier
from extremegp.errors import ExtremeGPError, SettingsError
from extremegp.estimators import fitting
from extremegp.metrics import propensities
from extremegp.prediction.label_index import LabelIndex
from extremegp.training import NoReporter, TrainingInterrupted


@pytest.fixture(scope="module")
def trained() -> MultiLabelGPClassifier:
    return small_classifier().fit(*small_data())


@pytest.fixture
def new_x() -> np.ndarray:
    return random_inputs(9, D, seed=7).astype(np.float32)


_MULTI_CLASS = "fits a target of several classes, one per row, which this estimator refuses by design"
_MULTI_CLASS_COLUMN = "fits a single column of values such as 1 and 2, which is no indicator and is refused"
_NAME_OF_TARGETS = "passes the targets as y, which are Y here"
EXPECTED_FAILED_CHECKS = {
    "check_sample_weights_pandas_series": _MULTI_CLASS_COLUMN,
    "check_sample_weights_not_an_array": _MULTI_CLASS_COLUMN,
    "check_sample_weights_shape": _MULTI_CLASS_COLUMN,
    "check_sample_weights_not_overwritten": _MULTI_CLASS_COLUMN,
    "check_sample_weight_equivalence_on_dense_data": _NAME_OF_TARGETS,
    "check_sample_weight_equivalence_on_sparse_data": _NAME_OF_TARGETS,
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
    [small_classifier(epochs=2)], expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS, xfail_strict=True
)
@pytest.mark.filterwarnings("ignore:Number of distinct clusters:sklearn.exceptions.ConvergenceWarning")
def test_the_contract_of_scikit_learn(estimator: Any, check: Callable[[Any], None]):
    check(estimator)


# Targets


def test_predictions_come_in_the_form_of_the_targets(new_x: np.ndarray):
    x, y = small_data()
    dense = small_classifier().fit(x, y).predict(new_x)
    sparse = small_classifier().fit(x, scipy.sparse.coo_matrix(y)).predict(new_x)
    lists = small_classifier().fit(x, label_lists(y)).predict(new_x)
    assert isinstance(dense, np.ndarray)
    assert dense.dtype == np.int64
    assert dense.shape == (9, K)
    assert scipy.sparse.issparse(sparse)
    assert isinstance(lists, list)
    np.testing.assert_array_equal(sparse.toarray(), dense)
    assert lists == label_lists(dense)


def test_classes_are_names_or_column_numbers(trained: MultiLabelGPClassifier):
    assert trained.classes_.tolist() == list(range(K))
    named = small_classifier().fit(small_data()[0][:3], [["b", "a"], [], ["c"]])
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
    from extremegp.prediction import predictor as prediction

    methods = ("predict_proba", "decision_function", "predict", "predict_latent")
    whole = {name: getattr(trained, name)(new_x) for name in methods}
    monkeypatch.setattr(prediction, "_BLOCK_ELEMENTS", 2 * 512)
    for name in methods:
        np.testing.assert_allclose(getattr(trained, name)(new_x), whole[name], rtol=1e-5, atol=1e-6)


def test_the_score_is_precision_at_one(trained: MultiLabelGPClassifier):
    x, y = small_data()
    first = trained.decision_function(x).argmax(axis=1)
    hits = y[np.arange(N), first]
    assert 0 < hits.mean() < 1
    assert trained.score(x, y) == pytest.approx(hits.mean())
    weights = np.arange(N, dtype=float)
    assert trained.score(x, y, sample_weight=weights) == pytest.approx(np.average(hits, weights=weights))


def test_labels_never_seen_count_against_the_score():
    x, y = small_data()
    classifier = small_classifier().fit(x, label_lists(y))
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
    classifier = small_classifier(n_inducing=40, epochs=60, kernel="ard", batch_size=50).fit(x[:300], y[:300])
    accuracy = (classifier.predict(x[300:]) == y[300:]).mean(axis=0)
    assert (accuracy > 0.8).all()
    probabilities = classifier.predict_proba(x)
    assert ((probabilities > 0.45) & (probabilities < 0.5)).any()
    assert ((probabilities > 0.5) & (probabilities < 0.55)).any()
    np.testing.assert_array_equal(classifier.predict(x), probabilities >= 0.5)
    assert classifier.history_[-1]["elbo"] > classifier.history_[0]["elbo"]


@pytest.mark.parametrize("features", ["unit", "raw", "tfidf"])
def test_sparse_and_dense_inputs_give_the_same_model(features: str, new_x: np.ndarray):
    x, y = np.ceil(3 * np.abs(small_data()[0])), small_data()[1]
    dense = small_classifier(features=features).fit(x, y)
    sparse = small_classifier(features=features).fit(scipy.sparse.csc_matrix(x), y)
    new = np.ceil(np.abs(new_x))
    expected = dense.predict_proba(new)
    np.testing.assert_allclose(sparse.predict_proba(scipy.sparse.csr_matrix(new)), expected, rtol=2e-3)
    np.testing.assert_allclose(dense.predict_proba(scipy.sparse.coo_array(new)), expected, rtol=1e-4)


@pytest.mark.parametrize(("x_type", "y_type"), [(np.int64, bool), (bool, np.float32), (np.float64, np.uint8)])
def test_types_of_numbers_do_not_matter(x_type: type, y_type: type):
    x, y = (small_data()[0] > 0).astype(np.float32), small_data()[1]
    expected = small_classifier().fit(x, y).decision_function(x)
    classifier = small_classifier().fit(x.astype(x_type), y.astype(y_type))
    np.testing.assert_array_equal(classifier.decision_function(x.astype(x_type)), expected)


def test_equal_seeds_give_equal_models_and_others_do_not():
    first, second, other = (small_classifier(random_state=seed).fit(*small_data()) for seed in (0, 0, 1))
    x, _ = small_data()
    np.testing.assert_array_equal(first.predict_proba(x), second.predict_proba(x))
    assert not np.array_equal(first.predict_proba(x), other.predict_proba(x))
    assert all(
        torch.equal(tensor, second.model_.state_dict()[name]) for name, tensor in first.model_.state_dict().items()
    )


def test_fitting_leaves_the_data_and_the_global_generators_alone():
    x, y = small_data()
    before = x.copy(), y.copy()
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    small_classifier().fit(x, y)
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
        {"propensity": "auto"},
        {"propensity": (0.6, np.float32(2.5)), "dtype": "float64"},
        {"n_sampled_labels": 2},
        {"n_sampled_labels": 2, "label_sampling": "uniform", "propensity": "auto", "validation_fraction": 0.3},
        {"n_sampled_labels": None},
        {"random_state": None},
        {"random_state": np.random.RandomState(3)},
        {"n_inducing": np.int64(4), "learning_rate": np.float32(0.02), "relative_jitter": np.float32(1e-5)},
    ],
    ids=lambda setting: str(setting).partition(" at 0x")[0],
)
@pytest.mark.filterwarnings("ignore::extremegp.errors.BudgetWarning")
def test_every_setting_trains_saves_and_loads(changes: dict[str, Any], tmp_path: Path, new_x: np.ndarray):
    classifier = small_classifier(**changes).fit(*small_data())
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
    classifier = small_classifier(features="text").fit(texts, labels)
    classifier.save(tmp_path / "m")
    loaded = extremegp.load(tmp_path / "m")
    assert loaded.predict(texts) == classifier.predict(texts)
    np.testing.assert_array_equal(loaded.predict_proba(texts), classifier.predict_proba(texts))
    assert loaded.score(texts, labels) == classifier.score(texts, labels)


def test_a_loaded_model_replaces_itself_and_can_be_fitted_again(trained: MultiLabelGPClassifier, tmp_path: Path):
    trained.save(tmp_path / "m")
    loaded = extremegp.load(tmp_path / "m")
    loaded.set_params(verbose=False, random_state=0).fit(*small_data())
    loaded.save(tmp_path / "m")
    x, _ = small_data()
    np.testing.assert_array_equal(extremegp.load(tmp_path / "m").predict_proba(x), trained.predict_proba(x))


# Labels that apply and were not recorded


def test_the_propensities_of_a_name_are_those_of_the_metrics():
    x, y = small_data()
    by_name = small_classifier(propensity="auto").fit(x, y)
    by_pair = small_classifier(propensity=(0.55, 1.5)).fit(x, y)
    by_array = small_classifier(propensity=propensities(y.sum(axis=0), N)).fit(x, y)
    for other in (by_pair, by_array):
        np.testing.assert_array_equal(other.predict_proba(x), by_name.predict_proba(x))
    assert not np.allclose(small_classifier().fit(x, y).predict_proba(x), by_name.predict_proba(x), rtol=0.05)


def test_with_propensities_probabilities_are_those_that_labels_apply():
    rng = np.random.default_rng(0)
    x, _ = small_data()
    x = np.tile(x, (50, 1))
    applies = rng.random((len(x), 2)) < (0.6, 0.3)
    y = applies & (rng.random(applies.shape) < (0.4, 0.5))
    settings: dict[str, Any] = {"kernel": "linear", "epochs": 40, "batch_size": 100, "learning_rate": 0.05}
    kept = small_classifier(**settings, propensity=np.array([0.4, 0.5])).fit(x, y)
    plain = small_classifier(**settings).fit(x, y)
    np.testing.assert_allclose(kept.predict_proba(x).mean(axis=0), applies.mean(axis=0), atol=0.05)
    np.testing.assert_allclose(plain.predict_proba(x).mean(axis=0), y.mean(axis=0), atol=0.05)


def test_an_array_of_propensities_is_saved_with_the_model_but_not_as_a_parameter(tmp_path: Path):
    x, y = small_data()
    classifier = small_classifier(propensity=np.linspace(0.2, 1.0, K)).fit(x, y)
    assert clone(classifier).fit(x, y).predict_proba(x).tolist() == classifier.predict_proba(x).tolist()
    classifier.save(tmp_path / "m")
    loaded = extremegp.load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict_proba(x), classifier.predict_proba(x))
    np.testing.assert_allclose(loaded.model_.likelihood.propensities, np.linspace(0.2, 1.0, K), rtol=1e-6)
    assert loaded.propensity is None


# Sampled labels


def test_more_sampled_labels_than_there_are_look_at_all_of_them():
    x, y = small_data()
    every = small_classifier(n_sampled_labels=K + 100, dtype="float64").fit(x, y)
    np.testing.assert_allclose(
        every.predict_proba(x), small_classifier(dtype="float64").fit(x, y).predict_proba(x), rtol=1e-5
    )
    few = small_classifier(n_sampled_labels=1, dtype="float64", batch_size=1).fit(x, y)
    assert np.abs(few.predict_proba(x) / every.predict_proba(x) - 1).max() > 1e-3


# Validation and checkpoints


def test_explicit_validation_data_are_scored_every_epoch():
    x, y = small_data()
    classifier = small_classifier().fit(x[:30], y[:30], validation=(x[30:], y[30:]))
    scores = [record["validation_P@1"] for record in classifier.history_]
    assert len(scores) == 3
    assert classifier.score(x[30:], y[30:]) == pytest.approx(max(scores))


def test_names_in_validation_that_training_lacks_are_no_error():
    x, y = small_data()
    names = label_lists(y)
    classifier = small_classifier().fit(x[:30], names[:30], validation=(x[30:], [["unheard of"], *names[31:]]))
    assert "validation_P@1" in classifier.history_[0]


def test_training_resumes_from_its_checkpoint_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import signal

    path = tmp_path / "run.ckpt"
    options = {"checkpoint": path, "validation_fraction": 0.25, "epochs": 5}
    expected = small_classifier(**{**options, "checkpoint": None}).fit(*small_data())

    class Interrupting(NoReporter):
        def step(self, step: int, total_steps: int, elbo: float) -> None:
            if step == 5:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(fitting, "NoReporter", Interrupting)
    with pytest.raises(TrainingInterrupted):
        small_classifier(**options).fit(*small_data())
    monkeypatch.undo()
    assert path.exists()
    with pytest.raises(ExtremeGPError, match="other data or settings"):
        small_classifier(**{**options, "learning_rate": 0.1}).fit(*small_data())
    with pytest.raises(ExtremeGPError, match="other data or settings"):
        small_classifier(**options).fit(*small_data(seed=9))
    with pytest.raises(ExtremeGPError, match="other data or settings"):
        small_classifier(**{**options, "propensity": np.full(K, 0.5)}).fit(*small_data())
    resumed = small_classifier(**options).fit(*small_data())
    x, _ = small_data()
    np.testing.assert_array_equal(resumed.predict_proba(x), expected.predict_proba(x))


def test_a_damaged_checkpoint_is_refused(tmp_path: Path):
    (tmp_path / "run.ckpt").write_bytes(b"\x00" * 100)
    with pytest.raises(ExtremeGPError, match="not a readable"):
        small_classifier(checkpoint=tmp_path / "run.ckpt").fit(*small_data())


# scikit-learn's machinery


def test_parameters_are_got_set_and_cloned(trained: MultiLabelGPClassifier):
    classifier = small_classifier(kernel="se")
    copy = clone(classifier.set_params(n_latent=2, kl_weight=0.5))
    assert copy.get_params() == classifier.get_params()
    assert copy.n_latent == 2
    assert not hasattr(clone(trained), "model_")


def test_it_ends_a_pipeline():
    texts = ["red apple", "green apple", "red car", "green car"] * 3
    labels = [["fruit", "red"], ["fruit"], ["red"], []] * 3
    pipeline = make_pipeline(TfidfVectorizer(), small_classifier(epochs=200, learning_rate=0.1)).fit(texts, labels)
    assert pipeline.predict(["red apple", "green car"]) == [["fruit", "red"], []]
    assert pipeline.score(texts[:3], labels[:3]) == 1.0


def test_it_can_be_searched_over():
    x, y = small_data()
    search = GridSearchCV(small_classifier(), {"kernel": ["se", "linear"], "n_latent": np.array([1, 2])}, cv=KFold(2))
    search.fit(x, y)
    assert set(search.best_params_) == {"kernel", "n_latent"}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(x).shape == (N, K)


def test_fitted_or_not_it_can_be_pickled(trained: MultiLabelGPClassifier, new_x: np.ndarray):
    unfitted = pickle.loads(pickle.dumps(small_classifier(kernel="se")))
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
        lambda c, x, path: c.score(x, small_data()[1]),
        lambda c, x, path: c.save(path / "m"),
    ],
)
def test_before_fit_nothing_else_works(act: Callable[..., Any], tmp_path: Path):
    with pytest.raises(NotFittedError):
        act(small_classifier(), small_data()[0], tmp_path)


# Odd but legal data


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    ("x", "y"),
    [
        (small_data()[0], small_data()[1][:, :1]),
        (small_data()[0][1:2], np.ones((1, 3))),
        (np.ones((1, 1)), np.ones((1, 1))),
        (small_data()[0], np.ones((N, 2))),
        (small_data()[0], np.eye(N, 3)),
        (small_data()[0][:3], small_data()[1][:3] | np.eye(3, K, dtype=np.int64)),
        (np.tile(small_data()[0][1:3], (20, 1)), small_data()[1]),
        (np.ones((N, D)), small_data()[1]),
        (np.zeros((N, D)), small_data()[1]),
        (scipy.sparse.csr_matrix((N, D)), small_data()[1]),
        (1e30 * small_data()[0], small_data()[1]),
        (1e-30 * small_data()[0], small_data()[1]),
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
    classifier = small_classifier(kernel=kernel).fit(x, y)
    probabilities = classifier.predict_proba(x)
    assert probabilities.shape == y.shape
    assert np.isfinite(probabilities).all()


def test_a_label_in_every_row_is_predicted_everywhere():
    x, y = small_data()
    y[:, 2] = 1
    assert small_classifier(epochs=20).fit(x, y).predict(x)[:, 2].all()


def test_a_row_without_features_gets_the_frequencies_of_the_labels():
    x, y = small_data()
    classifier = small_classifier(epochs=200, kernel="linear").fit(x, y)
    probabilities = classifier.predict_proba(np.zeros((1, D)))
    np.testing.assert_allclose(probabilities[0], y.mean(axis=0), atol=0.15)


def test_a_short_training_is_silent(capsys: pytest.CaptureFixture[str]):
    small_classifier(verbose=True).fit(*small_data())
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "settings",
    [
        {"inducing": "subspace", "n_subspace": 3},
        {"inducing": "subspace", "n_subspace": 3, "lengthscales_in": "subspace"},
        {"inducing": "subspace-basis", "n_subspace": 3},
        {"inducing": "sparse", "support_size": 3},
        {"inducing": "sparse", "learn_inducing": False, "inducing_start": "rows"},
        {"posterior": "parsimonious"},
        {"kernel": "se-p-ell"},
        {"kernel": "matern32-ard+white"},
        {"kernel": "arccos1", "linear_term": True},
    ],
    ids=str,
)
def test_every_kind_of_latents_learns_and_comes_back_from_disk(settings: dict[str, Any], tmp_path: Path):
    x, y = small_data()
    classifier = small_classifier(**settings, epochs=40, learning_rate=0.05).fit(scipy.sparse.csr_matrix(x), y)
    bounds = [record["elbo"] for record in classifier.history_]
    assert np.mean(bounds[-5:]) > np.mean(bounds[:5])
    classifier.save(tmp_path / "model")
    new = random_inputs(9, D, seed=7).astype(np.float32)
    probabilities = classifier.predict_proba(new)
    np.testing.assert_array_equal(extremegp.load(tmp_path / "model").predict_proba(new), probabilities)
    np.testing.assert_allclose(classifier.predict_proba(scipy.sparse.csr_matrix(new)), probabilities, rtol=1e-4)


# Known labels


def known_labels(n_rows: int) -> np.ndarray:
    """Row 0 with nothing known, row 1 with all, the others with a few: 1 present, -1 absent."""
    known = np.random.default_rng(4).choice([-1, 0, 1], size=(n_rows, K), p=[0.2, 0.5, 0.3])
    known[0], known[1] = 0, [1, -1, -1, 1, 1][:K]
    return known


def test_known_labels_are_certain_and_change_the_others(trained: MultiLabelGPClassifier, new_x: np.ndarray):
    known = known_labels(9)
    plain, conditional = trained.predict_proba(new_x), trained.predict_proba(new_x, given=known)
    np.testing.assert_array_equal(conditional[known == 1], 1.0)
    np.testing.assert_array_equal(conditional[known == -1], 0.0)
    np.testing.assert_array_equal(conditional[0], plain[0])
    some = known.any(axis=1) & (known == 0).any(axis=1)
    assert (conditional != plain)[some][known[some] == 0].all()
    assert not np.array_equal(trained.decision_function(new_x, given=known)[2:], trained.decision_function(new_x)[2:])
    np.testing.assert_array_equal(trained.decision_function(new_x, given=known)[0], trained.decision_function(new_x)[0])


@pytest.mark.parametrize("given_variance", ["laplace", "map"])
def test_known_labels_may_be_sparse_dense_or_names(new_x: np.ndarray, given_variance: Any):
    x, y = small_data()
    classifier = small_classifier().fit(x, label_lists(y))
    present = known_labels(9).clip(0)
    expected = classifier.predict_proba(new_x, given=present, given_variance=given_variance)
    for given in (scipy.sparse.coo_array(present), present.astype(bool), label_lists(present)):
        found = classifier.predict_proba(new_x, given=given, given_variance=given_variance)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("by", ["utility", "probability"])
def test_known_labels_are_never_among_the_best(trained: MultiLabelGPClassifier, new_x: np.ndarray, by: str):
    known = known_labels(9)
    best = trained.predict_topk(new_x, K, by=by, given=known)
    scorer = trained.decision_function if by == "utility" else trained.predict_proba
    scores = scorer(new_x, given=known)
    scores[known != 0] = -np.inf
    for row in range(9):
        left = np.flatnonzero(known[row] == 0)
        assert best.labels[row, : len(left)].tolist() == left[np.argsort(-scores[row, left], kind="stable")].tolist()
        assert (best.labels[row, len(left) :] == -1).all()
        assert (best.scores[row, len(left) :] == -np.inf).all()


def test_blocks_of_rows_do_not_change_predictions_given_labels(
    trained: MultiLabelGPClassifier, new_x: np.ndarray, monkeypatch: pytest.MonkeyPatch
):
    from extremegp.prediction import predictor as prediction

    whole = trained.predict_proba(new_x, given=known_labels(9))
    monkeypatch.setattr(prediction, "_BLOCK_ELEMENTS", 2 * 512)
    np.testing.assert_allclose(trained.predict_proba(new_x, given=known_labels(9)), whole, rtol=1e-5, atol=1e-6)


def test_predictions_given_labels_survive_saving_and_models_without_noise_have_them(
    trained: MultiLabelGPClassifier, new_x: np.ndarray, tmp_path: Path
):
    trained.save(tmp_path / "m")
    loaded = extremegp.load(tmp_path / "m")
    expected = trained.predict_proba(new_x, given=known_labels(9))
    np.testing.assert_array_equal(loaded.predict_proba(new_x, given=known_labels(9)), expected)
    loaded.instance_noise_ = None
    loaded.save(tmp_path / "without")
    without = extremegp.load(tmp_path / "without")
    assert without.instance_noise_ is None
    np.testing.assert_array_equal(without.predict_proba(new_x), trained.predict_proba(new_x))
    assert not np.array_equal(without.predict_proba(new_x, given=known_labels(9)), expected)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((8, K)), "X has 9 rows and given has 8"),
        (np.zeros((9, K + 1)), f"given has {K + 1} labels, but the model has {K}"),
        (np.full((9, K), 2), "given must hold 1 .* but has 2 at row 0, column 0"),
        (np.full((9, K), np.nan), "given contains NaN at row 0"),
        ([["a"]] * 9, "the labels have none"),
    ],
)
def test_known_labels_that_cannot_be_used_are_refused(
    trained: MultiLabelGPClassifier, new_x: np.ndarray, given: Any, message: str
):
    for predict in (trained.predict_proba, trained.predict_topk, trained.decision_function):
        with pytest.raises(ExtremeGPError, match=message):
            predict(new_x, given=given)


def test_unknown_names_among_known_labels_are_refused(new_x: np.ndarray):
    x, y = small_data()
    with pytest.raises(ExtremeGPError, match="row 1 has the label 'new'"):
        small_classifier().fit(x, label_lists(y)).predict_proba(new_x[:2], given=[[], ["new"]])


@pytest.mark.parametrize(
    ("name", "value"),
    [("factor", torch.zeros(2, 3)), ("factor", torch.full((3, 3), float("nan"))), ("weight", torch.tensor(-1.0))],
)
def test_noise_that_does_not_fit_the_model_is_refused(
    trained: MultiLabelGPClassifier, tmp_path: Path, name: str, value: torch.Tensor
):
    from extremegp.storage import models

    trained.save(tmp_path / "m")
    config, tensors = models.read_model(tmp_path / "m")
    config = {key: part for key, part in config.items() if key not in ("sha256", "format_version")}
    models.write_model(tmp_path / "altered", config, {**tensors, f"instance_noise.{name}": value})
    with pytest.raises(ExtremeGPError, match="scatter of instances does not fit 3 latent functions"):
        extremegp.load(tmp_path / "altered")


# A regression as mean function


@pytest.fixture(scope="module")
def regressed() -> MultiLabelGPClassifier:
    x, y = small_data()
    return small_classifier(mean_function="regression").fit(scipy.sparse.csr_matrix(x), y)


def test_a_regression_is_the_mean_that_the_latent_functions_correct(
    regressed: MultiLabelGPClassifier, new_x: np.ndarray
):
    model = regressed.model_
    latents, _ = regressed.predict_latent(new_x)
    correction = latents @ model.mixing.loadings.numpy().T + model.mixing.bias.numpy()
    mean = model.mean_function(torch.from_numpy(new_x)).numpy()
    known, x = model.without_regression_variance(), torch.from_numpy(new_x)
    with torch.no_grad():
        found = known.utilities(known.latents.condition(), x).means()
        moved = model.utilities(model.latents.condition(), x).means()
    np.testing.assert_allclose(found, mean + correction, rtol=1e-5, atol=1e-5)
    # The variance of the regression moves them.
    np.testing.assert_allclose(regressed.decision_function(new_x), moved, rtol=1e-5, atol=1e-5)
    assert np.abs(mean).min() > 0
    assert float(model.mean_function.slope) != 1.0


def test_a_regression_comes_back_from_disk(regressed: MultiLabelGPClassifier, new_x: np.ndarray, tmp_path: Path):
    regressed.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(new_x), regressed.predict_proba(new_x))
    sparse = scipy.sparse.csr_matrix(new_x)
    np.testing.assert_allclose(loaded.predict_proba(sparse), regressed.predict_proba(new_x), rtol=1e-4)
    given = np.zeros((len(new_x), K))
    given[:, 1] = 1
    np.testing.assert_array_equal(loaded.predict_proba(new_x, given=given), regressed.predict_proba(new_x, given=given))


def test_with_sampled_labels_a_regression_is_that_of_the_labels_sampled():
    x, y = small_data()
    settings = {"mean_function": "regression", "epochs": 2}
    whole = small_classifier(**settings).fit(x, y)
    everything = small_classifier(**settings, n_sampled_labels=K, label_sampling="uniform").fit(x, y)
    np.testing.assert_allclose(everything.predict_proba(x), whole.predict_proba(x), rtol=1e-3)


def test_a_regression_is_chosen_where_it_is_cheap():
    x, y = small_data()
    assert small_classifier(mean_function="auto").fit(x, y).model_.mean_function is not None
    wide = scipy.sparse.hstack([scipy.sparse.csr_matrix(x), scipy.sparse.csr_matrix((N, 5000))], format="csr")
    assert small_classifier(mean_function="auto").fit(wide, y).model_.mean_function is None


def test_a_run_with_a_regression_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    x, y = small_data()
    settings = {"mean_function": "regression", "checkpoint_seconds": 0.0}
    straight = small_classifier(**settings).fit(x, y)
    original = fitting.train

    def interrupted(*args: Any, **options: Any) -> Any:
        class Stop(NoReporter):
            def step(self, step: int, total_steps: int, elbo: float) -> None:
                if step == 4:
                    raise KeyboardInterrupt

        return original(*args, **{**options, "reporter": Stop()})

    monkeypatch.setattr(fitting, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small_classifier(**settings, checkpoint=tmp_path / "c").fit(x, y)
    monkeypatch.setattr(fitting, "train", original)
    resumed = small_classifier(**settings, checkpoint=tmp_path / "c").fit(x, y)
    np.testing.assert_array_equal(resumed.predict_proba(x), straight.predict_proba(x))


def test_validation_sees_the_regression_too():
    x, y = small_data()
    new_x, new_y = small_data(seed=7)
    classifier = small_classifier(mean_function="regression").fit(x, y, validation=(new_x, new_y))
    best = max(record["validation_P@1"] for record in classifier.history_)
    model = classifier.model_.without_regression_variance()
    with torch.no_grad():
        utilities = model.utilities(model.latents.condition(), torch.from_numpy(new_x)).means()
    assert new_y[np.arange(N), utilities.argmax(1)].mean() == pytest.approx(best)


# Approximate search


def test_approximate_search_finds_the_share_asked_for_and_builds_its_index_once_a_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = []
    init = LabelIndex.__init__
    monkeypatch.setattr(LabelIndex, "__init__", lambda self, *args: (built.append(1), init(self, *args))[1])
    x, y = small_data()
    classifier = small_classifier().fit(x, y)
    for by in ("probability", "utility"):
        exact, found = (classifier.predict_topk(x, 2, by=by, approximate=share) for share in (None, 1.0))
        # Of so few labels all are candidates.
        np.testing.assert_array_equal(found.labels, exact.labels)
        np.testing.assert_allclose(found.scores, exact.scores, rtol=1e-5, atol=1e-6)
    assert classifier.predict_topk(x, 2, approximate=0.9, output="csr").shape == (N, K)
    assert len(built) == 1
    assert classifier.label_index().setting.recall == 1.0
    for copy in (pickle.loads(pickle.dumps(classifier)), clone(classifier).fit(x, y)):
        np.testing.assert_array_equal(copy.predict_topk(x, 2, approximate=0.9).labels, exact_labels(classifier, x))
    assert len(built) == 3
    x, y = small_data(seed=5)
    classifier.fit(x, y)
    np.testing.assert_array_equal(classifier.predict_topk(x, 2, approximate=0.9).labels, exact_labels(classifier, x))
    assert len(built) == 4


def exact_labels(classifier: MultiLabelGPClassifier, x: np.ndarray) -> np.ndarray:
    return classifier.predict_topk(x, 2).labels


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"approximate": 0.0}, "above 0 and at most 1"),
        ({}, {"approximate": 0.9, "given": np.zeros((N, K))}, "given"),
        ({"mean_function": "regression"}, {"approximate": 0.9}, "mean_function='zero'"),
    ],
)
def test_approximate_search_that_is_not_possible_is_refused(
    changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    x, y = small_data()
    with pytest.raises(SettingsError, match=message):
        small_classifier(**changes).fit(x, y).predict_topk(x, 2, **options)


def _rings_of_labels(n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two rings of points at the same angles: a label of the outer one, and one of a half of the plane."""
    rng = np.random.default_rng(seed)
    angles, outer = rng.uniform(0, 2 * np.pi, n_rows), rng.random(n_rows) < 0.5
    x = (1.0 + outer)[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    x += 0.1 * rng.normal(size=x.shape)
    return x.astype(np.float32), np.stack([outer, x[:, 0] > 0], axis=1).astype(np.int64)


def test_by_default_points_at_one_angle_are_told_apart_by_their_distance_from_the_middle(tmp_path: Path):
    (x, y), (test_x, test_y) = _rings_of_labels(150, 0), _rings_of_labels(300, 1)
    classifier = MultiLabelGPClassifier(random_state=0, verbose=False).fit(x, y)
    assert classifier.features_.kind == "standard"
    assert (classifier.predict(test_x) == test_y).mean(axis=0).min() > 0.95
    classifier.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(test_x), classifier.predict_proba(test_x))


@pytest.mark.parametrize(
    ("form", "kind"), [("sparse", "unit"), ("array", "standard"), ("pixels", "root"), ("texts", "text")]
)
def test_the_features_are_those_that_suit_the_data(form: str, kind: str):
    x, y = small_data()
    inputs: dict[str, Any] = {
        "sparse": scipy.sparse.csr_matrix(np.abs(x)),
        "array": x,
        "pixels": np.random.default_rng(0).random(x.shape),
        "texts": ["red apple", "green apple", "red car", "green car"] * (len(x) // 4),
    }
    assert small_classifier(features="auto", epochs=1).fit(inputs[form], y).features_.kind == kind
