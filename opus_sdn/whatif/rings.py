"""How a collective is cut into messages around its ring, and what a message takes on a link."""

from __future__ import annotations

from typing import NamedTuple

from opus_sdn.whatif.inputs.schedules import GIGABYTE
from opus_sdn.whatif.inputs.system import System
from opus_sdn.whatif.trace.model import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Operation


class Ring(NamedTuple):
    """A collective over `members` ranks: `chunks` in sequence, each of `sends` messages of `size` bytes.

    The first `reduced` messages of a chunk are added to what the receiver has, which takes `reduction_ns`
    each.
    """

    members: int
    chunks: int
    sends: int
    size: int
    reduced: int
    reduction_ns: int


def ring_of(operation: Operation, members: int, system: System) -> Ring:
    """The ring schedule of a collective over so many ranks."""
    total = operation.size
    chunk = total // system.splits
    if chunk < members and operation.collective != ALL_GATHER:
        chunk, total = members, system.splits * members
    chunks = -(-total // chunk)
    if members == 1:
        return Ring(1, chunks, 0, 0, 0, 0)
    if operation.collective == ALL_GATHER:
        return Ring(members, chunks, members - 1, chunk, 0, 0)
    size = chunk // members
    if operation.collective == REDUCE_SCATTER:
        return Ring(members, chunks, members - 1, size, members - 1, system.reduction_ns(size))
    if operation.collective == ALL_REDUCE:
        return Ring(members, chunks, 2 * (members - 1), size, members - 1, system.reduction_ns(size))
    return Ring(members, chunks, members * (members - 1) // 2, size, 0, 0)


def flight_ns(size: int, gigabytes: float, latency_ns: float) -> tuple[int, int]:
    """After how many ns a message of `size` bytes has arrived, and after how many the link is free again."""
    serial = size / (gigabytes * GIGABYTE / 1e9)
    return int(latency_ns + serial), int(int(serial) + 2 * latency_ns)
