"""Needs that wait for a device, and those that do so for too long: nothing stays installing for ever.

Waiting for other ranks' traffic or for an earlier intent is no fault of a device and has no limit here; the
job's own deadline watches over it.
"""

from __future__ import annotations

from types import MappingProxyType

from opus_sdn.intent.changes import IntentState
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import CoreSettings
from opus_sdn.intent.moves import record_move
from opus_sdn.intent.reasons import Because, Phase, Reason
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.streams import Intent

PHASE_OF = MappingProxyType(
    {
        Reason.SWITCHING: Phase.TABLE,
        Reason.MOVING: Phase.TABLE,
        Reason.SWITCH_FAILED: Phase.TABLE,
        Reason.SWITCH_AWAY: Phase.TABLE,
        Reason.FOREIGN: Phase.TABLE,
        Reason.CONTENDED: Phase.TABLE,
        Reason.PLAN_REFUSED: Phase.TABLE,
        Reason.DARK: Phase.LIGHT,
        Reason.PORT_FAILED: Phase.LIGHT,
        Reason.CARRIER: Phase.CARRIER,
    }
)


def note(state: CoreState, now: float, job: JobCore, intent: Intent, because: Because) -> None:
    """The intent waits because of this. While that is a matter of devices, its phase has a time limit."""
    if intent.state is IntentState.STALLED and because.reason is Reason.RESERVED:
        return  # it comes after all others, so that this says nothing of its device
    intent.because = because
    phase = PHASE_OF.get(because.reason)
    if phase is intent.phase:
        return
    leave_phase(now, job, intent)
    if intent.state is IntentState.STALLED:
        intent.move(IntentState.COMPLETE)
        record_move(state, job, intent, "intent.complete", because=because)
    if phase is not None:
        intent.phase, intent.phase_at = phase, now
        job.installing[phase][(intent.stream, intent.n)] = intent


def leave_phase(now: float, job: JobCore, intent: Intent) -> None:
    """It waits for this no more: count how long it did."""
    phase = intent.phase
    if phase is not None:
        job.installing[phase].pop((intent.stream, intent.n), None)
        intent.phases_s[phase] = intent.phases_s.get(phase, 0.0) + now - intent.phase_at
        intent.phase = None


def limit_s(settings: CoreSettings, phase: Phase) -> float:
    """How long a need may be in a phase."""
    limits = {
        Phase.TABLE: settings.install_s,
        Phase.LIGHT: settings.light_s,
        Phase.CARRIER: settings.carrier_s,
    }
    return limits[phase]


def tick(state: CoreState, now: float) -> None:
    """Whatever has waited for a device for too long is stalled; switches whose pause is over are planned."""
    for job in state.active.values():
        for phase, waiting in job.installing.items():
            while waiting:
                key, intent = next(iter(waiting.items()))
                if now < intent.phase_at + limit_s(state.settings, phase):
                    break
                del waiting[key]
                intent.move(IntentState.STALLED)
                record_move(state, job, intent, "intent.stalled", because=intent.because, phase=phase)
                state.touch(job)
    for name, switch in state.switches.items():
        if switch.retry_at is not None and now >= switch.retry_at:
            switch.retry_at = None
            state.dirty_switches[name] = None


def next_deadline(state: CoreState) -> float | None:
    """When `tick` next has something to decide; None when nothing is due at any time."""
    moments = [switch.retry_at for switch in state.switches.values() if switch.retry_at is not None]
    for job in state.active.values():
        for phase, waiting in job.installing.items():
            if waiting:
                moments.append(next(iter(waiting.values())).phase_at + limit_s(state.settings, phase))
    return min(moments, default=None)
