"""`opus whatif`: offline, light, interruptible; what it prints can be read by scripts."""

from __future__ import annotations

import csv
import io
import json
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.traces import RECEIVE, SEND, SYSTEM, Node, Shape, encode
from tests.cli.conftest import ROOT, Opus, opus_process

CASES = ROOT / "tests" / "whatif" / "data"
EIGHT, MICROBATCHES = CASES / "dp2pp2tp2", CASES / "dp4pp4tp2_8layers_4microbatches"
EXPECTED = json.loads((CASES / "expected.json").read_text())["cases"]["dp2pp2tp2"]

# What a replay of a second must not wait for.
HEAVY = (
    "alembic",
    "fastapi",
    "httpx",
    "numpy",
    "pydantic",
    "rich",
    "sqlmodel",
    "starlette",
    "torch",
    "typer",
    "uvicorn",
)


def inputs(case: Path) -> list[object]:
    return [
        "--et", case / "workload_et.tar.xz",
        "--groups", case / "workload.json",
        "--system", case / "system.json",
        "--schedules", case / "schedules.txt.xz",
    ]  # fmt: skip


def test_a_replay_prints_the_published_finish_and_reconfigurations(opus: Opus) -> None:
    ran = opus("whatif", "replay", *inputs(EIGHT), "--delay-ms", 10, "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["finish_ns"] == EXPECTED["runs"]["10ms"]["on_demand"]["last_rank"]
    assert ran.json["finish_ns_per_rank"] == EXPECTED["per_rank_finish_ns"]["baseline_10ms"]
    assert ran.json["reconfigurations"] == EXPECTED["reconfigurations"]["baseline_10ms"]
    assert ran.json["exposed_delay_ns"] == sum(e["waited_ns"] for e in ran.json["exposures"])
    assert ran.json["wall_s"] > 0
    assert (ran.json["semantics"], ran.json["mode"]) == ("peer", "on-demand")


@pytest.mark.parametrize("hints", ["derive", str(EIGHT / "rank_comm_groups_10ms.yaml")])
def test_hints_make_it_a_provisioned_replay(opus: Opus, hints: str) -> None:
    ran = opus("whatif", "replay", *inputs(EIGHT), "--delay-ms", 10, "--hints", hints, "-o", "json")
    assert ran.json["mode"] == "provision"
    assert ran.json["finish_ns"] == EXPECTED["runs"]["10ms"]["provisioned"]["last_rank"]


def test_delay_and_latency_may_come_from_the_network_file(opus: Opus) -> None:
    network = EIGHT / "network_50ms.yml"
    ran = opus("whatif", "replay", *inputs(EIGHT), "--network", network, "-o", "json")
    assert (ran.json["delay_ms"], ran.json["latency_ns"]) == (50, 936.25)
    assert ran.json["finish_ns"] == EXPECTED["runs"]["50ms"]["on_demand"]["last_rank"]
    ran = opus("whatif", "replay", *inputs(EIGHT), "--network", network, "--delay-ms", 1, "-o", "csv")
    [row] = csv.DictReader(io.StringIO(ran.out))
    assert int(row["finish_ns"]) == EXPECTED["runs"]["1ms"]["on_demand"]["last_rank"]


def test_both_engines_and_the_debug_flag_before_the_command_give_the_same(opus: Opus) -> None:
    ran = opus("--debug", "whatif", "replay", *inputs(EIGHT), "--delay-ms", 10, "--exact", "-o", "json")
    assert ran.json["details"]["engine"] == "exact"
    assert ran.json["finish_ns"] == EXPECTED["runs"]["10ms"]["on_demand"]["last_rank"]


def test_the_static_reference_needs_no_schedules_of_its_own(opus: Opus) -> None:
    ran = opus("whatif", "replay", *inputs(EIGHT), "--delay-ms", 0, "--mode", "static")
    assert ran.code == 0
    assert str(EXPECTED["static"]) in ran.lines[1].split()


def test_a_step_that_cannot_finish_ends_with_3_and_says_who_waits_for_whom(opus: Opus) -> None:
    ran = opus("whatif", "replay", *inputs(MICROBATCHES), "--delay-ms", 50)
    assert (ran.code, ran.out) == (3, "")
    assert "the step cannot finish" in ran.err
    assert "waits for rank" in ran.err
    assert "on group" in ran.err


def test_our_own_semantics_tell_what_was_lost_and_what_the_least_is(opus: Opus) -> None:
    ours = ["--delay-ms", 100, "--semantics", "opus", "--mode", "provision"]
    ran = opus("whatif", "replay", *inputs(EIGHT), *ours, "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    assert ran.json["finish_ns"] == ran.json["details"]["lower_bound_ns"] == 61_694_099_826
    assert ran.json["exposed_delay_ns"] == ran.json["details"]["lost_to_switching_ns"] == 46_951_903
    (exposure,) = ran.json["exposures"]
    assert exposure["waited_ns"] == exposure["lock_ns"] + exposure["switch_ns"] == 46_951_903
    assert "exposures" not in ran.json["details"]
    assert ran.json["details"]["static_ns"] == EXPECTED["static"]
    ran = opus("whatif", "replay", *inputs(EIGHT), *ours, "--option", "port_choice=spread", "-o", "json")
    assert ran.json["finish_ns"] == EXPECTED["static"]
    ran = opus("whatif", "replay", *inputs(EIGHT), *ours, "--option", "patience=1")
    assert (ran.code, ran.out) == (2, "")
    assert "no such option; known: control_ms" in ran.err


def test_microbatches_that_hang_the_published_model_finish_on_our_controller(opus: Opus) -> None:
    ran = opus(
        "whatif", "replay", *inputs(MICROBATCHES), "--delay-ms", 50, "--semantics", "opus", "-o", "json"
    )
    assert (ran.code, ran.json["finish_ns"] // 1_000_000) == (0, 965)


def test_a_program_that_hangs_on_our_controller_ends_with_3_too(opus: Opus, tmp_path: Path) -> None:
    """Each of two stages sends only after it has received from the other."""
    ends = ((0, "comm_src", 1, "comm_dst"), (1, "comm_src", 0, "comm_dst"))
    for rank, source, other, destination in ends:
        size = {"comm_size": 1 << 20}
        nodes = [
            Node(1, RECEIVE, "from the other", attributes={source: other, "comm_tag": other, **size}),
            Node(2, SEND, "to the other", [1], {destination: other, "comm_tag": rank, **size}),
        ]
        (tmp_path / f"t.{rank}.et").write_bytes(encode(nodes))
    shape = Shape(dp=1, pp=2, tp=1)
    (tmp_path / "groups.json").write_text(json.dumps(shape.groups()))
    (tmp_path / "system.json").write_text(json.dumps(SYSTEM))
    (tmp_path / "schedules.txt").write_text("\n".join(shape.schedules()))
    given = ["--et", tmp_path, "--groups", tmp_path / "groups.json", "--system", tmp_path / "system.json"]
    given += ["--schedules", tmp_path / "schedules.txt", "--delay-ms", 1, "--semantics", "opus"]
    ran = opus("whatif", "replay", *given)
    assert (ran.code, ran.out) == (3, "")
    assert "rank 0 waits for rank 1: from the other on pp-0:0-1[1>0]" in ran.err
    assert "rank 1 waits for rank 0: from the other on pp-0:0-1[0>1]" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "opus whatif"),
        (["replay"], "--et"),
        (["replay", *inputs(EIGHT)], "--delay-ms"),
        (["replay", *inputs(EIGHT), "--delay-ms", "-1"], "--delay-ms"),
        (["replay", *inputs(EIGHT), "--delay-ms", "soon"], "--delay-ms"),
        (["replay", *inputs(EIGHT), "--delay-ms", "1", "--mode", "fast"], "--mode"),
        (["replay", *inputs(EIGHT), "--delay-ms", "1", "--semantics", "mine"], "--semantics"),
        (["replay", *inputs(EIGHT), "--delay-ms", "1", "--mode", "ideal"], "one topology"),
        (["replay", *inputs(EIGHT), "--delay-ms", "1", "--mode", "static", "--hints", "derive"], "--hints"),
        (["replay", *inputs(EIGHT)[:-1], "nowhere", "--delay-ms", "1"], "nowhere: cannot be read"),
        (["replay", *inputs(EIGHT), "--delay-ms", "600001"], "delay_ms is 600001.0"),
        (
            ["replay", *inputs(EIGHT), "--delay-ms", "1", "--latency-ns", "1e10"],
            "latency_ns is 10000000000.0",
        ),
        (["replay", *inputs(MICROBATCHES), "--network", EIGHT / "network_10ms.yml"], "npus_count is 8"),
        (
            ["sweep", *inputs(MICROBATCHES), "--network", EIGHT / "network_10ms.yml", "--delay-ms", "1"],
            "npus",
        ),
        (
            ["sweep", *inputs(EIGHT), "--delay-ms", "1,2", "--jobs", 2, "--bandwidth-gbps", "0"],
            "bandwidth_gbps",
        ),
        (["sweep", *inputs(EIGHT), "--delay-ms", "1,x"], "--delay-ms"),
        (["sweep", *inputs(EIGHT), "--delay-ms", "1", "--mode", "static,slow"], "--mode"),
        (["sweep", *inputs(EIGHT), "--delay-ms", "1", "--jobs", "0"], "--jobs"),
    ],
)
def test_what_cannot_be_used_ends_with_2_and_names_it(
    opus: Opus, arguments: list[object], message: str
) -> None:
    ran = opus("whatif", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert message in ran.err


def test_a_file_of_hints_is_said_to_mean_nothing_to_our_own_semantics(opus: Opus) -> None:
    hints = EIGHT / "rank_comm_groups_10ms.yaml"
    arguments = ("whatif", "replay", *inputs(EIGHT), "--delay-ms", 10, "--semantics", "opus", "-o", "json")
    told, plain = opus(*arguments, "--hints", hints), opus(*arguments, "--mode", "provision")
    assert "the file is for `peer`" in told.err
    assert plain.err == ""
    assert told.json["finish_ns"] == plain.json["finish_ns"]


def test_the_timeline_is_a_chrome_trace_with_every_node(opus: Opus, tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    ran = opus("whatif", "replay", *inputs(EIGHT), "--delay-ms", 10, "--timeline", file, "-o", "json")
    events = json.loads(file.read_text())["traceEvents"]
    nodes = [event for event in events if event["ph"] == "X" and event["pid"] < 8]
    assert len(nodes) == ran.json["operations"]
    assert max(event["ts"] + event["dur"] for event in nodes) == pytest.approx(ran.json["finish_ns"] / 1000)
    marks = [event for event in events if event["ph"] == "i"]
    assert [event["ts"] * 1000 for event in marks] == pytest.approx(
        [t for t, _ in ran.json["reconfigurations"]]
    )
    lanes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in nodes:
        lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in lanes.values():  # in a lane nothing overlaps, or a viewer would nest it
        spans.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(spans))


def test_a_replay_loads_nothing_heavy(tmp_path: Path) -> None:
    command = ["whatif", "replay", *(str(part) for part in inputs(EIGHT)), "--delay-ms", "10", "-o", "json"]
    program = (
        "import sys, opus_sdn.cli\n"
        "try:\n    opus_sdn.cli.main(sys.argv[1:])\n"
        f"except SystemExit:\n    print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, cwd=ROOT)
    assert ran.stderr.strip() == "[]"
    assert json.loads(ran.stdout)["ranks"] == 8


def test_a_sweep_has_a_row_for_every_combination_in_order(opus: Opus) -> None:
    ran = opus(
        "whatif", "sweep", *inputs(EIGHT), "--delay-ms", "0,10", "--mode",
        "on-demand,provision,static", "-o", "csv",
    )  # fmt: skip
    assert ran.code == 0
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert [(row["mode"], float(row["delay_ms"])) for row in rows] == [
        (mode, delay) for delay in (0, 10) for mode in ("on-demand", "provision", "static")
    ]
    wanted = [
        number
        for delay in ("0ms", "10ms")
        for number in (*(run["last_rank"] for run in EXPECTED["runs"][delay].values()), EXPECTED["static"])
    ]
    assert [int(row["finish_ns"]) for row in rows] == wanted


def test_a_sweep_shows_points_that_cannot_finish_and_goes_on(opus: Opus) -> None:
    ran = opus("whatif", "sweep", *inputs(MICROBATCHES), "--delay-ms", "50,0", "-o", "json", "--jobs", 2)
    assert ran.code == 0
    hangs, ends = ran.json
    assert hangs["finish_ns"] is None
    assert "waits for rank" in hangs["cannot_finish"]
    assert ends["finish_ns"] == 793_929_596
    table = opus("whatif", "sweep", *inputs(MICROBATCHES), "--delay-ms", "50")
    assert "cannot finish" in table.out


def test_a_sweep_goes_on_from_its_journal(opus: Opus, tmp_path: Path) -> None:
    journal = tmp_path / "points"
    sweep = ("whatif", "sweep", *inputs(EIGHT), "-o", "json", "--journal", journal, "--jobs", 1)
    first = opus(*sweep, "--delay-ms", "0")
    kept = journal.read_text()
    # A process that was killed leaves half a line.
    journal.write_text(kept.replace('"wall_s": ', '"wall_s": 1000') + kept[:40])
    both = opus(*sweep, "--delay-ms", "0,10")
    assert both.json[0]["wall_s"] >= 1000, "the finished point was replayed again"
    assert both.json[0]["finish_ns"] == first.json[0]["finish_ns"]
    assert both.json[1]["finish_ns"] == EXPECTED["runs"]["10ms"]["on_demand"]["last_rank"]
    assert len(journal.read_text().splitlines()) == 2
    journal.write_text("no journal\n")
    assert opus(*sweep, "--delay-ms", "0").code == 2


def test_a_sweep_can_be_interrupted_and_keeps_what_is_finished(tmp_path: Path) -> None:
    case = tmp_path / "case"  # unpacked, so that the first point comes soon
    shutil.copytree(EIGHT, case)
    with tarfile.open(case / "workload_et.tar.xz") as archive:
        archive.extractall(case / "et", filter="data")
    journal = tmp_path / "points"
    arguments = [
        "whatif",
        "sweep",
        *inputs(case),
        "--delay-ms",
        ",".join(str(n) for n in range(200)),
        "--jobs",
        2,
    ]
    arguments[arguments.index("--et") + 1] = case / "et"
    with opus_process(*arguments, "--journal", journal) as process:
        while not (journal.exists() and journal.read_text().count("\n") > 1):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "interrupted: " in err
    assert "the same command goes on" in err
    assert "Traceback" not in err
    assert len(journal.read_text().splitlines()) < 200


def test_a_sweep_is_drawn_into_a_file(opus: Opus, tmp_path: Path) -> None:
    file = tmp_path / "sweep.svg"
    ran = opus(
        "whatif", "sweep", *inputs(EIGHT), "--delay-ms", "0,10", "--mode", "on-demand,static", "--plot", file
    )
    assert ran.code == 0, ran.err
    drawn = file.read_text()
    assert "switch delay (ms)" in drawn
    assert "static (peer)" in drawn
