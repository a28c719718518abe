"""Jobs, groups, connections and the news that ranks send, as frozen values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from opus_sdn.intent.errors import Failure
from opus_sdn.intent.fabric import Circuit
from opus_sdn.intent.reasons import Because


class PortChoice(StrEnum):
    """Which ports rings use.

    `spread`: a ring of two those that no pair of these ranks needs. `one-port`: every ring one port of each
    member, transmitting to the next member and receiving from the previous one; the standard ports where
    circuits are not directed.
    """

    STANDARD = "standard"
    SPREAD = "spread"
    ONE_PORT = "one-port"


class WorldGroup(StrEnum):
    """Where collectives of the whole world go. `auto`: the rails only when the job has one dimension."""

    AUTO = "auto"
    FRONT_END = "front-end"
    RAIL = "rail"


class Domain(StrEnum):
    """How a group's traffic travels. Only `scale-out` needs arrivals and grants."""

    SCALE_UP = "scale-up"
    SCALE_OUT = "scale-out"
    FRONT_END = "front-end"


class Pattern(StrEnum):
    """A connection joins a ring of ranks (collectives) or a pair (messages)."""

    RING = "ring"
    PAIR = "pair"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank runs."""

    host: str
    slot: int


@dataclass(frozen=True, slots=True)
class Dimension:
    """One parallelism dimension, in declared order; `pp` names the pipeline."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class RetryBudget:
    """What the transport of a job's messages does about a dark path, counted as InfiniBand does."""

    timeout: int  # an exponent: one try takes 4.096 us x 2^timeout; 0 waits for ever
    retry: int

    @property
    def seconds(self) -> float:
        """How long a path may be dark before the transport gives up."""
        if self.timeout == 0:
            return math.inf
        return float(4.096e-6 * 2**self.timeout * (self.retry + 1))


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a launcher declares. `placement[rank]`; `nonce` is fresh for every init of the ranks."""

    name: str
    owner: str
    nonce: str
    placement: tuple[Place, ...]
    dimensions: tuple[Dimension, ...] = ()
    port_choice: PortChoice = PortChoice.STANDARD
    world_group: WorldGroup = WorldGroup.AUTO
    force_scale_out: bool = False
    deadline_s: float = 1620.0  # 0.9 x torch's default process-group timeout of 1800 s
    initial_topology: str | None = None  # topology id in digits, installed at admission
    legacy_digits: bool = False  # experts have topology digit 3, as in the published ids
    retry_budget: RetryBudget | None = None  # None: not declared, and not checked


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A process group as its members know it: ranks in group order, and an ordinal among equal rank lists."""

    name: str
    ranks: tuple[int, ...]
    dimension: str
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class Connection:
    """The unit that needs circuits. `ranks` in ring order, or the pair (low, high in group order)."""

    id: str
    group: str
    pattern: Pattern
    dimension: str
    ranks: tuple[int, ...]
    circuits: tuple[Circuit, ...]


class Stream(NamedTuple):
    """What numbers n, marks and locks are kept for: a ring, or one direction of a pair."""

    connection: str
    source: int | None = None
    destination: int | None = None

    def __str__(self) -> str:
        if self.source is None:
            return self.connection
        return f"{self.connection}[{self.source}>{self.destination}]"


@dataclass(frozen=True, slots=True)
class Arrival:
    """Rank R says: next on this stream is operation n. Offers count operations and are at least 1."""

    stream: Stream
    n: int
    closed: int = 1
    quiet: int = 1
    tag: int | None = None
    blocking: bool = False

    def joined(self, other: Arrival) -> Arrival:
        """The same, said again: in whatever order copies come, a smaller offer and a blocked host stay."""
        return replace(
            self,
            closed=min(self.closed, other.closed),
            quiet=min(self.quiet, other.quiet),
            blocking=self.blocking or other.blocking,
        )


@dataclass(frozen=True, slots=True)
class Release:
    """Operations [n, n + length) of the stream have finished on this rank's device."""

    stream: Stream
    n: int
    length: int = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """Rank R leaves the run that begins at n, or was asked how far it is: its program has called `issued`
    operations of it and goes no further until it is told where the run ends.

    What was called goes out without a further host step. `length`: the end that this rank was told, if any.
    """

    stream: Stream
    n: int
    issued: int
    length: int | None = None


@dataclass(frozen=True, slots=True)
class CutRequest:
    """What a holder of a run is told: stop and say how far (None), or the run is [n, n + length)."""

    stream: Stream
    n: int
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Hint:
    """Rank R expects to need operation n of the stream next. Hints move circuits, grants lock them."""

    stream: Stream
    n: int


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to an arrival: all circuits up and locked. `no` counts per (incarnation, rank) from 1."""

    no: int
    stream: Stream
    n: int
    length: int


@dataclass(frozen=True, slots=True)
class StreamMark:
    """How far one rank has come on a stream: what is below `granted` was granted to it, below `released` it
    has finished and said so, or says so now."""

    stream: Stream
    granted: int
    released: int


@dataclass(frozen=True, slots=True)
class Session:
    """Everything that binds a rank, said to a controller start that has not heard it yet.

    `held` = the runs between the marks of each stream, in any order; `open` = all arrivals without a grant.
    """

    last_grant: int = 0
    held: tuple[Grant, ...] = ()
    open: tuple[Arrival, ...] = ()
    marks: tuple[StreamMark, ...] = ()


@dataclass(frozen=True, slots=True)
class RankNews:
    """All that one rank has to say in one request. `leave` = this rank is done and holds nothing."""

    rank: int
    last_grant: int = 0
    arrivals: tuple[Arrival, ...] = ()
    releases: tuple[Release, ...] = ()
    leave: bool = False
    hints: tuple[Hint, ...] = ()
    session: Session | None = None
    cuts: tuple[Cut, ...] = ()


class RankKey(NamedTuple):
    """One rank of one incarnation, as waiting polls are keyed."""

    job: str
    incarnation: int
    rank: int


class ArrivalState(StrEnum):
    """How the controller sees an arrival: still waiting, granted before, or finished before."""

    OPEN = "open"
    GRANTED = "granted"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class ArrivalStatus:
    """State of one arrival, with the reason while it waits."""

    stream: Stream
    n: int
    state: ArrivalState
    because: Because | None = None


@dataclass(frozen=True, slots=True)
class Alarm:
    """A circuit that the rank holds is gone or dark. No failure: its operation may still end."""

    circuit: str
    switch: str
    since: float


@dataclass(frozen=True, slots=True)
class RankAnswer:
    """What one rank is told: open arrivals, grants above its last acknowledged one, and a fatal cause.

    `alarms`: circuits that it holds and that are not there, the first few. `cuts`: runs that it holds.
    """

    rank: int
    arrivals: tuple[ArrivalStatus, ...]
    grants: tuple[Grant, ...]
    failure: Failure | None
    alarms: tuple[Alarm, ...] = ()
    cuts: tuple[CutRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupView:
    """The answer to a check-in: the group's domain and what its ring needs."""

    name: str
    domain: Domain
    dimension: str
    ranks: tuple[int, ...]
    connection: Connection | None  # the ring, when the group is scale-out and routable


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Limits and times of the protocol, in seconds unless the name says otherwise."""

    run_length_max: int = 4096  # operations granted as one; a longer offer is cut to it
    overtake_max: int = 8
    overtake_s: float = 0.25
    ring_patience_s: float = 0.0  # how long a ring that no host waits for leaves ports to messages; 0: not
    lease_s: float = 30.0
    fence_s: float = 15.0
    abort_s: float = 5.0
    retry_min_s: float = 0.05  # first pause before a need that the switch refused is tried again; it doubles
    retry_max_s: float = 30.0  # so that a repaired switch is in use again while a person still looks at it
    install_s: float = (
        10.0  # a need that waits longer for a device is stalled: two steps that ran out of time
    )
    light_s: float = 10.0  # the same, once its circuits are connected and no light passes
    carrier_s: float = 60.0  # the same, once light passes and a NIC has no link: some take half a minute
    carrier_drop_s: float = 0.5  # a link that was not reported down for so long after a change never went
    contend_min_s: float = 1.0  # first pause before what somebody else keeps taking down is made again
    contend_max_s: float = 60.0
    contend_forget_s: float = 600.0  # without trouble for so long, the next time counts as the first
    fault_grace_s: float = 12.0  # how long a failed operation waits for a dead rank to be named
    former_nonces_max: int = 64  # per job name: declarations whose late copies are known as such
    jobs_max: int = 4096  # that hold ports at a time
    queue_max: int = 1024  # jobs that wait for their ports
    settled_jobs_max: int = 64  # ended and failed jobs that are remembered, newest first
    job_names_max: int = 10_000  # names of jobs whose numbers and nonces are remembered
    open_arrivals_max: int = 4096  # per rank; a rank with more outstanding operations is out of control
    hints_max: int = 64  # per rank; hints whose operations have not arrived yet
    connections_max: int = 65536  # per job
    groups_max: int = 65536  # per job
    proven_max: int = 65536  # operations beyond the stored marks that one rank's session may prove
