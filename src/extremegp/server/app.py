"""The routes of a server."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from extremegp.__about__ import __version__
from extremegp.errors import ExtremeGPError
from extremegp.server import annif, label_studio, parsing
from extremegp.server.limits import Limits, RequestError, check_token, read_json
from extremegp.server.metrics import Metrics
from extremegp.server.openapi import described
from extremegp.server.served import Answer, ServedModel, plain_name, targets

_log = logging.getLogger("extremegp.server")
_LABELS_PAGE = 1000
Handler = Callable[[Request], Awaitable[Response]]


class _Server:
    """The models of a server, and what it answers.

    Args:
        models: that it serves; the first is that of Label Studio, and of the page, unless another is named.
        token: who changes a model must have; None where nobody may.
        limits: of requests.
    """

    def __init__(self, models: Sequence[ServedModel], token: str | None, limits: Limits) -> None:
        self.models = {model.name: model for model in models}
        self._first, self._token, self._limits = models[0], token, limits
        self._metrics = Metrics()
        self._control = label_studio.Control()

    def routes(self) -> list[Route]:
        """All of them."""
        of_models: dict[str, tuple[str, Handler]] = {
            "/models/{model}": ("GET", self.info),
            "/models/{model}/suggest": ("POST", self.suggest),
            "/models/{model}/labels": ("GET", self.labels),
            "/models/{model}/explain": ("POST", self.explain),
            "/models/{model}/learn": ("POST", self.learn),
            "/models/{model}/forget": ("POST", self.forget),
            "/models/{model}/add-labels": ("POST", self.add_labels),
            "/models/{model}/save": ("POST", self.save),
            "/models/{model}/reload": ("POST", self.reload),
        }
        others: dict[str, tuple[str, Handler]] = {
            "/": ("GET", self.page),
            "/docs": ("GET", self.docs),
            "/openapi.json": ("GET", self.openapi),
            "/health": ("GET", self.health),
            "/metrics": ("GET", self.metrics),
            "/models": ("GET", self.list_models),
            "/v1/projects": ("GET", self.annif_projects),
            "/v1/projects/{model}": ("GET", self.annif_project),
            "/v1/projects/{model}/suggest": ("POST", self.annif_suggest),
            "/v1/projects/{model}/learn": ("POST", self.annif_learn),
            "/predict": ("POST", self.label_studio_predict),
            "/setup": ("POST", self.label_studio_setup),
            "/webhook": ("POST", self.label_studio_webhook),
        }
        return [
            Route(path, self._guarded(path, handler), methods=[method])
            for path, (method, handler) in (of_models | others).items()
        ]

    def _guarded(self, route: str, handler: Handler) -> Handler:
        """The handler, counted, and with an answer to whatever goes wrong."""

        async def answer(request: Request) -> Response:
            started = time.perf_counter()
            try:
                response = await handler(request)
            except RequestError as error:
                response = problem(error.status, str(error))
            except ExtremeGPError as error:
                response = problem(422, str(error))
            except Exception:
                _log.exception("%s %s", request.method, route)
                response = problem(500, "something went wrong here; the server's log has it")
            self._metrics.count(route, response.status_code, time.perf_counter() - started)
            return response

        return answer

    def _model(self, request: Request) -> ServedModel:
        name = request.path_params["model"]
        if name not in self.models:
            raise RequestError(404, f"there is no model {name[:100]!r}; there are {', '.join(self.models)}")
        return self.models[name]

    def _changing(self, request: Request) -> ServedModel:
        check_token(request, self._token)
        return self._model(request)

    async def health(self, request: Request) -> Response:
        return JSONResponse(
            {"status": "UP", "version": __version__, "models": list(self.models), "model_class": "extremegp"}
        )

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(self._metrics.text(self.models.values()), media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(described(self._limits))

    async def docs(self, request: Request) -> Response:
        return HTMLResponse(_file("docs.html"), headers=_PAGE_HEADERS)

    async def page(self, request: Request) -> Response:
        return HTMLResponse(_file("page.html"), headers=_PAGE_HEADERS)

    async def list_models(self, request: Request) -> Response:
        return JSONResponse({"models": [_of_model(model) for model in self.models.values()]})

    async def info(self, request: Request) -> Response:
        return JSONResponse(_of_model(self._model(request)))

    async def suggest(self, request: Request) -> Response:
        model = self._model(request)
        asked = parsing.asked(await read_json(request, self._limits), model, self._limits)
        answers = await model.suggest(asked.documents, asked.k, uncertainty=asked.uncertainty)
        return JSONResponse({"suggestions": [_native(answer, asked.threshold) for answer in answers]})

    async def explain(self, request: Request) -> Response:
        model = self._model(request)
        if not model.explains:
            raise RequestError(409, f"the model {model.name!r} keeps no documents that could say why")
        asked = parsing.to_explain(await read_json(request, self._limits), model, self._limits)
        found = await model.explain(asked.documents, asked.labels, asked.k)
        return JSONResponse({"explanations": found})

    async def labels(self, request: Request) -> Response:
        model, query = self._model(request).model, request.query_params
        text = query.get("search", "").casefold()
        numbers = [query.get("offset", "0"), query.get("limit", "100")]
        if not all(number.isdecimal() and len(number) < 10 for number in numbers) or int(numbers[1]) > _LABELS_PAGE:
            raise RequestError(400, f'"offset" and "limit" must be integers, and the limit at most {_LABELS_PAGE}')
        offset, limit = map(int, numbers)
        counts, titles = model.label_counts_.tolist(), model.label_titles_
        found = [
            {"label": plain_name(name), "title": str(name if titles is None else titles[k]), "documents": counts[k]}
            for k, name in enumerate(model.classes_)
        ]
        if text:
            found = [
                each for each in found if text in str(each["title"]).casefold() or text in str(each["label"]).casefold()
            ]
        return JSONResponse({"n_labels": len(found), "labels": found[offset : offset + limit]})

    async def learn(self, request: Request) -> Response:
        model = self._changing(request)
        taught = parsing.taught(await read_json(request, self._limits), model, self._limits)
        ids = await self._learn(model, taught.documents, taught.labels, taught.ids, taught.new_labels)
        return JSONResponse(
            {"ids": ids, "n_rows": model.model.n_rows_, "n_labels": len(model.model.classes_)}, status_code=201
        )

    async def _learn(
        self, model: ServedModel, documents: list[Any], labels: list[list[Any]], ids: list[Any] | None, new: str = "add"
    ) -> list[str]:
        def change(estimator: Any) -> list[str]:
            before = estimator.n_rows_
            estimator.learn(documents, targets(estimator, labels), ids, new_labels=new)
            learnt: list[str] = estimator.ids_.names[before:]
            model.save_if_long()
            return learnt

        learnt = await model.change(change)
        model.n_learnt += len(learnt)
        return learnt

    async def forget(self, request: Request) -> Response:
        model = self._changing(request)
        ids = parsing.names(await read_json(request, self._limits), "ids", self._limits)

        def change(estimator: Any) -> None:
            estimator.forget(ids)
            # So that nothing of them is left in the files.
            estimator.save(model.folder)

        await model.change(change)
        return JSONResponse({"n_forgotten": len(ids), "n_rows": model.model.n_rows_})

    async def add_labels(self, request: Request) -> Response:
        model = self._changing(request)
        names = parsing.names(await read_json(request, self._limits), "labels", self._limits)
        await model.change(lambda estimator: estimator.add_labels(names))
        return JSONResponse({"n_labels": len(model.model.classes_)}, status_code=201)

    async def save(self, request: Request) -> Response:
        model = self._changing(request)
        await model.save()
        return JSONResponse({"saved": model.name})

    async def reload(self, request: Request) -> Response:
        model = self._changing(request)
        await model.reload()
        return JSONResponse(_of_model(model))

    async def annif_projects(self, request: Request) -> Response:
        return JSONResponse({"projects": [annif.project(model, _trained(model)) for model in self.models.values()]})

    async def annif_project(self, request: Request) -> Response:
        model = self._model(request)
        return JSONResponse(annif.project(model, _trained(model)))

    async def annif_suggest(self, request: Request) -> Response:
        model = self._model(request)
        text, limit, threshold = await annif.asked(request, self._limits)
        answers = await model.suggest(parsing.documents({"texts": [text]}, model, self._limits), limit)
        return JSONResponse({"results": annif.results(answers[0], limit, threshold)})

    async def annif_learn(self, request: Request) -> Response:
        model = self._changing(request)
        texts, labels = annif.documents_to_learn(await read_json(request, self._limits), self._limits)
        if texts:
            await self._learn(model, parsing.documents({"texts": texts}, model, self._limits), labels, None)
        return Response(status_code=204)

    async def label_studio_setup(self, request: Request) -> Response:
        body = await read_json(request, self._limits)
        if not isinstance(body, dict):
            raise RequestError(400, "the body must be a JSON object")
        self._control = label_studio.control_of(body.get("schema"))
        return JSONResponse({"model_version": _version(self._first)})

    async def label_studio_predict(self, request: Request) -> Response:
        body = await read_json(request, self._limits)
        if not isinstance(body, dict):
            raise RequestError(400, "the body must be a JSON object")
        config, model = body.get("label_config"), self._first
        control = label_studio.control_of(config) if config else self._control
        texts = label_studio.texts_of(body.get("tasks"), control, self._limits)
        answers = await model.suggest(parsing.documents({"texts": texts}, model, self._limits), 20) if texts else []
        version = _version(model)
        found = [label_studio.prediction(answer, control, 0.5, version) for answer in answers]
        return JSONResponse({"results": found, "model_version": version})

    async def label_studio_webhook(self, request: Request) -> Response:
        check_token(request, self._token)
        told, model = label_studio.annotation_of(await read_json(request, self._limits)), self._first
        if told is None:
            return JSONResponse({}, status_code=201)
        text, labels, name = told
        documents = parsing.documents({"texts": [text]}, model, self._limits)

        def change(estimator: Any) -> None:
            wanted = targets(estimator, [labels])
            if name in estimator.ids_:
                # An annotation that was changed takes the place of what it was.
                estimator.forget([name])
            estimator.learn(documents, wanted, [name])
            model.save_if_long()

        await model.change(change)
        model.n_learnt += 1
        return JSONResponse({"learnt": name}, status_code=201)


_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def make_app(models: Sequence[ServedModel], *, token: str | None = None, limits: Limits | None = None) -> Starlette:
    """An ASGI application that serves models.

    Args:
        models: of different names.
        token: who changes a model must have; None where nobody may.
        limits: of requests.
    """
    server = _Server(models, token, limits or Limits())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        for model in models:
            await model.close()

    def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        told = {404: "there is nothing here; /docs says what there is", 405: "that method is not for this address"}
        return problem(error.status_code, told.get(error.status_code, error.detail))

    return Starlette(routes=server.routes(), lifespan=lifespan, exception_handlers={HTTPException: unknown})


def problem(status: int, told: str) -> JSONResponse:
    """An answer that says what is wrong in a line."""
    headers = {503: {"Retry-After": "1"}, 401: {"WWW-Authenticate": "Bearer"}}.get(status)
    return JSONResponse({"error": " ".join(told.split())}, status_code=status, headers=headers)


def _file(name: str) -> str:
    return (files("extremegp.server") / name).read_text(encoding="utf-8")


def _native(answer: Answer, threshold: float) -> dict[str, Any]:
    labels = [each._asdict() for each in answer.labels if each.probability >= threshold]
    return {"labels": labels} if answer.uncertainty is None else {"labels": labels, "uncertainty": answer.uncertainty}


def _of_model(model: ServedModel) -> dict[str, Any]:
    estimator = model.model
    return {
        "name": model.name,
        "estimator": type(estimator).__name__,
        "takes": "texts" if model.takes_texts else "vectors",
        "n_features": estimator.features_.n_features_in,
        "n_labels": len(estimator.classes_),
        "n_rows": estimator.n_rows_,
        "learns": model.learns,
        "explains": model.explains,
        "trained": _trained(model),
    }


def _trained(model: ServedModel) -> str | None:
    origin = model.model.origin_
    return None if origin is None else origin.trained


def _version(model: ServedModel) -> str:
    return f"{model.name} {_trained(model) or ''} {model.model.n_rows_} rows"
