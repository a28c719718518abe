"""What the routes share: the controller, pages of lists, tags of representations, described problems."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

from fastapi import Header, Path, Query, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response

from opus_sdn.api import problems
from opus_sdn.api.schemas import GROUP_PATTERN, NAME_PATTERN, WHOLE_MAX
from opus_sdn.intent.errors import STATUS, CoreError, Problem
from opus_sdn.intent.job import JobCore
from opus_sdn.reconciler.phase import Phase
from opus_sdn.reconciler.runtime import Runtime

T = TypeVar("T")
Key = tuple[str | int | float, ...]

# What an incarnation may have ended with; requests of its ranks are then refused with the cause.
FATAL = (
    Problem.DIVERGED,
    Problem.RUN_DEVIATION,
    Problem.TAG_ORDER,
    Problem.DEADLINE,
    Problem.RANK_LOST,
    Problem.OPERATION_FAILED,
    Problem.ABORTED,
    Problem.SUPERSEDED,
    Problem.CONTROLLER_RESTARTED,
)

JobName = Annotated[str, Path(pattern=NAME_PATTERN, description="Job name", examples=["llama-70b"])]
GroupName = Annotated[str, Path(pattern=GROUP_PATTERN, description="Group name", examples=["dp-0-4"])]
IncarnationQuery = Annotated[int, Query(ge=1, le=WHOLE_MAX, description="The job's incarnation")]
Limit = Annotated[int, Query(ge=1, le=500, description="Most entries of one page")]
Cursor = Annotated[str | None, Query(max_length=1024, description="`next` of the page before")]
IfNoneMatch = Annotated[str | None, Header(max_length=256, description="ETag that the client has already")]


def runtime_of(request: Request) -> Runtime:
    """The running controller."""
    runtime: Runtime = request.app.state.runtime
    return runtime


def job_core(runtime: Runtime, job: str) -> JobCore:
    """The core's own record of a job, for what a view with all its ranks would cost too much for.

    Raises CoreError `unknown-job`.
    """
    core = runtime.engine.state.jobs.get(job)
    if core is None:
        raise CoreError(Problem.UNKNOWN_JOB, f"there is no job {job!r}; declare it first", job=job)
    return core


async def send_changes_to_the_leader(request: Request) -> None:
    """A replica that follows changes nothing, whatever else is wrong with the request."""
    if request.method not in {"GET", "HEAD"} and runtime_of(request).phase is Phase.FOLLOWING:
        runtime_of(request).require_ready()


async def refuse_unknown_query(request: Request) -> None:
    """Refuse query parameters that the route does not have: a misspelt `dry_run` would be the real thing."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or not request.query_params:
        return
    known = {field.alias for field in route.dependant.query_params}
    for name in request.query_params:
        if name not in known:
            raise CoreError(
                Problem.INVALID_REQUEST,
                f"query.{name}: is no parameter of this route; it has: {', '.join(sorted(known)) or 'none'}",
                field=f"query.{name}",
            )


def page(
    items: Iterable[T], key: Callable[[T], Key], limit: int, cursor: str | None
) -> tuple[list[T], str | None]:
    """The entries after `cursor` in order of `key`, at most `limit`, and the cursor of what follows."""
    after = _read_cursor(cursor) if cursor is not None else None
    try:
        rest = [item for item in sorted(items, key=key) if after is None or key(item) > after]
    except TypeError:  # the cursor of another list
        raise _bad_cursor(cursor) from None
    shown = rest[:limit]
    return shown, _write_cursor(key(shown[-1])) if len(rest) > limit else None


def _write_cursor(key: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _read_cursor(cursor: str) -> Key:
    try:
        key = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError):
        raise _bad_cursor(cursor) from None
    if not isinstance(key, list) or not all(map(_is_key_part, key)):
        raise _bad_cursor(cursor)
    return tuple(key)


def _is_key_part(part: object) -> bool:
    """Whether it has a place in an order; NaN, which Python reads in JSON, has none."""
    return isinstance(part, str | int) or (isinstance(part, float) and math.isfinite(part))


def _bad_cursor(cursor: str | None) -> CoreError:
    return CoreError(
        Problem.INVALID_REQUEST,
        f"query.cursor is {cursor!r}: use `next` of the page before, of the same list",
        field="query.cursor",
    )


def tagged(document: BaseModel, generation: int, if_none_match: str | None) -> Response:
    """The representation with a strong ETag, or 304 when the client has it."""
    content = document.model_dump_json().encode()
    tag = f'"{generation}.{hashlib.sha256(content).hexdigest()[:16]}"'
    return tagged_bytes(content, tag, if_none_match)


def tagged_bytes(content: bytes, tag: str, if_none_match: str | None) -> Response:
    """`tagged` for content that has its tag already."""
    headers = {"ETag": tag}
    if if_none_match is not None and (if_none_match == "*" or tag in _tags(if_none_match)):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type="application/json")


def _tags(header: str) -> set[str]:
    return {tag.strip().removeprefix("W/") for tag in header.split(",")}


def problems_of(*names: Problem) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route, for the API document: each problem with an example, by status."""
    by_status: dict[int | str, dict[str, Any]] = {}
    for name in dict.fromkeys((*names, Problem.INVALID_REQUEST, Problem.INTERNAL)):
        status = STATUS[name]
        answer = by_status.setdefault(
            status,
            {
                "description": "",
                "content": {
                    problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}
                },
            },
        )
        titles = [part for part in (answer["description"], problems.title_of(name)) if part]
        answer["description"] = "; ".join(titles)
        answer["content"][problems.MEDIA_TYPE]["examples"][name.value] = {
            "summary": problems.title_of(name),
            "value": problems.example_of(name),
        }
    return by_status


ETAG = {"ETag": {"description": "Strong tag of this representation", "schema": {"type": "string"}}}
