"""Watches the core from outside: every invariant that can be checked is, from what was said and what is lit.

It keeps books of its own from the requests, the batches and the devices, and asks the core only for the
circuits of a connection and for its marks.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from opus_sdn.intent import changes as ch
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.fabric import Circuit, CircuitKind, CrossConnect, Fabric
from opus_sdn.intent.model import Grant, RankKey, Stream
from opus_sdn.intent.switches import Step
from tests.intent.virtual_switch import ViolationError, VirtualSwitch, Witness

Run = tuple[str, int, Stream, int]  # job, incarnation, stream, n

# What may follow what, as the design's life of a run has it; "" = before anything was recorded.
INTENT_STEPS = {
    "": {"complete", "granted"},
    "complete": {"installing", "stalled", "granted", "failed"},
    "installing": {"complete", "stalled", "granted", "failed"},
    "stalled": {"complete", "granted", "failed"},
    "granted": {"released"},
    "released": set(),
    "failed": set(),
}
STEP_STEPS = {
    "": {"planned"},
    "planned": {"started", "dropped"},
    "started": {"done", "failed"},
    "done": set(),
    "failed": set(),
    "dropped": set(),
}


EVENT_OF: dict[type, str] = {
    ch.RunGranted: "intent.granted",
    ch.RunCut: "run.cut",
    ch.StepPlanned: "step.planned",
    ch.JobStarted: "job.started",
    ch.GroupChecked: "group.checked-in",
}
# Events that are no change of a state in a table.
FREE_EVENTS = (
    "topology.changed",
    "rank.left",
    "rank.operation-failed",
    "plan.refused",
    "switch.adopted",
    "switch.drifted",
    "switch.contended",
    "switch.away",
    "switch.back",
    "circuit.lost",
    "circuit.restored",
    "job.recovered",
    "job.reasserted",
    "run.cutting",
)


class Watch:
    """All that was said and done so far, and the checks after each event."""

    def __init__(
        self, engine: Engine, fabric: Fabric, switches: dict[str, VirtualSwitch], witness: Witness
    ) -> None:
        self.engine = engine
        self._fabric = fabric
        self.switches = switches
        self._witness = witness
        self._arrived: dict[Run, set[int]] = defaultdict(set)
        self._next: Counter[tuple[str, int, Stream]] = Counter()
        self._complete: dict[Run, int] = {}  # -> age
        self._age = 0
        self.overtaken: Counter[Run] = Counter()
        self._holders: dict[Run, set[int]] = {}
        self._lengths: dict[Run, int] = {}  # of runs of several operations that were not cut
        self.cuts = 0
        self.lengths: Counter[int] = Counter()  # of rings
        self._numbers: dict[tuple[RankKey, int], tuple[Stream, int, int]] = {}  # -> with its batch
        self._told: Counter[RankKey] = Counter()
        self._stored = 0
        self._intents: dict[Run, str] = {}
        self._steps: dict[int, str] = {}
        self._marks: dict[object, tuple[int, ...]] = {}
        self.grants = 0
        self.steps_started = 0

    # --- what happens

    def arrived(self, key: RankKey, stream: Stream, n: int) -> None:
        """A rank's arrival was taken by the core."""
        run = (key.job, key.incarnation, stream, n)
        self._arrived[run].add(key.rank)
        self._note_complete(run)

    def released(self, key: RankKey, stream: Stream, n: int) -> None:
        """A rank's release was taken by the core."""
        holders = self._holders.get((key.job, key.incarnation, stream, n), set())
        holders.discard(key.rank)

    def stopped(self, key: RankKey) -> None:
        """A rank is known to have stopped."""
        for run, holders in self._holders.items():
            if run[:2] == (key.job, key.incarnation):
                holders.discard(key.rank)

    def decided(self, batch: ch.Batch) -> None:
        """The core has decided these changes."""
        check_events(batch)
        for change in batch.changes:
            match change:
                case ch.RunGranted():
                    self._granted(batch.id, change)
                case ch.RunCut():
                    self._cut(change)
                case ch.IntentMoved():
                    self._move((change.job, change.incarnation, change.stream, change.n), change.state)
                case ch.LocksReleased():
                    self._locks_released(batch, change)
                case ch.StepPlanned():
                    self._step(change.step, "planned")
                    self._planned(change)
                case ch.StepMoved():
                    self._step(change.step, change.state)
                case ch.EventAppended() if change.kind == "plan.refused":
                    raise ViolationError("plan", f"the checker refused a plan: {change.data['violations']}")

    def stored(self, batch: int) -> None:
        """A batch has reached the store."""
        self._stored = batch

    def told(self, key: RankKey, grants: tuple[Grant, ...], last_grant: int) -> None:
        """A rank is answered these grants."""
        for no, grant in enumerate(grants, last_grant + 1):
            if grant.no != no:
                raise ViolationError("numbers", f"{key} is told grant {grant.no}, {no} is next")
            known = self._numbers.get((key, no))
            if known is None or known[:2] != (grant.stream, grant.n):
                raise ViolationError("numbers", f"{key} is told {grant}, but grant {no} was {known}")
            if known[2] > self._stored:
                raise ViolationError("I3", f"{key} is told {grant} before batch {known[2]} is stored")
            if no > self._told[key]:
                self._told[key] = no
                self._check_ready((key.job, key.incarnation, grant.stream, grant.n))

    def started(self, step: Step) -> None:
        """The core has handed a step to the device."""
        self.steps_started += 1
        self._witness.begin_step(step)
        for run, holders in self._holders.items():
            for circuit in self._circuits(run) if holders else ():
                switch, pairs = self._witness.needs(circuit)
                if switch == step.switch and pairs & set(step.remove):
                    raise ViolationError("I1", f"step {step.id} removes {circuit.id}, locked by {run}")
        self._check_ports(step)
        if all(cause.endswith("/hints") for cause in step.causes):
            self._check_yields(step)

    def _check_yields(self, step: Step) -> None:
        """Rule 9: a step that only hints caused takes nothing from an intent that is complete."""
        for run in self._complete:
            for circuit in self._circuits(run):
                switch, pairs = self._witness.needs(circuit)
                if switch == step.switch and pairs & set(step.remove):
                    raise ViolationError("hints", f"step {step.id} takes {circuit.id} from {run}")

    def after_event(self) -> None:
        """What has to hold at every instant."""
        for device in self.switches.values():
            device.assert_partial_matching()
        for job in self.engine.state.jobs.values():
            name = (job.spec.name, job.incarnation)
            for stream, state in job.streams.items():
                marks = (state.granted, *state.released.values(), *state.next_n.values())
                if any(run.cutting is not None and run.cutting.length for run in state.held.values()):
                    self._forget_marks((*name, stream), marks)
                self._never_back((*name, stream), marks)
            self._never_back(name, tuple(session.issued for session in job.ranks))
        for name, switch in self.engine.state.switches.items():
            self._never_back(name, (switch.generation,))

    def open_runs(self) -> list[Run]:
        """Runs that somebody still holds."""
        return [run for run, holders in self._holders.items() if holders]

    # --- checks

    def _note_complete(self, run: Run) -> None:
        job, incarnation, stream, n = run
        core = self.engine.state.jobs[job]
        if run in self._complete or n != self._next[job, incarnation, stream]:
            return
        if self._arrived[run] == set(core.connection(stream.connection).ranks):
            self._age += 1
            self._complete[run] = self._age

    def _granted(self, batch: int, change: ch.RunGranted) -> None:
        run = (change.job, change.incarnation, change.stream, change.n)
        ranks = set(self.engine.state.jobs[change.job].connection(change.stream.connection).ranks)
        if self._arrived[run] != ranks:
            raise ViolationError("I5", f"{run} is granted, but only {sorted(self._arrived[run])} arrived")
        if change.n != self._next[run[:3]] or run in self._holders:
            raise ViolationError("I7", f"{run} is granted, but {self._next[run[:3]]} is next")
        if {rank for rank, _ in change.locks} != ranks:
            raise ViolationError("I5", f"{run} is granted to {change.locks}")
        self._check_ready(run)
        self._move(run, "granted")
        self.grants += 1
        self._next[run[:3]] = change.n + change.length
        for rank, no in change.locks:
            key = RankKey(*run[:2], rank)
            if (key, no) in self._numbers or (no > 1 and (key, no - 1) not in self._numbers):
                raise ViolationError("numbers", f"{key} is given grant {no} after a gap or twice")
            self._numbers[key, no] = (change.stream, change.n, batch)
        self._check_exclusive(run)
        self._check_kept(run, ranks)
        self._holders[run] = ranks
        if change.stream.source is None:
            self.lengths[change.length] += 1
        elif change.length > 1:
            raise ViolationError("runs", f"{run} is granted {change.length} messages at once")
        if change.length > 1:
            self._lengths[run] = change.length
        self._count_overtaking(run)
        self._note_complete((*run[:3], change.n + change.length))

    def _cut(self, change: ch.RunCut) -> None:
        """A run ends earlier: its marks go back, and only these, and never behind what was called."""
        run = (change.job, change.incarnation, change.stream, change.n)
        length = self._lengths.pop(run, 1)
        if not 1 <= change.length <= length:
            raise ViolationError("cut", f"{run} of {length} operations is cut to {change.length}")
        if not self._holders[run]:
            raise ViolationError("cut", f"{run} is cut, and nobody holds it")
        self.cuts += 1
        self._next[run[:3]] = change.n + change.length

    def _check_kept(self, run: Run, ranks: set[int]) -> None:
        """C7: whoever holds a run of several operations gets no other grant, unless the run is cut."""
        for other in self._lengths:
            members = set(self.engine.state.jobs[run[0]].connection(other[2].connection).ranks)
            if other[:2] == run[:2] and self._holders[other] and members & ranks:
                raise ViolationError("C7", f"{run} is granted to {ranks}, who hold {other}")

    def _check_ready(self, run: Run) -> None:
        for circuit in self._circuits(run):
            if not self._witness.is_lit(circuit):
                raise ViolationError("I4", f"{run} is granted while circuit {circuit.id} is not up")

    def _check_exclusive(self, run: Run) -> None:
        for other, holders in self._holders.items():
            if holders and self._conflict(run, other):
                raise ViolationError("I1", f"{run} is granted while {other} is held by {sorted(holders)}")

    def _count_overtaking(self, run: Run) -> None:
        age = self._complete.pop(run)
        for other, older in self._complete.items():
            if older < age and other[:2] == run[:2] and self._conflict(run, other):
                self.overtaken[other] += 1
                bound = self.engine.state.settings.overtake_max + len(self._next)
                if self.overtaken[other] > bound:
                    raise ViolationError("overtaking", f"{other} was overtaken {self.overtaken[other]} times")

    def _planned(self, plan: ch.StepPlanned) -> None:
        """I11: a step makes something that is not there, and removes only what is in its way.

        For an initial topology also what that does not have.
        """
        clears = any(cause.endswith("/initial-topology") for cause in plan.causes)
        device = self.switches[plan.switch]
        there = [pair for pair in plan.add if pair in device.matching]
        if there or not (plan.add or clears):
            raise ViolationError("I11", f"step {plan.step} adds {plan.add}; up already: {there}")
        needed = set(device.sides(plan.add))
        for pair in plan.remove:
            both = [pair]
            if self._fabric.circuit_kind is CircuitKind.DUPLEX:
                both.append(CrossConnect(pair.egress, pair.ingress))
            if not clears and not needed & set(device.sides(both)):
                raise ViolationError("I11", f"step {plan.step} removes {pair}, which is in nobody's way")

    def _check_ports(self, step: Step) -> None:
        owned = {
            self._fabric.attachment(port.port).position
            for cause in step.causes
            for port in self._fabric.attachments
            if port.switch == step.switch
            and (port.port.host, port.port.slot) in self.engine.state.jobs[cause.split("/")[0]].rank_at
        }
        for pair in step.add:
            if not set(pair) <= owned:
                raise ViolationError("I8", f"step {step.id} for {step.causes} uses foreign ports: {pair}")

    def _locks_released(self, batch: ch.Batch, change: ch.LocksReleased) -> None:
        run = (change.job, change.incarnation, change.stream, change.n)
        events = [
            e
            for e in batch.changes
            if isinstance(e, ch.EventAppended)
            and e.kind == "intent.released"
            and (e.job, e.incarnation) == run[:2]
            and (e.data["connection"], e.data.get("source"), e.data.get("destination")) == run[2]
            and e.data["n"] == change.n
        ]
        if not events and not self._holders[run]:
            raise ViolationError("I9", f"{run} was let go by its last rank without an event")

    def _move(self, run: Run, to: str) -> None:
        known = self._intents.get(run, "")
        if to not in INTENT_STEPS[known]:
            raise ViolationError("I9", f"intent {run} goes from {known or 'nothing'} to {to}")
        self._intents[run] = str(to)

    def _step(self, step: int, to: str) -> None:
        known = self._steps.get(step, "")
        if to not in STEP_STEPS[known]:
            raise ViolationError("I9", f"step {step} goes from {known or 'nothing'} to {to}")
        self._steps[step] = str(to)

    def _forget_marks(self, what: object, marks: tuple[int, ...]) -> None:
        """The end of a run that is cut is the only thing that goes back; what was released does not."""
        known = self._marks.get(what, marks)
        ranks = len(marks) // 2
        if known[1 : 1 + ranks] == marks[1 : 1 + ranks]:
            self._marks[what] = marks

    def _never_back(self, what: object, marks: tuple[int, ...]) -> None:
        known = self._marks.get(what)
        if known == marks:
            return
        if known is not None and any(new < old for new, old in zip(marks, known, strict=True)):
            raise ViolationError("I7", f"marks of {what} go back from {known} to {marks}")
        self._marks[what] = marks

    def _circuits(self, run: Run) -> tuple[Circuit, ...]:
        job = self.engine.state.jobs[run[0]]
        return job.connection(run[2].connection).circuits if job.incarnation == run[1] else ()

    def _conflict(self, run: Run, other: Run) -> bool:
        directed = self._fabric.circuit_kind is CircuitKind.DIRECTED
        for a in self._circuits(run):
            for b in self._circuits(other):
                shared = a.a == b.a or a.b == b.b if directed else {a.a, a.b} & {b.a, b.b}
                if shared and a.id != b.id:
                    return True
        return False


def check_events(batch: ch.Batch) -> None:
    """I9: every change of state has exactly one event in its own transaction."""
    expected: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for change in batch.changes:
        match change:
            case ch.IntentMoved():
                expected[f"intent.{change.state}"] += 1
            case ch.StepMoved():
                expected[f"step.{change.state}"] += 1
            case ch.JobSettled():
                expected[f"job.{change.state}"] += 1
            case ch.DirectiveGiven(kind=ch.DirectiveKind.DRAIN):
                expected["port.drained"] += 1
            case ch.DirectiveWithdrawn(kind=ch.DirectiveKind.DRAIN):
                expected["port.undrained"] += 1
            case ch.EventAppended():
                # A grant that a power cut has taken is recorded anew under a name of its own.
                seen["intent.granted" if change.kind == "intent.proven" else change.kind] += 1
            case _ if type(change) in EVENT_OF:
                expected[EVENT_OF[type(change)]] += 1
    for free in FREE_EVENTS:
        del seen[free]
    if seen != expected:
        raise ViolationError("I9", f"batch {batch.id} has events {dict(seen)} for changes {dict(expected)}")
