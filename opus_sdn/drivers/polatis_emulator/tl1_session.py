"""One TL1 session: who is logged in, since when it is idle, and whether it wants autonomous messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from opus_sdn.drivers.polatis_emulator.device import Actor, Device
from opus_sdn.drivers.polatis_emulator.sessions import Session, Sessions
from opus_sdn.drivers.polatis_emulator.spec import Group
from opus_sdn.drivers.polatis_emulator.tl1_text import DenialError


@dataclass(slots=True)
class Shared:
    """What all sessions have in common. `timeout_min` by class of user; `date_offset_s` = the set clock."""

    device: Device
    sessions: Sessions
    restart: Callable[[float], None]
    timeout_min: dict[str, int] = field(default_factory=lambda: {"ADMIN": 0, "USER": 0})
    date_offset_s: float = 0.0

    def now(self) -> float:
        """The device's own idea of the time, seconds since 1970."""
        return self.device.wall() + self.date_offset_s


class Tl1Session:
    """State of one connection."""

    def __init__(self, shared: Shared, session: Session) -> None:
        self.shared = shared
        self.device = shared.device
        self.session = session
        self.muted = False
        self._actor: Actor | None = None
        self._used_at = shared.device.clock()

    @property
    def logged_in(self) -> bool:
        """Whether somebody is logged in; an idle session ends here, unasked."""
        if self._actor is not None and self.device.clock() - self._used_at >= self._idle_s(self._actor):
            self.logout()
        return self._actor is not None

    @property
    def actor(self) -> Actor:
        """Who is logged in. Raises DenialError when nobody is."""
        if not self.logged_in or self._actor is None:
            raise DenialError("", "Not logged in")
        self._used_at = self.device.clock()
        return self._actor

    def login(self, name: str, password: str) -> None:
        """Log in. Raises DenialError."""
        if self.logged_in:
            raise DenialError("", "Already logged in")
        group = self.device.users.login(name, password)
        if group is None:
            raise DenialError("PICC")
        self._actor = Actor(name, group, self.session.protocol, self.session.address)
        self._used_at = self.device.clock()
        self.session.user = name

    def logout(self) -> None:
        """Nobody is logged in any more; the connection stays."""
        self._actor = None
        self.session.user = ""

    def _idle_s(self, actor: Actor) -> float:
        if self.device.faults.idle_logout_s is not None:
            return self.device.faults.idle_logout_s
        minutes = self.shared.timeout_min["ADMIN" if actor.group is Group.ADMIN else "USER"]
        return minutes * 60.0 if minutes else float("inf")
