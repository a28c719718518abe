"""Why something waits or was refused: an enum member, a sentence, and the data behind it.

The same reason is shown in API answers, the command line, pages, events and logs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Reason(StrEnum):
    """What a waiting intent or a blocked circuit waits for."""

    MEMBERS_MISSING = "members-missing"  # not all participants have arrived
    EARLIER_OPERATION = "earlier-operation"  # operation n - 1 of the stream is not granted yet
    FOREIGN = "foreign"  # a cross-connect that somebody else made is in the way, and is not ours to remove
    CONTENDED = "contended"  # somebody else keeps taking its cross-connects down; tried again later
    CARRIER = "carrier"  # light passes, but a NIC at its end has not reported its link up
    DARK = "dark"  # connected, and no light passes: a port is blocked or broken
    PORT_FAILED = "port-failed"  # the switch says that a port of it is shut or broken; goes on when it is not
    SWITCH_AWAY = "switch-away"  # the switch does not answer; goes on when it does
    LOCKED = "locked"  # a circuit in the way carries traffic
    GRACE = "grace"  # after a restart, until all ranks concerned have said what they hold
    RUN_HELD = "run-held"  # a member of it holds a run of several operations, and gets no other grant
    RESERVED = "reserved"  # an intent ordered before wants the same port
    YIELDING = "yielding"  # a collective that no host waits for yet: messages may have the ports first
    MOVING = "moving"  # a device step on these ports is in flight
    SWITCHING = "switching"  # planned; the device is about to be told
    COMMITTING = "committing"  # decided; the record is being written
    DRAINED = "drained"  # an operator has drained a port of it; goes on when the port is undrained
    MANUAL = "manual-circuit"  # an operator keeps a circuit of his own up on a port of it
    PORTS_TAKEN = "ports-taken"  # a queued job: another job uses its ports, or was queued for them before
    CAPACITY = "capacity"  # a queued job: as many jobs run as may
    PLAN_REFUSED = "plan-refused"  # its plan would break an invariant: a bug, reported as an event
    SWITCH_FAILED = "switch-failed"  # the device refused or did not answer; retried later


class Phase(StrEnum):
    """What a circuit goes through until it can be used. Each has its own time limit."""

    TABLE = "table"  # the switch is to list its cross-connects
    LIGHT = "light"  # light is to pass
    CARRIER = "carrier"  # the NICs at its ends are to have their link


@dataclass(frozen=True, slots=True)
class Because:
    """One reason with its data: `detail` is a sentence for people, `data` the same for programs."""

    reason: Reason
    detail: str
    data: dict[str, object] = field(default_factory=dict)
