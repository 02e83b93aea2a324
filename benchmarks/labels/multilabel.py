"""Accuracy, calibration and time of `extremegp train` and `evaluate` on whole datasets, run as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import common

COLUMNS = ("", "P@1/3/5 %", "PSP@1/3/5 %", "log-loss /row", "ECE", "ECE top 10", "time")


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--sets", type=common.names, default="delicious,bibtex,debian_tags", metavar="NAME,NAME")
    options.add_argument("--seeds", type=common.integers, default="0,1,2", metavar="N,N")
    options.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help="passed on to `train`"
    )
    args = common.parse(options)
    runs = []
    for name in args.sets:
        measured = []
        for seed in args.seeds:
            measured.append(run(args.data, name, seed, args.settings))
            print(f"{name}, seed {seed}: {measured[-1]['train_seconds']:.1f} s", file=sys.stderr, flush=True)
        runs += measured
        title = f"**{name}**, {len(measured)} seeds; time is that of the whole `train` command, start included"
        common.table(title, COLUMNS, [summary(measured), *(compared(f) for f in common.PUBLISHED.get(name, []))])
    common.finish(args.json, {"runs": runs}, args)


def run(folder: Path, name: str, seed: int, settings: list[str]) -> dict[str, Any]:
    """Train and evaluate in processes of their own."""
    with tempfile.TemporaryDirectory() as temporary:
        model, trained, evaluated = (Path(temporary) / part for part in ("model", "train.json", "evaluate.json"))
        train = ["train", str(common.data_file(folder, name, "train")), "--out", str(model), "--seed", str(seed)]
        train += [word for setting in settings for word in ("--set", setting)]
        if common.feature_kind(name) != "unit":
            train += ["--features", common.feature_kind(name)]
        train_seconds = timed(*train, "--json", str(trained))
        test = common.data_file(folder, name, "test")
        evaluate_seconds = timed("evaluate", str(model), str(test), "--json", str(evaluated))
        return {
            "set": name,
            "seed": seed,
            "train_seconds": train_seconds,
            "evaluate_seconds": evaluate_seconds,
            "train": json.loads(trained.read_text(encoding="utf-8")),
            "metrics": json.loads(evaluated.read_text(encoding="utf-8"))["metrics"],
        }


def timed(*words: str) -> float:
    """Wall seconds of a command of extremegp, from start to exit."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "extremegp", *words, "--quiet"], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"extremegp {' '.join(words)} failed:\n{done.stderr}")
    return time.perf_counter() - started


def summary(runs: list[dict[str, Any]]) -> list[str]:
    """One row: mean and standard deviation over the runs."""

    def over_runs(metric: str, digits: int, factor: float = 1.0) -> str:
        return common.mean_sd([factor * run["metrics"][metric] for run in runs], digits)

    return [
        "extremegp, mean ± sd",
        *(" / ".join(over_runs(f"{family}@{k}", 2, 100.0) for k in common.KS) for family in ("P", "PSP")),
        over_runs("log_loss", 3),
        over_runs("ece", 5),
        over_runs("ece_top", 4),
        common.mean_sd([run["train_seconds"] for run in runs], 1) + " s",
    ]


def compared(figures: common.Figures) -> list[str]:
    """One row of figures from elsewhere."""
    psp = "-" if figures.psp is None else "/".join(map(str, figures.psp))
    return [figures.who, "/".join(map(str, figures.precision)), psp, "-", "-", "-", figures.cost]
