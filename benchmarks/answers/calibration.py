"""How far probabilities can be trusted: the posterior integrated, the mean utility alone, and logistic regression."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from scipy.special import expit

from benchmarks import common
from benchmarks.labels.peer_worker import BLOCK_ELEMENTS, fit_one_vs_rest
from extremegp import MultiLabelGPClassifier
from extremegp.cli.settings import parse_settings
from extremegp.metrics import ProbabilityMetrics
from extremegp.prediction.predictor import Predictor

INTEGRATED, PLUG_IN, LOGISTIC = (
    "extremegp, posterior integrated",
    "extremegp, logistic of the mean utility",
    "one-vs-rest logistic regression",
)


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--set", dest="name", default="delicious", metavar="NAME", help="the dataset")
    common.add_parameters(options)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--logistic-c", type=float, default=10.0, metavar="C", help="inverse regularisation")
    options.add_argument("--no-logistic", action="store_true", help="leave logistic regression out")
    options.add_argument("--bins", type=int, default=15, help="of the calibration errors")
    options.add_argument("--plot", type=Path, metavar="FILE", help="draw a reliability diagram (needs matplotlib)")
    args = common.parse(options)

    split = common.load_split(args.data, args.name)
    found = measure_gp(args, split)
    if not args.no_logistic:
        found[LOGISTIC] = measure_logistic(args, split)
    computed = {name: metrics.compute() for name, metrics in found.items()}
    common.table(
        f"**{args.name}**, {split.test_x.shape[0]} test rows, {split.y.shape[1]} labels, seed {args.seed}, "
        f"{args.bins} bins",
        ("probabilities", "log-loss /row", "Brier /row", "ECE, all labels", "ECE, top 10"),
        [
            (name, f"{m['log_loss']:.3f}", f"{m['brier']:.3f}", f"{m['ece']:.5f}", f"{m['ece_top']:.4f}")
            for name, m in computed.items()
        ],
    )
    if args.plot is not None:
        plot(args.plot, args.name, found)
    common.finish(args.json, {"metrics": computed}, args)


def measure_gp(args: Any, split: common.Split) -> dict[str, ProbabilityMetrics]:
    """Train once, and judge both ways to turn the posterior into probabilities."""
    started = time.perf_counter()
    classifier = MultiLabelGPClassifier(**parse_settings(args.parameters), random_state=args.seed, verbose=False)
    # The features step is idempotent: its rows are at unit norm already.
    classifier.fit(split.x, split.y)
    print(f"extremegp: trained in {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    found = {name: ProbabilityMetrics(args.bins) for name in (INTEGRATED, PLUG_IN)}
    blocks = Predictor(classifier.model_).mean_utilities_and_probabilities(split.test_x)
    for rows, utilities, probabilities in blocks:
        found[INTEGRATED].update(probabilities, split.test_y[rows])
        found[PLUG_IN].update(expit(utilities), split.test_y[rows])
    return found


def measure_logistic(args: Any, split: common.Split) -> ProbabilityMetrics:
    """Judge scikit-learn's logistic regression on the same features."""
    started = time.perf_counter()
    model = fit_one_vs_rest(split.x, split.y, args.logistic_c)
    print(f"logistic regression: trained in {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    metrics = ProbabilityMetrics(args.bins)
    step = max(1, BLOCK_ELEMENTS // split.y.shape[1])
    for start in range(0, split.test_x.shape[0], step):
        rows = slice(start, start + step)
        metrics.update(model.predict_proba(split.test_x[rows]), split.test_y[rows])
    return metrics


def plot(path: Path, name: str, found: dict[str, ProbabilityMetrics]) -> None:
    """Reliability diagrams of all labels and of each row's ten best."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 5), sharey=True, layout="constrained")
    for axis, top, what in zip(axes, (False, True), ("all labels", "ten best labels of every row"), strict=True):
        axis.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
        for label, metrics in found.items():
            reliability = metrics.reliability(top=top)
            axis.plot(reliability.confidence, reliability.frequency, marker="o", markersize=4, label=label)
        axis.set(title=f"{name}: {what}", xlabel="predicted probability", xlim=(0, 1), ylim=(0, 1))
    axes[0].set_ylabel("share of true labels")
    axes[0].legend(loc="upper left")
    figure.savefig(path, dpi=150)
    plt.close(figure)
