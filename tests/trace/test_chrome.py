"""Traces of PyTorch's profiler: those with NCCL's names as they are written, and ones that cannot be read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.trace.chrome import read_chrome
from opus_sdn.trace.model import TraceError

GROUPS = [
    {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1, 2, 3]},
    {"pg_name": "1", "pg_desc": "mesh_pp", "ranks": [0, 2]},
    {"pg_name": "2", "pg_desc": "mesh_dp", "ranks": [0, 1]},
]


def trace(*events: dict[str, Any], rank: int = 0, groups: object = GROUPS) -> dict[str, Any]:
    return {
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4, "pg_config": groups},
        "baseTimeNanoseconds": 1_000_000_000,
        "traceEvents": [{"ph": "X", "pid": 1, "tid": 1, **event} for event in events],
    }


def kernel(collective: str, group: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    named = {"Collective name": collective, "Process Group Name": group, "dtype": "BFloat16", **args}
    return {"name": f"ncclDevKernel_{collective}", "cat": "kernel", "ts": ts, "dur": dur, "args": named}


def gloo(name: str, ts: float, dur: float, thread: int, elements: int, **more: Any) -> list[dict[str, Any]]:
    """The host's call, and the work of it on a worker thread."""
    outer, inner = name.split("/")
    dims = {"Input Dims": [[[elements]]], "Concrete Inputs": more.get("concrete", ["", "False", "-1"])}
    return [
        {"name": f"c10d::{outer}", "ts": ts, "dur": 1.0, "args": dims},
        {
            "name": f"gloo:{inner}",
            "ts": ts + 2,
            "dur": dur,
            "tid": thread,
            "args": {"Input Dims": [[elements]], "Input type": ["double"]},
        },
    ]


def write(folder: Path, document: object, name: str = "rank0_trace.json") -> Path:
    path = folder / name
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


@pytest.mark.parametrize("name", ["rank0_trace.json", "rank0_trace.json.gz"])
def test_nccl_says_group_sizes_and_peers_itself(tmp_path: Path, name: str) -> None:
    found = trace(
        {"name": "aten::mm", "ts": 1.0, "dur": 2.0},
        kernel("_allgather_base", "2", 10.0, 5.5, **{"In msg nelems": 8, "Out msg nelems": 16}),
        kernel("send", "1", 20.0, 1.0, **{"In msg nelems": 4, "Out msg nelems": 4, "Dst Rank": 1}),
        {"name": "record_param_comms", "ts": 9.0, "dur": 0.1, "args": {"Collective name": "send"}},
    )
    run = read_chrome([write(tmp_path, found, name)])
    gather, send = run.ranks[0].acts
    assert (gather.kind, gather.dimension, gather.what.ranks, gather.size) == ("all-gather", "dp", (0, 1), 32)
    assert (gather.begin, gather.end) == (1_000_010_000, 1_000_015_500)
    assert (send.kind, send.dimension, send.what.peer, send.size) == ("send", "pp", 2, 8)
    assert (run.world, run.missing()) == (4, [1, 2, 3])


def test_gloos_work_is_found_for_its_call_and_gives_the_end_and_the_wait(tmp_path: Path) -> None:
    run = read_chrome([write(tmp_path, trace(*gloo("allreduce_/all_reduce", 10.0, 50.0, 7, 3)))])
    (act,) = run.ranks[0].acts
    assert (act.begin, act.end) == (1_000_010_000, 1_000_062_000)
    assert (act.wait_begin, act.wait_end) == (1_000_011_000, 1_000_062_000)
    assert act.size == 24


def test_an_all_reduce_is_of_the_group_whose_thread_ran_it(tmp_path: Path) -> None:
    events = [
        *gloo("_allgather_base_/all_gather", 10.0, 5.0, 7, 3),
        *gloo("allreduce_/all_reduce", 20.0, 5.0, 7, 1),
        *gloo("allreduce_/all_reduce", 30.0, 5.0, 9, 1),  # of the only other group that has threads
    ]
    events[0]["args"]["Input Dims"] = [[6], [3]]
    run = read_chrome([write(tmp_path, trace(*events))])
    assert [act.dimension for act in run.ranks[0].acts] == ["dp", "dp", "pp"]


def test_a_group_that_is_told_goes_before_every_guess(tmp_path: Path) -> None:
    path = write(tmp_path, trace(*gloo("allreduce_/all_reduce", 10.0, 50.0, 7, 3)))
    assert read_chrome([path]).ranks[0].acts[0].dimension == "dp"
    assert read_chrome([path], groups={"all-reduce": "pp"}).ranks[0].acts[0].dimension == "pp"


def test_work_on_a_thread_of_a_told_group_is_that_groups_too(tmp_path: Path) -> None:
    events = [
        *gloo("_allgather_base_/all_gather", 10.0, 5.0, 7, 3),
        *gloo("_reduce_scatter_base_/all_reduce", 20.0, 5.0, 7, 3),
    ]
    events[0]["args"]["Input Dims"] = [[6], [3]]
    events[2]["args"]["Input Dims"] = [[1], [3]]
    path = write(tmp_path, trace(*events))
    assert [act.dimension for act in read_chrome([path]).ranks[0].acts] == ["dp", "dp"]
    told = read_chrome([path], groups={"all-gather": "pp"})
    assert [act.dimension for act in told.ranks[0].acts] == ["pp", "pp"]


def test_a_run_without_groups_of_its_own_uses_the_worlds(tmp_path: Path) -> None:
    document = trace(*gloo("allreduce_/all_reduce", 10.0, 50.0, 7, 3), groups=GROUPS[:1])
    (act,) = read_chrome([write(tmp_path, document)]).ranks[0].acts
    assert (act.dimension, act.what.ranks) == ("world", (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("document", "want"),
    [
        ([], "has no traceEvents"),
        ({"traceEvents": []}, "no communication; profile with ProfilerActivity.CPU on"),
        (
            {"traceEvents": [1, {"ph": "X"}, {"ph": "X", "name": "gloo:send", "ts": "soon"}]},
            "no communication",
        ),
    ],
)
def test_a_file_without_communication_is_named(tmp_path: Path, document: object, want: str) -> None:
    with pytest.raises(TraceError, match=r"rank0_trace\.json: ") as refused:
        read_chrome([write(tmp_path, document)])
    assert want in str(refused.value)


def test_files_that_cannot_be_are_named_with_what_is_wrong(tmp_path: Path) -> None:
    broken = tmp_path / "rank1.json.gz"
    broken.write_bytes(gzip.compress(b"{}")[:-4])
    for path, want in [
        (broken, "cannot be read"),
        (write(tmp_path, trace(), "nobody.json"), "no communication"),
        (write(tmp_path, {"traceEvents": []}, "nobody2.json"), "says no rank; start the profiler after init"),
    ]:
        with pytest.raises(TraceError) as refused:
            read_chrome([path])
        assert str(path) in str(refused.value)
        assert want in str(refused.value)
    same = [
        write(tmp_path, trace(*gloo("barrier/barrier", 1, 1, 1, 1)), name) for name in ("a.json", "b.json")
    ]
    with pytest.raises(TraceError, match=r"b\.json: holds rank 0, as another file does"):
        read_chrome(same)
