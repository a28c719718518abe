"""A replay in the Chrome trace format, which Perfetto and chrome://tracing open.

A process for each rank, with a lane for computing, one for sends and collectives and one for each receive
that is open at a time; and a process for the fabric, with a mark for each reconfiguration. Times are in
microseconds there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.result import Result
from opus_sdn.whatif.trace.model import (
    COLLECTIVE,
    COLLECTIVE_NAMES,
    COMPUTE,
    KIND_NAMES,
    METADATA,
    RECEIVE,
    Trace,
)

_COMPUTE_LANE, _COMMUNICATION_LANE, _FIRST_RECEIVE_LANE = 0, 1, 2


def write_timeline(trace: Trace, result: Result, path: Path) -> None:
    """Write the file, an event a line."""
    try:
        with path.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
            separator = ""
            for event in _events(trace, result):
                file.write(separator + json.dumps(event, separators=(",", ":")))
                separator = ",\n"
            file.write("\n]}\n")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", file=path) from None


def _events(trace: Trace, result: Result) -> Iterator[dict[str, object]]:
    fabric = len(trace.ranks)
    yield _named("process_name", fabric, 0, "fabric")
    for time, topology in result.reconfigurations:
        name = f"topology {topology}"
        yield {"ph": "i", "s": "g", "name": name, "pid": fabric, "tid": 0, "ts": time / 1000}
    for exposure in result.exposures:
        yield {
            "ph": "X",
            "name": f"rank {exposure.rank} waits",
            "pid": fabric,
            "tid": 1,
            "ts": exposure.time_ns / 1000,
            "dur": exposure.waited_ns / 1000,
            "args": {"operation": exposure.operation, "topology": exposure.topology},
        }
    for rank in trace.ranks:
        yield _named("process_name", rank.rank, 0, f"rank {rank.rank}")
        yield _named("thread_name", rank.rank, _COMPUTE_LANE, "compute")
        yield _named("thread_name", rank.rank, _COMMUNICATION_LANE, "sends and collectives")
        started, ended = result.started_ns[rank.rank], result.ended_ns[rank.rank]
        free_at: list[int] = []  # when each receive lane is free again
        for position in sorted(range(len(rank.graph)), key=started.__getitem__):
            operation = rank.graph.operations[position]
            args: dict[str, object] = {"node": rank.graph.ids[position]}
            kind = KIND_NAMES[operation.kind]
            if operation.kind == COLLECTIVE:
                kind = COLLECTIVE_NAMES[operation.collective]
                args |= {"bytes": operation.size, "group": trace.groups[rank.partners[position]].name}
            elif operation.kind not in (COMPUTE, METADATA):
                args |= {"bytes": operation.size, "peer": rank.partners[position]}
            lane = _COMPUTE_LANE if operation.kind in (COMPUTE, METADATA) else _COMMUNICATION_LANE
            if operation.kind == RECEIVE:
                lane = _receive_lane(free_at, started[position], ended[position])
            yield {
                "ph": "X",
                "name": operation.name or kind,
                "cat": kind,
                "pid": rank.rank,
                "tid": lane,
                "ts": started[position] / 1000,
                "dur": (ended[position] - started[position]) / 1000,
                "args": args,
            }


def _receive_lane(free_at: list[int], start: int, end: int) -> int:
    for lane, free in enumerate(free_at):
        if free <= start:
            free_at[lane] = end
            return _FIRST_RECEIVE_LANE + lane
    free_at.append(end)
    return _FIRST_RECEIVE_LANE + len(free_at) - 1


def _named(what: str, process: int, lane: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": what, "pid": process, "tid": lane, "args": {"name": name}}
