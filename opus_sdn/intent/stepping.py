"""Device steps: planned from what all jobs wait for, started by one atomic re-check, settled by a read-back.

Between planning and starting, the plan is written to disk and other things happen. So starting checks again,
together with the lock table, that the step removes nothing live and nothing that a complete intent ordered
before its causes has up; only then do its ports become `moving`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from opus_sdn.intent import drift, setbacks
from opus_sdn.intent.causes import (
    Cause,
    Causes,
    causes_of,
    circuits_of,
    jobs_of,
    live_against,
    wants_on,
)
from opus_sdn.intent.changes import IntentState, StepMoved, StepPlanned, StepState
from opus_sdn.intent.checker import Violation, check_step
from opus_sdn.intent.fabric import Circuit, CrossConnect, Terminal
from opus_sdn.intent.hints import HintedMoves, drop_hints, spend
from opus_sdn.intent.job import JobCore, Seed
from opus_sdn.intent.moves import record_move
from opus_sdn.intent.planner import Plan, SwitchFacts, Want, plan
from opus_sdn.intent.reasons import Because, Reason
from opus_sdn.intent.recheck import why_not_start
from opus_sdn.intent.seeding import without
from opus_sdn.intent.stalling import note
from opus_sdn.intent.standing import Drain, ManualCircuit
from opus_sdn.intent.state import CoreState, note_owner, step_event
from opus_sdn.intent.streams import Intent
from opus_sdn.intent.switches import FailureKind, Step, SwitchState
from opus_sdn.intent.transitions import note_begun, note_ended


def plan_switch(state: CoreState, now: float, switch: SwitchState) -> list[int]:
    """Plan what waits on this switch: one step for all, and one for each group of suspects."""
    wants, causes = wants_on(state, switch.switch.name)
    setbacks.keep_to(switch, causes)
    unusable = drift.why_unusable(switch)
    if unusable is not None:
        for want in wants:
            if not all(state.is_up(circuit) for circuit in want.circuits):
                _note(state, now, causes, want.key, unusable)
        return []
    pausing = {want.key for want in wants if setbacks.parked(now, switch, want.key)}
    # One that pauses keeps its place and its ports, unless it is stalled.
    wants = [want for want in wants if want.key not in pausing or not want.yields]
    switch.retry_at = _next_pause_end(now, switch)
    going = [want for want in wants if want.key not in pausing]
    told = [want for want in going if causes[want.key][0] is None]
    asked = [want for want in going if causes[want.key][0] is not None]
    return [
        step
        for chosen in (*setbacks.groups(switch, told), *setbacks.groups(switch, asked))
        for step in _plan_together(state, now, switch, wants, causes, chosen)
    ]


def _next_pause_end(now: float, switch: SwitchState) -> float | None:
    ends = [setback.until for setback in switch.setbacks.values()]
    ends += [rival.held_until for rival in switch.rivals.values()]
    return min((end for end in ends if end > now), default=None)


def _plan_together(
    state: CoreState,
    now: float,
    switch: SwitchState,
    wants: Sequence[Want],
    causes: Causes,
    chosen: Collection[str],
) -> list[int]:
    """One step for the chosen wants, if anything can move.

    Should the checker object, each job is planned for itself, so that one job's fault does not stop others.
    """
    live = live_against(state, [causes[key][1] for key in chosen])
    made = plan(facts_of(state, now, switch, live), wants, chosen)
    _forget_reasons(causes, chosen)
    for blocked in made.blocked:
        _note(state, now, causes, blocked.key, blocked.because)
    if not made.causes:
        return []
    violations = _violations(state, switch, made, causes)
    if not violations:
        return [_take(state, now, switch, made, causes)]
    if not jobs_of(causes, made.causes):
        _refuse(state, now, switch, None, made, causes, violations)
    return [
        step
        for job in jobs_of(causes, made.causes)
        if (step := _plan_for_one(state, now, switch, job, wants, causes, chosen)) is not None
    ]


def _plan_for_one(
    state: CoreState,
    now: float,
    switch: SwitchState,
    job: JobCore,
    wants: Iterable[Want],
    causes: Causes,
    chosen: Collection[str],
) -> int | None:
    its = [want for want in wants if causes[want.key][0] is job]
    made = plan(facts_of(state, now, switch, state.live_circuit), its, chosen)
    violations = _violations(state, switch, made, causes)
    if not violations:
        return _take(state, now, switch, made, causes)
    _refuse(state, now, switch, job, made, causes, violations)
    job.seed = None if any(isinstance(causes[key][1], Seed) for key in made.causes) else job.seed
    if any(isinstance(causes[key][1], HintedMoves) for key in made.causes):
        drop_hints(job, switch.switch.name)
    return None


def _refuse(
    state: CoreState,
    now: float,
    switch: SwitchState,
    job: JobCore | None,
    made: Plan,
    causes: Causes,
    violations: Iterable[Violation],
) -> None:
    """A plan would break an invariant: a bug, told as an event and to whoever waits for it."""
    found = [f"{violation.invariant}: {violation.detail}" for violation in violations]
    state.ledger.event("plan.refused", job, switch=switch.switch.name, violations=found)
    because = Because(Reason.PLAN_REFUSED, f"its plan would break {found[0]}", {"violations": found})
    for key in made.causes:
        _note(state, now, causes, key, because)


def _note(state: CoreState, now: float, causes: Causes, key: str, because: Because) -> None:
    job, cause = causes[key]
    if isinstance(cause, Drain | ManualCircuit):
        cause.because = because
    elif isinstance(cause, Intent) and job is not None:
        note(state, now, job, cause, because)


def _forget_reasons(causes: Causes, keys: Iterable[str]) -> None:
    """Whatever still stands in an operator's way is about to be said again."""
    for key in keys:
        cause = causes[key][1]
        if isinstance(cause, Drain | ManualCircuit):
            cause.because = None


def _violations(state: CoreState, switch: SwitchState, made: Plan, causes: Causes) -> tuple[Violation, ...]:
    owner = jobs_of(causes, made.causes)
    return check_step(
        switch.switch,
        switch.matching,
        made.remove,
        made.add,
        live_against(state, [causes[key][1] for key in made.causes]),
        switch.busy,
        state.fabric.positions(made.switch),
        lambda terminal: not owner or any(terminal in job.terminals for job in owner),
        drift.kept_pairs(state, switch),
    )


def _take(state: CoreState, now: float, switch: SwitchState, made: Plan, causes: Causes) -> int:
    """Make a step of a plan that has been checked."""
    owner = jobs_of(causes, made.causes)
    step = Step(
        state.next_step,
        made.switch,
        made.generation,
        made.remove,
        made.add,
        made.causes,
        disturbed_by(state, made.switch, made.remove),
        (owner[0].spec.name, owner[0].incarnation) if len(owner) == 1 else None,
        _hinted_in(made, causes),
    )
    state.next_step += 1
    switch.plan_step(step)
    _record_plan(state, step)
    for key in made.causes:
        job, intent = causes[key]
        if job is None:
            continue
        if isinstance(intent, HintedMoves):
            for circuit in intent.connections.keys() & set(step.hinted):
                job.owners[circuit.id] = job.digit(intent.connections[circuit])
        if isinstance(intent, Intent):
            own_missing(state, job, intent)
            note(state, now, job, intent, _switching(intent.because, step))
            if intent.state is IntentState.COMPLETE:
                intent.move(IntentState.INSTALLING)
                record_move(state, job, intent, "intent.installing", because=intent.because)
    return step.id


def _hinted_in(made: Plan, causes: Causes) -> tuple[Circuit, ...]:
    """Circuits of a plan that nobody but a hint asks for."""
    found: dict[Circuit, None] = {}
    needed: set[Circuit] = set()
    for key in made.causes:
        cause = causes[key][1]
        if isinstance(cause, HintedMoves):
            found.update(dict.fromkeys(c for c in cause.circuits if set(c.cross_connects) & set(made.add)))
        else:
            needed.update(circuits_of(cause))
    return tuple(circuit for circuit in found if circuit not in needed)


def _switching(before: Because | None, step: Step) -> Because:
    """The reason while a step is on its way; what the switch said to the one before is not forgotten."""
    if before is None or before.reason is not Reason.SWITCH_FAILED:
        return Because(Reason.SWITCHING, f"step {step.id} makes its circuits", {"step": step.id})
    said = str(before.data["said"])
    return Because(
        Reason.SWITCH_FAILED, f"{said}; tried again as step {step.id}", {"step": step.id, "said": said}
    )


def facts_of(
    state: CoreState, now: float, switch: SwitchState, live: Mapping[Terminal, Circuit]
) -> SwitchFacts:
    """What planning may assume now; planned steps count as moving so that nothing is planned twice."""
    return SwitchFacts(
        switch.switch,
        switch.generation,
        switch.holder,
        switch.busy,
        live,
        state.fabric.positions(switch.switch.name),
        state.graced,
        drift.kept_pairs(state, switch),
        drift.held_off(now, switch),
        switch.dark,
        {**state.barred, **state.shut} if state.shut else state.barred,
    )


def own_missing(state: CoreState, job: JobCore, intent: Intent) -> None:
    """Circuits that a step is about to make count for the intent's dimension from the moment they are up."""
    missing = [circuit for circuit in intent.connection.circuits if not state.is_up(circuit)]
    note_owner(state, job, missing, job.digit(intent.connection))


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
            for job, _, cause in causes_of(state, step):
                if job is None:
                    continue
                if isinstance(cause, Seed):
                    job.seed = without(cause, step)
                    continue
                if isinstance(cause, HintedMoves):
                    for circuit in cause.circuits:
                        spend(job, circuit)
                if isinstance(cause, Intent | HintedMoves):
                    note_begun(state, now, step, circuits_of(cause))
                needing[job.spec.name] = job
            for job in needing.values():
                job.device_steps += 1
            return step
        _finish(state, now, switch, step, StepState.DROPPED, objection)
    return None


def settle_step(
    state: CoreState,
    now: float,
    step_id: int,
    ok: bool,
    detail: str | None,
    matching: frozenset[CrossConnect],
    kind: FailureKind = FailureKind.TERMINAL,
    failed: Mapping[CrossConnect, str] | None = None,
    dark: Mapping[CrossConnect, str] | None = None,
) -> None:
    """The device answered and was read back: the step is done only if the device shows all of it.

    `kind` of the failure, if `ok` is not true; `failed`: pairs that the device named as failed, and why. A
    pair that is there and `dark` was made; that no light passes is no failure of the step.
    """
    for switch in state.switches.values():
        progress = switch.progress.get(step_id)
        if progress is None:
            continue
        step = progress.step
        missing = [p for p in step.add if p not in matching]
        stayed = [p for p in step.remove if p in matching and p not in step.add]
        if ok and (missing or stayed):
            detail = f"the device says done but shows otherwise: missing {missing}, still there {stayed}"
            kind = FailureKind.MISMATCH
        if ok and not missing and not stayed:
            _finish(state, now, switch, step, StepState.DONE, detail, matching, dark)
        else:
            _finish(state, now, switch, step, StepState.FAILED, detail, matching, dark, kind, failed)


def _finish(
    state: CoreState,
    now: float,
    switch: SwitchState,
    step: Step,
    outcome: StepState,
    detail: str | None,
    matching: frozenset[CrossConnect] | None = None,
    dark: Mapping[CrossConnect, str] | None = None,
    kind: FailureKind | None = None,
    failed: Mapping[CrossConnect, str] | None = None,
) -> None:
    """Record how a step ended, take over what was read, and look again at everything that waits there."""
    waiting = causes_of(state, step)
    switch.finish(step, outcome)
    note_ended(state, now, step, done=outcome is StepState.DONE)
    state.ledger.add(StepMoved(step.id, step.switch, outcome, detail))
    state.ledger.add(step_event(f"step.{outcome.value}", step, detail=detail))
    if matching is not None:
        drift.take_observation(state, now, switch, matching, dark, step.remove + step.add)
    if kind is not None:
        setbacks.blame(state.settings, now, switch, step, waiting, kind, failed or {})
    elif outcome is StepState.DONE:
        setbacks.forgive(switch, step.causes)
    if outcome is not StepState.DONE:
        _give_back(state, now, switch, step, waiting, f"step {step.id} {outcome.value}: {detail}", kind)
    for job in state.active.values():
        if job.waiting or job.seed is not None:
            state.touch(job)
    state.dirty_switches[step.switch] = None


def _give_back(
    state: CoreState,
    now: float,
    switch: SwitchState,
    step: Step,
    waiting: Iterable[tuple[JobCore | None, str, Cause]],
    said: str,
    kind: FailureKind | None,
) -> None:
    """The step's intents wait again, each with what was said and, if it pauses, until when."""
    for job, key, cause in waiting:
        if not isinstance(cause, Intent) or job is None:
            continue
        data: dict[str, object] = {"step": step.id, "said": said, "switch": step.switch}
        setback = switch.setbacks.get(key)
        detail = said
        if setback is not None and setback.until > now:
            data |= {"times": setback.times, "retry_at": setback.until}
            detail += f"; made again after a pause of {setback.until - now:g} s"
        reason = Reason.SWITCHING if kind is None else Reason.SWITCH_FAILED
        note(state, now, job, cause, Because(reason, detail, data))
        if cause.state is IntentState.INSTALLING:
            cause.move(IntentState.COMPLETE)
            record_move(state, job, cause, "intent.complete", because=cause.because)
