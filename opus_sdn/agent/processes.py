"""Watches the processes of ranks: the kernel says when one has ended, and whose number it was.

A process is held by a descriptor, so that a number which is used again names nobody else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final, NamedTuple

GATHER_S: Final = 0.05  # ranks of a host often end together


class RankOf(NamedTuple):
    """A rank in one life of a job, at the controller it speaks to."""

    authority: str
    job: str
    incarnation: int
    rank: int


Report = Callable[[RankOf, int], None]
"""Called with a rank and the number its process had."""


class Processes:
    """Ranks and their processes. Must be used in one event loop."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._descriptors: dict[int, int] = {}  # by process
        self._ranks: dict[int, dict[RankOf, None]] = {}

    @property
    def count(self) -> int:
        """How many processes are watched."""
        return len(self._descriptors)

    def watch(self, pid: int, rank: RankOf) -> None:
        """This process is that rank. Nothing happens when it is known already, or has ended."""
        if pid not in self._descriptors:
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:
                return  # it has just ended; its lease will tell
            self._descriptors[pid] = descriptor
            asyncio.get_running_loop().add_reader(descriptor, self._ended, pid)
        self._ranks.setdefault(pid, {})[rank] = None

    def left(self, pid: int, rank: RankOf) -> None:
        """It has left its job in order: its end means nothing to anybody."""
        ranks = self._ranks.get(pid, {})
        ranks.pop(rank, None)
        if not ranks:
            self._forget(pid)

    def _ended(self, pid: int) -> None:
        for rank in self._ranks.get(pid, {}):
            self._report(rank, pid)
        self._forget(pid)

    def _forget(self, pid: int) -> None:
        self._ranks.pop(pid, None)
        descriptor = self._descriptors.pop(pid, None)
        if descriptor is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Watch nobody any more."""
        for pid in list(self._descriptors):
            self._forget(pid)
