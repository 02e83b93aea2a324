from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.models import randomise
from torch import nn
from torch.profiler import ProfilerActivity, profile

from extremegp.data import one_hot
from extremegp.engine.inducing import SparseInducingInputs
from extremegp.engine.likelihoods import BernoulliLabels
from extremegp.engine.part import TrainingData
from extremegp.errors import ExtremeGPError, MemoryPlanError
from extremegp.settings import memory as plan
from extremegp.settings.memory import available_memory, check_memory, training_memory
from extremegp.settings.model import ModelSettings
from extremegp.training import NoReporter, TrainingSettings, train


def _sizes(**changes: Any) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        "n_features": 1000,
        "n_labels": 500,
        "n_latent": 30,
        "n_inducing": 50,
        "n_rows": 200,
        "batch_size": 100,
        "n_stored": 10_000,
    }
    return {**sizes, **changes}


def _settings(sizes: dict[str, Any]) -> ModelSettings:
    names = {field.name for field in fields(ModelSettings)}
    return ModelSettings(**{"kernel": "ard+linear"} | {name: size for name, size in sizes.items() if name in names})


def _estimate(sizes: dict[str, Any]) -> int:
    of_model = {field.name for field in fields(ModelSettings)}
    return training_memory(_settings(sizes), **{name: size for name, size in sizes.items() if name not in of_model})


def test_a_plan_that_does_not_fit_is_refused_and_names_the_settings():
    with pytest.raises(MemoryPlanError, match=r"about 3\.0 GB and 2\.0 GB are free: lower n_inducing") as caught:
        check_memory(3 * 2**30, settings="n_inducing or n_latent", available=2 * 2**30)
    assert isinstance(caught.value, ExtremeGPError)
    assert isinstance(caught.value, MemoryError)
    check_memory(2 * 2**30, settings="nothing", available=2 * 2**30)


def test_what_is_free_is_measured_by_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan, "available_memory", lambda: 1000)
    check_memory(1000, settings="nothing")
    with pytest.raises(MemoryPlanError):
        check_memory(1001, settings="everything")


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [("max\n", "5", None), ("1000\n", "400\n", 600), ("10", "400", 0), (f"{2**60}", "0", None)],
)
def test_the_limit_of_a_control_group_counts(
    limit: str, used: str, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text(used)
    monkeypatch.setattr(plan, "_CGROUP", tmp_path)

    class Memory:
        available = 10**9

    monkeypatch.setattr(plan.psutil, "virtual_memory", Memory)
    assert available_memory() == (10**9 if expected is None else expected)


def test_without_control_groups_the_machine_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan, "_CGROUP", tmp_path / "none")
    assert available_memory() > 0


@pytest.mark.parametrize(
    "name", ["n_features", "n_labels", "n_latent", "n_inducing", "batch_size", "n_stored", "item_size"]
)
def test_every_size_costs_memory(name: str):
    sizes = _sizes(item_size=4)
    assert _estimate({**sizes, name: 2 * sizes[name]}) > _estimate(sizes)


@pytest.mark.parametrize(
    "changes",
    [
        {"posterior": "full"},
        {"posterior": "full-u"},
        {"posterior": "parsimonious"},
        {"kernel": "se-p-ell"},
        {"linear_term": True},
        {"propensity": True},
        {"n_mean_points": 200},
        {"n_mean_points": 200, "n_variance_points": 100},
    ],
    ids=str,
)
def test_what_is_larger_than_the_default_costs_memory(changes: dict[str, Any]):
    assert _estimate(_sizes(**changes)) > _estimate(_sizes())


def test_the_variance_of_a_mean_function_costs_no_features_of_all_rows():
    sizes = _sizes(n_mean_points=200, n_variance_points=100, n_rows=10**6)
    without = _estimate({**sizes, "n_variance_points": 0})
    assert without < _estimate(sizes) < without + 4 * 100 * 10**6 / 10


def test_a_function_for_each_class_costs_memory_in_proportion_to_the_classes():
    changes = {"mixing": "identity", "likelihood": "one-vs-each", "n_inducing": 20}
    few, many = (_estimate(_sizes(n_labels=k, n_latent=k, **changes)) for k in (10_000, 20_000))
    assert few < many < 2 * few


def test_a_network_of_many_features_costs_memory():
    wide = _sizes(n_features=10**6, inducing="sparse", support_size=20, likelihood="ar-softmax")
    network = _estimate({**wide, "local": "amortised"}) - _estimate(wide)
    assert network == pytest.approx(4 * 4 * 64 * 10**6, rel=1e-3)


def test_inducing_inputs_of_few_parameters_save_memory():
    wide = _sizes(n_features=10**6)
    for changes in ({"inducing": "subspace", "n_subspace": 5}, {"inducing": "sparse", "support_size": 20}):
        assert _estimate({**wide, **changes}) < _estimate(wide) / 3


def test_sampled_labels_save_the_gradient_of_the_others():
    wide = _sizes(n_labels=10**6, n_latent=300)
    sampled = {**wide, "labels_per_step": 2000}
    assert _estimate(wide) - _estimate(sampled) > 0.8 * 4 * wide["n_labels"] * wide["n_latent"]
    assert _estimate({**sampled, "labels_per_step": 3000}) > _estimate(sampled)


def _peak_bytes(sizes: dict[str, Any], labels_per_row: float, n_sampled: int | None) -> int:
    """Bytes that PyTorch holds at most while training, parameters included, by its own profiler."""
    rng = np.random.default_rng(0)
    n_rows = 2 * sizes["batch_size"]
    x = scipy.sparse.random(n_rows, sizes["n_features"], 0.01, format="csr", rng=rng, dtype=np.float32)
    density = labels_per_row / sizes["n_labels"]
    y = scipy.sparse.random(n_rows, sizes["n_labels"], density, format="csr", rng=rng, dtype=np.float32)
    if "likelihood" in sizes:
        y = one_hot(rng.integers(sizes["n_labels"], size=n_rows), sizes["n_labels"])
    y.data[:] = 1
    model = _settings(sizes).build()
    randomise(model, scale=0.01)
    if sizes.get("propensity"):
        model.likelihood = BernoulliLabels(torch.full((sizes["n_labels"],), 0.5))
    for module in model.modules():
        if isinstance(module, SparseInducingInputs):
            module.columns.copy_(torch.from_numpy(rng.integers(sizes["n_features"], size=module.columns.shape)))
    training = TrainingSettings(
        epochs=1, batch_size=sizes["batch_size"], learning_rate=1e-3, n_sampled_labels=n_sampled
    )
    return _peak_while(lambda: train(model, x, y, training, reporter=NoReporter()), model)


def _peak_while(run: Callable[[], Any], model: nn.Module) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    assert len(changes) > 100
    before = sum(part.numel() * part.element_size() for part in (*model.parameters(), *model.buffers()))
    return int(np.cumsum(changes).max()) + before


@pytest.mark.parametrize(
    "changes",
    [
        {"n_features": 50_000},
        {"n_labels": 20_000},
        {"n_labels": 20_000, "batch_size": 500, "propensity": True},
        {"n_features": 50_000, "inducing": "sparse", "support_size": 200, "batch_size": 500},
        {"n_features": 50_000, "inducing": "subspace", "n_subspace": 30},
        {"n_features": 20_000, "inducing": "subspace-basis", "n_subspace": 30},
        {"posterior": "parsimonious", "n_latent": 60},
        {"kernel": "se-p-ell", "n_latent": 100},
        {"n_latent": 100, "n_inducing": 150, "batch_size": 300, "posterior": "full"},
        {"n_latent": 10, "n_inducing": 400, "batch_size": 20, "posterior": "full"},
        {"n_features": 20_000, "n_inducing": 20, "linear_term": True},
        {"n_features": 300, "n_inducing": 400, "batch_size": 500},
        *({"likelihood": name, "n_labels": 2000} for name in ("softmax", "one-vs-each", "ar-softmax", "independent")),
        *(
            {"likelihood": name, "mixing": "identity", "n_labels": 2000, "n_latent": 2000}
            for name in ("softmax-mc", "one-vs-each", "probit-one-vs-each", "ar-softmax")
        ),
    ],
    ids=str,
)
def test_the_estimate_is_within_a_factor_of_two_of_what_training_takes(changes: dict[str, Any]):
    torch.manual_seed(0)
    sizes = _sizes(n_stored=0, **changes)
    ratio = _estimate(sizes) / _peak_bytes(sizes, 0.01 * sizes["n_labels"], None)
    assert 0.5 < ratio < 2


@pytest.mark.parametrize(("n_labels", "n_sampled"), [(200_000, 500), (20_000, 5000)])
def test_so_is_the_estimate_for_sampled_labels(n_labels: int, n_sampled: int):
    torch.manual_seed(0)
    sizes = _sizes(n_stored=0, n_labels=n_labels, labels_per_step=n_sampled + 3 * 100, n_latent=64)
    ratio = _estimate(sizes) / _peak_bytes(sizes, 3.0, n_sampled)
    assert 0.5 < ratio < 2


# Models of sequences


def _sequence_settings(**changes: Any) -> ModelSettings:
    sizes: dict[str, Any] = {
        "n_features": 2000,
        "n_labels": 10,
        "latents": "random-features",
        "n_inducing": 1,
    } | changes
    gp = sizes["latents"] == "gp"
    return ModelSettings(
        **{"kernel": "arccos1", "posterior": "full"} | sizes,
        n_latent=sizes["n_labels"],
        likelihood="linear-chain",
        mixing="identity",
        inducing="sparse" if gp else "free",
        learn_inducing=False,
        normalise_inducing=False,
        linear_posterior="point",
        learn_scales=gp,
        bias_variance=4.0,
    )


def _sequence_estimate(settings: ModelSettings, **changes: int) -> int:
    sizes = {"n_sequences": 20, "batch_size": 400, "batch_stored": 4000, "n_draws": 1, "n_stored": 0}
    return training_memory(settings, n_rows=1600, **{**sizes, **changes})


@pytest.mark.parametrize(
    ("name", "of_model"),
    [
        ("n_features", {}),
        ("n_features", {"latents": "linear"}),
        ("n_labels", {}),
        ("n_random_features", {}),
        ("n_reduced", {"n_reduced": 50}),
        ("n_layers", {"n_layers": 2}),
        ("n_hidden", {"n_layers": 2, "n_hidden": 5}),
        ("n_inducing", {"latents": "gp", "n_inducing": 50}),
        ("support_size", {"latents": "gp", "n_inducing": 500, "support_size": 100, "n_features": 10**6}),
    ],
)
def test_every_size_of_a_model_of_sequences_costs_memory(name: str, of_model: dict[str, Any]):
    settings = _sequence_settings(**of_model)
    larger = _sequence_settings(**of_model | {name: 2 * getattr(settings, name)})
    assert _sequence_estimate(larger) > _sequence_estimate(settings)


@pytest.mark.parametrize("name", ["batch_size", "batch_stored", "n_draws", "n_stored", "item_size"])
def test_every_size_of_its_training_costs_memory(name: str):
    sizes = {"batch_size": 400, "batch_stored": 4000, "n_draws": 2, "n_stored": 1000, "item_size": 4}
    settings = _sequence_settings(latents="linear")
    assert _sequence_estimate(settings, **{**sizes, name: 2 * sizes[name]}) > _sequence_estimate(settings, **sizes)


@pytest.mark.parametrize(
    ("of_model", "n_rows", "exact"),
    [
        ({"latents": "linear", "n_features": 2000}, 50_000, True),
        ({"latents": "linear", "n_features": 20_000}, 1600, True),
        ({"latents": "linear", "n_features": 20_000}, 50_000, False),
    ],
    ids=["few weights", "few tokens", "groups of tokens"],
)
def test_a_covariance_of_weights_costs_memory_where_it_will_be_made(of_model: dict[str, Any], n_rows: int, exact: bool):
    settings = _sequence_settings(**of_model)

    def estimate(choice: Any) -> int:
        sizes = {"n_sequences": 1, "batch_size": 20, "batch_stored": 200, "n_stored": 0}
        return training_memory(settings, n_rows=n_rows, **sizes, weight_covariance=choice)

    assert estimate("factorised") < estimate("shared")
    assert estimate("auto") == estimate("shared" if exact else "factorised")


def _sequence_peak(settings: ModelSettings, n_draws: int, *, dense: bool, dtype: torch.dtype) -> int:
    """As `_peak_bytes`, of batches of 20 sequences with 20 tokens."""
    rng = np.random.default_rng(0)
    n_rows, d = 1600, settings.n_features
    columns = rng.integers(d, size=(n_rows, 10))
    x = scipy.sparse.csr_matrix(
        (np.ones(columns.size, dtype=np.float32), columns.ravel(), np.arange(0, columns.size + 1, 10)), (n_rows, d)
    )
    x.sum_duplicates()
    y = one_hot(rng.integers(settings.n_labels, size=n_rows), settings.n_labels)
    model = settings.build()
    model.start(TrainingData(x, y, rng, inducing_start="rows"))
    model.to(dtype)
    training = TrainingSettings(epochs=1, batch_size=20, learning_rate=1e-3, optimizer="adam", n_draws=n_draws)
    inputs = x.toarray() if dense else x
    lengths = np.full(n_rows // 20, 20)
    return _peak_while(lambda: train(model, inputs, y, training, reporter=NoReporter(), lengths=lengths), model)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_random_features": 1000},
        {"n_random_features": 1000, "kernel": "se", "ard": False},
        {"n_random_features": 3000, "frequencies": "var-fixed"},
        {"n_random_features": 1000, "frequencies": "var-resampled", "n_draws": 4},
        {"n_random_features": 300, "n_features": 20_000},
        {"n_random_features": 1000, "n_features": 50_000, "n_reduced": 100},
        {"n_random_features": 1000, "n_layers": 3, "n_hidden": 10, "n_reduced": 100},
        {"n_random_features": 500, "n_layers": 2, "n_hidden": 5, "n_reduced": 50, "n_draws": 10},
        {"n_random_features": 200, "n_draws": 50},
        {"n_random_features": 200, "n_draws": 10, "transitions": "indexed"},
        {"n_random_features": 200, "n_labels": 60, "transitions": "indexed", "objective": "pseudo-likelihood"},
        {"n_random_features": 300, "linear_term": True, "n_features": 20_000},
        {"n_random_features": 1000, "dtype": torch.float64},
        {"n_random_features": 1000, "dense": True},
        {"latents": "linear", "n_features": 50_000},
        {"latents": "linear", "n_draws": 20},
        {"latents": "linear-mean-field", "n_features": 50_000},
        {"latents": "linear-mean-field", "dense": True, "n_draws": 5},
        {"latents": "linear-point", "n_features": 50_000, "transitions": "point"},
        {"latents": "linear-point", "n_features": 2000, "n_labels": 40, "transitions": "indexed"},
        *(
            {"latents": "gp", "kernel": "ard", "n_inducing": 300, "support_size": 10, "posterior": name}
            for name in ("mean-field", "full", "full-u", "parsimonious", "shared-basis")
        ),
        {"latents": "gp", "kernel": "linear", "n_inducing": 100, "support_size": 10, "n_draws": 10},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:jitter raised")
def test_the_estimate_for_sequences_is_within_a_factor_of_two_of_what_training_takes(changes: dict[str, Any]):
    torch.manual_seed(0)
    names = {field.name for field in fields(ModelSettings)}
    settings = _sequence_settings(**{name: value for name, value in changes.items() if name in names})
    dtype, n_draws = changes.get("dtype", torch.float32), changes.get("n_draws", 1)
    stored = 400 * (settings.n_features if changes.get("dense") else 10)
    estimate = _sequence_estimate(settings, n_draws=n_draws, item_size=dtype.itemsize, batch_stored=stored)
    ratio = estimate / _sequence_peak(settings, n_draws, dense=changes.get("dense", False), dtype=dtype)
    assert 0.5 < ratio < 2
