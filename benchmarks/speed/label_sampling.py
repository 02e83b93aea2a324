"""What sampling labels costs as labels grow in number, and how noisy the estimate of the bound is.

Time: a training step on synthetic data, with a fixed number of sampled labels. Noise: the estimate from one batch on a
model trained on all labels, over samples spread evenly over all there are; relative standard deviations of the data
term and of its gradient by the means of q(u), whose size in a trained model is itself the noise of the batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_csr

from benchmarks import common
from extremegp.data import FloatCSR
from extremegp.engine.batch import Batch
from extremegp.engine.model import VariationalModel
from extremegp.engine.part import TrainingData
from extremegp.engine.sparse import SparseRows
from extremegp.settings.model import ModelSettings
from extremegp.settings.training import LABEL_SAMPLINGS
from extremegp.training import NoReporter, TrainingSettings, train
from extremegp.training.label_sampling import LabelSampler

CPU = torch.device("cpu")


def fractions(text: str) -> list[float]:
    """Comma-separated numbers."""
    return [float(part) for part in common.names(text)]


def inputs(n_rows: int, n_features: int, rng: np.random.Generator) -> FloatCSR:
    """Random sparse rows."""
    return csr_matrix(random_csr(n_rows, n_features, 30 / n_features, format="csr", rng=rng, dtype=np.float32))


def labels(n_rows: int, n_labels: int, per_row: int, rng: np.random.Generator) -> FloatCSR:
    """Labels at random, the k-th with a frequency in proportion to 1 / k."""
    columns = (n_labels ** rng.random((n_rows, per_row))).astype(np.int64) - 1
    rows = np.repeat(np.arange(n_rows), per_row)
    y = csr_matrix((np.ones(columns.size, np.float32), (rows, columns.ravel())), shape=(n_rows, n_labels))
    y.data[:] = 1
    return y


def learnable(n_rows: int, n_labels: int, rng: np.random.Generator) -> tuple[FloatCSR, FloatCSR]:
    """Inputs, and labels of very different frequencies that depend on them."""
    x = inputs(n_rows, 200, rng)
    functions = np.tanh(3 * (x @ rng.normal(size=(200, 20))))
    bias = -2 - np.log(1 + np.arange(n_labels))
    utilities = functions @ rng.normal(size=(20, n_labels)) / 2 + np.maximum(bias, -9)
    y = csr_matrix(rng.random((n_rows, n_labels)) < 1 / (1 + np.exp(-utilities)), dtype=np.float32)
    return x, y


class StepClock(NoReporter):
    """Seconds of every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._at = time.perf_counter()

    def step(self, step: int, total_steps: int, elbo: float) -> None:
        now = time.perf_counter()
        self.seconds.append(now - self._at)
        self._at = now


def started(x: FloatCSR, y: FloatCSR, n_latent: int, n_inducing: int, rng: np.random.Generator) -> VariationalModel:
    """A model at its starting point."""
    settings = ModelSettings(
        n_features=x.shape[1], n_labels=y.shape[1], n_latent=n_latent, n_inducing=n_inducing, kernel="ard"
    )
    model = settings.build()
    model.start(TrainingData(x, y, rng))
    return model


def step_times(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Median step of every number of labels and every sampling, and the table of them."""
    results: dict[str, dict[str, Any]] = {}
    for n_labels in args.labels:
        rng = np.random.default_rng(args.seed)
        x = inputs(args.steps * args.batch_size, 1000, rng)
        y = labels(x.shape[0], n_labels, args.labels_per_row, rng)
        positive = statistics.fmean(
            len(np.unique(y[start : start + args.batch_size].indices)) for start in range(0, len(y.indptr) - 1, 1000)
        )
        record: dict[str, Any] = {"labels_of_a_batch": positive}
        for sampling in LABEL_SAMPLINGS:
            model, clock = started(x, y, args.n_latent, args.n_inducing, rng), StepClock()
            settings = TrainingSettings(
                epochs=1,
                batch_size=args.batch_size,
                learning_rate=1e-3,
                n_sampled_labels=min(args.n_sampled, n_labels),
                label_sampling=sampling,  # type: ignore[arg-type]
                seed=args.seed,
            )
            train(model, x, y, settings, reporter=clock)
            # The first steps take the optimiser's memory.
            record[sampling] = statistics.median(clock.seconds[3:])
        results[str(n_labels)] = record
    common.table(
        f"Milliseconds per step, {args.n_sampled} labels sampled (P {args.n_latent}, M {args.n_inducing}, "
        f"B {args.batch_size})",
        ["K", "labels of a batch", *LABEL_SAMPLINGS],
        [
            [f"{int(k):,}", f"{record['labels_of_a_batch']:.0f}", *(f"{1e3 * record[s]:.1f}" for s in LABEL_SAMPLINGS)]
            for k, record in results.items()
        ],
    )
    return results


def noise(args: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Relative standard deviations by share of labels sampled and sampling, and the table of them."""
    rng = np.random.default_rng(args.seed)
    if args.name is None:
        x, y = learnable(args.noise_rows, args.noise_labels, rng)
    else:
        split = common.load_split(args.data, args.name)
        x, y = split.x, split.y
    model = started(x, y, args.n_latent, min(args.n_inducing, x.shape[0]), rng)
    plan = TrainingSettings(epochs=args.noise_epochs, batch_size=args.batch_size, learning_rate=0.02, seed=args.seed)
    train(model, x, y, plan, reporter=NoReporter())
    counts = np.bincount(y.indices, minlength=y.shape[1])
    rows = rng.permutation(x.shape[0])[: args.batch_size]
    x_batch, y_batch = SparseRows.from_scipy(x[rows]), y[rows]
    data, gradient = data_term(model, x_batch, SparseRows.from_scipy(y_batch), None)
    results: dict[str, dict[str, list[float]]] = {}
    for share in args.shares:
        n_sampled = max(1, round(share * y.shape[1]))
        results[str(share)] = {}
        for sampling in LABEL_SAMPLINGS:
            sampler = LabelSampler(counts, n_sampled, sampling, seed=args.seed)  # type: ignore[arg-type]
            errors, distances = [], []
            for start in (np.arange(args.draws) + 0.5) / args.draws:
                batch = sampler.batch(y_batch, sampler.drawn_from(start), dtype=torch.float32, device=CPU)
                estimate, its_gradient = data_term(model.select(batch.labels), x_batch, batch.y, batch.weights)
                errors.append(estimate - data)
                distances.append(float((its_gradient - gradient).square().sum()))
            results[str(share)][sampling] = [
                float(np.sqrt(np.mean(np.square(errors)))) / abs(data),
                float(np.sqrt(np.mean(distances))) / float(gradient.norm()),
            ]
    common.table(
        f"Relative standard deviation of the data term / its gradient, %, on {args.name or 'synthetic data'} "
        f"(K {y.shape[1]}, B {args.batch_size})",
        ["labels sampled", *LABEL_SAMPLINGS],
        [
            [f"{100 * float(share):g} %", *("/".join(f"{100 * v:.2f}" for v in record[s]) for s in LABEL_SAMPLINGS)]
            for share, record in results.items()
        ],
    )
    return results


def data_term(
    model: VariationalModel, x: SparseRows, y: SparseRows, weights: torch.Tensor | None
) -> tuple[float, torch.Tensor]:
    """The data term of the bound, or an estimate of it, and its gradient by the means of q(u)."""
    data = model.elbo(Batch(x, y, label_weights=weights)).data
    (gradient,) = torch.autograd.grad(data, [model.latents.posterior.q_mean])
    return float(data.detach()), gradient


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--labels", type=common.integers, default="10000,100000,1000000", metavar="K,K,...")
    options.add_argument("--labels-per-row", type=int, default=5)
    options.add_argument("--n-sampled", type=int, default=2000, help="labels sampled in a timed step")
    options.add_argument("--n-latent", type=int, default=64)
    options.add_argument("--n-inducing", type=int, default=100)
    options.add_argument("--batch-size", type=int, default=256)
    options.add_argument("--steps", type=int, default=30, help="timed steps")
    options.add_argument("--set", dest="name", metavar="NAME", help="the dataset for the noise; by default synthetic")
    options.add_argument("--noise-rows", type=int, default=5000, help="rows of the synthetic data")
    options.add_argument("--noise-labels", type=int, default=3000, help="labels of the synthetic data")
    options.add_argument("--noise-epochs", type=int, default=20)
    options.add_argument("--shares", type=fractions, default="0.01,0.05,0.2", help="shares of the labels sampled")
    options.add_argument("--draws", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    args = common.parse(options)
    common.finish(args.json, {"step_seconds": step_times(args), "noise": noise(args)}, args)
