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

from extremegp import SequenceGPClassifier
from extremegp.data import one_hot
from extremegp.engine.latents import DeepRandomFeatures
from extremegp.engine.likelihoods import BernoulliLabels
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.errors import ExtremeGPError
from extremegp.settings.model import ModelSettings
from extremegp.training import NoReporter, TrainingInterrupted, TrainingSettings, World, train, world
from extremegp.training.shards import Shards, check_shareable
from extremegp.training.steps import Steps
from extremegp.training.whole import train_whole

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


LENGTHS = np.array([3, 1, 4, 2, 5, 2, 1, 3, 2])

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "linear term": {"linear_term": True},
    "full": {"posterior": "full"},
    "propensity": {"propensity": True},
    "mean function": {"n_mean_points": N},
    "float32": {"dtype": torch.float32},
    "weighted rows of soft labels": {"propensity": True, "weighted": True},
}
ONE_EACH = {"mixing": "identity", "n_latent": K}
CHAIN = ONE_EACH | {"likelihood": "linear-chain", "bias_variance": 4.0}
FEATURES = {"latents": "random-features", "kernel": "arccos1", "n_random_features": 6, "n_reduced": 3}
BY_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "a function for each label": (ONE_EACH, "sampled"),
    "softmax": ({"likelihood": "softmax"} | ONE_EACH, "natural"),
    "softmax with a mean function": ({"likelihood": "softmax", "n_mean_points": N} | ONE_EACH, "adam"),
    "one-vs-each of sampled classes": ({"likelihood": "one-vs-each"}, "sampled"),
    "weighted softmax": ({"likelihood": "softmax", "weighted": True} | ONE_EACH, "natural"),
    "augment and reduce": ({"likelihood": "ar-softmax", "local": "amortised"}, "sampled"),
    "sequences": (CHAIN | {"latents": "linear-point", "transitions": "point"}, "adam"),
    "weighted sequences": (CHAIN | {"latents": "linear-point", "transitions": "point", "weighted": True}, "adam"),
    "sequences of reduced inputs": (CHAIN | FEATURES | {"transitions": "point", "certain": True}, "adam"),
}
DRAWN = {"sequences": CHAIN | FEATURES, "mixed softmax": {"likelihood": "softmax"}}
"""Models whose bounds are estimated at draws, which every process has of its own."""
LONG = replace(SETTINGS, epochs=20, optimizer="adam", n_draws=5)
OF_SEQUENCES = [name for name in BY_ROWS if name.startswith("sequences")]
AT_ONCE = ("sequences", "weighted sequences")


def data(likelihood: str = "bernoulli") -> tuple[scipy.sparse.csr_matrix, scipy.sparse.csr_matrix]:
    x, y = random_inputs(N, D), random_labels(N, K, density=0.15).astype(np.float32)
    if likelihood != "bernoulli":
        return scipy.sparse.csr_matrix(x), one_hot(np.random.default_rng(0).integers(K, size=N), K)
    return scipy.sparse.csr_matrix(x), scipy.sparse.csr_matrix(y)


def lengths_of(changes: dict[str, Any]) -> np.ndarray | None:
    return LENGTHS if changes.get("likelihood") == "linear-chain" else None


def weights_of(changes: dict[str, Any]) -> np.ndarray | None:
    if not changes.get("weighted"):
        return None
    lengths = lengths_of(changes)
    return 0.5 + np.arange(N if lengths is None else len(lengths)) % 4


def build(
    *, dtype: torch.dtype = torch.float64, certain: bool = False, weighted: bool = False, **changes: Any
) -> tuple[VariationalModel, Any, Any]:
    """A model away from its start, its data, and what its mean function scales.

    If it is certain, all draws of random features are the same, up to rounding.
    """
    xy = data(changes.get("likelihood", "bernoulli"))
    if weighted and "likelihood" not in changes:
        xy[1].data[:] = np.linspace(0.1, 1.0, xy[1].nnz)
    if changes.get("n_mean_points"):
        changes["n_mean_stored"] = xy[0].nnz
    sizes: dict[str, Any] = {"n_features": D, "n_labels": K, "n_latent": P, "n_inducing": M, "kernel": "ard+linear"}
    model = ModelSettings(**{**sizes, **changes}).build()
    logits = model.start(TrainingData(*xy, np.random.default_rng(0)))
    randomise(model.to(dtype))
    if changes.get("propensity"):
        model.likelihood = BernoulliLabels(torch.linspace(0.2, 0.9, K, dtype=dtype))
    if certain:
        assert isinstance(model.latents, DeepRandomFeatures)
        model.latents.output.log_variance.detach().fill_(-70.0)
    return model, xy, logits


def one_step(here: World, plan: TrainingSettings, **changes: Any) -> dict[str, torch.Tensor]:
    """The bound and every gradient of one batch; those of the labels of all processes put together."""
    model, xy, logits = build(**changes)
    shards = Shards(model, here)
    of_rows = {"lengths": lengths_of(changes), "weights": weights_of(changes), "mean_logits": logits}
    steps = Steps(*xy, plan, **of_rows, shards=shards)
    elbo = steps.gradients(steps.load(np.array([3, 1, 8, 0, 5]), 2), n_draws=1)
    found = {"data": elbo.data.detach(), "kl": elbo.kl.detach()}
    for name, parameter in shards.model.named_parameters():
        if parameter.grad is not None:
            gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
            found[name] = here.rows(gradient, K) if name in shards.per_label else gradient
    return found


def trained(
    here: World, plan: TrainingSettings, of: dict[str, Any] = MODELS["propensity"], **options: Any
) -> dict[str, Any]:
    model, xy, logits = build(**of)
    given = {"reporter": NoReporter(), "world": here, "fingerprint": "f", "lengths": lengths_of(of), **options}
    given["weights"] = weights_of(of)
    history = train(model, *xy, plan, mean_logits=logits, **given)
    return {"history": history, "state": model.state_dict()}


def interrupted(
    here: World,
    path: Path,
    by: int,
    plan: TrainingSettings = PLANS["sampled"],
    of: dict[str, Any] = MODELS["propensity"],
) -> None:
    """A run that a signal to one process ends."""
    reporter = ActingReporter(INTERRUPT_AT, lambda: signal.raise_signal(signal.SIGTERM) if here.rank == by else None)
    with pytest.raises(TrainingInterrupted) as caught:
        trained(here, plan, of, checkpoint=path, reporter=reporter, validate=lambda: 0.5)
    assert (caught.value.saved, reporter.steps) == (str(path), INTERRUPT_AT)
    # A run that an error ends leaves its handlers, so that the launcher's signals do not cut off the message.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def whole(here: World, of: dict[str, Any], reporter: NoReporter | None = None, **changes: Any) -> dict[str, Any]:
    """L-BFGS on all sequences."""
    model, xy, _ = build(**of)
    # With these the maximum would be far away.
    model.mixing.get_parameter("log_scales").requires_grad_(False)
    given: dict[str, Any] = {"lengths": lengths_of(of), "weights": weights_of(of), "gain": 1e-12, "world": here}
    history = train_whole(model, *xy, replace(SETTINGS, **changes), reporter=reporter or NoReporter(), **given)
    return {"history": history, "state": model.state_dict()}


def interrupted_whole(here: World, by: int) -> int:
    """After how many iterations L-BFGS ends that a signal to one process interrupts."""
    reporter = ActingReporter(2, lambda: signal.raise_signal(signal.SIGTERM) if here.rank == by else None)
    with pytest.raises(TrainingInterrupted):
        whole(here, BY_ROWS["sequences"][0], reporter)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return reporter.steps


def chosen(seed: int = 0) -> dict[str, Any]:
    """What the default of sequences chooses, and says of its training sequences."""
    rng = np.random.default_rng(0)
    words = [rng.integers(0, 8, rng.integers(1, 7)).tolist() for _ in range(30)]
    X = [[[f"w{w}", f"even{w % 2 == 0}"] for w in own] for own in words]
    y = [["abc"[(w + int(rng.integers(0, 4) == 0)) % 3] for w in own] for own in words]
    model = SequenceGPClassifier(random_state=seed, verbose=False).fit(X, y)
    assert model.hyperparameters_ is not None
    return {"chosen": model.hyperparameters_[0].chosen, "marginals": np.concatenate(model.predict_marginals(X))}


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
    for name, (changes, of_plan) in BY_ROWS.items():
        found["step"][name, of_plan] = one_step(here, PLANS[of_plan], **changes)
        found["run"][name] = trained(here, PLANS[of_plan], changes)
    found["drawn"] = {name: trained(here, LONG, changes) for name, changes in DRAWN.items()}

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
    for name in OF_SEQUENCES:
        (changes, of_plan), path = BY_ROWS[name], folder / f"{name}.ckpt"
        found[f"resumed {name}"] = trained(here, PLANS[of_plan], changes, checkpoint=path, validate=lambda: 0.5)

    for name, changes in {
        "few labels": {"n_labels": here.size - 1},
        "stored": {"likelihood": "ar-softmax", "local": "stored", "n_local_rows": N},
        "few classes": {"likelihood": "softmax", "n_labels": here.size - 1},
        "optimal": {"likelihood": "ar-softmax"},
        **{name: of_model for name, (of_model, _) in BY_ROWS.items()},
    }.items():
        sizes: dict[str, Any] = {"n_features": D, "n_labels": K, "n_latent": P, "n_inducing": M, "kernel": "se"}
        settings = {name: value for name, value in {**sizes, **changes}.items() if name not in ("certain", "weighted")}
        model = ModelSettings(**settings).build()
        found["refused"][name] = refusal(lambda model=model: check_shareable(model, here))
    found["refused"]["small batches"] = refusal(lambda: trained(here, replace(SETTINGS, batch_size=1)))
    found["refused"]["seeds"] = refusal(lambda: trained(here, replace(SETTINGS, seed=here.rank)))
    found["refused"]["fingerprint"] = refusal(
        lambda: trained(here, PLANS["sampled"], checkpoint=folder / "kept.ckpt", fingerprint="g")
    )
    found["refused"]["seeds of sequences"] = refusal(lambda: chosen(here.rank))

    for name in AT_ONCE:
        found[f"whole {name}"] = whole(here, BY_ROWS[name][0])
    # No time at all is left for the last process.
    spent = {"time_budget": 1e-9 if here.rank == here.size - 1 else 1e9}
    found["whole, out of time"] = whole(here, BY_ROWS["sequences"][0], **spent)["history"][0]["iterations"]
    found["whole, interrupted"] = interrupted_whole(here, by=here.size - 1)
    found["chosen"] = chosen()
    found["alone"] = trained(World(), SETTINGS)
    torch.save(found, folder / f"{here.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
