"""Cost of a training step as the number of features grows, with inducing inputs on sparse supports.

Synthetic rows have equally many non-zeros whatever D is, so that nothing but the width changes. Every width is measured
in a process of its own, for its peak memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys

import numpy as np
import scipy.sparse

from benchmarks import common
from extremegp import MultiLabelGPClassifier
from extremegp.data import FloatCSR

_TOPICS, _WORDS_OF_A_TOPIC = 1000, 1000


def synthetic(n_rows: int, n_features: int, n_labels: int, n_stored: int, *, seed: int) -> tuple[FloatCSR, FloatCSR]:
    """Rows of two topics each: half of a row's features come from its topics, half from all features by Zipf's law."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(_TOPICS, size=(n_rows, 2))
    words = rng.integers(n_features, size=(_TOPICS, _WORDS_OF_A_TOPIC))
    half = n_stored // 2
    chosen = rng.integers(2, size=(n_rows, half))
    own = words[np.take_along_axis(topics, chosen, axis=1), rng.integers(_WORDS_OF_A_TOPIC, size=(n_rows, half))]
    shared = rng.permutation(n_features)[_zipf(n_features, (n_rows, n_stored - half), rng)]
    columns = np.concatenate([own, shared], axis=1)
    offsets = np.arange(n_rows + 1) * n_stored
    x = scipy.sparse.csr_matrix(
        (np.ones(columns.size, dtype=np.float32), columns.ravel(), offsets), shape=(n_rows, n_features)
    )
    x.sum_duplicates()
    labels = (topics[:, :, None] * 7 + _zipf(40, (n_rows, 2, 2), rng)).reshape(n_rows, 4) % n_labels
    y = scipy.sparse.csr_matrix(
        (np.ones(labels.size, dtype=np.float32), labels.ravel(), np.arange(n_rows + 1) * 4), shape=(n_rows, n_labels)
    )
    y.sum_duplicates()
    y.data[:] = 1.0
    return x, y


def _zipf(size: int, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Ranks 0 to size - 1 with probability nearly proportional to 1 / (rank + 1)."""
    return np.minimum((size ** rng.random(shape)).astype(np.int64) - 1, size - 1)


def measure(args: argparse.Namespace, n_features: int) -> dict[str, float]:
    x, y = synthetic(args.rows, n_features, args.labels, args.stored, seed=args.seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    classifier = MultiLabelGPClassifier(
        inducing="sparse",
        linear_term=False,
        n_inducing=args.inducing,
        epochs=args.epochs,
        batch_size=args.batch,
        random_state=args.seed,
        verbose=False,
    ).fit(x, y)
    seconds = [record["seconds"] for record in classifier.history_]
    steps_per_epoch = -(-args.rows // args.batch)
    return {
        "n_features": n_features,
        "stored_per_row": x.nnz / args.rows,
        # The fastest epoch is the least disturbed one.
        "step_ms": 1e3 * min(np.diff([0.0, *seconds])) / steps_per_epoch,
        "data_mib": before / 1024,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "elbo_per_row": classifier.history_[-1]["elbo"] / args.rows,
    }


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--features", type=common.integers, default=[10**4, 10**5, 10**6], metavar="D,D", help="D")
    options.add_argument("--rows", type=int, default=50_000, metavar="N", help="rows")
    options.add_argument("--labels", type=int, default=5_000, metavar="K", help="labels")
    options.add_argument("--stored", type=int, default=300, metavar="N", help="non-zeros of a row")
    options.add_argument("--inducing", type=int, default=400, metavar="M", help="inducing inputs")
    options.add_argument("--batch", type=int, default=500, metavar="B", help="rows of a step")
    options.add_argument("--epochs", type=int, default=2, metavar="N", help="epochs; the fastest counts")
    options.add_argument("--seed", type=int, default=0, metavar="N", help="seed of data and model")
    options.add_argument("--worker", type=int, metavar="D", help="measure this width alone and print JSON")
    args = common.parse(options)
    if args.worker:
        print(json.dumps(measure(args, args.worker)))
        return
    results = []
    for n_features in args.features:
        command = [
            sys.executable,
            "-m",
            "benchmarks",
            "run",
            "feature_scale",
            *sys.argv[1:],
            "--worker",
            str(n_features),
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        results.append(json.loads(done.stdout))
    first = results[0]
    common.table(
        f"N = {args.rows}, K = {args.labels}, {args.stored} non-zeros a row, M = {args.inducing}, B = {args.batch}",
        ("D", "ms a step", "times the first", "peak memory (MiB)", "times the first", "ELBO a row"),
        [
            (
                f"{r['n_features']}",
                f"{r['step_ms']:.1f}",
                f"{r['step_ms'] / first['step_ms']:.2f}",
                f"{r['peak_mib']:.0f}",
                f"{r['peak_mib'] / first['peak_mib']:.2f}",
                f"{r['elbo_per_row']:.2f}",
            )
            for r in results
        ],
    )
    common.finish(args.json, {"results": results}, args)
