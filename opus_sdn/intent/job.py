"""Everything the controller knows of one incarnation: ranks, groups, connections, streams and marks."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from opus_sdn.intent.changes import JobState
from opus_sdn.intent.errors import CoreError, Failure, Problem
from opus_sdn.intent.fabric import Circuit, CrossConnect, Fabric, Port, Terminal
from opus_sdn.intent.grace import Grace
from opus_sdn.intent.lifecycle import advance_job
from opus_sdn.intent.model import (
    Connection,
    CoreSettings,
    Domain,
    Grant,
    GroupSpec,
    GroupView,
    Hint,
    JobSpec,
    Pattern,
    Stream,
)
from opus_sdn.intent.ranks import Layout, digit_map, digit_of
from opus_sdn.intent.reasons import Phase
from opus_sdn.intent.routing import domain_of, pair, ring
from opus_sdn.intent.streams import HeldRun, Intent, StreamState


@dataclass(slots=True)
class RankState:
    """One rank's session: when it was heard, its grant numbers, and what it has open."""

    last_heard: float
    issued: int = 0  # grant numbers handed out so far
    unacknowledged: deque[tuple[Grant, int]] = field(default_factory=deque)  # with the batch that stores it
    open: dict[tuple[Stream, int], Intent] = field(default_factory=dict)
    hint: Hint | None = None  # the newest; dies with its arrival
    hinted: dict[Hint, set[str]] = field(default_factory=dict)  # not arrived yet -> circuits moved for it
    left: bool = False
    stopped: bool = False  # known to have stopped: left, vouched dead, or silent past its lease
    grants: int = 0
    barrier_wait_s: float = 0.0
    exposed_wait_s: float = 0.0


@dataclass(slots=True)
class Suspicion:
    """An operation failed on a rank; until `decide_at` the controller looks for the rank that died."""

    first_at: float
    decide_at: float
    failure: Failure


@dataclass(frozen=True, slots=True)
class Seed:
    """The initial topology: circuits to install and leftovers to take down; yields to every real intent."""

    circuits: tuple[Circuit, ...]
    leftovers: tuple[tuple[str, CrossConnect], ...] = ()  # with their switch


@dataclass(frozen=True, slots=True)
class Lost:
    """A circuit that carries traffic of this job and is no longer there: an alarm until it is again."""

    circuit: Circuit
    since: float


PAIRS_MAX = 64  # of dimensions whose transitions are counted apart; names come from the programs


@dataclass(slots=True)
class Transition:
    """One pair of dimensions. Times in seconds, summed over grants.

    `hits`: of the changes, those that hints had begun or done when the grant's intent became complete.
    `hidden_s`: what of the changes' time passed before that; `exposed_s`: from then until the grant, over
    all grants, `exposed_change_s` over those that needed a change.
    """

    grants: int = 0
    changes: int = 0
    hits: int = 0
    exposed_s: float = 0.0
    exposed_change_s: float = 0.0
    hidden_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupState:
    """A checked-in group with its domain, and why its ring cannot be routed, if so."""

    spec: GroupSpec
    domain: Domain
    ring: Connection | None
    unroutable: CoreError | None

    def view(self) -> GroupView:
        """The answer to its check-in."""
        return GroupView(self.spec.name, self.domain, self.spec.dimension, self.spec.ranks, self.ring)


class JobCore:
    """State of one incarnation; only the engine changes it."""

    def __init__(
        self, fabric: Fabric, settings: CoreSettings, spec: JobSpec, incarnation: int, now: float
    ) -> None:
        self.fabric = fabric
        self.settings = settings
        self.spec = spec
        self.incarnation = incarnation
        self.started_at = now
        self.state = JobState.RUNNING
        self.failure: Failure | None = None
        self.suspicion: Suspicion | None = None
        self.layout = Layout(spec.dimensions, len(spec.placement))
        self.digits = digit_map(spec.dimensions, spec.legacy_digits)
        self.ranks = [RankState(now) for _ in spec.placement]
        self.rank_at = {(place.host, place.slot): rank for rank, place in enumerate(spec.placement)}
        self.groups: dict[str, GroupState] = {}
        self.connections: dict[str, Connection] = {}
        self.streams: dict[Stream, StreamState] = {}
        self.open: dict[tuple[Stream, int], Intent] = {}  # in order of first arrival
        self.clocks: dict[tuple[Stream, int], Intent] = {}  # of these, each stream's next, by `clock_at`
        self.complete: dict[tuple[Stream, int], Intent] = {}
        self.installing: dict[
            Phase, dict[tuple[Stream, int], Intent]
        ] = {  # waiting for a device, oldest first
            phase: {} for phase in Phase
        }
        self.look_at: float | None = None  # when links that were up before the light count as settled
        self.waiting: list[Intent] = []  # complete and not granted, in serving order
        self.patient_until: float | None = (
            None  # when the first of those that yield to messages yields no more
        )
        self.hints_heard = False
        self.alternating: set[str] = set()  # rings whose ports several microbatches of one stream need too
        self._messages_at: dict[Terminal, dict[Stream, StreamState]] = {}
        self.streams_of: list[list[StreamState]] = [[] for _ in spec.placement]  # by rank
        self.seed: Seed | None = None
        self.kept: dict[int, tuple[StreamState, HeldRun]] = {}  # rank -> a run > 1 that it holds with others
        self.cuts: dict[tuple[Stream, int], HeldRun] = {}  # held runs that a member has left
        self.hinting: dict[str, dict[int, None]] = {}  # switch -> ranks with a newest hint, oldest first
        self.recovered = False  # an earlier start of the controller has admitted it
        self.grace: Grace | None = None
        self.lost: dict[str, Lost] = {}  # by circuit id
        self.transitions: dict[tuple[str, str], Transition] = {}  # by dimensions: from, to
        self.last_used: dict[Terminal, tuple[int, str]] = {}  # by which grant, of which dimension
        self.owners: dict[str, int | None] = {}  # circuit id -> digit of the dimension that used it last
        self.topology: dict[str, str] = {}  # rail -> topology id
        self.age = 0
        self.grants = 0
        self.operations = 0  # of all runs granted
        self.runs_cut = 0
        self.topology_changes = 0
        self.device_steps = 0
        self.held_runs = 0
        self.settled_in = 0  # batch that stores its end: only then are ranks told
        self.exposed_wait_s = 0.0
        self.lease_check_at = now + settings.lease_s
        self.terminals: frozenset[Terminal] = frozenset(
            t for place in spec.placement for t in fabric.terminals_of(place.host, place.slot)
        )
        self.switch_of: tuple[str, ...] = tuple(  # by rank; all ports of a GPU are on one rail
            fabric.attachment(Port(place.host, place.slot, 0)).switch for place in spec.placement
        )
        self.ranks_on: dict[str, list[int]] = {}  # by rail
        for rank, place in enumerate(spec.placement):
            self.ranks_on.setdefault(fabric.rail_of(place.host, place.slot), []).append(rank)
        self.rails = tuple(self.ranks_on)

    @property
    def running(self) -> bool:
        """Whether arrivals still count."""
        return self.state is JobState.RUNNING

    def occupies_ports(self) -> bool:
        """Running, or failed while ranks that may still transmit hold locks, or may do so unheard."""
        if self.running:
            return True
        return self.state is JobState.FAILED and (self.held_runs > 0 or bool(self.awaited))

    @property
    def awaited(self) -> Collection[int]:
        """Ranks that have not said to this start of the controller what they hold."""
        return self.grace.awaited if self.grace is not None else ()

    @property
    def in_doubt(self) -> bool:
        """Whether some rank may hold what is not known here."""
        return self.grace is not None and not self.grace.intact and bool(self.grace.awaited)

    def settle(self, state: JobState, failure: Failure | None) -> None:
        """End the incarnation; open intents are gone, held runs stay until their ranks have stopped."""
        self.state = advance_job(self.state, state)
        self.failure = failure or self.failure
        self.suspicion = None
        self.seed = None
        self.open.clear()
        self.clocks.clear()
        self.complete.clear()
        for waiting in self.installing.values():
            waiting.clear()
        self.look_at = None
        self.waiting = []
        self.hinting.clear()
        self.kept.clear()
        self.cuts.clear()
        for rank in self.ranks:
            rank.open.clear()
            rank.hinted.clear()
            rank.hint = None
        for stream in self.streams.values():
            stream.intents.clear()

    def settle_as(self, failure: Failure) -> None:
        """The incarnation had failed before this start of the controller; only its locks are left."""
        self.state = JobState.FAILED
        self.failure = failure

    def check_in(self, spec: GroupSpec) -> tuple[GroupState, bool]:
        """The group's state, and whether it is new. The first label of a dimension stays."""
        known = self.groups.get(spec.name)
        if known is not None:
            return known, False
        if spec.dimension not in self.digits:  # labels come late and vary; the layout knows better
            spec = replace(spec, dimension=self.layout.dimension_of(spec.ranks) or spec.dimension)
        domain = domain_of(self.spec, spec.ranks)
        connection: Connection | None = None
        refusal: CoreError | None = None
        if domain is Domain.SCALE_OUT:
            try:
                connection = ring(self.fabric, self.spec, self.layout, spec)
            except CoreError as error:  # refused at the first arrival, never at init
                refusal = error.with_traceback(None)
        group = GroupState(spec, domain, connection, refusal)
        self.groups[spec.name] = group
        if connection is not None:
            self.connections[connection.id] = connection
        return group, True

    def connection(self, name: str) -> Connection:
        """A connection by id; a pair is kept from its first arrival on. CoreError: unknown, unroutable."""
        known = self.connections.get(name)
        if known is not None:
            return known
        group_name, _, ends = name.rpartition(":")
        group = self.groups.get(group_name or name)
        if group is None:
            raise CoreError(
                Problem.UNKNOWN_CONNECTION,
                f"connection {name!r} belongs to no checked-in group of job {self.spec.name}; "
                "check the group in first",
                connection=name,
            )
        if group.domain is not Domain.SCALE_OUT:
            raise CoreError(
                Problem.UNKNOWN_CONNECTION,
                f"connection {name!r}: group {group.spec.name} is {group.domain} and needs no grants",
                connection=name,
            )
        if not group_name:
            why = group.unroutable
            assert why is not None, "a routable ring is among the connections"
            raise CoreError(why.problem, why.detail, **why.data)
        return pair(self.fabric, self.spec, group.spec, *self._pair_ends(name, group.spec, ends))

    def _pair_ends(self, name: str, group: GroupSpec, ends: str) -> tuple[int, int]:
        a, _, b = ends.partition("-")
        if a.isdecimal() and b.isdecimal():
            first, second = int(a), int(b)
            place = {rank: at for at, rank in enumerate(group.ranks)}
            canonical = ends == f"{first}-{second}"  # marks are kept by name: one spelling for each pair
            if canonical and first in place and place[first] < place.get(second, -1):
                return first, second
        raise CoreError(
            Problem.UNKNOWN_CONNECTION,
            f"connection {name!r}: a pair is written <group>:<a>-<b> with two members of the group, "
            f"the earlier in group order first; group {group.name} has ranks {list(group.ranks)}",
            connection=name,
        )

    def stream(self, stream: Stream) -> StreamState:
        """Marks of a stream, made on first use."""
        state = self.streams.get(stream)
        if state is None:
            connection = self.connection(stream.connection)
            self.connections[connection.id] = connection
            state = StreamState(stream, connection)
            self.streams[stream] = state
            for rank in connection.ranks:
                self.streams_of[rank].append(state)
            if connection.pattern is Pattern.PAIR:
                for circuit in connection.circuits:
                    for terminal in circuit.terminals:
                        self._messages_at.setdefault(terminal, {})[stream] = state
        return state

    def messages_against(self, ring: Connection) -> list[StreamState]:
        """Streams of messages that need a port of the ring for another circuit."""
        found: dict[Stream, StreamState] = {}
        for circuit in ring.circuits:
            for terminal in circuit.terminals:
                found |= self._messages_at.get(terminal, {})
        return [s for s in found.values() if not set(s.connection.circuits) <= set(ring.circuits)]

    def digit(self, connection: Connection) -> int | None:
        """The topology digit of the dimension that a connection belongs to."""
        return digit_of(connection.dimension, self.digits)

    def number(self, intent: Intent, length: int, batch: int) -> dict[int, int]:
        """Hand every participant its next grant number for a run from this intent on, stored by `batch`."""
        numbers: dict[int, int] = {}
        for rank in intent.connection.ranks:
            state = self.ranks[rank]
            state.issued += 1
            state.grants += 1
            numbers[rank] = state.issued
            state.unacknowledged.append((Grant(state.issued, intent.stream, intent.n, length), batch))
            state.open.pop((intent.stream, intent.n), None)
        return numbers

    def forget_open(self, stream: StreamState, first: int, end: int) -> None:
        """Arrivals at operations [first, end) are granted with an earlier one, or were long ago."""
        # There may be many numbers and few arrivals.
        for n in [n for n in stream.intents if first <= n < end]:
            intent = stream.intents.pop(n)
            self.open.pop((stream.stream, n), None)
            self.clocks.pop((stream.stream, n), None)
            for rank in intent.arrived:
                self.ranks[rank].open.pop((stream.stream, n), None)

    def keep_to(self, stream: StreamState, run: HeldRun) -> None:
        """The run's participants get no other grant while it is held, if it is longer than one operation."""
        if run.length > 1:
            self.kept.update(dict.fromkeys(stream.participants, (stream, run)))

    def let_go_of(self, stream: StreamState, run: HeldRun) -> None:
        """The run keeps its participants from nothing any more."""
        for rank in stream.participants:
            if rank in self.kept and self.kept[rank][1] is run:
                del self.kept[rank]

    def start_clock(self, now: float, intent: Intent | None) -> None:
        """An intent is its stream's next, if it is there: from now on its deadline counts."""
        if intent is not None and (intent.stream, intent.n) not in self.clocks:
            intent.clock_at = now
            self.clocks[(intent.stream, intent.n)] = intent

    def silent_since(self, moment: float) -> list[int]:
        """Ranks last heard before a moment and not known to have stopped."""
        return [
            rank for rank, state in enumerate(self.ranks) if not state.stopped and state.last_heard < moment
        ]


def check_participant(job: JobCore, stream: Stream, rank: int) -> Connection:
    """The stream's connection, if `rank` takes part and the ends are named as the pattern asks."""
    connection = job.connection(stream.connection)
    if rank not in connection.ranks:
        raise CoreError(
            Problem.NOT_A_MEMBER,
            f"rank {rank} takes no part in connection {connection.id} (ranks {list(connection.ranks)[:16]})",
            rank=rank,
            connection=connection.id,
        )
    ends = (stream.source, stream.destination)
    if connection.pattern is Pattern.RING:
        if ends != (None, None):
            raise CoreError(
                Problem.INVALID_REQUEST,
                f"connection {connection.id} is a ring: source and destination must be left out",
                field="source",
            )
    elif None in ends:
        raise CoreError(
            Problem.RECEIVE_FROM_ANY,
            f"connection {connection.id} is a pair: source and destination must both name a rank; receiving "
            "from any source is not possible across hosts",
            field="source",
        )
    elif sorted(r for r in ends if r is not None) != sorted(connection.ranks):
        raise CoreError(
            Problem.INVALID_REQUEST,
            f"connection {connection.id}: source {stream.source} and destination {stream.destination} must "
            f"be its two ranks {list(connection.ranks)}",
            field="source",
        )
    return connection


def rails_of(circuits: Iterable[Circuit]) -> tuple[str, ...]:
    """Rails that circuits lie on, in order of appearance."""
    return tuple(dict.fromkeys(circuit.rail for circuit in circuits))
