"""Which device steps a replay waited for: the causal chain of its last event, walked backwards."""

from __future__ import annotations

from dataclasses import dataclass

from opus_sdn.whatif.opus.control import Controller, GrantRecord, StepRecord
from opus_sdn.whatif.opus.outcome import NOTHING, Outcome, grant_of, position_of, rank_of


@dataclass(frozen=True, slots=True)
class Exposed:
    """An operation on the causal chain that was complete before its circuits were up, and its step.

    `lock_ns` of the wait passed before the step began: ports in the way carried traffic or moved for
    somebody else, or the operation yielded. `switch_ns` passed in the step itself.
    """

    grant: GrantRecord
    step: StepRecord
    lock_ns: int
    switch_ns: int


def exposed_steps(outcome: Outcome, controller: Controller) -> tuple[Exposed, ...]:
    """Every device step on the causal chain of the last event, first one first."""
    found: list[Exposed] = []
    cause = outcome.last_node()
    while cause != NOTHING:
        if cause >= 0:
            decisive = outcome.decided_by[rank_of(cause)][position_of(cause)]
            node = cause if decisive == NOTHING else decisive
            cause = outcome.begun_by[rank_of(node)][position_of(node)]
            continue
        grant = controller.grants[grant_of(cause)]
        if grant.step == NOTHING:
            cause = grant.cause
            continue
        step = controller.steps[grant.step]
        begun = max(step.started_ns, grant.complete_ns)
        found.append(Exposed(grant, step, begun - grant.complete_ns, grant.granted_ns - begun))
        while step.trigger == NOTHING and step.after != NOTHING:  # another step had to clear its ports first
            step = controller.steps[step.after]
        cause = step.trigger
    return tuple(reversed(found))
