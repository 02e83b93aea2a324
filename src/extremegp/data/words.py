"""Texts as counts of words: one pass finds the words and the labels, another counts, both in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

from extremegp.data.analysis import Analyser
from extremegp.data.blocks import BEGINNING, Part, Position, RowBlock, RowStream, Sizes
from extremegp.data.labels import LabelSpace
from extremegp.data.record_streams import TextFile
from extremegp.data.text import TextRecords
from extremegp.engine.matrices import FloatCSR
from extremegp.errors import DataError

MAX_WORDS = 5_000_000
"""Words that are counted at a time: about a gigabyte. Beyond it, the rarest so far are forgotten."""

MIN_TEXTS = 2
"""Texts that a word must occur in, as in `TextFeatures`."""


def find_words(
    file: TextFile,
    watch: Callable[[TextRecords], None] = lambda records: None,
    analyse: Analyser = Analyser(),  # noqa: B008 (frozen)
) -> tuple[list[str], list[str]]:
    """The words of at least two texts and the labels of a file, each in alphabetical order.

    Where a file has more than `MAX_WORDS` words, those that occurred least so far are forgotten, and more of them
    whenever there are too many again: words that are rare all over the file then are missing, or seem rarer.

    Args:
        file: texts with labels.
        watch: told how far reading is.
        analyse: what the words of a text are.

    Raises:
        DataError: the file breaks the format, has no labels, or no word occurs in two texts.
    """
    n_texts: Counter[str] = Counter()
    labels: set[str] = set()
    path = file.path
    for records in file.records():
        if records.texts and records.labels is None:
            raise DataError('has no "labels"; the words and labels of other data are taken by --like', path=path)
        for text, row_labels in zip(records.texts, records.labels or (), strict=True):
            n_texts.update(set(analyse(text)))
            labels.update(row_labels)
            if len(n_texts) > MAX_WORDS:
                _forget_rarest(n_texts)
        watch(records)
    words = sorted(word for word, count in n_texts.items() if count >= MIN_TEXTS)
    if not words:
        raise DataError(f"no word occurs in {MIN_TEXTS} texts", path=path)
    if not labels:
        raise DataError("no row has any label", path=path)
    for label in labels:
        if "\n" in label:
            raise DataError(f"the label {label!r} holds a line break, which a list of names cannot hold", path=path)
    return words, sorted(labels)


def _forget_rarest(counts: Counter[str]) -> None:
    """Forget words until half of the room is free, the rarest first."""
    of_count = Counter(counts.values())
    limit, kept = 0, len(counts)
    while kept > MAX_WORDS // 2:
        limit += 1
        kept -= of_count[limit]
    for word in [word for word, count in counts.items() if count <= limit]:
        del counts[word]


class WordStream(RowStream):
    """Texts as rows of counts of words.

    Args:
        file: the texts.
        words: the D words that are counted; others are left out.
        labels: the K label names; others are left out.
        analyse: what the words of a text are, as they were found.
    """

    def __init__(
        self,
        file: TextFile,
        words: Sequence[str],
        labels: Sequence[str],
        analyse: Analyser = Analyser(),  # noqa: B008 (frozen)
    ) -> None:
        self._file = file
        vocabulary = {word: column for column, word in enumerate(words)}
        self._vectorizer = CountVectorizer(analyzer=analyse, vocabulary=vocabulary, dtype=np.float32)
        self._space = LabelSpace(labels)
        self.learnt = {"labelled": None}

    def parts(self, start: Position = BEGINNING) -> Iterator[Part]:
        for records in self._file.records(start, labelled=self.learnt["labelled"]):
            self.learnt["labelled"] = records.labels is not None
            if records.texts:
                yield Part(self._rows(records), records.end, records.read)
            start = records.end
        if not start.row:
            raise DataError("the file has no records, only blank lines", path=self._file.path)

    def sizes(self) -> Sizes:
        return Sizes(len(self._vectorizer.vocabulary), len(self._space))

    def _rows(self, records: TextRecords) -> RowBlock:
        X: FloatCSR = self._vectorizer.transform(records.texts)
        lists = records.labels or [[] for _ in records.texts]
        known = self._space.columns
        first_labels = [next((known[label] for label in labels if label in known), -1) for labels in lists]
        return RowBlock.of(X, self._space.encode(lists, unknown="ignore"), np.asarray(first_labels, np.int32))
