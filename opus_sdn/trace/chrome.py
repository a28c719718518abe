"""Reads what PyTorch's profiler writes (Chrome traces, also gzipped) as a recording: a file for each rank.

NCCL's events name group, sizes and peers themselves. Those of other backends do not: there the group of an
operation follows from the worker thread that ran it (each group has its own), and whose a thread is from what
groups of such names are used for. `--group` says it where that is wrong.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opus_sdn.shim.naming import dimension, group_name
from opus_sdn.shim.operations import What
from opus_sdn.trace.chrome_groups import Call, Groups
from opus_sdn.trace.model import (
    ACTS_MAX,
    ALL_REDUCE,
    MESSAGES,
    RANKS_MAX,
    RECEIVE,
    REDUCE_SCATTER,
    Act,
    Numbering,
    RankTrace,
    Recording,
    TraceError,
    canonical,
)

FILE_BYTES_MAX: Final = 1 << 31  # unpacked
SUFFIXES: Final = (".json", ".json.gz")
_RANK_IN_NAME: Final = re.compile(r"rank[_-]?(\d{1,6})")
_ITEM_BYTES: Final = {
    "double": 8,
    "long int": 8,
    "long": 8,
    "float": 4,
    "int": 4,
    "c10::BFloat16": 2,
    "BFloat16": 2,
    "bfloat16": 2,
    "c10::Half": 2,
    "Half": 2,
    "half": 2,
    "short": 2,
    "signed char": 1,
    "unsigned char": 1,
    "char": 1,
    "bool": 1,
    "Float": 4,
    "Double": 8,
    "Long": 8,
    "Int": 4,
    "Byte": 1,
    "Bool": 1,
}
ITEM_BYTES_DEFAULT: Final = 4


def read_chrome(
    paths: Sequence[Path], name: str = "profile", groups: Mapping[str, str] | None = None
) -> Recording:
    """The run in these files. `groups`: kind of operation -> description of its group, before all guesses.

    Raises TraceError.
    """
    found: dict[int, RankTrace] = {}
    world = 0
    notes: list[str] = []
    guessed = 0
    for path in paths:
        document = _load(path)
        one = _File(path, document, groups or {})
        if one.rank in found:
            raise TraceError(f"{path}: holds rank {one.rank}, as another file does")
        found[one.rank] = RankTrace(one.rank, one.acts())
        guessed += one.guessed
        world = max(world, one.world, one.rank + 1)
        if sum(len(rank.acts) for rank in found.values()) > ACTS_MAX:
            raise TraceError(f"{path}: more than {ACTS_MAX} operations in all")
    if not any(rank.acts for rank in found.values()):
        raise TraceError(
            f"{paths[0] if paths else name}: no communication; profile with ProfilerActivity.CPU on"
        )
    if guessed:
        notes.append(f"{guessed} operations were given a group by what such groups are used for; see --group")
    if len(found) < world:
        notes.append(f"traces of {len(found)} of {world} ranks")
    notes.append("clocks: each host's own, not compared")
    return Recording(name, world, tuple(found[rank] for rank in sorted(found)), (), tuple(notes))


def chrome_files(folder: Path) -> list[Path]:
    """The profiler traces in a folder."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES))


def _load(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise TraceError(f"{path}: a trace may have {FILE_BYTES_MAX} bytes, unpacked")
        found = json.loads(raw)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as failed:
        raise TraceError(f"{path}: cannot be read: {failed}") from None
    except (ValueError, RecursionError):
        raise TraceError(f"{path}: is no JSON document") from None
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        raise TraceError(f"{path}: has no traceEvents; `export_chrome_trace` of torch.profiler writes them")
    return found


@dataclass(frozen=True, slots=True)
class _Event:
    name: str
    thread: object
    begin: int  # ns
    end: int
    args: Mapping[str, Any]


class _File:
    """One rank's trace."""

    def __init__(self, path: Path, document: Mapping[str, Any], groups: Mapping[str, str]) -> None:
        self._path = path
        about = document.get("distributedInfo")
        about = about if isinstance(about, dict) else {}
        self.rank = self._rank(about)
        self.world = _whole(about.get("world_size"))
        self._groups = Groups(self.rank, about.get("pg_config"), self.world, groups)
        base = document.get("baseTimeNanoseconds")
        self._base = base if isinstance(base, int) else 0
        self._events = sorted(self._read(document["traceEvents"]), key=lambda event: event.begin)
        self.guessed = 0

    def _rank(self, about: Mapping[str, Any]) -> int:
        rank = about.get("rank")
        if not isinstance(rank, int):
            match = _RANK_IN_NAME.search(self._path.name)
            if match is None:
                raise TraceError(
                    f"{self._path}: says no rank; start the profiler after init_process_group, or name the "
                    "file rank<R>..."
                )
            rank = int(match[1])
        if not 0 <= rank < RANKS_MAX:
            raise TraceError(f"{self._path}: rank is {rank}; wanted 0 to {RANKS_MAX - 1}")
        return rank

    def _read(self, events: Sequence[Any]) -> Iterator[_Event]:
        for event in events:
            if not isinstance(event, dict) or event.get("ph") != "X":
                continue
            name, args = event.get("name"), event.get("args")
            begin, took = event.get("ts"), event.get("dur", 0)
            if not isinstance(name, str) or not isinstance(begin, int | float):
                continue
            interesting = name.startswith(("c10d::", "gloo:", "_c10d_functional::"))
            args = args if isinstance(args, dict) else {}
            if interesting or "Collective name" in args:
                at = self._base + round(begin * 1000)
                yield _Event(name, event.get("tid"), at, at + round(float(took or 0) * 1000), args)

    def acts(self) -> tuple[Act, ...]:
        """The rank's operations in the order of their calls."""
        named = [event for event in self._events if "Collective name" in event.args]
        calls = list(self._named(named)) if named else list(self._unnamed())
        self.guessed = self._groups.resolve(calls)
        numbering = Numbering(self.rank)
        acts = []
        for number, call in enumerate(sorted(calls, key=lambda one: one.begin)):
            what = self._what(call)
            acts.append(
                Act(
                    self.rank,
                    number,
                    what,
                    call.kind,
                    numbering.key(what, call.kind),
                    call.size,
                    call.begin,
                    call.end,
                    call.wait_begin,
                    call.wait_end,
                )
            )
        return tuple(acts)

    def _what(self, call: Call) -> What:
        group = call.group
        assert group is not None  # every call has got one
        ranks, ordinal = group.ranks, group.ordinal
        peer = None
        if call.kind in MESSAGES and call.peer is not None:
            peer = ranks[call.peer] if call.peer < len(ranks) else call.peer
        label = dimension(group.description)
        return What(call.name, group_name(ranks, ordinal), group.description, label, ranks, peer=peer)

    def _named(self, events: Sequence[_Event]) -> Iterator[Call]:
        """NCCL's: kernels where there are any, for these are when the device was at work."""
        kernels = [event for event in events if event.name.startswith("nccl")]
        for event in kernels or events:
            args = event.args
            kind = canonical(str(args["Collective name"]))
            item = _ITEM_BYTES.get(str(args.get("dtype")), ITEM_BYTES_DEFAULT)
            most = max(_whole(args.get("In msg nelems")), _whole(args.get("Out msg nelems")))
            peer = args.get("Src Rank" if kind == RECEIVE else "Dst Rank")
            yield Call(
                name=str(args["Collective name"]),
                kind=kind,
                size=most * item,
                begin=event.begin,
                end=event.end,
                group_name=str(args.get("Process Group Name", "")),
                peer=peer if kind in MESSAGES and isinstance(peer, int) else None,
            )

    def _unnamed(self) -> Iterator[Call]:
        """Host calls, each with the first piece of work of its kind and size that began after it."""
        work = [event for event in self._events if event.name.startswith("gloo:")]
        free: dict[tuple[str, int], list[_Event]] = {}
        for event in reversed(work):
            free.setdefault((canonical(event.name), _elements(event.args, 0)), []).append(event)
        around = _Around([e for e in self._events if e.name.startswith("_c10d_functional::")])
        for event in self._events:
            if not event.name.startswith("c10d::"):
                continue
            kind = canonical(event.name)
            given = _elements(event.args, 1 if "base" in event.name else 0)
            whole = max(given, _elements(event.args, 0))
            kinds = (REDUCE_SCATTER, ALL_REDUCE) if kind == REDUCE_SCATTER else (kind,)
            done = _first_after(event.begin, [free.get((each, given), []) for each in kinds])
            end = done.end if done is not None else event.end
            concrete = event.args.get("Concrete Inputs")
            concrete = concrete if isinstance(concrete, list) else []
            waits = kind not in MESSAGES and "False" in concrete[-2:]
            item = _item_bytes((done or event).args)
            yield Call(
                name=event.name.removeprefix("c10d::").strip("_"),
                kind=kind,
                size=whole * item,
                begin=event.begin,
                end=end,
                wait_begin=event.end if waits and end > event.end else 0,
                wait_end=end if waits and end > event.end else 0,
                functional=around.holds(event),
                peer=int(concrete[2]) if kind in MESSAGES and _is_index(concrete, 2) else None,
                parts=whole // given if given and kind not in MESSAGES else 1,
                thread=done.thread if done is not None and kind not in MESSAGES else None,
            )


class _Around:
    """The functional calls, as DTensor makes them, by thread."""

    def __init__(self, events: Sequence[_Event]) -> None:
        self._by_thread: dict[object, list[_Event]] = {}
        for event in events:
            self._by_thread.setdefault(event.thread, []).append(event)

    def holds(self, inner: _Event) -> bool:
        """Whether the call was made by a functional one."""
        outer = self._by_thread.get(inner.thread, [])
        place = bisect_right(outer, inner.begin, key=lambda event: event.begin)
        return place > 0 and outer[place - 1].end >= inner.end


def _first_after(begin: int, queues: Sequence[list[_Event]]) -> _Event | None:
    """Take the earliest event that began after `begin`; queues have their earliest last."""
    for queue in queues:
        while queue and queue[-1].begin < begin:
            queue.pop()
    waiting = [queue for queue in queues if queue]
    return min(waiting, key=lambda queue: queue[-1].begin).pop() if waiting else None


def _elements(args: Mapping[str, Any], place: int) -> int:
    """Elements of the tensor, or tensors, at a place of the inputs; 0 when it is not told."""
    dims = args.get("Input Dims")
    if not isinstance(dims, list) or len(dims) <= place or not isinstance(dims[place], list):
        return 0
    shape = dims[place]
    if shape and isinstance(shape[0], list):
        return sum(_product(each) for each in shape)
    return _product(shape)


def _product(shape: Sequence[Any]) -> int:
    found = 1
    for length in shape:
        found *= _whole(length)
    return found


def _item_bytes(args: Mapping[str, Any]) -> int:
    types = args.get("Input type")
    first = types[0] if isinstance(types, list) and types else ""
    return _ITEM_BYTES.get(str(first), ITEM_BYTES_DEFAULT)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _is_index(texts: Sequence[Any], place: int) -> bool:
    return len(texts) > place and str(texts[place]).isdecimal()
