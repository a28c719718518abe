"""Reads and writes the files that ranks record: `<job>.<incarnation>.<rank>.opus.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from opus_sdn.shim.operations import STEP, What
from opus_sdn.shim.recorder import FILE_BYTES_MAX, FORMAT, SUFFIX, VERSION, describe
from opus_sdn.trace.clocks import Offset, offset
from opus_sdn.trace.model import (
    ACTS_MAX,
    RANKS_MAX,
    Act,
    Numbering,
    RankTrace,
    Recording,
    TraceError,
    canonical,
)

LINE_CHARS_MAX: Final = 1 << 20
MAKE_ONE: Final = (
    "`opus trace record -- COMMAND` makes such files, `opus trace import` makes them of profiler traces"
)


def read_recorded(folder: Path) -> Recording:
    """The newest incarnation of the one job whose files are in `folder`. Raises TraceError."""
    heads = [(_head(path), path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    if not heads:
        raise TraceError(f"{folder}: has no *{SUFFIX} file; {MAKE_ONE}")
    jobs = sorted({head["job"] for head, _ in heads})
    if len(jobs) > 1:
        raise TraceError(
            f"{folder}: holds traces of {', '.join(jobs)}; keep each job's in a folder of its own"
        )
    newest = max(head["incarnation"] for head, _ in heads)
    chosen = [(head, path) for head, path in heads if head["incarnation"] == newest]
    read: list[tuple[RankTrace, Offset | None]] = []
    for head, path in sorted(chosen, key=lambda one: int(one[0]["rank"])):
        read.append(_rank(head, path, ACTS_MAX - sum(len(trace.acts) for trace, _ in read)))
    traces = _on_one_clock(read)
    for rank, same in groupby(trace.rank for trace in traces):
        if len(list(same)) > 1:
            raise TraceError(f"{folder}: holds two traces of rank {rank}")
    first = chosen[0][0]
    dimensions = tuple((str(name), int(size)) for name, size in first.get("dimensions", []))
    return Recording(
        jobs[0], first["world"], tuple(traces), dimensions, tuple(_notes(traces, first["world"]))
    )


def write_recorded(recording: Recording, folder: Path) -> None:
    """The recording as such files, its clock taken for the controller's. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in recording.ranks:
        head = {
            "format": FORMAT,
            "version": VERSION,
            "job": recording.name,
            "incarnation": 1,
            "rank": rank.rank,
            "world": recording.world,
            "dimensions": [list(each) for each in recording.dimensions],
        }
        with (folder / f"{recording.name}.1.{rank.rank}{SUFFIX}").open("w", encoding="utf-8") as file:
            for line in (head, *_lines(rank)):
                file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _lines(rank: RankTrace) -> Iterator[dict[str, Any]]:
    numbers: dict[tuple[object, ...], int] = {}
    if rank.lost:
        yield {"lost": rank.lost}
    for act in rank.acts:
        fields = describe(act.what)
        name = tuple(fields.values())
        if name not in numbers:
            numbers[name] = len(numbers)
            yield {"what": numbers[name], **fields, "ranks": list(act.what.ranks)}
        moments = [act.begin, 0, 0, act.begin, act.wait_begin, act.wait_end, act.end]
        yield {"op": [act.number, numbers[name], None, act.size, 0, *moments]}


def _head(path: Path) -> dict[str, Any]:
    first = next(_documents(path), None)
    if first is None or first.get("format") != FORMAT:
        raise TraceError(f"{path}: does not begin as a trace of ours; {MAKE_ONE}")
    if first.get("version") != VERSION:
        raise TraceError(f"{path}: is of version {first.get('version')!r}; this program reads {VERSION}")
    for name, most in (("rank", RANKS_MAX), ("world", RANKS_MAX), ("incarnation", 1 << 53)):
        if not isinstance(first.get(name), int) or not 0 <= first[name] <= most:
            raise TraceError(f"{path}: {name} is {first.get(name)!r}; wanted a number up to {most}")
    if not isinstance(first.get("job"), str):
        raise TraceError(f"{path}: job is {first.get('job')!r}; wanted a name")
    return first


def _documents(path: Path) -> Iterator[dict[str, Any]]:
    """The lines; a last one that was cut short, as a killed rank leaves it, is passed over."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise TraceError(f"{path}: a trace may have {FILE_BYTES_MAX} bytes")
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith("\n"):
                    return
                try:
                    found = json.loads(line[:LINE_CHARS_MAX])
                except ValueError:
                    raise TraceError(f"{path}:{number}: is no JSON document") from None
                if isinstance(found, dict):
                    yield found
    except (OSError, UnicodeDecodeError) as failed:
        raise TraceError(f"{path}: cannot be read: {failed}") from None


def _on_one_clock(read: list[tuple[RankTrace, Offset | None]]) -> list[RankTrace]:
    """Times by the controller's clock, if all ranks know theirs from it; else each rank's own."""
    shifts = [shift for _, shift in read]
    if any(shift is None for shift in shifts):
        return [trace for trace, _ in read]
    return [
        replace(trace, acts=tuple(_moved(act, shift.ns) for act in trace.acts), clock_error_ns=shift.error_ns)
        for trace, shift in read
        if shift is not None
    ]


def _moved(act: Act, by: int) -> Act:
    moved = replace(act, begin=act.begin + by, end=act.end + by)
    if not act.wait_end:
        return moved
    return replace(moved, wait_begin=act.wait_begin + by, wait_end=act.wait_end + by)


def _rank(head: Mapping[str, Any], path: Path, budget: int) -> tuple[RankTrace, Offset | None]:
    whats: dict[int, What] = {}
    lines: list[list[int]] = []
    questions: list[tuple[int, int, int]] = []
    lost = 0
    for number, found in enumerate(_documents(path), 1):
        try:
            if "op" in found:
                lines.append(found["op"])
            elif "what" in found:
                whats[found["what"]] = _what(found)
            elif "clock" in found:
                asked, answered, said_us = found["clock"]
                questions.append((asked, answered, said_us * 1000))
            elif "lost" in found:
                lost = int(found["lost"])
        except (KeyError, TypeError, ValueError) as wrong:
            raise TraceError(f"{path}:{number}: {type(wrong).__name__}: {wrong}") from None
        if len(lines) > budget:
            raise TraceError(f"{path}: more than {ACTS_MAX} operations in all")
    try:
        acts = _acts(int(head["rank"]), lines, whats)
    except (KeyError, TypeError, ValueError, IndexError) as wrong:
        raise TraceError(f"{path}: an operation is not whole: {type(wrong).__name__}: {wrong}") from None
    return RankTrace(int(head["rank"]), acts, None, lost), offset(questions)


def _what(found: Mapping[str, Any]) -> What:
    return What(
        str(found["kind"]),
        str(found["group"]),
        str(found["description"]),
        str(found["dimension"]),
        tuple(int(rank) for rank in found["ranks"]),
        connection=str(found["group"]) if found["gated"] else None,
        peer=None if found["peer"] is None else int(found["peer"]),
    )


def _acts(rank: int, lines: list[list[int]], whats: Mapping[int, What]) -> tuple[Act, ...]:
    """Operations that failed or never ended took no part in anything; ends of steps are none."""
    numbering = Numbering(rank)
    acts = []
    for number, what_number, _n, size, failed, called, *_, wait_begin, wait_end, finished in sorted(lines):
        what = whats[what_number]
        if what.kind == STEP.kind:
            continue
        kind = canonical(what.kind)
        key = numbering.key(what, kind)
        if failed or not (finished or wait_end):
            continue
        waited = wait_begin and wait_end
        acts.append(
            Act(
                rank,
                number,
                what,
                kind,
                key,
                size,
                called,
                finished or wait_end,
                wait_begin if waited else 0,
                wait_end if waited else 0,
            )
        )
    return tuple(acts)


def _notes(traces: list[RankTrace], world: int) -> Iterator[str]:
    known = [trace.clock_error_ns for trace in traces if trace.clock_error_ns is not None]
    if len(known) == len(traces):
        yield f"clocks: known to within {max(known) / 1e3:.0f} us on all ranks"
    else:
        yield "clocks: not compared on all ranks; times of ranks on one machine agree anyway"
    lost = sum(trace.lost for trace in traces)
    if lost:
        yield f"{lost} operations were not recorded: the ranks were faster than their recorders"
    if len(traces) < world:
        yield f"traces of {len(traces)} of {world} ranks"
