"""Time and memory of a training step as classes grow in number, for every class likelihood that can be sampled.

Synthetic data of as many rows, features and test rows for every K; functions are mixed by loadings, and every step
looks at as many sampled classes. The steps of an epoch are timed together; the fastest epoch is the least disturbed
one. Every run has a process of its own, for its peak memory. Accuracy is that after all epochs, beside guessing's.

With --json FILE, a later call makes only the runs that are missing there (remove it after changing the code).
"""

from __future__ import annotations

import numpy as np

from benchmarks import common
from benchmarks.classes import class_worker
from extremegp import MultiClassGPClassifier
from extremegp.cli.settings import parse_settings
from extremegp.errors import SettingsError
from extremegp.settings.parts import CLASS_LIKELIHOODS


def sampled_likelihoods() -> list[str]:
    """The likelihoods of classes that have an estimate from a sample of the classes."""
    found = []
    for name in CLASS_LIKELIHOODS:
        try:
            MultiClassGPClassifier(likelihood=name, mixing="factor", n_sampled_classes=1).check_params()
        except SettingsError:
            continue
        found.append(name)
    return found


def main() -> None:
    likelihoods = sampled_likelihoods()
    options = common.parser(__doc__)
    options.add_argument("--classes", type=common.integers, default="1000,10000,100000", metavar="K,K")
    options.add_argument("--rows", type=int, default=200_000, metavar="N", help="training rows, at least K")
    options.add_argument("--features", type=int, default=64, metavar="D")
    options.add_argument("--likelihoods", type=common.names, default=",".join(likelihoods), metavar="NAME,NAME")
    options.add_argument("--sampled", type=int, default=1000, metavar="N", help="sampled classes of a step")
    options.add_argument("--latent", type=int, default=64, metavar="P", help="latent functions")
    options.add_argument("--inducing", type=int, default=200, metavar="M", help="inducing inputs")
    options.add_argument("--batch", type=int, default=500, metavar="B", help="rows of a step")
    options.add_argument("--epochs", type=int, default=5, metavar="N")
    options.add_argument("--seed", type=int, default=0)
    common.add_parameters(options, "MultiClassGPClassifier")
    args = common.parse(options)
    if unknown := set(args.likelihoods) - set(likelihoods):
        options.error(f"cannot be sampled: {', '.join(sorted(unknown))}; known are {', '.join(likelihoods)}")
    params = {
        "mixing": "factor",
        "mean_function": "zero",
        "n_sampled_classes": args.sampled,
        "n_latent": args.latent,
        "n_inducing": args.inducing,
        "batch_size": args.batch,
        "epochs": args.epochs,
    } | parse_settings(args.parameters, "MultiClassGPClassifier")
    jobs = {
        f"{likelihood}, K = {k}": class_worker.job(
            f"synthetic:{args.rows}:{args.features}:{k}",
            # No more than there are can be sampled.
            params | {"likelihood": likelihood, "n_sampled_classes": min(args.sampled, k)},
            seed=args.seed,
        )
        for likelihood in args.likelihoods
        for k in args.classes
    }
    runs = class_worker.Runs(args.json, args.data)
    found = runs.make(jobs)
    for likelihood in args.likelihoods:
        records = {k: record for k in args.classes if (record := found.get(f"{likelihood}, K = {k}"))}
        common.table(
            f"**{likelihood}**: N = {args.rows}, D = {args.features}, P = {args.latent}, M = {args.inducing}, "
            f"B = {args.batch}, {args.sampled} classes sampled, {args.epochs} epochs",
            ("K", "ms a step", "times the first", "peak MiB", "times the first", "accuracy %", "top-5 %", "guessing %"),
            rows(records),
        )
    runs.finish(args)


def rows(records: dict[int, class_worker.Record]) -> list[list[str]]:
    """A row of every number of classes."""
    lines: list[list[str]] = []
    first: list[float] = []
    for k, record in records.items():
        if "error" in record:
            lines.append([f"{k:,}", record["error"], *["-"] * 6])
            continue
        measured = [step_seconds(record), record["peak_mib"]]
        first = first or measured
        times = [f"{value / reference:.2f}" for value, reference in zip(measured, first, strict=True)]
        metrics = record["metrics"]
        reached = (f"{100 * metrics[name]:.2f}" for name in ("accuracy", "top5_accuracy"))
        costs = (f"{1e3 * measured[0]:.1f}", times[0], f"{measured[1]:.0f}", times[1])
        lines.append([f"{k:,}", *costs, *reached, f"{100 / k:.2g}"])
    return lines


def step_seconds(record: class_worker.Record) -> float:
    """Seconds of a step of the fastest epoch."""
    seconds = np.diff([0.0, *(epoch["seconds"] for epoch in record["history"])])
    steps_per_epoch = -(-record["split"]["n_rows"] // record["job"]["params"]["batch_size"])
    return float(seconds.min()) / steps_per_epoch
