from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.models import random_inputs, random_labels, randomise
from tests.watching import WideTensors

from extremegp.engine.batch import Batch
from extremegp.engine.latents import DeepRandomFeatures, Latents, LinearFunctions
from extremegp.engine.latents.random_features import FREQUENCIES
from extremegp.engine.likelihoods import BernoulliLabels, LinearChain
from extremegp.engine.mixing import IdentityMixing
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.engine.sparse import SparseRows
from extremegp.errors import ExtremeGPError, ModelFormatError
from extremegp.settings.model import ModelSettings
from extremegp.storage.tensors import read_tensors, write_tensors
from extremegp.training import NoReporter, TrainingInterrupted, TrainingSettings, hard_labels, train
from extremegp.training import loop as module
from extremegp.training.loop import TrainingDivergedError
from extremegp.training.steps import Steps

N, D, K, P, M = 23, 5, 4, 2, 3
SETTINGS = TrainingSettings(epochs=4, batch_size=6, learning_rate=0.05, seed=3)
STEPS_PER_EPOCH = 4


def _data() -> tuple[scipy.sparse.csr_matrix, scipy.sparse.csr_matrix]:
    x, y = random_inputs(N, D).astype(np.float32), random_labels(N, K).astype(np.float32)
    return scipy.sparse.csr_matrix(x), scipy.sparse.csr_matrix(y)


def _model(**changes: Any) -> VariationalModel:
    sizes: dict[str, Any] = {"n_features": D, "n_labels": K, "n_latent": P, "n_inducing": M, "kernel": "ard+linear"}
    model = ModelSettings(**{**sizes, **changes}).build()
    model.start(TrainingData(*_data(), np.random.default_rng(0)))
    return model


@torch.no_grad()
def _bound_on(model: VariationalModel, data: tuple[scipy.sparse.csr_matrix, scipy.sparse.csr_matrix]) -> float:
    dtype = model.mixing.bias.dtype
    return float(model.elbo(Batch(*(SparseRows.from_scipy(matrix, dtype=dtype) for matrix in data))).bound)


def _bound(model: VariationalModel) -> float:
    return _bound_on(model, _data())


class _Recorder(NoReporter):
    """Counts what it is told; may act at one step."""

    def __init__(self, at: int = -1, act: Callable[[], None] = lambda: None) -> None:
        self.steps: list[tuple[int, int]] = []
        self.epochs: list[dict[str, float]] = []
        self.closed = 0
        self.at, self.act = at, act

    def step(self, step: int, total_steps: int, elbo: float) -> None:
        self.steps.append((step, total_steps))
        if step == self.at:
            self.act()

    def epoch(self, record: dict[str, float]) -> None:
        self.epochs.append(record)

    def close(self) -> None:
        self.closed += 1


def _train(model: VariationalModel, settings: TrainingSettings = SETTINGS, **options: Any) -> list[dict[str, float]]:
    return train(model, *_data(), settings, **{"reporter": NoReporter(), **options})


def _without_seconds(history: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in history]


def _assert_equal(first: torch.nn.Module, second: torch.nn.Module) -> None:
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


@pytest.mark.parametrize("changes", [{}, {"posterior": "full-u"}, {"linear_term": True, "learn_inducing": False}])
def test_training_raises_the_bound(changes: dict[str, Any]):
    model = _model(**changes)
    before = _bound(model)
    history = _train(model, replace(SETTINGS, epochs=20))
    assert _bound(model) > before + 1
    assert history[-1]["elbo"] > history[0]["elbo"]


def test_dense_inputs_train_to_the_same_model():
    sparse, dense = _model(), _model()
    _train(sparse)
    x, y = _data()
    train(dense, x.toarray(), y, SETTINGS, reporter=NoReporter())
    for name, tensor in sparse.state_dict().items():
        torch.testing.assert_close(dense.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)


def test_history_and_reports_cover_every_step_and_epoch():
    recorder = _Recorder()
    model = _model()
    history = _train(model, reporter=recorder)
    total = SETTINGS.epochs * STEPS_PER_EPOCH
    assert recorder.steps == [(step, total) for step in range(1, total + 1)]
    assert recorder.epochs == history
    assert recorder.closed == 1
    assert [record["epoch"] for record in history] == [1, 2, 3, 4]
    assert all(record.keys() == {"epoch", "elbo", "kl", "learning_rate", "seconds"} for record in history)
    seconds = [record["seconds"] for record in history]
    assert seconds == sorted(seconds)
    assert all(0 < record["learning_rate"] <= SETTINGS.learning_rate for record in history)


def test_the_recorded_bound_is_the_mean_of_the_batches(monkeypatch: pytest.MonkeyPatch):
    # A learning rate of almost zero leaves the model as it is; batches of equal size then average to the full bound.
    model = _model()
    before = _bound(model)
    settings = replace(SETTINGS, epochs=1, batch_size=1, learning_rate=1e-12, natural_step=1e-12)
    assert _train(model, settings)[0]["elbo"] == pytest.approx(before, rel=1e-4)


def test_equal_seeds_give_equal_models_and_others_do_not():
    first, second, other = _model(), _model(), _model()
    _train(first)
    _train(second)
    _train(other, replace(SETTINGS, seed=4))
    _assert_equal(first, second)
    assert not torch.equal(first.mixing.loadings, other.mixing.loadings)


def test_inducing_inputs_stay_at_unit_norm_and_fixed_parameters_stay_put():
    model = _model()
    _train(model)
    torch.testing.assert_close(model.latents.inducing().norm(dim=1), torch.ones(M))
    fixed = _model(learn_inducing=False, kernel="linear")
    before = {name: tensor.clone() for name, tensor in fixed.state_dict().items()}
    _train(fixed)
    changed = {name for name, tensor in fixed.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name, parameter in fixed.named_parameters() if parameter.requires_grad}


def test_kl_weight_zero_lets_the_kl_grow():
    bound, free = _model(), _model()
    kl_of_bound = _train(bound, replace(SETTINGS, epochs=30))[-1]["kl"]
    kl_of_free = _train(free, replace(SETTINGS, epochs=30, kl_weight=0.0))[-1]["kl"]
    assert kl_of_free > kl_of_bound


class _Scores:
    """Validation scores that depend on nothing but the epoch, so that a resumed run must count epochs right."""

    def __init__(self, history_length: Callable[[], int], scores: list[float]) -> None:
        self.history_length, self.scores = history_length, scores

    def __call__(self) -> float:
        return self.scores[self.history_length()]


def _interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def _validated_run(
    model: VariationalModel, checkpoint: Path | None, interrupt_at: list[int], settings: TrainingSettings
) -> list[dict[str, float]]:
    """Train with interruptions at some steps, resuming each time; the validation score is a function of the model."""

    def score() -> float:
        # Falls and rises again over the epochs, so that the best is neither the first nor the last.
        return float(-(model.mixing.bias.detach() - torch.linspace(-1.4, -0.2, K)).abs().sum())

    for at in interrupt_at:
        with pytest.raises(TrainingInterrupted) as caught:
            _train(
                model,
                settings,
                validate=score,
                checkpoint=checkpoint,
                fingerprint="f",
                reporter=_Recorder(at, _interrupt),
            )
        assert caught.value.saved == str(checkpoint)
        # Whatever is in memory is gone in a new process.
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.5)
    return _train(model, settings, validate=score, checkpoint=checkpoint, fingerprint="f")


@pytest.mark.parametrize("patience", [None, 1])
@pytest.mark.parametrize("interrupt_at", [[1], [3], [4], [5], [8], [15], [16], [2, 6, 12], [4, 8, 12, 16]], ids=str)
def test_a_resumed_run_ends_at_the_same_bits(interrupt_at: list[int], patience: int | None, tmp_path: Path):
    settings = replace(SETTINGS, patience=patience)
    whole, resumed = _model(), _model()
    history = _validated_run(whole, None, [], settings)
    last = STEPS_PER_EPOCH * len(history)
    again = _validated_run(resumed, tmp_path / "run.ckpt", [at for at in interrupt_at if at <= last], settings)
    assert _without_seconds(again) == _without_seconds(history)
    _assert_equal(whole, resumed)


def test_a_checkpoint_is_written_every_few_seconds_without_being_asked(tmp_path: Path):
    path = tmp_path / "run.ckpt"
    seen = []
    recorder = _Recorder(3, lambda: seen.append(path.exists()))
    whole, crashed = _model(), _model()
    _train(whole)
    settings = replace(SETTINGS, checkpoint_seconds=0.0)

    def crash() -> None:
        seen.append(path.exists())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _train(crashed, settings, checkpoint=path, reporter=_Recorder(7, crash))
    _train(crashed, settings, checkpoint=path, reporter=recorder)
    assert seen == [True]
    _assert_equal(whole, crashed)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path):
    path = tmp_path / "run.ckpt"
    with pytest.raises(TrainingInterrupted):
        _train(_model(), checkpoint=path, fingerprint="f", reporter=_Recorder(2, _interrupt))
    with pytest.raises(ModelFormatError, match="other data or settings"):
        _train(_model(), checkpoint=path, fingerprint="g")


def test_an_interrupt_without_checkpoint_says_that_nothing_was_saved():
    recorder = _Recorder(2, _interrupt)
    with pytest.raises(TrainingInterrupted, match="nothing was saved") as caught:
        _train(_model(), reporter=recorder)
    assert caught.value.saved is None
    assert recorder.steps[-1][0] == 2
    assert recorder.closed == 1


def _scored(scores: list[float], patience: int | None = None) -> tuple[list[dict[str, float]], list[torch.Tensor], Any]:
    """Train with these scores; gives the history, the biases at every validation, and the final bias."""
    model, biases = _model(), []

    def score() -> float:
        biases.append(model.mixing.bias.detach().clone())
        return scores[len(biases) - 1]

    history = _train(model, replace(SETTINGS, patience=patience), validate=score)
    return history, biases, model.mixing.bias.detach()


@pytest.mark.parametrize(
    ("scores", "best"), [([0.1, 0.9, 0.2, 0.3], 1), ([0.4, 0.3, 0.2, 0.1], 0), ([1, 2, 3, 4], 3), ([5, 5, 5, 5], 0)]
)
def test_validation_keeps_the_best_epoch_the_first_of_equals(scores: list[float], best: int):
    history, biases, final = _scored(scores)
    assert [record["validation_P@1"] for record in history] == scores
    assert torch.equal(final, biases[best])
    assert not torch.equal(biases[0], biases[1])


@pytest.mark.parametrize(
    ("scores", "patience", "epochs"),
    [([0.5, 0.4, 0.6, 0.1], 1, 2), ([0.5, 0.4, 0.6, 0.1], 2, 4), ([0.5, 0.4, 0.3, 0.9], 2, 3), ([1, 2, 3, 4], 1, 4)],
)
def test_patience_stops_after_so_many_epochs_without_a_better_score(scores: list[float], patience: int, epochs: int):
    assert len(_scored(scores, patience)[0]) == epochs


def test_a_bound_that_is_not_finite_is_reported():
    model = _model()
    with torch.no_grad():
        model.mixing.bias[0] = float("nan")
    recorder = _Recorder()
    with pytest.raises(TrainingDivergedError, match="lower learning_rate"):
        _train(model, reporter=recorder)
    assert recorder.steps == []
    assert recorder.closed == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_covariance_that_is_not_finite_is_reported_as_divergence(value: float):
    model = _model()
    with torch.no_grad():
        model.latents.kernel.log_weights.fill_(value)
    with pytest.raises(TrainingDivergedError) as caught:
        _train(model)
    assert isinstance(caught.value, ExtremeGPError)
    assert "\n" not in str(caught.value)


class _Clock:
    """Time that passes only in steps of the optimiser."""

    def __init__(self, seconds_per_step: float) -> None:
        self.now, self.seconds_per_step = 0.0, seconds_per_step

    def monotonic(self) -> float:
        return self.now


def _with_clock(monkeypatch: pytest.MonkeyPatch, seconds_per_step: float) -> _Clock:
    clock = _Clock(seconds_per_step)
    gradients = Steps.gradients

    def slow(self: Any, batch: Any, **options: int) -> Any:
        clock.now += clock.seconds_per_step
        return gradients(self, batch, **options)

    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(Steps, "gradients", slow)
    return clock


def test_a_time_budget_shortens_the_plan_so_that_it_fits(monkeypatch: pytest.MonkeyPatch):
    _with_clock(monkeypatch, 1.0)
    recorder = _Recorder()
    history = _train(_model(), replace(SETTINGS, time_budget=10.0), reporter=recorder)
    steps, total = recorder.steps[-1]
    assert steps == total
    assert 5 <= total <= 10
    # The plan is known from the start: the learning rate comes down to its end within the budget.
    assert history[-1]["learning_rate"] < 0.3 * SETTINGS.learning_rate
    assert history[-1]["epoch"] == np.ceil(total / STEPS_PER_EPOCH)


def test_a_generous_budget_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    unlimited, limited = _model(), _model()
    history = _train(unlimited)
    _with_clock(monkeypatch, 1.0)
    again = _train(limited, replace(SETTINGS, time_budget=1000.0))
    assert _without_seconds(again) == _without_seconds(history)
    _assert_equal(unlimited, limited)


def test_a_machine_that_slows_down_still_stops_at_the_budget(monkeypatch: pytest.MonkeyPatch):
    clock = _with_clock(monkeypatch, 1.0)

    def slow_down() -> None:
        clock.seconds_per_step = 4.0

    recorder = _Recorder(1, slow_down)
    history = _train(_model(), replace(SETTINGS, time_budget=12.0), reporter=recorder)
    steps, total = recorder.steps[-1]
    assert steps < total
    assert history[-1]["seconds"] <= 12.0 + 4.0
    assert len(history) == 1


def test_even_the_smallest_budget_makes_one_step(monkeypatch: pytest.MonkeyPatch):
    _with_clock(monkeypatch, 1.0)
    recorder = _Recorder()
    history = _train(_model(), replace(SETTINGS, time_budget=0.1), reporter=recorder)
    assert len(recorder.steps) == len(history) == 1


@pytest.mark.parametrize("interrupt_at", [[3], [5, 9]], ids=str)
def test_rows_shuffled_in_blocks_resume_to_the_same_bits_and_are_another_order(interrupt_at: list[int], tmp_path: Path):
    settings = replace(SETTINGS, shuffle_rows=2)
    whole, resumed, other = _model(), _model(), _model()
    history = _validated_run(whole, None, [], settings)
    again = _validated_run(resumed, tmp_path / "run.ckpt", interrupt_at, settings)
    assert _without_seconds(again) == _without_seconds(history)
    _assert_equal(whole, resumed)
    _validated_run(other, None, [], SETTINGS)
    assert not torch.equal(other.mixing.loadings, whole.mixing.loadings)


def test_what_goes_wrong_in_reading_a_batch_is_raised_by_training():
    class Broken(np.ndarray):
        reads = 0

        def __getitem__(self, rows: Any) -> Any:
            Broken.reads += 1
            if Broken.reads == 6:
                raise OSError("the disk is gone")
            return np.asarray(super().__getitem__(rows))

    x, y = _data()
    recorder = _Recorder()
    with pytest.raises(OSError, match="the disk is gone"):
        train(_model(), x.toarray().view(Broken), y, SETTINGS, reporter=recorder)
    # Every step whose batch was read is made.
    assert recorder.steps[-1][0] == 5
    assert recorder.closed == 1


# Sampled labels

WIDE = 300
SAMPLED = replace(SETTINGS, n_sampled_labels=20)


def _wide_data(n_labels: int = WIDE) -> tuple[scipy.sparse.csr_matrix, scipy.sparse.csr_matrix]:
    """Labels of which most batches have few."""
    y = random_labels(N, n_labels, density=2.0 / n_labels).astype(np.float32)
    return _data()[0], scipy.sparse.csr_matrix(y)


def _wide_model(n_labels: int = WIDE, *, propensities: bool = False) -> VariationalModel:
    model = ModelSettings(n_features=D, n_labels=n_labels, n_latent=P, n_inducing=M, kernel="ard").build()
    model.start(TrainingData(*_wide_data(n_labels), np.random.default_rng(0)))
    if propensities:
        model.likelihood = BernoulliLabels(torch.linspace(0.2, 1.0, n_labels))
    return model


def _train_wide(model: VariationalModel, settings: TrainingSettings, **options: Any) -> list[dict[str, float]]:
    return train(model, *_wide_data(model.mixing.n_utilities), settings, **{"reporter": NoReporter(), **options})


@pytest.mark.parametrize("propensities", [False, True])
def test_a_sample_of_every_label_trains_to_the_model_of_full_enumeration(propensities: bool):
    full, sampled = (_wide_model(propensities=propensities).double() for _ in range(2))
    history = _train_wide(full, replace(SETTINGS, epochs=8))
    again = _train_wide(sampled, replace(SETTINGS, epochs=8, n_sampled_labels=WIDE))
    for name, tensor in full.state_dict().items():
        torch.testing.assert_close(sampled.state_dict()[name], tensor, rtol=1e-6, atol=1e-8)
    assert [record["elbo"] for record in again] == pytest.approx([record["elbo"] for record in history], rel=1e-9)


@pytest.mark.parametrize("sampling", ["uniform", "frequency"])
def test_training_on_sampled_labels_raises_the_bound_of_all(sampling: str):
    model = _wide_model()
    before = _bound_on(model, _wide_data())
    _train_wide(model, replace(SAMPLED, epochs=40, label_sampling=sampling))
    assert _bound_on(model, _wide_data()) > before + 10


@pytest.mark.parametrize("sampling", ["uniform", "frequency"])
def test_the_recorded_bound_is_an_unbiased_estimate(sampling: str):
    model = _wide_model().double()
    exact = _bound_on(model, _wide_data())
    settings = replace(
        SAMPLED, epochs=100, batch_size=1, learning_rate=1e-12, natural_step=1e-12, label_sampling=sampling
    )
    bounds = [record["elbo"] for record in _train_wide(model, settings)]
    error = np.std(bounds, ddof=1) / np.sqrt(len(bounds))
    assert 1e-3 < error < 0.01 * abs(exact)
    assert abs(np.mean(bounds) - exact) < 4 * error


@pytest.mark.parametrize("interrupt_at", [[1], [5], [2, 6, 12]], ids=str)
def test_a_run_on_sampled_labels_resumes_to_the_same_bits(interrupt_at: list[int], tmp_path: Path):
    path = tmp_path / "run.ckpt"
    whole, resumed = (_wide_model(propensities=True) for _ in range(2))

    def validated(model: VariationalModel, **options: Any) -> list[dict[str, float]]:
        def score() -> float:
            return float(-(model.mixing.loadings.detach().square().mean() - 0.502).abs())

        return _train_wide(model, SAMPLED, validate=score, **options)

    history = validated(whole)
    assert len({record["validation_P@1"] for record in history}) == len(history)
    for at in interrupt_at:
        with pytest.raises(TrainingInterrupted):
            validated(resumed, checkpoint=path, reporter=_Recorder(at, _interrupt))
        with torch.no_grad():
            for parameter in resumed.parameters():
                parameter.fill_(0.5)
    again = validated(resumed, checkpoint=path)
    assert _without_seconds(again) == _without_seconds(history)
    _assert_equal(whole, resumed)


def test_equal_seeds_sample_equal_labels_and_others_do_not():
    first, second, other = (_wide_model() for _ in range(3))
    _train_wide(first, SAMPLED)
    _train_wide(second, SAMPLED)
    _train_wide(other, replace(SAMPLED, seed=4))
    _assert_equal(first, second)
    assert not torch.equal(first.mixing.loadings, other.mixing.loadings)


def test_a_step_moves_the_rows_of_its_labels_and_no_others():
    model = _wide_model()
    before = model.mixing.loadings.detach().clone()
    moved = []

    def look() -> None:
        gradient = model.mixing.loadings.grad
        assert gradient.is_sparse
        moved.append((model.mixing.loadings.detach() != before).any(dim=1).nonzero().squeeze(1))
        assert torch.equal(moved[0], gradient.coalesce().indices()[0])

    _train_wide(model, replace(SAMPLED, epochs=1), reporter=_Recorder(1, look))
    assert SAMPLED.n_sampled_labels <= len(moved[0]) < WIDE / 3


def test_nothing_as_long_as_the_labels_is_made_in_a_step_but_the_moments_in_the_first():
    n_labels = 20_000
    model = _wide_model(n_labels, propensities=True)
    counts = []
    mode = WideTensors(n_labels, [*model.parameters(), *model.buffers()])

    class Counting(NoReporter):
        def step(self, step: int, total_steps: int, elbo: float) -> None:
            counts.append(len(mode.made))

    with mode:
        _train_wide(model, SAMPLED, reporter=Counting())
    # Two moments and the steps, of loadings and biases.
    assert counts == [6] * (SETTINGS.epochs * STEPS_PER_EPOCH), mode.made


@pytest.mark.parametrize("state", ["full", "half"])
def test_hard_labels_make_nothing_as_long_as_the_labels_but_where_they_are_clustered(state: str):
    n_labels = 20_000
    model = _wide_model(n_labels)
    counts = []
    mode = WideTensors(n_labels, [*model.parameters(), *model.buffers()])

    class Counting(NoReporter):
        def step(self, step: int, total_steps: int, elbo: float) -> None:
            counts.append(len(mode.made))

    settings = replace(SAMPLED, label_sampling="hard", n_hard_labels=50, optimizer_state=state)
    with mode:
        _train_wide(model, settings, reporter=Counting())
    assert counts == counts[:1] * (SETTINGS.epochs * STEPS_PER_EPOCH), mode.made


@pytest.mark.parametrize("interrupt_at", [[1], [3], [5], [4, 13]], ids=str)
@pytest.mark.parametrize("state", ["full", "half"])
def test_a_run_on_hard_labels_resumes_to_the_same_bits(
    interrupt_at: list[int], state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hard_labels, "_REFRESH", 4)
    settings = replace(SAMPLED, n_sampled_labels=5, label_sampling="hard", n_hard_labels=4, optimizer_state=state)
    monkeypatch.setattr(hard_labels, "_CANDIDATES", 2)
    path, (whole, resumed) = tmp_path / "run.ckpt", (_wide_model(20) for _ in range(2))
    _train_wide(whole, settings)
    for at in interrupt_at:
        with pytest.raises(TrainingInterrupted):
            _train_wide(resumed, settings, checkpoint=path, reporter=_Recorder(at, _interrupt))
        with torch.no_grad():
            for parameter in resumed.parameters():
                parameter.fill_(0.5)
    _train_wide(resumed, settings, checkpoint=path)
    _assert_equal(whole, resumed)


def test_clusters_that_do_not_fit_are_refused(tmp_path: Path):
    path, settings = tmp_path / "run.ckpt", replace(SAMPLED, label_sampling="hard")
    with pytest.raises(TrainingInterrupted):
        _train_wide(_wide_model(), settings, checkpoint=path, reporter=_Recorder(2, _interrupt))
    tensors, header = read_tensors(path)
    clusters, centres = tensors["hard.clusters"], tensors["hard.centres"]
    for changes in (
        {"hard.clusters": clusters[1:]},
        {"hard.clusters": clusters.long()},
        {"hard.clusters": clusters + len(centres)},
        {"hard.clusters": clusters - len(centres)},
        {"hard.centres": centres[:, 1:]},
        {"hard.centres": centres * torch.nan},
        {"hard.other": centres},
    ):
        write_tensors(path, tensors | changes, header)
        with pytest.raises(ModelFormatError, match=r"run.ckpt: the clusters of labels"):
            _train_wide(_wide_model(), settings, checkpoint=path)


def test_moments_in_bfloat16_end_within_half_a_percent_of_the_bound_of_full_ones():
    bounds = []
    for state in ("full", "half"):
        model = _wide_model()
        _train_wide(model, replace(SAMPLED, epochs=150, n_sampled_labels=100, optimizer_state=state))
        bounds.append(_bound_on(model, _wide_data()))
    assert bounds[0] > _bound_on(_wide_model(), _wide_data()) + 10
    assert bounds[1] == pytest.approx(bounds[0], rel=0.005)


# Sequences

LENGTHS = np.array([3, 1, 4, 2, 5, 2, 1, 3])
TOKENS, UNUSED = int(LENGTHS.sum()), 3
OF_SEQUENCES = TrainingSettings(epochs=4, batch_size=2, learning_rate=0.05, seed=3, n_draws=3)
SEQUENCE_STEPS = OF_SEQUENCES.epochs * 4


def _sequence_data() -> tuple[scipy.sparse.csr_matrix, scipy.sparse.csr_matrix]:
    """Tokens whose first feature is their number, from 1 on, and whose last features are never used; their labels."""
    x = random_inputs(TOKENS, D + UNUSED).astype(np.float32)
    x[:, 0], x[:, D:] = np.arange(1, TOKENS + 1), 0.0
    y = np.eye(K, dtype=np.float32)[np.random.default_rng(0).integers(K, size=TOKENS)]
    return scipy.sparse.csr_matrix(x), scipy.sparse.csr_matrix(y)


def _chain(latents: Latents, **options: Any) -> VariationalModel:
    return VariationalModel(
        latents, IdentityMixing(torch.zeros(K), torch.zeros(K), bias_variance=4.0), LinearChain(K, **options)
    )


def _sequence_model(**changes: Any) -> VariationalModel:
    settings = {"n_layers": 2, "n_random": 4, "n_reduced": 3, "frequencies": "var-fixed", **changes}
    latents = DeepRandomFeatures(D + UNUSED, K, **settings)
    latents.start_at(SparseRows.from_scipy(_sequence_data()[0]), torch.Generator().manual_seed(0))
    return _chain(latents)


def _train_sequences(
    model: VariationalModel, settings: TrainingSettings = OF_SEQUENCES, **options: Any
) -> list[dict[str, float]]:
    return train(model, *_sequence_data(), settings, **{"reporter": NoReporter(), "lengths": LENGTHS, **options})


class _Watched(VariationalModel):
    """Remembers what it is given."""

    def __init__(self, model: VariationalModel) -> None:
        super().__init__(model.latents, model.mixing, model.likelihood)
        self.given: list[Batch] = []

    def elbo(self, batch: Batch, conditioned: Any = None) -> Any:
        self.given.append(batch)
        return super().elbo(batch, conditioned)


def test_batches_are_of_whole_sequences_and_an_epoch_has_every_token_once_in_an_order_of_its_own():
    model, (_, y) = _Watched(_sequence_model()), _sequence_data()
    _train_sequences(model, replace(OF_SEQUENCES, batch_size=3))
    ends = np.cumsum(LENGTHS)
    whole = [tuple(range(end - length, end)) for end, length in zip(ends, LENGTHS, strict=True)]
    per_epoch = 3
    assert len(model.given) == per_epoch * OF_SEQUENCES.epochs
    orders = []
    for epoch in range(OF_SEQUENCES.epochs):
        found = []
        for batch in model.given[epoch * per_epoch : (epoch + 1) * per_epoch]:
            tokens = batch.x.values[batch.x.columns == 0].long() - 1
            found += [tuple(part.tolist()) for part in tokens.split(batch.lengths.tolist())]
            assert batch.y.columns.tolist() == y.indices[tokens].tolist()
            assert batch.rows.tolist() == tokens.tolist()
            # A sequence stands for others whatever its length.
            assert batch.scale == pytest.approx(len(LENGTHS) / len(batch.lengths))
        assert sorted(found) == sorted(whole)
        orders.append(found)
    assert orders[0] != orders[1]


def test_sequences_in_batches_raise_the_bound():
    history = _train_sequences(_sequence_model(), replace(OF_SEQUENCES, epochs=60))
    assert history[-1]["elbo"] > history[0]["elbo"] + 3


def test_the_recorded_bound_of_sequences_is_the_mean_of_the_batches():
    model = _chain(LinearFunctions(D + UNUSED, K, posterior="point"), transitions="point")
    randomise(model, scale=0.1)
    x, y = (SparseRows.from_scipy(matrix) for matrix in _sequence_data())
    with torch.no_grad():
        whole = float(model.elbo(Batch(x, y, lengths=torch.from_numpy(LENGTHS))).bound)
    for batch_size in (1, 2, 4, 8):
        settings = replace(OF_SEQUENCES, epochs=1, batch_size=batch_size, learning_rate=1e-12)
        assert _train_sequences(model, settings)[0]["elbo"] == pytest.approx(whole, rel=1e-4)


def test_one_draw_is_taken_in_the_first_half_of_the_steps_and_then_as_many_as_asked_for():
    model = _Watched(_sequence_model())
    _train_sequences(model)
    n_draws = [batch.n_draws for batch in model.given]
    assert n_draws == [1] * (SEQUENCE_STEPS // 2) + [3] * (SEQUENCE_STEPS // 2)
    seeds = [batch.seed for batch in model.given]
    assert len(set(seeds)) == SEQUENCE_STEPS


@pytest.mark.parametrize("frequencies", FREQUENCIES)
def test_frequencies_and_hyperparameters_keep_still_until_their_share_of_the_steps(frequencies: str):
    model = _sequence_model(frequencies=frequencies)
    starts = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    noise = [layer.drawn().clone() for layer in model.latents.layers if layer.fixed]
    moved: dict[str, int] = {}

    class Watching(NoReporter):
        def step(self, step: int, total_steps: int, elbo: float) -> None:
            for name, parameter in model.named_parameters():
                if name not in moved and not torch.equal(parameter, starts[name]):
                    moved[name] = step

    settings = replace(OF_SEQUENCES, frequencies_from=0.5, hyperparameters_from=0.25)
    _train_sequences(model, settings, reporter=Watching())
    first = {
        name: round(0.5 * SEQUENCE_STEPS) + 1
        if ".layers." in name and name.endswith(("q_mean", "log_ratio"))
        else round(0.25 * SEQUENCE_STEPS) + 1
        if ".layers." in name
        else 1
        for name in starts
    }
    assert moved == first
    for before, layer in zip(noise, model.latents.layers, strict=False):
        assert torch.equal(layer.drawn(), before)


@pytest.mark.parametrize("interrupt_at", [[1], [8], [9], [3, 10, 15]], ids=str)
@pytest.mark.parametrize("frequencies", FREQUENCIES)
def test_a_run_on_sequences_resumes_to_the_same_bits(frequencies: str, interrupt_at: list[int], tmp_path: Path):
    path = tmp_path / "run.ckpt"
    settings = replace(OF_SEQUENCES, frequencies_from=0.5, hyperparameters_from=0.25)
    whole, resumed = (_sequence_model(frequencies=frequencies) for _ in range(2))
    history = _train_sequences(whole, settings)
    for at in interrupt_at:
        with pytest.raises(TrainingInterrupted):
            _train_sequences(resumed, settings, checkpoint=path, reporter=_Recorder(at, _interrupt))
        with torch.no_grad():
            for tensor in resumed.state_dict().values():
                tensor.fill_(0.5)
    again = _train_sequences(resumed, settings, checkpoint=path)
    assert _without_seconds(again) == _without_seconds(history)
    _assert_equal(whole, resumed)


def test_only_the_rows_of_the_reducer_whose_features_occur_move():
    model = _sequence_model()
    start = model.latents.reducer.detach().clone()

    def look() -> None:
        assert model.latents.reducer.grad.is_sparse

    _train_sequences(model, reporter=_Recorder(1, look))
    assert torch.equal(model.latents.reducer[D:], start[D:])
    assert (model.latents.reducer[:D] != start[:D]).all()


@pytest.mark.parametrize("n_reduced", [None, 3])
def test_sequences_of_dense_inputs_train_to_the_same_model(n_reduced: int | None):
    # Rows that a batch does not use move with their moments in dense inputs: then every batch must use all.
    settings = replace(OF_SEQUENCES, batch_size=len(LENGTHS))
    sparse, dense = (_sequence_model(n_reduced=n_reduced).double() for _ in range(2))
    x, y = _sequence_data()
    _train_sequences(sparse, settings)
    train(dense, x.toarray(), y, settings, reporter=NoReporter(), lengths=LENGTHS)
    for name, tensor in sparse.state_dict().items():
        torch.testing.assert_close(dense.state_dict()[name], tensor, rtol=1e-6, atol=1e-8)


def test_a_generous_budget_changes_nothing_for_sequences(monkeypatch: pytest.MonkeyPatch):
    unlimited, limited = _sequence_model(), _sequence_model()
    _train_sequences(unlimited)
    _with_clock(monkeypatch, 1.0)
    _train_sequences(limited, replace(OF_SEQUENCES, time_budget=1000.0))
    _assert_equal(unlimited, limited)
