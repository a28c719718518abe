"""Tells readers of the event history that something new can be read; the history itself is the store's."""

from __future__ import annotations

import asyncio


class EventFeed:
    """The newest stored event number, and a way to wait for a newer one. Used on the event loop only."""

    def __init__(self, newest: int = 0) -> None:
        self.newest = newest
        self.closed = False
        self._changed = asyncio.Event()

    def advance(self, newest: int) -> None:
        """Events up to `newest` can be read now."""
        if newest > self.newest:
            self.newest = newest
            self._release()

    def close(self) -> None:
        """No more events will come; everybody who waits goes on."""
        self.closed = True
        self._release()

    async def newer_than(self, seq: int, timeout_s: float) -> bool:
        """Wait for an event above `seq` (True), or the end of the feed or of `timeout_s` seconds (False)."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.newest <= seq and not self.closed:
                    await self._changed.wait()
        except TimeoutError:
            return False
        return self.newest > seq

    def _release(self) -> None:
        # Who waits holds the old event: a new one is set up before anybody runs again.
        self._changed.set()
        self._changed = asyncio.Event()
