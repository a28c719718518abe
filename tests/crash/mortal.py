"""`opus serve` that kills itself with SIGKILL at one point: `OPUS_TEST_DIE="before a commit:17"`.

Nothing of the production code knows of it: the store's class and the table of drivers are replaced by ones
that count. Arguments are those of `opus`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

from sqlalchemy import Engine, event

from opus_sdn.api import replica
from opus_sdn.cli import main
from opus_sdn.drivers import registry
from opus_sdn.drivers.base import Driver
from opus_sdn.intent.changes import Batch
from opus_sdn.intent.fabric import Switch
from opus_sdn.store.sql import SqlStore

CALLS = frozenset({"describe", "read", "apply"})


class Countdown:
    """Kills this process when it comes to the given point for the n-th time."""

    def __init__(self, given: str) -> None:
        self._kind, _, n = given.rpartition(":")
        self._left = int(n or 0)

    def __call__(self, kind: str) -> None:
        if kind == self._kind:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class MortalDriver:
    """A driver that counts before and after each call."""

    def __init__(self, inner: Driver, passing: Countdown) -> None:
        self._inner = inner
        self._passing = passing

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._inner, name)
        return self._counted(asked) if name in CALLS else asked

    def _counted(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*given: Any, **named: Any) -> Any:
            self._passing("before a driver call")
            answer = await ask(*given, **named)
            self._passing("after a driver call")
            return answer

        return counted


def arm(passing: Countdown) -> None:
    """Have stores and drivers of this process count."""

    class MortalStore(SqlStore):
        def submit(self, batch: Batch) -> Future[int]:
            stored = super().submit(batch)
            # The first to hear of it, on the writer's thread: the controller does not know yet.
            stored.add_done_callback(lambda _: passing("after a commit"))
            return stored

    event.listen(Engine, "commit", lambda _: passing("before a commit"))
    replica.SqlStore = MortalStore

    def counting(make: Callable[[Switch], Driver]) -> Callable[[Switch], Any]:
        return lambda switch: MortalDriver(make(switch), passing)

    registry.DRIVERS = MappingProxyType({name: counting(make) for name, make in registry.DRIVERS.items()})


if __name__ == "__main__":
    arm(Countdown(os.environ.get("OPUS_TEST_DIE", "")))
    sys.exit(main())
