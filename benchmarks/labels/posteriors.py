"""What the posteriors cost and lose: time per epoch on Delicious, final bound on Bibtex.

Time: every posterior trains for a few steps, one after the other, several rounds; an epoch is its number of steps times
the median step. The full posteriors would take minutes per epoch, so no whole epoch is run, of any posterior.

Bound: the evidence lower bound on all training rows at the parameters after the same number of epochs from one seed.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch

from benchmarks import common
from extremegp import MultiLabelGPClassifier
from extremegp.engine.batch import Batch
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.engine.sparse import SparseRows, row_block
from extremegp.settings.model import ModelSettings
from extremegp.settings.parts import KERNEL_NAMES
from extremegp.training import NoReporter, TrainingSettings, train

FAMILIES = ("shared-basis", "mean-field", "full", "full-u")


class StepClock(NoReporter):
    """Wall seconds of every training step but the first, in which the optimiser takes its memory."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last: float | None = None

    def step(self, step: int, total_steps: int, elbo: float) -> None:
        now = time.perf_counter()
        if self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--part", choices=("time", "bound", "both"), default="both")
    options.add_argument("--posteriors", type=common.names, default=",".join(FAMILIES), metavar="NAME,NAME")
    options.add_argument("--kernel", choices=KERNEL_NAMES, default="ard")
    options.add_argument("--time-set", default="delicious", metavar="NAME")
    options.add_argument(
        "--time-sizes", type=common.integers, default="300,400", metavar="P,M", help="latents, inducing"
    )
    options.add_argument("--batch-size", type=int, default=500)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=4, help="timed steps of a posterior in a round")
    options.add_argument("--bound-set", default="bibtex", metavar="NAME")
    options.add_argument("--bound-sizes", type=common.integers, default="20,100", metavar="P,M")
    options.add_argument("--epochs", type=int, default=150, help="for the bound")
    options.add_argument("--seed", type=int, default=0)
    args = common.parse(options)
    if unknown := set(args.posteriors) - set(FAMILIES):
        options.error(f"unknown posteriors {', '.join(sorted(unknown))}; known are {', '.join(FAMILIES)}")
    result: dict[str, Any] = {}
    if args.part != "bound":
        result["time"] = times(args)
    if args.part != "time":
        result["bound"] = bounds(args)
    common.finish(args.json, result, args)


def times(args: Any) -> dict[str, Any]:
    """Time and print the table of times."""
    split = common.load_split(args.data, args.time_set)
    n_latent, n_inducing = args.time_sizes
    # Equal batches, so that every step is of the size asked for.
    rows = min(args.batch_size * (args.steps + 1), split.x.shape[0])
    settings = TrainingSettings(epochs=1, batch_size=args.batch_size, learning_rate=1e-3, seed=args.seed)
    models: dict[str, VariationalModel] = {}
    for name in args.posteriors:
        models[name] = ModelSettings(
            n_features=split.x.shape[1],
            n_labels=split.y.shape[1],
            n_latent=n_latent,
            n_inducing=n_inducing,
            kernel=args.kernel,
            posterior=name,
        ).build()
        models[name].start(TrainingData(split.x, split.y, np.random.default_rng(args.seed)))
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for round_number in range(args.rounds):
        for name, model in models.items():
            clock = StepClock()
            train(model, split.x[:rows], split.y[:rows], settings, reporter=clock)
            seconds[name] += clock.seconds
            model.zero_grad(set_to_none=True)
        print(f"round {round_number + 1} of {args.rounds}", file=sys.stderr, flush=True)
    steps = math.ceil(split.x.shape[0] / args.batch_size)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    base = medians.get("shared-basis", math.nan)
    common.table(
        f"**Time on {args.time_set}**, P = {n_latent}, M = {n_inducing}, B = {args.batch_size}, {args.kernel}: "
        f"epochs of {steps} steps, extrapolated from the median of {args.rounds} x {args.steps} steps, interleaved",
        ("posterior", "ms/step (fastest, slowest)", "s/epoch", "ratio to shared-basis"),
        [
            (
                name,
                f"{1e3 * value:.1f} ({1e3 * min(seconds[name]):.1f}, {1e3 * max(seconds[name]):.1f})",
                f"{steps * value:.2f}",
                f"{value / base:.2f}" if base == base else "-",
            )
            for name, value in medians.items()
        ],
    )
    return {name: {"step_seconds": seconds[name], "epoch_seconds": steps * medians[name]} for name in models}


def bounds(args: Any) -> dict[str, Any]:
    """Train, and print the table of bounds."""
    split = common.load_split(args.data, args.bound_set)
    n_latent, n_inducing = args.bound_sizes
    found: dict[str, dict[str, float]] = {}
    for name in args.posteriors:
        started = time.perf_counter()
        classifier = MultiLabelGPClassifier(
            kernel=args.kernel,
            posterior=name,
            n_latent=n_latent,
            n_inducing=n_inducing,
            epochs=args.epochs,
            random_state=args.seed,
            verbose=False,
        ).fit(split.x, split.y)
        seconds = time.perf_counter() - started
        data, kl = bound(classifier.model_, split)
        found[name] = {"negative_elbo": kl - data, "data": data, "kl": kl, "seconds": seconds}
        print(f"{name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    full = found.get("full", {}).get("negative_elbo", math.nan)
    common.table(
        f"**Bound on {args.bound_set}**, P = {n_latent}, M = {n_inducing}, {args.kernel}, {args.epochs} epochs, "
        f"seed {args.seed}",
        ("posterior", "-ELBO", "above full's", "KL", "training s"),
        [
            (
                name,
                f"{record['negative_elbo']:.1f}",
                f"{100 * (record['negative_elbo'] / full - 1):+.3f} %" if full == full else "-",
                f"{record['kl']:.1f}",
                f"{record['seconds']:.1f}",
            )
            for name, record in found.items()
        ],
    )
    return found


@torch.no_grad()
def bound(model: VariationalModel, split: common.Split) -> tuple[float, float]:
    """Expected log-likelihood of all training rows, and the KL term, at the model's parameters."""
    n_rows, total, kl = split.x.shape[0], 0.0, 0.0
    for start in range(0, n_rows, 1000):
        rows = slice(start, start + 1000)
        elbo = model.elbo(Batch(row_block(split.x, rows), SparseRows.from_scipy(split.y[rows])))
        total, kl = total + float(elbo.data), float(elbo.kl)
    return total, kl
