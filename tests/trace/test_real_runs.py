"""Real ranks: a training over plain gloo under torch's profiler, and one on opus that records itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from opus_sdn.demo.launcher import Zygote
from opus_sdn.demo.shapes import PROTOTYPE8, TrainConfig
from opus_sdn.experiment.cases import CASES, Mode, RunSpec
from opus_sdn.experiment.runs import run_experiment
from opus_sdn.shim.phase_file import load_published
from opus_sdn.trace.chrome import chrome_files, read_chrome
from opus_sdn.trace.model import MESSAGES, Recording
from opus_sdn.trace.recorded import read_recorded
from opus_sdn.whatif.engine import load_step

pytestmark = pytest.mark.torch

STEPS, MICROBATCHES = 1, 4


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as started:
        yield started


@pytest.fixture(scope="module")
def profiled(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the profiler's traces of a step on 8 ranks over plain gloo."""
    folder = tmp_path_factory.mktemp("profiled")
    config = TrainConfig(PROTOTYPE8, steps=1 + STEPS, microbatches=MICROBATCHES)
    zygote.run(
        "tests.trace.profiled:run",
        PROTOTYPE8.world_size,
        args=(config, str(folder)),
        rank_environment=PROTOTYPE8.environment,
        deadline_s=240.0,
    )
    return folder


@pytest.fixture(scope="module")
def recorded(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what 8 ranks on opus recorded of two steps."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    result = run_experiment(zygote, RunSpec("prototype8", Mode.EPS, steps=2, trace=True), folder)
    assert result.failures == []
    return folder / "trace"


def opus(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opus_sdn.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def counts(run: Recording, rank: int) -> Counter[tuple[str, str]]:
    return Counter((act.dimension, act.kind) for act in run.ranks[rank].acts)


@pytest.fixture(scope="module")
def imported(profiled: Path) -> Recording:
    """The profiler's traces, read."""
    return read_chrome(chrome_files(profiled))


def test_a_profile_of_plain_gloo_gives_every_operation_its_group(imported: Recording) -> None:
    run = imported
    assert (run.world, run.missing()) == (8, [])
    for rank in range(8):
        seen = counts(run, rank)
        own_loss = 1 if rank >= 4 else 0  # the last stage has the mean of its loss over dp
        assert {key: count for key, count in seen.items() if key[0] != "tp"} == {
            ("pp", "send"): MICROBATCHES * STEPS,
            ("pp", "receive"): MICROBATCHES * STEPS,
            ("dp", "all-gather"): 3 * STEPS,  # two blocks, and what is around them
            ("dp", "reduce-scatter"): 3 * STEPS,
            ("dp", "all-reduce"): (1 + own_loss) * STEPS,
            ("pp", "all-reduce"): STEPS,
        }
        # two blocks, in each an all-reduce for attention and feed-forward, forward and backward
        assert seen["tp", "all-reduce"] == 2 * 2 * 2 * MICROBATCHES * STEPS + STEPS


def test_every_operation_of_a_profile_is_found_on_all_who_took_part(imported: Recording) -> None:
    for key, members in imported.together().items():
        wanted = {key.source, key.destination} if key.source is not None else set(members[0].what.ranks)
        assert {act.rank for act in members} == wanted


def test_a_profile_goes_through_import_and_windows_on_the_command_line(
    profiled: Path, tmp_path: Path
) -> None:
    imported = opus("trace", "import", str(profiled), "--out", str(tmp_path / "imported"))
    assert imported.returncode == 0, imported.stderr
    found = {}
    for source in (profiled, tmp_path / "imported"):
        ran = opus(
            *("trace", "windows", str(source), "--dimensions", "pp,dp", "-o", "json"),
            *("--out", str(tmp_path / source.name)),
        )
        assert ran.returncode == 0, ran.stderr
        found[source] = json.loads(ran.stdout)["pairs"]
        assert len(list((tmp_path / source.name).glob("t*.*"))) >= 5
    assert found[profiled] == found[tmp_path / "imported"]
    pairs = {pair["pair"]: pair["count"] for pair in found[profiled]}
    # forward, backward and the norm: at least two changes of dimension and back in a step of each rank
    assert set(pairs) == {"dp -> pp", "pp -> dp", "all"}
    assert min(pairs.values()) >= 8 * STEPS


def test_a_recorded_run_has_what_its_ranks_issued_on_one_clock(recorded: Path) -> None:
    run = read_recorded(recorded)
    assert (run.world, run.missing(), run.dimensions) == (8, [], (("pp", 2), ("dp", 2), ("tp", 2)))
    microbatches = CASES["prototype8"].config(2).microbatches
    for rank in run.ranks:
        assert rank.clock_error_ns is not None
        assert rank.lost == 0
        messages = [act for act in rank.acts if act.kind in MESSAGES and act.what.connection is not None]
        # and what stages tell one another once of the shapes of their tensors
        assert len(messages) >= 2 * microbatches * 2
        assert {act.dimension for act in rank.acts if act.what.connection is not None} == {"pp", "dp"}


def test_a_recorded_run_is_exported_read_back_and_replayed(recorded: Path, tmp_path: Path) -> None:
    done = opus("trace", "export", str(recorded), "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr
    trace = load_step(tmp_path, tmp_path / "workload.json", tmp_path / "system.json").trace
    assert len(trace.ranks) == 8
    ran = opus(
        *("whatif", "replay", "--semantics", "opus", "--et", str(tmp_path), "-o", "json"),
        *("--groups", str(tmp_path / "workload.json"), "--system", str(tmp_path / "system.json")),
        *("--schedules", str(tmp_path / "schedules.txt"), "--delay-ms", "10"),
    )
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert result["operations"] == trace.nodes
    assert result["reconfigurations"]
    assert result["exposed_delay_ns"] > 0


def test_a_recorded_run_is_compiled_for_every_rank(recorded: Path, tmp_path: Path) -> None:
    done = opus("trace", "compile", str(recorded), "--prefix", str(tmp_path / "comm_pattern"))
    assert done.returncode == 0, done.stderr
    for rank in range(8):
        lines = (tmp_path / f"comm_pattern_{rank}").read_text().splitlines()
        kinds = [line.split()[0] for line in lines]
        assert set(kinds) == {"PP", "DP"}
        assert all(before != after for before, after in pairwise(kinds))
        table = load_published(str(tmp_path / "comm_pattern"), rank)  # as a rank does at its start
        assert len(table.positions) >= len(lines)
