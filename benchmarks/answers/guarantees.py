"""Promises of recall: what sets hold on other rows, and how large they are, beside Omikuji's under the same control.

A model is trained on the training part. Its test rows are split into halves at random, --splits times: one half makes
the promise, the sets of the other half are judged, for all labels at once and for each of five bands of labels by
frequency. Omikuji's scores are made probabilities by an isotonic regression on a twentieth of its training rows. Of
both, sets are chosen of the 400 best labels of a row; Omikuji searches with a beam of 100 for them. "kept" is the share
of rows that the promise is for.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.isotonic import IsotonicRegression

from benchmarks import common
from extremegp import LabelTreeGPClassifier, MultiLabelGPClassifier
from extremegp.data import write_xc
from extremegp.errors import DataError
from extremegp.estimators.guarantees import Guarantee, label_groups, with_truth
from extremegp.prediction.decisions import MOST_LABELS, Candidates

_BEAM = 100  # of Omikuji's search, whose default of ten finds too few labels to promise anything of


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--sets", type=common.names, default="bibtex,debian_tags", metavar="NAME,NAME")
    options.add_argument("--model", choices=("tree", "factor"), default="tree")
    options.add_argument("--methods", type=common.names, default="extremegp,omikuji", metavar="NAME,NAME")
    options.add_argument("--level", type=float, default=0.9)
    options.add_argument("--splits", type=int, default=20)
    options.add_argument("--rows", type=int, default=8000, help="at most so many test rows")
    options.add_argument("--train-rows", type=int, default=10**9, help="at most so many training rows")
    options.add_argument("--seed", type=int, default=0)
    args = common.parse(options)
    warnings.simplefilter("ignore", UserWarning)
    results: dict[str, Any] = {}
    for name in args.sets:
        for method in args.methods:
            results[f"{name}: {method}"] = found = promised(args, name, method)
            for per in ("all", "band"):
                print(name, method, per, *(f"{key} {_told(value)}" for key, value in found[per].items()), flush=True)
    common.finish(args.json, {"results": results}, args)


def _told(value: Any) -> str:
    return " ".join(f"{each:.3f}" for each in np.atleast_1d(value))


def promised(args: argparse.Namespace, name: str, method: str) -> dict[str, Any]:
    split = common.load_split(args.data, name)
    rng = np.random.default_rng(args.seed)
    trained = np.sort(rng.permutation(split.x.shape[0])[: args.train_rows])
    test = np.sort(rng.permutation(split.test_x.shape[0])[: args.rows])
    x, y, test_x, test_y = split.x[trained], split.y[trained], split.test_x[test], split.test_y[test]
    started = time.perf_counter()
    candidates = (_omikuji if method == "omikuji" else _own)(args, x, y, test_x)
    seconds = time.perf_counter() - started
    found: dict[str, Any] = {"seconds": seconds}
    for per in ("all", "band"):
        groups = label_groups(np.bincount(y.indices, minlength=y.shape[1]), per)
        splits = [of_split(candidates, test_y, groups, args.level, seed) for seed in range(args.splits)]
        found[per] = {key: np.nanmean([each[key] for each in splits], axis=0).tolist() for key in splits[0]}
    return found


def of_split(
    candidates: Candidates, y: csr_matrix, groups: NDArray[np.int64], level: float, seed: int
) -> dict[str, Any]:
    """What sets of one half hold that the other half promised: by group, and of all labels."""
    order = np.random.default_rng(seed).permutation(y.shape[0])
    half, other = order[: len(order) // 2], order[len(order) // 2 :]
    n_groups, none = int(groups.max()) + 1, np.zeros(len(order), np.int64)

    def blocks(rows: NDArray[np.int64]) -> Iterator[Any]:
        own = Candidates(candidates.labels[rows], candidates.probabilities[rows], candidates.others[rows])
        return with_truth(iter([(slice(0, len(rows)), own)]), y[rows], none, groups)

    try:
        promise = Guarantee.of(blocks(half), groups, promise="recall", level=level)
    except DataError:
        gone = np.full(n_groups, np.nan)
        return {"recall": gone, "recall of all": np.nan, "size": np.nan, "kept": np.zeros(n_groups)}
    (block,) = blocks(other)
    chosen, of_groups = promise.chosen(block.candidates)
    recall, right = [], np.zeros(len(other))
    for group in range(n_groups):
        own = chosen & (groups[block.candidates.labels] == group)
        hits = (own & block.hits).sum(axis=1)
        right += hits
        judged = of_groups[:, group] & (block.n_true[:, group] > 0)
        shares = hits[judged] / block.n_true[judged, group]
        recall.append(shares.mean() if judged.any() else np.nan)
    n_true = block.n_true.sum(axis=1)
    labelled = (n_true > 0) & of_groups.any(axis=1)
    return {
        "recall": np.array(recall),
        "recall of all": (right[labelled] / n_true[labelled]).mean(),
        "size": chosen[of_groups.any(axis=1)].sum(axis=1).mean(),
        "kept": of_groups.mean(axis=0),
    }


def _own(args: argparse.Namespace, x: csr_matrix, y: csr_matrix, test_x: csr_matrix) -> Candidates:
    kind = LabelTreeGPClassifier if args.model == "tree" else MultiLabelGPClassifier
    model = kind(features="raw", random_state=args.seed, verbose=False).fit(x, y)
    blocks = [block for _, block in model.predictor().likeliest(test_x, min(MOST_LABELS, y.shape[1]))]
    width = max(block.labels.shape[1] for block in blocks)

    def joined(name: str, fill: float) -> Any:
        return np.concatenate(
            [
                np.pad(b, ((0, 0), (0, width - b.shape[1])), constant_values=fill)
                for b in (getattr(b, name) for b in blocks)
            ]
        )

    others = np.concatenate([block.others for block in blocks])
    return Candidates(joined("labels", -1), joined("probabilities", 0), others)


def _omikuji(args: argparse.Namespace, x: csr_matrix, y: csr_matrix, test_x: csr_matrix) -> Candidates:
    import omikuji

    order = np.random.default_rng(args.seed).permutation(x.shape[0])
    held, trained = order[: len(order) // 20], order[len(order) // 20 :]
    # Omikuji refuses rows without features.
    trained = trained[np.diff(x[trained].indptr) > 0]
    with tempfile.TemporaryDirectory() as folder:
        write_xc(Path(folder) / "train.txt", x[trained], y[trained])
        model = omikuji.Model.train_on_data(f"{folder}/train.txt", omikuji.Model.default_hyper_param())

    def ranked(rows: csr_matrix) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        labels = np.full((rows.shape[0], MOST_LABELS), -1, np.int64)
        scores = np.zeros(labels.shape)
        for place in range(rows.shape[0]):
            own = rows[place]
            pairs = list(zip(own.indices.tolist(), own.data.tolist(), strict=True))
            best = model.predict(pairs, beam_size=_BEAM, top_k=MOST_LABELS) if pairs else []
            labels[place, : len(best)] = [label for label, _ in best]
            scores[place, : len(best)] = [score for _, score in best]
        return labels, scores

    labels, scores = ranked(x[held])
    hits = np.concatenate([np.isin(labels[i], y[row].indices)[labels[i] >= 0] for i, row in enumerate(held)])
    learnt = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(scores[labels >= 0], hits)
    labels, scores = ranked(test_x)
    # Scores order those that the regression makes equal.
    p = np.where(labels >= 0, learnt.predict(scores.ravel()).reshape(scores.shape) + 1e-6 * scores, 0)
    best = np.argsort(-p, axis=1, kind="stable")
    return Candidates(np.take_along_axis(labels, best, 1), np.take_along_axis(p, best, 1), np.zeros(len(p)))
