"""Checks, summaries, sweeps and tables of runs, on results whose figures are known beforehand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from opus_sdn.experiment.cases import CASES, SWEEP_MS, Mode, RunSpec
from opus_sdn.experiment.checks import differing_losses, faults
from opus_sdn.experiment.results import RunFileError, load
from opus_sdn.experiment.summary import summary_lines, table_lines
from opus_sdn.experiment.sweep import plot, sweep_csv, sweep_specs
from tests.experiment.figures import result


@pytest.mark.parametrize(
    ("case", "ranks", "hosts", "dimensions"),
    [
        ("prototype8", 8, 4, {"pp": 2, "dp": 2, "tp": 2}),
        ("llama16", 16, 4, {"pp": 2, "dp": 2, "tp": 4}),
        ("llama64", 64, 16, {"pp": 2, "dp": 8, "tp": 4}),
        ("deepseek2d", 16, 4, {"pp": 4, "tp": 4}),
        ("deepseek3d", 16, 4, {"pp": 2, "dp": 2, "tp": 4}),
    ],
)
def test_the_cases_have_the_published_shapes(
    case: str, ranks: int, hosts: int, dimensions: dict[str, int]
) -> None:
    shape = CASES[case].shape
    assert (shape.world_size, shape.hosts, dict(shape.dimensions)) == (ranks, hosts, dimensions)
    config = CASES[case].config(10)
    assert config.batch // config.microbatches * config.microbatches == config.batch
    assert config.microbatches == (4 if case == "deepseek2d" else 2)
    assert (config.experts > 0) == case.startswith("deepseek")


def test_tensor_parallel_ranks_of_every_case_share_a_host() -> None:
    for case in CASES.values():
        shape = case.shape
        for first in range(0, shape.world_size, shape.tp):
            assert len({shape.host(rank) for rank in range(first, first + shape.tp)}) == 1


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({}, []),
        ({"seconds": [[1.0] * 6] * 3 + [[1.0] * 5]}, ["3 of 4 ranks reached step 6"]),
        ({"time_outs": 1}, ["1 grant time-outs, wanted none"]),
        ({"topology_changes": 0}, ["no topology changes: nothing was switched"]),
        ({"grants": 0}, ["no grants: the ranks did not go through the controller"]),
        ({"failures": ["rank 2: left with status 1"]}, ["failed: rank 2: left with status 1"]),
    ],
)
def test_a_run_is_checked_for_what_its_mode_promises(changes: dict[str, object], want: list[str]) -> None:
    assert faults(result(**changes)) == want


def test_a_native_run_must_leave_no_trace_in_the_controller() -> None:
    assert faults(result("native")) == []
    seen = result("native", jobs=1, grants=3)
    assert faults(seen) == ["the controller saw 1 jobs and 3 grants of a native run"]


def test_fewer_ranks_than_expected_are_a_fault() -> None:
    assert faults(result(), 64) == ["4 of 64 ranks reached step 6"]


def test_a_loss_that_differs_from_the_other_runs_is_named_with_its_step() -> None:
    odd = result(run="odd", losses=["1.5"] * 4 + ["1.6", "1.5"])
    assert differing_losses([result("native"), result(), odd]) == [
        "odd: loss 1.6 in step 5, where prototype8-native-1 has 1.5"
    ]


def test_step_times_are_those_of_the_first_rank_of_each_host() -> None:
    run = result(seconds=[[1.0] * 6, [9.0] * 6, [3.0] * 6, [9.0] * 6])
    assert run.step_seconds() == [2.0] * 6


def test_a_summary_averages_the_last_steps_and_is_tab_separated() -> None:
    run = result(seconds=[[10.0, 1.0, 2.0, 3.0, 4.0, 5.0]] * 4)
    head, line = summary_lines([run], last=5)
    assert dict(zip(head.split("\t"), line.split("\t"), strict=True)) == {
        "run": "prototype8-on-demand-1",
        "case": "prototype8",
        "mode": "on-demand",
        "delay_ms": "50",
        "ranks": "4/4",
        "steps": "6",
        "last": "5",
        "mean_step_s": "3.0000",
        "grants": "12",
        "topology_changes": "6",
    }
    assert list(summary_lines([run], last=7))[1].split("\t")[7] == "-"


def test_the_table_gives_the_median_of_runs_and_their_range_beside_native() -> None:
    half = {"transitions": [{"changes": 6, "hits": 4}, {"changes": 2, "hits": 0}]}
    opus_runs = (result(step_s=step, status=half) for step in (1.5, 1.25, 2.0))
    runs = [result("native", step_s=1.0), *opus_runs]
    lines = list(table_lines(runs))
    assert lines[2] == "| prototype8 | native | - | 1 | 1.000 (1.000 to 1.000) | - | - | - | - | - |"
    assert lines[3] == (
        "| prototype8 | on-demand | 50 | 3 | 1.500 (1.250 to 2.000) | +0.500 s | 1.0 | 2.0 | 50 | 50% |"
    )


def test_a_sweep_makes_native_once_and_both_modes_at_every_published_delay() -> None:
    specs = list(sweep_specs("llama16", SWEEP_MS, (Mode.ON_DEMAND, Mode.PROVISION), 10))
    assert [spec.name for spec in specs[:3]] == [
        "llama16-native",
        "llama16-on-demand-0ms",
        "llama16-on-demand-10ms",
    ]
    assert len(specs) == 1 + 2 * len((0, 10, 50, 100, 250, 500, 750, 1000))


def test_the_sweep_gives_overhead_against_native_in_seconds_and_per_cent(tmp_path: Path) -> None:
    runs = [(1, result("native", step_s=2.0)), (1, result(step_s=2.5))]
    rows = list(csv.DictReader(sweep_csv(runs, last=5).splitlines()))
    assert [(row["overhead_s"], row["overhead_percent"]) for row in rows] == [
        ("0.000000", "0.000"),
        ("0.500000", "25.000"),
    ]
    plot(runs, 5, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ({"case": "llama17", "mode": Mode.EPS}, "case: 'llama17'; wanted one of prototype8, llama16"),
        ({"case": "llama16", "mode": Mode.EPS, "steps": 0}, "steps: 0; wanted 1 to 10000"),
        ({"case": "llama16", "mode": Mode.EPS, "delay_ms": 5.0}, "delay_ms: 5 with mode eps"),
        ({"case": "llama16", "mode": Mode.ON_DEMAND, "delay_ms": -1.0}, "delay_ms: -1; wanted 0 to 60000"),
    ],
)
def test_a_run_that_cannot_be_is_refused_by_name_and_value(spec: dict[str, object], want: str) -> None:
    with pytest.raises(ValueError, match=r"wanted|leave it out") as refused:
        RunSpec(**spec)  # type: ignore[arg-type]
    assert str(refused.value).startswith(want)


def test_a_result_is_read_as_it_was_written_and_anything_else_is_named(tmp_path: Path) -> None:
    run = result()
    run.save(tmp_path)
    assert load(tmp_path) == run
    (tmp_path / "result.json").write_text('{"run": 1}')
    with pytest.raises(RunFileError, match=r"result.json: is no result of a run: run: "):
        load(tmp_path)
    with pytest.raises(RunFileError, match="`opus experiment run` makes a folder with one"):
        load(tmp_path / "nowhere")
