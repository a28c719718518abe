"""Needs that wait for a device, and those that do so for too long: nothing stays installing for ever.

Waiting for other ranks' traffic or for an earlier intent is no fault of a device and has no limit here; the
job's own deadline watches over it.
"""

from __future__ import annotations

from opus_sdn.intent.changes import IntentState
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.moves import record_move
from opus_sdn.intent.reasons import Because, Reason
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.streams import Intent

DEVICE_REASONS = frozenset(
    {
        Reason.SWITCHING,
        Reason.MOVING,
        Reason.SWITCH_FAILED,
        Reason.SWITCH_AWAY,
        Reason.FOREIGN,
        Reason.CONTENDED,
        Reason.DARK,
        Reason.PLAN_REFUSED,
    }
)


def note(state: CoreState, now: float, job: JobCore, intent: Intent, because: Because) -> None:
    """The intent waits because of this; its time limit runs while that is a matter of devices."""
    intent.because = because
    key = (intent.stream, intent.n)
    if because.reason not in DEVICE_REASONS:
        job.installing.pop(key, None)
        if intent.state is IntentState.STALLED:
            intent.move(IntentState.COMPLETE)
            record_move(state, job, intent, "intent.complete", because=because)
    elif intent.state is not IntentState.STALLED and key not in job.installing:
        intent.install_at = now
        job.installing[key] = intent


def tick(state: CoreState, now: float) -> None:
    """Whatever has waited for a device for too long is stalled; switches whose pause is over are planned."""
    for job in state.active.values():
        while job.installing:
            key, intent = next(iter(job.installing.items()))
            if now < intent.install_at + state.settings.install_s:
                break
            del job.installing[key]
            intent.move(IntentState.STALLED)
            record_move(state, job, intent, "intent.stalled", because=intent.because)
            state.touch(job)
    for name, switch in state.switches.items():
        if switch.retry_at is not None and now >= switch.retry_at:
            switch.retry_at = None
            state.dirty_switches[name] = None


def next_deadline(state: CoreState) -> float | None:
    """When `tick` next has something to decide; None when nothing is due at any time."""
    moments = [switch.retry_at for switch in state.switches.values() if switch.retry_at is not None]
    first = [next(iter(job.installing.values())) for job in state.active.values() if job.installing]
    moments += [intent.install_at + state.settings.install_s for intent in first]
    return min(moments, default=None)
