"""Labels of tokens to class codes, where those of some tokens may be missing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, compress
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from extremegp.data.classes import ClassSpace, encode_classes
from extremegp.data.tokens import NOT_SEQUENCES, place_of
from extremegp.errors import DataError

MISSING = -2
"""The code of a token whose label is not known; that of a label that is not in the space is -1."""

# How messages about all labels, joined, give the place of one.
_ROW = re.compile(r"row ([0-9]+) \(counted from 0\)")


def encode_label_sequences(
    y: Iterable[Any],
    lengths: NDArray[np.int64],
    space: ClassSpace | None = None,
    unknown: Literal["error", "ignore"] = "error",
    name: str = "y",
    *,
    missing: Literal["error", "keep"] = "error",
) -> tuple[NDArray[np.int64], ClassSpace]:
    """The class codes of all tokens, one sequence after the other.

    Args:
        y: of each of S sequences the labels of its tokens, as list, tuple or 1-D array.
        lengths: how many tokens each sequence has.
        space: the classes that there are; None to take those of y.
        unknown: what to do with a label that is not in `space`: raise, or give it the code -1.
        name: what to call y in messages.
        missing: what to do where a label is None, NaN or NA: raise, or give it the code `MISSING`.

    Returns:
        B codes, and the classes.

    Raises:
        DataError: y has not S sequences, a sequence has not a label for each token, or the labels are not what
            `encode_classes`, or `ClassSpace.encode` for given classes, takes. Names the sequence.
        SettingsError: `unknown` is neither "error" nor "ignore".
    """
    flat = _flat(y, lengths, name)
    known = np.array([missing == "error" or not _is_missing(label) for label in flat], dtype=bool)
    codes, places = np.full(len(flat), MISSING, dtype=np.int64), np.flatnonzero(known)
    if not len(places):
        if space is None:
            raise DataError(f"{name} has no label at all, only missing ones; label some of the tokens")
        return codes, space
    of_known = list(compress(flat, known))
    try:
        if space is not None:
            codes[places] = space.encode(of_known, unknown, name)
            return codes, space
        codes[places], classes = encode_classes(of_known, name)
    except DataError as error:
        raise DataError(
            _ROW.sub(lambda row: place_of(int(places[int(row[1])]), lengths), str(error), count=1)
        ) from error
    return codes, ClassSpace(classes)


def encode_known_labels(
    given: Iterable[Any], lengths: NDArray[np.int64], space: ClassSpace, name: str = "given"
) -> NDArray[np.int64]:
    """The class codes of the tokens whose labels are known, -1 for the others.

    Args:
        given: of each of S sequences a label or None for each token, as list, tuple or 1-D array; NaN, NA and "" stand
            for None, unless "" is a label.
        lengths: how many tokens each sequence has.
        space: the classes that there are.
        name: what to call `given` in messages.

    Raises:
        DataError: it has not S sequences, a sequence has not an entry for each token, or a label is not among the
            classes. Names the sequence and the token.
    """
    if isinstance(given, NOT_SEQUENCES) or not isinstance(given, Iterable):
        raise _not_sequences(given, name)
    blank = "" not in space.names
    cleaned = [
        [None if blank and isinstance(label, str) and not label else label for label in _labels(labels, s, name)]
        for s, labels in enumerate(given)
    ]
    return np.maximum(encode_label_sequences(cleaned, lengths, space, name=name, missing="keep")[0], -1)


def _flat(y: Any, lengths: NDArray[np.int64], name: str) -> list[Any]:
    if isinstance(y, NOT_SEQUENCES) or not isinstance(y, Iterable):
        raise _not_sequences(y, name)
    sequences = [_labels(labels, s, name) for s, labels in enumerate(y)]
    if len(sequences) != len(lengths):
        raise DataError(f"X has {len(lengths)} sequences but {name} has {len(sequences)}; give each its labels")
    for s, (labels, length) in enumerate(zip(sequences, lengths, strict=True)):
        if len(labels) != length:
            raise DataError(f"{name}[{s}] has {len(labels)} labels, but X[{s}] has {length} tokens; give one to each")
    return list(chain.from_iterable(sequences))


def _not_sequences(y: Any, name: str) -> DataError:
    return DataError(f"{name} must be a list of label sequences, not {type(y).__name__}")


def _is_missing(label: Any) -> bool:
    # pandas says NA and NaT; its types are told by name, for it need not be installed.
    if label is None or type(label).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(label, (float, np.floating)) and bool(np.isnan(label))


def _labels(labels: Any, s: int, name: str) -> list[Any]:
    if isinstance(labels, np.ndarray) and labels.ndim == 1:
        return list(labels.tolist())
    if isinstance(labels, (*NOT_SEQUENCES, np.ndarray)) or not isinstance(labels, Iterable):
        raise DataError(
            f"{name}[{s}] must be a list of labels, one a token, not {type(labels).__name__} ({str(labels)[:40]!r}); "
            f"for one sequence pass [{name}]"
        )
    return list(labels)
