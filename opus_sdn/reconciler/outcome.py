"""How one device transaction ended, in the terms in which the core is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opus_sdn.drivers.base import (
    AmbiguousError,
    Applied,
    DriverError,
    PairOutcome,
    Refusal,
    TerminalError,
    TransientError,
)
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.switches import FailureKind, Step

PAIRS_NAMED = 8  # in one sentence

# Nothing in the request is wrong: the switch takes nothing from us now, or what we knew was out of date.
NOT_THE_REQUEST = frozenset(
    {
        Refusal.ABSENT,
        Refusal.WOULD_DISPLACE,
        Refusal.UNAUTHORISED,
        Refusal.LOCKED,
        Refusal.WRONG_DEVICE,
        Refusal.CLOSED,
    }
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What went wrong, if anything, of which kind, and how long the device wants to be left alone.

    `failed`: pairs that the device named as failed, and why.
    """

    wrong: str | None = None
    kind: FailureKind = FailureKind.MISMATCH
    retry_after_s: float = 0.0
    failed: Mapping[CrossConnect, str] = field(default_factory=dict)

    def against(self, step: Step, matching: frozenset[CrossConnect]) -> Outcome:
        """The outcome when the device was read: one that says "done" and shows otherwise has failed."""
        if self.wrong is not None:
            return self
        difference = difference_of(step, matching)
        return self if difference is None else Outcome(f"device reported success, but {difference}")


def outcome_of(applied: Applied) -> Outcome:
    """The outcome of a call that the device has answered."""
    failed = {
        result.pair: result.reason or result.outcome.value
        for result in applied.pairs
        if result.outcome in (PairOutcome.FAILED, PairOutcome.UNKNOWN)
    }
    return Outcome(applied.shortfall() if failed else None, failed=failed)


def outcome_of_failure(error: DriverError) -> Outcome:
    """The outcome of a call that the driver has answered with one of its failures."""
    match error:
        case TransientError():
            return Outcome(error.detail, FailureKind.TRANSIENT, error.retry_after_s)
        case TerminalError() if error.reason not in NOT_THE_REQUEST:
            return Outcome(error.detail, FailureKind.TERMINAL)
        case TerminalError():
            return Outcome(error.detail, FailureKind.TRANSIENT)
        case AmbiguousError():
            return Outcome(f"answer lost: {error.detail}", FailureKind.AMBIGUOUS)
        case _:
            return Outcome(error.detail, FailureKind.AMBIGUOUS)


def difference_of(step: Step, matching: frozenset[CrossConnect]) -> str | None:
    """What the device holds otherwise than the step leaves it; None when it is as it should be."""
    missing = [pair for pair in step.add if pair not in matching]
    left = [pair for pair in step.remove if pair in matching and pair not in step.add]
    if not missing and not left:
        return None
    parts = [
        f"{what} {pair.ingress}-{pair.egress}"
        for what, pairs in (("missing", missing), ("still there", left))
        for pair in pairs
    ]
    return "it reads back otherwise: " + ", ".join(parts[:PAIRS_NAMED])
