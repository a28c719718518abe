"""Every error of the API as problem+json (RFC 9457), with a stable `type` and the request's id.

Nothing else may write an error: clients decide by `type`, and people read `detail`, which names the field,
its value and what would be right.
"""

from __future__ import annotations

import http
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from opus_sdn.api.problem_examples import EXAMPLES
from opus_sdn.intent.errors import STATUS, CoreError, Problem

MEDIA_TYPE = "application/problem+json"
PREFIX = "/api/v1"
TYPE_PREFIX = "urn:opus-sdn:problem:"
ERRORS_SHOWN_MAX = 20
VALUE_SHOWN_MAX = 100
RETRY_AFTER_S = 1
_BY_STATUS = {
    400: Problem.MALFORMED_JSON,
    404: Problem.NOT_FOUND,
    405: Problem.METHOD_NOT_ALLOWED,
    413: Problem.BODY_TOO_LARGE,
    503: Problem.NOT_READY,
}


def type_of(problem: Problem) -> str:
    """The URN that a problem is known by."""
    return TYPE_PREFIX + problem.value


def title_of(problem: Problem) -> str:
    """The problem's name for people."""
    return problem.value.replace("-", " ").capitalize().replace("json", "JSON")


def example_of(problem: Problem) -> dict[str, object]:
    """A problem as it is answered, for the API document."""
    detail, data = EXAMPLES[problem]
    return {
        "type": type_of(problem),
        "title": title_of(problem),
        "status": STATUS[problem],
        "detail": detail,
        "instance": f"{PREFIX}/jobs/llama-70b",
        "request_id": "7-1f",
        **data,
    }


def response(
    problem: Problem,
    detail: str,
    *,
    instance: str,
    request_id: str,
    data: Mapping[str, object] | None = None,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer for one error. `data` adds members; it never replaces the standard ones."""
    code = STATUS[problem] if status is None else status
    body: dict[str, object] = {
        **(data or {}),
        "type": type_of(problem),
        "title": title_of(problem),
        "status": code,
        "detail": detail,
        "instance": instance,
        "request_id": request_id,
    }
    more = dict(headers or {})
    if problem is Problem.NOT_LEADER and data is not None:
        more["Location"] = f"{data['leader']}{instance}"
    if STATUS[problem] == 503:
        more["Retry-After"] = str(RETRY_AFTER_S)
    more["X-Request-Id"] = request_id
    return Response(to_json(body, fallback=str), status_code=code, headers=more, media_type=MEDIA_TYPE)


def of_core(error: CoreError, *, instance: str, request_id: str) -> Response:
    """The answer for a refusal of the core."""
    return response(error.problem, error.detail, instance=instance, request_id=request_id, data=error.data)


def refused(errors: Iterable[Mapping[str, Any]]) -> CoreError:
    """What the validator found wrong, as one refusal: `malformed-json`, or `invalid-request` by field."""
    found = list(errors)
    if found and found[0]["type"] == "json_invalid":
        return CoreError(Problem.MALFORMED_JSON, f"the body is not JSON: {found[0]['ctx']['error']}")
    shown = [
        {"field": _field(error["loc"]), "value": _value(error), "message": _message(error)}
        for error in found[:ERRORS_SHOWN_MAX]
    ]
    sentences = [
        f"{e['field']}{' is ' + e['value'] if e['value'] else ''}: {e['message']}" for e in shown[:3]
    ]
    if len(found) > len(sentences):
        sentences.append(f"and {len(found) - len(sentences)} more")
    return CoreError(Problem.INVALID_REQUEST, "; ".join(sentences), errors=shown, error_count=len(found))


def refused_by(error: ValidationError) -> CoreError:
    """`refused` for a failed validation of a body."""
    return refused(error.errors(include_url=False))


def install(app: FastAPI) -> None:
    """Have every refusal, by a route or before one is found, answered as a problem."""
    app.add_exception_handler(CoreError, _on_core_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)


def request_id_of(scope: Mapping[str, Any]) -> str:
    """The id that the context middleware gave to this request."""
    return str(scope.get("opus.request_id", "none"))


# Plain functions would be called in a thread of the framework's pool, each refusal in one.


async def _on_core_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CoreError)
    return of_core(error, instance=request.url.path, request_id=request_id_of(request.scope))


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await _on_core_error(request, refused(error.errors()))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    details = {
        404: f"no such route: {path}; /docs lists all routes",
        405: f"{method} is not possible on {path}; the Allow header lists what is",
    }
    problem = _BY_STATUS.get(error.status_code, Problem.INVALID_REQUEST)
    return response(
        problem,
        details.get(error.status_code) or http.HTTPStatus(error.status_code).phrase,
        instance=path,
        request_id=request_id_of(request.scope),
        status=error.status_code,
        headers=error.headers,
    )


def bug(instance: str, request_id: str) -> Response:
    """The answer when we are at fault: an id to find the traceback by, and nothing of the inside."""
    return response(
        Problem.INTERNAL,
        f"the controller has a bug; its log has the details under request id {request_id}",
        instance=instance,
        request_id=request_id,
    )


def _field(location: Iterable[int | str]) -> str:
    """The place of an error as one would write it: `ranks[0].arrivals[2].n`."""
    text = ""
    for part in location:
        if isinstance(part, str) and part.startswith("<"):  # which form of a union was tried
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "body"


def _value(error: Mapping[str, Any]) -> str:
    """The refused value as JSON, cut short; empty where there is none."""
    if error["type"] in ("missing", "extra_forbidden"):
        return ""
    text = to_json(error["input"], fallback=str).decode("utf-8", "replace")
    return text if len(text) <= VALUE_SHOWN_MAX else text[: VALUE_SHOWN_MAX - 3] + "..."


def _message(error: Mapping[str, Any]) -> str:
    """What would be right, as one clause."""
    if error["type"] == "missing":
        return "is required"
    if error["type"] == "extra_forbidden":
        return "is no field of this request; leave it out"
    message = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return message[0].lower() + message[1:]
