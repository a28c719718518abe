"""Broken traces end in an error that names file, node and field: no hang, no crash, bounded memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from benchmarks.traces import (
    ALL_REDUCE,
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    Node,
    Shape,
    encode,
    varint,
)
from opus_sdn.whatif.engine import Step, make_scenario, replay
from opus_sdn.whatif.errors import CannotFinishError, InputError
from opus_sdn.whatif.inputs.schedules import Schedules
from opus_sdn.whatif.inputs.system import System
from opus_sdn.whatif.trace import load
from opus_sdn.whatif.trace.load import build_trace
from opus_sdn.whatif.trace.model import Group, Trace

SHAPE = Shape(dp=2, pp=2, tp=1, layers=1)
GROUPS = tuple(Group(name, tuple(ranks)) for name, ranks in SHAPE.groups().items())
PROGRAMS = [SHAPE.nodes(rank) for rank in range(SHAPE.ranks)]

Programs = list[list[Node]]


def build(programs: Programs) -> Trace:
    return build_trace([(r, f"t.{r}.et", encode(nodes)) for r, nodes in enumerate(programs)], GROUPS)


def changed(rank: int, choose: Callable[[Node], bool], change: Callable[[Node], Node]) -> Programs:
    """The programs with the first chosen node of a rank changed."""
    programs = [list(nodes) for nodes in PROGRAMS]
    index = next(i for i, node in enumerate(programs[rank]) if choose(node))
    programs[rank][index] = change(programs[rank][index])
    return programs


def with_attributes(node: Node, **attributes: int | str) -> Node:
    return replace(node, attributes=node.attributes | attributes)


def without(node: Node, name: str) -> Node:
    return replace(node, attributes={k: v for k, v in node.attributes.items() if k != name})


def kind(wanted: int) -> Callable[[Node], bool]:
    return lambda node: node.kind == wanted


def test_the_programs_are_in_order_before_anything_is_broken() -> None:
    assert build(PROGRAMS).nodes == sum(len(nodes) for nodes in PROGRAMS)


@pytest.mark.parametrize(
    ("rank", "choose", "change", "field", "why"),
    [
        (0, kind(SEND), lambda n: with_attributes(n, comm_dst=0), "comm_dst", "another rank"),
        (0, kind(SEND), lambda n: with_attributes(n, comm_dst=99), "comm_dst", "another rank, 0 to 3"),
        (0, kind(SEND), lambda n: without(n, "comm_dst"), "comm_dst", "missing"),
        (0, kind(SEND), lambda n: with_attributes(n, comm_tag=77), "comm_tag", "no receive matches"),
        (0, kind(SEND), lambda n: with_attributes(n, comm_size=77), "comm_tag", "matches the 77 bytes"),
        (2, kind(RECEIVE), lambda n: with_attributes(n, comm_tag=77), "comm_tag", "matches"),
        (0, kind(SEND), lambda n: with_attributes(n, comm_size=0), "comm_size", "between 1 and"),
        (0, kind(SEND), lambda n: with_attributes(n, comm_size=-4), "comm_size", "between 1 and"),
        (0, kind(SEND), lambda n: with_attributes(n, comm_size="big"), "comm_size", "an integer"),
        (0, kind(COLLECTIVE), lambda n: with_attributes(n, pg_name="99"), "pg_name", "no such group"),
        (0, kind(COLLECTIVE), lambda n: with_attributes(n, pg_name="2"), "pg_name", "no member"),
        (0, kind(COLLECTIVE), lambda n: without(n, "pg_name"), "pg_name", "must name its group"),
        (0, kind(COLLECTIVE), lambda n: with_attributes(n, comm_type=5), "comm_type", "0 all-reduce"),
        (0, kind(COLLECTIVE), lambda n: with_attributes(n, comm_type=2, comm_size=3), "comm_size", "between"),
        (0, kind(COLLECTIVE), lambda n: replace(n, kind=9), "type", "1 metadata"),
        (0, kind(COMPUTE), lambda n: with_attributes(n, num_ops=-1), "num_ops", "between 0"),
        (0, kind(COMPUTE), lambda n: replace(n, after=(4242,)), "data_deps", "no node"),
        (0, kind(COMPUTE), lambda n: replace(n, after=(n.id,)), "data_deps", "wait for one another"),
        (0, kind(COMPUTE), lambda n: replace(n, id=2), "id", "two nodes"),
    ],
)  # fmt: skip
def test_a_node_that_cannot_be_is_named_with_its_field_and_the_reason(
    rank: int, choose: Callable[[Node], bool], change: Callable[[Node], Node], field: str, why: str
) -> None:
    with pytest.raises(InputError) as refused:
        build(changed(rank, choose, change))
    error = refused.value
    assert error.field == field
    assert why in error.why
    assert error.node is not None
    assert error.file.startswith("t.")
    assert error.file in str(error)


def test_nodes_that_wait_for_one_another_are_listed() -> None:
    programs = [list(nodes) for nodes in PROGRAMS]
    programs[1] += [
        Node(901, COMPUTE, "a", (903,)),
        Node(902, COMPUTE, "b", (901,)),
        Node(903, COMPUTE, "c", (902,)),
    ]
    with pytest.raises(InputError, match="wait for one another") as refused:
        build(programs)
    for node in ("901", "902", "903"):
        assert node in refused.value.why


def test_members_with_unequal_numbers_of_collectives_are_named() -> None:
    programs = [list(nodes) for nodes in PROGRAMS]
    extra = {"comm_size": 64, "comm_type": ALL_REDUCE, "pg_name": "1"}
    programs[0].append(Node(999, COLLECTIVE, "one more", (), extra))
    with pytest.raises(InputError, match=r"rank 0 has 2 collectives on this group and rank 1 has 1"):
        build(programs)


def test_a_missing_rank_and_a_rank_too_many_are_named(tmp_path) -> None:
    for rank in (0, 1, 3):
        (tmp_path / f"t.{rank}.et").write_bytes(encode(PROGRAMS[rank]))
    with pytest.raises(InputError, match="rank 2 is missing"):
        load.load_trace(tmp_path, GROUPS)
    (tmp_path / "t.2.et").write_bytes(encode(PROGRAMS[2]))
    assert len(load.load_trace(tmp_path, GROUPS).ranks) == 4
    (tmp_path / "u.0.et").write_bytes(encode(PROGRAMS[0]))
    with pytest.raises(InputError, match="two sets"):
        load.load_trace(tmp_path, GROUPS)
    assert len(load.load_trace(tmp_path / "t", GROUPS).ranks) == 4


@pytest.mark.parametrize("name", ["x.tar.xz", "x.tar", "x.tar.gz"])
def test_an_archive_that_is_none_is_refused(tmp_path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no archive at all" * 99)
    with pytest.raises(InputError, match="no readable archive"):
        load.load_trace(tmp_path / name, GROUPS)
    with pytest.raises(InputError, match="cannot be read"):
        load.load_trace(tmp_path / f"missing-{name}", GROUPS)


@pytest.mark.parametrize("seed", range(8))
def test_cut_and_flipped_files_are_refused_or_read_but_never_crash_or_hang(seed: int) -> None:
    rng = random.Random(seed)
    files = [encode(nodes) for nodes in PROGRAMS]
    refused = 0
    for _ in range(60):
        rank = rng.randrange(len(files))
        broken = bytearray(files[rank])
        if rng.random() < 0.4:
            del broken[rng.randrange(len(broken)) :]
        else:
            for _ in range(rng.choice((1, 1, 2, 8))):
                broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        contents = [bytes(broken) if r == rank else content for r, content in enumerate(files)]
        refused += not reads_and_ends(contents)
    assert refused > 20


def reads_and_ends(contents: list[bytes]) -> bool:
    """Whether these files are a step; one that is must end, or say that it cannot."""
    try:
        trace = build_trace([(r, f"t.{r}.et", content) for r, content in enumerate(contents)], GROUPS)
    except InputError:
        return False
    with suppress(CannotFinishError):
        replay(make_scenario(Step(trace, System(4800, 989)), everywhere(len(contents)), delay_ns=1000))
    return True


def everywhere(ranks: int) -> Schedules:
    return Schedules((tuple((50.0,) * ranks for _ in range(ranks)),))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 40,
        varint(1 << 60),
        varint(3) + b"abc",
        varint(1) + b"a" + varint(1 << 40) + b"x",
        varint(1) + b"a" + varint(12) + b"\xff" * 12,
    ],
    ids=["empty", "endless number", "huge message", "metadata only", "huge node", "no message"],
)
def test_a_file_of_nonsense_is_refused_without_taking_memory(content: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(InputError):
        build_trace([(0, "t.0.et", content)], ())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_limits_hold_for_what_is_read_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAX_NODES", 10)
    with pytest.raises(InputError, match="at most 10 nodes"):
        build(PROGRAMS)
    monkeypatch.undo()
    monkeypatch.setattr(load, "MAX_DISTINCT_BYTES", 100)
    with pytest.raises(InputError, match="distinct ones 100 together"):
        build(PROGRAMS)
