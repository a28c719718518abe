"""`make demo-polatis`: the eight-rank demonstration through the protocol of a real switch.

One emulated 32x32 Polatis, a process of its own, carries both rails: rail 0 on its ingress ports 1 to 8 and
egress ports 33 to 40, rail 1 on ingress 25 to 32 and egress 57 to 64. The controller drives it over RESTCONF.
The traffic witness sits in the emulator and sees the light, not the controller.

The same training runs over plain gloo and with the controller's own emulated switch; losses and topology ids
must be the same. Ends with a table and build/demo-polatis/report.json; exit status 1 when something is not as
it must be.
"""

from __future__ import annotations

import json
import secrets
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Final

import yaml
from rich.console import Console

from opus_sdn.demo.controller import Controller
from opus_sdn.demo.launcher import Zygote
from opus_sdn.demo.report import RunReport, collect, table
from opus_sdn.demo.runs import (
    STEPS,
    Steps,
    common_faults,
    console,
    dimensions,
    progress_bars,
    run_to_the_end,
    topology_faults,
    train,
)
from opus_sdn.demo.shapes import PROTOTYPE8
from opus_sdn.drivers.polatis_emulator.process import EmulatorProcess
from opus_sdn.fabric_file import generate_fabric

OUT: Final = Path("build/demo-polatis")
RUNS: Final = Path("runs")
SWITCH: Final = "polatis0"
SWITCH_MS: Final = 25
PASSWORD_VARIABLE: Final = "OPUS_DEMO_POLATIS_PASSWORD"  # the name of it
JOBS: Final = ("prototype8-emulated", "prototype8-polatis")


def fabric_of(restconf_port: int) -> str:
    """The fabric file: four hosts, two rails on one switch, its ports counted from 0."""
    return f"""\
version: 1
hosts: ["host[0-3]"]
gpus_per_host: 2
ports_per_gpu: 2
circuit: duplex
switches:
  - name: {SWITCH}
    driver: polatis
    size: 32
    layout: sided
    options:
      host: 127.0.0.1
      transport: restconf
      restconf_port: {restconf_port}
      user: opus
      password_env: {PASSWORD_VARIABLE}
rails:
  - {{name: rail0, slots: [0], switch: {SWITCH}, first_port: 0}}
  - {{name: rail1, slots: [1], switch: {SWITCH}, first_port: 24}}
"""


def emulated(
    zygote: Zygote, on_step: Steps, plain: list[str], out: Path, runs: Path, steps: int
) -> RunReport:
    """The run that the other one is compared with: the controller's own emulated switches."""
    job = JOBS[0]
    fabric = generate_fabric(hosts=4, gpus_per_host=2, delay_ms=SWITCH_MS)
    with Controller(fabric, out / job, runs_dir=runs) as controller:
        environment = controller.environment(job) | {"OPUS_DIMENSIONS": dimensions(PROTOTYPE8)}
        losses = train(zygote, "opus", on_step, environment, steps)
        return collect(controller, "emulated", job, SWITCH_MS, on_step.times, losses, plain)


def polatis(zygote: Zygote, on_step: Steps, plain: list[str], out: Path, runs: Path, steps: int) -> RunReport:
    """The run through RESTCONF. The password is made for this run and only referred to in the fabric file."""
    job, password = JOBS[1], secrets.token_urlsafe(16)
    folder = out / job
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "emulator.yaml"
    config.unlink(missing_ok=True)
    config.touch(mode=0o600)
    config.write_text(
        yaml.safe_dump({"size": "32x32", "users": [{"name": "opus", "password": password, "group": "user"}]})
    )
    watched = folder / "watched.yaml"
    watched.write_text(fabric_of(restconf_port=1))  # the witness wants the cabling only
    ports = [word for door in ("restconf", "tl1", "page") for word in (f"--{door}-port", "0")]
    arguments = ("--config", str(config), "--switch-ms", str(SWITCH_MS), *ports)
    with EmulatorProcess(folder, *arguments, "--fabric", str(watched), "--switch", SWITCH) as device:
        console.print(f"the switch can be watched on {device.page_url}")
        fabric = fabric_of(int(device.restconf_url.rpartition(":")[2]))
        with Controller(
            fabric,
            folder,
            runs_dir=runs,
            environment={PASSWORD_VARIABLE: password},
            witness=device.witness_address,
        ) as controller:
            environment = controller.environment(job) | {"OPUS_DIMENSIONS": dimensions(PROTOTYPE8)}
            losses = train(zygote, "opus", on_step, environment, steps)
            return collect(controller, "Polatis", job, SWITCH_MS, on_step.times, losses, plain)


def faults(reports: list[RunReport]) -> list[str]:
    """What is not as it must be, in words; empty when all is well."""
    found = [fault for report in reports for fault in common_faults(report) + topology_faults(report)]
    first, second = reports
    if first.results != second.results:
        found.append(f"losses differ: {first.results} on {first.job}, {second.results} on {second.job}")
    for rail in ("rail0", "rail1"):
        ids = [settled_ids(report, rail) for report in reports]
        if ids[0] != ids[1]:
            found.append(f"topology ids on {rail} differ: {ids[0]} on {first.job}, {ids[1]} on {second.job}")
    if not second.witness_operations:
        found.append(f"{second.job}: the traffic witness saw no operation")
    return found


def settled_ids(report: RunReport, rail: str) -> list[str]:
    """The topology ids between which a rail went, without those of a change that was half done."""
    return sorted({name for name in report.topology_history.get(rail, ()) if not set(name) & set("x-")})


def demonstrate(zygote: Zygote, out: Path, runs: Path, steps: int = STEPS) -> list[RunReport]:
    """All runs, with progress; files in `out` and `runs`."""
    for job in JOBS:
        shutil.rmtree(runs / job, ignore_errors=True)
    with progress_bars() as progress:
        loading = progress.add_task("loading torch, once for all ranks", total=1)
        zygote.wait_ready()
        progress.advance(loading)
        losses = train(zygote, "gloo", Steps(progress, "8 ranks over plain gloo", steps), {}, steps)
        first = Steps(progress, f"8 ranks, emulated switches of {SWITCH_MS} ms", steps)
        second = Steps(progress, f"8 ranks, a Polatis of {SWITCH_MS} ms over RESTCONF", steps)
        return [
            emulated(zygote, first, losses, out, runs, steps),
            polatis(zygote, second, losses, out, runs, steps),
        ]


def main() -> int:
    """Run all of it; the exit status."""
    OUT.mkdir(parents=True, exist_ok=True)
    with Zygote() as zygote:
        reports = demonstrate(zygote, OUT, RUNS)
    document = {
        "runs": [asdict(report) for report in reports],
        "witness_violations": sum(report.witness_violations for report in reports),
    }
    (OUT / "report.json").write_text(json.dumps(document, indent=2) + "\n")
    Console().print(table(reports))
    console.print(f"report: {OUT / 'report.json'}; logs and events: {RUNS}/<job>/")
    bad = faults(reports)
    for line in bad:
        console.print(f"[bold red]not as it must be:[/] {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    run_to_the_end(main)
