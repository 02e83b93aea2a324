"""Sets of labels: the highest expected F1 of each row beside thresholds, in the mean F1 of test rows.

A fifth of the training part is held out: thresholds (one for all labels, for five bands of them by frequency, for
each label) are chosen on it, by the probabilities of a model of the other rows. The sets with the highest expected F1
need no such rows. "left to people" is the mean F1 of the rows that are kept where the fifth with the lowest expected F1
is not. Standard errors are over test rows, of differences from the sets with the highest expected F1.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from benchmarks import common
from extremegp import LabelTreeGPClassifier, MultiLabelGPClassifier

_MOST_TEST_ROWS = 8000


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--sets", type=common.names, default="bibtex,debian_tags", metavar="NAME,NAME")
    options.add_argument("--model", choices=("tree", "factor"), default="factor")
    options.add_argument("--seed", type=int, default=0)
    args = common.parse(options)
    warnings.simplefilter("ignore", UserWarning)
    results = {name: decided(args, name) for name in args.sets}
    rows = []
    for name, found in results.items():
        f1 = found["example_f1"]
        told = [f"{100 * f1[how]['mean']:.1f}" + _of(f1[how]) for how in f1]
        rows.append((name, *told, f"{100 * found['kept_f1']:.1f}", f"{100 * found['expected_f1']:.1f}"))
    columns = ("expected F1", "0.5", "one threshold", "of bands", "of labels")
    common.table("mean F1 of test rows, %", ("", *columns, "left to people", "as expected"), rows)
    common.finish(args.json, {"results": results}, args)


def _of(found: dict[str, float]) -> str:
    return f" ({100 * found['difference']:+.1f} ± {100 * found['standard_error']:.1f})" if "difference" in found else ""


def decided(args: argparse.Namespace, name: str) -> dict[str, Any]:
    split = common.load_split(args.data, name)
    order = np.random.default_rng(args.seed).permutation(split.x.shape[0])
    held, trained = np.sort(order[: len(order) // 5]), np.sort(order[len(order) // 5 :])
    kind = LabelTreeGPClassifier if args.model == "tree" else MultiLabelGPClassifier
    started = time.perf_counter()
    model = kind(features="raw", random_state=args.seed, verbose=False).fit(split.x[trained], split.y[trained])
    seconds = {"train": time.perf_counter() - started}
    test_x, test_y = split.test_x[:_MOST_TEST_ROWS], split.test_y[:_MOST_TEST_ROWS]
    started = time.perf_counter()
    best = model.decide(test_x)
    seconds["decide"] = time.perf_counter() - started
    of_best = f1_of_rows(best.labels, test_y)
    found: dict[str, Any] = {"best": {"mean": float(of_best.mean())}}
    for how in ("half", "all", "band", "label"):
        threshold = 0.5 if how == "half" else model.best_thresholds(split.x[held], split.y[held], how)
        of_rows = f1_of_rows(model.decide(test_x, "threshold", threshold=threshold).labels, test_y)
        difference = of_rows - of_best
        found[how] = {
            "mean": float(of_rows.mean()),
            "difference": float(difference.mean()),
            "standard_error": float(difference.std() / len(difference) ** 0.5),
        }
    kept = best.expected_f1 >= np.quantile(best.expected_f1, 0.2)
    return {
        "example_f1": found,
        "expected_f1": float(best.expected_f1.mean()),
        "kept_f1": float(of_best[kept].mean()),
        "n_test": test_x.shape[0],
        "seconds": seconds,
    }


def f1_of_rows(labels: csr_matrix, truth: csr_matrix) -> NDArray[np.float64]:
    """F1 of the set of each row, 1 for two empty ones."""
    chosen, true = csr_matrix(labels), csr_matrix(truth)
    hits = np.asarray(chosen.multiply(true).sum(axis=1), np.float64).ravel()
    both = np.diff(chosen.indptr) + np.diff(true.indptr)
    return np.where(both > 0, 2 * hits / np.maximum(both, 1), 1.0)
