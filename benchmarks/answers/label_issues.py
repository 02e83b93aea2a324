"""Planted errors: how well they are found, and how fast, beside cleanlab.

Of the labels of a training part 5 % are taken away, and as many wrong ones are added at pairs of a row and a label
drawn at random. Average precision of the ranking by `find_label_issues`: of pairs that are not recorded for those taken
away, of recorded ones for those added, and of all. Beside it cleanlab's dense scores of labels, its self-confidence
of each pair, on out-of-sample probabilities of five folds of scikit-learn's one-vs-rest logistic regression; `--python`
names an interpreter that has cleanlab. Times are of all that each needs.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, save_npz
from sklearn.metrics import average_precision_score

from benchmarks import common
from extremegp import LabelTreeGPClassifier, MultiLabelGPClassifier
from extremegp.training.judging import planted

_PEER = """
import sys, time
import numpy as np, scipy.sparse
from cleanlab.internal.multilabel_scorer import ClassLabelScorer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
folder = sys.argv[1]
x, y = (scipy.sparse.load_npz(f"{folder}/{name}.npz") for name in "xy")
started = time.perf_counter()
labels = y.toarray() > 0
p = np.zeros(labels.shape)
for known, held in KFold(5, shuffle=True, random_state=0).split(labels):
    for k in range(labels.shape[1]):
        truth = labels[known, k]
        if truth.any() and not truth.all():
            fitted = LogisticRegression(C=float(sys.argv[2]), solver="liblinear").fit(x[known], truth)
            p[held, k] = fitted.predict_proba(x[held])[:, 1]
        else:
            p[held, k] = truth.mean()
scores = np.stack([
    ClassLabelScorer.SELF_CONFIDENCE(labels[:, k].astype(int), np.stack([1 - p[:, k], p[:, k]], axis=1))
    for k in range(labels.shape[1])
], axis=1)
np.savez(f"{folder}/scores.npz", scores=1 - scores, seconds=time.perf_counter() - started)
"""


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--sets", type=common.names, default="bibtex,debian_tags", metavar="NAME,NAME")
    options.add_argument("--model", choices=("factor", "tree"), default="factor")
    options.add_argument("--rows", type=int, default=10**9, help="at most so many rows of each")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--python", default=sys.executable, help="an interpreter with cleanlab; none to leave it out")
    args = common.parse(options)
    results = {name: run(args, name) for name in args.sets}
    for name, found in results.items():
        rows = [
            (who, *(f"{each[what]:.3f}" for what in ("removed", "added", "all")), f"{each['seconds']:.0f} s")
            for who, each in found.items()
        ]
        common.table(f"{name}: average precision of planted errors", ("", "removed", "added", "all", "time"), rows)
    common.finish(args.json, {"results": results}, args)


def run(args: argparse.Namespace, name: str) -> dict[str, Any]:
    split = common.load_split(args.data, name)
    order = np.random.default_rng(args.seed).permutation(split.x.shape[0])[: args.rows]
    x, rng = split.x[order], np.random.default_rng(args.seed)
    recorded, errors = planted(split.y[order].toarray() > 0, rng)
    y = csr_matrix(recorded, dtype=np.float32)
    found = {"extremegp": judged(y, errors, *ours(args, x, y))}
    print(name, found, flush=True)
    if args.python != "none":
        found["cleanlab"] = judged(y, errors, *peer(args.python, x, y))
        print(name, found["cleanlab"], flush=True)
    return found


def ours(args: argparse.Namespace, x: csr_matrix, y: csr_matrix) -> tuple[NDArray[np.float64], float]:
    """Scores of all pairs, and seconds."""
    started = time.perf_counter()
    estimator = MultiLabelGPClassifier if args.model == "factor" else LabelTreeGPClassifier
    model = estimator(features="raw", random_state=args.seed, verbose=False).fit(x, y)
    fitted = time.perf_counter()
    issues = model.find_label_issues(kinds=("missing", "wrong"), n=10**7, k=100)
    print(f"fit {fitted - started:.1f} s, issues {time.perf_counter() - fitted:.1f} s", flush=True)
    scores = np.zeros(y.shape)
    for issue in issues:
        scores[issue.row, issue.label] = issue.probability
    return scores, time.perf_counter() - started


def peer(python: str, x: csr_matrix, y: csr_matrix) -> tuple[NDArray[np.float64], float]:
    """The same of cleanlab."""
    with tempfile.TemporaryDirectory() as folder:
        save_npz(Path(folder) / "x.npz", x)
        save_npz(Path(folder) / "y.npz", y)
        subprocess.run([python, "-c", _PEER, folder, "1.0"], check=True)
        with np.load(Path(folder) / "scores.npz") as saved:
            return saved["scores"], float(saved["seconds"])


def judged(y: csr_matrix, errors: NDArray[np.bool_], scores: NDArray[np.float64], seconds: float) -> dict[str, float]:
    recorded = y.toarray() > 0
    parts = {"removed": ~recorded, "added": recorded, "all": np.ones_like(recorded)}
    found = {what: float(average_precision_score(errors[some], scores[some])) for what, some in parts.items()}
    return found | {"seconds": seconds}
