"""The scheduler of one rank in the published model, for all ranks: what is ready, and what runs.

A rank has one slot for computing and one for sends and collectives together; receives need none. Its
scheduling pass tries what is ready in ascending order of node ids, once. Passes happen at the start, after
each of the rank's own completions and when nothing at all is left to happen; nothing else wakes a rank.
"""

from __future__ import annotations

from bisect import insort

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.hints import DATA_PARALLEL
from opus_sdn.whatif.peer.control import Control
from opus_sdn.whatif.result import Result
from opus_sdn.whatif.rings import Ring, ring_of
from opus_sdn.whatif.scenario import Mode, Scenario
from opus_sdn.whatif.trace.model import COLLECTIVE, COMPUTE, METADATA, RECEIVE, SEND, Graph, Operation

IDLE = -1
NONE = 1 << 62  # a position behind all others


class Ranks:
    """All ranks of a scenario. An engine says when what was begun has finished, by calling `complete`."""

    name = "peer"

    def __init__(self, scenario: Scenario) -> None:
        trace = scenario.trace
        if scenario.schedules.ranks != len(trace.ranks):
            why = f"the schedules join {scenario.schedules.ranks} ranks, the trace has {len(trace.ranks)}"
            raise InputError(why, file="schedules")
        self.scenario = scenario
        self.trace = trace
        self.now = 0
        self.control = Control(scenario.schedules, trace.groups)
        self.finish = [0] * len(trace.ranks)
        self.reconfigurations: list[tuple[int, int | str]] = [(0, 0)]
        self.finished: list[list[int | None]] = [[] for _ in trace.ranks]
        programs = {graph: _Program(graph, scenario) for graph in trace.graphs}
        self.programs = [programs[rank.graph] for rank in trace.ranks]
        self.partners = [rank.partners for rank in trace.ranks]
        self.switched = [self.control.switched(group) for group in range(len(trace.groups))]
        self.computing = [IDLE] * len(trace.ranks)
        self.talking = [IDLE] * len(trace.ranks)
        self.receiving: list[set[int]] = [set() for _ in trace.ranks]
        self.left = [len(rank.graph) for rank in trace.ranks]
        self._waiting = [list(rank.graph.indegree) for rank in trace.ranks]
        self.ready_compute: list[list[int]] = [[] for _ in trace.ranks]
        self.ready_talk: list[list[int]] = [[] for _ in trace.ranks]
        self._ready_receives = [0] * len(trace.ranks)
        self._voting: set[int] = set()  # groups that have been found to lack votes in this pass
        for rank, program in enumerate(self.programs):
            for position in program.roots:
                self._make_ready(rank, position)
        hints = scenario.hints if scenario.mode is Mode.PROVISION else None
        self._hints = [(hints or {}).get(rank) for rank in range(len(trace.ranks))]
        self._rings: dict[Ring, Ring] = {}
        self.started = [[0] * len(rank.graph) for rank in trace.ranks]
        self.ended = [[0] * len(rank.graph) for rank in trace.ranks]

    def run(self) -> Result:
        """The whole step. Raises CannotFinishError."""
        raise NotImplementedError

    # What an engine has to do when the scheduler begins something.

    def begin_compute(self, rank: int, position: int, duration: int) -> None:
        """Let a computation run for `duration` ns."""
        raise NotImplementedError

    def begin_collective(self, rank: int, position: int, group: int) -> None:
        """Let `rank` take part in a collective of `group`."""
        raise NotImplementedError

    def begin_send(self, rank: int, position: int, peer: int) -> None:
        """Send a message."""
        raise NotImplementedError

    def begin_receive(self, rank: int, position: int, peer: int) -> None:
        """Post a receive."""
        raise NotImplementedError

    def begin_move(self) -> None:
        """A request for another topology was accepted."""
        raise NotImplementedError

    # The scheduler.

    def ring(self, rank: int, position: int, members: int) -> Ring:
        """The ring schedule of a collective."""
        program = self.programs[rank]
        key = (position, members)
        ring = program.rings.get(key)
        if ring is None:
            operation = program.graph.operations[position]
            ring = ring_of(operation, members, self.scenario.system)
            ring = program.rings[key] = self._rings.setdefault(ring, ring)
        return ring

    def schedule(self, rank: int) -> None:
        """One scheduling pass."""
        if self.programs[rank].instant:
            self._schedule_one_by_one(rank)
            return
        compute = self.ready_compute[rank]
        first = compute[0] if compute and self.computing[rank] == IDLE else NONE
        if self.ready_talk[rank] and (self.talking[rank] == IDLE or self._ready_receives[rank]):
            self._voting.clear()
            for position in tuple(self.ready_talk[rank]):
                if first < position:
                    self._compute(rank)
                    first = NONE
                self._try_talk(rank, position)
        if first != NONE:
            self._compute(rank)

    def _schedule_one_by_one(self, rank: int) -> None:
        """A pass over a program in which some computations take no time: they finish as they are tried.

        What waited for such a node becomes ready but is not tried in this pass.
        """
        program = self.programs[rank]
        self._voting.clear()
        for position in sorted(self.ready_compute[rank] + self.ready_talk[rank]):
            if program.kinds[position] != COMPUTE:
                self._try_talk(rank, position)
            elif self.computing[rank] == IDLE:
                if program.durations[position] is None:
                    self.ready_compute[rank].remove(position)
                    self.started[rank][position] = self.ended[rank][position] = self.now
                    self._release(rank, position)
                else:
                    self._compute(rank, position)

    def _compute(self, rank: int, position: int = IDLE) -> None:
        """Begin the first ready computation, or the one named."""
        ready = self.ready_compute[rank]
        if position == IDLE:
            position = ready[0]
        ready.remove(position)
        duration = self.programs[rank].durations[position]
        assert duration is not None
        self.computing[rank] = position
        self.started[rank][position] = self.now
        self.begin_compute(rank, position, duration)

    def _try_talk(self, rank: int, position: int) -> None:
        kind = self.programs[rank].kinds[position]
        partner = self.partners[rank][position]
        if kind == RECEIVE:
            self.ready_talk[rank].remove(position)
            self._ready_receives[rank] -= 1
            self.receiving[rank].add(position)
            self.started[rank][position] = self.now
            self.begin_receive(rank, position, partner)
            return
        if self.talking[rank] != IDLE:
            return
        moves = False
        if kind == SEND:
            allowed, moves = self.control.may_send(rank, partner)
        elif self.switched[partner]:
            if partner in self._voting:  # another try would find what the last one found
                self.control.votes_waited += 1
                return
            if not self.control.vote(rank, partner):
                self._voting.add(partner)
                return
            allowed, moves = self.control.may_start(rank, partner)
        else:
            allowed = True
        if moves:
            self._moved()
        if not allowed:
            return
        self.ready_talk[rank].remove(position)
        self.talking[rank] = position
        self.started[rank][position] = self.now
        if kind == SEND:
            self.begin_send(rank, position, partner)
        else:
            self.begin_collective(rank, position, partner)

    def _moved(self) -> None:
        self.reconfigurations.append((self.now, self.control.topology))
        self.begin_move()

    def complete(self, rank: int, position: int) -> None:
        """A node has finished: what it held is free, what waited for it ready, and the rank looks around."""
        kind = self.programs[rank].kinds[position]
        if kind == COMPUTE:
            self.complete_compute(rank, position)
            return
        self.ended[rank][position] = self.now
        if kind == RECEIVE:
            self.receiving[rank].discard(position)
        else:
            self.talking[rank] = IDLE
        self._release(rank, position)
        self._communicated(rank, kind, self.partners[rank][position])
        self.schedule(rank)

    def complete_compute(self, rank: int, position: int) -> None:
        """`complete` for a computation. Most of a step is this, so its usual course is written out."""
        program, now = self.programs[rank], self.now
        self.ended[rank][position] = now
        self.computing[rank] = IDLE
        self._release(rank, position)
        if program.instant or (
            self.ready_talk[rank] and (self.talking[rank] == IDLE or self._ready_receives[rank])
        ):
            self.schedule(rank)
            return
        ready = self.ready_compute[rank]
        if ready:
            position = ready.pop(0)
            self.computing[rank] = position
            self.started[rank][position] = now
            self.begin_compute(rank, position, program.durations[position] or 0)

    def _communicated(self, rank: int, kind: int, partner: int) -> None:
        done = self.finished[rank]
        index = len(done)
        used: int | None = partner
        if kind == COLLECTIVE:
            used = DATA_PARALLEL if self.switched[partner] else None
            if used is not None:
                self.control.finish(rank, partner)
        done.append(used)
        hints = self._hints[rank]
        if hints and index in hints:
            for target in hints[index]:
                # Where a step runs otherwise than the one that the hints are of, they may name what has just
                # been used. Such a hint asks for nothing, nor does it set any bit.
                if target != used and self.control.hint(rank, target):
                    self._moved()

    def _release(self, rank: int, position: int) -> None:
        left = self.left[rank] = self.left[rank] - 1
        if not left:
            self.finish[rank] = self.now
        program, waiting = self.programs[rank], self._waiting[rank]
        for child in program.children[position]:
            count = waiting[child] = waiting[child] - 1
            if not count:
                if program.kinds[child] == COMPUTE:
                    insort(self.ready_compute[rank], child)
                else:
                    self._make_ready(rank, child)

    def _make_ready(self, rank: int, position: int) -> None:
        kind = self.programs[rank].kinds[position]
        if kind == COMPUTE:
            insort(self.ready_compute[rank], position)
            return
        insort(self.ready_talk[rank], position)
        if kind == RECEIVE:
            self._ready_receives[rank] += 1

    def result(self) -> Result:
        """The finished step."""
        return Result(
            semantics=self.name,
            mode=str(self.scenario.mode),
            finish_ns=max(self.finish),
            finish_ns_per_rank=list(self.finish),
            reconfigurations=list(self.reconfigurations),
            finished_communications=self.finished,
            started_ns=self.started,
            ended_ns=self.ended,
            details={"rejected_requests": self.control.rejected, "vote_waits": self.control.votes_waited},
        )


class _Program:
    """A graph with what its computations take on the scenario's machine; None for those that do nothing."""

    __slots__ = ("children", "durations", "graph", "instant", "kinds", "rings", "roots")

    def __init__(self, graph: Graph, scenario: Scenario) -> None:
        self.graph = graph
        self.rings: dict[tuple[int, int], Ring] = {}
        self.children = graph.children
        self.kinds = [COMPUTE if o.kind == METADATA else o.kind for o in graph.operations]
        self.durations = [_duration(operation, scenario) for operation in graph.operations]
        self.roots = [position for position, count in enumerate(graph.indegree) if count == 0]
        computes = (d for kind, d in zip(self.kinds, self.durations, strict=True) if kind == COMPUTE)
        self.instant = None in computes


def _duration(operation: Operation, scenario: Scenario) -> int | None:
    if operation.kind != COMPUTE:
        return None
    duration = scenario.system.compute_ns(operation)
    return None if duration == 0 and operation.size == 0 else duration
