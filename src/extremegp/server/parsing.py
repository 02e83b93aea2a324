"""Requests as their bodies have them, checked."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from extremegp.server.limits import Limits, RequestError
from extremegp.server.served import ServedModel

_LONGEST_NUMBERS = 1 << 20


class Asked(NamedTuple):
    """What `suggest` is asked for."""

    documents: list[Any]
    k: int
    threshold: float
    uncertainty: bool


class Taught(NamedTuple):
    """Documents to learn, with their labels and perhaps names."""

    documents: list[Any]
    labels: list[list[Any]]
    ids: list[Any] | None
    new_labels: str


def asked(body: Any, model: ServedModel, limits: Limits) -> Asked:
    """The native form: {"texts": [...]} or {"vectors": [[...]]}, with "k", "threshold" and "uncertainty".

    Raises:
        RequestError: it is another form.
    """
    found = _object(body, {"texts", "text", "vectors", "k", "threshold", "uncertainty"})
    if "text" in found:
        if "texts" in found:
            raise RequestError(400, 'give "text" or "texts", not both')
        found["texts"] = [found.pop("text")]
    uncertainty = found.get("uncertainty", False)
    if not isinstance(uncertainty, bool):
        raise RequestError(400, '"uncertainty" must be true or false')
    return Asked(
        documents(found, model, limits),
        best(found.get("k", 5), limits, "k"),
        share(found.get("threshold", 0.0)),
        uncertainty,
    )


def taught(body: Any, model: ServedModel, limits: Limits) -> Taught:
    """The native form: {"documents": [{"text" or "vector", "labels", "id"}], "new_labels"}.

    Raises:
        RequestError: it is another form.
    """
    found = _object(body, {"documents", "new_labels"})
    rows = _bounded(found.get("documents"), "documents", limits)
    content = "text" if model.takes_texts else "vector"
    for row in rows:
        _object(row, {content, "labels", "id"})
        if content not in row or not isinstance(row.get("labels"), list):
            raise RequestError(400, f'every document needs "{content}" and a list "labels"')
    named = [row["id"] for row in rows if "id" in row]
    if named and len(named) < len(rows):
        raise RequestError(400, 'give all documents an "id", or none')
    new_labels = found.get("new_labels", "add")
    if new_labels not in ("add", "error", "ignore"):
        raise RequestError(400, '"new_labels" must be "add", "error" or "ignore"')
    inputs = documents({f"{content}s": [row[content] for row in rows]}, model, limits)
    return Taught(inputs, [row["labels"] for row in rows], named or None, new_labels)


class ToExplain(NamedTuple):
    """A document, and the labels of it to explain; None for the k best."""

    documents: list[Any]
    labels: list[Any] | None
    k: int


def to_explain(body: Any, model: ServedModel, limits: Limits) -> ToExplain:
    """{"text": "..."} or {"vector": [...]}, with "labels" or "k".

    Raises:
        RequestError: it is another, or more than is answered.
    """
    found = _object(body, {"text", "vector", "labels", "k"})
    content = "text" if model.takes_texts else "vector"
    if content not in found:
        raise RequestError(400, f'the model {model.name!r} takes "{content}"')
    labels = found.get("labels")
    if labels is not None and len(_bounded(labels, "labels", limits)) > limits.best:
        raise RequestError(413, f"at most {limits.best} labels are explained at once")
    rows = documents({f"{content}s": [found[content]]}, model, limits)
    return ToExplain(rows, labels, best(found.get("k", 3), limits, "k"))


def documents(found: dict[str, Any], model: ServedModel, limits: Limits) -> list[Any]:
    """The texts, or the vectors, of a request.

    Raises:
        RequestError: there are others than the model takes, none, or too many.
    """
    wanted, other = ("texts", "vectors") if model.takes_texts else ("vectors", "texts")
    if wanted not in found or other in found:
        raise RequestError(400, f'the model {model.name!r} takes "{wanted}"')
    rows = _bounded(found[wanted], wanted, limits)
    if model.takes_texts:
        if not all(isinstance(row, str) for row in rows):
            raise RequestError(400, '"texts" must be strings')
        return rows
    width = model.model.features_.n_features_in
    if width * len(rows) > _LONGEST_NUMBERS:
        raise RequestError(413, f"these are more than {_LONGEST_NUMBERS} numbers: send fewer vectors at once")
    for row in rows:
        if not isinstance(row, list) or len(row) != width or not all(map(_is_number, row)):
            raise RequestError(400, f'"vectors" must be lists of {width} numbers')
    return rows


def best(value: Any, limits: Limits, name: str) -> int:
    """How many labels are asked for."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limits.best:
        raise RequestError(400, f'"{name}" must be an integer from 1 to {limits.best}')
    return value


def share(value: Any, name: str = "threshold") -> float:
    """A number from 0 to 1."""
    if not _is_number(value) or not 0 <= value <= 1:
        raise RequestError(400, f'"{name}" must be a number from 0 to 1')
    return float(value)


def names(body: Any, key: str, limits: Limits) -> list[Any]:
    """The list of names that a request has under a key, and nothing else."""
    return _bounded(_object(body, {key}).get(key), key, limits)


def _bounded(value: Any, name: str, limits: Limits) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise RequestError(400, f'"{name}" must be a list that is not empty')
    if len(value) > limits.documents:
        raise RequestError(
            413, f'"{name}" has {len(value)} entries, and at most {limits.documents} are answered at once'
        )
    return value


def _object(body: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise RequestError(400, "the body must be a JSON object")
    if unknown := sorted(body.keys() - known):
        raise RequestError(400, f"unknown {unknown[0]!r}; known are {', '.join(sorted(known))}")
    return dict(body)


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 3e38 and math.isfinite(value)
    )
