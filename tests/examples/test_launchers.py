"""The scripts of `examples/`: no fault that shellcheck knows, and run with stand-ins for Slurm's programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLURM = ROOT / "examples" / "slurm"
SCRIPTS = sorted([*ROOT.glob("examples/*.sh"), *SLURM.iterdir()])
BIN = Path(sys.executable).parent

STAND_INS = {
    # more than a pipe holds, so that whoever stops reading after the first line breaks it every time
    "scontrol": "#!/bin/bash\nprintf 'node%d\\n' {0..20000}\n",
    # each node's script at the same time, as srun does
    "srun": """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for node in 0 1; do SLURM_NODEID=$node "$@" & pids+=($!); done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
exit $status
""",
    "ssh": '#!/bin/bash\necho "ssh $*" >>"$SEEN"\nexec sleep 600\n',
    "torchrun": f'#!/bin/bash\nexec {sys.executable} "$STAND_IN_TORCHRUN" "$@"\n',
}

TORCHRUN = """
import os, pathlib, sys, urllib.request
names = ("OPUS_MODE", "OPUS_JOB", "OPUS_HOST", "OPUS_DIMENSIONS")
seen = " ".join(f"{name}={os.environ[name]}" for name in names)
with urllib.request.urlopen(os.environ["OPUS_CONTROLLER"] + "/api/v1/switches") as answer:
    switches = answer.read().count(b'"driver"')
print("steps are made")
with open(os.environ["SEEN"], "a") as file:
    file.write(f"torchrun {seen} switches={switches} {' '.join(sys.argv[1:])}\\n")
if "OPUS_TRACE_DIR" in os.environ and os.environ["OPUS_HOST"] == "host0":
    from tests.trace.runs import two_by_two
    from opus_sdn.trace.recorded import write_recorded
    write_recorded(two_by_two(), pathlib.Path(os.environ["OPUS_TRACE_DIR"]))
sys.exit(int(os.environ.get("STATUS", "0")))
"""


def test_there_are_launchers_to_be_checked() -> None:
    assert {"profile.sbatch", "emulation.sbatch", "provision.sbatch"} <= {path.name for path in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    checked = subprocess.run(
        [BIN / "shellcheck", "--external-sources", "--source-path", ROOT, script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout) == (0, "")


def test_shellcheck_sees_a_fault(tmp_path: Path) -> None:
    bad = tmp_path / "bad.sh"
    bad.write_text("#!/bin/bash\nrm -rf $1/*\n")
    assert subprocess.run([BIN / "shellcheck", bad], capture_output=True, check=False).returncode == 1


def submit(tmp_path: Path, launcher: str, *arguments: str, **environment: str) -> tuple[int, str, list[str]]:
    """Run a batch script on two nodes of two ranks; its status, what it said, and what the stand-ins saw."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in STAND_INS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "torchrun.py").write_text(TORCHRUN)
    seen = tmp_path / "seen"
    seen.touch()
    ran = subprocess.run(
        ["bash", SLURM / launcher, *arguments],
        env={
            "PATH": f"{programs}:{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
            "OPUS_ROOT": str(ROOT),
            "RUN_DIR": str(tmp_path / "run"),
            "OPUS_PORT": str(free_port()),
            "NUM_RANKS_PER_NODE": "2",
            "SLURM_JOB_ID": "42",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_NODELIST": "node[0-1]",
            "SEEN": str(seen),
            "STAND_IN_TORCHRUN": str(tmp_path / "torchrun.py"),
            "OPUS_DIMENSIONS": "pp=2+dp=2",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return ran.returncode, ran.stdout + ran.stderr, sorted(seen.read_text().splitlines())


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.mark.parametrize(
    ("launcher", "mode"), [("emulation.sbatch", "on-demand"), ("provision.sbatch", "provision")]
)
def test_a_launcher_starts_a_controller_and_torchrun_on_every_node(
    tmp_path: Path, launcher: str, mode: str
) -> None:
    status, said, seen = submit(tmp_path, launcher, "train.py", "--steps", "10")
    assert status == 0, said
    tunnels = [line for line in seen if line.startswith("ssh")]
    assert len(tunnels) == 1  # the first node has the controller itself
    assert tunnels[0].endswith(" node0")
    runs = [line for line in seen if line.startswith("torchrun")]
    for node, line in enumerate(runs):
        assert f"OPUS_MODE={mode} OPUS_JOB=slurm-42 OPUS_HOST=host{node} OPUS_DIMENSIONS=pp=2,dp=2" in line
        assert "switches=2" in line
        assert line.endswith(
            f"--nnodes 2 --node-rank {node} --nproc-per-node 2 --rdzv-backend c10d "
            "--rdzv-endpoint node0:29500 --rdzv-id 42 train.py --steps 10"
        )
    assert (tmp_path / "run" / "torchrun_1.log").read_text() == "steps are made\n"
    assert "delay_ms: 50" in (tmp_path / "run" / "fabric.yaml").read_text()


def test_a_training_that_fails_fails_its_job(tmp_path: Path) -> None:
    status, _, _ = submit(tmp_path, "emulation.sbatch", "train.py", STATUS="7")
    assert status == 7


def test_a_launcher_without_a_script_says_how_to_name_one(tmp_path: Path) -> None:
    status, said, _ = submit(tmp_path, "emulation.sbatch")
    assert (status, "no training script; say it behind the launcher" in said) == (2, True)


def test_the_profile_launcher_leaves_windows_and_tables(tmp_path: Path) -> None:
    status, said, _ = submit(tmp_path, "profile.sbatch", "train.py")
    assert status == 0, said
    run = tmp_path / "run"
    assert "delay_ms: 0" in (run / "fabric.yaml").read_text()
    assert (run / "windows" / "transition_cdf_summary.txt").exists()
    assert len(list(run.glob("comm_pattern_*"))) == 4


@pytest.mark.torch
def test_two_ranks_of_one_host_wait_for_the_switch_once() -> None:
    ran = subprocess.run(
        [ROOT / "examples" / "two_gpus.sh", "20"],
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:5]] == [f"all-reduce {k} on cpu" for k in range(5)]
    changes = [line.partition('"new": ')[2].split(",")[0] for line in lines[5:]]
    assert changes == ['"-"', '"0"', '"1"']
