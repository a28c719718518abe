"""Serving a job: grant what can be granted in the one order, and say why the rest waits."""

from __future__ import annotations

from opus_sdn.intent import cutting
from opus_sdn.intent.changes import IntentState, RunGranted
from opus_sdn.intent.drift import adopt
from opus_sdn.intent.errors import Failure, Problem
from opus_sdn.intent.hints import end_hints
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.links import why_no_carrier
from opus_sdn.intent.model import Pattern, RankKey
from opus_sdn.intent.moves import intent_data, record_move
from opus_sdn.intent.order import Reservations, count_overtaking, in_order
from opus_sdn.intent.patience import patient_until
from opus_sdn.intent.reasons import Because, Reason
from opus_sdn.intent.stalling import leave_phase, note
from opus_sdn.intent.state import CoreState, own
from opus_sdn.intent.streams import Intent, StreamState
from opus_sdn.intent.transitions import note_grant

PASSING = (
    Reason.RESERVED,
    Reason.RUN_HELD,
    Reason.GRACE,
    Reason.YIELDING,
    Reason.CARRIER,
    Reason.DRAINED,
    Reason.MANUAL,
    Reason.PORT_FAILED,
)  # reasons noted here, which are over when nothing says so again


def note_complete(now: float, job: JobCore, stream: StreamState) -> Failure | None:
    """If the stream's next intent has all its members, it becomes complete. A failure when tags disagree."""
    intent = stream.complete()
    if intent is None or intent.state is not IntentState.DECLARED:
        return None
    tags = {arrived.arrival.tag for arrived in intent.arrived.values()}
    if len(tags) > 1:
        said = {rank: arrived.arrival.tag for rank, arrived in sorted(intent.arrived.items())}
        return Failure(
            Problem.TAG_ORDER,
            f"message {intent.n} of {stream.stream}: the two ends name different tags "
            f"({', '.join(f'rank {rank}: {tag}' for rank, tag in said.items())}); receives match in order",
            data={
                "connection": stream.connection.id,
                "n": intent.n,
                "tags": {str(r): t for r, t in said.items()},
            },
        )
    job.age += 1
    intent.age = job.age
    intent.complete_at = now
    intent.move(IntentState.COMPLETE)
    job.complete[(intent.stream, intent.n)] = intent
    job.seed = None  # a real need is known: the initial topology has had its time
    for rank, arrived in intent.arrived.items():
        job.ranks[rank].barrier_wait_s += now - arrived.at
    return None


def serve(state: CoreState, now: float, job: JobCore) -> Failure | None:
    """Grant until nothing more can be granted; the rest is in `job.waiting`, in order, with reasons.

    Patient rings are neither: they wait outside of the order, and nothing is planned or reserved for them.
    """
    while True:
        granted = False
        waiting: list[Intent] = []
        reserved = Reservations()
        failure = cutting.look_behind(job)
        if failure is not None:
            return failure
        ordered = _impatient(state, now, job)
        for index, intent in enumerate(ordered):
            circuits = intent.connection.circuits
            earlier = reserved.against(circuits)
            held_back = _why_held_back(job, intent)
            closed = state.bar_against(circuits)
            if closed is not None:  # it may wait for long: nobody else has to
                note(state, now, job, intent, closed)
                waiting.append(intent)
                continue
            up = earlier is None and all(state.is_up(circuit) for circuit in circuits)
            if up and held_back is None:
                held_back = _taken(state, intent) or why_no_carrier(state, now, job, circuits)
            if up and held_back is None:
                count_overtaking(intent, ordered[index + 1 :])
                failure = _grant(state, now, job, intent)
                if failure is not None:
                    return failure
                granted = True
                continue
            _note_why_it_waits(state, now, job, intent, earlier, held_back)
            if not intent.yields:  # else it would hold up those whom its device serves
                reserved.add(intent)
            waiting.append(intent)
        if not granted:
            break
    job.waiting = waiting
    _announce(state, job)
    state.touch_switches(waiting)
    return None


def _note_why_it_waits(
    state: CoreState,
    now: float,
    job: JobCore,
    intent: Intent,
    earlier: Intent | None,
    held_back: Because | None,
) -> None:
    if earlier is not None:
        detail = f"{earlier.key} goes first"
        note(state, now, job, intent, Because(Reason.RESERVED, detail, {"for": earlier.key}))
    elif held_back is not None:
        note(state, now, job, intent, held_back)
    elif intent.state is not IntentState.STALLED and (
        intent.because is None or intent.because.reason in PASSING
    ):
        note(state, now, job, intent, Because(Reason.SWITCHING, "its circuits are to be made"))


def _why_held_back(job: JobCore, intent: Intent) -> Because | None:
    """What keeps it from its grant whatever its circuits do: a grace, or a run that a member holds."""
    in_grace = job.grace.why_hold_back(intent.connection.ranks) if job.grace is not None else None
    return in_grace or cutting.why_held_back(job, intent)


def _impatient(state: CoreState, now: float, job: JobCore) -> list[Intent]:
    """Complete intents in serving order, without the rings that leave their ports to messages for now.

    Whoever goes before these overtakes nobody: they do not ask yet.
    """
    job.patient_until = None
    asking: list[Intent] = []
    for intent in job.complete.values():
        until = patient_until(job, intent, now, state.settings)
        if until is None or all(state.is_up(circuit) for circuit in intent.connection.circuits):
            asking.append(intent)
            continue
        detail = "no host waits for it yet, and messages may need its ports first"
        note(state, now, job, intent, Because(Reason.YIELDING, detail, {"until": until}))
        job.patient_until = min(until, job.patient_until or until)
    return in_order(asking, now, state.settings, state.is_up)


def _taken(state: CoreState, intent: Intent) -> Because | None:
    """Traffic of another circuit on its ports, although its own circuits are up: somebody else made them."""
    for circuit in intent.connection.circuits:
        terminal = state.holder_against(circuit)
        if terminal is not None:
            detail = (
                f"position {terminal.position} of {terminal.switch} carries traffic of "
                f"{state.live_circuit[terminal].id}, which somebody else has taken down"
            )
            return Because(Reason.LOCKED, detail, {"switch": terminal.switch, "position": terminal.position})
    return None


def _grant(state: CoreState, now: float, job: JobCore, intent: Intent) -> Failure | None:
    """Lock for all participants, raise the mark, number the grants: one change, answered once stored."""
    key = (intent.stream, intent.n)
    ledger, stream = state.ledger, job.streams[intent.stream]
    length = length_of(state, intent)
    numbers = job.number(intent, length, ledger.open_batch)
    run = stream.grant(now, intent, numbers, length)
    intent.move(IntentState.GRANTED)
    del job.complete[key]
    del job.open[key]
    del job.clocks[key]
    if length > 1:
        job.forget_open(stream, intent.n, stream.granted)
        job.keep_to(stream, run)
        end_hints(job, stream)
    leave_phase(now, job, intent)
    job.start_clock(now, stream.intents.get(stream.granted))
    adopt(state, intent.connection.circuits)
    state.hold(intent.connection.circuits)
    job.held_runs += 1
    own(state, job, intent.connection.circuits, job.digit(intent.connection))
    exposed_s = now - intent.complete_at
    job.grants += 1
    job.operations += length
    note_grant(state, now, job, intent)
    job.exposed_wait_s += exposed_s
    for rank in numbers:
        job.ranks[rank].exposed_wait_s += exposed_s
        ledger.wake_on_commit(RankKey(job.spec.name, job.incarnation, rank))
    ledger.add(
        RunGranted(
            job.spec.name,
            job.incarnation,
            intent.stream,
            intent.n,
            run.length,
            tuple(numbers.items()),
            tuple(circuit.id for circuit in intent.connection.circuits),
            intent.complete_at,
            now,
        )
    )
    ledger.event(
        "intent.granted",
        job,
        **intent_data(intent),
        length=length,
        barrier_wait_ms=round((intent.complete_at - intent.first_at) * 1e3, 3),
        exposed_wait_ms=round(exposed_s * 1e3, 3),
        **_phases_ms(intent),
    )
    return note_complete(now, job, stream)


def length_of(state: CoreState, intent: Intent) -> int:
    """Operations that a grant of this intent would be for: of rings as offered, of messages one."""
    if intent.connection.pattern is not Pattern.RING:
        return 1
    return min(intent.offered, state.settings.run_length_max)


def _phases_ms(intent: Intent) -> dict[str, object]:
    """What of the wait was for devices, and for which part of it; empty when nothing was."""
    phases = {phase.value: round(s * 1e3, 3) for phase, s in intent.phases_s.items() if s > 0}
    return {"phases_ms": phases} if phases else {}


def _announce(state: CoreState, job: JobCore) -> None:
    """Complete intents that have to wait leave one event when they begin to."""
    for intent in job.waiting:
        if not intent.announced:
            intent.announced = True
            record_move(state, job, intent, "intent.complete", because=intent.because)


def tick(state: CoreState, now: float) -> None:
    """Rings whose patience is over come into the order."""
    for job in state.active.values():
        if job.patient_until is not None and now >= job.patient_until:
            state.touch(job)


def next_deadline(state: CoreState) -> float | None:
    """When `tick` next has something to decide; None when nothing is due at any time."""
    moments = (job.patient_until for job in state.active.values())
    return min((moment for moment in moments if moment is not None), default=None)
