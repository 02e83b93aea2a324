"""The forms of Annif's REST service, version 1: what its `http` backend, and programs made for it, send and read."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request

from extremegp.server.limits import Limits, RequestError, parsed_json, read_body
from extremegp.server.parsing import best, share
from extremegp.server.served import Answer, ServedModel


def project(model: ServedModel, trained: str | None) -> dict[str, Any]:
    """A model as a project."""
    return {
        "project_id": model.name,
        "name": model.name,
        "language": "en",
        "backend": {"backend_id": "extremegp"},
        "is_trained": True,
        "modification_time": trained,
    }


def results(answer: Answer, limit: int, threshold: float) -> list[dict[str, Any]]:
    """Labels as suggestions."""
    return [
        {"uri": str(each.label), "label": each.title, "notation": None, "score": each.probability}
        for each in answer.labels[:limit]
        if each.probability >= threshold
    ]


async def asked(request: Request, limits: Limits) -> tuple[str, int, float]:
    """Text, limit and threshold of a `suggest`: a form, or JSON.

    Raises:
        RequestError: there is no text, or a number is out of bounds.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/x-www-form-urlencoded", "application/json"):
        raise RequestError(415, "the content type must be application/x-www-form-urlencoded or application/json")
    body = await read_body(request, limits)
    found: Any
    if kind == "application/json":
        found = parsed_json(body)
        if not isinstance(found, dict):
            raise RequestError(400, "the body must be a JSON object")
    else:
        try:
            fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=20, errors="strict")
        except ValueError:
            raise RequestError(400, "the body is not a form in UTF-8") from None
        found = {name: values[-1] for name, values in fields.items()}
        for name, read in (("limit", int), ("threshold", float)):
            if name in found:
                try:
                    found[name] = read(found[name])
                except ValueError:
                    raise RequestError(400, f'"{name}" must be a number') from None
    if not isinstance(found.get("text"), str):
        raise RequestError(400, 'there must be a "text"')
    return found["text"], best(found.get("limit", 10), limits, "limit"), share(found.get("threshold", 0.0))


def documents_to_learn(body: Any, limits: Limits) -> tuple[list[str], list[list[str]]]:
    """Texts and URIs of a `learn`; documents without either are left out, as there.

    Raises:
        RequestError: it is no list of documents.
    """
    if not isinstance(body, list) or not all(isinstance(each, dict) for each in body):
        raise RequestError(400, 'the body must be a list of documents with "text" and "subjects"')
    if len(body) > limits.documents:
        raise RequestError(413, f"these are {len(body)} documents, and at most {limits.documents} are learnt at once")
    texts, labels = [], []
    for each in body:
        text, subjects = each.get("text"), each.get("subjects")
        if text is None or subjects is None:
            continue
        sound = isinstance(text, str) and isinstance(subjects, list)
        if not sound or not all(isinstance(s, dict) and isinstance(s.get("uri"), str) for s in subjects):
            raise RequestError(400, 'a document needs a string "text", and "subjects" with a "uri" each')
        texts.append(text)
        labels.append([subject["uri"] for subject in subjects])
    return texts, labels
