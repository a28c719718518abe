"""Who is logged in, over all protocols that have sessions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Session:
    """One open session. `user` is empty before the login; `cut` ends it at once."""

    number: int
    protocol: str
    port: int
    address: str
    cut: Callable[[], None]
    user: str = ""


class Sessions:
    """The open sessions, by number."""

    def __init__(self) -> None:
        self._open: dict[int, Session] = {}
        self._numbers = itertools.count(1)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._open.values()))

    def open(self, protocol: str, port: int, address: str, cut: Callable[[], None]) -> Session:
        """Begin a session."""
        session = Session(next(self._numbers), protocol, port, address, cut)
        self._open[session.number] = session
        return session

    def close(self, session: Session) -> None:
        """The session is over."""
        self._open.pop(session.number, None)

    def count(self, protocol: str) -> int:
        """How many sessions this protocol has."""
        return sum(session.protocol == protocol for session in self._open.values())

    def disconnect(self, number: int) -> bool:
        """End a session; False when there is none of this number."""
        session = self._open.get(number)
        if session is None:
            return False
        session.cut()
        return True
