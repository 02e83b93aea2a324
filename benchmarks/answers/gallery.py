"""Pictures of what a model says: where to trust it, what a known label does to the others, unsure words of a sentence.

Documents are those of the bundled dataset, sentences those of CoNLL-2000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from benchmarks.sequences import sequence_data
from extremegp import MultiLabelGPClassifier, SequenceGPClassifier, datasets, plots
from extremegp.data import CHUNKING_TEMPLATE, read_columns
from extremegp.metrics import LabelRisks

N_SHOWN = 10
N_SENTENCES = 400
OURS, OTHER = "#d1495b", "#30638e"


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--out", type=Path, default=common.ROOT / "docs" / "images", metavar="DIR", help="of pictures")
    options.add_argument("--only", type=common.names, default=",".join(PICTURES), metavar="NAME,NAME")
    options.add_argument("--sentences", type=int, default=N_SENTENCES, help="of CoNLL-2000 to learn from")
    options.add_argument("--words", type=common.integers, default="14,20", metavar="N,N", help="of the sentence shown")
    args = common.parse(options)
    if unknown := set(args.only) - PICTURES.keys():
        options.error(f"unknown pictures {', '.join(sorted(unknown))}; known are {', '.join(PICTURES)}")
    made = []
    if {"risk-coverage", "known-label"} & set(args.only):
        train, test = datasets.load_debtags()
        model = MultiLabelGPClassifier(features="text", random_state=0, verbose=False).fit(train.texts, train.labels)
        made = [(name, PICTURES[name](model, test)) for name in args.only if name != "sentence"]
    if "sentence" in args.only:
        made.append(("sentence", sentence(args)))
    for name, figure in made:
        figure.savefig(args.out / f"{name}.png", dpi=130)
        print(f"wrote {args.out / name}.png")
    common.finish(args.json, {"pictures": [name for name, _ in made]}, args)


def risk_coverage(model: MultiLabelGPClassifier, test: Any) -> Any:
    """The share of wrong best labels among the rows that are kept, surest first."""
    risks = LabelRisks()
    probabilities = model.predict_proba(test.texts)
    truth = model.encode_labels(test.labels)
    risks.update(probabilities, truth)
    return plots.risk_coverage_curves(risks.risk_coverage())


def known_label(model: MultiLabelGPClassifier, test: Any) -> Any:
    """The document of the first hundred whose other labels change most when one of its labels is known."""
    texts, labels = test.texts[:100], [list(of_row) for of_row in test.labels[:100]]
    classes = list(model.classes_)
    before = model.predict_proba(texts)
    known = [next((label for label in of_row if label in set(classes)), None) for of_row in labels]
    rows = [i for i, label in enumerate(known) if label is not None and len(labels[i]) > 2]
    given = np.zeros((len(texts), len(classes)))
    for i in rows:
        given[i, classes.index(known[i])] = 1.0
    after = model.predict_proba(texts, given=given)
    shift = np.abs(after - before)
    for i in rows:
        shift[i, classes.index(known[i])] = 0
    row = max(rows, key=lambda i: shift[i].sum())
    best = np.argsort(-(before[row] + after[row]))[: N_SHOWN + 1]
    best = [k for k in best if classes[k] != known[row]][:N_SHOWN]

    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    places = np.arange(len(best))[::-1]
    axis.barh(places + 0.2, before[row, best], 0.38, color=OTHER, label="of the text alone")
    axis.barh(places - 0.2, after[row, best], 0.38, color=OURS, label=f"where {known[row]} is known")
    names = [f"{classes[k]} *" if classes[k] in labels[row] else classes[k] for k in best]
    axis.set_yticks(places, names)
    axis.set(xlim=(0, 1), xlabel="probability (* the label is there)")
    figure.suptitle(f"“{_shortened(texts[row])}”", fontsize=10)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def sentence(args: Any) -> Any:
    """A sentence of the test part, each word on a ground as dark as its label is unsure."""
    train, test = sequence_data.conll2000(args.data, CHUNKING_TEMPLATE, args.sentences)
    words = read_columns(args.data / "conll2000" / "test.txt.xz", max_sequences=args.sentences).sequences
    tagger = SequenceGPClassifier(random_state=0, verbose=False).fit(*train)
    marginals = tagger.predict_marginals(test.X)
    lengths = [i for i, labels in enumerate(test.y) if args.words[0] <= len(labels) <= args.words[1]]
    row = max(lengths, key=lambda i: float((1 - marginals[i].max(axis=1)).mean()))
    return _drawn([str(token[0]) for token in words[row]], marginals[row], test.y[row], list(tagger.classes_))


def _drawn(words: Sequence[str], marginals: Any, truth: Sequence[str], classes: Sequence[str]) -> Any:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9.5, 2.1), layout="constrained")
    axis.axis("off")
    place, line = 0.0, 0
    for word, rows, label in zip(words, marginals, truth, strict=True):
        best = int(np.argmax(rows))
        unsure = 1 - float(rows[best])
        width = 0.011 * max(len(word), len(classes[best]) + 5) + 0.015
        if place + width > 1:
            place, line = 0.0, line + 1
        wrong = classes[best] != label
        shade = {"facecolor": (0.82, 0.29, 0.36, min(1.0, 1.6 * unsure)), "edgecolor": "none", "pad": 3}
        axis.text(place, 1 - 0.36 * line, word, fontsize=12, bbox=shade, transform=axis.transAxes)
        below = f"{classes[best]} {rows[best]:.2f}" + (f" (is {label})" if wrong else "")
        colour = "#8a1c2c" if wrong else "#555555"
        axis.text(place, 0.87 - 0.36 * line, below, fontsize=7.5, color=colour, transform=axis.transAxes)
        place += width + (0.06 if wrong else 0)
    return figure


def _shortened(text: str, most: int = 90) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1].rsplit(" ", 1)[0] + " …"


PICTURES: dict[str, Callable[..., Any]] = {
    "risk-coverage": risk_coverage,
    "known-label": known_label,
    "sentence": sentence,
}
"""What draws them, by name."""
