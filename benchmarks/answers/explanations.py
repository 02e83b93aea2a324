"""Whether explanations name the training documents that a prediction rests on: these are forgotten, or others.

Of test rows the most probable label is explained. Then a copy of the model forgets the --removed documents with the
largest shares, and another as many that have the label and are nearest by cosine, or are nearest whether they have it
or not. Told is by how much the log-odds of the label fall, with the standard error, and in how many rows they fall more
than for the nearest ones. "off" is how far shares are from adding up to the regression.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from extremegp import LabelTreeGPClassifier, MultiLabelGPClassifier


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--sets", type=common.names, default="bibtex,debian_tags", metavar="NAME,NAME")
    options.add_argument("--model", choices=("tree", "factor"), default="tree")
    options.add_argument("--train-rows", type=int, default=4000, help="at most so many training rows")
    options.add_argument("--rows", type=int, default=200, help="predictions")
    options.add_argument("--removed", type=int, default=5, help="documents that are forgotten")
    options.add_argument("--seed", type=int, default=0)
    args = common.parse(options)
    warnings.simplefilter("ignore", UserWarning)
    results = {name: explained(args, name) for name in args.sets}
    columns = ("largest shares", "nearest with the label", "nearest", "more than these", "than those", "off")
    rows = []
    for name, found in results.items():
        falls = [f"{found[how]['mean']:.2f} ± {found[how]['standard_error']:.2f}" for how in _WAYS]
        shares = [f"{100 * found['wins'][how]:.0f} %" for how in _WAYS[1:]]
        rows.append((name, *falls, *shares, f"{found['off']:.1e}"))
    common.table("How far the log-odds fall when documents are forgotten", ("", *columns), rows)
    common.finish(args.json, {"results": results}, args)


_WAYS = ("shares", "labelled", "nearest")


def explained(args: argparse.Namespace, name: str) -> dict[str, Any]:
    split, rng = common.load_split(args.data, name), np.random.default_rng(args.seed)
    trained = np.sort(rng.permutation(split.x.shape[0])[: args.train_rows])
    x, y = split.x[trained], split.y[trained]
    kind = LabelTreeGPClassifier if args.model == "tree" else MultiLabelGPClassifier
    model: Any = kind(features="raw", random_state=args.seed, verbose=False).fit(x, y, ids=range(len(trained)))
    falls: dict[str, list[float]] = {how: [] for how in _WAYS}
    off = 0.0
    for row in rng.permutation(split.test_x.shape[0])[: args.rows].tolist():
        one = split.test_x[row]
        told = model.explain(one, k=1, n=args.removed)[0][0]
        shares = sum(share.share for share in told.documents)
        off = max(off, abs(shares - (told.regression - told.frequency)))
        named = [share.name for share in told.documents if share.name != "others"]
        cosines = np.asarray((x @ one.T).todense()).ravel()
        having = np.asarray(y[:, told.label].todense()).ravel() > 0
        n = len(named)
        groups = (named, nearest(np.where(having, cosines, -1), n), nearest(cosines, n))
        for how, ids in zip(_WAYS, groups, strict=True):
            falls[how].append(fall(model, one, told.label, ids, told.probability))
    values = {how: np.array(found) for how, found in falls.items()}
    result: dict[str, Any] = {
        how: {"mean": float(found.mean()), "standard_error": float(found.std() / len(found) ** 0.5)}
        for how, found in values.items()
    }
    wins = {how: float((values["shares"] > values[how]).mean()) for how in _WAYS[1:]}
    return result | {"wins": wins, "off": off, "n_rows": len(values["shares"])}


def nearest(cosines: NDArray[np.float64], n: int) -> list[str]:
    return [str(place) for place in np.argsort(-cosines, kind="stable")[:n].tolist()]


def fall(model: Any, x: Any, label: int, ids: list[str], before: float) -> float:
    """Of the log-odds of a label, when a copy of the model forgets rows."""
    other = copy.deepcopy(model)
    other.forget(ids)
    after = float(other.predict_proba(x)[0, label])
    p = np.clip([before, after], 1e-6, 1 - 1e-6)
    return float(np.subtract(*np.log(p / (1 - p))))
