"""What the driver needs of a wire protocol. All numbers here are the device's own.

A transport asks and decodes, and decides nothing: it never retries a write and never leaves a port list
empty, which some commands would take for "all". Lost answers are ambiguous when something was written and
transient when not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from opus_sdn.drivers.base import AmbiguousError, DriverError, Persistence, TerminalError, TransientError

DETAIL_MAX = 200

_LOCK = re.compile(r"(?<![a-z])(remote[ -]?)?lock(ed)?(?![a-z])", re.IGNORECASE)

Numbers = tuple[int, int]
"""Ingress and egress of a cross-connect, the lower number first."""
Tell = Callable[[str], None]
"""Is told every message that the device sends unasked, as its text."""


class PortBusyError(TerminalError):
    """Nothing was changed: the device says that a port is in use."""


class ChangedError(DriverError):
    """Nothing was changed: the table is no longer the one that was read before."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the device says it is. `size` is the text that has the port counts in it."""

    model: str
    size: str
    firmware: str
    serial: str


@dataclass(frozen=True, slots=True)
class WireTable:
    """The cross-connects that the device lists, and its mark of this state, where it gives one."""

    pairs: tuple[Numbers, ...]
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class WirePort:
    """One port as the device lists it."""

    enabled: bool
    failed: bool = False
    label: str = ""


class Transport(Protocol):
    """One door of the device. Every call may raise one of the three failures."""

    name: str

    async def identify(self) -> Identity:
        """Which device this is. The first call of a session."""
        ...

    async def persistence(self) -> Persistence:
        """What it holds after it lost its power; unknown when it does not say."""
        ...

    async def table(self) -> WireTable:
        """All cross-connects."""
        ...

    async def merge(self, pairs: Sequence[Numbers], before: WireTable) -> None:
        """Make these, each in the place of what its ingress holds, in one transaction.

        May raise ChangedError when the device can tell that `before` is out of date.
        """
        ...

    async def delete(self, ingresses: Sequence[int], before: WireTable) -> str | None:
        """Remove what these ports hold; a port that holds nothing is no failure.

        Returns the mark of the state afterwards, where the device tells it. May raise ChangedError as `merge`
        does, but only before anything was removed.
        """
        ...

    async def replace(self, pairs: Sequence[Numbers], before: WireTable) -> None:
        """Make these the whole table."""
        ...

    async def ports(self, total: int, *, labels: bool = False) -> Mapping[int, WirePort]:
        """State of ports 1 to `total`; labels only if asked for, as they may take a request of their own."""
        ...

    async def power(self, numbers: Sequence[int]) -> Mapping[int, float] | None:
        """dBm of those of these ports that are measured; None on a device without monitors."""
        ...

    async def shutter(self, numbers: Sequence[int], *, closed: bool) -> None:
        """Close or open these ports."""
        ...

    async def label(self, labels: Mapping[int, str]) -> None:
        """Name these ports."""
        ...

    async def renew(self) -> None:
        """Leave the session behind: what is asked next goes over a fresh one."""
        ...

    async def close(self) -> None:
        """End the session."""
        ...


def lost(detail: str, *, writing: bool) -> DriverError:
    """The failure of a request whose answer did not come, or was not understood."""
    return AmbiguousError(detail) if writing else TransientError(detail)


def shown(text: str) -> str:
    """Text from the device as a message may hold it: one line, printable, short."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * DETAIL_MAX]).split())
    return line if len(line) <= DETAIL_MAX else line[:DETAIL_MAX] + "..."


def says_locked(text: str) -> bool:
    """Whether a refusal speaks of the lock at the touchscreen. (Others speak of blocks.)"""
    return _LOCK.search(text) is not None


def require_numbers(numbers: Collection[int]) -> None:
    """Refuse anything but whole numbers from 1, before it can turn into an address that means "all"."""
    for number in numbers:
        if type(number) is not int or number < 1:
            raise ValueError(f"port number is {number!r}; it must be a whole number from 1")
