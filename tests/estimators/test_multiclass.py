from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import extremegp
from extremegp import MultiClassGPClassifier
from extremegp.errors import ExtremeGPError
from extremegp.presets import CLASS_PRESETS
from extremegp.settings.parts import CLASS_LIKELIHOODS
from extremegp.training import TrainingInterrupted

N, K = 90, 3
NAMES = np.array(["inner", "middle", "outer"])


def small_classifier(**changes: Any) -> MultiClassGPClassifier:
    small = {
        "mean_function": "zero",
        "n_inducing": 12,
        "epochs": 20,
        "batch_size": 30,
        "verbose": False,
        "random_state": 0,
    }
    return MultiClassGPClassifier(**{**small, **changes})


def rings(n_rows: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Concentric rings, which no linear functions tell apart."""
    rng = np.random.default_rng(seed)
    codes, angles = np.arange(n_rows) % K, rng.uniform(0, 2 * np.pi, n_rows)
    radii = 1 + codes + 0.1 * rng.normal(size=n_rows)
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1), codes


def blobs(n_rows: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three groups, which linear functions tell apart."""
    rng = np.random.default_rng(seed)
    codes = np.arange(n_rows) % K
    return rng.normal(size=(n_rows, 4)) + 4 * np.eye(4)[codes], codes


@pytest.fixture(scope="module")
def trained() -> MultiClassGPClassifier:
    x, codes = rings()
    return small_classifier().fit(x, NAMES[codes])


EXPECTED_FAILED_CHECKS = {
    "check_decision_proba_consistency": (
        "expects probabilities in the order of the decision function; integrating over the posterior changes it"
    ),
    "check_n_features_in_after_fitting": "expects the name of the class in a message that says 'the model' instead",
    **dict.fromkeys(
        ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"),
        "training draws minibatches and starts at random, otherwise for rows that are repeated than for weighted ones",
    ),
}


@parametrize_with_checks(
    [small_classifier(epochs=10, n_inducing=20)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS,
    xfail_strict=True,
)
@pytest.mark.filterwarnings("ignore:Number of distinct clusters:sklearn.exceptions.ConvergenceWarning")
def test_the_contract_of_scikit_learn(estimator: Any, check: Callable[[Any], None]):
    check(estimator)


@pytest.mark.parametrize("likelihood", CLASS_LIKELIHOODS)
def test_every_likelihood_learns_rings_of_which_no_linear_function_knows(likelihood: str):
    x, codes = rings(300)
    test_x, test_codes = rings(300, seed=1)
    options = {"mixing": "factor", "n_latent": 5} if likelihood == "independent" else {}
    classifier = small_classifier(likelihood=likelihood, n_inducing=30, epochs=30, **options).fit(x, NAMES[codes])
    assert classifier.score(test_x, NAMES[test_codes]) > 0.9
    probabilities = classifier.predict_proba(test_x)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    nlpd = -np.log(probabilities[np.arange(300), test_codes]).mean()
    assert nlpd < 0.6 * np.log(K)


def test_no_linear_function_knows_of_rings():
    (x, codes), (test_x, test_codes) = rings(300), rings(300, seed=1)
    linear = small_classifier(latents="linear-point", epochs=60).fit(x, NAMES[codes])
    assert linear.score(test_x, NAMES[test_codes]) < 0.6


def _five_rings(n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Like the thesis' data (T 3.8.2): neighbouring rings overlap so that no classifier is below 6.4 % of errors."""
    rng = np.random.default_rng(seed)
    codes, angles = np.repeat(np.arange(5), n_rows), rng.uniform(0, 2 * np.pi, 5 * n_rows)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return (1 + codes)[:, None] * circle + 0.28 * rng.normal(size=circle.shape), codes


@pytest.mark.slow
def test_five_rings_are_learnt_to_the_thesis_error_and_linear_functions_fail():
    x, codes = _five_rings(1000, 0)
    test_x, test_codes = _five_rings(500, 1)
    errors = {}
    for name, options in {
        "default": {},
        "OVSE-P": dict(CLASS_PRESETS["OVSE-P"].settings) | {"n_inducing": 40, "epochs": 300},
        "OVSE-LIN": dict(CLASS_PRESETS["OVSE-LIN"].settings),
    }.items():
        classifier = MultiClassGPClassifier(**options, random_state=0, verbose=False).fit(x, codes)
        errors[name] = 1 - classifier.score(test_x, test_codes)
    assert errors["default"] < 0.071
    assert errors["OVSE-P"] < 0.078
    assert errors["OVSE-LIN"] > 0.6


@pytest.mark.parametrize("name", CLASS_PRESETS)
def test_every_preset_learns_and_survives_saving(name: str, tmp_path: Path):
    x, codes = blobs(150)
    settings = dict(CLASS_PRESETS[name].settings) | {"n_inducing": 10}
    classifier = small_classifier(**settings | {"epochs": 60}).fit(x, NAMES[codes])
    test_x, test_codes = blobs(200, seed=1)
    assert classifier.score(test_x, NAMES[test_codes]) > 0.85
    classifier.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(test_x), classifier.predict_proba(test_x))
    assert loaded.get_params()["likelihood"] == classifier.likelihood


# Targets and predictions


@pytest.mark.parametrize(
    "names",
    [NAMES, np.array([3, -1, 70]), np.array(["b", "a", "c"], dtype=object), np.array([2.0, 1.0, 0.0])],
)
def test_predictions_come_in_the_type_of_the_targets(names: np.ndarray, tmp_path: Path):
    x, codes = blobs()
    classifier = small_classifier().fit(x, names[codes])
    assert classifier.classes_.tolist() == sorted(names.tolist())
    predicted = classifier.predict(x)
    assert np.mean(predicted == names[codes]) > 0.9
    assert predicted.dtype.kind == np.asarray(names.tolist()).dtype.kind
    best = classifier.predict_topk(x, 2)
    np.testing.assert_array_equal(classifier.classes_[best.labels[:, 0]], predicted)
    classifier.save(tmp_path / "model")
    loaded = extremegp.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(x), predicted)
    np.testing.assert_array_equal(loaded.classes_, classifier.classes_)


def test_booleans_are_classes():
    x, codes = blobs()
    classifier = small_classifier().fit(x, codes == 1)
    assert classifier.classes_.tolist() == [False, True]
    assert classifier.predict(x).dtype == np.bool_
    margin = classifier.decision_function(x)
    assert margin.shape == (N,)
    assert np.mean((margin > 0) == (codes == 1)) > 0.9


def test_top_k_is_the_head_of_the_probabilities(trained: MultiClassGPClassifier):
    x, _ = rings(seed=2)
    probabilities = trained.predict_proba(x)
    for k in (1, 2, K, K + 4):
        best = trained.predict_topk(x, k)
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(best.labels, order)
        np.testing.assert_array_equal(best.scores, np.take_along_axis(probabilities, order, axis=1))
    np.testing.assert_allclose(trained.predict_log_proba(x), np.log(probabilities))


def test_blocks_of_rows_do_not_change_predictions(trained: MultiClassGPClassifier, monkeypatch: pytest.MonkeyPatch):
    from extremegp.prediction import predictor as prediction

    x, _ = rings(seed=2)
    methods = ("predict_proba", "decision_function", "predict", "predict_latent", "predict_uncertainty")
    whole = {name: getattr(trained, name)(x) for name in methods}
    monkeypatch.setattr(prediction, "_BLOCK_ELEMENTS", 7 * 512)
    for name in methods:
        for ours, theirs in zip(np.atleast_1d(getattr(trained, name)(x)), np.atleast_1d(whole[name]), strict=True):
            if np.asarray(theirs).dtype.kind == "U":
                np.testing.assert_array_equal(ours, theirs)
            elif name != "predict_uncertainty":
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_blocks_have_fewer_rows_where_functions_have_covariances_of_their_own(monkeypatch: pytest.MonkeyPatch):
    from extremegp.prediction import predictor as prediction

    x, codes = rings()
    monkeypatch.setattr(prediction, "_BLOCK_ELEMENTS", 60 * 200 * K)
    sizes = {}
    for posterior in ("shared-basis", "full"):
        model = small_classifier(posterior=posterior, n_inducing=200, features="raw", epochs=1)
        model = model.fit(np.repeat(x, 3, axis=0), np.repeat(codes, 3)).model_
        sizes[posterior] = [rows.stop - rows.start for rows, _ in prediction.Predictor(model).utilities(x.astype("f4"))]
    assert sizes == {"shared-basis": [70, 20], "full": [60, 30]}


def test_uncertainty_is_epistemic_far_from_the_data_and_aleatoric_where_classes_overlap():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(200, 1)) - 3, rng.normal(size=(200, 1)) + 3, rng.uniform(-1, 1, (200, 1))])
    y = np.concatenate([np.zeros(200), np.ones(200), rng.integers(2, size=200)]).astype(int)
    classifier = small_classifier(features="raw", kernel="se", n_inducing=30, epochs=60).fit(x, y)
    found = classifier.predict_uncertainty(np.array([[-4.0], [0.0], [40.0]]))
    known, overlap, far = (np.array([part[i] for part in found[:3]]) for i in range(3))
    for total, aleatoric, epistemic in (known, overlap, far):
        assert total == pytest.approx(aleatoric + epistemic, abs=1e-6)
        assert -1e-6 <= epistemic <= total <= np.log(2) + 1e-6
    assert known[0] < 0.3 < overlap[0]
    assert overlap[1] > 0.9 * overlap[0]
    assert far[2] > 3 * max(overlap[2], known[2])


@pytest.mark.parametrize("likelihood", ["softmax", "robust-max", "probit-one-vs-each", "independent"])
def test_total_uncertainty_is_the_entropy_of_the_probabilities_of_the_likelihood(likelihood: str):
    x, codes = rings()
    classifier = small_classifier(likelihood=likelihood, epochs=5).fit(x, codes)
    uncertainty, p = classifier.predict_uncertainty(x), classifier.predict_proba(x)
    entropy = -(p * np.log(np.maximum(p, 1e-30))).sum(axis=1)
    # 64 draws of the functions against integrals.
    np.testing.assert_allclose(uncertainty.total, entropy, atol=0.12)
    assert np.abs(uncertainty.total - entropy).mean() < 0.03
    assert np.all(uncertainty.epistemic >= 0)
    if likelihood == "robust-max":
        known = -(0.999 * np.log(0.999) + 0.001 * np.log(0.001 / 2))
        np.testing.assert_allclose(uncertainty.aleatoric, known, rtol=1e-3)


def test_the_score_is_accuracy_and_new_classes_are_errors(trained: MultiClassGPClassifier):
    x, codes = rings(seed=3)
    hits = trained.predict(x) == NAMES[codes]
    assert trained.score(x, NAMES[codes]) == pytest.approx(hits.mean())
    weights = np.arange(N, dtype=float)
    assert trained.score(x, NAMES[codes], sample_weight=weights) == pytest.approx(np.average(hits, weights=weights))
    assert trained.score(x[:2], ["new", "newer"]) == 0.0


def test_sparse_inputs_give_what_dense_ones_give():
    x, codes = blobs()
    x = np.where(np.abs(x) > 1, x, 0)
    options = {"features": "unit", "epochs": 5}
    dense = small_classifier(**options).fit(x, codes)
    sparse = small_classifier(**options).fit(scipy.sparse.csr_matrix(x), codes)
    np.testing.assert_allclose(sparse.predict_proba(scipy.sparse.csr_matrix(x)), dense.predict_proba(x), atol=2e-3)


def test_texts_are_inputs():
    texts = ["red apple pie", "green apple", "fast red car", "slow green car"] * 8
    classifier = small_classifier(features="text").fit(texts, ["fruit", "fruit", "car", "car"] * 8)
    assert classifier.predict(["an apple", "my car"]).tolist() == ["fruit", "car"]


# Training


def test_equal_seeds_give_equal_models_and_others_differ():
    x, codes = blobs()
    first, again, other = (
        small_classifier(random_state=seed, likelihood="softmax-mc", epochs=2).fit(x, codes) for seed in (4, 4, 5)
    )
    assert torch.equal(first.model_.latents.posterior.q_mean, again.model_.latents.posterior.q_mean)
    assert not torch.equal(first.model_.latents.posterior.q_mean, other.model_.latents.posterior.q_mean)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"likelihood": "ar-softmax", "local": "stored"},
        {"likelihood": "ar-logit", "local": "amortised", "n_sampled_classes": 2},
        {"likelihood": "one-vs-each", "class_sampling": "pair", "inducing": "separate"},
        {"likelihood": "softmax", "mixing": "factor", "n_latent": 2},
    ],
)
def test_an_interrupted_fit_resumes_to_the_same_model(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from extremegp.training.progress import NoReporter

    x, codes = blobs()
    options = {**options, "epochs": 4}
    whole = small_classifier(**options).fit(x, codes)

    class Interrupting(NoReporter):
        def step(self, step: int, total_steps: int, elbo: float) -> None:
            if step == 5:
                import os
                import signal

                os.kill(os.getpid(), signal.SIGINT)

    checkpoint = tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        patch.setattr("extremegp.estimators.fitting.NoReporter", Interrupting)
        with pytest.raises(TrainingInterrupted):
            small_classifier(**options, checkpoint=checkpoint).fit(x, codes)
    resumed = small_classifier(**options, checkpoint=checkpoint).fit(x, codes)
    for name, tensor in whole.model_.state_dict().items():
        assert torch.equal(tensor, resumed.model_.state_dict()[name]), name


def test_a_time_budget_that_is_never_reached_changes_nothing():
    x, codes = blobs()
    options = {"likelihood": "ar-softmax", "local": "stored", "n_sampled_classes": 1, "batch_size": 2, "epochs": 1}
    free, planned = (small_classifier(**options, time_budget=budget).fit(x, codes) for budget in (None, 1e6))
    for name, tensor in free.model_.state_dict().items():
        assert torch.equal(tensor, planned.model_.state_dict()[name]), name


def test_validation_keeps_the_best_epoch_and_names_its_score():
    x, codes = rings()
    classifier = small_classifier(epochs=6).fit(x, NAMES[codes], validation=(x[:30], NAMES[codes[:30]]))
    scores = [record["validation_accuracy"] for record in classifier.history_]
    assert classifier.score(x[:30], NAMES[codes[:30]]) == pytest.approx(max(scores))
    held_out = small_classifier(epochs=3, validation_fraction=0.3, patience=1).fit(x, NAMES[codes])
    assert all("validation_accuracy" in record for record in held_out.history_)


def test_a_regression_as_mean_is_corrected_by_the_functions():
    x, codes = rings(200)
    classifier = small_classifier(mean_function="regression", n_mean_points=50, epochs=10).fit(x, codes)
    model = classifier.model_
    assert model.mean_function.link == "log"
    assert len(model.mean_function.coefficients) == 50
    test_x, test_codes = rings(300, seed=1)
    assert classifier.score(test_x, test_codes) > 0.9


def test_the_estimator_is_cloned_pickled_and_searched():
    x, codes = blobs()
    search = GridSearchCV(small_classifier(epochs=2), {"n_inducing": [3, 6]}, cv=2).fit(x, codes)
    assert search.best_score_ > 0.6
    restored = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(restored.predict(x), search.predict(x))


@pytest.mark.parametrize(
    ("n_classes", "options", "likelihood", "mixing", "n_latent", "local"),
    [
        (3, {}, "softmax", "identity", 3, "optimal"),
        (3, {"mixing": "factor"}, "ar-softmax", "factor", 3, "optimal"),
        (3, {"n_latent": 2}, "ar-softmax", "factor", 2, "optimal"),
        (3, {"likelihood": "independent"}, "independent", "factor", 3, "optimal"),
        (3, {"likelihood": "ar-logit", "n_sampled_classes": 0.5}, "ar-logit", "identity", 3, "amortised"),
        (600, {}, "ar-softmax", "factor", 300, "optimal"),
    ],
)
def test_auto_follows_the_number_of_classes(
    n_classes: int, options: dict[str, Any], likelihood: str, mixing: str, n_latent: int, local: str
):
    x = np.random.default_rng(0).normal(size=(2 * n_classes, 3))
    settings = small_classifier(epochs=1, **options).fit(x, np.arange(2 * n_classes) % n_classes).settings_
    assert (settings.likelihood, settings.mixing, settings.n_latent, settings.local) == (
        likelihood,
        mixing,
        n_latent,
        local,
    )


# Bad data and bad settings: one line that says what and where

X, Y = blobs()
BAD_FITS: dict[str, tuple[dict[str, Any], Any, Any, str]] = {
    "no target": ({}, X, None, "requires y to be passed"),
    "lengths": ({}, X, Y[:-1], "X has 90 rows and Y has 89"),
    "one class": ({}, X, np.zeros(N, int), "one class"),
    "continuous": ({}, X, np.linspace(0, 1, N), "continuous"),
    "missing": ({}, X, [None, *Y[1:].tolist()], "row 0"),
    "indicator": ({}, X, 1 - np.eye(3)[Y], "row 0 .*adds up to 2.*MultiLabelGPClassifier"),
    "likelihood": ({"likelihood": "hinge"}, X, Y, "likelihood must be one of"),
    "local": ({"local": "global"}, X, Y, "local must be one of"),
    "mixing": ({"mixing": "none"}, X, Y, "mixing must be one of"),
    "latents": ({"latents": "trees"}, X, Y, "latents must be one of"),
    "class_sampling": ({"class_sampling": "all"}, X, Y, "class_sampling must be one of"),
    "identity of few": ({"mixing": "identity", "n_latent": 2}, X, Y, "one latent function for each of 3 classes"),
    "separate factors": ({"mixing": "factor", "inducing": "separate"}, X, Y, 'use mixing="identity"'),
    "robust factors": ({"mixing": "factor", "likelihood": "robust-max"}, X, Y, "independent utilities"),
    "softmax of a sample": ({"likelihood": "softmax", "n_sampled_classes": 2}, X, Y, "cannot be sampled"),
    "robust pairs": ({"likelihood": "robust-max", "class_sampling": "pair"}, X, Y, "cannot be sampled"),
    "optimal of a sample": (
        {"likelihood": "ar-softmax", "local": "optimal", "n_sampled_classes": 2},
        X,
        Y,
        "needs all classes",
    ),
    "share": ({"likelihood": "one-vs-each", "n_sampled_classes": 1.5}, X, Y, "as a share must be"),
    "number sampled": (
        {"likelihood": "one-vs-each", "n_sampled_classes": 0},
        X,
        Y,
        "n_sampled_classes must be an integer at least 1",
    ),
    "mean function": ({"mean_function": "mean"}, X, Y, "mean_function must be one of"),
    "mean points": ({"mean_function": "regression", "n_mean_points": 0}, X, Y, "n_mean_points must be"),
    "features": ({"features": "hash"}, X, Y, "features must be one of"),
    "roots of negatives": ({"features": "root"}, X, Y, "square roots"),
    "validation lengths": ({}, X, Y, "rows"),
}


@pytest.mark.parametrize("case", BAD_FITS)
def test_bad_fits_are_refused_with_one_line(case: str):
    options, x, y, said = BAD_FITS[case]
    validation = (X[:5], Y[:4]) if case == "validation lengths" else None
    with pytest.raises(ExtremeGPError, match=said) as caught:
        small_classifier(**options).fit(x, y, validation=validation)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", [case for case, (options, *_) in BAD_FITS.items() if options and "roots" not in case])
def test_bad_settings_are_found_before_data_where_they_can_be(case: str):
    options = BAD_FITS[case][0]
    if case in ("identity of few", "features"):
        return
    with pytest.raises(ExtremeGPError):
        small_classifier(**options).check_params()


def test_settings_that_work_pass_the_check_before_data():
    for preset in CLASS_PRESETS.values():
        small_classifier(**dict(preset.settings)).check_params()
