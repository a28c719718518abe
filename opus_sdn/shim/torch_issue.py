"""The threads that issue granted operations, one at a time and in grant order, and see them finish.

A thread that has issued an operation waits for it itself; another one issues the next. At least one thread
never waits, so that issuing never depends on an operation that is on its way.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Protocol

THREADS_MAX = 64  # operations in flight beyond this are seen to finish one after the other

log = logging.getLogger(__name__)


class Finishing(Protocol):
    """An operation on its way."""

    def finish(self) -> None:
        """Block until it has finished, and tell whom it concerns. Does not raise."""


class Issuing(Finishing, Protocol):
    """A granted operation."""

    def issue(self) -> bool:
        """Hand it to the device without waiting; False when it failed, and need not be finished."""


class IssueQueue:
    """Issues in the order of `put`. Threads are made when needed and end with `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._granted: deque[Issuing] = deque()
        self._issued: deque[Finishing] = deque()  # not waited for by anybody yet
        self._issuing = False
        self._idle = 0
        self._closed = False
        self._threads: list[threading.Thread] = []

    def put(self, work: Issuing) -> None:
        """Issue this one after all that were put before."""
        with self._changed:
            self._granted.append(work)
            self._call_somebody()

    def claim(self) -> bool:
        """Whether the caller may issue one itself now, as none is before it. It calls `yield_turn` then."""
        with self._lock:
            if self._issuing or self._granted or self._closed:
                return False
            self._issuing = True
            return True

    def yield_turn(self) -> None:
        """What the caller claimed to issue is issued."""
        with self._lock:
            self._issuing = False
            if self._granted:
                self._call_somebody()

    def watch(self, work: Finishing) -> None:
        """Have a thread wait for an operation that was issued by somebody else."""
        with self._changed:
            self._issued.append(work)
            self._call_somebody()

    def close(self, timeout_s: float) -> bool:
        """Let the threads end when nothing is left; False when one is still in an operation after a while."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in threads)

    def _call_somebody(self) -> None:
        """An idle thread, else a new one, else whoever comes back first. Called with the lock held."""
        if self._idle:
            self._changed.notify()
        elif len(self._threads) < THREADS_MAX and not self._closed:
            thread = threading.Thread(
                target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while True:
            work, is_new = self._next()
            if work is None:
                return
            if is_new is not None:
                issued = is_new.issue()
                if not self._issued_one(work, issued):
                    continue
            work.finish()

    def _next(self) -> tuple[Finishing | None, Issuing | None]:
        """The next thing to do: issue and then finish, or only finish. (None, None) to end."""
        with self._changed:
            while True:
                if self._granted and not self._issuing:
                    self._issuing = True
                    work = self._granted.popleft()
                    return work, work
                if self._issued and self._may_wait():
                    return self._issued.popleft(), None
                if self._closed and not self._granted:
                    return None, None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1

    def _issued_one(self, work: Finishing, issued: bool) -> bool:
        """Let the next be issued. Whether this thread is to wait for the operation."""
        with self._changed:
            self._issuing = False
            wait_here = issued and self._may_wait()
            if issued and not wait_here:
                self._issued.append(work)
            if self._granted or self._issued:
                self._call_somebody()
            return wait_here

    def _may_wait(self) -> bool:
        """Somebody else is there, or can be made, to issue what comes."""
        return self._idle > 0 or len(self._threads) < THREADS_MAX
