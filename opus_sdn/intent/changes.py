"""What the core asks the store to remember. A `Batch` is one transaction: all of it or nothing.

The core decides, the store writes, and only then is anything answered: so a change says what happened, by
whom and when, and never how it is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Domain, JobSpec, Stream


class JobState(StrEnum):
    """Life of an incarnation."""

    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"


class IntentState(StrEnum):
    """Life of an intent (one run of one stream)."""

    DECLARED = "declared"
    COMPLETE = "complete"
    INSTALLING = "installing"
    STALLED = "stalled"
    GRANTED = "granted"
    RELEASED = "released"
    FAILED = "failed"


class StepState(StrEnum):
    """Life of a device step."""

    PLANNED = "planned"
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A new incarnation was admitted."""

    job: str
    incarnation: int
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class JobSettled:
    """An incarnation ended, well or badly. `cause` to `data` are the failure's, its problem type first."""

    job: str
    incarnation: int
    state: JobState
    cause: str | None = None
    detail: str | None = None
    rank: int | None = None
    data: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobLetGo:
    """Nobody of a failed incarnation holds anything any more: all but how it ended may be forgotten."""

    job: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class GroupChecked:
    """A group became known."""

    job: str
    incarnation: int
    group: str
    ranks: tuple[int, ...]
    dimension: str
    ordinal: int
    domain: Domain


@dataclass(frozen=True, slots=True)
class RankLeft:
    """A rank is done and gone: a later start of the controller does not wait for it."""

    job: str
    incarnation: int
    rank: int


@dataclass(frozen=True, slots=True)
class RunGranted:
    """All locks of one grant, the stream's mark (n + length) and the times, in one transaction."""

    job: str
    incarnation: int
    stream: Stream
    n: int
    length: int
    locks: tuple[tuple[int, int], ...]  # (rank, grant number)
    circuits: tuple[str, ...]
    complete_at: float
    granted_at: float


@dataclass(frozen=True, slots=True)
class RunCut:
    """A held run ends earlier: its locks, and the stream's mark, are those of [n, n + length) now."""

    job: str
    incarnation: int
    stream: Stream
    n: int
    length: int


@dataclass(frozen=True, slots=True)
class LocksReleased:
    """These ranks let go of one run; the rank's released mark becomes n + length."""

    job: str
    incarnation: int
    stream: Stream
    n: int
    length: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CircuitsOwned:
    """From now on these circuits count for the dimension with this topology digit (None: for none)."""

    job: str
    incarnation: int
    digit: int | None
    circuits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IntentMoved:
    """The run's intent entered a state of the lifecycle table."""

    job: str
    incarnation: int
    stream: Stream
    n: int
    state: IntentState


@dataclass(frozen=True, slots=True)
class StepPlanned:
    """A device step as it will be executed, written before it starts."""

    step: int
    switch: str
    generation: int  # of the observation it was planned on
    remove: tuple[CrossConnect, ...]
    add: tuple[CrossConnect, ...]
    causes: tuple[str, ...]
    disturbed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepMoved:
    """A device step entered a state."""

    step: int
    switch: str
    state: StepState
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class CircuitsObserved:
    """The device was read: what it holds now, with the observation's generation."""

    switch: str
    generation: int
    matching: tuple[CrossConnect, ...]
    foreign: tuple[CrossConnect, ...] = ()  # of these, what no step of ours made


class DirectiveKind(StrEnum):
    """What an operator, or a launcher, has told and what holds until it is withdrawn."""

    DRAIN = "drain"  # a port gets no circuit
    CIRCUIT = "circuit"  # a circuit is kept up for nobody's job
    QUEUED = "queued"  # a job waits for its ports
    PLAN = "plan"  # a change that was looked at, and may be applied


@dataclass(frozen=True, slots=True)
class DirectiveGiven:
    """A directive, or a new form of it. `number` counts up, `data` is JSON: what it says and who said it."""

    kind: DirectiveKind
    name: str
    number: int
    at: float
    data: dict[str, object]


@dataclass(frozen=True, slots=True)
class DirectiveWithdrawn:
    """A directive holds no longer."""

    kind: DirectiveKind
    name: str


@dataclass(frozen=True, slots=True)
class EventAppended:
    """One line of history. `kind` is dotted (`intent.granted`); the store numbers events."""

    kind: str
    job: str | None = None
    incarnation: int | None = None
    rail: str | None = None
    switch: str | None = None
    data: dict[str, object] = field(default_factory=dict)
    at: float | None = None  # when it happened, if that was before the batch was made


Change = (
    JobStarted
    | JobSettled
    | JobLetGo
    | GroupChecked
    | RankLeft
    | RunGranted
    | RunCut
    | LocksReleased
    | CircuitsOwned
    | IntentMoved
    | StepPlanned
    | StepMoved
    | CircuitsObserved
    | DirectiveGiven
    | DirectiveWithdrawn
    | EventAppended
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes of one transaction, in order, at time `at` (seconds since 1970, as given to the core).

    `durable`: on disk before it counts (jobs, plans, steps); otherwise it must survive the process, not the
    machine (locks, grants, marks).
    """

    id: int
    at: float
    changes: tuple[Change, ...]
    durable: bool
