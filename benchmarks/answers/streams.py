"""Documents that come one by one, in random order: each is predicted, judged, and learnt.

A model, of label trees or with landmarks ("factor"), is trained on the first tenth of the training part. Precision
at 1, 3 and 5 after each further tenth is that of the documents of that tenth: of the model that learns every document
and is never trained again ("learns"), of one that learns and is trained again before each tenth ("learns, refitted"),
and of one that is trained again before each tenth and learns nothing between ("retrained"); "omikuji" is the same of
Omikuji's trees, all as it sets them by default (extra `bench`). Times are of single calls, in milliseconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from benchmarks import common
from extremegp import LabelTreeGPClassifier, MultiLabelGPClassifier
from extremegp.data import write_xc

_RANKS = (1, 3, 5)
_METHODS = ("learns", "learns, refitted", "retrained")


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--sets", type=common.names, default="tib_subjects", metavar="NAME,NAME", help="the datasets")
    options.add_argument("--methods", type=lambda text: text.split(";"), default=list(_METHODS), metavar="NAME;NAME")
    options.add_argument("--model", choices=("tree", "factor"), default="tree")
    options.add_argument("--seed", type=int, default=0)
    args = common.parse(options)
    # Documents without a known word are predicted all the same.
    warnings.simplefilter("ignore", UserWarning)
    results = {name: streamed(args, name) for name in args.sets}
    common.finish(args.json, {"results": results}, args)


def streamed(args: argparse.Namespace, name: str) -> dict[str, Any]:
    split = common.load_split(args.data, name)
    order = np.random.default_rng(args.seed).permutation(split.x.shape[0])
    tenths = np.array_split(order, 10)
    model = MultiLabelGPClassifier if args.model == "factor" else LabelTreeGPClassifier
    trained = partial(_trained, model, args.seed)
    found = {}
    for method in args.methods:
        found[method] = stream(split.x, split.y, tenths, method, trained, args.seed)
        print(method, *(f"{100 * tenth[0]:.1f}" for tenth in found[method]["precision"]), flush=True)
    rows = [
        (f"{10 * (number + 1)} %", *(" ".join(f"{100 * p:.1f}" for p in found[m]["precision"][number]) for m in found))
        for number in range(9)
    ]
    common.table(f"{name}: P@1 P@3 P@5 of the documents after", ("", *found), rows)
    for method, result in found.items():
        times = ", ".join(f"{what} {value:.2f}" for what, value in result["milliseconds"].items())
        print(f"{method}: {times}")
    return found


def stream(
    x: csr_matrix, y: csr_matrix, tenths: list[NDArray[np.int64]], method: str, trained: Callable[..., Any], seed: int
) -> dict[str, Any]:
    """Precisions of every tenth but the first, and medians of times."""
    times: dict[str, list[float]] = {"predict": [], "learn": [], "forget": []}

    def timed(what: str, call: Any, *arguments: Any) -> Any:
        started = time.perf_counter()
        result = call(*arguments)
        times[what].append(time.perf_counter() - started)
        return result

    peers = {"omikuji": _nightly_omikuji, "river": _river}
    if method in peers:
        return {"precision": peers[method](x, y, tenths), "milliseconds": {}, "n_rows": x.shape[0]}
    model = trained(x[tenths[0]], y[tenths[0]])
    precision = []
    for number, rows in enumerate(tenths[1:], start=1):
        if number > 1 and method != "learns":
            before = np.concatenate(tenths[:number])
            model = trained(x[before], y[before])
        if method == "retrained":
            precision.append(_precisions(model.predict_topk(x[rows], max(_RANKS)).labels, y[rows]))
            continue
        best = []
        for row in rows:
            best.append(timed("predict", model.predict_topk, x[row], max(_RANKS)).labels[0])
            timed("learn", model.learn, x[row], y[row])
        precision.append(_precisions(best, y[rows]))
    for name in (
        np.random.default_rng(seed).choice(model.ids_.names, min(200, model.n_rows_ // 4), replace=False).tolist()
    ):
        timed("forget", model.forget, [name])
    medians = {what: 1e3 * float(np.median(values)) for what, values in times.items() if values}
    last = {f"{what} at the end": 1e3 * float(np.median(values[-200:])) for what, values in times.items() if values}
    return {"precision": precision, "milliseconds": medians | last, "n_rows": model.n_rows_}


def _nightly_omikuji(x: csr_matrix, y: csr_matrix, tenths: list[NDArray[np.int64]]) -> list[list[float]]:
    """Precisions of Omikuji's model of all documents before each tenth."""
    import omikuji

    precision = []
    for number, rows in enumerate(tenths[1:], start=1):
        before = np.concatenate(tenths[:number])
        # Omikuji refuses rows without features.
        before = before[np.diff(x[before].indptr) > 0]
        with tempfile.TemporaryDirectory() as folder:
            write_xc(Path(folder) / "train.txt", x[before], y[before])
            model = omikuji.Model.train_on_data(f"{folder}/train.txt", omikuji.Model.default_hyper_param())
        best = []
        for row in rows:
            pairs = list(zip(x[row].indices.tolist(), x[row].data.tolist(), strict=True))
            best.append([label for label, _ in model.predict(pairs, top_k=max(_RANKS))] if pairs else [])
        precision.append(_precisions(best, y[rows]))
    return precision


def _river(x: csr_matrix, y: csr_matrix, tenths: list[NDArray[np.int64]]) -> list[list[float]]:
    """Precisions of a logistic regression of each label that has learnt the documents before, one step for each."""
    from river.linear_model import LogisticRegression

    models = [LogisticRegression() for _ in range(y.shape[1])]
    precision = []
    for number, rows in enumerate(tenths):
        best = []
        for row in rows:
            document = dict(zip(x[row].indices.tolist(), x[row].data.tolist(), strict=True))
            if number:
                scores = np.array([model.predict_proba_one(document)[True] for model in models])
                best.append(np.argsort(-scores, kind="stable")[: max(_RANKS)])
            present = set(y[row].indices.tolist())
            for label, model in enumerate(models):
                model.learn_one(document, label in present)
        if number:
            precision.append(_precisions(best, y[rows]))
    return precision


def _precisions(best: Sequence[Any], y: csr_matrix) -> list[float]:
    """Precisions at the ranks of the best labels of each row, of which there may be too few."""
    hits = np.zeros((len(best), max(_RANKS)))
    for i, labels in enumerate(best):
        hits[i, : len(labels)] = np.isin(labels, y[i].indices)
    return [float(hits[:, :k].mean()) for k in _RANKS]


def _trained(model: Any, seed: int, x: csr_matrix, y: csr_matrix) -> Any:
    return model(features="raw", random_state=seed, verbose=False).fit(x, y)
