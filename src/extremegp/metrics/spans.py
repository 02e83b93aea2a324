"""How many spans, such as noun phrases or names of people, tags of tokens find: precision, recall and F1.

seqeval reads the spans; it is imported when the first are to be found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from extremegp.data.schemes import looks_like_spans
from extremegp.errors import SettingsError

SCHEMES = {"IOB2": "IOB", "IOE2": "IOE", "IOBES": "IOBES", "BILOU": "BILOU"}
"""The schemes that can be read strictly, and the first letters of their tags. seqeval 1.2.2 misses spans of IOE1."""

_TAG = re.compile(r"O|([BIELSU])(-.+)?", re.DOTALL)
# conlleval knows the last and unit tags of BILOU by the names that IOBES gives them.
_CONLLEVAL = {"L": "E", "U": "S"}

_Span = tuple[str, int, int]


@dataclass(frozen=True)
class SpanScore:
    """How many spans were found. Without a span to divide by, a ratio is 0.

    Args:
        support: number of true spans.
        predicted: number of predicted spans.
        true_positives: number of predicted spans whose first token, last token and type are those of a true span.
    """

    support: int
    predicted: int
    true_positives: int

    @property
    def precision(self) -> float:
        """true_positives / predicted."""
        return self.true_positives / max(1, self.predicted)

    @property
    def recall(self) -> float:
        """true_positives / support."""
        return self.true_positives / max(1, self.support)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.true_positives / max(1, self.support + self.predicted)


class SpanCounts:
    """Counts true and predicted spans by type over sequences.

    Args:
        labels: names of all labels that are predicted.
        scheme: how spans are read. None is as conlleval.pl does (Tjong Kim Sang & Buchholz, CoNLL 2000), where a tag
            that cannot follow the one before opens a span; "IOB2", "IOE2", "IOBES" and "BILOU" read only what is
            well-formed.

    Attributes:
        n_unknown: number of runs of true labels that are no tags.

    Raises:
        SettingsError: there is no such scheme, or labels are not its tags.
        ImportError: seqeval is missing.
    """

    def __init__(self, labels: Sequence[Any], scheme: str | None = None) -> None:
        if scheme is not None and scheme not in SCHEMES:
            raise SettingsError(f"scheme must be None or one of {', '.join(SCHEMES)}; got {scheme!r}")
        self.scheme = scheme
        strangers = [label for label in labels if self._tag(label) is None]
        if strangers or not looks_like_spans(labels):
            raise SettingsError(
                f"spans need labels such as O, B-NP, I-NP{'' if scheme is None else f' of {scheme}'}, but there are "
                f"{', '.join(map(repr, (strangers or labels)[:3]))}; pass spans=False"
            )
        self._read = _reader(scheme)
        self.n_unknown = 0
        self._support: Counter[str] = Counter()
        self._predicted: Counter[str] = Counter()
        self._both: Counter[str] = Counter()

    def _tag(self, label: Any) -> str | None:
        """The label as seqeval takes it without a warning; None if it is no tag."""
        if not (isinstance(label, str) and _TAG.fullmatch(label)):
            return None
        if self.scheme is None:
            return _CONLLEVAL.get(label[0], label[0]) + label[1:]
        return label if label[0] in SCHEMES[self.scheme] else None

    def add(self, truth: Sequence[Any], predicted: Sequence[Any]) -> None:
        """Add a sequence.

        Args:
            truth: T labels; a run of those that are no tags is a span of unknown type that no prediction can find.
            predicted: T labels, all of them tags.
        """
        tags = [self._tag(label) for label in truth]
        true = self._read([tag or "O" for tag in tags])
        found = self._read([self._tag(label) or "O" for label in predicted])
        for counts, spans in ((self._support, true), (self._predicted, found), (self._both, true & found)):
            counts.update(kind for kind, _, _ in spans)
        self.n_unknown += sum(missing for missing, _ in groupby(tags, lambda tag: tag is None))

    def total(self) -> SpanScore:
        """Give the counts over all types (micro), spans of unknown type among the true ones."""
        return SpanScore(self._support.total() + self.n_unknown, self._predicted.total(), self._both.total())

    def by_type(self) -> dict[str, SpanScore]:
        """Give the counts of each known type, in alphabetical order; the type of letters alone is "_"."""
        kinds = sorted(self._support | self._predicted)
        return {kind: SpanScore(self._support[kind], self._predicted[kind], self._both[kind]) for kind in kinds}


def _reader(scheme: str | None) -> Callable[[list[str]], set[_Span]]:
    try:
        from seqeval import scheme as schemes
        from seqeval.metrics.sequence_labeling import get_entities
    except ImportError as error:
        raise ImportError(
            "F1 of spans needs seqeval: pip install 'extremegp[sequences]', or pass spans=False to leave it out"
        ) from error
    if scheme is None:
        return lambda tags: set(get_entities(tags))
    token = getattr(schemes, scheme)
    return lambda tags: {(span.tag, span.start, span.end) for span in schemes.Tokens(tags, token).entities}
