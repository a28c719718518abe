"""All state of the core in one place, and the ledger of what the store must be told."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from opus_sdn.intent.changes import (
    Batch,
    Change,
    CircuitsOwned,
    EventAppended,
    JobLetGo,
    JobState,
    LocksReleased,
)
from opus_sdn.intent.fabric import Circuit, Fabric, Port, Terminal
from opus_sdn.intent.job import JobCore, rails_of
from opus_sdn.intent.model import CoreSettings, RankKey, Stream
from opus_sdn.intent.reasons import Because
from opus_sdn.intent.standing import Bar, Drain, ManualCircuit, QueuedJob
from opus_sdn.intent.streams import HeldRun, Intent
from opus_sdn.intent.switches import Step, SwitchState
from opus_sdn.intent.topology_id import topology_id


class Ledger:
    """Changes waiting for their transaction. The batch being filled has id `open_batch`."""

    def __init__(self) -> None:
        self.open_batch = 1
        self.committed = 0
        self._wake_on_commit: dict[int, dict[RankKey, None]] = {}
        self._changes: list[Change] = []
        self._lazy: list[Change] = []
        self._releases: dict[tuple[str, int, Stream, int, int], list[int]] = {}
        self._durable = False

    def add(self, change: Change, durable: bool = False) -> None:
        """Write this with the next batch; `durable` makes the whole batch reach the disk first."""
        self._changes.append(change)
        self._durable = self._durable or durable

    def later(self, change: Change) -> None:
        """Write this with the next batch that is written anyway; nothing waits for it."""
        self._lazy.append(change)

    def event(self, kind: str, job: JobCore | None = None, **data: object) -> None:
        """Append an event; `rail` and `switch` among the data become its columns."""
        rail, switch = data.pop("rail", None), data.pop("switch", None)
        self._changes.append(make_event(kind, job, rail, switch, data))

    def release(self, job: JobCore, stream: Stream, run: HeldRun, rank: int) -> None:
        """A rank let go of a run; ranks that do so in the same batch share one change."""
        key = (job.spec.name, job.incarnation, stream, run.n, run.length)
        self._releases.setdefault(key, []).append(rank)

    def wake_on_commit(self, key: RankKey) -> None:
        """Wake a waiting rank once the open batch is stored."""
        self._wake_on_commit.setdefault(self.open_batch, {})[key] = None

    def commit(self, batch: int) -> tuple[RankKey, ...]:
        """A batch was stored: its grants may be answered. The ranks to wake."""
        self.committed = max(self.committed, batch)
        return tuple(self._wake_on_commit.pop(batch, ()))

    def cut(self, now: float) -> Batch | None:
        """Close the open batch; None when there is nothing to write."""
        released = [LocksReleased(*key, tuple(ranks)) for key, ranks in self._releases.items()]
        if not self._changes and not released:
            return None
        # Releases happened before whatever was granted because of them.
        changes = (*self._lazy, *released, *self._changes)
        batch = Batch(self.open_batch, now, changes, self._durable)
        self.open_batch += 1
        self._changes, self._lazy, self._releases, self._durable = [], [], {}, False
        return batch


def make_event(
    kind: str, job: JobCore | None, rail: object, switch: object, data: Mapping[str, object]
) -> EventAppended:
    """One event line; the job's name and incarnation come from the job."""
    return EventAppended(
        kind,
        job.spec.name if job else None,
        job.incarnation if job else None,
        None if rail is None else str(rail),
        None if switch is None else str(switch),
        dict(data),
    )


def step_event(kind: str, step: Step, at: float | None = None, **data: object) -> EventAppended:
    """One event line of a device step, under its job when it is for one job only."""
    name, incarnation = step.job or (None, None)
    return EventAppended(kind, name, incarnation, None, step.switch, {"step": step.id, **data}, at)


@dataclass(frozen=True, slots=True)
class Link:
    """What a host says of one of its NIC ports: whether its link is up, and since when it says so."""

    up: bool
    since: float
    detail: str


@dataclass(slots=True)
class LinkUp:
    """How long links of a rail took to come up after the light, in seconds, as far as they were watched."""

    times: int = 0
    last_s: float = 0.0
    worst_s: float = 0.0

    def note(self, seconds: float) -> None:
        """One more."""
        self.times += 1
        self.last_s = seconds
        self.worst_s = max(self.worst_s, seconds)


@dataclass(slots=True)
class CircuitMade:
    """A circuit that a device step makes or has made, and that no grant has used since."""

    step: int
    begun_at: float
    done_at: float | None = None

    def hidden_s(self, complete_at: float) -> float:
        """How much of the change was over when the intent for it became complete."""
        until = complete_at if self.done_at is None else min(self.done_at, complete_at)
        return max(0.0, until - self.begun_at)


@dataclass(slots=True)
class CoreState:
    """Jobs (newest incarnation of each name), switches, live terminals and what is to be looked at next."""

    fabric: Fabric
    settings: CoreSettings
    start: int
    switches: dict[str, SwitchState]
    incarnations: dict[str, int]
    next_step: int
    incarnation_floor: int = 0
    jobs: dict[str, JobCore] = field(default_factory=dict)  # the newest incarnation of each name
    active: dict[str, JobCore] = field(default_factory=dict)  # of these, whose ports are in use
    past_nonces: dict[str, deque[str]] = field(default_factory=dict)
    live: dict[Terminal, int] = field(default_factory=dict)  # terminal -> held runs that need it
    graced: dict[Terminal, JobCore] = field(default_factory=dict)  # nothing is removed from these yet
    live_circuit: dict[Terminal, Circuit] = field(default_factory=dict)  # of these, the circuit that is held
    made: dict[str, CircuitMade] = field(default_factory=dict)  # by circuit id; at most one for each port
    links: dict[Port, Link] = field(default_factory=dict)  # as reported by the hosts
    link_up: dict[str, LinkUp] = field(default_factory=dict)  # by rail
    drains: dict[Port, Drain] = field(default_factory=dict)
    manual: dict[str, ManualCircuit] = field(default_factory=dict)  # by circuit id
    queue: dict[str, QueuedJob] = field(default_factory=dict)  # by job name, first come first
    barred: dict[Terminal, Bar] = field(default_factory=dict)  # closed by a drain or a manual circuit
    shut: dict[Terminal, Bar] = field(default_factory=dict)  # the device says: no light passes here
    next_directive: int = 1
    admissions_due: bool = False  # ports may have become free
    ledger: Ledger = field(default_factory=Ledger)
    dirty_jobs: dict[str, None] = field(default_factory=dict)
    dirty_switches: dict[str, None] = field(default_factory=dict)

    def is_up(self, circuit: Circuit) -> bool:
        """Observed on its switch and not moving."""
        return self.switches[circuit.switch].is_up(circuit)

    def holder_against(self, circuit: Circuit) -> Terminal | None:
        """A terminal of this circuit on which another circuit carries traffic.

        While all goes well no such circuit is up; somebody else may have put it there.
        """
        return next((t for t in circuit.terminals if self.live_circuit.get(t, circuit) != circuit), None)

    def bar_against(self, circuits: Iterable[Circuit]) -> Because | None:
        """Why these circuits are not to be used: a port is broken, or an operator wants it; else None."""
        if not self.barred and not self.shut:
            return None
        for circuit in circuits:
            for terminal in circuit.terminals:
                bar = self.shut.get(terminal) or self.barred.get(terminal)
                if bar is not None and bar.circuit != circuit:
                    return bar.because
        return None

    def hold(self, circuits: Iterable[Circuit]) -> None:
        """A run was granted: its circuits are live."""
        for circuit in circuits:
            for terminal in circuit.terminals:
                self.live[terminal] = self.live.get(terminal, 0) + 1
                self.live_circuit[terminal] = circuit

    def unhold(self, circuits: Iterable[Circuit]) -> None:
        """Nobody holds the run any more."""
        for circuit in circuits:
            for terminal in circuit.terminals:
                self.live[terminal] -= 1
                if not self.live[terminal]:
                    del self.live[terminal]
                    del self.live_circuit[terminal]
                    if terminal in self.barred:  # what an operator wants may go on now
                        self.dirty_switches[terminal.switch] = None

    def await_ranks(self, job: JobCore) -> None:
        """The job's ports stay as they are until all its ranks were heard."""
        if job.in_doubt:
            self.graced.update(dict.fromkeys(job.terminals, job))

    def heard(self, job: JobCore, rank: int) -> None:
        """A rank has said what it holds, or is known to have stopped; the last one frees the job's ports."""
        if job.grace is None or rank not in job.grace.awaited:
            return
        job.grace.heard(rank)
        self.touch(job)
        if job.grace.awaited:
            return
        for terminal in job.terminals:
            self.graced.pop(terminal, None)
            self.dirty_switches[terminal.switch] = None
        self.review(job)

    def admit(self, job: JobCore) -> None:
        """A new incarnation takes the place of an older one of its name."""
        name = job.spec.name
        self.jobs.pop(name, None)
        self.jobs[name] = self.active[name] = job
        nonces = self.past_nonces.setdefault(name, deque(maxlen=self.settings.former_nonces_max))
        nonces.append(job.spec.nonce)
        self._forget_names()

    def _forget_names(self) -> None:
        """Of the names that no job has now only the newest stay known; no number is ever given again."""
        known = self.incarnations
        surplus = max(0, len(known) - self.settings.job_names_max)
        for name in [name for name in known if name not in self.jobs][:surplus]:
            self.incarnation_floor = max(self.incarnation_floor, known.pop(name))
            self.past_nonces.pop(name, None)

    def review(self, job: JobCore) -> None:
        """A job that needs its ports no more is only remembered, and the oldest of many are forgotten."""
        name = job.spec.name
        if job.occupies_ports() or self.active.pop(name, None) is None:
            return
        self.admissions_due = True
        if job.state is JobState.FAILED:
            self.ledger.add(JobLetGo(name, job.incarnation))
        self.jobs[name] = self.jobs.pop(name)  # the newest of the settled ones
        settled = [known for known in self.jobs if known not in self.active]
        for known in settled[: -self.settings.settled_jobs_max]:
            del self.jobs[known]

    def touch(self, job: JobCore) -> None:
        """Look at this job in the next pump, and at the switches its waiting intents need."""
        self.dirty_jobs[job.spec.name] = None

    def touch_switches(self, intents: Iterable[Intent]) -> None:
        """Plan these intents' switches in the next pump."""
        for intent in intents:
            for circuit in intent.connection.circuits:
                self.dirty_switches[circuit.switch] = None

    def refresh_topology(self, job: JobCore, rails: Iterable[str]) -> None:
        """Recompute a job's topology id on these rails; a change leaves an event."""
        for rail in rails:
            new = self._topology_on(job, rail)
            old = job.topology.get(rail)
            if new != old:
                job.topology[rail] = new
                # Installing the initial topology is no change of it: nobody has needed anything yet.
                job.topology_changes += old is not None and bool(job.grants or job.complete)
                self.ledger.event("topology.changed", job, rail=rail, old=old, new=new)

    def _topology_on(self, job: JobCore, rail: str) -> str:
        ends: list[tuple[int, int | None]] = []
        for rank in job.ranks_on.get(rail, ()):
            place = job.spec.placement[rank]
            for terminal in self.fabric.terminals_of(place.host, place.slot):
                switch = self.switches[terminal.switch]
                pair = switch.holder.get(terminal)
                if pair is None:
                    continue
                circuit = self.fabric.circuit_of(terminal.switch, pair)
                whole = circuit is not None and all(p in switch.matching for p in circuit.cross_connects)
                digit = job.owners.get(circuit.id) if circuit is not None and whole else None
                ends.append((job.layout.stage_of[rank], digit))
        return topology_id(job.layout.stages, ends)


def own(state: CoreState, job: JobCore, circuits: Iterable[Circuit], digit: int | None) -> None:
    """From now on these circuits count for one dimension; where that changes an id, it is recorded."""
    changed = [circuit for circuit in circuits if job.owners.get(circuit.id, -1) != digit]
    note_owner(state, job, changed, digit)
    if changed:
        state.refresh_topology(job, rails_of(changed))


def note_owner(state: CoreState, job: JobCore, circuits: Iterable[Circuit], digit: int | None) -> None:
    """Remember, and have stored, which dimension these circuits count for."""
    changed = tuple(circuit.id for circuit in circuits if job.owners.get(circuit.id, -1) != digit)
    job.owners.update(dict.fromkeys(changed, digit))
    if changed:
        state.ledger.add(CircuitsOwned(job.spec.name, job.incarnation, digit, changed))
