"""Which group an operation of a profiler trace belongs to, where the trace does not say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opus_sdn.shim.naming import dimension
from opus_sdn.trace.model import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    MESSAGES,
    RECEIVE,
    REDUCE_SCATTER,
    SEND,
)

# What groups are used for: by the dimension in their description, the likeliest first.
_SHARDED: Final = ("dp_shard", "fsdp", "dp", "dp_shard_cp", "dp_cp")
USED_FOR: Final = {
    SEND: ("pp", "cp"),
    RECEIVE: ("pp", "cp"),
    ALL_GATHER: _SHARDED,
    REDUCE_SCATTER: _SHARDED,
    ALL_TO_ALL: ("ep", "cp"),
    ALL_REDUCE: ("dp_replicate", "dp", "tp"),
}
FUNCTIONAL: Final = ("tp", "cp", "ep")  # DTensor's all-reduces
GROUPS_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class GroupOf:
    """A group of this rank: `ordinal` counts groups of the same ranks."""

    name: str
    description: str
    ranks: tuple[int, ...]
    ordinal: int


@dataclass(slots=True)
class Call:
    """One operation, before and after its group is known. `peer` is a rank within the group; `parts`: by how
    much the larger side is larger, the group's size for gathers; `thread` ran it; `functional`: for DTensor.
    """

    name: str
    kind: str
    size: int
    begin: int
    end: int
    wait_begin: int = 0
    wait_end: int = 0
    group_name: str = ""
    peer: int | None = None
    parts: int = 1
    thread: object = None
    functional: bool = False
    group: GroupOf | None = None


class Groups:
    """The groups of one rank, from what the profiler says of the run."""

    def __init__(self, rank: int, config: object, world: int, told: Mapping[str, str]) -> None:
        """`told`: kind of operation -> description or dimension of its group."""
        self._told = told
        self.names: dict[str, GroupOf] = {}
        ordinals: dict[tuple[int, ...], int] = {}
        for each in _described(config):
            ranks = _ranks(each.get("ranks")) or (tuple(range(world)) if world else ())
            if len(ranks) > 1 and rank in ranks and len(self.names) < GROUPS_MAX:
                ordinal = ordinals[ranks] = ordinals.get(ranks, -1) + 1
                name = str(each.get("pg_name"))
                self.names[name] = GroupOf(name, str(each.get("pg_desc", "")), ranks, ordinal)
        if not self.names:
            everybody = tuple(range(max(world, rank + 1)))
            self.names["0"] = GroupOf("0", "default_pg", everybody, 0)
        self._default = next(iter(self.names.values()))

    def resolve(self, calls: Sequence[Call]) -> int:
        """Give every call its group; returns how many got theirs by custom alone."""
        for call in calls:
            call.group = self.names.get(call.group_name) or self._told_group(call)
        owners = _owners(call for call in calls if call.group is not None)
        for call in calls:
            if call.group is None:
                call.group = owners.get(call.thread)
        guessed = [call for call in calls if call.group is None]
        for call in guessed:
            if call.kind != ALL_REDUCE or call.functional:
                call.group = self._customary(call)
        owners |= _owners(call for call in guessed if call.group is not None)
        for call in guessed:
            if call.group is None:
                call.group = owners.get(call.thread)
        idle = self._without_work(calls)
        for call in guessed:
            if call.group is None:
                call.group = idle[0] if len(idle) == 1 else self._customary(call)
        return len(guessed)

    def _told_group(self, call: Call) -> GroupOf | None:
        wanted = self._told.get(call.kind)
        if wanted is None:
            return self._default if len(self.names) == 1 else None
        fitting = (g for g in self.names.values() if wanted in (g.description, dimension(g.description)))
        return next(fitting, None)

    def _customary(self, call: Call) -> GroupOf:
        fitting = [group for group in self.names.values() if self._fits(group, call)]
        labels = {dimension(group.description): group for group in reversed(fitting)}
        custom = USED_FOR.get(call.kind, ())
        for label in (*FUNCTIONAL, *custom) if call.functional else custom:
            if label in labels:
                return labels[label]
        return fitting[0] if fitting else self._default

    @staticmethod
    def _fits(group: GroupOf, call: Call) -> bool:
        if call.kind in MESSAGES:
            return call.peer is None or call.peer < len(group.ranks)
        return call.parts in (1, len(group.ranks))

    def _without_work(self, calls: Sequence[Call]) -> list[GroupOf]:
        """Groups, but for the world's, of which no collective is known: threads nobody owns may be theirs."""
        busy = {call.group.name for call in calls if call.group is not None and call.kind not in MESSAGES}
        return [g for g in self.names.values() if g.name not in busy and g is not self._default]


def _owners(calls: Iterable[Call]) -> dict[object, GroupOf]:
    """Whose worker each thread is: that of the group most of its known work was for."""
    votes: dict[object, Counter[GroupOf]] = {}
    for call in calls:
        if call.thread is not None and call.group is not None:
            votes.setdefault(call.thread, Counter())[call.group] += 1
    return {thread: count.most_common(1)[0][0] for thread, count in votes.items()}


def _described(config: object) -> list[Mapping[str, Any]]:
    if isinstance(config, dict):
        config = list(config.values())
    return [each for each in config if isinstance(each, dict)] if isinstance(config, list) else []


def _ranks(found: object) -> tuple[int, ...]:
    if isinstance(found, dict):
        found = [int(rank) for rank in found if str(rank).isdecimal()]
    if not isinstance(found, list) or not all(isinstance(rank, int) for rank in found):
        return ()
    return tuple(found)
