"""What the API answers about jobs: wire models of the core's views. Waits are milliseconds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from opus_sdn.api.documents import Document, Page, ReasonDocument, Time
from opus_sdn.intent import views
from opus_sdn.intent.changes import IntentState, JobState
from opus_sdn.intent.model import Connection, Domain, GroupView, Pattern, PortChoice, WorldGroup
from opus_sdn.reconciler.runs import rfc3339

TopologyIds = Annotated[
    dict[str, str],
    Field(description="Rail -> topology id: a digit per pipeline stage, `x` while mixed, `-` while dark"),
]


class FailureDocument(Document):
    """Why an incarnation ended; the same for all its ranks. `rank` is whose fault it was, if known."""

    type: Annotated[str, Field(description="Problem type, as in error answers")]
    detail: str
    rank: int | None
    data: dict[str, object]


class RankDocument(Document):
    """One rank's session."""

    rank: int
    host: str
    slot: int
    stage: Annotated[int, Field(description="Pipeline stage, from 0")]
    last_heard: Time
    stopped: Annotated[bool, Field(description="Known to have stopped: it holds nothing")]
    grants: int
    open: Annotated[int, Field(description="Arrivals that are not granted yet")]
    barrier_wait_ms: Annotated[float, Field(description="Own arrivals until all had arrived, summed, ms")]
    exposed_wait_ms: Annotated[float, Field(description="All arrived until granted, summed, ms")]


class AlarmDocument(Document):
    """A circuit that ranks hold and that is not there, or passes no light; until it is, or they let go."""

    circuit: str
    rail: str
    switch: str
    since: Time
    ranks: list[int]


class JobSummary(Document):
    """The newest incarnation of a job, without its ranks."""

    job: str
    owner: str
    incarnation: int
    state: JobState
    failure: FailureDocument | None
    started_at: Annotated[Time | None, Field(description="Null for an incarnation of an earlier start")]
    world_size: int
    topology: TopologyIds
    grants: int
    operations: Annotated[int, Field(description="That were granted: a run of several counts as many")]
    runs_cut: Annotated[int, Field(description="Runs that a member has left before their end")]
    topology_changes: int
    device_steps: int
    exposed_wait_ms: Annotated[float, Field(description="Summed over grants, not over ranks, ms")]
    alarms: Annotated[list[AlarmDocument], Field(description="Circuits lost under a lock")]


class DimensionDocument(Document):
    """One parallelism dimension; the first one is outermost."""

    name: str
    size: int


class TransitionDocument(Document):
    """Grants of one dimension on ports that another one, or the same, had used before. Times are sums.

    Counted since the job was admitted, or the controller was started.
    """

    before: Annotated[str, Field(description="Dimension that used a port of it last; - at first")]
    after: Annotated[str, Field(description="Dimension of the granted connections")]
    grants: int
    changes: Annotated[int, Field(description="Grants that needed a device step")]
    hits: Annotated[int, Field(description="Of these, begun or done on hints when all had arrived")]
    exposed_wait_ms: Annotated[float, Field(description="All arrived until granted, all grants, ms")]
    exposed_change_ms: Annotated[float, Field(description="The same, of the changes, ms")]
    hidden_change_ms: Annotated[
        float, Field(description="What of the changes' time had passed when all had arrived, ms")
    ]


class CutDocument(Document):
    """A held run that a member has left before its end."""

    connection: str
    n: Annotated[int, Field(description="First operation of the run")]
    length: Annotated[int, Field(description="Operations of the run")]
    decided: Annotated[bool, Field(description="Whether the length is the one after the cut")]
    issued: Annotated[dict[str, int], Field(description="By rank that has answered: operations called")]
    holders: list[int]


class JobDocument(JobSummary):
    """The newest incarnation of a job."""

    dimensions: list[DimensionDocument]
    port_choice: PortChoice
    world_group: WorldGroup
    force_scale_out: bool
    deadline_s: Annotated[float, Field(description="From a run's first arrival until the job fails, seconds")]
    transitions: list[TransitionDocument]
    cuts: list[CutDocument]
    ranks: list[RankDocument]


class JobPage(Page):
    """Jobs in order of name."""

    jobs: list[JobSummary]


class JobAnswer(Document):
    """The answer to a declared job."""

    job: str
    incarnation: Annotated[int, Field(description="Goes into every further request of the ranks")]
    start: Annotated[int, Field(description="The controller's start number, `seen_start` of the ranks")]
    state: JobState
    topology: TopologyIds


class WantedCircuit(Document):
    """One circuit of a connection."""

    id: str
    rail: str
    switch: str
    a: str
    b: str


class ConnectionDocument(Document):
    """The unit that needs circuits."""

    id: str
    group: str
    pattern: Pattern
    dimension: str
    ranks: Annotated[list[int], Field(description="In ring order, or the two of a pair in group order")]
    circuits: list[WantedCircuit]

    @classmethod
    def of(cls, connection: Connection) -> ConnectionDocument:
        circuits = [
            WantedCircuit(id=c.id, rail=c.rail, switch=c.switch, a=str(c.a), b=str(c.b))
            for c in connection.circuits
        ]
        return cls(
            id=connection.id,
            group=connection.group,
            pattern=connection.pattern,
            dimension=connection.dimension,
            ranks=list(connection.ranks),
            circuits=circuits,
        )


class ConnectionPage(Page):
    """Connections of a job in order of id: rings that checked in, and pairs that were used."""

    connections: list[ConnectionDocument]


class GroupDocument(Document):
    """A process group as the controller sees it. `connection` is its ring where it needs one and has one."""

    name: str
    domain: Annotated[Domain, Field(description="Only scale-out groups need grants")]
    dimension: str
    ranks: list[int]
    connection: ConnectionDocument | None

    @classmethod
    def of(cls, view: GroupView) -> GroupDocument:
        return cls(
            name=view.name,
            domain=view.domain,
            dimension=view.dimension,
            ranks=list(view.ranks),
            connection=ConnectionDocument.of(view.connection) if view.connection is not None else None,
        )


class GroupsAnswer(Document):
    """The answer to a check-in of several groups, in the order of the request."""

    groups: list[GroupDocument]


class GroupPage(Page):
    """Groups of a job in order of name."""

    groups: list[GroupDocument]


class LockDocument(Document):
    """One rank's hold on a granted run."""

    id: str
    job: str
    incarnation: int
    connection: str
    source: int | None
    destination: int | None
    n: int
    length: int
    rank: Annotated[int, Field(description="Who holds it")]
    no: Annotated[
        int,
        Field(description="The rank's grant number; 0 until a grant that a restart had lost is given again"),
    ]
    since: Time
    age_ms: Annotated[float, Field(description="How long it has been held, ms")]
    circuits: list[str]

    @classmethod
    def of(cls, view: views.LockView, now: float) -> LockDocument:
        return cls(
            id=view.id,
            job=view.job,
            incarnation=view.incarnation,
            connection=view.connection,
            source=view.source,
            destination=view.destination,
            n=view.n,
            length=view.length,
            rank=view.rank,
            no=view.no,
            since=rfc3339(view.since),
            age_ms=round((now - view.since) * 1e3, 3),
            circuits=list(view.circuits),
        )


class LockPage(Page):
    """Locks in order of id."""

    locks: list[LockDocument]


class IntentDocument(Document):
    """A run that is not granted: who arrived, who is missing, and why it waits."""

    id: str
    job: str
    incarnation: int
    connection: str
    source: int | None
    destination: int | None
    n: int
    state: IntentState
    first_at: Time
    complete_at: Annotated[Time | None, Field(description="When all had arrived; null before")]
    overtaken: Annotated[int, Field(description="How often younger intents were served first")]
    length: Annotated[
        int, Field(description="Operations that a grant would be for, as offered by those who have arrived")
    ]
    arrived: list[int]
    missing: list[int]
    reason: ReasonDocument

    @classmethod
    def of(cls, view: views.IntentView) -> IntentDocument:
        return cls(
            id=view.id,
            job=view.job,
            incarnation=view.incarnation,
            connection=view.connection,
            source=view.source,
            destination=view.destination,
            n=view.n,
            state=view.state,
            first_at=rfc3339(view.first_at),
            complete_at=rfc3339(view.complete_at) if view.complete_at is not None else None,
            overtaken=view.overtaken,
            length=view.length,
            arrived=list(view.arrived),
            missing=list(view.missing),
            reason=ReasonDocument.of(view.because),
        )


class IntentPage(Page):
    """Intents in order of first arrival."""

    intents: list[IntentDocument]


class GrantDocument(Document):
    """Every circuit is up and locked for this rank: it may issue operations [n, n + length)."""

    no: Annotated[int, Field(description="Grant number of the rank, without gaps; issue in this order")]
    connection: str
    source: int | None
    destination: int | None
    n: int
    length: int


class ArrivalDocument(Document):
    """How the controller sees one arrival."""

    connection: str
    source: int | None
    destination: int | None
    n: int
    state: Annotated[str, Field(description="open, granted or done")]
    reason: ReasonDocument | None


class RankAlarmDocument(Document):
    """A circuit that the rank holds is gone or dark. No failure: what runs over it may still end."""

    circuit: str
    switch: str
    since: Time


class CutRequestDocument(Document):
    """A run that a member leaves: with length null the rank is to stop in it and say how far it is."""

    connection: str
    source: int | None
    destination: int | None
    n: Annotated[int, Field(description="First operation of the run")]
    length: Annotated[int | None, Field(description="Operations that it has now; null: not decided yet")]


class RankAnswerDocument(Document):
    """What one rank is told. A failure ends the incarnation for all its ranks."""

    rank: int
    arrivals: list[ArrivalDocument]
    grants: list[GrantDocument]
    cut_requests: Annotated[
        list[CutRequestDocument], Field(description="Runs that the rank holds and a member leaves")
    ]
    alarms: Annotated[
        list[RankAlarmDocument], Field(description="Of the circuits that the rank holds; 16 at most")
    ]
    failure: FailureDocument | None


class ArrivalsAnswer(Document):
    """The answer to ranks' news."""

    start: int
    ranks: list[RankAnswerDocument]
