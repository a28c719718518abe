"""Who waits for news: at most one open poll per rank, one wake-up per poll."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from opus_sdn.intent.model import RankKey


class Poll:
    """One waiting request, of one rank or of all ranks of a host. `future` ends with True when woken."""

    __slots__ = ("future", "keys")

    def __init__(self, keys: tuple[RankKey, ...], future: asyncio.Future[bool]) -> None:
        self.keys = keys
        self.future = future

    def end(self, woken: bool) -> None:
        """Let the request go on; later calls change nothing."""
        if not self.future.done():
            self.future.set_result(woken)


class Waiters:
    """The open polls by rank. Used on the event loop only."""

    def __init__(self) -> None:
        self._polls: dict[RankKey, Poll] = {}

    def __len__(self) -> int:
        return len(self._polls)

    def open(self, keys: tuple[RankKey, ...], loop: asyncio.AbstractEventLoop) -> Poll:
        """A poll for these ranks. An older poll of any of them ends now: its client has given up on it."""
        poll = Poll(keys, loop.create_future())
        for key in keys:
            older = self._polls.get(key)
            if older is not None:
                older.end(woken=False)
            self._polls[key] = poll
        return poll

    def close(self, poll: Poll) -> None:
        """Forget a poll, whether or not it was woken; a newer one of the same ranks stays."""
        for key in poll.keys:
            if self._polls.get(key) is poll:
                del self._polls[key]

    def wake(self, keys: Iterable[RankKey]) -> None:
        """There is news for these ranks."""
        for key in keys:
            poll = self._polls.get(key)
            if poll is not None:
                poll.end(woken=True)

    def end_all(self) -> None:
        """End every poll: nothing more will be decided."""
        for poll in list(self._polls.values()):
            poll.end(woken=False)
