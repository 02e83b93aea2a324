"""The rows of the README's tables: the runs whose means they are."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.papers.specs import DEFAULT, Spec, classes, labels, sequence_defaults, sequences

Cell = tuple[tuple[Spec, ...], tuple[str, ...], str]
"""Runs, the metrics that are shown of them, and how their means are written."""


class Headline(NamedTuple):
    """A row: its title, cells, and what papers report."""

    title: str
    cells: tuple[Cell, ...]
    papers: tuple[str, ...] = ()
    deviations: bool = True


def _labels(title: str, data: str, *papers: str) -> Headline:
    specs = tuple(labels(data, DEFAULT, seed) for seed in (0, 1, 2))
    return Headline(title, ((specs, ("P@1", "P@3", "P@5"), ".1f"), (specs, ("seconds",), ".0f")), papers)


def _classes(title: str, data: str, *papers: str, seeds: tuple[int, ...] = (0, 1, 2)) -> Headline:
    specs = tuple(classes(data, DEFAULT, seed, limit=1500) for seed in seeds)
    cells = tuple(
        (specs, (metric,), form)
        for metric, form in (("error", ".2f"), ("nlpd", ".3f"), ("ece", ".3f"), ("seconds", ".0f"))
    )
    return Headline(title, cells, papers)


def _sequences(title: str, data: str, *papers: str) -> Headline:
    cells: list[Cell] = []
    for method in (DEFAULT, "crfsuite"):
        peer = tuple(sequences(data, method, fold) for fold in range(5))
        specs = sequence_defaults(data) if method == DEFAULT else peer
        cells += [(specs, ("error",), ".2f"), (specs, ("nll_unstruct", "nll_struct"), ".0f")]
    return Headline(title, tuple(cells), papers, deviations=False)


ROWS: dict[str, tuple[tuple[str, ...], tuple[Headline, ...]]] = {
    "labels": (
        ("test set", "P@1 / P@3 / P@5, %", "training, s", "best GP of the papers", "trained there in"),
        (
            _labels("Delicious (983 labels)", "delicious", "69.1 / 63.3 / 58.6", "2.9 h"),
            _labels("Bibtex (159 labels)", "bibtex", "66.5 / 41.1 / 30.3", "1.1 h"),
            _labels("Debian tags (595 labels)", "debian_tags", "(best linear peer: 82.3 / 60.4 / 46.2)", ""),
        ),
    ),
    "classes": (
        ("test set, one class per row", "error, %", "NLPD", "ECE", "training, s", "best GP of the papers"),
        (
            _classes("MNIST, deskewed (10 classes)", "mnist", "1.63, with 3000 inducing inputs", seeds=(0,)),
            _classes("Fashion-MNIST (10 classes)", "fashion-mnist", "12.2", seeds=(0,)),
            _classes("Bibtex, first label (148 classes)", "bibtex-first", "60.6"),
            _classes("Delicious, first label (355 classes)", "delicious-first", "82.5"),
        ),
    ),
    "sequences": (
        (
            "test tokens, five folds",
            "wrong labels, %",
            "-log p of tokens / sequences",
            "crfsuite",
            "",
            "best of the thesis",
        ),
        (
            _sequences("Base NP", "basenp", "4.96, 566"),
            _sequences("Chunking", "chunking", "8.50, 386"),
            _sequences("Segmentation", "segmentation", "14.5, 249"),
            _sequences("Japanese named entities", "japanesene", "5.06, 318"),
        ),
    ),
}
"""Columns and rows by the name of a table."""


def specs() -> tuple[Spec, ...]:
    """All runs that the tables show."""
    found = (spec for _, rows in ROWS.values() for row in rows for runs, *_ in row.cells for spec in runs)
    return tuple(dict.fromkeys(found))
