"""What to annotate next: accuracy as rows of a pool are labelled, in the order that `select` chooses them.

The pool is `--pool` rows of the training part. A model is trained on a twentieth of it, drawn at random, and chooses a
batch of the others, whose labels it is told; it is trained again, and so on up to half of the pool, in `--steps` steps.
Each way to choose goes on from its own models. Precision and propensity-scored precision at 5 are those of the test
part (of `--test` of its rows), or with `--held-out` of training rows beside the pool, on which settings may be chosen.
`--model ridge` is kernel ridge regression in place of a model, whose labels have its clipped predictions for
probabilities: seconds in place of minutes, without "bald". "Rows needed" are those with which a way to choose first
reaches the P@5 that random rows reach at half of the pool, linear between steps. With `--time SET` only the time of one
call is measured, on all training rows of the set that the model was not trained on.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator

from benchmarks import common
from extremegp import LabelTreeGPClassifier, MultiLabelGPClassifier
from extremegp.cli.settings import parse_settings
from extremegp.engine.kept_rows import KeptRows
from extremegp.estimators.selecting import Doubt, SelectsRows
from extremegp.metrics import TopK, precision_at_k, propensities, psp_at_k
from extremegp.prediction.pool_covariance import KnownRegression
from extremegp.prediction.selection import entropies_of_labels

_METHODS = ("random", "posterior", "least_confidence", "bald")
_START, _END = 0.05, 0.5
_RIDGE = 0.3  # noise, beside the kernel exp(-|x - z|^2 / 2)


class Ridge(SelectsRows, BaseEstimator):
    """Regression of the labels on all rows, fitted at once, with the ways to choose of the estimators."""

    def fit(self, x: csr_matrix, y: csr_matrix) -> Ridge:
        self.kernel = KeptRows(0, 0, x.shape[1])
        self.model_, self.seen, self.n_labels = self.kernel.of_others(x), np.unique(y.indices), y.shape[1]
        self.x, targets = x, torch.from_numpy(y[:, self.seen].toarray()).float()
        self.frequencies, gram = targets.mean(0), self.model_.gram()
        gram.diagonal().add_(_RIDGE)
        self.solved = torch.cholesky_solve(targets - self.frequencies, torch.linalg.cholesky(gram))
        return self

    def predicted(self, x: csr_matrix) -> NDArray[np.float32]:
        blocks = [block @ self.solved for block in self.model_.covariances(x)]
        return (self.frequencies + torch.cat(blocks)).numpy()

    def predict_topk(self, x: csr_matrix, k: int) -> TopK:
        best = TopK.from_scores(self.predicted(x), k)
        return TopK(self.seen[best.labels].astype(np.int64), best.scores)

    def _transform(self, X: csr_matrix) -> csr_matrix:
        return X

    def _doubts(self, x: csr_matrix) -> Iterator[Doubt]:
        best = TopK.from_scores(self.predicted(x), min(50, len(self.seen))).scores
        entropies = entropies_of_labels(np.clip(best, 1e-6, 1 - 1e-3))
        yield Doubt(entropies, entropies)

    def _known_regression(self) -> KnownRegression:
        return KnownRegression(self.kernel, _RIDGE, self.x, np.ones(self.x.shape[0]))


_MODELS: dict[str, Any] = {"tree": LabelTreeGPClassifier, "factor": MultiLabelGPClassifier, "ridge": Ridge}


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--sets", type=common.names, default="debian_tags,tib_subjects", metavar="NAME,NAME")
    options.add_argument("--methods", type=common.names, default=",".join(_METHODS), metavar="NAME,NAME")
    options.add_argument("--seeds", type=common.integers, default="0", metavar="N,N")
    options.add_argument("--pool", type=int, default=4000, help="rows of the training part that are the pool")
    options.add_argument("--test", type=int, default=4000, help="rows to judge on, at most")
    options.add_argument("--steps", type=int, default=6, help="batches up to half of the pool")
    options.add_argument("--held-out", action="store_true", help="judge on training rows beside the pool")
    options.add_argument("--model", choices=tuple(_MODELS), default="tree")
    options.add_argument("--time", metavar="SET", help="measure one call on the training part of this set instead")
    options.add_argument("--train", type=int, default=20_000, help="rows to train on for --time")
    options.add_argument("--choose", type=int, default=8000, help="rows to choose for --time")
    common.add_parameters(options, "the model")
    args = common.parse(options)
    warnings.simplefilter("ignore", UserWarning)
    results = {args.time: timed(args)} if args.time else {name: of_set(args, name) for name in args.sets}
    common.finish(args.json, {"results": results}, args)


def of_set(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """The curves of every method, averaged over the seeds."""
    split, curves = common.load_split(args.data, name), {method: [] for method in args.methods}
    sizes: list[int] = []
    for seed in args.seeds:
        order = np.random.default_rng(seed).permutation(split.x.shape[0])
        pool, others = order[: args.pool], order[args.pool : args.pool + args.test]
        test = (split.x[others], split.y[others]) if args.held_out else (split.test_x, split.test_y)
        judge = Judge(csr_matrix(test[0][: args.test]), csr_matrix(test[1][: args.test]), split.y)
        sizes = np.linspace(_START * len(pool), _END * len(pool), args.steps + 1).round().astype(int).tolist()
        first: dict[str, Any] = {}
        for method in args.methods:
            curves[method].append(curve(args, split.x[pool], split.y[pool], sizes, method, seed, judge, first))
            shown = " ".join(f"{100 * point[0]:.2f}" for point in curves[method][-1])
            print(f"{name} seed {seed} {method}: P@5 {shown}", flush=True)
    means = {method: np.mean(found, axis=0) for method, found in curves.items()}
    rows = [
        (f"{size}", *(f"{100 * means[m][i, 0]:.2f} / {100 * means[m][i, 1]:.2f}" for m in means))
        for i, size in enumerate(sizes)
    ]
    common.table(f"{name}: P@5 / PSP@5 after so many rows of {args.pool}", ("rows", *means), rows)
    needed = {}
    if "random" in means:
        target = float(means["random"][-1, 0])
        needed = {method: rows_needed(sizes, found[:, 0], target) for method, found in means.items()}
        shares = [(m, "-" if n is None else f"{n:.0f} ({100 * n / sizes[-1]:.0f} %)") for m, n in needed.items()]
        common.table(f"{name}: rows needed for P@5 {100 * target:.2f}", ("by", "rows"), shares)
    return {"sizes": sizes, "curves": {method: np.array(found).tolist() for method, found in curves.items()}} | {
        "needed": needed
    }


class Judge:
    """Precision and propensity-scored precision at 5 on rows that were kept apart."""

    def __init__(self, x: csr_matrix, y: csr_matrix, trained: csr_matrix) -> None:
        self.x, self.y = x, y
        self.propensities = propensities(np.bincount(trained.indices, minlength=y.shape[1]), trained.shape[0])

    def __call__(self, model: Any) -> tuple[float, float]:
        best = model.predict_topk(self.x, 5)
        scored = psp_at_k(self.y, best, self.propensities, (5,))
        return float(precision_at_k(self.y, best, (5,))[0]), float(scored[0])


def curve(
    args: argparse.Namespace,
    x: csr_matrix,
    y: csr_matrix,
    sizes: list[int],
    method: str,
    seed: int,
    judge: Judge,
    first: dict[str, Any],
) -> list[tuple[float, float]]:
    """What a model reaches with so many rows of a pool; `first` keeps the first model for other methods."""
    rng = np.random.default_rng(seed + 1000)
    known = rng.permutation(x.shape[0])[: sizes[0]]
    points: list[tuple[float, float]] = []
    for size, following in zip(sizes, [*sizes[1:], None], strict=True):
        if size == sizes[0] and first:
            model, point = first["model"], first["point"]
        else:
            model = trained(args, x[known], y[known], seed)
            point = judge(model)
        if size == sizes[0]:
            first |= {"model": model, "point": point}
        points.append(point)
        if following is not None:
            left: NDArray[np.int64] = np.setdiff1d(np.arange(x.shape[0]), known)
            found = model.select(x[left], following - size, method, seed=seed)
            known = np.concatenate([known, left[found.rows]])
    return points


def rows_needed(sizes: list[int], reached: NDArray[np.float64], target: float) -> float | None:
    """The least number of rows with which a curve is at a target; None where it is never there."""
    above = np.flatnonzero(reached >= target)
    if not len(above):
        return None
    i = int(above[0])
    if i == 0:
        return float(sizes[0])
    share = (target - reached[i - 1]) / (reached[i] - reached[i - 1])
    return float(sizes[i - 1] + share * (sizes[i] - sizes[i - 1]))


def trained(args: argparse.Namespace, x: csr_matrix, y: csr_matrix, seed: int) -> Any:
    """A model of these rows; columns of labels that none of them has stay."""
    if args.model == "ridge":
        return Ridge().fit(x, y)
    model = _MODELS[args.model]
    params = parse_settings(args.parameters, model.__name__)
    return model(features="raw", random_state=seed, verbose=False, **params).fit(x, y)


def timed(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of one call for each method."""
    split = common.load_split(args.data, args.time)
    order = np.random.default_rng(0).permutation(split.x.shape[0])
    some, pool = order[: args.train], order[args.train :]
    model, x = trained(args, split.x[some], split.y[some], 0), split.x[pool]
    model.select(x[:64], 8)
    found = {}
    for method in args.methods:
        wall, cpu = time.perf_counter(), time.process_time()
        model.select(x, args.choose, method)
        found[method] = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    rows = [(method, f"{t['seconds']:.1f}", f"{t['cpu_seconds']:.1f}") for method, t in found.items()]
    common.table(f"{args.choose} of {x.shape[0]} rows of {args.time}", ("by", "seconds", "CPU-seconds"), rows)
    return found
