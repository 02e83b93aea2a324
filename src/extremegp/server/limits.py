"""What a client may ask for, and who may change a model."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request


@dataclass(frozen=True)
class Limits:
    """Bounds on everything that a client sends.

    Attributes:
        body_bytes: of a request.
        documents: of a request.
        best: labels of a document that may be asked for.
        queue: documents that may wait, of each model.
        seconds: until a request is answered, or given up.
        body_seconds: until a request has come.
        batch: documents that are answered at once.
    """

    body_bytes: int = 1 << 20
    documents: int = 64
    best: int = 1000
    queue: int = 512
    seconds: float = 30.0
    body_seconds: float = 10.0
    batch: int = 64


class RequestError(Exception):
    """What is wrong with a request, in a line.

    Attributes:
        status: of the answer.
    """

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body of a request.

    Raises:
        RequestError: it is too long, or does not come.
    """
    told = request.headers.get("content-length", "0")
    too_long = RequestError(413, f"the body is longer than {limits.body_bytes} bytes")
    if told.isdecimal() and int(told) > limits.body_bytes:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.body_bytes:
                    raise too_long
    except TimeoutError:
        raise RequestError(408, f"the body did not come within {limits.body_seconds:g} seconds") from None
    except ClientDisconnect:
        raise RequestError(400, "the client went away") from None
    return bytes(body)


async def read_json(request: Request, limits: Limits) -> Any:
    """The JSON that a request has.

    Raises:
        RequestError: it has none.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, f"the content type must be application/json, not {kind or 'none'!r}")
    return parsed_json(await read_body(request, limits))


def parsed_json(body: bytes) -> Any:
    """JSON without infinities, NaN or keys that come twice.

    Raises:
        RequestError: it is none.
    """

    def refuse(text: str) -> Any:
        raise ValueError(f"{text} is no number")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("a key comes twice")
        return dict(pairs)

    try:
        return json.loads(body.decode("utf-8"), parse_constant=refuse, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        problem = "it nests too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(400, f"the body is not JSON: {problem}") from None


def check_token(request: Request, token: str | None) -> None:
    """Refuse a change by who does not have the token: as Bearer or Token, or as the password of Basic.

    Raises:
        RequestError: it is another token, or none.
    """
    if token is None:
        raise RequestError(403, "this server changes no model: start it with --token-file to let it learn")
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            value = ""
    elif kind.lower() not in ("bearer", "token"):
        value = ""
    if not hmac.compare_digest(value.strip().encode(), token.encode()):
        raise RequestError(401, "a change of the model needs the header Authorization: Bearer TOKEN")
