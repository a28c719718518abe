"""The only table of state changes. Everything that changes state asks it; what is not here is a bug."""

from __future__ import annotations

from opus_sdn.intent.changes import IntentState, JobState, StepState

INTENT_TRANSITIONS: dict[IntentState, frozenset[IntentState]] = {
    # A declared intent lives in memory alone: ranks repeat their arrivals.
    IntentState.DECLARED: frozenset({IntentState.COMPLETE, IntentState.FAILED}),
    IntentState.COMPLETE: frozenset(
        {IntentState.INSTALLING, IntentState.STALLED, IntentState.GRANTED, IntentState.FAILED}
    ),
    # Back to complete when its device step failed or was dropped: it is planned anew.
    IntentState.INSTALLING: frozenset(
        {IntentState.COMPLETE, IntentState.STALLED, IntentState.GRANTED, IntentState.FAILED}
    ),
    # It waited for a device for too long, and is still tried. Back to complete when it waits for others.
    IntentState.STALLED: frozenset({IntentState.COMPLETE, IntentState.GRANTED, IntentState.FAILED}),
    IntentState.GRANTED: frozenset({IntentState.RELEASED}),
    IntentState.RELEASED: frozenset(),
    IntentState.FAILED: frozenset(),
}

STEP_TRANSITIONS: dict[StepState, frozenset[StepState]] = {
    StepState.PLANNED: frozenset({StepState.STARTED, StepState.DROPPED}),
    StepState.STARTED: frozenset({StepState.DONE, StepState.FAILED}),
    StepState.DONE: frozenset(),
    StepState.FAILED: frozenset(),
    StepState.DROPPED: frozenset(),
}

JOB_TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.RUNNING: frozenset({JobState.ENDED, JobState.FAILED}),
    JobState.FAILED: frozenset({JobState.ENDED}),
    JobState.ENDED: frozenset(),
}


class IllegalTransitionError(AssertionError):
    """A state change that the table does not have: a bug in the caller."""


def advance_intent(state: IntentState, to: IntentState) -> IntentState:
    """The new state of an intent, if the table allows the change."""
    if to not in INTENT_TRANSITIONS[state]:
        raise IllegalTransitionError(f"an intent does not go from {state} to {to}")
    return to


def advance_step(state: StepState, to: StepState) -> StepState:
    """The new state of a device step, if the table allows the change."""
    if to not in STEP_TRANSITIONS[state]:
        raise IllegalTransitionError(f"a step does not go from {state} to {to}")
    return to


def advance_job(state: JobState, to: JobState) -> JobState:
    """The new state of an incarnation, if the table allows the change."""
    if to not in JOB_TRANSITIONS[state]:
        raise IllegalTransitionError(f"a job does not go from {state} to {to}")
    return to
