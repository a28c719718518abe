"""Real runs through the command line: ranks, controller, switches, and what the checks say of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.demo import reference
from opus_sdn.demo.launcher import Zygote
from opus_sdn.experiment.cases import CASES

pytestmark = pytest.mark.torch


def opus(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opus_sdn.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of three steps each: native, and on demand with switches of 0 and 20 ms."""
    folder = tmp_path_factory.mktemp("experiments")
    ran = opus(
        *("experiment", "sweep", "--case", "prototype8", "--mode", "on-demand", "--delay-ms", "0,20"),
        *("--steps", "3", "--last", "2", "--out", str(folder), "--plot", str(folder / "sweep.png")),
        cwd=folder,
    )
    assert ran.returncode == 0, ran.stderr
    (folder / "sweep.csv").write_text(ran.stdout)
    return folder


def load(folder: Path, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / run / "result.json").read_text())
    return found


def test_a_sweep_writes_csv_and_plot_and_goes_on_where_it_was_interrupted(made: Path) -> None:
    lines = (made / "sweep.csv").read_text().splitlines()
    assert [line.split(",")[:3] for line in lines[1:]] == [
        ["prototype8", "native", "0"],
        ["prototype8", "on-demand", "0"],
        ["prototype8", "on-demand", "20"],
    ]
    assert (made / "sweep.png").exists()
    again = opus(
        *("experiment", "sweep", "--case", "prototype8", "--mode", "on-demand", "--delay-ms", "0,20"),
        *("--steps", "3", "--last", "2", "--out", str(made)),
        cwd=made,
    )
    assert again.stdout == (made / "sweep.csv").read_text()
    assert "loading torch" not in again.stderr


def test_runs_of_all_modes_have_the_losses_of_plain_gloo_and_pass_the_check(made: Path) -> None:
    runs = ("prototype8-native-1", "prototype8-on-demand-0ms-1", "prototype8-on-demand-20ms-1")
    checked = opus("experiment", "check", *(str(made / run) for run in runs), cwd=made)
    assert checked.returncode == 0, checked.stderr
    native, eps, slow = (load(made, run) for run in runs)
    assert native["losses"] == eps["losses"] == slow["losses"]
    assert (native["jobs"], native["grants"]) == (0, 0)
    assert sum(each["changes"] for each in slow["status"]["transitions"]) > 0
    assert min(eps["grants"], slow["grants"], eps["topology_changes"], slow["topology_changes"]) > 0


def test_a_slow_switch_is_exposed_by_at_least_its_delay_in_every_step(made: Path) -> None:
    assert min(load(made, "prototype8-on-demand-20ms-1")["exposed_ms"]) >= 20.0


def test_a_run_with_too_few_ranks_does_not_pass_the_check(made: Path) -> None:
    run = str(made / "prototype8-native-1")
    refused = opus("experiment", "check", "--expected-ranks", "64", run, cwd=made)
    assert refused.returncode == 1
    assert "8 of 64 ranks reached step 3" in refused.stderr


def test_a_mixture_of_experts_spread_over_ranks_learns_what_one_process_does(tmp_path: Path) -> None:
    config = CASES["deepseek3d"].config(2)
    with Zygote() as zygote:
        results = zygote.run(
            "opus_sdn.demo.train:run",
            config.shape.world_size,
            args=(config, "gloo"),
            rank_environment=config.shape.environment,
            deadline_s=240.0,
        )
    whole = reference.run(config)
    records = results[-1].records
    assert [record.loss for record in records] == pytest.approx([loss for loss, _ in whole], rel=1e-4)
    assert [record.grad_norm for record in records] == pytest.approx([norm for _, norm in whole], rel=1e-3)
