"""Documents of other libraries, such as spaCy's, as sequences of tokens with features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from extremegp.errors import DataError, SettingsError

ATTRIBUTES = ("lower_", "shape_", "prefix_", "suffix_", "is_digit", "is_title")
"""What is taken of a token by default: what spaCy has without a trained pipeline."""

_MAX_WINDOW = 100


def document_features(
    documents: Iterable[Any], *, attributes: Sequence[str] = ATTRIBUTES, window: int = 1, vectors: bool = False
) -> list[list[dict[str, Any]]]:
    """Features of the tokens of documents, or of spans of them such as sentences.

    Documents are what can be iterated over for tokens that have such attributes: spaCy's ``Doc`` and ``Span``, for one.
    Nothing of spaCy is imported.

    Args:
        documents: such as ``nlp.pipe(texts)``, or ``doc.sents``.
        attributes: of tokens, strings, numbers or truth values, such as "pos_" and "lemma_" of a trained pipeline.
        window: take those of so many tokens before and after, too; their names begin with -1:, +1: and so on.
        vectors: take the token's ``vector`` of numbers too.

    Returns:
        For every document a list of mappings, one for each token, as `SequenceGPClassifier` takes them.

    Raises:
        DataError: a token has no such attribute, or one that is neither a string nor a number; names the document.
        SettingsError: attributes are no list of names, or the window is no number from 0 to 100.
    """
    if isinstance(attributes, str) or not all(isinstance(name, str) for name in attributes):
        raise SettingsError(f"attributes must be a list of names; it is {attributes!r}")
    if type(window) is not int or not 0 <= window <= _MAX_WINDOW:
        raise SettingsError(f"window must be an integer from 0 to {_MAX_WINDOW}; it is {window!r}")
    found = []
    for d, document in enumerate(documents):
        tokens = list(document)
        own = [{name: _value(token, name, d, t) for name in attributes} for t, token in enumerate(tokens)]
        features = [_beside(own, t, window) for t in range(len(own))]
        if vectors:
            for t, token in enumerate(tokens):
                features[t]["vector"] = np.asarray(_attribute(token, "vector", d, t), dtype=np.float32)
        found.append(features)
    return found


def _beside(own: list[dict[str, Any]], t: int, window: int) -> dict[str, Any]:
    features: dict[str, Any] = dict(own[t])
    for step in (step for step in range(-window, window + 1) if step):
        inside = 0 <= t + step < len(own)
        features[f"{step:+d}"] = own[t + step] if inside else {"outside": True}
    return features


def _attribute(token: Any, name: str, d: int, t: int) -> Any:
    try:
        return getattr(token, name)
    except AttributeError:
        raise DataError(
            f"token {t} of document {d} (counted from 0) is of type {type(token).__name__} and has no {name!r}; name "
            "attributes that tokens have"
        ) from None


def _value(token: Any, name: str, d: int, t: int) -> str | int | float | bool:
    value = _attribute(token, name, d, t)
    if not isinstance(value, (str, int, float)):
        raise DataError(
            f"{name!r} of token {t} of document {d} (counted from 0) is a {type(value).__name__}, neither a string "
            "nor a number"
        )
    return value
