"""This library and its peers in one run, on the same split and the same features, judged by the same metrics.

With --tune every peer has its settings chosen first, by a fifth of the training rows, out of `GRIDS`; this library has
its defaults. Differences in P@k have their standard errors, by a paired bootstrap over test rows.

With --held-out a share of the training rows is kept from the peers, for isotonic regressions that make probabilities of
their scores; this library has these rows too, and its own probabilities. Then probabilities are judged as well.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, load_npz, save_npz
from sklearn.isotonic import IsotonicRegression

from benchmarks import common
from extremegp.data import write_xc
from extremegp.metrics import TopK, TopLabelRisks, TopProbabilityMetrics, evaluate_topk, propensities

WORKER = Path(__file__).with_name("peer_worker.py")
METHODS = {
    "omikuji": ("omikuji", "omikuji-log"),
    "napkinxc": ("napkinxc-plt", "napkinxc-huffman", "napkinxc-ovr"),
    "logistic": ("logistic",),
    "lightgbm": ("lightgbm",),
    "pecos": ("pecos-xr", "pecos-ovr"),
}
GRIDS: dict[str, tuple[dict[str, Any], ...]] = {
    "omikuji": tuple({"n_trees": trees, "linear_c": c} for trees in (3, 10) for c in (0.5, 1.0, 2.0)),
    "omikuji-log": tuple({"n_trees": trees, "linear_c": c} for trees in (3, 10) for c in (1.0, 10.0)),
    "napkinxc-plt": tuple({"liblinear_c": c} for c in (1, 4, 10, 30)),
    "napkinxc-huffman": tuple({"liblinear_c": c} for c in (1, 4, 10, 30)),
    "napkinxc-ovr": tuple({"liblinear_c": c} for c in (1, 4, 10, 30)),
    "logistic": tuple({"strength": c} for c in (1.0, 3.0, 10.0, 30.0)),
    "lightgbm": tuple({"n_estimators": n, "learning_rate": rate} for n, rate in ((50, 0.1), (200, 0.05))),
}
"""Settings that are tried of a peer."""
BANDS = {"1 to 10": (1, 10), "11 to 100": (11, 100), "more": (101, 1 << 62)}
"""Training rows that a label has."""
COLUMNS = (
    "",
    "P@1/3/5 %",
    "PSP@1/3/5 %",
    "train CPU s",
    "train s",
    "test CPU s",
    "rows/s",
    "one row, median ms",
    "p99 ms",
    "peak GB",
    "model MB",
)
OF_PROBABILITIES = ("log-loss of 20", "ECE of 20", "ECE@1/3/5", "area of risk")


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--set", dest="name", default="bibtex", metavar="NAME", help="the dataset")
    options.add_argument("--peers", type=common.names, default="omikuji,napkinxc,logistic,pecos", metavar="NAME,NAME")
    options.add_argument(
        "--tune", action="store_true", help="choose settings of the peers by a fifth of the training rows"
    )
    options.add_argument("--plot", type=Path, metavar="FILE", help="draw accuracy against time and memory")
    options.add_argument("--methods", type=common.names, metavar="NAME,NAME", help="of these peers, the ones to run")
    options.add_argument(
        "--pecos-python",
        metavar="PATH",
        help="interpreter of an environment with libpecos, which needs numpy<2 and scipy<1.14",
    )
    options.add_argument("--logistic-c", type=float, default=10.0, metavar="C", help="inverse regularisation")
    options.add_argument(
        "--held-out", type=float, default=0.0, metavar="SHARE", help="of the training rows, to calibrate the peers on"
    )
    options.add_argument("--seed", type=int, default=0, help="of extremegp")
    options.add_argument("--model", choices=("factor", "tree"), default="factor", help="of extremegp")
    common.add_parameters(options)
    args = common.parse(options)
    if unknown := set(args.peers) - METHODS.keys():
        options.error(f"unknown peers {', '.join(sorted(unknown))}; known are {', '.join(METHODS)}")

    split = common.load_split(args.data, args.name)
    chances = propensities(np.asarray(split.y.sum(axis=0)).ravel(), split.y.shape[0])
    results: dict[str, dict[str, Any]] = {}
    failed, tops = [], {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        n_held_out = round(args.held_out * split.x.shape[0])
        order = np.random.default_rng(args.seed).permutation(split.x.shape[0])
        held_out, kept = np.sort(order[:n_held_out]), np.sort(order[n_held_out:])
        save_npz(folder / "test_x.npz", split.test_x)
        if n_held_out:
            save_npz(folder / "held_out_x.npz", split.x[held_out])
        for method, python in chosen(args.peers, args.methods, args.pecos_python):
            print(f"{method} ...", file=sys.stderr, flush=True)
            rows = np.arange(split.x.shape[0]) if method == "extremegp" else kept
            try:
                settings = tuned(args, method, python, split.x[rows], split.y[rows]) if args.tune else {}
                best = run(args, method, python, folder, split.x[rows], split.y[rows], settings)
            except RuntimeError as error:
                print(f"{method} failed:\n{error}", file=sys.stderr)
                failed.append(method)
                continue
            tops[method] = best
            metrics = evaluate_topk(split.test_y, TopK(best.labels[:, :5], best.scores[:, :5]), chances, common.KS)
            if n_held_out and method == "extremegp":
                metrics |= of_probabilities(best, best.scores, split.test_y, split.y)
            elif n_held_out:
                scored = TopK.from_csr(load_npz(folder / "held_out_scores.npz"))
                metrics |= of_probabilities(best, calibrated(scored, split.y[held_out], best), split.test_y, split.y)
            costs = json.loads((folder / "costs.json").read_text(encoding="utf-8"))
            costs["rows_per_second"] = split.test_x.shape[0] / costs["test_seconds"]
            results[method] = costs | {"metrics": metrics, "settings": settings}
    title = f"**{args.name}**: {split.x.shape[0]} rows, {split.x.shape[1]} features, {split.y.shape[1]} labels"
    columns = COLUMNS + (OF_PROBABILITIES if args.held_out else ())
    common.table(title, columns, [row(method, result) for method, result in results.items()])
    compare(results, tops, split.test_y, args.seed)
    if args.held_out:
        common.table(
            "Labels among the 20 best of a row, by the training rows that they have: the sum of their probabilities "
            "over the number that is there",
            ("", *BANDS),
            [
                (method, *(f"{result['metrics'][f'sum {name}']:.2f}" for name in BANDS))
                for method, result in results.items()
            ],
        )
    if args.plot is not None:
        plot(args.plot, args.name, results)
    common.finish(args.json, {"results": results}, args)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def run(
    args: Any, method: str, python: str, folder: Path, x: csr_matrix, y: csr_matrix, settings: dict[str, Any]
) -> TopK:
    """Train a method on rows, and give its best labels of the rows of test_x.npz in the folder.

    Raises:
        RuntimeError: the method failed.
    """
    # Omikuji refuses rows without features.
    filled = np.diff(x.indptr) > 0
    write_xc(folder / "train.txt", x[filled], y[filled])
    save_npz(folder / "x.npz", x)
    save_npz(folder / "y.npz", y)
    options = {name: getattr(args, name) for name in ("logistic_c", "seed", "model", "parameters")}
    (folder / "options.json").write_text(json.dumps(options | {"settings": settings}), encoding="utf-8")
    done = subprocess.run([python, str(WORKER), method, str(folder)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return TopK.from_csr(load_npz(folder / "scores.npz"))


def tuned(args: Any, method: str, python: str, x: csr_matrix, y: csr_matrix) -> dict[str, Any]:
    """The settings of a peer with the highest mean of P@1, P@3 and P@5 on a fifth of the training rows."""
    grid = GRIDS.get(method, ())
    order = np.random.default_rng(args.seed).permutation(x.shape[0])
    held, rest = np.sort(order[: len(order) // 5]), np.sort(order[len(order) // 5 :])
    found: list[tuple[float, dict[str, Any]]] = []
    for settings in grid:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            save_npz(folder / "test_x.npz", x[held])
            best = run(args, method, python, folder, x[rest], y[rest], settings)
        score = float(np.mean([precisions(best, y[held], k).mean() for k in common.KS]))
        found.append((score, settings))
        print(f"  {settings}: {100 * score:.2f}", file=sys.stderr, flush=True)
    return max(found, key=lambda pair: pair[0])[1] if found else {}


def precisions(best: TopK, truth: csr_matrix, k: int) -> NDArray[np.float64]:
    """Precision at k of each row."""
    labels = best.labels[:, :k]
    listed = labels >= 0
    rows = np.broadcast_to(np.arange(len(labels))[:, None], labels.shape)
    hits = np.zeros(labels.shape)
    hits[listed] = np.asarray(truth[rows[listed], labels[listed]]).ravel() > 0
    summed: NDArray[np.float64] = hits.sum(axis=1) / k
    return summed


def compare(results: dict[str, dict[str, Any]], tops: dict[str, TopK], truth: csr_matrix, seed: int) -> None:
    """Print what this library is above each peer, with standard errors over test rows, and keep it in the results."""
    if "extremegp" not in tops:
        return
    rows = []
    for method, best in tops.items():
        if method == "extremegp":
            continue
        pairs = [
            common.paired(precisions(tops["extremegp"], truth, k), precisions(best, truth, k), seed) for k in common.KS
        ]
        results[method]["extremegp_above"] = {f"P@{k}": pair for k, pair in zip(common.KS, pairs, strict=True)}
        shown = [f"{100 * mean:+.2f} ± {100 * error:.2f}" for mean, error in pairs]
        rows.append((method, *shown, json.dumps(results[method]["settings"])))
    columns = ("", *(f"P@{k}" for k in common.KS), "settings of the peer")
    common.table("Points that extremegp is above, with standard errors of a paired bootstrap", columns, rows)


def plot(path: Path, name: str, results: dict[str, dict[str, Any]]) -> None:
    """Draw accuracy against the processor time of training, and against memory."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, cost, what in zip(
        axes, ("train_cpu_seconds", "peak_gigabytes"), ("training, CPU seconds", "peak memory, GB"), strict=True
    ):
        for method, result in results.items():
            place = (result[cost], 100 * result["metrics"]["P@1"])
            axis.scatter(*place, s=28, color="#d1495b" if method == "extremegp" else "#30638e")
            axis.annotate(method, place, xytext=(4, 4), textcoords="offset points", fontsize=8)
        axis.set(xlabel=what, xscale="log")
        axis.margins(x=0.25)
    axes[0].set_ylabel(f"P@1 on {name}, %")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def calibrated(scored: TopK, truth: csr_matrix, best: TopK) -> NDArray[np.float64]:
    """Probabilities of best labels by an isotonic regression on those of other rows."""
    rows, places = np.nonzero(scored.labels >= 0)
    hits = np.asarray(truth[rows, scored.labels[rows, places]]).ravel() > 0
    learnt = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(scored.scores[rows, places], hits)
    listed = best.labels >= 0
    return np.where(listed, learnt.predict(np.where(listed, best.scores, 0).ravel()).reshape(listed.shape), 0)


def of_probabilities(
    best: TopK, probabilities: NDArray[Any], truth: csr_matrix, training: csr_matrix
) -> dict[str, float]:
    """How good the probabilities of best labels are, of all and of labels by their number of training rows."""
    top = best.labels.shape[1]
    quality, risks = TopProbabilityMetrics(top, ks=common.KS), TopLabelRisks(top)
    clean = np.where(best.labels >= 0, probabilities, 0)
    quality.update(best, clean, truth)
    risks.update(best, clean, truth)
    return {
        "log_loss": quality.compute()[f"log_loss_top{quality.top}"],
        "ece": quality.compute()[f"ece_top{quality.top}"],
        "risk": risks.risk_coverage().area,
        **{name: value for name, value in quality.compute().items() if name.startswith("ECE@")},
        **by_band(best, clean, truth, np.bincount(training.indices, minlength=training.shape[1])),
    }


def by_band(best: TopK, probabilities: NDArray[Any], truth: csr_matrix, counts: NDArray[np.int64]) -> dict[str, float]:
    """Of listed labels with so many training rows, the sum of their probabilities over the number that is there."""
    rows, places = np.nonzero(best.labels >= 0)
    labels = best.labels[rows, places]
    hits, chances = np.asarray(truth[rows, labels]).ravel() > 0, probabilities[rows, places]
    found = {}
    for name, (least, most) in BANDS.items():
        of_band = (counts[labels] >= least) & (counts[labels] <= most)
        n_hits = int(hits[of_band].sum())
        found[f"sum {name}"] = float(chances[of_band].sum()) / n_hits if n_hits else float("nan")
    return found


def chosen(peers: list[str], only: list[str] | None, pecos_python: str | None) -> list[tuple[str, str]]:
    """Methods with the interpreters that run them; peers that are not installed are named and left out."""
    methods = [("extremegp", sys.executable)]
    for peer in peers:
        python = pecos_python if peer == "pecos" and pecos_python else sys.executable
        if python == sys.executable and peer != "logistic" and importlib.util.find_spec(peer) is None:
            print(f"{peer} is not installed: left out", file=sys.stderr)
            continue
        methods += [(method, python) for method in METHODS[peer] if only is None or method in only]
    return methods


def row(method: str, result: dict[str, Any]) -> list[str]:
    """One row of the table."""
    metrics = result["metrics"]
    return [
        method,
        common.percentages(metrics[f"P@{k}"] for k in common.KS),
        common.percentages(metrics[f"PSP@{k}"] for k in common.KS),
        *(f"{result[f'{name}_seconds']:.1f}" for name in ("train_cpu", "train", "test_cpu")),
        f"{result['rows_per_second']:.0f}",
        *(f"{1e3 * result[name]:.2f}" for name in ("row_seconds", "row_seconds_p99")),
        f"{result['peak_gigabytes']:.1f}",
        f"{result['model_megabytes']:.1f}",
        *(
            (
                *(f"{metrics[name]:.4f}" for name in ("log_loss", "ece")),
                "/".join(f"{metrics[f'ECE@{k}']:.3f}" for k in common.KS),
                f"{metrics['risk']:.4f}",
            )
            if "log_loss" in metrics
            else ()
        ),
    ]
