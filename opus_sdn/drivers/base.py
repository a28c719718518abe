"""What the controller needs of a switch. Three kinds of failure, because each asks for another reaction.

A port is a side and a position, both those of the fabric file. A driver converts to its device's numbers at
the wire, nowhere else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from opus_sdn.drivers.pairs import PortId, text
from opus_sdn.intent.fabric import CrossConnect

PAIRS_NAMED = 8


class SwitchConfigError(ValueError):
    """The fabric file names a driver or an option that cannot be; the message says what would be right."""


class Refusal(StrEnum):
    """Why a device or its driver will not do something, however often it is asked."""

    REFUSED = "refused"  # the device gave a reason of its own
    INVALID = "invalid"  # the request names ports or pairs that cannot be
    ABSENT = "absent"  # a pair to be removed is not there
    WOULD_DISPLACE = "would-displace"  # circuits that were not to be removed are in the way
    UNSUPPORTED = "unsupported"  # this device has no such thing
    UNAUTHORISED = "unauthorised"  # wrong credentials, or a user without the right
    LOCKED = "locked"  # somebody at the device keeps everybody else from writing
    WRONG_DEVICE = "wrong-device"  # not what the fabric file says, or not understood
    CLOSED = "closed"  # this session is over


class DriverError(Exception):
    """Base of the three failures. `detail` is for people and never holds secrets."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class TransientError(DriverError):
    """Nothing was changed; the same call may work after `retry_after_s`."""

    def __init__(self, detail: str, retry_after_s: float = 1.0) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class StaleRevisionError(TransientError):
    """Nothing was changed: the table is no longer the one that the caller had read. Read and decide anew."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, retry_after_s=0.0)


class TerminalError(DriverError):
    """Nothing was changed and asking again is useless: the request is wrong for this device.

    `displaced`: with `would-displace`, the circuits that are in the way.
    """

    def __init__(
        self, detail: str, reason: Refusal = Refusal.REFUSED, displaced: tuple[CrossConnect, ...] = ()
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.displaced = displaced


class AmbiguousError(DriverError):
    """Unknown whether it was applied (answer lost): read the device before anything else."""


class ConflictMode(StrEnum):
    """What becomes of circuits in the way that the request does not remove."""

    SAFE = "safe"  # the request is refused, naming them
    UPDATE = "update"  # they are displaced, and reported
    OVERWRITE = "overwrite"  # the whole table becomes what is added, foreign circuits included


class Persistence(StrEnum):
    """What the device holds after it lost its power."""

    PRESERVED = "preserved"
    VOLATILE = "volatile"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Description:
    """What the device is: its positions, whether it has sides, and what it can do.

    `size` = positions of the ingress side, or all of them without sides; `egress_size` = those of the egress
    side where it differs. `starts` = the device's own numbers of ingress 0 and egress 0, for people who stand
    in front of it. `bulk`: one request changes many pairs, judged by the end state. `max_inflight` = how many
    transactions it takes at once.
    """

    model: str
    size: int
    sided: bool
    max_inflight: int
    egress_size: int | None = None
    starts: tuple[int, int] = (0, 0)
    bulk: bool = True
    conflict_modes: frozenset[ConflictMode] = frozenset(ConflictMode)
    power: bool = False
    shutter: bool = False
    labels: bool = False
    persistence: Persistence = Persistence.UNKNOWN


@dataclass(frozen=True, slots=True)
class Observation:
    """What the device holds now. `revision` changes whenever the matching does.

    `dark`: pairs of the matching through which no light passes although they are connected, and why.
    """

    matching: frozenset[CrossConnect]
    revision: str
    dark: Mapping[CrossConnect, str] = field(default_factory=lambda: MappingProxyType({}))


class PairOutcome(StrEnum):
    """What became of one pair of a transaction."""

    APPLIED = "applied"
    CONNECTED_DARK = "connected-dark"  # in the table, but no light passes
    DISPLACED = "displaced"  # was in the way, and is gone
    FAILED = "failed"  # not as asked for, read back
    UNKNOWN = "unknown"  # could not be read back


@dataclass(frozen=True, slots=True)
class PairResult:
    """One pair of a transaction; `removed` when it was to go. `reason` says why it is not as asked for."""

    pair: CrossConnect
    outcome: PairOutcome
    removed: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of one bulk transaction. `dark_ms` = time the changed pairs were without light, if known.

    It is an upper bound where light is found by asking: it has the time of requests and answers in it.
    `pairs` has every pair that was asked for or displaced, where the driver can tell. `revision` = that of
    the table afterwards, when it was read.
    """

    dark_ms: float | None = None
    notes: tuple[str, ...] = field(default=())
    pairs: tuple[PairResult, ...] = field(default=())
    revision: str | None = None

    @property
    def displaced(self) -> tuple[CrossConnect, ...]:
        """Circuits that were in the way and are gone."""
        return tuple(r.pair for r in self.pairs if r.outcome is PairOutcome.DISPLACED)

    def shortfall(self) -> str | None:
        """What is not as it was asked for, in words; None when all of it is."""
        fine = (PairOutcome.APPLIED, PairOutcome.DISPLACED)
        short = [r for r in self.pairs if r.outcome not in fine]
        if not short:
            return None
        named = [
            f"{'remove' if r.removed else 'add'} {text(r.pair)}: {r.outcome}"
            + (f" ({r.reason})" if r.reason else "")
            for r in short[:PAIRS_NAMED]
        ]
        more = f" and {len(short) - PAIRS_NAMED} more" if len(short) > PAIRS_NAMED else ""
        return "; ".join(named) + more


@dataclass(frozen=True, slots=True)
class PortState:
    """One port. `enabled`: no shutter, no block; `power_dbm`: None where nothing measures it."""

    port: PortId
    enabled: bool
    failed: bool = False
    in_use: CrossConnect | None = None
    power_dbm: float | None = None
    label: str = ""


class DeviceEventKind(StrEnum):
    """What a device tells unasked, or a driver notices between two requests."""

    ALARM = "alarm"
    PORT = "port"
    FOREIGN_CHANGE = "foreign-change"
    SESSION = "session"
    WARNING = "warning"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """One such thing. `expected`: it belongs to a change of our own that was under way on these ports."""

    kind: DeviceEventKind
    detail: str
    ports: tuple[PortId, ...] = ()
    expected: bool = False


class Driver(Protocol):
    """One switch. Every call may raise one of the three failures."""

    async def describe(self) -> Description:
        """Static facts of the device."""
        ...

    async def read(self) -> Observation:
        """The cross-connects that the device holds now."""
        ...

    async def apply(
        self,
        remove: tuple[CrossConnect, ...],
        add: tuple[CrossConnect, ...],
        epoch: int,
        *,
        mode: ConflictMode = ConflictMode.SAFE,
        expect_revision: str | None = None,
    ) -> Applied:
        """Make one bulk change, judged by its end state, and return when the device says it is done.

        With `safe` a remove of an absent pair and an add onto a busy terminal are refused (TerminalError,
        nothing changed). With `expect_revision` nothing is changed unless the table still has that revision
        (StaleRevisionError). `epoch` is that of the leader, for the record.
        """
        ...

    async def ports(self) -> tuple[PortState, ...]:
        """Every port of the device, ingress first."""
        ...

    async def power(self, ports: Collection[PortId]) -> Mapping[PortId, float]:
        """Optical power in dBm where it is measured; others are left out. `unsupported` when none is."""
        ...

    async def block(self, ports: Collection[PortId], *, blocked: bool) -> None:
        """Let no light through these ports, or let it through again. Circuits stay in the table."""
        ...

    async def label(self, labels: Mapping[PortId, str]) -> None:
        """Name ports on the device; an empty text takes the name away."""
        ...

    def events(self) -> AsyncIterator[DeviceEvent]:
        """What the device tells unasked from now on, until the session is closed."""
        ...

    async def close(self) -> None:
        """Let go of the session; the circuits stay."""
        ...
