"""Which of several controllers to speak to: the leader, as the others name it, else one after the other."""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

from opus_sdn.shim.settings import Address


class Whereabouts:
    """The addresses that were given and the one in use; for any thread."""

    def __init__(self, address: Address, others: tuple[Address, ...] = ()) -> None:
        self._given = (address, *(other for other in others if other != address))
        self._now = address
        self._lock = threading.Lock()

    @property
    def now(self) -> Address:
        """Where to send the next request."""
        return self._now

    @property
    def count(self) -> int:
        """How many addresses were given."""
        return len(self._given)

    def leads(self, url: object) -> bool:
        """Somebody says that the controller at `url` leads; whether that is another than the one in use."""
        address = _address(url)
        with self._lock:
            if address is None or address == self._now:
                return False
            self._now = address
            return True

    def useless(self, address: Address) -> None:
        """This one does not answer, or knows no leader: go on with the next of those that were given."""
        with self._lock:
            if address == self._now and (len(self._given) > 1 or address not in self._given):
                at = self._given.index(address) if address in self._given else -1
                self._now = self._given[(at + 1) % len(self._given)]


def _address(url: object) -> Address | None:
    try:
        parts = urlsplit(str(url))
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port:
            return Address(parts.scheme == "https", parts.hostname, parts.port)
    except ValueError:
        pass
    return None
