"""Time budgets that are too small for a method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.estimators.small_sequences import sticky

from extremegp import MultiClassGPClassifier, SequenceGPClassifier
from extremegp.errors import BudgetWarning, ModelFormatError
from extremegp.training import loop
from extremegp.training.steps import Steps

X, Y = sticky(20)
QUICK: dict[str, Any] = {"epochs": 50, "batch_size": 5, "n_draws": 4, "random_state": 0, "verbose": False}


@pytest.fixture
def seconds_of(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """How long a step takes by the kind of latent functions, on a clock that only steps move."""
    seconds = {"DeepRandomFeatures": 10.0, "LinearFunctions": 0.1}
    gradients = Steps.gradients

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()

    def slow(self: Steps, step: Any, **options: int) -> Any:
        clock.now += seconds[type(self.model.latents).__name__]
        return gradients(self, step, **options)

    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(Steps, "gradients", slow)
    return seconds


def test_linear_functions_take_the_place_of_random_features_that_would_take_too_long(seconds_of: dict[str, float]):
    tagger = SequenceGPClassifier(**QUICK, time_budget=100.0)
    told = (
        "of 1 min 40 s is enough for 3.5 % of the training that these settings need, about 40 min: trained latents='l"
    )
    with pytest.warns(BudgetWarning, match=told):
        tagger.fit(X, Y)
    assert (tagger.settings_.latents, tagger.latents) == ("linear-mean-field", "auto")
    assert len(tagger.history_) == 50
    # What finding out took is part of the budget.
    assert 50.0 < tagger.history_[-1]["seconds"] <= 100.0
    assert tagger.score(X, Y) > 0.5


def test_and_a_crf_where_their_posterior_takes_too_long_too(seconds_of: dict[str, float]):
    seconds_of["LinearFunctions"] = 5.0
    with pytest.warns(BudgetWarning) as caught:
        tagger = SequenceGPClassifier(**QUICK, time_budget=120.0).fit(X, Y)
    assert (tagger.settings_.latents, tagger.settings_.transitions) == ("linear-point", "point")
    texts = [str(warning.message) for warning in caught]
    assert "latents='linear-point', transitions='point' need" in texts[0]
    assert "give more time, or settings that take less" in texts[0]
    assert texts[1].endswith(
        "trained latents='linear-point', transitions='point' instead; give more time to have what was asked for"
    )
    assert tagger.history_[-1]["seconds"] <= 121.0


@pytest.mark.parametrize(
    "chosen", [{"latents": "random-features"}, {"n_random_features": 30}, {"n_layers": 2}], ids=str
)
def test_a_method_that_was_chosen_stays_with_a_warning(chosen: dict[str, Any], seconds_of: dict[str, float]):
    with pytest.warns(BudgetWarning, match="these settings need, about .*: give more time, or settings that take less"):
        tagger = SequenceGPClassifier(**QUICK, **chosen, time_budget=100.0).fit(X, Y)
    assert tagger.settings_.latents == "random-features"


def test_a_budget_that_is_enough_changes_nothing(seconds_of: dict[str, float]):
    with_budget = SequenceGPClassifier(**QUICK, time_budget=5000.0).fit(X, Y)
    assert with_budget.settings_ == SequenceGPClassifier(**QUICK).fit(X, Y).settings_
    assert with_budget.settings_.latents == "random-features"


def test_a_run_that_took_another_method_is_resumed_with_it(seconds_of: dict[str, float], tmp_path: Path):
    checkpoint = tmp_path / "checkpoint"
    options = {**QUICK, "time_budget": 100.0, "checkpoint": checkpoint, "checkpoint_seconds": 0.0}
    with pytest.warns(BudgetWarning):
        first = SequenceGPClassifier(**options).fit(X, Y)
    seconds_of["DeepRandomFeatures"] = 0.01
    again = SequenceGPClassifier(**options).fit(X, Y)
    assert again.settings_ == first.settings_
    for one, other in zip(first.predict_marginals(X), again.predict_marginals(X), strict=True):
        assert one.tolist() == other.tolist()
    with pytest.raises(ModelFormatError, match="other data or settings"):
        SequenceGPClassifier(**options | {"random_state": 1}).fit(X, Y)


def test_estimators_of_rows_warn(monkeypatch: pytest.MonkeyPatch, seconds_of: dict[str, float]):
    seconds_of["SparseGP"] = 1.0
    x = [[float(i % 5), float(i % 3)] for i in range(40)]
    classifier = MultiClassGPClassifier(
        n_inducing=5,
        epochs=100,
        batch_size=10,
        mean_function="zero",
        linear_term=False,
        time_budget=30.0,
        verbose=False,
    )
    with pytest.warns(
        BudgetWarning, match="a time budget of 30 s is enough for 5.3 % of .*, about 8 min: give more time"
    ):
        classifier.fit(x, [i % 3 for i in range(40)])
