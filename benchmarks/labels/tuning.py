"""The defaults for many labels chosen again, without any test row of the sets that results are shown of.

Every variant changes the default in one thing. It is trained and judged on the sets for tuning and on a fifth of the
training rows of the others (`benchmarks/protocol.py`). A default stands where no variant is better on average, by P@1,
P@3, P@5 and log-loss.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from benchmarks import common, protocol
from extremegp import MultiLabelGPClassifier
from extremegp.metrics import precision_at_k
from extremegp.metrics.probability import ProbabilityMetrics
from extremegp.metrics.topk import TopK

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "latents=gp": {"latents": "gp"},
    "latents=gp, mean_function=zero": {"latents": "gp", "mean_function": "zero"},
    "latents=landmarks": {"latents": "landmarks"},
    "kernel=se": {"kernel": "se"},
    "latents=gp, kernel=ard": {"latents": "gp", "kernel": "ard"},
    "latents=gp, optimizer=adam": {"latents": "gp", "optimizer": "adam"},
    "latents=gp, epochs x 2": {"latents": "gp", "epochs": 40},
}


def main() -> None:
    options = common.parser(__doc__)
    sets = ",".join((*protocol.TUNING, "bibtex"))
    options.add_argument("--sets", type=common.names, default=sets, metavar="NAME,NAME")
    options.add_argument("--variants", type=str, default=";".join(VARIANTS), metavar="NAME;NAME", help="separated by ;")
    options.add_argument("--limit", type=int, metavar="N", help="training rows at most")
    options.add_argument("--seed", type=int, default=0)
    args = common.parse(options)
    variants = [name.strip() for name in args.variants.split(";")]
    if unknown := set(variants) - VARIANTS.keys():
        options.error(f"unknown variants {', '.join(sorted(unknown))}; known are {'; '.join(VARIANTS)}")
    runs: dict[str, dict[str, float]] = {}
    if args.json is not None and args.json.exists():
        runs = json.loads(args.json.read_text(encoding="utf-8"))["runs"]
    for name in args.sets:
        split = protocol.validation_split(args.data, name, args.seed, args.limit)
        for variant in variants:
            if (key := f"{name}/{variant}/{args.seed}/{args.limit}") not in runs:
                runs[key] = judge(VARIANTS[variant], split, args.seed)
                print(f"{key}: {runs[key]}", file=sys.stderr, flush=True)
                if args.json is not None:
                    args.json.write_text(json.dumps({"runs": runs}) + "\n", encoding="utf-8")
    show(args, variants, runs)
    common.finish(args.json, {"runs": runs}, args)


def judge(settings: dict[str, Any], split: common.Split, seed: int) -> dict[str, float]:
    """Train and judge a variant."""
    started = time.perf_counter()
    model = MultiLabelGPClassifier(**settings, random_state=seed, verbose=False).fit(split.x, split.y)
    seconds, quality, best = time.perf_counter() - started, ProbabilityMetrics(), []
    for rows, probabilities in model.predictor().probabilities(split.test_x):
        quality.update(probabilities, split.test_y[rows])
        best.append(TopK.from_scores(probabilities, max(common.KS)))
    precision = precision_at_k(split.test_y, TopK.concatenate(best), common.KS)
    found = {f"P@{k}": 100 * float(value) for k, value in zip(common.KS, precision, strict=True)}
    return found | {"log_loss": quality.compute()["log_loss"], "seconds": seconds}


def show(args: Any, variants: list[str], runs: dict[str, dict[str, float]]) -> None:
    """Print what each variant changes, set by set and on average."""
    rows = []
    for variant in variants:
        cells, gains = [], []
        for name in args.sets:
            run, default = (runs[f"{name}/{v}/{args.seed}/{args.limit}"] for v in (variant, variants[0]))
            gain = statistics.fmean(run[f"P@{k}"] - default[f"P@{k}"] for k in common.KS)
            gains.append((gain, 100 * (run["log_loss"] / default["log_loss"] - 1)))
            cells.append(f"{gain:+.2f} / {gains[-1][1]:+.1f} %")
        means = [statistics.fmean(part) for part in zip(*gains, strict=True)]
        rows.append([variant, *cells, f"{means[0]:+.2f} / {means[1]:+.1f} %"])
    common.table(
        f"Change of the mean of P@1, P@3 and P@5 in points, and of log-loss, against {variants[0]}",
        ("variant", *args.sets, "mean"),
        rows,
    )
