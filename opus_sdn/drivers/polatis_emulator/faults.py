"""What can be wrong with the emulated switch, settable while it runs.

`Faults` are states, in force until changed. A `ReplyFault` befalls single requests: the next ones that fit.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from opus_sdn.drivers.polatis_emulator.spec import Decibels, Milliseconds, PortNumber, Strict

REPLY_FAULTS_MAX = 1024


class Door(StrEnum):
    """A protocol of the device."""

    RESTCONF = "restconf"
    TL1 = "tl1"


class ForeignWriter(Strict):
    """Somebody else's program that removes circuits it does not know, again and again."""

    every_s: Annotated[float, Field(ge=0.01, le=86_400)]
    ports: tuple[PortNumber, ...] | None = Field(None, description="circuits on these ports; by default all")


class Faults(Strict):
    """Every state that can be wrong or merely different between firmwares. The defaults are a healthy switch.

    Where nobody has published what the real device does, both ways are here, and the default is the less
    comfortable one.
    """

    displace: bool = Field(True, description="RESTCONF takes a busy egress from its circuit; else 409")
    tl1_conflict: Literal["displace", "deny"] = "displace"
    tl1_batch: Literal["atomic", "prefix"] = Field(
        "atomic", description="what a list with one bad port leaves"
    )
    partial_batch: int | None = Field(
        None, ge=0, le=4096, description="a write of more pairs makes only so many of them, and fails"
    )
    duplicate_egress: Literal["refuse", "last"] = "refuse"
    strict_order: bool = Field(False, description="refuse a pair whose higher port comes first")
    if_match: bool = Field(True, description="RESTCONF honours If-Match")

    empty_table: Literal["no-content", "not-found", "empty-list"] = "no-content"
    absent_entry: Literal["not-found", "no-content"] = "not-found"
    single_entry: Literal["list", "object"] = "list"
    errors: Literal["ietf", "confd", "xml", "html", "empty"] = "ietf"
    prefixed: bool = Field(True, description="answers name the module of their first member")
    decimals: Literal["string", "number"] = "string"
    keep_alive: bool = Field(True, description="else every HTTP answer closes its connection")

    control_ms: Milliseconds | None = Field(None, description="instead of the switch's own")
    switch_ms: Milliseconds | None = Field(None, description="instead of the switch's own")
    tuning_ms: dict[PortNumber, Milliseconds] = Field({}, description="ports whose optics take so long")
    early_reply: bool = Field(False, description="answer when accepted, before the light is through")
    stale_read_ms: Milliseconds = Field(0.0, description="reads show the table as it was so long ago")

    failed_ports: tuple[PortNumber, ...] = ()
    module_failure: bool = Field(False, description="writes fail in the optical module: 500, DENY")
    source_dbm: dict[PortNumber, Decibels] = Field({}, description="light into single ports; -60 is none")
    extra_loss_db: dict[PortNumber, Decibels] = Field({}, description="a dirty connector")
    no_monitors: bool = False

    link_up_ms: Milliseconds | None = Field(
        None, description="what NICs take for their link, instead of theirs"
    )
    dead_links: tuple[str, ...] = Field(
        (), max_length=4096, description="NIC ports whose link never comes up"
    )

    remote_lock: bool = Field(False, description="locked at the touchscreen: reads only")
    disabled: tuple[Door, ...] = Field(
        (), description="protocols that ignore open sockets and take no new ones"
    )
    session_limit: int | None = Field(None, ge=0, le=1024)
    idle_logout_s: Annotated[float, Field(ge=0.01, le=86_400)] | None = None
    foreign_writer: ForeignWriter | None = None

    segment_bytes: int | None = Field(
        None, ge=1, le=65_536, description="largest piece of a reply sent at once"
    )
    tl1_autonomous: Literal["", "before", "between", "inside"] = Field(
        "", description="an autonomous message before, between the blocks of, or inside every reply"
    )
    tl1_acknowledge: bool = Field(False, description="an IP acknowledgement goes before every reply")
    tl1_continue: bool = Field(False, description="long output comes in blocks that end with >")


class ReplyKind(StrEnum):
    """What befalls one request."""

    REQUEST_LOST = "request-lost"  # not done; no answer, the connection stays open
    REPLY_LOST = "reply-lost"  # done; no answer, the connection stays open
    LATE = "late"  # no answer; done after delay_ms
    SLOW = "slow"  # answered after delay_ms, done at once
    RESET_BEFORE = "reset-before"  # not done; the connection is reset
    RESET_AFTER = "reset-after"  # done; the connection is reset
    TRUNCATED = "truncated"  # done; half of the answer, then the connection ends
    GARBAGE = "garbage"  # done; an answer that makes no sense
    WRONG = "wrong"  # done; the answer says that it failed
    UNAVAILABLE = "unavailable"  # not done; 503, or DENY with a resource code


class ReplyFault(Strict):
    """One fault for the next `times` requests that fit."""

    kind: ReplyKind
    door: Door | None = Field(None, description="of this protocol only")
    on: Literal["any", "read", "write"] = "write"
    delay_ms: Milliseconds = 0.0
    times: int = Field(1, ge=1, le=1_000_000)


class ReplyScript:
    """The reply faults that are still to come, oldest first."""

    def __init__(self) -> None:
        self._due: deque[ReplyFault] = deque()

    @property
    def due(self) -> tuple[ReplyFault, ...]:
        """What has not happened yet."""
        return tuple(self._due)

    def add(self, fault: ReplyFault) -> None:
        """Let this befall the next requests that fit. Raises ValueError when too many are waiting."""
        if len(self._due) >= REPLY_FAULTS_MAX:
            raise ValueError(
                f"{REPLY_FAULTS_MAX} reply faults are waiting, which is the most; clear some first"
            )
        self._due.append(fault)

    def clear(self) -> None:
        """Forget all of them."""
        self._due.clear()

    def meet(self, door: Door, kind: Literal["read", "write", "session"]) -> ReplyFault | None:
        """The fault of this request, used up; None without one. Logins are met by those on `any` only."""
        for index, fault in enumerate(self._due):
            if fault.door not in (None, door) or fault.on not in ("any", kind):
                continue
            if fault.times > 1:
                self._due[index] = fault.model_copy(update={"times": fault.times - 1})
            else:
                del self._due[index]
            return fault
        return None
