"""Rows unlike those of training: how well novelty tells them from test rows, beside two common ways to.

Of sequences: how uncertain tokens are, of the first fold.
"""

from __future__ import annotations

import json
import lzma
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks import common
from benchmarks.classes import class_data
from benchmarks.labels.peer_worker import fit_one_vs_rest
from benchmarks.sequences import sequence_data
from extremegp import MultiClassGPClassifier, MultiLabelGPClassifier, SequenceGPClassifier
from extremegp.cli.settings import parse_settings
from extremegp.data import read_xc
from extremegp.errors import DataError

SETS = ("bibtex", "debian_tags", "clinc150", "fashion-mnist", "chunking")
OTHER_WORDS = {"bibtex": "debian_tags", "debian_tags": "bibtex"}
"""Sets whose rows are seen through each other's vocabulary."""
NOVELTY, EPISTEMIC, PROBABILITY, MAHALANOBIS = (
    "novelty",
    "epistemic uncertainty",
    "logistic regression, 1 - max p",
    "Mahalanobis distance",
)
DIMENSIONS, MOST_BLOCK = 100, 1 << 25


class Case(NamedTuple):
    """A data set, and rows that are not of its kind, by a name."""

    model: Any
    x: Any
    y: Any
    test_x: Any
    foreign: dict[str, Any]


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--sets", type=common.names, default=",".join(SETS), help="the data sets, by commas")
    common.add_parameters(options, "the estimators")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--logistic-c", type=float, default=10.0, metavar="C", help="inverse regularisation")
    options.add_argument("--peer-rows", type=int, default=20_000, metavar="N", help="training rows of the other ways")
    args = common.parse(options)
    results = {
        name: measure_sequences(args, name) if name in sequence_data.SETS else measure(args, name) for name in args.sets
    }
    common.finish(args.json, {"sets": results}, args)


def measure(args: Any, name: str) -> dict[str, Any]:
    """Train on a set, and compare its test rows with foreign ones."""
    case = load(args, name)
    started = time.perf_counter()
    case.model.fit(case.x, case.y)
    seconds = time.perf_counter() - started
    print(f"{name}: trained in {seconds:.1f} s", file=sys.stderr, flush=True)
    rows = {"test": case.test_x, **case.foreign}
    found = {NOVELTY: {part: distances(case.model, x) for part, x in rows.items()}}
    uncertain = {part: epistemic(case.model, x) for part, x in {"training": case.x, **rows}.items()}
    if uncertain["test"] is not None:
        found[EPISTEMIC] = {part: uncertain[part] for part in rows}
    found |= peers(args, case, rows)
    told = {way: {part: areas(scores["test"], scores[part]) for part in case.foreign} for way, scores in found.items()}
    common.table(
        f"**{name}**: test rows from others, AUROC / AUPRC of these in percent; trained in {seconds:.1f} s",
        ("", *case.foreign),
        [
            (way, *(f"{100 * of['auroc']:.2f} / {100 * of['auprc']:.2f}" for of in parts.values()))
            for way, parts in told.items()
        ],
    )
    p = {part: case.model.predict_novelty(x) for part, x in rows.items()}
    means = {part: None if values is None else float(np.mean(values)) for part, values in uncertain.items()}
    common.table(
        "p-values of novelty, and the mean epistemic uncertainty",
        ("", "median p", "p below 0.01", "epistemic"),
        [
            (
                part,
                f"{np.median(p[part]):.4f}" if part in p else "-",
                f"{100 * np.mean(p[part] < 0.01):.1f} %" if part in p else "-",
                "-" if mean is None else f"{mean:.4f}",
            )
            for part, mean in means.items()
        ],
    )
    shares = {part: float(np.mean(values < 0.01)) for part, values in p.items()}
    return {"seconds": seconds, "told": told, "below_0.01": shares, "epistemic": means}


def measure_sequences(args: Any, name: str) -> dict[str, Any]:
    """Train on sequences, and compare their uncertainty with that of tokens without any order in their features."""
    _, ((train, test), *_) = sequence_data.gpstruct(args.data, name)
    parameters = {
        "random_state": args.seed,
        "verbose": False,
        **parse_settings(args.parameters, "SequenceGPClassifier"),
    }
    started = time.perf_counter()
    model = SequenceGPClassifier(**parameters).fit(*train)
    seconds = time.perf_counter() - started
    words = iter(np.random.default_rng(args.seed).permutation([word for s in test.X for token in s for word in token]))
    tokens = {
        "training": train.X,
        "test": test.X,
        "words shuffled": [[[str(next(words)) for _ in token] for token in s] for s in test.X],
        "words never seen": [[[f"never seen: {word}" for word in token] for token in s] for s in test.X],
    }
    found = {part: model.predict_uncertainty(x) for part, x in tokens.items()}
    means = {part: float(np.concatenate([of.epistemic for of in parts]).mean()) for part, parts in found.items()}
    p = {part: np.concatenate([of.novelty for of in parts]) for part, parts in found.items()}
    shares = {part: float(np.mean(values < 0.01)) for part, values in p.items()}
    common.table(
        f"**{name}**: tokens; trained in {seconds:.1f} s",
        ("", "median p", "p below 0.01", "epistemic"),
        [
            (part, f"{np.median(p[part]):.4f}", f"{100 * shares[part]:.1f} %", f"{mean:.4f}")
            for part, mean in means.items()
        ],
    )
    return {"seconds": seconds, "below_0.01": shares, "epistemic": means}


def load(args: Any, name: str) -> Case:
    """A set by its name, with what is foreign to it."""
    parameters = {"random_state": args.seed, "verbose": False, **parse_settings(args.parameters)}
    rng = np.random.default_rng(args.seed)
    if name == "clinc150":
        return clinc(args.data / name, MultiClassGPClassifier(**parameters))
    if name in class_data.PIXELS:
        split = class_data.load(args.data, name)
        foreign = {"pixels permuted": split.test_x[:, rng.permutation(split.x.shape[1])]}
        other = next(of for of in class_data.PIXELS if of != name)
        try:
            foreign[other] = class_data.load(args.data, other).test_x
        except DataError:
            print(f"{name}: {other} is not there", file=sys.stderr)
        return Case(MultiClassGPClassifier(**parameters), split.x, split.y, split.test_x, foreign)
    train, test = (read_xc(common.data_file(args.data, name, part)) for part in ("train", "test"))
    foreign = {"random rows": random_rows(test.X, rng), "features permuted": permuted(test.X, rng)}
    if name in OTHER_WORDS:
        foreign[f"{OTHER_WORDS[name]}, known words"] = seen_through(args.data, OTHER_WORDS[name], name, train.X)
    model = MultiLabelGPClassifier(**({"features": common.feature_kind(name)} | parameters))
    return Case(model, train.X, train.Y, test.X, foreign)


def clinc(folder: Path, model: Any) -> Case:
    """Queries as words beside frozen embeddings, and those out of scope."""

    def part(name: str) -> tuple[dict[str, Any], list[str]]:
        with lzma.open(folder / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        vectors = np.load(folder / f"{name}.minilm.npy").astype(np.float32)
        return {"text": [record["text"] for record in records], "vector": vectors}, [r["label"] for r in records]

    (x, y), (test_x, _), (foreign, _) = map(part, ("train", "test", "oos_test"))
    return Case(model.set_params(features={"text": "text", "vector": "unit"}), x, y, test_x, {"out of scope": foreign})


def random_rows(x: csr_matrix, rng: np.random.Generator) -> csr_matrix:
    """Rows of as many features with the same values, but which ones is drawn."""
    columns = [np.sort(rng.choice(x.shape[1], n, replace=False)) for n in np.diff(x.indptr)]
    return csr_matrix((x.data, np.concatenate(columns), x.indptr), shape=x.shape)


def permuted(x: csr_matrix, rng: np.random.Generator) -> csr_matrix:
    """Rows whose features have changed places, the same in all."""
    return csr_matrix(x[:, rng.permutation(x.shape[1])]).sorted_indices()


def seen_through(folder: Path, name: str, own: str, x: csr_matrix) -> csr_matrix:
    """Test rows of another set with those of their words that this one knows; once each where this set counts so."""
    other, words = (vocabulary(folder, of) for of in (name, own))
    known = {word: column for column, word in enumerate(words)}
    pairs = [(row, known[word]) for row, word in enumerate(other) if word in known]
    moved = csr_matrix((np.ones(len(pairs), np.float32), tuple(zip(*pairs, strict=True))), (len(other), x.shape[1]))
    rows = csr_matrix(read_xc(common.data_file(folder, name, "test")).X @ moved)
    rows = rows[np.diff(rows.indptr) > 0].sorted_indices()
    if x.data.max() == 1:
        rows.data[:] = 1
    return rows


def vocabulary(folder: Path, name: str) -> list[str]:
    with lzma.open(folder / name / "vocab.txt.xz", "rt", encoding="utf-8") as lines:
        return lines.read().splitlines()


def distances(model: Any, x: Any) -> NDArray[np.float64]:
    """How far rows are from those of training, without the ties of p-values."""
    features: NDArray[np.float64] = model.novelty_.distances(
        model.features_.transform(x), model.features_.unknown_shares(x)
    )
    return features


def epistemic(model: Any, x: Any) -> NDArray[np.float64] | None:
    """Epistemic uncertainty of every row, where the estimator tells it."""
    if not hasattr(model, "predict_uncertainty"):
        return None
    return np.asarray(model.predict_uncertainty(x).epistemic, dtype=np.float64)


def peers(args: Any, case: Case, rows: dict[str, Any]) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Scores of all rows by logistic regression and by Gaussians, on the features that the estimator sees."""
    transform = case.model.features_.transform
    x, y, inputs = transform(case.x), case.y, {part: transform(of) for part, of in rows.items()}
    if x.shape[0] > args.peer_rows:
        chosen = np.random.default_rng(args.seed).choice(x.shape[0], args.peer_rows, replace=False)
        x, y = x[chosen], y[chosen] if hasattr(y, "shape") else [y[i] for i in chosen]
    logistic = fit_one_vs_rest(x, y, args.logistic_c) if issparse(y) else None
    if logistic is None:
        logistic = LogisticRegression(C=args.logistic_c, max_iter=200).fit(x, y)
    step = max(1, MOST_BLOCK // logistic.classes_.size)

    def least_sure(of: Any) -> NDArray[np.float64]:
        blocks = [of[start : start + step] for start in range(0, of.shape[0], step)]
        return np.concatenate([1 - logistic.predict_proba(block).max(axis=1) for block in blocks])

    size = min(DIMENSIONS, x.shape[1] - 1, x.shape[0] - 1)
    reduction = (TruncatedSVD if issparse(x) else PCA)(size, random_state=args.seed).fit(x)
    distance = class_distances(reduction.transform(x), None if issparse(y) else np.asarray(y))
    return {
        PROBABILITY: {part: least_sure(of) for part, of in inputs.items()},
        MAHALANOBIS: {part: distance(reduction.transform(of)) for part, of in inputs.items()},
    }


def class_distances(x: NDArray[Any], y: NDArray[Any] | None) -> Any:
    """The squared Mahalanobis distance from the nearest mean of a class, or of all rows; one covariance for all."""
    codes = np.zeros(len(x), int) if y is None else np.unique(y, return_inverse=True)[1]
    means = np.stack([x[codes == c].mean(axis=0) for c in range(codes.max() + 1)])
    root = np.linalg.cholesky(LedoitWolf().fit(x - means[codes]).precision_)
    centres = means @ root

    def nearest(new: NDArray[Any]) -> NDArray[np.float64]:
        points = new @ root
        return np.min([np.square(points - centre).sum(axis=1) for centre in centres], axis=0)

    return nearest


def areas(inside: NDArray[Any], foreign: NDArray[Any]) -> dict[str, float]:
    """How well scores, larger for what is foreign, tell the two: areas below the curves."""
    truth = np.repeat([0, 1], [len(inside), len(foreign)])
    scores = np.concatenate([inside, foreign])
    return {"auroc": float(roc_auc_score(truth, scores)), "auprc": float(average_precision_score(truth, scores))}
