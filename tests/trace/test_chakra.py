"""A recorded run as a step for what-if: what waits for what, and what a replay of it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from opus_sdn.trace.chakra import export
from opus_sdn.trace.model import TraceError
from opus_sdn.whatif.engine import load_step, make_scenario, replay
from opus_sdn.whatif.inputs.schedules import read_schedules
from opus_sdn.whatif.trace.model import COLLECTIVE, COMPUTE, RECEIVE, SEND
from tests.trace.runs import recording, two_by_two


def written(folder: Path) -> tuple[Path, Path, Path]:
    return folder, folder / "workload.json", folder / "system.json"


def test_a_run_is_read_back_with_its_operations_and_the_computing_between_them(tmp_path: Path) -> None:
    done = export(two_by_two(), tmp_path)
    trace = load_step(*written(tmp_path)).trace
    assert (trace.nodes, done.dropped, done.topologies) == (done.nodes, 0, 4)
    assert {group.ranks for group in trace.groups} == {(0, 1), (2, 3)}
    rank = trace.ranks[0]
    # 0.1 ms from each call to its wait; 9 to 14 ms and 16 to 20 ms without waiting
    seen = [(one.kind, one.recorded_ns) for one in rank.graph.operations]
    assert seen == [
        (COLLECTIVE, 0),
        (COMPUTE, 100_000),
        (COMPUTE, 5_000_000),
        (SEND, 0),
        (COMPUTE, 100_000),
        (COMPUTE, 4_000_000),
        (COLLECTIVE, 0),
        (COMPUTE, 100_000),
    ]
    waits_for = [[] for _ in seen]
    for position, children in enumerate(rank.graph.children):
        for child in children:
            waits_for[child].append(position)
    # after a wait, what follows needs the operation too
    assert waits_for == [[], [], [0, 1], [2], [2], [3, 4], [5], [5]]
    assert trace.ranks[2].graph.operations[3].kind == RECEIVE


def test_an_all_gather_is_told_by_its_shard_and_what_has_no_ring_by_an_all_reduce(tmp_path: Path) -> None:
    line = [("all_gather_single", "dp", (0, 1), 0, 1), ("broadcast", "dp", (0, 1), 2, 3)]
    export(recording({0: line, 1: line}, size=1000), tmp_path)
    operations = [one for one in load_step(*written(tmp_path)).trace.ranks[0].graph.operations if one.size]
    assert [(one.collective, one.size) for one in operations] == [(2, 500), (0, 1000)]


def test_what_not_all_have_recorded_is_left_out(tmp_path: Path) -> None:
    run = two_by_two()
    cut = replace(run.ranks[3], acts=run.ranks[3].acts[:1])
    assert export(replace(run, ranks=(*run.ranks[:3], cut)), tmp_path).dropped == 2
    assert load_step(*written(tmp_path)).trace.ranks[2].graph.operations[0].kind == COLLECTIVE


def test_a_run_of_which_a_rank_is_missing_is_refused(tmp_path: Path) -> None:
    run = two_by_two()
    with pytest.raises(TraceError, match="there is no trace of rank 3; a replay needs all ranks"):
        export(replace(run, ranks=run.ranks[:3]), tmp_path)


def test_topologies_have_rings_and_pipeline_links_in_the_published_places(tmp_path: Path) -> None:
    export(two_by_two(), tmp_path, scale_out_gbps=50, scale_up_gbps=450)
    found = read_schedules(tmp_path / "schedules.txt").topologies
    ring, pair = (0, 1), (0, 2)
    up = [(rows[ring[0]][ring[1]] > 0, rows[pair[0]][pair[1]] > 0) for rows in found]
    assert up == [(True, False), (True, False), (True, False), (False, True)]


def test_what_if_replays_a_recorded_run_and_every_change_costs_its_delay(tmp_path: Path) -> None:
    export(two_by_two(), tmp_path)
    step = load_step(*written(tmp_path))
    schedules = read_schedules(tmp_path / "schedules.txt")
    took = {
        delay: replay(make_scenario(step, schedules, delay_ns=delay), semantics="opus").finish_ns
        for delay in (0, 10_000_000)
    }
    # to the messages' link and back to the rings; 0.1 ms between a call and its wait hides some of it
    assert 2 * 10_000_000 - 3 * 100_000 <= took[10_000_000] - took[0] <= 3 * 10_000_000
