"""An event loop that somebody else turns: a process of the simulated world, cut off between any callbacks.

It has no selector, no thread and no clock of its own. The world asks when its next timer is due, moves time
there and lets it run; a process that has died or is paused is a loop that is not turned any more.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections.abc import Callable
from typing import Any

CALLBACKS_MAX = 20_000  # in one turn; more is a loop that never comes to rest


class LivelockError(AssertionError):
    """Callbacks call each other for ever without time passing."""


class SimLoop(asyncio.BaseEventLoop):
    """`now` is the world's clock. Whatever runs in a thread elsewhere runs at once here."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self._now = now
        self.dead = False  # nothing runs any more, whatever is ready

    def time(self) -> float:
        return self._now()

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 (whoever waits is told)
            done.set_exception(error)
        return done

    def next_timer(self) -> float | None:
        """When the loop next has something to do by itself; None when only others can wake it."""
        while self._scheduled and self._scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(self._scheduled)._scheduled = False
        return self._scheduled[0]._when if self._scheduled else None

    @property
    def is_idle(self) -> bool:
        """Nothing can run before time passes or somebody calls."""
        return not self._ready

    def turn(self) -> None:
        """Run all that can run now, timers that are due included."""
        while (due := self.next_timer()) is not None and due <= self.time():
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            self._ready.append(handle)
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for _ in range(CALLBACKS_MAX):
                if not self._ready or self.dead:
                    return
                handle = self._ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            events._set_running_loop(outer)
        raise LivelockError(f"more than {CALLBACKS_MAX} callbacks at {self.time():.6f} s")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback that raises is a bug, and an invariant that breaks in one must not be lost."""
        error = context.get("exception")
        if isinstance(error, BaseException) and "never retrieved" not in context["message"]:
            raise error

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: object) -> None:
        pass
