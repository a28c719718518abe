"""Granted operations are issued one at a time in the order of their grants, whatever is still on its way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from opus_sdn.shim.torch_issue import THREADS_MAX, IssueQueue

WAIT_S = 30.0


class Operation:
    """An operation that finishes when told to; notes when it was issued and finished."""

    def __init__(
        self,
        log: list[str],
        name: str,
        finish: Callable[[], object] = lambda: None,
        fails: bool = False,
    ) -> None:
        self.log, self.name, self.fails = log, name, fails
        self._finish = finish
        self.issued, self.finished = threading.Event(), threading.Event()

    def issue(self) -> bool:
        self.log.append(f"+{self.name}")
        time.sleep(0.0002)  # long enough for another thread to come in between
        self.issued.set()
        self.log.append(f"-{self.name}")
        return not self.fails

    def finish(self) -> None:
        self._finish()
        self.finished.set()


@pytest.mark.parametrize("after", ["the next one", "the last one"])
def test_operations_are_issued_in_order_even_when_each_ends_only_after_others_were_issued(after: str) -> None:
    count = 2 * THREADS_MAX
    log: list[str] = []
    operations: list[Operation] = []

    def until_issued(k: int) -> None:
        """As it may be with NCCL and gloo: a peer issues both before it can finish the first."""
        other = min(k + 1, count - 1) if after == "the next one" else count - 1
        assert operations[other].issued.wait(2 * WAIT_S)

    operations.extend(Operation(log, str(k), partial(until_issued, k)) for k in range(count))
    queue = IssueQueue("test")
    for operation in operations:
        queue.put(operation)
    for operation in operations:
        assert operation.finished.wait(WAIT_S)
    assert log == [f"{sign}{k}" for k in range(count) for sign in "+-"]
    assert queue.close(WAIT_S)


def test_one_operation_that_takes_long_keeps_no_other_from_finishing() -> None:
    gate = threading.Event()
    slow = Operation([], "slow", lambda: gate.wait(2 * WAIT_S))
    quick = [Operation([], "quick") for _ in range(10)]
    queue = IssueQueue("test")
    for operation in (slow, *quick):
        queue.put(operation)
    assert all(operation.finished.wait(WAIT_S) for operation in quick)
    assert not slow.finished.is_set()
    gate.set()
    assert slow.finished.wait(WAIT_S)
    assert queue.close(WAIT_S)


def test_an_operation_that_could_not_be_issued_is_not_waited_for() -> None:
    log: list[str] = []
    failed, after = Operation(log, "failed", fails=True), Operation(log, "after")
    queue = IssueQueue("test")
    queue.put(failed)
    queue.put(after)
    assert after.finished.wait(WAIT_S)
    assert queue.close(WAIT_S)
    assert not failed.finished.is_set()


def test_operations_issued_elsewhere_can_be_watched_without_end() -> None:
    gate = threading.Event()
    watched = [Operation([], "watched", lambda: gate.wait(2 * WAIT_S)) for _ in range(2 * THREADS_MAX)]
    queue = IssueQueue("test")
    for operation in watched:
        queue.watch(operation)
    issued = Operation([], "issued")
    queue.put(issued)  # there is always somebody left to issue
    assert issued.issued.wait(WAIT_S)
    gate.set()
    assert all(operation.finished.wait(WAIT_S) for operation in (*watched, issued))
    assert queue.close(WAIT_S)


def test_closing_says_whether_a_thread_is_left_behind() -> None:
    gate = threading.Event()
    stuck = Operation([], "stuck", lambda: gate.wait(2 * WAIT_S))
    queue = IssueQueue("test")
    queue.put(stuck)
    assert stuck.issued.wait(WAIT_S)
    assert not queue.close(0.05)
    gate.set()
    assert queue.close(WAIT_S)
