from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.estimators.small import small_classifier, small_data
from tests.estimators.small_sequences import small_tagger, sticky

from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier
from extremegp.errors import BudgetWarning, MemoryPlanError, SettingsError
from extremegp.settings import memory
from extremegp.settings.memory import described, memory_left, memory_limit, plan_within
from extremegp.settings.model import ModelSettings
from extremegp.training import TrainingSettings, loop
from extremegp.training.steps import Steps

X, Y = small_data()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (10**12, 10**12),
        ("123", 123),
        ("64kb", 65536),
        ("500M", 500 << 20),
        ("8G", 8 << 30),
        ("1.5 GiB", 3 << 29),
        ("2T", 2 << 40),
    ],
)
def test_limits_are_bytes_or_sizes(value: Any, expected: int | None):
    assert memory_limit(value) == expected


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "", "G", "8X", "-8G", "0M", "8 G G", [1]])
def test_what_is_no_limit_is_refused(value: Any):
    with pytest.raises(SettingsError, match="max_memory must be bytes, or a size"):
        memory_limit(value)


# Lowering

AUTO = dict.fromkeys(("batch_size", "n_sampled_labels", "optimizer_state", "n_latent", "n_inducing"), "auto")
ORDER = list(AUTO)


def _resolve(params: dict[str, Any]) -> tuple[ModelSettings, TrainingSettings]:
    full = {"batch_size": 500, "n_sampled_labels": None, "optimizer_state": "full", "n_latent": 300, "n_inducing": 400}
    values = {name: full[name] if params[name] == "auto" else params[name] for name in full}
    model = ModelSettings(
        n_features=10,
        n_labels=50_000,
        kernel="se",
        n_latent=values.pop("n_latent"),
        n_inducing=values.pop("n_inducing"),
    )
    return model, TrainingSettings(epochs=1, learning_rate=0.1, **values)


def _cost(model: ModelSettings, training: TrainingSettings) -> int:
    """11,000 at full settings, in which every parameter has a part of its own."""
    sampled = training.n_sampled_labels or 50_000
    half = training.optimizer_state == "half"
    return 2 * training.batch_size + sampled // 50 + 1000 * (2 - half) + 10 * model.n_latent + 10 * model.n_inducing


def _planned(available: int, **given: Any) -> memory.Plan:
    return plan_within(available, AUTO | given, resolve=_resolve, needed=_cost, advice="n_latent")


def test_what_fits_is_left_alone():
    plan = _planned(11_000)
    assert (plan.model, plan.training, plan.lowered) == (*_resolve(AUTO), {})


@pytest.mark.parametrize(
    ("available", "lowered"),
    [
        (10_500, {"batch_size": 250}),
        (10_040, {"n_sampled_labels": 2000}),
        (10_000, {"batch_size": 250, "n_sampled_labels": 2000}),
        (9_100, {"n_sampled_labels": 2000, "optimizer_state": "half"}),
        (8_600, {"batch_size": 250, "n_sampled_labels": 2000, "optimizer_state": "half"}),
    ],
)
def test_no_more_is_lowered_than_it_takes_and_in_order(available: int, lowered: dict[str, Any]):
    plan = _planned(available)
    assert {name: after for name, (_, after) in plan.lowered.items()} == lowered
    assert _cost(plan.model, plan.training) <= available
    assert [name for name in ORDER if name in plan.lowered] == list(plan.lowered)
    # One rung more of any would not fit.
    for name, (before, _) in plan.lowered.items():
        raised = AUTO | {other: after for other, (_, after) in plan.lowered.items()} | {name: before}
        assert _cost(*_resolve(raised)) > available


def test_the_model_is_lowered_only_once_training_cannot_be():
    plan = _planned(6000)
    assert plan.training.optimizer_state == "half"
    assert plan.model.n_latent < 300
    assert plan.model.n_inducing == 400
    assert _planned(4000).model.n_inducing < 400


def test_what_was_given_is_never_lowered():
    given = {"batch_size": 400, "n_latent": 200}
    plan = _planned(4500, **given)
    assert (plan.training.batch_size, plan.model.n_latent) == (400, 200)
    assert plan.lowered.keys() == {"n_sampled_labels", "optimizer_state", "n_inducing"}
    everything = given | {"n_sampled_labels": 100, "optimizer_state": "full", "n_inducing": 100}
    with pytest.raises(MemoryPlanError, match="lower n_latent"):
        _planned(4500, **everything)
    with pytest.raises(MemoryPlanError):
        _planned(10)


def test_functions_of_their_own_stay_as_many_as_there_are_classes():
    def resolve(params: dict[str, Any]) -> tuple[ModelSettings, TrainingSettings]:
        model, training = _resolve(params)
        return replace(model, mixing="identity", n_labels=300), training

    plan = plan_within(5500, AUTO, resolve=resolve, needed=_cost, advice="")
    assert plan.model.n_latent == 300
    assert "n_latent" not in plan.lowered


def test_a_line_says_what_was_lowered():
    text = described(_planned(8600), 8192 << 20)
    assert text == (
        "to fit into 8.0 GB of memory, lowered batch_size from 500 to 250, n_sampled_labels from all to 2000, "
        "optimizer_state from full to half"
    )


# What is left of a limit


class _Process:
    def memory_info(self) -> Any:
        class Info:
            rss = 3 << 30

        return Info


def test_what_is_held_already_counts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory.psutil, "Process", _Process)
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 40)
    assert 4.5 * 2**30 < memory_left(8 << 30) <= (5 << 30) - (128 << 20)
    assert memory_left(8 << 30, 2) == 2 * memory_left(8 << 30)
    with pytest.raises(MemoryPlanError, match=r"alone need 3\.12 GB, and max_memory is 3\.00 GB: raise it"):
        memory_left(3 << 30)
    assert memory_left(None) == 1 << 40
    monkeypatch.setattr(memory, "available_memory", lambda: 1000)
    assert memory_left(8 << 30) == 1000


# Estimators


def _limited(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("extremegp.estimators.fitting.memory_left", lambda limit, n_processes: size)


def test_an_estimator_lowers_says_so_and_remembers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    _limited(monkeypatch, 800_000)
    options = {"n_inducing": "auto", "batch_size": "auto", "n_latent": "auto"}
    x, y = np.tile(X, (30, 1)), np.tile(Y, (30, 1))
    classifier = small_classifier(**options, verbose=True, max_memory="1G").fit(x, y)
    assert "n_inducing" in classifier.lowered_
    assert classifier.settings_.n_inducing == classifier.lowered_["n_inducing"][1] < 400
    assert "GB of memory, lowered " in capsys.readouterr().err
    small_classifier(**options, max_memory="1G").fit(x, y)
    assert capsys.readouterr().err == ""
    with pytest.raises(MemoryPlanError, match="lower n_inducing"):
        small_classifier(n_inducing=400, batch_size=400).fit(x, y)
    monkeypatch.undo()
    assert small_classifier(**options, max_memory="64G").fit(X, Y).lowered_ == {}


def test_sequences_are_lowered_in_their_batches_and_their_random_features(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    x, y = sticky(300)
    options = {"batch_size": "auto", "n_random_features": "auto", "epochs": 1, "max_memory": "1G", "verbose": True}
    _limited(monkeypatch, 3_000_000)
    tagger = small_tagger(**options).fit(x, y)
    assert list(tagger.lowered_) == ["batch_size", "n_random_features"]
    assert tagger.lowered_["batch_size"] == (300, 37)
    before, after = tagger.lowered_["n_random_features"]
    assert before == 1000
    assert tagger.settings_.n_random_features == after < 1000
    assert "GB of memory, lowered batch_size from 300 to 37, n_random_features from 1000 to" in capsys.readouterr().err
    _limited(monkeypatch, 30_000_000)
    assert small_tagger(**options, weight_covariance="factorised").fit(x, y).lowered_.keys() == {"batch_size"}
    # A matrix of all weights takes more than their variances.
    assert small_tagger(**options).fit(x, y).lowered_.keys() == {"n_random_features"}
    _limited(monkeypatch, 100_000)
    with pytest.raises(MemoryPlanError, match="lower n_random_features, n_reduced, n_inducing or batch_size"):
        small_tagger(**options).fit(x, y)
    monkeypatch.undo()
    assert small_tagger(max_memory="64G").fit(x, y).lowered_ == {}
    with pytest.raises(MemoryPlanError, match=r"max_memory is 0\.00 GB"):
        small_tagger(max_memory=1000).fit(x, y)


def test_a_time_budget_plans_the_steps_on_sequences(monkeypatch: pytest.MonkeyPatch):
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock, gradients = Clock(), Steps.gradients

    def slow(self: Steps, step: Any, **options: int) -> Any:
        clock.now += 1.0
        return gradients(self, step, **options)

    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(Steps, "gradients", slow)
    tagger = small_tagger(epochs=100, time_budget=20.0)
    with pytest.warns(BudgetWarning, match="of 20 s is enough for 7.1 % of the training that these settings need"):
        tagger.fit(*sticky(12))
    last = tagger.history_[-1]
    # Of two steps an epoch; the plan is known from the start, so that the learning rate comes down to its end.
    assert 4 <= len(tagger.history_) <= 10
    assert last["seconds"] <= 20.0
    assert last["learning_rate"] < 0.3 * max(record["learning_rate"] for record in tagger.history_)


def test_classes_take_a_limit_too():
    codes = Y.argmax(axis=1)
    assert MultiClassGPClassifier(n_inducing=5, epochs=1, max_memory="64G", verbose=False).fit(X, codes).lowered_ == {}
    with pytest.raises(MemoryPlanError, match=r"max_memory is 0\.00 GB"):
        MultiClassGPClassifier(max_memory=1000, verbose=False).fit(X, codes)
    for kind in (MultiClassGPClassifier, MultiLabelGPClassifier):
        with pytest.raises(SettingsError, match="max_memory must be"):
            kind(max_memory="lots").check_params()


_RUN = """
import resource, sys
import numpy as np, scipy.sparse as sp
from extremegp import MultiLabelGPClassifier
limit, n_labels, checkpoint = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(0)
x = sp.csr_matrix(
    (rng.random(200_000).astype(np.float32), (np.repeat(np.arange(5000), 40), rng.integers(20_000, size=200_000))),
    (5000, 20_000),
)
columns = (n_labels ** rng.random((5000, 5))).astype(np.int64) - 1
y = sp.csr_matrix((np.ones(25_000, np.float32), (np.repeat(np.arange(5000), 5), columns.ravel())), (5000, n_labels))
y.data[:] = 1
model = MultiLabelGPClassifier(
    epochs=1, max_memory=limit, checkpoint=checkpoint, checkpoint_seconds=0.5, random_state=0, verbose=False,
    label_sampling="hard", linear_term=False,
).fit(x, y)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, ",".join(model.lowered_))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "n_labels", "lowered"),
    [("1400M", 300_000, True), ("900M", 300_000, True), ("3G", 300_000, False), ("900M", 31_000, True)],
)
def test_peak_memory_stays_below_the_limit(limit: str, n_labels: int, lowered: bool, tmp_path: Any):
    command = [sys.executable, "-c", _RUN, limit, str(n_labels), str(tmp_path / "c")]
    # The second time it resumes, and holds what it reads besides the model.
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        peak, *names = done.stdout.split()
        assert int(peak) <= (memory_limit(limit) or 0)
        assert bool(names) is lowered
