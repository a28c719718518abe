"""What must be true of a run of the self-test, from the controller's history and from the witness's report.

Each check can fail on its own: a controller that grants early, that re-points what is used, or that moves
mirrors for nothing does not pass. The history alone would be the controller's word for it; what the witness
saw, and what the ranks measured, is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from opus_sdn.selftest.scenario import CHANGES, DARK, DELAY_MS, JOB, OPERATIONS, PHASES, RAIL, Phase

TIMER_MS = 1.0

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that has to be true, whether it was, and what was seen."""

    name: str
    ok: bool
    seen: str


@dataclass(frozen=True, slots=True)
class Step:
    """One device step of the history: event numbers of its start and end, and the operations it was for."""

    number: int
    started: int
    done: int | None
    operations: frozenset[str]


@dataclass(frozen=True, slots=True)
class History:
    """The event history of a run, by what happened."""

    steps: tuple[Step, ...]
    granted: Mapping[str, int]  # operation -> event number
    released: Mapping[str, int]
    topologies: tuple[str, ...]
    newest: int

    @classmethod
    def of(cls, events: Iterable[Event], incarnation: int) -> History:
        """Sort the events of one incarnation of the job; device steps belong to it by their causes."""
        prefix = f"{JOB}/{incarnation}/"
        planned: dict[int, frozenset[str]] = {}
        started: dict[int, int] = {}
        done: dict[int, int] = {}
        granted: dict[str, int] = {}
        released: dict[str, int] = {}
        topologies: list[str] = []
        newest = 0
        for event in events:
            kind, seq, data = event["kind"], int(event["seq"]), event["data"]
            newest = max(newest, seq)
            if kind == "step.planned":
                causes = (str(cause) for cause in data["causes"])
                planned[data["step"]] = frozenset(
                    c.removeprefix(prefix) for c in causes if c.startswith(prefix)
                )
            elif kind == "step.started":
                started[data["step"]] = seq
            elif kind == "step.done":
                done[data["step"]] = seq
            elif kind == "intent.granted":
                granted[_key(data)] = seq
            elif kind == "intent.released":
                released[_key(data)] = seq
            elif kind == "topology.changed" and event["rail"] == RAIL:
                topologies.append(str(data["new"]))
        steps = tuple(
            Step(number, seq, done.get(number), planned.get(number, frozenset()))
            for number, seq in sorted(started.items())
        )
        return cls(steps, granted, released, tuple(topologies), newest)

    def steps_for(self, phase: Phase) -> tuple[Step, ...]:
        """The device steps that a phase caused."""
        keys = {operation.key for operation in phase.operations}
        return tuple(step for step in self.steps if step.operations & keys)


def check_all(
    history: History,
    waits_ms: Mapping[str, Sequence[float]],
    topologies: Sequence[str],
    report: Mapping[str, Any],
    job: Mapping[str, Any],
    locks_left: int,
) -> tuple[Check, ...]:
    """Every check, in the order in which people read them.

    `waits_ms`: operation -> what each of its ranks waited; `topologies`: the id after each round, the first
    one before any; `report`: the witness's; `job`: the job after its ranks have left.
    """
    return (
        _grants_came_after_the_change(history),
        _ranks_waited_for_the_light(waits_ms),
        _four_changes(history),
        _no_needless_change(history),
        _nothing_was_cut(history),
        _topologies(topologies, history),
        _witness(report),
        _left(job, locks_left),
    )


def _grants_came_after_the_change(history: History) -> Check:
    missing = [operation.key for operation in OPERATIONS if operation.key not in history.granted]
    early = [
        f"{key} (step {step.number})"
        for step in history.steps
        for key in sorted(step.operations)
        if step.done is None or history.granted.get(key, 0) < step.done
    ]
    seen = f"{len(OPERATIONS) - len(missing)} operations granted, {len(early)} before the switch showed it"
    if early or missing:
        seen += f": {', '.join(early)}" if early else f"; never granted: {', '.join(missing)}"
    return Check("every grant came after the change", not early and not missing, seen)


def _ranks_waited_for_the_light(waits_ms: Mapping[str, Sequence[float]]) -> Check:
    """The ranks' own clocks: no grant of a change is faster than the optics, whose timer counts in ms."""
    keys = [operation.key for phase in PHASES if phase.changes for operation in phase.operations]
    least = min(min(waits_ms.get(key) or [0.0]) for key in keys)
    seen = f"at least {least:.1f} ms until the grant, by the ranks' own clocks"
    return Check(
        f"changes took at least the {DELAY_MS:g} ms of the optics", least >= DELAY_MS - TIMER_MS, seen
    )


def _four_changes(history: History) -> Check:
    changing = [phase for phase in PHASES if phase.changes]
    without = [phase.title for phase in changing if not history.steps_for(phase)]
    unfinished = [step.number for step in history.steps if step.done is None]
    strange = [step.number for step in history.steps if not step.operations]
    made = len(changing) - len(without)
    seen = f"{made} changes in {len(history.steps)} device operations"
    if unfinished or strange:
        seen += f"; device operations that did not end well or that nobody asked for: {unfinished + strange}"
    ok = made == CHANGES and not (unfinished or strange)
    return Check(f"exactly {CHANGES} changes touched the switch", ok, seen)


def _no_needless_change(history: History) -> Check:
    repeats = [phase for phase in PHASES if not phase.changes]
    steps = [step.number for phase in repeats for step in history.steps_for(phase)]
    seen = f"{len(repeats)} repeated uses, {len(steps)} device operations for them"
    return Check("repeated use of what is up causes no change", not steps, seen)


def _nothing_was_cut(history: History) -> Check:
    """A change starts only when the operations of the phase before, on the ports it takes, are released."""
    cut = []
    for before, after in pairwise(PHASES):
        for step in history.steps_for(after) if after.changes else ():
            ranks = {r for o in after.operations if o.key in step.operations for r in o.ranks}
            for operation in before.operations:
                # Right of ranks 0 and left of rank 3 are what both dimensions want.
                taken = ranks & set(operation.ranks) & {0, 3}
                released = history.released.get(operation.key)
                if taken and (released is None or released > step.started):
                    cut.append(f"{operation.key} by step {step.number}")
    seen = "every change waited for the releases" if not cut else f"cut: {', '.join(cut)}"
    return Check("no circuit was taken from a running operation", not cut, seen)


def _topologies(topologies: Sequence[str], history: History) -> Check:
    ends = [DARK, *(phase.topology for phase in PHASES if phase.changes)]
    found = [topology for at, topology in enumerate(topologies) if not at or topologies[at - 1] != topology]
    unknown = sorted(set("".join(history.topologies)) - set("01x-"))
    seen = " ".join(found) + (f"; unknown digits {unknown}" if unknown else "")
    return Check(f"topology ids went {' '.join(ends)}", found == ends and not unknown, seen)


def _witness(report: Mapping[str, Any]) -> Check:
    violations = report.get("violations") or []
    wanted = sum(len(operation.ranks) for operation in OPERATIONS)
    operations, active = report.get("operations"), report.get("active")
    ok = not violations and operations == wanted and active == 0
    seen = f"{len(violations)} violations in {operations} operations" + (
        f", {active} unfinished" if active else ""
    )
    if violations:
        seen += f"; the first: {violations[0].get('detail')}"
    elif operations != wanted:
        seen += f", of which there were {wanted}"
    return Check("the traffic witness saw no violation", ok, seen)


def _left(job: Mapping[str, Any], locks_left: int) -> Check:
    ok = job.get("state") == "ended" and locks_left == 0
    return Check("the job ended and holds nothing", ok, f"job {job.get('state')}, {locks_left} locks")


def _key(data: Mapping[str, Any]) -> str:
    direction = f"[{data['source']}>{data['destination']}]" if data.get("source") is not None else ""
    return f"{data['connection']}{direction}#{data['n']}"
