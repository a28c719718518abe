"""Ranks that replay a trace on a virtual clock: compute and scale-up traffic here, the rest through a gate.

Every rank computes one thing at a time and has one communication slot. Receives take no slot. A gated
operation asks the gate when it is ready and the slot is free; while it waits for its grant it holds the slot
only with `hold`. Whatever is ready is tried in ascending order of position, granted operations among
themselves in the order of their grants. There is one event per operation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, Protocol

from opus_sdn.whatif.inputs.system import System
from opus_sdn.whatif.opus.outcome import NOTHING, SHIFT, Outcome, cause_of_grant
from opus_sdn.whatif.opus.transfers import End, Transfers
from opus_sdn.whatif.trace.model import COLLECTIVE, COMPUTE, METADATA, RECEIVE, SEND, Graph, Trace

FREE: Final = -1
TIMER: Final = -1  # instead of a rank, in an event that is the gate's


class Gate(Protocol):
    """Decides when operations that need circuits may begin."""

    def gates(self, rank: int, position: int) -> bool:
        """Whether this operation needs a grant."""
        ...

    def arrive(self, rank: int, position: int, cause: int) -> None:
        """The rank is at this operation, because of the end of node `cause`."""
        ...

    def wait(self, rank: int) -> bool:
        """The rank can do nothing more before something that it is at. Whether that is news."""
        ...

    def finish(self, rank: int, position: int) -> None:
        """The operation has finished on this rank."""
        ...

    def leave(self, rank: int) -> None:
        """The rank has finished everything."""
        ...

    def decide(self, now_ns: int) -> Sequence[tuple[int, int, int]]:
        """Everything that can be granted now, as (rank, position, grant), in order; grants count from 0."""
        ...

    def timers(self) -> Sequence[tuple[int, int]]:
        """What is new to be waited for: (time, token)."""
        ...

    def fire(self, now_ns: int, token: int) -> None:
        """The time of a token has come."""
        ...


def _shared(trace: Trace, make: Callable[[Graph], list[int]]) -> list[list[int]]:
    """Something of each rank's graph, made once for each distinct graph."""
    known = {id(graph): make(graph) for graph in trace.graphs}
    return [known[id(rank.graph)] for rank in trace.ranks]


class Replay:
    """One run. `run` returns when nothing can happen any more."""

    def __init__(
        self,
        trace: Trace,
        system: System,
        transfers: Transfers,
        gate: Gate | None = None,
        *,
        hold: bool = False,
    ) -> None:
        ranks = trace.ranks
        self.transfers, self._gate, self._hold = transfers, gate, hold
        self._kinds = _shared(trace, lambda graph: [op.kind for op in graph.operations])
        self._durations = _shared(
            trace,
            lambda graph: [system.compute_ns(op) if op.kind == COMPUTE else 0 for op in graph.operations],
        )
        self._children = [rank.graph.children for rank in ranks]
        self._missing = [list(rank.graph.indegree) for rank in ranks]
        self._left = [len(rank.graph) for rank in ranks]
        self.gated: list[list[bool]] = [
            [gate is not None and kind >= SEND and gate.gates(r, p) for p, kind in enumerate(kinds)]
            for r, kinds in enumerate(self._kinds)
        ]
        self._to_compute: list[list[int]] = [[] for _ in ranks]
        self._to_send: list[list[int]] = [[] for _ in ranks]
        self.granted: list[deque[tuple[int, int]]] = [deque() for _ in ranks]
        self._last = [NOTHING] * len(ranks)  # the node of each rank that ended last
        self._computing = [False] * len(ranks)
        self.slot = [FREE] * len(ranks)
        self._asked: dict[int, None] = {}  # ranks that are at an operation since this very instant
        self._events: list[tuple[int, int, int, int]] = []
        self._number = 0
        self._gate_has_news = gate is not None
        self.out = Outcome.blank(trace)

    def run(self) -> Outcome:
        """Replay the whole step; in the outcome, unfinished ranks have `finish_ns` NOTHING."""
        for rank, missing in enumerate(self._missing):
            for position, count in enumerate(missing):
                if not count:
                    self._ready(rank, position, 0, NOTHING)
            if not missing:
                self._finished(rank, 0)
        for rank in range(len(self._missing)):
            self._start(rank, 0)
        events, gate = self._events, self._gate
        now = 0
        while True:
            if self._gate_has_news and not (events and events[0][0] == now):
                self._ask_gate(now)
                continue
            if not events:
                break
            now, _, rank, position = heappop(events)
            if rank != TIMER:
                self._complete(rank, position, now)
            elif gate is not None:
                gate.fire(now, position)
                self._gate_has_news = True
        self.out.now_ns = now
        return self.out

    # --- nodes

    def _complete(self, rank: int, position: int, now: int) -> None:
        kind = self._kinds[rank][position]
        self.out.ended_ns[rank][position] = now
        if kind == COMPUTE:
            self._computing[rank] = False
        elif kind not in (RECEIVE, METADATA):
            self.slot[rank] = FREE
        if self.gated[rank][position]:
            assert self._gate is not None
            self._gate.finish(rank, position)
            self._gate_has_news = True
        node = self._last[rank] = rank << SHIFT | position
        missing = self._missing[rank]
        for child in self._children[rank][position]:
            missing[child] -= 1
            if not missing[child]:
                self._ready(rank, child, now, node)
        self._left[rank] -= 1
        if self._left[rank]:
            self._start(rank, now)
        else:
            self._finished(rank, now)

    def _finished(self, rank: int, now: int) -> None:
        self.out.finish_ns[rank] = now
        if self._gate is not None:
            self._gate.leave(rank)
            self._gate_has_news = True

    def _ready(self, rank: int, position: int, now: int, cause: int) -> None:
        kind = self._kinds[rank][position]
        if kind == COMPUTE:
            heappush(self._to_compute[rank], position)
        elif kind == RECEIVE:
            self._begun(rank, position, now, cause)
            if self.gated[rank][position]:
                self._arrive(rank, position, cause)
            self._schedule(self.transfers.post(rank, position, now))
        elif kind == METADATA:
            self._begun(rank, position, now, cause)
            self._at(now, rank, position)
        else:
            heappush(self._to_send[rank], position)

    def _start(self, rank: int, now: int, granted: bool = False) -> None:
        """One scheduling pass of a rank: whatever is ready and has its unit free begins.

        `granted`: the pass is because of a grant; otherwise it is because of the node that ended last.
        """
        trigger = self._last[rank]
        to_compute = self._to_compute[rank]
        if to_compute and not self._computing[rank]:
            position = heappop(to_compute)
            self._computing[rank] = True
            self._begun(rank, position, now, trigger)
            self._at(now + self._durations[rank][position], rank, position)
        waiting, ready = self.granted[rank], self._to_send[rank]
        while self.slot[rank] == FREE:
            asked = rank in self._asked
            if waiting and (not ready or asked or waiting[0][0] < ready[0]):
                position, grant = waiting.popleft()
                # A grant that had to wait for the slot hangs on whatever freed it.
                self._begin(rank, position, now, cause_of_grant(grant) if granted else trigger)
            elif ready and not asked:
                position = heappop(ready)
                if self.gated[rank][position]:
                    self._asked[rank] = None
                    self._arrive(rank, position, trigger)
                    if self._hold:
                        self.slot[rank] = position
                else:
                    self._begin(rank, position, now, trigger)
            else:
                break
        if self._gate is not None and self._is_idle(rank):
            self._gate_has_news |= self._gate.wait(rank)

    def _is_idle(self, rank: int) -> bool:
        """Nothing runs on the rank, and it is at nothing that the gate has not heard of."""
        slot = self.slot[rank]
        busy = slot != FREE and self.out.started_ns[rank][slot] != NOTHING
        return not busy and not self._computing[rank] and rank not in self._asked

    def _begin(self, rank: int, position: int, now: int, trigger: int) -> None:
        self.slot[rank] = position
        self._begun(rank, position, now, trigger)
        begin = self.transfers.join_ring if self._kinds[rank][position] == COLLECTIVE else self.transfers.send
        self._schedule(begin(rank, position, now))

    def _begun(self, rank: int, position: int, now: int, trigger: int) -> None:
        self.out.started_ns[rank][position] = now
        self.out.begun_by[rank][position] = trigger

    def _schedule(self, ends: Iterable[End]) -> None:
        for when, rank, position, decisive in ends:
            self.out.decided_by[rank][position] = decisive
            self._at(when, rank, position)

    def _at(self, when: int, rank: int, position: int) -> None:
        self._number += 1
        heappush(self._events, (when, self._number, rank, position))

    # --- gated operations

    def _arrive(self, rank: int, position: int, cause: int) -> None:
        assert self._gate is not None
        self._gate.arrive(rank, position, cause)
        self._gate_has_news = True

    def _ask_gate(self, now: int) -> None:
        """Nothing else happens in this instant: let the gate decide, and go on with the ranks concerned."""
        assert self._gate is not None
        self._gate_has_news = False
        touched: dict[int, None] = {}
        for rank, position, grant in self._gate.decide(now):
            if self._kinds[rank][position] == RECEIVE:
                continue
            if self._hold:  # it has the slot already
                self._begin(rank, position, now, cause_of_grant(grant))
            else:
                self.granted[rank].append((position, grant))
            touched[rank] = None
        touched |= self._asked
        self._asked.clear()
        for rank in touched:
            self._start(rank, now, granted=True)
        for when, token in self._gate.timers():
            self._at(when, TIMER, token)
