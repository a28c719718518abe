"""Device steps: planned from what all jobs wait for, started by one atomic re-check, settled by a read-back.

Between planning and starting, the plan is written to disk and other things happen. So starting checks again,
together with the lock table, that the step removes nothing live and nothing that a complete intent ordered
before its causes has up; only then do its ports become `moving`.
"""

from __future__ import annotations

from collections.abc import Iterable

from opus_sdn.intent.changes import (
    CircuitsObserved,
    IntentState,
    StepMoved,
    StepPlanned,
    StepState,
)
from opus_sdn.intent.checker import Violation, check_step
from opus_sdn.intent.fabric import Circuit, CrossConnect, Terminal
from opus_sdn.intent.job import JobCore, Seed
from opus_sdn.intent.order import in_order
from opus_sdn.intent.planner import Plan, SwitchFacts, Want, in_grace, plan
from opus_sdn.intent.reasons import Because, Reason
from opus_sdn.intent.serving import record_move
from opus_sdn.intent.state import CoreState, step_event
from opus_sdn.intent.streams import Intent
from opus_sdn.intent.switches import Step, SwitchState

SEED = "initial-topology"

Causes = dict[str, tuple[JobCore, Intent | Seed]]


def plan_switch(state: CoreState, switch: SwitchState) -> list[int]:
    """Plan one step for everything that waits on this switch; its id, or nothing when nothing can move.

    Should the checker object, each job is planned for itself, so that one job's fault does not stop others.
    """
    wants, causes = _wants_on(state, switch.switch.name)
    made = plan(facts_of(state, switch), wants)
    _explain(made, causes)
    if not made.causes:
        return []
    if not _violations(state, switch, made, causes):
        return [_take(state, switch, made, causes)]
    return [
        step
        for job in _jobs_of(causes, made.causes)
        if (step := _plan_for_one(state, switch, job, wants, causes)) is not None
    ]


def _plan_for_one(
    state: CoreState, switch: SwitchState, job: JobCore, wants: Iterable[Want], causes: Causes
) -> int | None:
    made = plan(facts_of(state, switch), [want for want in wants if causes[want.key][0] is job])
    violations = _violations(state, switch, made, causes)
    if not violations:
        return _take(state, switch, made, causes)
    found = [f"{violation.invariant}: {violation.detail}" for violation in violations]
    state.ledger.event("plan.refused", job, switch=switch.switch.name, violations=found)
    for key in made.causes:
        cause = causes[key][1]
        if isinstance(cause, Intent):
            cause.because = Because(
                Reason.PLAN_REFUSED, f"its plan would break {found[0]}", {"violations": found}
            )
        else:
            job.seed = None
    return None


def _violations(state: CoreState, switch: SwitchState, made: Plan, causes: Causes) -> tuple[Violation, ...]:
    owner = _jobs_of(causes, made.causes)
    return check_step(
        switch.switch,
        switch.matching,
        made.remove,
        made.add,
        state.live,
        switch.busy,
        state.fabric.positions(made.switch),
        lambda terminal: any(terminal in job.terminals for job in owner),
    )


def _take(state: CoreState, switch: SwitchState, made: Plan, causes: Causes) -> int:
    """Make a step of a plan that has been checked."""
    owner = _jobs_of(causes, made.causes)
    step = Step(
        state.next_step,
        made.switch,
        made.generation,
        made.remove,
        made.add,
        made.causes,
        disturbed_by(state, made.switch, made.remove),
        (owner[0].spec.name, owner[0].incarnation) if len(owner) == 1 else None,
    )
    state.next_step += 1
    switch.plan_step(step)
    _record_plan(state, step)
    for key in made.causes:
        job, intent = causes[key]
        own_missing(state, job, intent)
        if isinstance(intent, Intent):
            intent.because = _switching(intent.because, step)
            if intent.state is IntentState.COMPLETE:
                intent.move(IntentState.INSTALLING)
                record_move(state, job, intent, "intent.installing", because=intent.because)
    return step.id


def _switching(before: Because | None, step: Step) -> Because:
    """The reason while a step is on its way; what the switch said to the one before is not forgotten."""
    if before is None or before.reason is not Reason.SWITCH_FAILED:
        return Because(Reason.SWITCHING, f"step {step.id} makes its circuits", {"step": step.id})
    said = str(before.data["said"])
    return Because(
        Reason.SWITCH_FAILED, f"{said}; tried again as step {step.id}", {"step": step.id, "said": said}
    )


def facts_of(state: CoreState, switch: SwitchState) -> SwitchFacts:
    """What planning may assume now; planned steps count as moving so that nothing is planned twice."""
    owned = state.fabric.positions(switch.switch.name)
    return SwitchFacts(
        switch.switch, switch.generation, switch.holder, switch.busy, state.live, owned, state.graced
    )


def _wants_on(state: CoreState, switch: str) -> tuple[list[Want], Causes]:
    """Wants in their jobs' serving order, seeds last. Jobs have disjoint ports: their order is free."""
    wants: list[Want] = []
    seeds: list[Want] = []
    causes: Causes = {}
    for job in state.active.values():
        for intent in job.waiting:
            _add_want(wants, causes, switch, job, intent.key, intent, intent.connection.circuits)
        if job.seed is not None:
            clear = tuple(pair for at, pair in job.seed.leftovers if at == switch)
            _add_want(seeds, causes, switch, job, SEED, job.seed, job.seed.circuits, clear)
    return wants + seeds, causes


def _add_want(
    wants: list[Want],
    causes: Causes,
    switch: str,
    job: JobCore,
    name: str,
    cause: Intent | Seed,
    circuits: Iterable[Circuit],
    clear: tuple[CrossConnect, ...] = (),
) -> None:
    mine = tuple(circuit for circuit in circuits if circuit.switch == switch)
    if mine or clear:
        key = f"{job.spec.name}/{job.incarnation}/{name}"
        wants.append(Want(key, mine, clear))
        causes[key] = (job, cause)


def _explain(made: Plan, causes: Causes) -> None:
    for blocked in made.blocked:
        cause = causes[blocked.key][1]
        if isinstance(cause, Intent):
            cause.because = blocked.because


def _jobs_of(causes: Causes, keys: Iterable[str]) -> list[JobCore]:
    jobs = {id(causes[key][0]): causes[key][0] for key in keys}
    return list(jobs.values())


def own_missing(state: CoreState, job: JobCore, cause: Intent | Seed) -> None:
    """Circuits that a step is about to make count for the cause's dimension from the moment they are up."""
    if isinstance(cause, Intent):
        digit = job.digit(cause.connection)
        for circuit in cause.connection.circuits:
            if not state.is_up(circuit):
                job.owners[circuit.id] = digit


def disturbed_by(state: CoreState, switch: str, remove: Iterable[CrossConnect]) -> tuple[str, ...]:
    """Circuits that lose a cross-connect; pairs that are no circuit of ours are named by position."""
    names: dict[str, None] = {}
    for pair in remove:
        circuit = state.fabric.circuit_of(switch, pair)
        names[circuit.id if circuit else f"{switch} {pair.ingress}->{pair.egress}"] = None
    return tuple(names)


def _record_plan(state: CoreState, step: Step) -> None:
    state.ledger.add(
        StepPlanned(
            step.id, step.switch, step.generation, step.remove, step.add, step.causes, step.disturbed
        ),
        durable=True,
    )
    state.ledger.add(
        step_event(
            "step.planned",
            step,
            remove=[list(pair) for pair in step.remove],
            add=[list(pair) for pair in step.add],
            causes=list(step.causes),
            disturbed=list(step.disturbed),
        )
    )


def start_step(state: CoreState, now: float, step_id: int) -> Step | None:
    """The atomic act of rule 9. None, and the step is dropped, when its reasons no longer hold."""
    for switch in state.switches.values():
        progress = switch.progress.get(step_id)
        if progress is None or progress.state is not StepState.PLANNED:
            continue
        step = progress.step
        objection = why_not_start(state, now, switch, step)
        if objection is None:
            switch.start(step)
            state.ledger.later(StepMoved(step.id, step.switch, StepState.STARTED))
            state.ledger.later(step_event("step.started", step, now))
            needing: dict[str, JobCore] = {}
            for job, cause in _causes_of(state, step):
                if isinstance(cause, Seed):
                    job.seed = _without(cause, step)
                else:
                    needing[job.spec.name] = job
            for job in needing.values():
                job.device_steps += 1
            return step
        _finish(state, switch, step, StepState.DROPPED, objection)
    return None


def _without(seed: Seed, step: Step) -> Seed | None:
    """What a seed still wants after a step: each of its circuits and leftovers is moved once."""
    circuits = tuple(
        c for c in seed.circuits if c.switch != step.switch or not set(c.cross_connects) & set(step.add)
    )
    leftovers = tuple(
        (at, pair) for at, pair in seed.leftovers if at != step.switch or pair not in step.remove
    )
    return Seed(circuits, leftovers) if circuits or leftovers else None


def why_not_start(state: CoreState, now: float, switch: SwitchState, step: Step) -> str | None:
    """What has changed since planning that forbids this step; None when it may start."""
    causes = _causes_of(state, step)
    if not causes:
        return "what it was planned for no longer waits"
    for pair in step.remove:
        if pair not in switch.matching:
            return f"{pair.ingress}->{pair.egress} is no longer there"
        for terminal in switch.switch.terminals_of(pair):
            if terminal in state.live:
                return f"{pair.ingress}->{pair.egress} carries traffic now"
            if terminal in state.graced:
                return in_grace(terminal).detail
    removed = set(step.remove)
    for terminal in switch.terminals_of_step(step):
        if terminal in switch.moving:
            return f"position {terminal.position} is moving"
        holder = switch.holder.get(terminal)
        if holder is not None and holder not in removed:
            return f"position {terminal.position} has been taken by {holder.ingress}->{holder.egress}"
    return _protected(state, now, switch, step, causes)


def _protected(
    state: CoreState, now: float, switch: SwitchState, step: Step, causes: list[tuple[JobCore, Intent | Seed]]
) -> str | None:
    """Whether a removed pair is up for a complete intent ordered before every cause of its removal."""
    for job in state.active.values():
        ordered = in_order(job.complete.values(), now, state.settings, state.is_up)
        position = {id(intent): at for at, intent in enumerate(ordered)}
        for pair in step.remove:
            terminals = set(switch.switch.terminals_of(pair))
            first_cause = min(
                (
                    position.get(id(cause), len(ordered))
                    for owner, cause in causes
                    if owner is job and _needs(cause, terminals)
                ),
                default=len(ordered),
            )
            for intent in ordered[:first_cause]:
                for circuit in intent.connection.circuits:
                    if circuit.switch == step.switch and pair in circuit.cross_connects:
                        return f"{pair.ingress}->{pair.egress} is needed by {intent.key}, which goes first"
    return None


def _needs(cause: Intent | Seed, terminals: set[Terminal]) -> bool:
    """Whether a cause wants any of these positions, on whichever side."""
    circuits = cause.connection.circuits if isinstance(cause, Intent) else cause.circuits
    positions = {(t.switch, t.position) for t in terminals}
    return any((t.switch, t.position) in positions for circuit in circuits for t in circuit.terminals)


def _causes_of(state: CoreState, step: Step) -> list[tuple[JobCore, Intent | Seed]]:
    """The step's causes that still wait."""
    found: list[tuple[JobCore, Intent | Seed]] = []
    for job in state.active.values():
        prefix = f"{job.spec.name}/{job.incarnation}/"
        waiting = {prefix + intent.key: intent for intent in job.complete.values()}
        for key in step.causes:
            intent = waiting.get(key)
            if intent is not None:
                found.append((job, intent))
            elif key == prefix + SEED and job.seed is not None:
                found.append((job, job.seed))
    return found


def settle_step(
    state: CoreState, step_id: int, ok: bool, detail: str | None, matching: frozenset[CrossConnect]
) -> None:
    """The device answered and was read back: the step is done only if the device shows all of it."""
    for switch in state.switches.values():
        progress = switch.progress.get(step_id)
        if progress is None:
            continue
        step = progress.step
        missing = [p for p in step.add if p not in matching]
        stayed = [p for p in step.remove if p in matching and p not in step.add]
        if ok and (missing or stayed):
            detail = f"the device says done but shows otherwise: missing {missing}, still there {stayed}"
        outcome = StepState.DONE if ok and not missing and not stayed else StepState.FAILED
        _finish(state, switch, step, outcome, detail, matching)


def _finish(
    state: CoreState,
    switch: SwitchState,
    step: Step,
    outcome: StepState,
    detail: str | None,
    matching: frozenset[CrossConnect] | None = None,
) -> None:
    """Record how a step ended, take over what was read, and look again at everything that waits there."""
    causes = _causes_of(state, step)
    switch.finish(step, outcome)
    state.ledger.add(StepMoved(step.id, step.switch, outcome, detail))
    state.ledger.add(step_event(f"step.{outcome.value}", step, detail=detail))
    if matching is not None:
        take_observation(state, switch, matching)
    if outcome is not StepState.DONE:
        reason = Reason.SWITCH_FAILED if outcome is StepState.FAILED else Reason.SWITCHING
        for job, intent in causes:
            if isinstance(intent, Intent) and intent.state is IntentState.INSTALLING:
                intent.move(IntentState.COMPLETE)
                said = f"step {step.id} {outcome.value}: {detail}"
                intent.because = Because(reason, said, {"step": step.id, "said": said})
                record_move(state, job, intent, "intent.complete", because=intent.because)
    for job in state.active.values():
        if job.waiting or job.seed is not None:
            state.touch(job)
    state.dirty_switches[step.switch] = None


def take_observation(state: CoreState, switch: SwitchState, matching: Iterable[CrossConnect]) -> None:
    """What the device holds now is the truth; topology ids follow."""
    if not switch.observe(matching):
        return
    name = switch.switch.name
    state.ledger.add(CircuitsObserved(name, switch.generation, tuple(sorted(switch.matching))))
    for job in state.active.values():
        rails = [rail.name for rail in state.fabric.rails if rail.switch == name and rail.name in job.rails]
        if rails and job.occupies_ports():
            state.refresh_topology(job, rails)


def seed_job(state: CoreState, job: JobCore, circuits: dict[Circuit, int]) -> None:
    """Want the initial topology; it yields to every complete intent and is tried once."""
    job.owners.update({circuit.id: digit for circuit, digit in circuits.items()})
    missing = tuple(circuit for circuit in circuits if not state.is_up(circuit))
    leftovers = _leftovers(state, job, circuits) if circuits else ()
    if missing or leftovers:
        job.seed = Seed(missing, leftovers)
        for switch in (*(circuit.switch for circuit in missing), *(at for at, _ in leftovers)):
            state.dirty_switches[switch] = None


def _leftovers(
    state: CoreState, job: JobCore, wanted: Iterable[Circuit]
) -> tuple[tuple[str, CrossConnect], ...]:
    """Cross-connects between two of the job's own ports that the topology asked for does not have."""
    kept = {(circuit.switch, pair) for circuit in wanted for pair in circuit.cross_connects}
    found: dict[tuple[str, CrossConnect], None] = {}
    for terminal in sorted(job.terminals):
        switch = state.switches[terminal.switch]
        pair = switch.holder.get(terminal)
        if pair is None or (terminal.switch, pair) in kept:
            continue
        if all(end in job.terminals for end in switch.switch.terminals_of(pair)):
            found[terminal.switch, pair] = None
    return tuple(found)
