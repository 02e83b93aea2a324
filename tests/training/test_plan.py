from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.models import randomise
from torch.profiler import ProfilerActivity, profile

from extremegp.building import ModelSettings
from extremegp.errors import ExtremeGPError, MemoryPlanError
from extremegp.training import NoReporter, TrainingSettings, plan, train
from extremegp.training.plan import available_memory, check_memory, training_memory


def _sizes(**changes: Any) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        "n_features": 1000,
        "n_labels": 500,
        "n_latent": 30,
        "n_inducing": 50,
        "batch_size": 100,
        "posterior": "shared-basis",
        "linear_term": False,
        "n_stored": 10_000,
    }
    return {**sizes, **changes}


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
    assert training_memory(**{**sizes, name: 2 * sizes[name]}) > training_memory(**sizes)


def test_a_full_posterior_and_a_linear_term_cost_memory():
    base = training_memory(**_sizes())
    assert training_memory(**_sizes(posterior="full")) > base
    assert training_memory(**_sizes(posterior="full-u")) > base
    assert training_memory(**_sizes(linear_term=True)) > base


def _peak_bytes(sizes: dict[str, Any]) -> int:
    """Bytes that PyTorch holds at most while training, parameters included, by its own profiler."""
    rng = np.random.default_rng(0)
    n_rows = 2 * sizes["batch_size"]
    x = scipy.sparse.random(n_rows, sizes["n_features"], 0.01, format="csr", rng=rng, dtype=np.float32)
    y = scipy.sparse.random(n_rows, sizes["n_labels"], 0.01, format="csr", rng=rng, dtype=np.float32)
    y.data[:] = 1
    settings = ModelSettings(
        **{name: sizes[name] for name in ("n_features", "n_labels", "n_latent", "n_inducing", "posterior")},
        kernel="ard+linear",
        linear_term=sizes["linear_term"],
    )
    model = settings.build()
    randomise(model, scale=0.01)
    training = TrainingSettings(epochs=1, batch_size=sizes["batch_size"], learning_rate=1e-3)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train(model, x, y, training, reporter=NoReporter())
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    assert len(changes) > 100
    return int(np.cumsum(changes).max()) + sum(p.numel() * p.element_size() for p in model.parameters())


@pytest.mark.parametrize(
    "changes",
    [
        {"n_features": 50_000},
        {"n_labels": 20_000},
        {"n_latent": 100, "n_inducing": 150, "batch_size": 300, "posterior": "full"},
        {"n_features": 20_000, "n_inducing": 20, "linear_term": True},
        {"n_features": 300, "n_inducing": 400, "batch_size": 500},
    ],
    ids=["many features", "many labels", "full posterior", "linear term", "many inducing inputs"],
)
def test_the_estimate_is_within_a_factor_of_two_of_what_training_takes(changes: dict[str, Any]):
    torch.manual_seed(0)
    sizes = _sizes(n_stored=0, **changes)
    ratio = training_memory(**sizes) / _peak_bytes(sizes)
    assert 0.5 < ratio < 2
