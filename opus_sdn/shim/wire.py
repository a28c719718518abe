"""JSON of the rank routes, to and from the shim's own values. Fields that are not known are passed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from opus_sdn.intent.model import CutRequest, Domain, Grant, Stream
from opus_sdn.shim.conversation import Alarm, Answer, JobFailure
from opus_sdn.shim.errors import ControllerUnavailableError

PREFIX = "/api/v1"


@dataclass(frozen=True, slots=True)
class Ring:
    """The connection of a group's collectives: its id and the circuits it uses."""

    id: str
    circuits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """The answer to a check-in. `ring` is None where collectives need no circuits or cannot have them."""

    name: str
    domain: Domain
    ring: Ring | None


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """The controller's answer to a registration."""

    incarnation: int
    start: int


def job_path(job: str, *rest: str) -> str:
    """Path of a job or of something in it."""
    return "/".join((f"{PREFIX}/jobs/{quote(job, safe='')}", *(quote(part, safe="") for part in rest)))


def queue_path(job: str, by: str) -> str:
    """Path of a queued job, and who takes it out."""
    return f"{PREFIX}/queue/{quote(job, safe='')}?by={quote(by, safe='')}"


def connection_path(job: str, connection: str) -> str:
    """Path of one connection of a job."""
    return f"{PREFIX}/connections/{quote(connection, safe='')}?job={quote(job, safe='')}"


def stream_fields(stream: Stream) -> dict[str, Any]:
    """A stream's name as the wire has it."""
    fields: dict[str, Any] = {"connection": stream.connection}
    if stream.source is not None:
        fields |= {"source": stream.source, "destination": stream.destination}
    return fields


def read_job(body: Mapping[str, Any]) -> JobAnswer:
    """The incarnation and start number of a registered job."""
    try:
        return JobAnswer(_whole(body["incarnation"]), _whole(body["start"]))
    except (KeyError, TypeError, ValueError) as wrong:
        raise _garbled("the registration", wrong) from None


def read_group(body: Mapping[str, Any]) -> GroupAnswer:
    """Domain and ring of a checked-in group, from the answer to a check-in of one group."""
    try:
        group = body["groups"][0] if "groups" in body else body
        connection = group["connection"]
        ring = None
        if connection is not None:
            ring = Ring(str(connection["id"]), _circuits(connection))
        return GroupAnswer(str(group["name"]), Domain(group["domain"]), ring)
    except (KeyError, IndexError, TypeError, ValueError) as wrong:
        raise _garbled("the check-in", wrong) from None


def read_circuits(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Circuit ids of a connection."""
    try:
        return _circuits(body)
    except (KeyError, TypeError) as wrong:
        raise _garbled("the question for a connection", wrong) from None


def read_answer(body: Mapping[str, Any], rank: int) -> Answer:
    """One rank's part of the answer to its news."""
    try:
        start = _whole(body["start"])
        mine = next(entry for entry in body["ranks"] if entry["rank"] == rank)
        grants = tuple(_grant(fields) for fields in mine["grants"])
        failure = mine["failure"]
        alarms = tuple(
            Alarm(str(alarm["circuit"]), str(alarm["switch"])) for alarm in mine.get("alarms") or ()
        )
        cuts = tuple(_cut(fields) for fields in mine.get("cut_requests") or ())
        return Answer(start, grants, _failure(failure) if failure is not None else None, alarms, cuts)
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as wrong:
        raise _garbled("a rank's news", wrong) from None


def _grant(fields: Mapping[str, Any]) -> Grant:
    return Grant(_whole(fields["no"]), _stream(fields), _whole(fields["n"]), _whole(fields["length"]))


def _cut(fields: Mapping[str, Any]) -> CutRequest:
    length = fields["length"]
    return CutRequest(_stream(fields), _whole(fields["n"]), None if length is None else _whole(length))


def _stream(fields: Mapping[str, Any]) -> Stream:
    ends = (fields.get("source"), fields.get("destination"))
    return Stream(str(fields["connection"]), *(None if end is None else _whole(end) for end in ends))


def _failure(fields: Mapping[str, Any]) -> JobFailure:
    rank = fields.get("rank")
    return JobFailure(
        str(fields["type"]).rpartition(":")[2],
        str(fields["detail"]),
        None if rank is None else _whole(rank),
        dict(fields.get("data") or {}),
    )


def _circuits(connection: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(circuit["id"]) for circuit in connection["circuits"])


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _garbled(what: str, wrong: Exception) -> ControllerUnavailableError:
    return ControllerUnavailableError(
        f"the answer to {what} is not one of the controller ({type(wrong).__name__}: {wrong}); "
        "does OPUS_CONTROLLER name the controller, and of this version?"
    )
