"""This library and its peers in one run, on the same split and the same features, judged by the same metrics.

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

import common
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, load_npz, save_npz
from sklearn.isotonic import IsotonicRegression

from extremegp.data import write_xc
from extremegp.metrics import TopK, TopLabelRisks, TopProbabilityMetrics, evaluate_topk, propensities

WORKER = Path(__file__).with_name("peer_worker.py")
METHODS = {
    "omikuji": ("omikuji", "omikuji-log"),
    "napkinxc": ("napkinxc-plt", "napkinxc-huffman", "napkinxc-ovr"),
    "logistic": ("logistic",),
    "pecos": ("pecos-xr", "pecos-ovr"),
}
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
)
OF_PROBABILITIES = ("log-loss of 20", "ECE of 20", "area of risk")


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--set", dest="name", default="bibtex", metavar="NAME", help="the dataset")
    options.add_argument("--peers", type=common.names, default="omikuji,napkinxc,logistic,pecos", metavar="NAME,NAME")
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
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        n_held_out = round(args.held_out * split.x.shape[0])
        order = np.random.default_rng(args.seed).permutation(split.x.shape[0])
        held_out, kept = np.sort(order[:n_held_out]), np.sort(order[n_held_out:])
        save_npz(folder / "test_x.npz", split.test_x)
        if n_held_out:
            save_npz(folder / "held_out_x.npz", split.x[held_out])
        # Omikuji refuses rows without features.
        filled = kept[np.diff(split.x.indptr)[kept] > 0]
        write_xc(folder / "train.txt", split.x[filled], split.y[filled])
        worker_options = {name: getattr(args, name) for name in ("logistic_c", "seed", "model", "parameters")}
        (folder / "options.json").write_text(json.dumps(worker_options), encoding="utf-8")
        for method, python in chosen(args.peers, args.methods, args.pecos_python):
            print(f"{method} ...", file=sys.stderr, flush=True)
            rows = np.arange(split.x.shape[0]) if method == "extremegp" else kept
            save_npz(folder / "x.npz", split.x[rows])
            save_npz(folder / "y.npz", split.y[rows])
            done = subprocess.run([python, str(WORKER), method, str(folder)], capture_output=True, text=True)
            if done.returncode:
                print(f"{method} failed:\n{done.stderr}", file=sys.stderr)
                failed.append(method)
                continue
            best = TopK.from_csr(load_npz(folder / "scores.npz"))
            metrics = evaluate_topk(split.test_y, TopK(best.labels[:, :5], best.scores[:, :5]), chances, common.KS)
            if n_held_out and method == "extremegp":
                metrics |= of_probabilities(best, best.scores, split.test_y)
            elif n_held_out:
                scored = TopK.from_csr(load_npz(folder / "held_out_scores.npz"))
                metrics |= of_probabilities(best, calibrated(scored, split.y[held_out], best), split.test_y)
            costs = json.loads((folder / "costs.json").read_text(encoding="utf-8"))
            costs["rows_per_second"] = split.test_x.shape[0] / costs["test_seconds"]
            results[method] = costs | {"metrics": metrics}
    title = f"**{args.name}**: {split.x.shape[0]} rows, {split.x.shape[1]} features, {split.y.shape[1]} labels"
    columns = COLUMNS + (OF_PROBABILITIES if args.held_out else ())
    common.table(title, columns, [row(method, result) for method, result in results.items()])
    common.finish(args.json, {"results": results}, args)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def calibrated(scored: TopK, truth: csr_matrix, best: TopK) -> NDArray[np.float64]:
    """Probabilities of best labels by an isotonic regression on those of other rows."""
    rows, places = np.nonzero(scored.labels >= 0)
    hits = np.asarray(truth[rows, scored.labels[rows, places]]).ravel() > 0
    learnt = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(scored.scores[rows, places], hits)
    listed = best.labels >= 0
    return np.where(listed, learnt.predict(np.where(listed, best.scores, 0).ravel()).reshape(listed.shape), 0)


def of_probabilities(best: TopK, probabilities: NDArray[Any], truth: csr_matrix) -> dict[str, float]:
    """How good the probabilities of best labels are."""
    quality, risks = TopProbabilityMetrics(best.labels.shape[1]), TopLabelRisks(best.labels.shape[1])
    clean = np.where(best.labels >= 0, probabilities, 0)
    quality.update(best, clean, truth)
    risks.update(best, clean, truth)
    return {
        "log_loss": quality.compute()[f"log_loss_top{quality.top}"],
        "ece": quality.compute()[f"ece_top{quality.top}"],
        "risk": risks.risk_coverage().area,
    }


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
        *(f"{metrics[name]:.4f}" for name in ("log_loss", "ece", "risk") if name in metrics),
    ]


if __name__ == "__main__":
    main()
