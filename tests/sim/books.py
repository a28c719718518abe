"""The invariants, kept in books of the test's own: from what reaches the disk, the devices and the ranks.

Nothing here asks the controller. What it has promised is what it has committed; what is true of a rank is
what that rank has heard and done; what is true of a circuit is what its switch holds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from opus_sdn.drivers.emulated import Transition
from opus_sdn.intent import changes as ch
from opus_sdn.intent.fabric import Circuit, CrossConnect, Fabric
from opus_sdn.intent.model import Grant, RankKey, Stream
from tests.intent.virtual_switch import ViolationError
from tests.intent.watch import INTENT_STEPS, STEP_STEPS, Run, check_events
from tests.sim.device import SimDevice, require_owned
from tests.sim.places import Cabling

JobKey = tuple[str, int]


@dataclass(slots=True)
class _Job:
    cabling: Cabling
    started_by: int  # the life that has committed its start
    running: bool = True
    asserted: set[int] = field(default_factory=set)  # ranks that the present life has heard
    stopped: set[int] = field(default_factory=set)  # ranks that have stopped, in truth
    left: set[int] = field(default_factory=set)  # ranks whose farewell is stored


class Books:
    """All that has happened in one run, and the checks."""

    def __init__(
        self, fabric: Fabric, devices: Mapping[str, SimDevice], now: Callable[[], float], lease_s: float
    ) -> None:
        self._fabric = fabric
        self._devices = devices
        self._now = now
        self._owned: dict[str, set[int]] = defaultdict(set)
        for at in fabric.attachments:
            self._owned[at.switch].add(at.position)
        self._jobs: dict[JobKey, _Job] = {}
        self._cablings: dict[str, Cabling] = {}
        self._life = 0
        self._began_clean = True
        self._granted: dict[tuple[str, int, Stream], int] = defaultdict(int)
        self._numbers: dict[RankKey, dict[int, tuple[Stream, int]]] = defaultdict(dict)
        self._last_number: dict[RankKey, int] = defaultdict(int)
        self._heard: dict[RankKey, dict[int, tuple[Stream, int]]] = defaultdict(dict)
        self._frontier: dict[tuple[str, int, Stream], int] = defaultdict(int)  # heard by anybody
        self._arrived: dict[tuple[RankKey, Stream], int] = defaultdict(int)
        self._finished: dict[tuple[RankKey, Stream], int] = defaultdict(int)
        self._holders: dict[Run, set[int]] = {}
        self._spoke: dict[RankKey, float] = defaultdict(float)  # when the controller last heard it
        self._active: dict[tuple[RankKey, Stream, int], tuple[Circuit, ...]] = {}
        self._lengths: dict[Run, int] = {}
        self._cut_from: dict[Run, int] = {}  # how long runs were that have been cut
        self.runs: Counter[str] = Counter()  # of several operations, and what became of them
        self._intents: dict[Run, str] = {}
        self._steps: dict[int, str] = {}
        self._generations: dict[str, int] = defaultdict(int)
        self._checked: dict[str, str] = {}  # revision of each device that was looked at last
        self._incarnations: dict[str, int] = defaultdict(int)
        self._hurt: dict[str, set[int]] = defaultdict(set)
        self.has_lost_commits = False
        self.lease_s = lease_s
        self.granted_runs = 0
        self.device_steps = 0
        self.observers: list[Callable[[ch.Batch], None]] = []

    # --- what there is

    def know(self, job: str, cabling: Cabling) -> None:
        """A job that may be declared."""
        self._cablings[job] = cabling

    def term(self, start: int, *, clean: bool) -> None:
        """Another term of the controller begins; what only memory held is gone."""
        self._life = start
        self._began_clean = clean
        for job in self._jobs.values():
            job.asserted.clear()
        for run, state in list(self._intents.items()):
            if state in ("complete", "installing", "stalled"):
                del self._intents[run]

    # --- the disk

    def committed(self, batch: ch.Batch) -> None:
        """A batch is stored."""
        check_events(batch)
        for change in batch.changes:
            match change:
                case ch.JobStarted():
                    self._job_started(change)
                case ch.JobSettled():
                    self._jobs[change.job, change.incarnation].running = False
                case ch.RankLeft():
                    self._jobs[change.job, change.incarnation].left.add(change.rank)
                case ch.RunGranted():
                    self._run_granted(change)
                case ch.RunCut():
                    self._run_cut(change)
                case ch.IntentMoved():
                    self._move((change.job, change.incarnation, change.stream, change.n), change.state)
                case ch.LocksReleased():
                    self._locks_released(change)
                case ch.StepPlanned() | ch.StepMoved() | ch.CircuitsObserved():
                    self._of_switch(change)
                case ch.EventAppended() if change.kind == "plan.refused":
                    raise ViolationError("plan", f"the checker refused a plan: {change.data}")
        for observer in self.observers:
            observer(batch)

    def _of_switch(self, change: ch.StepPlanned | ch.StepMoved | ch.CircuitsObserved) -> None:
        match change:
            case ch.StepPlanned():
                self._step(change.step, "planned")
            case ch.StepMoved():
                self._step(change.step, change.state)
            case ch.CircuitsObserved():
                if change.generation < self._generations[change.switch] and not self.has_lost_commits:
                    raise ViolationError("I7", f"{change.switch} goes back to {change.generation}")
                self._generations[change.switch] = change.generation

    def undone(self, batches: tuple[ch.Batch, ...]) -> None:
        """A power cut has taken these commits: what nobody has heard of was never promised."""
        self.has_lost_commits = True
        for batch in reversed(batches):
            for change in batch.changes:
                match change:
                    case ch.RunGranted():
                        run = (change.job, change.incarnation, change.stream, change.n)
                        self._granted[run[:3]] = min(self._granted[run[:3]], change.n)
                        heard = {
                            rank
                            for rank, no in change.locks
                            if no in self._heard[RankKey(change.job, change.incarnation, rank)]
                        }
                        for rank, no in change.locks:
                            key = RankKey(change.job, change.incarnation, rank)
                            self._last_number[key] = min(self._last_number[key], no - 1)
                        if run in self._holders:
                            self._holders[run] &= heard
                        self._intents.pop(run, None)
                    case ch.RunCut():
                        run = (change.job, change.incarnation, change.stream, change.n)
                        self._lengths[run] = self._cut_from.pop(run)
                        self._granted[run[:3]] = change.n + self._lengths[run]
                    case ch.IntentMoved():
                        self._intents.pop((change.job, change.incarnation, change.stream, change.n), None)
                    case ch.StepMoved() | ch.StepPlanned():
                        self._steps.pop(change.step, None)

    # --- ranks

    def arrived(self, key: RankKey, stream: Stream, n: int) -> None:
        """A rank's program has come to this operation."""
        self._arrived[key, stream] = n + 1

    def spoke(self, key: RankKey, start: int) -> None:
        """A request of a rank has reached the controller, and speaks to the present start."""
        if start != self._life:
            return  # what is said to another start is no sign of life to this one
        self._spoke[key] = self._now()
        job = self._jobs.get((key.job, key.incarnation))
        if job is not None:
            job.asserted.add(key.rank)

    def heard(self, key: RankKey, grant: Grant) -> None:
        """A rank has taken a grant from an answer."""
        told = (grant.stream, grant.n)
        if self._numbers[key].get(grant.no) != told:
            raise ViolationError(
                "I3", f"{key} heard {grant}, but {grant.no} was stored as {self._numbers[key].get(grant.no)}"
            )
        if self._heard[key].get(grant.no, told) != told:
            raise ViolationError("numbers", f"{key} heard {grant} and before {self._heard[key][grant.no]}")
        self._heard[key][grant.no] = told
        at = (key.job, key.incarnation, grant.stream)
        self._frontier[at] = max(self._frontier[at], grant.n + grant.length)

    def began(self, key: RankKey, stream: Stream, n: int) -> None:
        """A rank's device begins an operation."""
        circuits = self._cablings[key.job].circuits(stream)
        for circuit in circuits:
            if not self._is_lit(circuit) and not self._is_hurt(circuit):
                raise ViolationError("I1", f"{key} begins {stream}#{n} over {circuit.id}, which is dark")
        self._active[key, stream, n] = circuits

    def finished(self, key: RankKey, stream: Stream, n: int) -> None:
        """An operation has ended on a rank's device."""
        self._active.pop((key, stream, n), None)
        self._finished[key, stream] = n + 1
        self._let_go(key, stream)

    def _let_go(self, key: RankKey, stream: Stream) -> None:
        """Whoever has finished a run to its end holds it no more."""
        for run, holders in self._holders.items():
            if run[:3] == (key.job, key.incarnation, stream) and (
                run[3] + self._lengths.get(run, 1) <= self._finished[key, stream]
            ):
                holders.discard(key.rank)

    def stopped(self, key: RankKey) -> None:
        """A rank's device work has ended for good."""
        for use in [use for use in self._active if use[0] == key]:
            del self._active[use]
        job = self._jobs.get((key.job, key.incarnation))
        if job is not None:
            job.stopped.add(key.rank)
        for run, holders in self._holders.items():
            if run[:2] == (key.job, key.incarnation):
                holders.discard(key.rank)

    @property
    def anything_hurt(self) -> bool:
        """Whether anybody else has ever changed some light."""
        return any(self._hurt.values())

    @property
    def active(self) -> int:
        """Operations under way."""
        return len(self._active)

    # --- devices

    def hurt(self, device: SimDevice, positions: set[int]) -> None:
        """Somebody or something else has changed the light of these positions."""
        self._hurt[device.name] |= positions

    def sent(self, device: SimDevice, epoch: int, add: Iterable[CrossConnect]) -> None:
        """A command leaves the controller: I6, I11. It may land after the end of that start, in its time."""
        if epoch != self._life:
            raise ViolationError(
                "I6", f"{device.name} is commanded in epoch {epoch}, start {self._life} rules"
            )
        # What the controller has read, that is: light may come late, or by itself.
        known = device.core.table & device.read
        there = [pair for pair in add if pair in known and not set(pair) & self._hurt[device.name]]
        if there:
            raise ViolationError("I11", f"{device.name} is to add {there}, which are up already")

    def commanded(self, device: SimDevice, transition: Transition) -> None:
        """A device has taken a command: I1, I2, I8, I12."""
        self.device_steps += 1
        pairs = transition.remove + transition.add
        require_owned(device, pairs, self._owned[device.name])
        self._check_traffic(device, transition)
        self._check_locks(device, transition)
        self._check_jobs(device, transition)
        # What an earlier start has sent may land within its deadline: that was decided before.
        if transition.remove and not self._began_clean and transition.epoch == self._life:
            self._check_grace(device, transition)

    def _check_traffic(self, device: SimDevice, transition: Transition) -> None:
        for (key, stream, n), circuits in self._active.items():
            for circuit in circuits:
                if circuit.switch == device.name and _takes(circuit, device, transition):
                    raise ViolationError(
                        "I1",
                        f"{device.name} {_said(transition)} takes {circuit.id} from under {key} {stream}#{n}",
                    )

    def _check_locks(self, device: SimDevice, transition: Transition) -> None:
        for run, holders in self._holders.items():
            job = self._jobs[run[:2]]
            holding = [rank for rank in holders if self._may_use(RankKey(*run[:2], rank), run)]
            for circuit in job.cabling.circuits(run[2]) if holding else ():
                if circuit.switch == device.name and _takes(circuit, device, transition):
                    raise ViolationError(
                        "I1",
                        f"{device.name} {_said(transition)} takes {circuit.id}, which {run} holds: {holding}",
                    )

    def _may_use(self, key: RankKey, run: Run) -> bool:
        """A rank that has heard its grant uses it; one that has not may hear it as long as it is heard."""
        if (run[2], run[3]) in self._heard[key].values():
            return True
        return self._now() - self._spoke[key] <= self.lease_s

    def _check_jobs(self, device: SimDevice, transition: Transition) -> None:
        running = {k: j for k, j in self._jobs.items() if j.running}
        for pair in transition.add:
            owners = {
                key
                for key, job in running.items()
                if set(pair) & job.cabling.positions.get(device.name, set())
            }
            if len(owners) > 1:
                raise ViolationError("I8", f"{device.name}: {pair} joins ports of {owners}")

    def _check_grace(self, device: SimDevice, transition: Transition) -> None:
        touched = {position for pair in transition.remove for position in pair}
        for key, job in self._jobs.items():
            if not job.running or job.started_by == self._life:
                continue
            if touched & job.cabling.positions.get(device.name, set()):
                missing = job.cabling.ranks - job.asserted - job.stopped - job.left
                missing = {
                    rank for rank in missing if self._now() - self._spoke[RankKey(*key, rank)] <= self.lease_s
                }
                if missing:
                    raise ViolationError(
                        "I12",
                        f"{device.name} {_said(transition)} removes before ranks {sorted(missing)} of {key} "
                        f"have spoken to start {self._life}",
                    )

    # --- checks of commits

    def _job_started(self, change: ch.JobStarted) -> None:
        if change.incarnation <= self._incarnations[change.job]:
            raise ViolationError("I7", f"{change.job} starts as incarnation {change.incarnation} again")
        self._incarnations[change.job] = change.incarnation
        for (name, _), job in self._jobs.items():
            if name == change.job:
                job.running = False
        self._jobs[change.job, change.incarnation] = _Job(self._cablings[change.job], self._life)

    def _run_granted(self, change: ch.RunGranted) -> None:
        run = (change.job, change.incarnation, change.stream, change.n)
        job = self._jobs[run[:2]]
        ranks = job.cabling.participants(change.stream)
        if sorted(rank for rank, _ in change.locks) != sorted(ranks) and not self.has_lost_commits:
            raise ViolationError("I5", f"{run} is granted to {change.locks}")
        for rank in ranks:
            key = RankKey(*run[:2], rank)
            if self._arrived[key, change.stream] <= change.n:
                raise ViolationError("I5", f"{run} is granted, but rank {rank} has not arrived")
        self._check_order(run, change)
        self._granted[run[:3]] = change.n + change.length
        self.granted_runs += 1
        holders = set()
        for rank, no in change.locks:
            key = RankKey(*run[:2], rank)
            known = self._heard[key].get(no)
            if known is not None and known != (change.stream, change.n):
                raise ViolationError(
                    "numbers", f"{key}: grant {no} was {known}, now {change.stream}#{change.n}"
                )
            if no != self._last_number[key] + 1 and not self.has_lost_commits:
                raise ViolationError("numbers", f"{key}: grant {no} after {self._last_number[key]}")
            self._last_number[key] = no
            self._numbers[key][no] = (change.stream, change.n)
            if self._finished[key, change.stream] < change.n + change.length and rank not in job.stopped:
                holders.add(rank)
        self._lengths[run] = change.length
        self._check_conflicts(run, holders)
        self._check_kept(run, set(ranks), holders)
        self._holders[run] = holders
        for circuit in job.cabling.circuits(change.stream):
            if not self._is_lit(circuit) and not self._is_hurt(circuit):
                raise ViolationError("I4", f"{run} is granted, but {circuit.id} is dark")
        self._move(run, "granted")

    def _run_cut(self, change: ch.RunCut) -> None:
        """A run ends earlier; not before anything that a device has begun of it."""
        run = (change.job, change.incarnation, change.stream, change.n)
        if not 1 <= change.length <= self._lengths[run]:
            raise ViolationError("cut", f"{run} of {self._lengths[run]} operations is cut to {change.length}")
        self.runs["run cut"] += 1
        self.runs["run cut short"] += change.length < self._lengths[run]
        self._cut_from[run] = self._lengths[run]
        self._lengths[run] = change.length
        self._granted[run[:3]] = change.n + change.length
        for rank in list(self._holders.get(run, ())):
            self._let_go(RankKey(*run[:2], rank), change.stream)
        for key, stream, n in self._active:
            if (key.job, key.incarnation, stream) == run[:3] and n >= change.n + change.length:
                raise ViolationError("cut", f"{key} has issued {stream}#{n}, and {run} ends before it")

    def _check_kept(self, run: Run, ranks: set[int], holders: set[int]) -> None:
        """C7: whoever holds a run of several operations gets no other grant, unless it is being cut."""
        self.runs["run of several operations"] += self._lengths[run] > 1
        for other, held in self._holders.items():
            if other == run or other[:2] != run[:2] or other in self._cut_from or not held or not holders:
                continue
            members = set(self._jobs[run[:2]].cabling.participants(other[2]))
            using = [rank for rank in held if self._may_use(RankKey(*other[:2], rank), other)]
            if self._lengths.get(other, 1) > 1 and using and members & ranks:
                raise ViolationError("C7", f"{run} is granted to {ranks}, while {using} hold {other}")

    def _check_order(self, run: Run, change: ch.RunGranted) -> None:
        wanted = self._granted[run[:3]]
        if self.has_lost_commits:
            # Marks were lost: ranks prove how far it was, and nothing that all have finished comes again.
            job = self._jobs[run[:2]]
            done = [self._finished[RankKey(*run[:2], r), run[2]] for r in job.cabling.participants(run[2])]
            if change.n + change.length <= min(done):
                raise ViolationError("I7", f"{run} is granted again, all have finished it")
        elif change.n != wanted:
            raise ViolationError("I7", f"{run} is granted, but {wanted} is next")

    def _check_conflicts(self, run: Run, holders: set[int]) -> None:
        circuits = self._jobs[run[:2]].cabling.circuits(run[2])
        taken = {terminal: circuit.id for circuit in circuits for terminal in circuit.terminals}
        for other, held in self._holders.items():
            if other == run or not held or not holders:
                continue
            using = [rank for rank in held if self._may_use(RankKey(*other[:2], rank), other)]
            for circuit in self._jobs[other[:2]].cabling.circuits(other[2]) if using else ():
                if any(taken.get(t, circuit.id) != circuit.id for t in circuit.terminals):
                    raise ViolationError("I1", f"{run} is granted while {other} is held by {using}")

    def _locks_released(self, change: ch.LocksReleased) -> None:
        """A rank's lock goes once it has finished, or is known to have stopped."""
        for rank in change.ranks:
            key = RankKey(change.job, change.incarnation, rank)
            job = self._jobs[change.job, change.incarnation]
            done = self._finished[key, change.stream] >= change.n + change.length
            if done or rank in job.stopped or self._incarnations[change.job] > change.incarnation:
                continue
            run = (change.job, change.incarnation, change.stream, change.n)
            if self._may_use(key, run):
                raise ViolationError(
                    "I1", f"the lock of {key} on {change.stream}#{change.n} goes, it holds it"
                )

    def _move(self, run: Run, to: str) -> None:
        known = self._intents.get(run, "")
        allowed = INTENT_STEPS[known]
        if to not in allowed and not self.has_lost_commits:
            raise ViolationError("I9", f"intent {run} goes from {known or 'nothing'} to {to}")
        self._intents[run] = str(to)

    def _step(self, step: int, to: str) -> None:
        known = self._steps.get(step, "")
        # The start of a step is written with the next batch: a crash may lose it, never its plan.
        allowed = STEP_STEPS[known] | (STEP_STEPS["started"] if known == "planned" else set())
        if to not in allowed and not self.has_lost_commits:
            raise ViolationError("I9", f"step {step} goes from {known or 'nothing'} to {to}")
        self._steps[step] = str(to)

    def _is_lit(self, circuit: Circuit) -> bool:
        device = self._devices[circuit.switch].core
        if any(terminal in device.moving for terminal in circuit.terminals):
            return False
        return all(device.is_lit(pair) for pair in circuit.cross_connects)

    def _is_hurt(self, circuit: Circuit) -> bool:
        hurt = self._hurt[circuit.switch]
        return bool(hurt) and any(terminal.position in hurt for terminal in circuit.terminals)

    def after_step(self) -> None:
        """I2, as the devices see it."""
        for device in self._devices.values():
            if device.core.revision == self._checked.get(device.name):
                continue
            self._checked[device.name] = device.core.revision
            used = [t for pair in device.core.table for t in device.core.switch.terminals_of(pair)]
            if len(set(used)) < len(used):
                raise ViolationError("I2", f"{device.name} holds {sorted(device.core.table)}")

    def held(self) -> list[str]:
        """Runs that somebody still holds, for people."""
        return [f"{run}: {sorted(holders)}" for run, holders in self._holders.items() if holders]


def _takes(circuit: Circuit, device: SimDevice, transition: Transition) -> bool:
    """Whether a command takes light from a circuit; making again what it lost is none of that."""
    own = set(circuit.cross_connects)
    if set(transition.remove) & own:
        return True
    if own <= (device.core.table - set(transition.remove)) | set(transition.add):
        return False
    strange = {
        terminal
        for pair in (*transition.remove, *transition.add)
        if pair not in own
        for terminal in device.core.switch.terminals_of(pair)
    }
    return not strange.isdisjoint(circuit.terminals)


def _said(transition: Transition) -> str:
    removed, added = list(map(tuple, transition.remove)), list(map(tuple, transition.add))
    return f"(epoch {transition.epoch}: remove {removed}, add {added})"
