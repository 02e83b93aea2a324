"""What estimators say of the hyper-parameters that they chose before training."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.estimators.small import small_classifier, small_data

import extremegp
from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier, SequenceGPClassifier
from extremegp.engine.families import FAMILIES
from extremegp.engine.feature_regression import NOISES, FeatureRegression
from extremegp.engine.mixing import IdentityMixing
from extremegp.estimators import GPEstimator, Selection
from extremegp.training import landmarks

QUICK: dict[str, Any] = {"epochs": 1, "verbose": False, "random_state": 0}


def selections(estimator: GPEstimator) -> list[Selection]:
    """Of all but the family of the kernel, which comes first."""
    assert estimator.hyperparameters_ is not None
    of_family = [each for each in estimator.hyperparameters_ if "family" in each.chosen]
    assert of_family == estimator.hyperparameters_[: len(of_family)]
    assert {each["family"] for selection in of_family for each in selection.tried} <= set(FAMILIES)
    return [each for each in estimator.hyperparameters_ if each not in of_family]


def chosen(estimator: GPEstimator) -> list[dict[str, Any]]:
    return [dict(each.chosen) for each in selections(estimator)]


@pytest.fixture(scope="module")
def with_landmarks() -> MultiLabelGPClassifier:
    with pytest.MonkeyPatch.context() as patch:
        # So few rows held out would tell no better with a mean function.
        patch.setattr(landmarks, "_PLAIN", -math.inf)
        return MultiLabelGPClassifier(latents="landmarks", n_inducing=20, **QUICK).fit(*small_data())


def test_what_won_is_what_the_model_has(with_landmarks: MultiLabelGPClassifier):
    kernel, utilities, noise = selections(with_landmarks)
    model = with_landmarks.model_
    assert model.features is not None
    lengthscales = model.features.kept.weights.double().rsqrt()
    found = (lengthscales.min(), lengthscales.median(), lengthscales.max())
    assert kernel.tried == []
    low, middle, high = kernel.chosen.values()
    assert (low, high) == pytest.approx((float(found[0]), float(found[2])), rel=1e-5)
    assert low <= middle <= high
    scales = cast(IdentityMixing, model.mixing).log_scales
    assert math.sqrt(utilities.chosen["utility_variance"]) == pytest.approx(float(scales.exp()[0]), rel=1e-6)
    variance = noise.chosen["noise_variance"]
    assert variance in NOISES
    assert [each["noise_variance"] for each in noise.tried] == list(NOISES)
    assert variance == min(noise.tried, key=lambda each: each["score"])["noise_variance"]


def test_what_was_tried_for_the_utilities_is_on_the_grid_and_no_neighbour_was_noticeably_better(
    with_landmarks: MultiLabelGPClassifier,
):
    selection = selections(with_landmarks)[1]
    tried = {(each["weight_scale"], each["utility_variance"]): each["score"] for each in selection.tried}
    scale, variance = selection.chosen.values()
    assert len(tried) == len(selection.tried) > 2
    assert set(tried) <= {(a, b) for a in landmarks.SCALES for b in landmarks.AMPLITUDES}
    first = landmarks.SCALES[landmarks._FIRST[0]], landmarks.AMPLITUDES[landmarks._FIRST[1]]
    assert first in tried
    i, j = landmarks.SCALES.index(scale), landmarks.AMPLITUDES.index(variance)
    for a, b in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
        if 0 <= a < len(landmarks.SCALES) and 0 <= b < len(landmarks.AMPLITUDES):
            score = tried[landmarks.SCALES[a], landmarks.AMPLITUDES[b]]
            won = tried[scale, variance]
            assert score <= won + landmarks._NOTICED * abs(won)


def test_without_a_mean_function_variances_are_those_of_the_evidence():
    classifier = MultiLabelGPClassifier(latents="landmarks", n_inducing=20, **QUICK).fit(*small_data())
    kernel, variances = selections(classifier)
    assert float(cast(FeatureRegression, classifier.model_.mean_function).slope) == 0
    found = cast(IdentityMixing, classifier.model_.mixing).log_scales.mul(2).exp().double()
    assert [*variances.chosen.values()] == pytest.approx(np.quantile(found, (0, 0.5, 1)).tolist(), rel=1e-5)
    assert "evidence" in variances.by
    assert classifier.model_.features is not None
    lengthscales = classifier.model_.features.kept.weights.double().rsqrt()
    assert kernel.chosen["shortest_lengthscale"] == pytest.approx(float(lengthscales.min()), rel=1e-5)


def test_mixed_functions_are_said_to_take_the_scale_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("extremegp.settings.latents._MOST_OWN_FUNCTIONS", 3)
    classifier = MultiLabelGPClassifier(latents="landmarks", n_inducing=20, **QUICK).fit(*small_data())
    assert classifier.settings_.mixing == "factor"
    assert "take the scale alone" in selections(classifier)[1].by


def test_of_too_few_rows_nothing_is_tried():
    x, y = small_data()
    classifier = MultiLabelGPClassifier(latents="landmarks", **QUICK).fit(x[:2], y[:2])
    selection = selections(classifier)[1]
    assert (selection.tried, selection.chosen) == ([], {"weight_scale": 1.0, "utility_variance": 1.0})
    assert selection.by.startswith("default")


@pytest.mark.parametrize("kind", ["labels", "classes"])
def test_a_regression_as_mean_function_says_what_it_learnt(kind: str):
    x, y = small_data()
    options: dict[str, Any] = {"latents": "gp", "mean_function": "regression", "n_inducing": 5, **QUICK}
    estimator: GPEstimator = (
        MultiLabelGPClassifier(**options).fit(x, y)
        if kind == "labels"
        else MultiClassGPClassifier(features="raw", **options).fit(x, y[:, 0])
    )
    (low, middle, high, noise), (share,) = (each.values() for each in chosen(estimator))
    assert 0 <= share <= 1
    assert 0 < low <= middle <= high
    lengthscales = estimator.model_.mean_function.weights.double().rsqrt()  # type: ignore[union-attr]
    assert (low, high) == pytest.approx((float(lengthscales.min()), float(lengthscales.max())), rel=1e-5)
    assert noise > 0


def test_shares_of_blocks_add_up_to_one():
    x, y = small_data()
    classifier = small_classifier(features={"a": "raw", "b": "raw"}, mean_function="regression")
    (*_, first, second), _ = (each.values() for each in chosen(classifier.fit({"a": x[:, :2], "b": x[:, 2:]}, y)))
    assert first + second == pytest.approx(1)
    assert list(chosen(classifier)[0])[-2:] == ["share_of_block_1", "share_of_block_2"]


def test_the_family_of_the_kernel_is_that_of_the_model(with_landmarks: MultiLabelGPClassifier):
    assert with_landmarks.hyperparameters_ is not None
    selection = with_landmarks.hyperparameters_[0]
    assert with_landmarks.model_.features is not None
    assert FAMILIES[int(with_landmarks.model_.features.kept.family)] == selection.chosen["family"]
    assert {each["family"] for each in selection.tried} == set(FAMILIES)


def test_models_that_choose_nothing_say_so():
    x, y = small_data()
    tagger = SequenceGPClassifier(**QUICK).fit([[{"w": "a"}, {"w": "b"}]] * 4, [["A", "B"]] * 4)
    for estimator in (small_classifier().fit(x, y), tagger):
        assert chosen(estimator) == []


def test_all_of_it_is_saved_and_comes_back(with_landmarks: MultiLabelGPClassifier, tmp_path: Path):
    with_landmarks.save(tmp_path / "m")
    loaded = extremegp.load(tmp_path / "m")
    assert loaded.hyperparameters_ == with_landmarks.hyperparameters_
    assert all(isinstance(each, Selection) for each in loaded.hyperparameters_ or [None])
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_bytes() == (tmp_path / "m" / "config.json").read_bytes()
    assert pickle.loads(pickle.dumps(loaded)).hyperparameters_ == with_landmarks.hyperparameters_


def test_an_estimator_that_an_earlier_version_pickled_has_none(with_landmarks: MultiLabelGPClassifier):
    state = {name: value for name, value in with_landmarks.__getstate__().items() if name != "hyperparameters_"}
    old = MultiLabelGPClassifier()
    old.__setstate__(state)
    assert old.hyperparameters_ is None


def test_what_has_no_score_is_left_out():
    selection = Selection.of("x", {"a": 1.0}, [((1.0,), 2.0), ((2.0,), np.nan), ((3.0,), -np.inf)])
    assert selection.tried == [{"a": 1.0, "score": 2.0}]
