"""What training with propensities gains: default settings with and without, P@k and PSP@k of both and the differences.

A variant is "none", "auto" (the propensities of Jain et al. 2016), or A:B for those of other constants (a, b): with a
larger a they rise faster to 1 with a label's frequency, a milder correction. All are judged by PSP@k with the usual
propensities, and rank by the probability that a label applies.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import numpy as np

from benchmarks import common
from extremegp import MultiLabelGPClassifier
from extremegp.cli.settings import parse_settings
from extremegp.metrics import evaluate_topk, propensities

METRICS = [f"{family}@{k}" for family in ("P", "PSP") for k in common.KS]


def variants(text: str) -> dict[str, Any]:
    """Values of the estimator's parameter by the names of the variants."""
    values: dict[str, Any] = {"none": None, "auto": "auto"}
    found = {}
    for name in common.names(text):
        try:
            a, b = map(float, name.split(":")) if name not in values else (0.0, 0.0)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{name!r} is none of none, auto and A:B") from error
        found[name] = values.get(name, (a, b))
    return found


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--sets", type=common.names, default="delicious,bibtex,debian_tags", metavar="NAME,NAME")
    options.add_argument(
        "--variants", type=variants, default="none,auto,1:1.5", metavar="NAME,NAME", help="the first is the reference"
    )
    options.add_argument("--seeds", type=common.integers, default="0", metavar="N,N")
    options.add_argument("--epochs", type=int, help="by default as the estimator chooses")
    common.add_parameters(options)
    args = common.parse(options)
    parameters = parse_settings(args.parameters) | ({} if args.epochs is None else {"epochs": args.epochs})
    runs = []
    for name in args.sets:
        split = common.load_split(args.data, name)
        measured: dict[str, list[dict[str, Any]]] = {}
        for variant, value in args.variants.items():
            for seed in args.seeds:
                record = run(split, parameters | {"propensity": value, "random_state": seed})
                print(f"{name}, {variant}, seed {seed}: {record['seconds']:.1f} s", file=sys.stderr, flush=True)
                measured.setdefault(variant, []).append(record)
                runs.append({"set": name, "variant": variant, "seed": seed} | record)
        reference, *others = measured
        common.table(
            f"**{name}**, seeds {', '.join(map(str, args.seeds))}; differences in points from {reference}",
            ("propensity", "P@1 / 3 / 5 %", "PSP@1 / 3 / 5 %", "train s"),
            [
                *(absolute(variant, records) for variant, records in measured.items()),
                *(difference(variant, measured[variant], measured[reference]) for variant in others),
            ],
        )
    common.finish(args.json, {"runs": runs}, args)


def run(split: common.Split, parameters: dict[str, Any]) -> dict[str, Any]:
    """Train, and judge the test rows."""
    started = time.perf_counter()
    # The features step of `load_split` leaves rows at unit norm, and the estimator's own changes nothing then.
    classifier = MultiLabelGPClassifier(**parameters, verbose=False).fit(split.x, split.y)
    seconds = time.perf_counter() - started
    counts = np.asarray(split.y.sum(axis=0), dtype=np.int64).ravel()
    best = classifier.predict_topk(split.test_x, max(common.KS))
    metrics = evaluate_topk(split.test_y, best, propensities(counts, split.y.shape[0]), common.KS)
    return {"seconds": seconds, "metrics": {name: metrics[name] for name in METRICS}}


def absolute(variant: str, records: list[dict[str, Any]]) -> list[str]:
    """A row of percentages, and of seconds."""
    cells = [common.mean_sd([100 * record["metrics"][name] for record in records]) for name in METRICS]
    seconds = common.mean_sd([record["seconds"] for record in records], 1)
    return [variant, " / ".join(cells[:3]), " / ".join(cells[3:]), seconds]


def difference(variant: str, records: list[dict[str, Any]], reference: list[dict[str, Any]]) -> list[str]:
    """A row of differences from the reference, by the same seeds."""
    cells = [
        statistics.fmean(
            100 * (record["metrics"][name] - other["metrics"][name])
            for record, other in zip(records, reference, strict=True)
        )
        for name in METRICS
    ]
    texts = [f"{cell:+.2f}" for cell in cells]
    return [f"{variant}, difference", " / ".join(texts[:3]), " / ".join(texts[3:]), "-"]
