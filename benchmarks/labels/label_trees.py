"""Label trees on sets of very many labels, trained and judged by the command line, and what their parts are worth.

With --ablation also, in this process: the same model's candidates ranked by the trees alone and by the nearest rows
alone, and factor models, with and without a linear term, for --factor-budget seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from extremegp import LabelTreeGPClassifier, MultiLabelGPClassifier
from extremegp.label_tree.model import row_blocks
from extremegp.metrics import TopK, propensities
from extremegp.metrics.measured import measure_top
from extremegp.prediction.predictor import Ranked

SETS = "debian_depends,human_gene_pubmed,moby_thesaurus,yso_finna_en"
COLUMNS = ("", "P@1/3/5 %", "PSP@1/3/5 %", "log-loss of 20", "ECE of 20", "train s", "peak GB", "evaluate s")
# What the first two evidence numbers of a candidate say: its probability by the trees, and its share of 50 rows.
ALONE = {"trees alone": 0, "nearest rows alone": 1}
_JUDGED = 20


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--sets", type=common.names, default=SETS, metavar="NAME,NAME", help="the datasets")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--ablation", action="store_true", help="measure the parts too")
    options.add_argument(
        "--factor-budget", type=float, default=300.0, metavar="S", help="seconds for each factor model"
    )
    common.add_parameters(options, "LabelTreeGPClassifier")
    args = common.parse(options)
    results: dict[str, dict[str, Any]] = {}
    for name in args.sets:
        found = {"label trees": by_command(args, name)}
        if args.ablation:
            found |= ablation(args, name)
        results[name] = found
        common.table(f"**{name}**", COLUMNS, [row(what, result) for what, result in found.items()])
    common.finish(args.json, {"results": results}, args)


def by_command(args: Any, name: str) -> dict[str, Any]:
    """What a user measures: `extremegp train` and `evaluate`, with the peak memory of training."""
    with tempfile.TemporaryDirectory() as temporary:
        model, train, metrics = (Path(temporary) / part for part in ("model", "train.json", "metrics.json"))
        command = [sys.executable, "-m", "extremegp"]
        features = ["--features", common.feature_kind(name), "--seed", str(args.seed), "--model", "tree"]
        settings = [text for pair in args.parameters for text in ("--set", pair)]
        data = str(common.data_file(args.data, name, "train"))
        started = time.monotonic()
        process = subprocess.Popen(
            [*command, "train", data, "--out", str(model), *features, *settings, "--json", str(train), "--quiet"]
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started
        if status:
            raise SystemExit(f"training on {name} failed")
        test = str(common.data_file(args.data, name, "test"))
        subprocess.run([*command, "evaluate", str(model), test, "--json", str(metrics), "--quiet"], check=True)
        measured = json.loads(metrics.read_text(encoding="utf-8"))["metrics"]
    return {"metrics": measured, "seconds": seconds, "peak_gb": usage.ru_maxrss / 1e6}


def ablation(args: Any, name: str) -> dict[str, dict[str, Any]]:
    """The parts of label trees, and factor models of about the same cost."""
    split = common.load_split(args.data, name)
    trees = LabelTreeGPClassifier(features="raw", random_state=args.seed, verbose=False).fit(split.x, split.y)
    found = {}
    for what, number in ALONE.items():
        found[what] = judged(trees, ranked_by(trees, split.test_x, number), split)
        found[what]["metrics"].pop("log_loss_top20"), found[what]["metrics"].pop("ece_top20")
    for what, linear in (("factor model", False), ("factor model + linear term", True)):
        started = time.monotonic()
        model = MultiLabelGPClassifier(
            features="raw", linear_term=linear, time_budget=args.factor_budget, random_state=args.seed, verbose=False
        ).fit(split.x, split.y)
        seconds = time.monotonic() - started
        found[what] = judged(model, model.predictor().top(split.test_x, _JUDGED), split) | {"seconds": seconds}
    return found


def ranked_by(trees: LabelTreeGPClassifier, x: Any, number: int) -> Iterator[Ranked]:
    """The candidates ranked by one of the numbers that speak for them."""
    model = trees.model_
    for rows in row_blocks(x.shape[0]):
        evidence = model.evidence(x[rows])
        scores = np.full((rows.stop - rows.start, trees.settings_.n_labels), -np.inf, dtype=np.float32)
        scores[evidence.rows, evidence.labels] = evidence.values[:, number]
        best = TopK.from_scores(scores, _JUDGED)
        yield rows, best, np.exp(np.minimum(np.nan_to_num(best.scores, neginf=-20), 0))


def judged(model: Any, ranked: Iterator[Ranked], split: common.Split) -> dict[str, Any]:
    started = time.monotonic()
    chances = propensities(model.label_counts_, model.n_rows_)
    found = measure_top(ranked, split.test_y, ks=common.KS, propensity=chances, train_counts=model.label_counts_)
    return {"metrics": found.metrics | {"seconds": time.monotonic() - started}}


def row(what: str, result: dict[str, Any]) -> tuple[str, ...]:
    metrics = result["metrics"]
    shares = (common.percentages(metrics[f"{name}@{k}"] for k in common.KS) for name in ("P", "PSP"))
    quality = (f"{metrics[name]:.4f}" if name in metrics else "" for name in ("log_loss_top20", "ece_top20"))
    costs = (
        f"{result[name]:.{digits}f}" if name in result else "" for name, digits in (("seconds", 0), ("peak_gb", 1))
    )
    return (what, *shares, *quality, *costs, f"{metrics['seconds']:.0f}")
