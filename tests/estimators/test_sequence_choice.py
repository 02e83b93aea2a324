"""Functions of sequences that are chosen where nobody says which."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from extremegp import SequenceGPClassifier, load
from extremegp.engine import chain
from extremegp.errors import SettingsError
from extremegp.estimators.sequence_choice import choose_functions

_ODD = {"latents": "landmarks-point", "prior_variance": 30.0}


def parity(n: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Tokens whose label is whether two of their features are alike, which no linear function tells."""
    rng = np.random.default_rng(seed)
    x = [np.where(rng.random((10, 3)) < 0.5, -1.0, 1.0).astype(np.float32) for _ in range(n)]
    return x, [np.where(part[:, 0] * part[:, 1] > 0, "alike", "other") for part in x]


def words(n: int, seed: int) -> tuple[list[list[dict[str, str]]], list[list[str]]]:
    """Words of which each has its label, but for a tenth."""
    rng = np.random.default_rng(seed)
    x = [[f"w{word}" for word in rng.integers(40, size=10)] for _ in range(n)]
    y = [["a" if (int(w[1:]) % 2) ^ (rng.random() < 0.1) else "b" for w in part] for part in x]
    return [[{"word": word} for word in part] for part in x], y


@pytest.fixture(scope="module")
def chosen() -> SequenceGPClassifier:
    return SequenceGPClassifier(random_state=0, verbose=False).fit(*parity(60, 0))


def test_functions_are_chosen_that_tell_what_linear_ones_cannot(chosen: SequenceGPClassifier):
    assert chosen.settings_.latents == "landmarks-point"
    assert chosen.score(*parity(30, 1)) > 0.99
    selection = chosen.hyperparameters_[0]
    scores = {tuple(each.values())[:4]: each["score"] for each in selection.tried}
    assert scores[tuple(selection.chosen.values())] == max(scores.values())
    linear = [score for key, score in scores.items() if key[0] == "linear-point"]
    # Of linear functions nothing is better than the frequencies.
    assert max(linear) < np.log(0.5) + 0.02 < -0.1 > max(scores.values()) - 0.2


def test_linear_functions_are_chosen_where_they_are_enough():
    tagger = SequenceGPClassifier(random_state=0, verbose=False).fit(*words(60, 0))
    scores = {(each["latents"], each["prior_variance"]): each["score"] for each in tagger.hyperparameters_[0].tried}
    assert tagger.score(*words(30, 1)) > 0.85
    best = max(score for (latents, _), score in scores.items() if latents == "linear-point")
    assert best > max(scores.values()) - 0.02


def test_predictions_are_those_of_the_mode_and_uncertainty_is_of_the_posterior(chosen: SequenceGPClassifier):
    x, _ = parity(5, 2)
    far = [20 * part for part in x]
    first = chosen.predict_marginals(x)
    chosen.set_params(n_draws=7)
    for one, other in zip(first, chosen.predict_marginals(x), strict=True):
        np.testing.assert_array_equal(one, other)
    near, away = (np.concatenate([part.epistemic for part in chosen.predict_uncertainty(each)]) for each in (x, far))
    assert away.min() > 3 * near.max() > 0


def test_it_is_the_same_model_saved_and_chosen_again(chosen: SequenceGPClassifier, tmp_path: Any):
    x, y = parity(60, 0)
    again = SequenceGPClassifier(random_state=0, verbose=False).fit(x, y)
    chosen.save(tmp_path / "model")
    saved = load(tmp_path / "model")
    for other in (again, saved):
        for one, two in zip(chosen.predict_marginals(x[:3]), other.predict_marginals(x[:3]), strict=True):
            np.testing.assert_array_equal(one, two)
    assert saved.hyperparameters_[0] == chosen.hyperparameters_[0]
    one, two = (model.predict_uncertainty(x[:2])[0].epistemic for model in (chosen, saved))
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)


def test_the_same_functions_can_be_asked_for_by_steps_or_at_once():
    x, y = parity(40, 0)
    options: dict[str, Any] = {**_ODD, "kernel": "se", "random_state": 0, "verbose": False, "transitions": "point"}
    at_once = SequenceGPClassifier(**options).fit(x, y)
    steps = SequenceGPClassifier(**options, optimizer="adam", epochs=300).fit(x, y)
    # Steps come near the maximum that is found at once.
    assert at_once.history_[-1]["elbo"] > steps.history_[-1]["elbo"] - 1
    for one, two in zip(at_once.predict(x), steps.predict(x), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("changes", [{"kernel": "arccos0"}, {"lengthscale": 0.0}, {"linear_term": True}])
def test_landmarks_refuse_what_they_do_not_have(changes: dict[str, Any]):
    with pytest.raises(SettingsError, match=next(iter(changes))):
        SequenceGPClassifier(**_ODD, **changes, verbose=False).fit(*parity(10, 0))


def test_what_is_asked_for_is_not_chosen():
    tagger = SequenceGPClassifier(epochs=2, random_state=0, verbose=False).fit(*parity(10, 0))
    assert (tagger.settings_.latents, tagger.settings_.transitions) == ("random-features", "gaussian")


def test_too_few_sequences_to_hold_any_out_have_linear_functions():
    x, y = parity(1, 0)
    tagger = SequenceGPClassifier(random_state=0, verbose=False).fit(x, y)
    assert (tagger.settings_.latents, tagger.hyperparameters_) == ("linear-point", [])


def test_weights_and_missing_labels_are_those_of_the_choice_too(monkeypatch: pytest.MonkeyPatch):
    x, y = parity(30, 0)
    seen: dict[str, Any] = {}

    def spy(params: Any, data: Any, *others: Any) -> Any:
        seen["data"] = data
        return choose_functions(params, data, *others)

    monkeypatch.setattr("extremegp.estimators.sequences.choose_functions", spy)
    partly = [[label if place % 3 else None for place, label in enumerate(part)] for part in y]
    weights = np.arange(1.0, 31.0)
    tagger = SequenceGPClassifier(random_state=0, verbose=False).fit(x, partly, sample_weight=weights)
    assert seen["data"].labelled.mean() == pytest.approx(0.6)
    np.testing.assert_array_equal(seen["data"].weights, weights)
    assert tagger.score(*parity(20, 1)) > 0.9


def test_without_memory_for_landmarks_linear_functions_are_chosen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("extremegp.estimators.sequence_choice.memory_left", lambda limit: 1_000_000)
    tagger = SequenceGPClassifier(random_state=0, verbose=False).fit(*parity(60, 0))
    assert {each["latents"] for each in tagger.hyperparameters_[0].tried} == {"linear-point"}


def test_a_time_budget_leaves_time_for_the_training():
    started = time.monotonic()
    tagger = SequenceGPClassifier(time_budget=0.01, random_state=0, verbose=False).fit(*parity(60, 0))
    hurried = time.monotonic() - started
    # What is stopped on the way is not compared.
    assert (tagger.settings_.latents, tagger.settings_.prior_variance) == ("linear-point", 10.0)
    assert tagger.hyperparameters_ == []
    started = time.monotonic()
    SequenceGPClassifier(random_state=0, verbose=False).fit(*parity(60, 0))
    assert hurried < (time.monotonic() - started) / 2


def test_what_the_mode_says_is_the_same_with_and_without_whitening(chosen: SequenceGPClassifier):
    x, _ = parity(5, 2)
    matrix, lengths = chosen.features_.transform(x)
    model = chosen.model_
    (block,) = chosen.predictor().blocks(matrix, lengths)
    whitened = model.features(matrix) @ model.latents.q_mean + model.mixing.bias
    scores = chain.unpad(block.scores, block.lengths)[0]
    np.testing.assert_allclose(scores, whitened.detach(), rtol=1e-3, atol=1e-3)
