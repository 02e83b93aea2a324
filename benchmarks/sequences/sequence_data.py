"""The sequences of the benchmarks, and one way to measure a method on them."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import common
from extremegp import SequenceGPClassifier
from extremegp.data import ClassSpace, Template, encode_label_sequences, read_columns
from extremegp.metrics import SequenceMetrics

Tokens = list[list[str]]
SUREST = 0.8
SETS = ("basenp", "chunking", "segmentation", "japanesene")


class Labelled(NamedTuple):
    """Sequences of tokens, each with the names of its features, and their labels."""

    X: list[Tokens]
    y: list[list[str]]

    def part(self, numbers: Sequence[int]) -> Labelled:
        return Labelled([self.X[i] for i in numbers], [self.y[i] for i in numbers])


class Answers(NamedTuple):
    """What a method says of test sequences: the classes, labels, marginals T x V, and log p(y) of the true labels."""

    classes: NDArray[Any]
    labels: list[NDArray[Any]]
    marginals: list[NDArray[np.float32]]
    log_prob: NDArray[np.float64]


Method = Callable[[Labelled, Labelled], Answers]


def gpstruct(folder: Path, name: str) -> tuple[Labelled, list[tuple[Labelled, Labelled]]]:
    """A set of the structured-GP benchmark, a token a line as `label f:1 f:1`, and its training and test folds."""
    X: list[Tokens] = [[]]
    y: list[list[str]] = [[]]
    for line in _lines(folder / "gpstruct" / f"{name}.svm.xz"):
        label, *features = line.split() or [""]
        if label:
            X[-1].append([feature.removesuffix(":1") for feature in features])
            y[-1].append(label)
        elif X[-1]:
            X.append([])
            y.append([])
    data = Labelled([tokens for tokens in X if tokens], [labels for labels in y if labels])
    folds = (folder / "gpstruct" / f"{name}.folds.txt").read_text(encoding="ascii").splitlines()
    numbers = [[[int(i) for i in side.split()] for side in line.split("|")] for line in folds if line.strip()]
    return data, [(data.part(train), data.part(test)) for train, test in numbers]


def conll2000(folder: Path, template: Template, limit: int | None = None) -> tuple[Labelled, Labelled]:
    """CoNLL-2000 with the features of a template."""
    parts = []
    for part in ("train", "test"):
        columns = read_columns(folder / "conll2000" / f"{part}.txt.xz", max_sequences=limit)
        assert columns.labels is not None
        parts.append(Labelled([template.expand(sequence) for sequence in columns.sequences], columns.labels))
    return parts[0], parts[1]


def estimator(parameters: dict[str, Any], labels: Sequence[str] | None = None) -> Method:
    """`SequenceGPClassifier` with these parameters, told of these labels."""

    def answer(train: Labelled, test: Labelled) -> Answers:
        settings = {"verbose": False, "random_state": 0, "labels": labels, **parameters}
        model = SequenceGPClassifier(**settings).fit(*train)
        marginals = model.predict_marginals(test.X)
        best = [model.classes_[rows.argmax(1)] for rows in marginals]
        return Answers(model.classes_, best, marginals, model.log_prob(*test))

    return answer


def logistic(train: Labelled, test: Labelled) -> Answers:
    """scikit-learn's multinomial logistic regression, C = 1."""
    from sklearn.linear_model import LogisticRegression

    from extremegp.data import TokenFeatures

    features = TokenFeatures()
    x, _ = features.fit_transform(train.X)
    codes, space = encode_label_sequences(train.y, np.array([len(labels) for labels in train.y]))
    model = LogisticRegression(C=1.0, max_iter=2000).fit(x, codes)
    held, lengths = features.transform(test.X)
    log_proba = model.predict_log_proba(held)
    truth, _ = encode_label_sequences(test.y, lengths, space, "ignore")
    own = np.where(truth < 0, -np.inf, log_proba[np.arange(len(truth)), truth])
    cuts = np.cumsum(lengths)[:-1]
    marginals = np.split(np.exp(log_proba).astype(np.float32), cuts)
    labels = [space.decode(rows.argmax(1)) for rows in marginals]
    return Answers(space.classes, labels, marginals, np.array([part.sum() for part in np.split(own, cuts)]))


def crfsuite(train: Labelled, test: Labelled) -> Answers:
    """crfsuite's conditional random field by L-BFGS, c2 = 0.5."""
    import tempfile

    import pycrfsuite

    trainer = pycrfsuite.Trainer(algorithm="lbfgs", params={"c1": 0.0, "c2": 0.5}, verbose=False)
    for tokens, labels in zip(*train, strict=True):
        trainer.append(tokens, labels)
    with tempfile.TemporaryDirectory() as folder:
        trainer.train(f"{folder}/model")
        tagger = pycrfsuite.Tagger()
        tagger.open(f"{folder}/model")
        space = ClassSpace(np.array(tagger.labels()))
        known = set(tagger.labels())
        answers = []
        for tokens, labels in zip(*test, strict=True):
            best = tagger.tag(tokens)
            rows = [[tagger.marginal(label, t) for label in space.classes] for t in range(len(tokens))]
            seen = known.issuperset(labels)
            answers.append(
                (np.array(best), np.array(rows, np.float32), np.log(tagger.probability(labels)) if seen else -np.inf)
            )
        tagger.close()
    labels_, marginals, log_prob = zip(*answers, strict=True)
    return Answers(space.classes, list(labels_), list(marginals), np.array(log_prob))


def missing(methods: Sequence[str]) -> list[str]:
    """The methods that need a package that is not installed."""
    from importlib.util import find_spec

    return [method for method in methods if method == "crfsuite" and find_spec("pycrfsuite") is None]


PEERS: dict[str, Method] = {"logistic": logistic, "crfsuite": crfsuite}


def measure(method: Method, train: Labelled, test: Labelled, labels: Sequence[str] | None = None) -> dict[str, float]:
    """Error, NLLs and what else `SequenceMetrics` says, ECE of exact probabilities, seconds, and peak memory so far.

    Beside them the error of the 80 % of the tokens that the method is most certain of.

    Args:
        method: what is measured.
        train: the sequences to learn from.
        test: the sequences to answer for.
        labels: all that there are. One that a method does not know has a probability of 1e-15 in its marginals, and
            log p(y) of a sequence with it is what these make of independent tokens.
    """
    started = time.perf_counter()
    answers = method(train, test)
    seconds = time.perf_counter() - started
    answers = answers if labels is None else _completed(answers, np.unique(labels), test)
    metrics = SequenceMetrics(answers.classes)
    metrics.update(test.y, answers.labels, np.concatenate(answers.marginals), sequence_log_prob=answers.log_prob)
    confidence = np.concatenate(answers.marginals).max(axis=1)
    wrong = np.concatenate(answers.labels) != np.concatenate([np.asarray(labels) for labels in test.y])
    surest = np.argsort(-confidence, kind="stable")[: round(SUREST * len(confidence))]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        **metrics.compute(),
        "error_of_surest": float(wrong[surest].mean()),
        "ece_if_exact": common.ece_if_exact(confidence),
        "seconds": seconds,
        "peak_mib": peak,
    }


def _completed(answers: Answers, classes: NDArray[Any], test: Labelled) -> Answers:
    known = np.searchsorted(classes, answers.classes)
    marginals, log_prob = [], answers.log_prob.copy()
    for s, (rows, truth) in enumerate(zip(answers.marginals, test.y, strict=True)):
        full = np.full((len(rows), len(classes)), 1e-15, dtype=np.float32)
        full[:, known] = rows
        marginals.append(full)
        if not np.isfinite(log_prob[s]):
            log_prob[s] = np.log(full[np.arange(len(rows)), np.searchsorted(classes, truth)].astype(float)).sum()
    return Answers(classes, answers.labels, marginals, log_prob)


def _lines(path: Path) -> list[str]:
    import lzma

    return lzma.decompress(path.read_bytes()).decode("ascii").splitlines()
