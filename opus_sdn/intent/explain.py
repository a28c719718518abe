"""Why an intent waits, in full: the reason that was noted when it was decided, and who is behind it now."""

from __future__ import annotations

from collections.abc import Iterator

from opus_sdn.intent.job import JobCore
from opus_sdn.intent.reasons import Because, Reason
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.streams import HeldRun, Intent, StreamState, short


def why_waiting(state: CoreState, job: JobCore, intent: Intent) -> Because:
    """The intent's reason; where a lock is in the way, with the runs and the ranks that hold it."""
    because = job.streams[intent.stream].why_open(intent)
    if because.reason is not Reason.LOCKED:
        return because
    held = list(_held_at(state, str(because.data["switch"]), because.data["position"]))
    said = [
        f"operation {run.n} of {stream.stream} is held by ranks {short(sorted(run.holders))}"
        for stream, run in held
    ]
    data: dict[str, object] = {
        "held": [
            {"connection": stream.connection.id, "n": run.n, "ranks": sorted(run.holders)}
            for stream, run in held
        ]
    }
    return Because(because.reason, "; ".join([because.detail, *said]), because.data | data)


def _held_at(state: CoreState, switch: str, position: object) -> Iterator[tuple[StreamState, HeldRun]]:
    """Held runs whose circuits use a position of a switch."""
    for job in state.active.values():
        for stream in job.streams.values():
            if stream.held and any(
                (terminal.switch, terminal.position) == (switch, position)
                for circuit in stream.connection.circuits
                for terminal in circuit.terminals
            ):
                yield from ((stream, run) for run in stream.held.values())
