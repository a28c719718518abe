"""The real launcher: a rank dies, torchrun starts all again, and the second life is a new incarnation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from opus_sdn.demo.controller import Controller
from opus_sdn.demo.launcher import Zygote
from opus_sdn.fabric_file import generate_fabric

WORLD = 2
DEADLINE_S = 240.0

pytestmark = pytest.mark.torch


def test_a_job_that_torchrun_starts_again_learns_what_it_learns_undisturbed(
    ranks: Zygote, tmp_path: Path
) -> None:
    """Over the same store: what the first life has left there must not count in the second."""
    script, found = Path(__file__).with_name("elastic_script.py"), tmp_path / "found"
    found.mkdir()
    fabric = generate_fabric(hosts=WORLD, gpus_per_host=1, delay_ms=2)
    with Controller(fabric, tmp_path / "controller") as controller:
        environment = {
            **os.environ,
            **controller.environment("elastic"),
            "OPUS_DIMENSIONS": f"dp={WORLD}",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        }
        done = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"),
                *(f"--nproc-per-node={WORLD}", "--monitor-interval=0.1", str(script), str(found)),
            ],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stderr[-12_000:]
        job = controller.get("/jobs/elastic")
        assert (job["state"], job["incarnation"]) == ("ended", 2)
        assert [(rank["rank"], rank["host"]) for rank in job["ranks"]] == [(0, "host1"), (1, "host0")]
        assert controller.all("/locks") == []
        report = controller.witness()
    assert report["violations"] == []
    learned = [json.loads((found / f"rank{rank}.json").read_text()) for rank in range(WORLD)]
    wanted = ranks.run("tests.shim.elastic_script:undisturbed", WORLD, args=("gloo",), deadline_s=60.0)
    assert learned == [[1, *map(list, one)] for one in wanted]
