"""Tags of spans such as B-NP: the schemes that there are, what may follow what, spans of tags, and one from another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extremegp.errors import DataError, SettingsError

SCHEMES = ("IOB1", "IOB2", "IOBES", "BILOU")
"""The schemes by name; BIOES is IOBES too.

In all O is outside of spans. IOB2 has B-X for the first token of a span of type X and I-X for the others; IOB1 has B-X
only where a span of the same type ends right before. IOBES has E-X for the last token of several and S-X for one alone,
and BILOU calls these L-X and U-X.
"""

_ALIASES = {"BIOES": "IOBES", "BIO": "IOB2", "IOB": "IOB1"}
_LETTERS = {"IOB1": "IB", "IOB2": "IB", "IOBES": "IBES", "BILOU": "IBLU"}
_TAG = re.compile(r"O|([BIELSU])(-.+)?", re.DOTALL)
_OPEN, _CLOSING, _ALONE = "BI", "EL", "SU"
_INNER = "IEL"
# Of all tags; where more do not fit, the labels are of no scheme.
_MOST_ILLEGAL = 0.05

_Tag = tuple[str, str]


class TaggedSpan(NamedTuple):
    """Consecutive tokens of a type.

    Attributes:
        start: the first token, counted from 0.
        end: the token after the last.
        type: as tags have it after their letter and the hyphen; "" where they have letters alone.
    """

    start: int
    end: int
    type: str


class DetectedScheme(NamedTuple):
    """What scheme tags are of.

    Attributes:
        name: as in `SCHEMES`; None if they are of none.
        n_tags: tags that are known, and not O.
        n_illegal: places where a tag cannot stand in the scheme: after the one before, at the start or at the end.
            Where there is no scheme, in the one that comes nearest.
    """

    name: str | None
    n_tags: int
    n_illegal: int

    def __str__(self) -> str:
        if self.name is None:
            return "no scheme of spans" + (f": {self.n_illegal} of {self.n_tags} tags fit none" if self.n_tags else "")
        wrong = f", but for {self.n_illegal} of {self.n_tags} tags" if self.n_illegal else ""
        return f"{self.name}{wrong}"


class LegalTags(NamedTuple):
    """Which of V tags may stand where.

    Attributes:
        first: which may start a sequence, V.
        last: which may end one, V.
        pairs: which may follow which: [i, j] is for i before j, V x V.
    """

    first: NDArray[np.bool_]
    last: NDArray[np.bool_]
    pairs: NDArray[np.bool_]


def looks_like_spans(labels: Iterable[Any]) -> bool:
    """Whether labels are the tags of spans, such as O, B-NP and I-NP, or O, B and I.

    Args:
        labels: the names of all labels.

    Returns:
        True if every label is O or one of the letters B, I, E, S, L, U, and either all letters are followed by - and a
        type or none is. Letters alone must include B or I; E and S do not go with L and U, which mean the same.
    """
    tags = [_TAG.fullmatch(label) if isinstance(label, str) else None for label in labels]
    letters = {tag[1] for tag in tags if tag} - {None}
    typed = {tag[2] is not None for tag in tags if tag and tag[1]}
    if not all(tags) or len(typed) != 1 or (letters & {"E", "S"} and letters & {"L", "U"}):
        return False
    return typed == {True} or bool(letters & {"B", "I"})


def checked_scheme(scheme: Any) -> str:
    """The name of a scheme as `SCHEMES` has it.

    Raises:
        SettingsError: there is none of that name.
    """
    name = _ALIASES.get(scheme.upper(), scheme.upper()) if isinstance(scheme, str) else scheme
    if name not in SCHEMES:
        raise SettingsError(f"scheme must be one of {', '.join(SCHEMES)} (BIOES, BIO); it is {scheme!r}")
    return str(name)


def detect_scheme(y: Iterable[Sequence[Any]]) -> DetectedScheme:
    """The scheme whose rules the labels of sequences keep best; IOB2 rather than IOB1 where both do equally.

    Args:
        y: of each sequence its labels; None for those that are not known.

    Returns:
        The scheme; none where labels do not look like tags, or more than a twentieth of the tags break its rules.
    """
    sequences = [list(labels) for labels in y]
    labels = {label for label in chain.from_iterable(sequences) if label is not None}
    if not looks_like_spans(labels):
        return DetectedScheme(None, 0, 0)
    n_tags = sum(label is not None and label != "O" for label in chain.from_iterable(sequences))
    letters = {str(label)[0] for label in labels}
    fitting = ["BILOU"] if letters & set("LU") else ["IOBES"] if letters & set("ES") else ["IOB2", "IOB1"]
    found = [DetectedScheme(name, n_tags, sum(_n_illegal(own, name) for own in sequences)) for name in fitting]
    best = min(found, key=lambda each: each.n_illegal)
    return best if best.n_illegal <= _MOST_ILLEGAL * n_tags else best._replace(name=None)


def legal_tags(labels: Sequence[Any], scheme: str) -> LegalTags:
    """Which of some tags may start a sequence, end it, and follow each other.

    Args:
        labels: V names.
        scheme: as in `SCHEMES`.

    Raises:
        SettingsError: there is no such scheme, or a label is none of its tags.
    """
    scheme = checked_scheme(scheme)
    tags = [_parsed(label) for label in labels]
    allowed = "O" + _LETTERS[scheme]
    strange = [label for label, tag in zip(labels, tags, strict=True) if tag is None or tag[0] not in allowed]
    if strange:
        raise SettingsError(
            f"{scheme} has tags O and, before a hyphen and a type, {', '.join(_LETTERS[scheme])}; the labels have "
            f"{strange[0]!r}: name another scheme, or none"
        )
    known = [tag for tag in tags if tag is not None]
    pairs = np.array([[_may_follow(before, after, scheme) for after in known] for before in known], dtype=bool)
    first = np.array([_may_follow(("O", ""), tag, scheme) for tag in known], dtype=bool)
    last = np.array([_may_follow(tag, ("O", ""), scheme) for tag in known], dtype=bool)
    return LegalTags(first, last, pairs)


def spans_of(labels: Sequence[Any]) -> list[TaggedSpan]:
    """The spans that tags stand for, whatever their scheme.

    Tags that cannot follow the one before open a span, as conlleval.pl has it (Tjong Kim Sang and Buchholz 2000).

    Args:
        labels: of the tokens of a sequence.

    Raises:
        DataError: a label is no tag.
    """
    found: list[TaggedSpan] = []
    start, kind = -1, ""
    for t, label in enumerate(chain(labels, ["O"])):
        tag = _parsed(label)
        if tag is None:
            raise DataError(f"{label!r} is no tag of a span, such as O, B-NP or I-NP (token {t}, counted from 0)")
        letter, own = tag
        if start >= 0 and (letter not in _INNER or own != kind):
            found.append(TaggedSpan(start, t, kind))
            start = -1
        if letter != "O" and start < 0:
            start, kind = t, own
        if letter in _CLOSING or letter in _ALONE:
            found.append(TaggedSpan(start, t + 1, own))
            start = -1
    return found


def tags_of(spans: Iterable[tuple[int, int, str]], length: int, scheme: str) -> list[str]:
    """The tags of spans.

    Args:
        spans: start, end (the token after the last) and type of each.
        length: of the sequence.
        scheme: as in `SCHEMES`.

    Raises:
        DataError: spans overlap, are empty, or lie outside of the sequence.
        SettingsError: there is no such scheme.
    """
    scheme = checked_scheme(scheme)
    tags = ["O"] * length
    ends = 0
    before: str | None = None
    for span in sorted(TaggedSpan(*each) for each in spans):
        if not ends <= span.start < span.end <= length:
            raise DataError(f"the span {tuple(span)} is empty, overlaps another, or is not within {length} tokens")
        end = "-" + span.type if span.type else ""
        letters = ["B"] + ["I"] * (span.end - span.start - 1)
        if scheme == "IOB1" and (before != span.type or ends != span.start):
            letters[0] = "I"
        elif scheme in ("IOBES", "BILOU"):
            letters[-1] = {"IOBES": "ES", "BILOU": "LU"}[scheme][len(letters) == 1]
        tags[span.start : span.end] = [letter + end for letter in letters]
        ends, before = span.end, span.type
    return tags


def convert_tags(y: Iterable[Sequence[Any]], scheme: str) -> list[list[str]]:
    """Labels of sequences in another scheme, that they are in now whatever; spans stay as `spans_of` reads them.

    Args:
        y: of each sequence its tags.
        scheme: as in `SCHEMES`.

    Raises:
        DataError: a label is no tag; names the sequence.
        SettingsError: there is no such scheme.
    """
    scheme, converted = checked_scheme(scheme), []
    for s, labels in enumerate(y):
        try:
            converted.append(tags_of(spans_of(labels), len(labels), scheme))
        except DataError as error:
            raise DataError(f"sequence {s} (counted from 0): {error}") from None
    return converted


def split_tag(label: Any) -> tuple[str, str]:
    """The letter of a tag and its type, "" where it has none.

    Raises:
        DataError: it is no tag.
    """
    tag = _parsed(label)
    if tag is None:
        raise DataError(f"{label!r} is no tag of a span, such as O, B-NP or I-NP")
    return tag


def _parsed(label: Any) -> _Tag | None:
    tag = _TAG.fullmatch(label) if isinstance(label, str) else None
    return None if tag is None else (tag[1] or "O", (tag[2] or "-")[1:])


def _n_illegal(labels: list[Any], scheme: str) -> int:
    """Places where a tag breaks the rules; beside labels that are not known there are none."""
    tags: list[Any] = [("O", ""), *(None if label is None else _parsed(label) for label in labels), ("O", "")]
    known = ((before, after) for before, after in pairwise(tags) if before is not None and after is not None)
    return sum(not _may_follow(before, after, scheme) for before, after in known)


def _may_follow(before: _Tag, after: _Tag, scheme: str) -> bool:
    """Whether a tag may follow another; O stands for what is beyond the ends."""
    (letter, kind), (following, own) = before, after
    if scheme == "IOB1":
        return following != "B" or (letter != "O" and kind == own)
    inside = following in _INNER
    if scheme == "IOB2":
        return not inside or (letter in _OPEN and kind == own)
    # A span of several tokens that has not ended goes on, and nothing else does.
    return inside == (letter in _OPEN) and (not inside or kind == own)
