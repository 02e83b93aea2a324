"""Saved models of label trees as they are served: the first prediction of a new process, single rows, batches, memory.

Models that are not in --models are trained there first, by the command line with its defaults. Each is then measured in
a process of its own: seconds from its start to the first prediction of one row, of these the imports (PyTorch and
scikit-learn above all), `load`, and the first prediction itself, which loads numba and compiled code that an earlier
process left on the disk; then calls with one row, and with a batch. Memory is what the process holds after the first
prediction and at the end beside what the imports took, numba not among them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scipy.sparse import save_npz

from benchmarks import common
from extremegp.data import read_xc

SETS = "debian_depends,human_gene_pubmed,moby_thesaurus"
COLUMNS = (
    "",
    "labels",
    "file MB",
    "first prediction s",
    "CPU s",
    "of which imports",
    "load",
    "one row",
    "MB then",
    "MB at the end",
    "one row, median ms",
    "p99 ms",
    "rows/s",
)

# A process of its own, so that nothing is loaded but what it needs.
_SERVE = """
import json, sys, time
started = time.perf_counter()
import numpy as np, psutil, scipy.sparse
from extremegp import load

folder, rows, calls, batch = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def resident(): return psutil.Process().memory_info().rss
imported, held = time.perf_counter(), resident()
model = load(folder)
loaded = time.perf_counter()
x = scipy.sparse.load_npz(rows)
one, begun = x[:1], time.perf_counter()
model.predict_topk(one)
first, processor = time.perf_counter(), time.process_time()
print(flush=True)
then = resident() - held
def seconds(part):
    start = time.perf_counter()
    model.predict_topk(part)
    return time.perf_counter() - start
single = [seconds(x[i % x.shape[0]]) for i in range(calls)]
part = x[:batch]
fastest = min(seconds(part) for _ in range(3))
print(json.dumps({
    "n_labels": len(model.classes_), "import_seconds": imported - started, "load_seconds": loaded - imported,
    "one_seconds": first - begun, "processor_seconds": processor, "bytes_then": then, "bytes_end": resident() - held,
    "median": float(np.median(single)), "p99": float(np.percentile(single, 99)),
    "rows_per_second": part.shape[0] / fastest,
}))
"""


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--sets", type=common.names, default=SETS, metavar="NAME,NAME", help="the datasets")
    options.add_argument("--models", type=Path, metavar="DIR", help="folder of the models; by default a temporary one")
    options.add_argument("--calls", type=int, default=1000, help="timed calls with one row")
    options.add_argument("--batch-size", type=int, default=512)
    options.add_argument("--processes", type=int, default=3, help="processes, of which the median is shown")
    options.add_argument("--seed", type=int, default=0)
    common.add_parameters(options, "LabelTreeGPClassifier")
    args = common.parse(options)
    with tempfile.TemporaryDirectory() as temporary:
        results = {name: measured(args, name, Path(temporary)) for name in args.sets}
    title = f"One row and batches of {args.batch_size} by saved models of label trees"
    common.table(title, COLUMNS, [row(name, result) for name, result in results.items()])
    common.finish(args.json, {"results": results}, args)


def measured(args: argparse.Namespace, name: str, temporary: Path) -> dict[str, Any]:
    """The model of a dataset, in several processes: of every measurement the median."""
    folder = (args.models or temporary) / name
    if not folder.exists():
        train = str(common.data_file(args.data, name, "train"))
        command = [sys.executable, "-m", "extremegp", "train", train, "--out", str(folder), "--model", "tree"]
        settings = [text for pair in args.parameters for text in ("--set", pair)]
        command += ["--features", common.feature_kind(name), "--seed", str(args.seed), "--quiet", *settings]
        subprocess.run(command, check=True)
    rows = temporary / f"{name}.npz"
    x = read_xc(common.data_file(args.data, name, "test")).X
    save_npz(rows, x[: max(args.calls, args.batch_size)])
    runs = [served(args, folder, rows) for _ in range(args.processes)]
    medians = {key: sorted(run[key] for run in runs)[len(runs) // 2] for key in runs[0]}
    return medians | {"file_bytes": (folder / "tensors.safetensors").stat().st_size, "runs": runs}


def served(args: argparse.Namespace, folder: Path, rows: Path) -> dict[str, float]:
    """What a new process takes."""
    command = [sys.executable, "-c", _SERVE, str(folder), str(rows), str(args.calls), str(args.batch_size)]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        first = time.perf_counter() - started
        rest = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"predicting with {folder} failed")
    found: dict[str, float] = json.loads(rest)
    return found | {"first_seconds": first}


def row(name: str, result: dict[str, Any]) -> tuple[str, ...]:
    seconds = (f"{result[f'{part}_seconds']:.2f}" for part in ("first", "processor", "import", "load", "one"))
    sizes = (f"{result[f'bytes_{when}'] / 1e6:.0f}" for when in ("then", "end"))
    times = (f"{1e3 * result[part]:.2f}" for part in ("median", "p99"))
    file = f"{result['file_bytes'] / 1e6:.0f}"
    return (name, f"{result['n_labels']:,}", file, *seconds, *sizes, *times, f"{result['rows_per_second']:.0f}")
