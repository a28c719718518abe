"""What the API answers: wire models of the core's views, with the same field names. Times are RFC 3339."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from opus_sdn.intent import fabric_views
from opus_sdn.intent.changes import StepState
from opus_sdn.intent.fabric import CrossConnect, DriftPolicy
from opus_sdn.intent.reasons import Because, Reason
from opus_sdn.intent.switches import ForeignKind
from opus_sdn.reconciler.runs import rfc3339, with_times
from opus_sdn.store.base import EventRecord

Time = Annotated[str, Field(description="RFC 3339, UTC", examples=["2026-03-01T12:00:00.250000Z"])]
Generation = Annotated[int, Field(description="Rises with every changed observation of the switch")]


class Document(BaseModel):
    """Base of all answers. `from_attributes`: built from the core's views, whose field names they have."""

    model_config = ConfigDict(from_attributes=True, extra="forbid", frozen=True)


class Page(Document):
    """Base of lists. `next` goes into `cursor` of the next request; null on the last page."""

    next: str | None = None


class CrossConnectDocument(Document):
    """One connection inside a switch, by position from 0."""

    ingress: int
    egress: int


class ReasonDocument(Document):
    """Why something waits: `code` for programs, `detail` for people, `data` with the values in it."""

    code: Reason
    detail: str
    data: dict[str, object]

    @classmethod
    def of(cls, because: Because) -> ReasonDocument:
        return cls(code=because.reason, detail=because.detail, data=with_times(because.data))


class ForeignDocument(Document):
    """A cross-connect that no step of ours made."""

    ingress: int
    egress: int
    kind: Annotated[
        ForeignKind, Field(description="Between ports of the fabric, from one of them, or neither")
    ]
    since: Time

    @classmethod
    def of(cls, view: fabric_views.ForeignView) -> ForeignDocument:
        return cls(
            ingress=view.pair.ingress, egress=view.pair.egress, kind=view.kind, since=rfc3339(view.since)
        )


class RivalDocument(Document):
    """A cross-connect of ours that somebody else takes down again and again."""

    ingress: int
    egress: int
    times: Annotated[int, Field(description="How often it was taken down since it was made")]
    since: Time
    instead: Annotated[list[CrossConnectDocument], Field(description="What came in its place last")]
    held_until: Annotated[Time, Field(description="It is not made again before")]

    @classmethod
    def of(cls, view: fabric_views.RivalView) -> RivalDocument:
        return cls(
            ingress=view.pair.ingress,
            egress=view.pair.egress,
            times=view.times,
            since=rfc3339(view.since),
            instead=_pairs(view.instead),
            held_until=rfc3339(view.held_until),
        )


class DarkDocument(Document):
    """A cross-connect that is there and passes no light."""

    ingress: int
    egress: int
    detail: str


Stalled = Annotated[list[str], Field(description="Intents that no device serves in time")]
HeldUp = Annotated[
    ReasonDocument | None,
    Field(description="Why it is held up, or the first of the stalled intents; else null"),
]
Foreign = Annotated[list[ForeignDocument], Field(description="Cross-connects that no step of ours made")]


class CircuitDocument(Document):
    """One observed circuit between two ports."""

    id: str
    rail: str
    switch: str
    a: Annotated[str, Field(description="Port, as host:slot:index")]
    b: Annotated[str, Field(description="Port, as host:slot:index")]
    job: str | None
    digit: Annotated[int | None, Field(description="Topology digit of the dimension that used it last")]
    live: Annotated[bool, Field(description="Whether a rank holds it")]
    moving: Annotated[bool, Field(description="Whether a device step on it is in flight")]


class CircuitPage(Page):
    """Circuits in order of rail and id."""

    circuits: list[CircuitDocument]


class LinkUpDocument(Document):
    """How long links of a rail took to come up after the light, in this start of the controller."""

    times: Annotated[int, Field(description="How often that was seen")]
    last_s: float
    worst_s: float


class RailDocument(Document):
    """What is wanted of one rail and what its switch shows."""

    name: str
    switch: str
    slots: list[int]
    generation: Generation
    topology: Annotated[dict[str, str], Field(description="Job -> its topology id on this rail")]
    desired: Annotated[list[str], Field(description="Circuits that complete intents wait for")]
    observed: Annotated[list[CircuitDocument], Field(description="Circuits that the switch shows")]
    matching: Annotated[list[CrossConnectDocument], Field(description="Cross-connects of the rail's ports")]
    moving: Annotated[list[int], Field(description="Positions with a device step in flight")]
    drift: Annotated[DriftPolicy, Field(description="What happens to changes that somebody else makes")]
    carrier: Annotated[
        Literal["ignored", "required"], Field(description="Whether grants wait for the links of both NICs")
    ]
    link_up: Annotated[LinkUpDocument | None, Field(description="null: no link was seen coming up yet")]
    foreign: Foreign
    stalled: Stalled
    reason: HeldUp

    @classmethod
    def of(cls, view: fabric_views.RailView) -> RailDocument:
        return cls(
            name=view.name,
            switch=view.switch,
            slots=list(view.slots),
            generation=view.generation,
            topology=view.topology,
            desired=list(view.desired),
            observed=[CircuitDocument.model_validate(circuit) for circuit in view.circuits],
            matching=_pairs(view.matching),
            moving=list(view.moving),
            drift=view.drift,
            carrier="required" if view.carrier else "ignored",
            link_up=LinkUpDocument.model_validate(view.link_up) if view.link_up is not None else None,
            foreign=[ForeignDocument.of(foreign) for foreign in view.foreign],
            stalled=list(view.stalled),
            reason=_reason(view.because),
        )


class RailPage(Page):
    """Rails in order of name."""

    rails: list[RailDocument]


class StepDocument(Document):
    """A device step that is planned or in flight, exactly as it is carried out."""

    step: int
    switch: str
    state: StepState
    remove: list[CrossConnectDocument]
    add: list[CrossConnectDocument]
    causes: Annotated[list[str], Field(description="Intents that it is for, as job/incarnation/stream#n")]
    disturbed: Annotated[list[str], Field(description="Circuits that it removes")]

    @classmethod
    def of(cls, view: fabric_views.StepView) -> StepDocument:
        return cls(
            step=view.step,
            switch=view.switch,
            state=view.state,
            remove=_pairs(view.remove),
            add=_pairs(view.add),
            causes=list(view.causes),
            disturbed=list(view.disturbed),
        )


class StepPage(Page):
    """Device steps that have not ended, in order of number."""

    steps: list[StepDocument]


class SwitchDocument(Document):
    """One switch as last read."""

    name: str
    driver: str
    size: Annotated[int, Field(description="Positions, from 0")]
    sided: Annotated[bool, Field(description="Whether ingress and egress are separate fibres")]
    generation: Generation
    matching: list[CrossConnectDocument]
    steps: list[StepDocument]
    foreign: Foreign
    contended: list[RivalDocument]
    dark: list[DarkDocument]
    stalled: Stalled
    reason: HeldUp

    @classmethod
    def of(cls, view: fabric_views.SwitchView) -> SwitchDocument:
        return cls(
            name=view.name,
            driver=view.driver,
            size=view.size,
            sided=view.sided,
            generation=view.generation,
            matching=_pairs(view.matching),
            steps=[StepDocument.of(step) for step in view.steps],
            foreign=[ForeignDocument.of(foreign) for foreign in view.foreign],
            contended=[RivalDocument.of(rival) for rival in view.contended],
            dark=[
                DarkDocument(ingress=dark.pair.ingress, egress=dark.pair.egress, detail=dark.detail)
                for dark in view.dark
            ],
            stalled=list(view.stalled),
            reason=_reason(view.because),
        )


class SwitchPage(Page):
    """Switches in order of name."""

    switches: list[SwitchDocument]


class PortDocument(Document):
    """One NIC port: where it sits, whose it is, and what it is joined to."""

    port: Annotated[str, Field(description="host:slot:index")]
    rail: str
    switch: str
    position: int
    job: str | None
    rank: int | None
    circuit: str | None
    moving: bool
    drained: Annotated[bool, Field(description="Whether an operator wants no circuit on it")]
    failed: Annotated[str | None, Field(description="Why no light passes, as the switch says; null: it may")]


class PortPage(Page):
    """Ports in order of name."""

    ports: list[PortDocument]


class FabricAnswer(Document):
    """What a declared fabric did, or would do."""

    applied: Annotated[bool, Field(description="Whether it is in force now because of this request")]
    changed: Annotated[bool, Field(description="Whether it differs from the one that was in force")]
    dry_run: bool
    generation: Annotated[int, Field(description="Of the fabric in force; 0 when there is none")]
    hosts: int
    ports: int
    rails: list[str]
    switches: list[str]


class EventDocument(Document):
    """One line of history."""

    seq: Annotated[int, Field(description="Number of the event, rising")]
    at: Time
    kind: Annotated[str, Field(description="Dotted, as intent.granted")]
    job: str | None
    incarnation: int | None
    rail: str | None
    switch: str | None
    data: dict[str, object]

    @classmethod
    def of(cls, event: EventRecord) -> EventDocument:
        return cls(
            seq=event.seq,
            at=rfc3339(event.at),
            kind=event.kind,
            job=event.job,
            incarnation=event.incarnation,
            rail=event.rail,
            switch=event.switch,
            data=with_times(event.data),
        )


class EventsAnswer(Document):
    """Events, oldest first. Ask again with `since` = `newest`; that is harmless when nothing is new."""

    events: list[EventDocument]
    newest: Annotated[int, Field(description="`since` of the next request")]


class LiveDocument(Document):
    """The process answers."""

    alive: bool


class ClockDocument(Document):
    """The clock by which the controller decides."""

    unix_us: Annotated[int, Field(description="Microseconds since 1970, UTC; never goes back")]


class CheckDocument(Document):
    """One readiness check."""

    name: str
    ok: bool
    detail: str | None


class ReadyDocument(Document):
    """Whether the controller grants."""

    ready: bool
    start: Annotated[int, Field(description="The controller's start number")]
    leads: Annotated[bool, Field(description="False for a replica that only serves what is stored")]
    leader: Annotated[str | None, Field(description="Address of the replica that leads instead")]
    checks: list[CheckDocument]


def _reason(because: Because | None) -> ReasonDocument | None:
    return ReasonDocument.of(because) if because is not None else None


def _pairs(pairs: Iterable[CrossConnect]) -> list[CrossConnectDocument]:
    return [CrossConnectDocument(ingress=pair.ingress, egress=pair.egress) for pair in pairs]
