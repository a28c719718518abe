"""What the API answers about simulations."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from opus_sdn.api import problems
from opus_sdn.api.documents import Document, Page, Time
from opus_sdn.api.simulations.request import ReplayRequest, SweepRequest
from opus_sdn.api.simulations.simulation import Simulation, SimulationState
from opus_sdn.intent.errors import STATUS, Failure
from opus_sdn.reconciler.runs import rfc3339


class SimulationProgress(Document):
    """How far a simulation has come."""

    phase: Annotated[str, Field(description="`queued`, `starting`, `loading` or `replaying`")]
    done: Annotated[int, Field(description="Replays that are finished")]
    points: Annotated[int, Field(description="Replays that were asked for")]


class SimulationSummary(Document):
    """A simulation without its result."""

    id: str
    label: str
    state: SimulationState
    progress: SimulationProgress
    inputs: Annotated[dict[str, str], Field(description="Name or path of each file")]
    replay: Annotated[ReplayRequest | None, Field(description="As asked for")]
    sweep: Annotated[SweepRequest | None, Field(description="As asked for")]
    created_at: Time
    started_at: Time | None
    ended_at: Time | None
    failure: Annotated[
        dict[str, Any] | None,
        Field(
            description="Why it failed: problem details, with `file`, `node`, `field`, `value` of bad input"
        ),
    ]


class SimulationDocument(SimulationSummary):
    """A simulation with its result, once it is done."""

    result: Annotated[
        dict[str, Any] | list[dict[str, Any]] | None,
        Field(
            description="As `opus whatif -o json` prints it: an object for a replay, a list for a sweep. "
            "A step that cannot finish has `finish_ns` null, and in `cycle` who waits for whom"
        ),
    ]


class SimulationPage(Page):
    """Simulations in the order in which they were asked for."""

    simulations: list[SimulationSummary]


def summary(known: Simulation) -> SimulationSummary:
    """A simulation as lists show it."""
    request = known.request
    return SimulationSummary(
        id=known.id,
        label=request.label,
        state=known.state,
        progress=SimulationProgress(phase=known.phase, done=known.done, points=known.points),
        inputs={field: file.shown for field, file in request.inputs.given()},
        replay=request.replay,
        sweep=request.sweep,
        created_at=rfc3339(known.created_at),
        started_at=_time(known.started_at),
        ended_at=_time(known.ended_at),
        failure=_problem(known.failure) if known.failure is not None else None,
    )


def whole(known: Simulation) -> bytes:
    """A `SimulationDocument` as JSON. The result is JSON already, and may be large: it is not read again."""
    head = summary(known).model_dump_json().encode()
    return head[:-1] + b',"result":' + (known.result or b"null") + b"}"


def _time(at: float | None) -> str | None:
    return None if at is None else rfc3339(at)


def _problem(failure: Failure) -> dict[str, Any]:
    problem = failure.problem
    return {
        **failure.data,
        "type": problems.type_of(problem),
        "title": problems.title_of(problem),
        "status": STATUS[problem],
        "detail": failure.detail,
    }
