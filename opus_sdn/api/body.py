"""Reading a request's body: once, within its limit, and straight into the wire model.

The framework would parse JSON first and validate the parsed values, in which `true` passes for 1 and a list
for a set. Validating the bytes keeps JSON's own types, and costs one pass instead of two.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from fastapi import Request
from pydantic import TypeAdapter, ValidationError
from starlette.types import Receive, Scope

from opus_sdn.api import problems
from opus_sdn.intent.errors import CoreError, Problem

T = TypeVar("T")

# A client that is still sending must be able to finish, or it sees a broken connection instead of the answer.
DISCARD_MAX = 1024 * 1024


async def read(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises CoreError `body-too-large` above `limit` bytes, and when it is not sent as JSON.

    A client that is gone before the end leaves an empty body, which no model accepts.
    """
    _check_headers(scope, limit)
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False) and len(body) <= limit:
        return body
    chunks, size = [body], len(body)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size <= limit:
            chunks.append(chunk)
        elif size > limit + DISCARD_MAX:
            break
    if size > limit:
        raise _too_large(size, limit)
    return b"".join(chunks)


def _check_headers(scope: Scope, limit: int) -> None:
    """Refuse before reading what the headers already show to be wrong."""
    headers = dict(scope["headers"])
    size = int(headers.get(b"content-length", b"0"))
    if size > limit and b"expect" in headers:  # the client waits to be told before it sends
        raise _too_large(size, limit)
    content_type = headers.get(b"content-type", b"")
    # Every other type, and none, can be sent by a web page of anybody without asking this server first.
    if content_type.partition(b";")[0].strip().lower() != b"application/json":
        shown = content_type.decode("latin-1")[:100]
        raise CoreError(
            Problem.INVALID_REQUEST,
            f"the Content-Type header is {shown!r}; it must be 'application/json'",
            field="header.Content-Type",
        )


def _too_large(size: int, limit: int) -> CoreError:
    return CoreError(
        Problem.BODY_TOO_LARGE,
        f"the body has {size} bytes or more; the limit of this route is {limit} bytes",
        limit_bytes=limit,
    )


class JsonBody(Generic[T]):
    """A FastAPI dependency that gives the body as `model`; `limit` names the setting with its limit."""

    def __init__(self, model: type[T], limit: str) -> None:
        self._adapter: TypeAdapter[T] = TypeAdapter(model)
        self._limit = limit

    async def __call__(self, request: Request) -> T:
        limit: int = getattr(request.app.state.settings, self._limit)
        body = await read(request.scope, request.receive, limit)
        try:
            return self._adapter.validate_json(body)
        except ValidationError as error:
            raise problems.refused_by(error) from None
