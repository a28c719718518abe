"""An event loop with a clock of its own: when nothing can run, time jumps to the next timer.

A test of minutes of delays takes no time and always goes the same way. `asyncio.sleep`, timeouts and
`loop.time()` follow this clock; `time.time()` and threads do not, so the code under test must wait for
nothing outside the loop.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

# Real seconds in which something from outside (a signal, a thread) may still wake a loop that has no timer.
STALL_S = 2.0


class StalledError(RuntimeError):
    """Everything waits and no timer will ever end it: what hangs for ever with a real clock."""


class _JumpingSelector(selectors.BaseSelector):
    """Polls, and moves the clock on by what the loop would have slept."""

    def __init__(self) -> None:
        self.now = 0.0
        self._inner = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._inner.select(0 if timeout is not None else STALL_S)
        if not ready:
            if timeout is None:
                raise StalledError(f"at {self.now} s of virtual time every task waits and no timer is set")
            self.now += max(0.0, timeout)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop that starts at 0 s and never sleeps."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main()` to its end on virtual time, which it reads with `now()`. Raises StalledError on a hang."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main())


def now() -> float:
    """Virtual seconds since the loop of the running test began."""
    return asyncio.get_running_loop().time()
