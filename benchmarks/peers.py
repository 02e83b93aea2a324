"""This library and its peers in one run, on the same split and the same features, judged by the same metrics."""

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
from scipy.sparse import load_npz, save_npz

from extremegp.data import write_xc
from extremegp.metrics import TopK, evaluate_topk, propensities

WORKER = Path(__file__).with_name("peer_worker.py")
METHODS = {
    "omikuji": ("omikuji", "omikuji-log"),
    "napkinxc": ("napkinxc-plt", "napkinxc-ovr"),
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


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--set", dest="name", default="bibtex", metavar="NAME", help="the dataset")
    options.add_argument("--peers", type=common.names, default="omikuji,napkinxc,logistic,pecos", metavar="NAME,NAME")
    options.add_argument(
        "--pecos-python",
        metavar="PATH",
        help="interpreter of an environment with libpecos, which needs numpy<2 and scipy<1.14",
    )
    options.add_argument("--logistic-c", type=float, default=10.0, metavar="C", help="inverse regularisation")
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
        for part in ("x", "y", "test_x"):
            save_npz(folder / f"{part}.npz", getattr(split, part))
        # Omikuji refuses rows without features.
        filled = np.diff(split.x.indptr) > 0
        write_xc(folder / "train.txt", split.x[filled], split.y[filled])
        worker_options = {name: getattr(args, name) for name in ("logistic_c", "seed", "model", "parameters")}
        (folder / "options.json").write_text(json.dumps(worker_options), encoding="utf-8")
        for method, python in chosen(args.peers, args.pecos_python):
            print(f"{method} ...", file=sys.stderr, flush=True)
            done = subprocess.run([python, str(WORKER), method, str(folder)], capture_output=True, text=True)
            if done.returncode:
                print(f"{method} failed:\n{done.stderr}", file=sys.stderr)
                failed.append(method)
                continue
            best = TopK.from_csr(load_npz(folder / "scores.npz"), max(common.KS))
            metrics = evaluate_topk(split.test_y, best, chances, common.KS)
            costs = json.loads((folder / "costs.json").read_text(encoding="utf-8"))
            costs["rows_per_second"] = split.test_x.shape[0] / costs["test_seconds"]
            results[method] = costs | {"metrics": metrics}
    title = f"**{args.name}**: {split.x.shape[0]} rows, {split.x.shape[1]} features, {split.y.shape[1]} labels"
    common.table(title, COLUMNS, [row(method, result) for method, result in results.items()])
    common.finish(args.json, {"results": results}, args)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def chosen(peers: list[str], pecos_python: str | None) -> list[tuple[str, str]]:
    """Methods with the interpreters that run them; peers that are not installed are named and left out."""
    methods = [("extremegp", sys.executable)]
    for peer in peers:
        python = pecos_python if peer == "pecos" and pecos_python else sys.executable
        if python == sys.executable and peer != "logistic" and importlib.util.find_spec(peer) is None:
            print(f"{peer} is not installed: left out", file=sys.stderr)
            continue
        methods += [(method, python) for method in METHODS[peer]]
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
    ]


if __name__ == "__main__":
    main()
