"""What the reconciler needs of a switch. Three kinds of failure, because each asks for another reaction.

Positions are those of the fabric file; a driver converts to its device's numbers at the wire, nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from opus_sdn.intent.fabric import CrossConnect


class SwitchConfigError(ValueError):
    """The fabric file names a driver or an option that cannot be; the message says what would be right."""


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


class TerminalError(DriverError):
    """Nothing was changed and asking again is useless: the request is wrong for this device."""


class AmbiguousError(DriverError):
    """Unknown whether it was applied (answer lost): read the device before anything else."""


@dataclass(frozen=True, slots=True)
class Description:
    """What the device is: positions, whether it has sides, and how many transactions it takes at once."""

    model: str
    size: int
    sided: bool
    max_inflight: int


@dataclass(frozen=True, slots=True)
class Observation:
    """What the device holds now. `revision` changes whenever the matching does."""

    matching: frozenset[CrossConnect]
    revision: str


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of one bulk transaction. `dark_ms` = time the changed pairs were without light, if known."""

    dark_ms: float | None = None
    notes: tuple[str, ...] = field(default=())


class Driver(Protocol):
    """One switch. `apply` is one bulk transaction: removes, then adds, all or nothing."""

    async def describe(self) -> Description:
        """Static facts of the device."""
        ...

    async def read(self) -> Observation:
        """The cross-connects that the device holds now."""
        ...

    async def apply(
        self, remove: tuple[CrossConnect, ...], add: tuple[CrossConnect, ...], epoch: int
    ) -> Applied:
        """Make the change and return when the device says it is done. Raises one of the three failures.

        Refuses (TerminalError, nothing changed) a remove of an absent pair and an add onto a busy terminal.
        """
        ...

    async def close(self) -> None:
        """Let go of the session; the circuits stay."""
        ...
