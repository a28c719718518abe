"""The production controller as the gate of a replay: the intent core, simulated switches, an instant store.

What ranks say within one instant goes to the core as one request. The invariants are asserted on the way,
from books of our own: nothing is granted before every participant has arrived (I5) and before the device
shows every circuit (I4), and no circuit of a held run is touched (I1). That a switch stays a partial matching
(I2) is for the device to judge, which refuses anything else.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opus_sdn.drivers.simulated import Change, Phase, SimulatedSwitch
from opus_sdn.intent.changes import Batch, EventAppended, JobSettled, JobState, RunGranted, StepPlanned
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.fabric import Circuit, CrossConnect, Terminal
from opus_sdn.intent.hints import ends_of
from opus_sdn.intent.model import Arrival, CoreSettings, Domain, RankNews, Release, Stream
from opus_sdn.intent.order import conflict
from opus_sdn.intent.ranks import Layout
from opus_sdn.intent.switches import Step
from opus_sdn.intent.topology_id import circuits_of
from opus_sdn.whatif.opus.expectation import Expectation
from opus_sdn.whatif.opus.layout import Cluster
from opus_sdn.whatif.opus.order import leads_on
from opus_sdn.whatif.opus.outcome import NOTHING, node_of
from opus_sdn.whatif.trace.model import COLLECTIVE, RECEIVE, SEND, Trace

START: Final = 1
TICK: Final = -1  # the token of the core's own deadlines


class InvariantError(AssertionError):
    """The controller broke one of its invariants: a bug in it, never in the trace."""


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """One granted operation. `nodes` in order of arrival, as rank and position.

    `step` is the device step whose end let it be granted; NOTHING: it went at once, or as soon as its ports
    were free. `cause` is the node whose end brought the last arrival, or freed the ports.
    """

    stream: Stream
    n: int
    nodes: tuple[tuple[int, int], ...]
    complete_ns: int
    granted_ns: int
    step: int
    cause: int


@dataclass(slots=True)
class StepRecord:
    """One device step: when, for whom, and which circuits. `hinted` of those it made were for hints alone."""

    id: int
    switch: str
    started_ns: int
    ended_ns: int
    trigger: int  # the node at whose end it was started; NOTHING: at the beginning, or
    after: int  # the step at whose end, if not NOTHING
    causes: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    hinted: int


class Controller:
    """A gate for `Replay`: arrivals in, grants out, device steps as timers.

    `orders[r]`, in provision mode, are the positions of rank r's communication in expected order.
    """

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        settings: CoreSettings,
        orders: Sequence[Sequence[int]] | None = None,
        start_topology: str | None = None,
    ) -> None:
        self.trace, self.cluster = trace, cluster
        self.engine = Engine(cluster.fabric, settings, START)
        self.grants: list[GrantRecord] = []
        self.steps: list[StepRecord] = []
        self.topology: list[tuple[int, str, str]] = []  # time, rail, id
        self.failure: str | None = None
        self._devices = {switch.name: SimulatedSwitch(switch) for switch in cluster.fabric.switches}
        self._queues: dict[str, deque[int]] = {name: deque() for name in self._devices}
        self._changes: list[tuple[Change, Step, int]] = []  # by token, with the step's record
        self._timers: list[tuple[int, int]] = []
        self._settled: list[int] = []  # records of the steps that have ended in this instant
        self._made_by: dict[str, int] = {}  # circuit -> record of the step that made it last
        self._held: Counter[Terminal] = Counter()  # uses of each terminal by ranks with an unfinished grant
        self._now = 0
        self._tick_due = -1
        self._light(start_topology)
        self._job = self._admit(start_topology)
        ranks = range(len(trace.ranks))
        self._counts: list[dict[Stream, int]] = [{} for _ in ranks]
        self._numbers: list[dict[int, int]] = [{} for _ in ranks]  # position -> n
        self._last_grant = [0 for _ in ranks]
        self._open: dict[tuple[Stream, int], list[tuple[int, int, int]]] = {}  # rank, position, cause
        needed = {id(graph): leads_on(graph) for graph in trace.graphs}
        self._needed = [needed[id(rank.graph)] for rank in trace.ranks]
        self._needed_now = [0 for _ in ranks]  # needed to go on, and arrived at or granted
        self._unblocked: list[dict[int, Arrival]] = [{} for _ in ranks]  # open, and no host waits for them
        self._arrivals: dict[int, list[Arrival]] = {}
        self._releases: dict[int, list[Release]] = {}
        self._leaving: dict[int, None] = {}
        self._speaking: dict[int, int] = {}  # rank -> the node because of which it speaks in this instant
        self._conflicts: dict[tuple[str, str], bool] = {}
        self._expected: list[Expectation] | None = None
        if orders is not None:
            self._expected = [
                Expectation(order, streams, counts, self.conflict)
                for order, streams, counts in zip(orders, self._streams, self._counts, strict=True)
            ]
            self._speaking = dict.fromkeys(ranks, NOTHING)  # everybody says at the start what comes first

    def _light(self, topology: str | None) -> None:
        """What is up before the step begins."""
        job = self.cluster.job
        layout = Layout(job.dimensions, len(job.placement))
        lit: dict[str, list[CrossConnect]] = {}
        for circuit in circuits_of(self.cluster.fabric, job, layout, topology) if topology else ():
            lit.setdefault(circuit.switch, []).extend(circuit.cross_connects)
        for name, pairs in lit.items():
            self._devices[name].device.restart(pairs)
        for name, device in self._devices.items():
            self.engine.observe(0.0, name, device.device.table)

    def _admit(self, topology: str | None) -> str:
        """Declare the job and its groups, and find out which operations need grants."""
        cluster = self.cluster
        name = cluster.job.name
        self._incarnation, _ = self.engine.put_job(0.0, replace(cluster.job, initial_topology=topology))
        self.core = self.engine.state.jobs[name]
        groups = (*cluster.groups, *cluster.pipelines)
        views = self.engine.check_in(0.0, name, self._incarnation, groups)
        rings = [
            Stream(view.name) if view.domain is Domain.SCALE_OUT else None
            for view in views[: len(cluster.groups)]
        ]
        self._streams = [self._streams_of(rank, rings) for rank in range(len(self.trace.ranks))]
        return name

    def _streams_of(self, rank: int, rings: Sequence[Stream | None]) -> dict[int, Stream]:
        own, placement = self.trace.ranks[rank], self.cluster.job.placement
        apart = self.cluster.job.force_scale_out
        found: dict[int, Stream] = {}
        for position, operation in enumerate(own.graph.operations):
            partner = own.partners[position]
            if operation.kind == COLLECTIVE:
                ring = rings[partner]
                if ring is not None:
                    found[position] = ring
            elif operation.kind in (SEND, RECEIVE) and (
                apart or placement[partner].host != placement[rank].host
            ):
                low, high = sorted((rank, partner))
                ends = (rank, partner) if operation.kind == SEND else (partner, rank)
                found[position] = Stream(f"{self.cluster.pipeline_of[rank]}:{low}-{high}", *ends)
        return found

    def stream_at(self, rank: int, position: int) -> Stream:
        """The stream of a gated operation."""
        return self._streams[rank][position]

    def number_of(self, rank: int, position: int) -> int | None:
        """Which operation of its stream it is; None before the rank has arrived there."""
        return self._numbers[rank].get(position)

    # --- the gate

    def gates(self, rank: int, position: int) -> bool:
        """Whether this operation needs circuits."""
        return position in self._streams[rank]

    def arrive(self, rank: int, position: int, cause: int) -> None:
        """The rank says that it is at this operation."""
        stream = self._streams[rank][position]
        n = self._numbers[rank][position] = self._counts[rank].get(stream, 0)
        self._counts[rank][stream] = n + 1
        tag = None if stream.source is None else self.trace.ranks[rank].tags[position]
        self._arrivals.setdefault(rank, []).append(Arrival(stream, n, tag=tag))
        self._unblocked[rank][position] = Arrival(stream, n, tag=tag, blocking=True)
        self._needed_now[rank] += self._needed[rank][position]
        self._speaking.setdefault(rank, cause)
        self._open.setdefault((stream, n), []).append((rank, position, cause))
        if self._expected is not None:
            self._expected[rank].arrive(position)

    def wait(self, rank: int) -> bool:
        """The rank has nothing else to do: its host waits for what its program needs to go on.

        That ends the patience of these operations. Where nothing of the kind is left, it waits for the rest.
        """
        fresh = self._unblocked[rank]
        if not fresh or (self._expected is None and not self.engine.state.settings.ring_patience_s):
            return False
        needed = self._needed[rank]
        waited_for = [p for p in fresh if needed[p]] if self._needed_now[rank] else list(fresh)
        if not waited_for:
            return False
        self._arrivals.setdefault(rank, []).extend(fresh.pop(position) for position in waited_for)
        self._speaking.setdefault(rank, NOTHING)
        return True

    def finish(self, rank: int, position: int) -> None:
        """The operation is over on this rank, which lets go of its circuits."""
        stream = self._streams[rank][position]
        self._releases.setdefault(rank, []).append(Release(stream, self._numbers[rank][position]))
        self._needed_now[rank] -= self._needed[rank][position]
        self._speaking[rank] = node_of(rank, position)
        if self._expected is not None:
            self._expected[rank].finish(position)
        for circuit in self.core.connections[stream.connection].circuits:
            self._held.subtract(circuit.terminals)

    def leave(self, rank: int) -> None:
        """The rank's program has ended."""
        self._leaving[rank] = None

    def timers(self) -> Sequence[tuple[int, int]]:
        """What is to be waited for since the last call."""
        new, self._timers = self._timers, []
        return new

    def fire(self, now_ns: int, token: int) -> None:
        """A device has come to the next phase of a change, or the core has something to decide by time."""
        self._now = now_ns
        if token == TICK:
            self.engine.tick(now_ns / 1e9)
            return
        change, step, number = self._changes[token]
        device = self._devices[step.switch]
        device.advance(now_ns, change)
        if change.phase is not Phase.DONE:
            self._timers.append((change.due_ns, token))
            return
        record = self.steps[number]
        record.ended_ns = now_ns
        self._settled.append(number)
        self._made_by.update(dict.fromkeys(record.added, number))
        self.engine.settle_step(now_ns / 1e9, step.id, True, None, device.device.table)

    def decide(self, now_ns: int) -> Sequence[tuple[int, int, int]]:
        """Tell the core what was said, and let it decide until it has nothing more to say."""
        self._now = now_ns
        now = now_ns / 1e9
        granted: list[tuple[int, int, int]] = []
        self._tell(now)
        while (batch := self.engine.pump(now).batch) is not None:
            self._take(batch, granted)
            self.engine.committed(batch.id)
            self._start_steps(now)
        self._speaking.clear()
        self._settled.clear()
        if self.core.patient_until is not None:
            self._wake_at(self.core.patient_until)
        return granted

    def _take(self, batch: Batch, granted: list[tuple[int, int, int]]) -> None:
        for change in batch.changes:
            if isinstance(change, RunGranted):
                granted += self._grant(change)
            elif isinstance(change, StepPlanned):
                self._queues[change.switch].append(change.step)
            elif isinstance(change, EventAppended) and change.kind == "topology.changed":
                self.topology.append((self._now, str(change.rail), str(change.data["new"])))
            elif isinstance(change, JobSettled) and change.state is JobState.FAILED:
                self.failure = change.detail

    def _wake_at(self, moment: float) -> None:
        due_ns = math.ceil(moment * 1e9)
        due_ns += due_ns / 1e9 < moment  # the moment may lie between two numbers
        if due_ns != self._tick_due:
            self._tick_due = due_ns
            self._timers.append((due_ns, TICK))

    def _tell(self, now: float) -> None:
        """Everything that ranks have to say, in one request."""
        speakers = {**self._speaking, **self._leaving}
        if speakers and self.core.running:
            news = [
                RankNews(
                    rank,
                    self._last_grant[rank],
                    tuple(self._arrivals.get(rank, ())),
                    tuple(self._releases.get(rank, ())),
                    rank in self._leaving,
                    () if self._expected is None else self._expected[rank].news(),
                )
                for rank in speakers
            ]
            self.engine.news(now, self._job, self._incarnation, START, news)
        self._arrivals.clear()
        self._releases.clear()
        self._leaving.clear()

    def conflict(self, one: Stream, other: Stream) -> bool:
        """Whether two streams need a port for different circuits."""
        key = (one.connection, other.connection)
        known = self._conflicts.get(key)
        if known is None:
            first, second = (self.core.connection(name).circuits for name in key)
            known = self._conflicts[key] = conflict(first, second)
        return known

    # --- grants and steps

    def _grant(self, change: RunGranted) -> list[tuple[int, int, int]]:
        """Book a grant, after checks that do not trust the core."""
        run = f"{change.stream}#{change.n}"
        arrived = self._open.pop((change.stream, change.n), [])
        nodes = tuple((rank, position) for rank, position, _ in arrived)
        connection = self.core.connections[change.stream.connection]
        if {rank for rank, _ in nodes} != set(connection.ranks):
            raise InvariantError(f"I5: {run} is granted, but only {nodes} have arrived")
        for circuit in connection.circuits:
            device = self._devices[circuit.switch].device
            if not all(device.is_lit(pair) for pair in circuit.cross_connects):
                raise InvariantError(f"I4: {run} is granted, but {circuit.id} is not up")
            for terminal in circuit.terminals:
                self._held[terminal] += len(connection.ranks)
        for rank, number in change.locks:
            if number != self._last_grant[rank] + 1:
                raise InvariantError(f"{run}: rank {rank} gets grant {number} after {self._last_grant[rank]}")
            self._last_grant[rank] = number
        for rank, position in nodes:
            self._unblocked[rank].pop(position, None)
        made = [self._made_by[c.id] for c in connection.circuits if c.id in self._made_by]
        step = max((number for number in made if self.steps[number].ended_ns == self._now), default=NOTHING)
        complete_ns = round(change.complete_at * 1e9)
        cause = arrived[-1][2] if complete_ns == self._now else self._cause(connection.circuits)[0]
        if complete_ns == self._now:
            step = NOTHING
        self.grants.append(GrantRecord(change.stream, change.n, nodes, complete_ns, self._now, step, cause))
        return [(rank, position, len(self.grants) - 1) for rank, position in nodes]

    def _start_steps(self, now: float) -> None:
        for name, queue in self._queues.items():
            device = self._devices[name]
            while queue and not device.is_full:
                step = self.engine.start_step(now, queue.popleft())
                if step is not None:
                    self._start(device, step)

    def _start(self, device: SimulatedSwitch, step: Step) -> None:
        for pair in step.remove:
            if any(self._held[terminal] for terminal in device.device.switch.terminals_of(pair)):
                raise InvariantError(f"I1: step {step.id} removes {pair}, which carries traffic")
        change = device.begin(self._now, step.remove, step.add, START)
        added, removed = (self._circuits(step.switch, pairs) for pairs in (step.add, step.remove))
        self.steps.append(
            StepRecord(
                step.id,
                step.switch,
                self._now,
                NOTHING,
                *self._cause((*removed, *added)),
                step.causes,
                tuple(circuit.id for circuit in added),
                tuple(circuit.id for circuit in removed),
                len(step.hinted),
            )
        )
        self._changes.append((change, step, len(self.steps) - 1))
        self._timers.append((change.due_ns, len(self._changes) - 1))

    def _circuits(self, switch: str, pairs: Iterable[CrossConnect]) -> list[Circuit]:
        """The circuits that these pairs belong to, each once."""
        found = [self.cluster.fabric.circuit_of(switch, pair) for pair in pairs]
        return list(dict.fromkeys(circuit for circuit in found if circuit is not None))

    def _cause(self, circuits: Iterable[Circuit]) -> tuple[int, int]:
        """What has happened in this instant at the ends of circuits: a node's end, else the end of a step."""
        ends = {rank for circuit in circuits for rank in ends_of(self.core, circuit)}
        said = [node for rank, node in self._speaking.items() if rank in ends]
        if said:
            return said[-1], NOTHING
        return NOTHING, self._settled[-1] if self._settled else NOTHING
