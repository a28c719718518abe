"""The logins of the device, shared by all its protocols."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator

from opus_sdn.drivers.polatis_emulator.spec import USERS_MAX, Group, UserSpec


class Users:
    """Names, passwords and groups. They are what the spec says again after the emulator's own restart."""

    def __init__(self, users: Iterable[UserSpec]) -> None:
        self._users = {user.name: (user.password, user.group) for user in users}

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._users))

    def __contains__(self, name: object) -> bool:
        return name in self._users

    def group(self, name: str) -> Group:
        """The group of a user; KeyError when there is none of this name."""
        return self._users[name][1]

    def login(self, name: str, password: str) -> Group | None:
        """The group of a user who knows his password; else None."""
        known = self._users.get(name)
        if known is None or not hmac.compare_digest(known[0].encode(), password.encode()):
            return None
        return known[1]

    def add(self, name: str, password: str, group: Group) -> bool:
        """A new user; False when there is no room or the name is taken."""
        if name in self._users or len(self._users) >= USERS_MAX:
            return False
        self._users[name] = (password, group)
        return True

    def change(self, name: str, password: str) -> None:
        """Another password; KeyError when there is no such user."""
        self._users[name] = (password, self._users[name][1])

    def remove(self, name: str) -> bool:
        """No such user any more; False when there was none."""
        return self._users.pop(name, None) is not None
