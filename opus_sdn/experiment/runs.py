"""Makes one run: a controller of its own, ranks forked from a parent that has torch, and what came of it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from opus_sdn.demo.controller import Controller
from opus_sdn.demo.launcher import RankOutcome, Zygote
from opus_sdn.demo.report import StepTime, waits_by_step
from opus_sdn.demo.results import StepRecord
from opus_sdn.demo.runs import dimensions
from opus_sdn.experiment.cases import CASES, Case, Mode, RunSpec
from opus_sdn.experiment.results import FILE, RunResult
from opus_sdn.fabric_file import generate_fabric

AFTER_FAILURE_S: Final = 30.0
START_S: Final = 120.0  # for ranks to join, beside what their steps take
STEP_S_MAX: Final = 60.0  # far above any step of these models; a run that takes longer hangs
TIME_OUT: Final = "deadline-exceeded"

OnStep = Callable[[int, StepRecord], None]


def run_experiment(zygote: Zygote, spec: RunSpec, folder: Path, on_step: OnStep | None = None) -> RunResult:
    """Run it and save the result in `folder`, which is made. A run that fails is a result too.

    A controller runs in every mode: a native run must leave no trace in it. Raises ControllerFailedError and
    ZygoteError when the run could not be started.
    """
    case = CASES[spec.case]
    shape = case.shape
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).unlink(missing_ok=True)
    result = RunResult(
        run=folder.name,
        case=spec.case,
        mode=spec.mode.value,
        delay_ms=spec.delay_ms,
        ranks=shape.world_size,
        hosts=shape.hosts,
        gpus_per_host=shape.gpus_per_host,
        steps=spec.steps,
        command=command(spec, folder),
        seconds=[[] for _ in range(shape.world_size)],
    )
    records: list[list[StepRecord]] = [[] for _ in range(shape.world_size)]

    def stepped(rank: int, record: StepRecord) -> None:
        records[rank].append(record)
        if on_step is not None:
            on_step(rank, record)

    fabric = generate_fabric(hosts=shape.hosts, gpus_per_host=shape.gpus_per_host, delay_ms=spec.delay_ms)
    quiet = {"OPUS_SDN_WITNESS": "false"}
    with Controller(fabric, folder / "controller", runs_dir=folder / "jobs", environment=quiet) as controller:
        begin = time.monotonic()
        outcomes = zygote.launch(
            "opus_sdn.demo.train:run",
            shape.world_size,
            args=(case.config(spec.steps), spec.mode.backend),
            environment=rank_environment(spec, case, controller, folder),
            rank_environment=shape.environment,
            deadline_s=START_S + spec.steps * (STEP_S_MAX + 20 * spec.delay_ms / 1e3),
            after_failure_s=AFTER_FAILURE_S,
            on_message=stepped,
            log_dir=folder / "ranks",
        ).wait()
        result.wall_s = round(time.monotonic() - begin, 3)
        _take_ranks(result, records, outcomes)
        _take_controller(result, controller, spec.name, records[0])
    result.save(folder)
    return result


def rank_environment(spec: RunSpec, case: Case, controller: Controller, folder: Path) -> dict[str, str]:
    """What every rank of the run is told; a native one hears of the controller too, and must not mind it."""
    environment = controller.environment(spec.name) | {
        "OPUS_DIMENSIONS": dimensions(case.shape),
        "OPUS_WATCHDOG": "0",  # a process more beside each of up to 64 ranks
    }
    if spec.mode is not Mode.NATIVE:
        environment["OPUS_MODE"] = spec.mode.shim
    if spec.trace:
        environment["OPUS_TRACE_DIR"] = str((folder / "trace").resolve())
    return environment


def command(spec: RunSpec, folder: Path) -> str:
    """The command line that makes this run."""
    words = ["opus", "experiment", "run", "--case", spec.case, "--mode", spec.mode.value]
    if spec.delay_ms:
        words += ["--delay-ms", f"{spec.delay_ms:g}"]
    words += ["--steps", str(spec.steps), *(["--trace"] if spec.trace else []), "--out", str(folder.parent)]
    return shlex.join(words)


def _take_ranks(
    result: RunResult, records: list[list[StepRecord]], outcomes: tuple[RankOutcome, ...]
) -> None:
    result.seconds = [[record.seconds for record in steps] for steps in records]
    losses = next((steps for steps in reversed(records) if steps and steps[0].loss is not None), [])
    result.losses = [repr(record.loss) for record in losses]
    result.failures = [_first_lines(str(outcome)) for outcome in outcomes if not outcome.ok]


def _take_controller(
    result: RunResult, controller: Controller, job: str, first_rank: list[StepRecord]
) -> None:
    jobs = controller.all("/jobs")
    result.jobs = len(jobs)
    if job not in {each["job"] for each in jobs}:
        return
    view: Mapping[str, Any] = controller.get(f"/jobs/{job}")
    events = controller.events(job)
    connections = {each["id"]: each for each in controller.all("/connections", job=job)}
    granted = [event for event in events if event["kind"] == "intent.granted"]
    steps = [StepTime(record.ended_at, record.seconds) for record in first_rank]
    result.arrivals_seen = bool(connections)
    result.grants = view["grants"]
    result.topology_changes = view["topology_changes"]
    result.device_operations = view["device_steps"]
    result.time_outs = sum(
        event["kind"] == "job.failed" and event["data"].get("cause") == TIME_OUT for event in events
    )
    result.exposed_ms = waits_by_step(granted, connections, steps)
    result.status = {name: value for name, value in view.items() if name != "ranks"}


def _first_lines(text: str, lines: int = 6) -> str:
    return "\n".join(text.splitlines()[:lines])[:2000]
