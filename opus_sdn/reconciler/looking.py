"""Reads one switch: within a deadline, one reading at a time, and until it answers where that is needed.

Readings one after the other are also answered in that order, so that an old picture of the switch can never
be taken for a newer one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from opus_sdn.drivers.base import Description, Driver, DriverError, Observation, Refusal, TerminalError
from opus_sdn.drivers.pairs import place
from opus_sdn.intent.fabric import Terminal
from opus_sdn.reconciler.backoff import Backoff

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

# Reading changes nothing and everything on the switch waits for it: at least every 5 s.
READ_PAUSE_S = (0.05, 5.0)
# One unanswered reading may be an accident; from the second in a row on the switch counts as away.
AWAY_FROM = 2


class UnreadableError(Exception):
    """The switch did not answer a reading; the message says how."""


class Looker:
    """Reads of one switch. `away` is told when it does not answer, each time with what it said."""

    def __init__(self, name: str, driver: Driver, deadline_s: float, away: Callable[[str], None]) -> None:
        self.trouble: str | None = None  # why it cannot be read now
        self._name = name
        self._driver = driver
        self._deadline_s = deadline_s
        self._away = away
        self._one_at_a_time = asyncio.Lock()
        self._tells_ports = True

    async def describe(self) -> Description:
        """What the device is; returns once it has answered, however long that takes."""
        return await self._surely(self._driver.describe)

    async def read(self) -> Observation:
        """What the device holds; returns once it has answered: reading changes nothing, so why give up."""
        return await self._surely(self._driver.read)

    async def read_once(self) -> Observation:
        """What the device holds. Raises UnreadableError when it does not answer."""
        return await self._ask(self._driver.read)

    async def shut_ports(self) -> Mapping[Terminal, str] | None:
        """Ports through which no light passes, and why. None where the device cannot say, or does not now."""
        if self._tells_ports:
            try:
                async with self._one_at_a_time, asyncio.timeout(self._deadline_s):
                    ports = await self._driver.ports()
            except TerminalError as error:
                self._tells_ports = error.reason is not Refusal.UNSUPPORTED
            except (DriverError, TimeoutError) as error:
                logger.info("ports not read", extra={"switch": self._name, "detail": str(error)})
            except Exception:
                logger.exception("driver failed unforeseen", extra={"switch": self._name})
            else:
                return {
                    Terminal(self._name, *state.port): f"{place(state.port)} of {self._name} "
                    + ("has failed" if state.failed else "is disabled")
                    for state in ports
                    if state.failed or not state.enabled
                }
        return None

    async def _surely(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        backoff = Backoff(*READ_PAUSE_S)
        while True:
            try:
                return await self._ask(ask)
            except UnreadableError as error:
                pause_s = backoff.failed()
                if backoff.failures >= AWAY_FROM:
                    self._away(str(error))
            await asyncio.sleep(pause_s)

    async def _ask(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        async with self._one_at_a_time:
            try:
                # Not wait_for, which may swallow a cancellation that comes with the answer.
                async with asyncio.timeout(self._deadline_s):
                    answer = await ask()
            except TimeoutError:
                trouble = f"no answer within {self._deadline_s:g} s"
            except DriverError as error:
                trouble = error.detail
            except Exception as error:
                logger.exception("driver failed unforeseen", extra={"switch": self._name})
                trouble = f"driver failed with {type(error).__name__}"
            else:
                self.trouble = None
                return answer
        if trouble != self.trouble:
            logger.warning("switch cannot be read", extra={"switch": self._name, "detail": trouble})
        self.trouble = trouble
        raise UnreadableError(trouble)
