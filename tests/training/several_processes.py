"""What every process of `test_distributed.py` does: torchrun starts it with a folder to write its results to."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from tests.models import random_inputs, random_labels, randomise

from extremegp.engine.likelihoods import BernoulliLabels
from extremegp.engine.model import VariationalModel
from extremegp.errors import ExtremeGPError
from extremegp.settings.model import ModelSettings
from extremegp.training import NoReporter, TrainingInterrupted, TrainingSettings, World, train, world
from extremegp.training.shards import LabelShards, check_shareable
from extremegp.training.start import initialise
from extremegp.training.steps import Steps

N, D, K, P, M = 23, 5, 11, 2, 3
SETTINGS = TrainingSettings(epochs=4, batch_size=7, learning_rate=0.05, seed=3)
STEPS_PER_EPOCH = 4
PLANS = {
    "natural": SETTINGS,
    "adam": replace(SETTINGS, optimizer="adam"),
    "cold": replace(SETTINGS, kl_weight=0.3),
    "sampled": replace(SETTINGS, n_sampled_labels=4),
    "hard": replace(SETTINGS, n_sampled_labels=2, label_sampling="hard", n_hard_labels=3),
    "half": replace(SETTINGS, n_sampled_labels=4, optimizer_state="half"),
    "sampled one, adam": replace(SETTINGS, n_sampled_labels=1, label_sampling="uniform", optimizer="adam"),
}
INTERRUPT_AT = 6


class ActingReporter(NoReporter):
    """Acts after one step."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        self.at, self.act, self.steps = at, act, 0

    def step(self, step: int, total_steps: int, elbo: float) -> None:
        self.steps = step
        if step == self.at:
            self.act()


def data() -> tuple[scipy.sparse.csr_matrix, scipy.sparse.csr_matrix]:
    x, y = random_inputs(N, D), random_labels(N, K, density=0.15).astype(np.float32)
    return scipy.sparse.csr_matrix(x), scipy.sparse.csr_matrix(y)


def build(dtype: torch.dtype = torch.float64, **changes: Any) -> tuple[VariationalModel, Any]:
    """A model away from its start, and what its mean function scales."""
    sizes: dict[str, Any] = {"n_features": D, "n_labels": K, "n_latent": P, "n_inducing": M, "kernel": "ard+linear"}
    model = ModelSettings(**{**sizes, **changes}).build()
    logits = initialise(model, *data(), rng=np.random.default_rng(0))
    randomise(model.to(dtype))
    if changes.get("propensity"):
        model.likelihood = BernoulliLabels(torch.linspace(0.2, 0.9, K, dtype=dtype))
    return model, logits


MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "linear term": {"linear_term": True},
    "full": {"posterior": "full"},
    "propensity": {"propensity": True},
    "mean function": {"n_mean_points": N, "n_mean_stored": None},
    "float32": {"dtype": torch.float32},
}


def one_step(here: World, plan: TrainingSettings, **changes: Any) -> dict[str, torch.Tensor]:
    """The bound and every gradient of one batch; those of the labels of all processes put together."""
    if changes.get("n_mean_points"):
        changes["n_mean_stored"] = data()[0].nnz
    model, logits = build(**changes)
    shards = LabelShards(model, here)
    steps = Steps(model, *data(), plan, lengths=None, mean_logits=logits, shards=shards)
    elbo = steps.gradients(steps.load(np.array([3, 1, 22, 0, 5]), 2), n_draws=1)
    found = {"data": elbo.data.detach(), "kl": elbo.kl.detach()}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        found[name] = here.rows(gradient, K) if name in shards.per_label else gradient
    return found


def trained(here: World, plan: TrainingSettings, **options: Any) -> dict[str, Any]:
    model, _ = build(propensity=True)
    history = train(model, *data(), plan, **{"reporter": NoReporter(), "world": here, "fingerprint": "f", **options})
    return {"history": history, "state": model.state_dict()}


def interrupted(here: World, path: Path, by: int) -> None:
    """A run that a signal to one process ends."""
    plan = PLANS["sampled"]
    reporter = ActingReporter(INTERRUPT_AT, lambda: signal.raise_signal(signal.SIGTERM) if here.rank == by else None)
    with pytest.raises(TrainingInterrupted) as caught:
        trained(here, plan, checkpoint=path, reporter=reporter, validate=lambda: 0.5)
    assert (caught.value.saved, reporter.steps) == (str(path), INTERRUPT_AT)
    # A run that an error ends leaves its handlers, so that the launcher's signals do not cut off the message.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def refusal(work: Callable[[], Any]) -> str:
    try:
        work()
    except ExtremeGPError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def main(folder: Path) -> None:
    here = world(timeout=60)
    found: dict[str, Any] = {"step": {}, "run": {}, "refused": {}, "device": here.device, "size": here.size}
    for of_model, changes in MODELS.items():
        for of_plan in ("natural", "sampled"):
            found["step"][of_model, of_plan] = one_step(here, PLANS[of_plan], **changes)
    for of_plan, plan in PLANS.items():
        found["run"][of_plan] = trained(here, plan)

    # Scores that the first process alone gets right: patience runs out after the third epoch.
    scores = iter([0.2, 0.6, 0.5, 0.4, 0.9] if here.leads else [])
    found["validated"] = trained(here, replace(SETTINGS, epochs=5, patience=2), validate=lambda: next(scores))
    found["budget"] = trained(here, replace(SETTINGS, epochs=10**6, time_budget=0.3))["history"]

    by_several = folder / "several.ckpt"
    interrupted(here, by_several, by=here.size - 1)
    if here.leads:
        (folder / "kept.ckpt").write_bytes(by_several.read_bytes())
    found["resumed"] = trained(here, PLANS["sampled"], checkpoint=by_several, validate=lambda: 0.5)
    found["resumed from one"] = trained(here, PLANS["sampled"], checkpoint=folder / "one.ckpt", validate=lambda: 0.5)

    identity = {"mixing": "identity", "n_latent": K}
    for name, changes in {
        "identity": identity,
        "softmax": {"likelihood": "softmax"},
        "few labels": {"n_labels": here.size - 1},
    }.items():
        sizes: dict[str, Any] = {"n_features": D, "n_labels": K, "n_latent": P, "n_inducing": M, "kernel": "se"}
        model = ModelSettings(**{**sizes, **changes}).build()
        found["refused"][name] = refusal(lambda model=model: check_shareable(model, here))
    found["refused"]["small batches"] = refusal(lambda: trained(here, replace(SETTINGS, batch_size=1)))
    found["refused"]["seeds"] = refusal(lambda: trained(here, replace(SETTINGS, seed=here.rank)))
    found["refused"]["fingerprint"] = refusal(
        lambda: trained(here, PLANS["sampled"], checkpoint=folder / "kept.ckpt", fingerprint="g")
    )
    found["alone"] = trained(World(), SETTINGS)
    torch.save(found, folder / f"{here.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
