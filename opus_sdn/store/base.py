"""What the controller needs of a store. The SQL store and the in-memory twin keep the same promises.

`submit` is the only way to write: one batch, one transaction, in submission order; a batch is never half
visible. The future completes when the batch is as durable as it asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from opus_sdn.intent.changes import Batch, DirectiveGiven, IntentState, JobState, StepState
from opus_sdn.intent.errors import Failure, Problem
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Domain, JobSpec, Stream


class StoreError(Exception):
    """The store cannot be used or has failed; the message says which, why and what to do."""


class StoreBusyError(StoreError):
    """Too much waits for the disk already. Nothing was taken and nothing is lost: ask again later."""


class StaleEpochError(StoreError):
    """A newer start number writes into this database: this one may not, and nothing of it was written."""


class CommitsLostError(StoreError):
    """The database was started anew without its newest commits: what it has answered is no longer true."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One stored event. `seq` counts from 1, without gaps that readers see; `at` = seconds since 1970."""

    seq: int
    at: float
    kind: str
    job: str | None
    incarnation: int | None
    rail: str | None
    switch: str | None
    data: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The newest incarnation of a job name. `over`: nobody holds anything in its name any more."""

    job: str
    incarnation: int
    spec: JobSpec
    state: JobState
    cause: str | None
    detail: str | None
    started_at: float = 0.0
    settled_at: float | None = None
    rank: int | None = None
    data: dict[str, object] = field(default_factory=dict)
    over: bool = False

    @property
    def failure(self) -> Failure | None:
        """Why it ended badly, if it did."""
        if self.cause is None:
            return None
        return Failure(Problem(self.cause), self.detail or "", self.rank, self.data)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group of a job's newest incarnation."""

    job: str
    incarnation: int
    group: str
    ranks: tuple[int, ...]
    dimension: str
    ordinal: int
    domain: Domain


@dataclass(frozen=True, slots=True)
class LeftRecord:
    """A rank of a job's newest incarnation that is done and gone."""

    job: str
    incarnation: int
    rank: int


@dataclass(frozen=True, slots=True)
class LockRecord:
    """Rank holds run [n, n + length) of a stream since `at`; `no` is its grant number."""

    job: str
    incarnation: int
    stream: Stream
    rank: int
    n: int
    length: int
    no: int
    at: float


@dataclass(frozen=True, slots=True)
class MarkRecord:
    """Granted mark of a stream, and per rank the released mark."""

    job: str
    incarnation: int
    stream: Stream
    granted: int
    released: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """The topology digit of the dimension that a circuit of a job's newest incarnation counts for."""

    job: str
    incarnation: int
    circuit: str
    digit: int | None


@dataclass(frozen=True, slots=True)
class IntentRecord:
    """The newest state of one run's intent."""

    job: str
    incarnation: int
    stream: Stream
    n: int
    length: int
    state: IntentState
    complete_at: float | None
    granted_at: float | None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A device step as journaled."""

    step: int
    switch: str
    generation: int
    remove: tuple[CrossConnect, ...]
    add: tuple[CrossConnect, ...]
    causes: tuple[str, ...]
    disturbed: tuple[str, ...]
    state: StepState
    detail: str | None


@dataclass(frozen=True, slots=True)
class SwitchRecord:
    """The last observation of a switch. `foreign`: what of the matching no step of ours made."""

    switch: str
    generation: int
    matching: tuple[CrossConnect, ...]
    foreign: tuple[CrossConnect, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All current state, read in one transaction.

    `clean`: the start before this one ended in order, so that nothing of what it answered can be missing.
    `incarnation_floor`: incarnations of jobs that are not kept any more were numbered up to this.
    """

    start: int
    fabric: str | None
    fabric_generation: int
    jobs: tuple[JobRecord, ...]
    groups: tuple[GroupRecord, ...]
    left: tuple[LeftRecord, ...]
    locks: tuple[LockRecord, ...]
    marks: tuple[MarkRecord, ...]
    intents: tuple[IntentRecord, ...]  # granted and not released
    steps: tuple[StepRecord, ...]  # planned or started
    switches: tuple[SwitchRecord, ...]
    last_step: int
    last_event: int
    clean: bool = False
    incarnation_floor: int = 0
    owners: tuple[OwnerRecord, ...] = ()
    directives: tuple[DirectiveGiven, ...] = ()  # that hold, by number


class UnderWay(Protocol):
    """Which device steps may be under way at their devices, for the start after this one."""

    def may_be(self, step: int) -> bool:
        """Whether the command of a step that an earlier start left unsettled may still have an effect."""
        ...

    def begin(self, step: int) -> None:
        """The command of a step is about to leave. Told before it does."""
        ...

    def end(self, step: int) -> None:
        """The command of a step can have no effect any more."""
        ...


class NobodyKnows:
    """Nothing is recorded: any step may be under way."""

    def may_be(self, step: int) -> bool:
        """Always."""
        return True

    def begin(self, step: int) -> None:
        """Nothing is kept."""

    def end(self, step: int) -> None:
        """Nothing is kept."""


class Store(Protocol):
    """The store protocol. All methods may be called from any thread."""

    def raise_start(self) -> int:
        """Raise the start number by one, durably, and return it. Called once per term, first.

        From then on this store alone writes: what another one with a lower number submits is refused.
        """
        ...

    def put_fabric(
        self, document: str, ports: tuple[tuple[str, str, str, int], ...], rails: tuple[tuple[str, str], ...]
    ) -> int:
        """Store the fabric document with its (port, rail, switch, position) rows and (rail, switch) rows.

        Durable; returns the fabric's generation, which rises only when the document differs.
        """
        ...

    def submit(self, batch: Batch) -> Future[int]:
        """Queue one batch; the future gives the last event seq so far, or holds a StoreError when lost.

        Raises StoreBusyError, with nothing taken and nothing lost, when the queue is full.
        """
        ...

    def under_way(self, start: int, unsettled: Iterable[int]) -> UnderWay:
        """The record of commands that leave under this start; `unsettled`: steps left by those before.

        Called once per term, after `raise_start`.
        """
        ...

    def has_room(self) -> bool:
        """False when so much is queued that requests are better refused before anything is decided."""
        ...

    def fault(self) -> str | None:
        """What is wrong with the database now, as for the readiness page: not reachable, or its schema."""
        ...

    def snapshot(self) -> Snapshot:
        """Everything current."""
        ...

    def events(
        self, since: int, limit: int, job: str | None = None, kind: str | None = None
    ) -> list[EventRecord]:
        """Events with seq > since, oldest first, at most `limit` (<= 1000); `kind` is a dotted prefix."""
        ...

    def close(self, *, clean: bool = True) -> None:
        """Write what is queued and that this start ended in order, then let go of the database.

        Without `clean` the next start takes it that something may be missing, as this one did. Later
        submits fail. Nothing is written by a store that has failed before.
        """
        ...
