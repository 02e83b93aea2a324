"""Natural gradients against Adam: time to a given bound, and where both end, for every posterior that has them.

Both optimisers move loadings, kernel and inducing inputs by Adam with the same rates; what differs is how q(u) moves.
The bound to reach is the lower of the two final ones.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
import torch

from benchmarks import common
from extremegp import MultiLabelGPClassifier
from extremegp.cli.settings import parse_settings
from extremegp.metrics import precision_at_k


def train(split: common.Split, args: argparse.Namespace, **settings: Any) -> dict[str, Any]:
    classifier = MultiLabelGPClassifier(
        **{
            "mean_function": "zero",
            "linear_term": False,
            "inducing": "free",
            "epochs": args.epochs,
            "random_state": args.seed,
            "verbose": False,
        }
        | parse_settings(args.parameters)
        | settings
    ).fit(split.x, split.y)
    n_rows = split.x.shape[0]
    precision = precision_at_k(split.test_y, classifier.predict_topk(split.test_x, 5), common.KS)
    return {
        "elbo_per_row": [record["elbo"] / n_rows for record in classifier.history_],
        "seconds": [record["seconds"] for record in classifier.history_],
        "precision": [float(value) for value in precision],
    }


def seconds_to(run: dict[str, Any], bound: float) -> float:
    """When a run first reached a bound, as the mean of three epochs, whose batches are noisy."""
    width = min(3, len(run["seconds"]))
    smooth = np.convolve(run["elbo_per_row"], np.ones(width) / width, mode="valid")
    reached = np.flatnonzero(smooth >= bound - 1e-9)
    return float(run["seconds"][reached[0] + width - 1]) if reached.size else float("nan")


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--set", dest="dataset", default="bibtex", metavar="NAME", help="dataset")
    options.add_argument(
        "--posteriors", type=common.names, default="shared-basis,mean-field,full", metavar="NAME,NAME", help="q(u)"
    )
    options.add_argument("--steps", type=common.names, default="0.02,0.05,0.1", metavar="S,S", help="natural steps")
    options.add_argument("--epochs", type=int, default=40, metavar="N", help="epochs of every run")
    options.add_argument("--seed", type=int, default=0, metavar="N", help="random_state")
    common.add_parameters(options)
    args = common.parse(options)
    split, results = common.load_split(args.data, args.dataset), []
    for posterior in args.posteriors:
        adam = train(split, args, posterior=posterior, optimizer="adam")
        for step in map(float, args.steps):
            natural = train(split, args, posterior=posterior, optimizer="natural", natural_step=step)
            target = min(float(np.mean(run["elbo_per_row"][-3:])) for run in (adam, natural))
            results.append(
                {"posterior": posterior, "natural_step": step, "bound": target, "adam": adam, "natural": natural}
            )
            print(f"{posterior}, step {step}: done", file=sys.stderr, flush=True)
    common.table(
        f"{args.dataset}, {args.epochs} epochs, {torch.get_num_threads()} threads: time to the lower final bound",
        (
            "posterior",
            "natural step",
            "bound",
            "Adam (s)",
            "natural (s)",
            "ratio",
            "final, Adam",
            "final, natural",
            "P@1, Adam",
            "P@1, natural",
        ),
        [row(result) for result in results],
    )
    common.finish(args.json, {"results": results}, args)


def row(result: dict[str, Any]) -> tuple[str, ...]:
    adam, natural = result["adam"], result["natural"]
    seconds = [seconds_to(run, result["bound"]) for run in (adam, natural)]
    return (
        result["posterior"],
        f"{result['natural_step']:g}",
        f"{result['bound']:.3f}",
        *(f"{value:.1f}" for value in seconds),
        f"{seconds[0] / seconds[1]:.2f}",
        *(f"{np.mean(run['elbo_per_row'][-3:]):.3f}" for run in (adam, natural)),
        *(f"{100 * run['precision'][0]:.2f}" for run in (adam, natural)),
    )
