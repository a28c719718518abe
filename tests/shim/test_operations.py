"""The record of operations: bounded, and every finished one is taken once."""

from __future__ import annotations

import time

from opus_sdn.shim.operations import Operation, OperationLog, What

WHAT = What("allreduce", "ranks-0-1.0", "mesh_dp", "dp")


def numbers(operations: list[Operation]) -> list[int]:
    return [operation.number for operation in operations]


def test_the_ring_keeps_the_newest_records_and_a_follower_counts_what_it_missed() -> None:
    log = OperationLog(capacity=4)
    log.begin(WHAT, 8)
    follower = log.follow()
    for _ in range(6):
        log.begin(WHAT, 8).finished_ns = 1
    assert numbers(log.newest()) == [3, 4, 5, 6]
    assert numbers(follower.take()) == [3, 4, 5, 6]
    assert follower.lost == 2, "1 and 2; 0 was there before the follower"
    log.begin(WHAT, 8).finished_ns = 1
    assert numbers(follower.take()) == [7]
    assert follower.lost == 2


def test_a_record_is_taken_once_its_operation_has_finished_and_its_wait_is_over() -> None:
    log = OperationLog()
    follower = log.follow()
    early, late = log.begin(WHAT, 8), log.begin(WHAT, 16)
    assert follower.take() == []
    late.finished_ns = time.monotonic_ns()
    early.wait_begin_ns = time.monotonic_ns()
    early.finished_ns = time.monotonic_ns()
    assert follower.take() == [late]
    early.wait_end_ns = time.monotonic_ns()
    assert follower.take() == [early]
    assert follower.take() == []


def test_at_the_end_unfinished_records_are_given_as_they_are() -> None:
    log = OperationLog()
    follower = log.follow()
    hanging = log.begin(WHAT, 8)
    assert follower.take() == []
    assert follower.take(unfinished_too=True) == [hanging]
    assert follower.take(unfinished_too=True) == []
