"""`make demo`: the two published demonstrations, end to end, on this machine.

(a) Two ranks on one host, forced scale-out, a switch of 50 ms that starts with pipeline links: the first
all-reduce waits for the switch once, the others find the circuit up.
(b) The shape of the hardware prototype: 8 ranks as 4 virtual hosts x 2 GPUs, pipeline 2 x data 2 x tensor 2,
a small Llama under FSDP2, 1F1B and tensor parallelism, with a switch of 0 and of 50 ms, beside plain gloo.

Ends with a table and build/demo/report.json; exit status 1 when something is not as it must be.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress

from opus_sdn.demo.controller import Controller
from opus_sdn.demo.launcher import Zygote
from opus_sdn.demo.report import RunReport, collect, table
from opus_sdn.demo.runs import (
    DEADLINE_S,
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
from opus_sdn.demo.shapes import PROTOTYPE8, TWO_RANKS
from opus_sdn.fabric_file import generate_fabric

OUT: Final = Path("build/demo")
RUNS: Final = Path("runs")
OPERATIONS: Final = 5
DELAY_MS: Final = 50
JOBS: Final = ("two-ranks", "prototype8-0ms", f"prototype8-{DELAY_MS}ms")


def two_ranks(zygote: Zygote, progress: Progress) -> RunReport:
    """Demonstration (a). The result compared with plain gloo's is the list of reduced values."""
    target, job = "opus_sdn.demo.two_ranks:run", "two-ranks"
    quiet = Steps(progress, "(a) two ranks over plain gloo", OPERATIONS)
    plain = zygote.run(target, 2, args=("gloo", OPERATIONS), on_message=quiet, deadline_s=DEADLINE_S)
    fabric = generate_fabric(hosts=1, gpus_per_host=2, rails=1, delay_ms=DELAY_MS)
    steps = Steps(progress, f"(a) two ranks, switch of {DELAY_MS} ms", OPERATIONS)
    with Controller(fabric, OUT / job, runs_dir=RUNS) as controller:
        settings = {
            "OPUS_FORCE_DOMAIN": "scale-out",
            "OPUS_DIMENSIONS": "dp=2",
            "OPUS_INITIAL_TOPOLOGY": "0",  # bit topology id 1: pipeline links
        }
        results = zygote.run(
            target,
            2,
            args=("opus", OPERATIONS),
            environment=controller.environment(job) | settings,
            rank_environment=TWO_RANKS.environment,
            on_message=steps,
            deadline_s=DEADLINE_S,
        )
        return collect(
            controller,
            "(a) 2 ranks",
            job,
            DELAY_MS,
            steps.times,
            [repr(value) for value in results[0].values],
            [repr(value) for value in plain[0].values],
        )


def prototype(zygote: Zygote, progress: Progress, delay_ms: int, plain: list[str]) -> RunReport:
    """Demonstration (b) at one delay. All losses are compared, with all their digits."""
    job = f"prototype8-{delay_ms}ms"
    fabric = generate_fabric(hosts=4, gpus_per_host=2, delay_ms=delay_ms)
    steps = Steps(progress, f"(b) 8 ranks, switches of {delay_ms} ms", STEPS)
    with Controller(fabric, OUT / job, runs_dir=RUNS) as controller:
        environment = controller.environment(job) | {"OPUS_DIMENSIONS": dimensions(PROTOTYPE8)}
        losses = train(zygote, "opus", steps, environment)
        return collect(controller, "(b) 8 ranks", job, delay_ms, steps.times, losses, plain)


def faults(reports: list[RunReport]) -> list[str]:
    """What is not as it must be, in words; empty when all is well."""
    found = [fault for report in reports for fault in common_faults(report)]
    found += [fault for report in reports[1:] for fault in topology_faults(report)]
    first = reports[0]
    if (first.topology_changes, first.device_operations) != (1, 1):
        changed = f"{first.topology_changes} changes and {first.device_operations} device operations"
        found.append(f"{first.job}: {changed}, wanted exactly one of each")
    if first.topology_history != {"rail0": ["-", "0", "1"]}:
        found.append(f"{first.job}: topology ids went {first.topology_history}, wanted -, 0, 1 on rail0")
    if first.exposed_wait_ms_by_grant[0] < DELAY_MS:
        found.append(f"{first.job}: the first all-reduce waited {first.exposed_wait_ms_by_grant[0]} ms only")
    return found


def main() -> int:
    """Run all of it; the exit status."""
    OUT.mkdir(parents=True, exist_ok=True)
    for job in JOBS:  # the controllers begin anew, and so do their files
        shutil.rmtree(RUNS / job, ignore_errors=True)
    with progress_bars() as progress, Zygote() as zygote:
        loading = progress.add_task("loading torch, once for all ranks", total=1)
        zygote.wait_ready()
        progress.advance(loading)
        reports = [two_ranks(zygote, progress)]
        plain = Steps(progress, "(b) 8 ranks over plain gloo", STEPS)
        losses = train(zygote, "gloo", plain, {})
        reports += [prototype(zygote, progress, delay_ms, losses) for delay_ms in (0, DELAY_MS)]
    document = {
        "runs": [asdict(report) for report in reports],
        "witness_violations": sum(report.witness_violations for report in reports),
        "plain_gloo_step_seconds": [step.seconds for step in plain.times],
    }
    (OUT / "report.json").write_text(json.dumps(document, indent=2) + "\n")
    Console().print(table(reports))
    first = reports[0]
    console.print("exposed: from the last rank's arrival to the grant, as the controller recorded it")
    console.print(f"(a) exposed wait of each all-reduce: {first.exposed_wait_ms_by_grant} ms")
    console.print(f"report: {OUT / 'report.json'}; logs and events: {RUNS}/<job>/")
    bad = faults(reports)
    for line in bad:
        console.print(f"[bold red]not as it must be:[/] {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    run_to_the_end(main)
