"""What the routes take and give, as OpenAPI describes it."""

from __future__ import annotations

from typing import Any

from extremegp.__about__ import __version__
from extremegp.server.limits import Limits

_STRING, _NUMBER, _INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
_STRINGS = {"type": "array", "items": _STRING}
_VECTORS = {"type": "array", "items": {"type": "array", "items": _NUMBER}}


def described(limits: Limits) -> dict[str, Any]:
    """The description, with the bounds that there are."""
    of_model = [{"name": "model", "in": "path", "required": True, "schema": _STRING}]
    texts = {"type": "array", "items": _STRING, "minItems": 1, "maxItems": limits.documents}
    k = {"type": "integer", "minimum": 1, "maximum": limits.best, "default": 5}
    suggest = _object(
        {
            "texts": texts,
            "vectors": _VECTORS,
            "k": k,
            "threshold": {"type": "number", "minimum": 0, "maximum": 1},
            "uncertainty": {"type": "boolean"},
        }
    )
    document = _object(
        {"text": _STRING, "vector": {"type": "array", "items": _NUMBER}, "labels": _STRINGS, "id": _STRING}, ["labels"]
    )
    label = _object({"label": _STRING, "title": _STRING, "probability": _NUMBER})
    shares = {"type": "array", "items": _object({"name": _STRING, "share": _NUMBER})}
    explanation = _object(
        {"label": _STRING, "title": _STRING, "probability": _NUMBER, "frequency": _NUMBER, "regression": _NUMBER}
        | {"documents": shares, "features": shares, "parts": {"type": "object", "additionalProperties": _NUMBER}}
    )
    suggestions = _object(
        {"suggestions": {"type": "array", "items": _object({"labels": {"type": "array", "items": label}})}}
    )
    learn = _object(
        {"documents": {"type": "array", "items": document}, "new_labels": {"enum": ["add", "error", "ignore"]}}
    )
    form = _object({"text": _STRING, "limit": _INTEGER, "threshold": _NUMBER}, ["text"])
    routes: dict[str, tuple[str, str, Any, Any]] = {
        "/health": ("get", "Whether the server answers.", None, None),
        "/metrics": ("get", "Counts in the text format of Prometheus.", None, None),
        "/models": ("get", "The models.", None, None),
        "/models/{model}": ("get", "What a model is.", None, None),
        "/models/{model}/suggest": ("post", "The best labels of texts, or of vectors.", suggest, suggestions),
        "/models/{model}/labels": ("get", "The labels (?search=, ?offset=, ?limit=).", None, None),
        "/models/{model}/explain": (
            "post",
            "Why labels of a document have their probabilities: shares of training documents and of features.",
            _object({"text": _STRING, "vector": _VECTORS["items"], "labels": _STRINGS, "k": k}),
            _object({"explanations": {"type": "array", "items": explanation}}),
        ),
        "/models/{model}/learn": ("post", "Learn documents at once, durably. Needs the token.", learn, None),
        "/models/{model}/forget": (
            "post",
            "Forget documents, and save without them. Needs the token.",
            _object({"ids": _STRINGS}),
            None,
        ),
        "/models/{model}/add-labels": (
            "post",
            "Know more labels. Needs the token.",
            _object({"labels": _STRINGS}),
            None,
        ),
        "/models/{model}/save": ("post", "Write the model, and empty its journal. Needs the token.", None, None),
        "/models/{model}/reload": ("post", "Serve what the folder holds now. Needs the token.", None, None),
        "/v1/projects": ("get", "As Annif's REST service.", None, None),
        "/v1/projects/{model}": ("get", "As Annif's REST service.", None, None),
        "/v1/projects/{model}/suggest": ("post", "As Annif's REST service.", form, None),
        "/v1/projects/{model}/learn": ("post", "As Annif's REST service. Needs the token.", {"type": "array"}, None),
        "/predict": ("post", "As a backend of Label Studio.", {"type": "object"}, None),
        "/setup": ("post", "As a backend of Label Studio.", {"type": "object"}, None),
        "/webhook": (
            "post",
            "As a backend of Label Studio: learns annotations. Needs the token.",
            {"type": "object"},
            None,
        ),
    }
    paths: dict[str, Any] = {}
    for path, (method, summary, body, answer) in routes.items():
        operation: dict[str, Any] = {
            "summary": summary,
            "responses": {
                "default": {"description": "An error", "content": _json(_object({"error": _STRING}))},
                "200": {"description": "The answer", **({} if answer is None else {"content": _json(answer)})},
            },
        }
        if "{model}" in path:
            operation["parameters"] = of_model
        if body is not None:
            kind = "application/x-www-form-urlencoded" if body is form else "application/json"
            operation["requestBody"] = {"required": True, "content": {kind: {"schema": body}}}
        if "token" in summary:
            operation["security"] = [{"token": []}]
        paths[path] = {method: operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "extremegp", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    return found | ({"required": required} if required else {})


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
