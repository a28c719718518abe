"""The self-test passes here, fails on a controller that breaks its promises, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from opus_sdn.selftest.checks import Check, History, check_all
from opus_sdn.selftest.scenario import DARK, DELAY_MS, JOB, OPERATIONS, PHASES, RAIL, ROUNDS, Operation
from tests.cli.conftest import opus_process

ENDS_S = 60


def test_it_passes_and_says_what_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with opus_process("selftest", "-o", "json") as process:
        out, err = process.communicate(timeout=ENDS_S)
    report = json.loads(out)
    assert [check["name"] for check in report["checks"] if not check["ok"]] == []
    assert (process.returncode, report["ok"], report["witness_violations"]) == (0, True, 0)
    assert len(report["checks"]) == 9
    assert report["topologies"] == [DARK, "11", "00", "00", "11", "00"]
    assert [phase["device_steps"] > 0 for phase in report["phases"]] == [True, False, True, False, True, True]
    assert all(phase["longest_wait_ms"] >= DELAY_MS - 1 for phase in report["phases"] if phase["changes"])
    said = err.splitlines()
    assert said[0] == "starting a controller with one emulated switch of 20 ms"
    assert said[2] == "job selftest declared: 4 ranks, pipeline 2 x data 2, topology --"
    assert [line for line in said if line.startswith("topology ")] == [
        f"topology {topology}" for topology in report["topologies"][1:]
    ]
    assert said[-1].startswith("self-test passed in ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("when", "number"),
    [("starting a controller", signal.SIGINT), ("controller ready at ", signal.SIGTERM)],
    ids=["before-it-is-ready", "while-ranks-start"],
)
def test_it_leaves_nothing_behind_when_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, number: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with opus_process("selftest") as process:
        assert process.stderr is not None
        line = ""
        while when not in line:
            line = process.stderr.readline()
        process.send_signal(number)
        # stderr is inherited by nobody: its end means that the controller's process has not kept it either.
        out, err = process.communicate(timeout=ENDS_S)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []
    if "http" in line:
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{line.split()[3]}/livez", trust_env=False)


@dataclass
class Run:
    """What a faultless run leaves behind, to plant a fault in."""

    events: list[dict[str, Any]]
    waits_ms: dict[str, list[float]]
    topologies: list[str]
    report: dict[str, Any]
    job: dict[str, Any] = field(default_factory=lambda: {"state": "ended"})
    locks_left: int = 0

    def event(self, kind: str, operation: Operation) -> dict[str, Any]:
        """The event of an operation, or of the device step that it caused."""
        if kind.startswith("intent"):
            name = {"connection": operation.stream.connection, "n": operation.n}
            return next(
                event
                for event in self.events
                if event["kind"] == kind
                and name.items() <= event["data"].items()
                and event["data"].get("source") == operation.stream.source
            )
        step = next(
            event["data"]["step"]
            for event in self.events
            if event["kind"] == "step.planned" and f"{JOB}/1/{operation.key}" in event["data"]["causes"]
        )
        return next(e for e in self.events if e["kind"] == kind and e["data"]["step"] == step)

    def swap(self, first: dict[str, Any], second: dict[str, Any]) -> None:
        """Let two events have happened the other way round."""
        first["seq"], second["seq"] = second["seq"], first["seq"]
        self.events.sort(key=lambda event: int(event["seq"]))

    def failed(self) -> list[str]:
        """The names of the checks that fail."""
        history = History.of(self.events, 1)
        checks: tuple[Check, ...] = check_all(
            history, self.waits_ms, self.topologies, self.report, self.job, self.locks_left
        )
        return [check.name for check in checks if not check.ok]


@pytest.fixture
def run() -> Run:
    events: list[dict[str, Any]] = []

    def happened(kind: str, rail: str | None = None, **data: Any) -> None:
        events.append({"seq": len(events) + 1, "kind": kind, "rail": rail, "data": data})

    for phase in PHASES:
        for number, operation in enumerate(phase.operations):
            if phase.changes:
                step = 10 * PHASES.index(phase) + number
                happened("step.planned", step=step, causes=[f"{JOB}/1/{operation.key}"])
                happened("step.started", step=step)
                happened("step.done", step=step)
                happened("topology.changed", RAIL, new=phase.topology)
            happened("intent.granted", **named(operation))
        for operation in phase.operations:
            happened("intent.released", **named(operation))
    return Run(
        events=events,
        waits_ms={operation.key: [DELAY_MS + 1, DELAY_MS + 2] for operation in OPERATIONS},
        topologies=[DARK, *(phases[-1].topology for phases in ROUNDS)],
        report={"violations": [], "operations": 2 * len(OPERATIONS), "active": 0},
    )


def named(operation: Operation) -> dict[str, Any]:
    data: dict[str, Any] = {"connection": operation.stream.connection, "n": operation.n}
    if operation.stream.source is not None:
        data |= {"source": operation.stream.source, "destination": operation.stream.destination}
    return data


GRANTS = "every grant came after the change"
LIGHT = "changes took at least the 20 ms of the optics"
CHANGES = "exactly 4 changes touched the switch"
REPEATS = "repeated use of what is up causes no change"
CUT = "no circuit was taken from a running operation"
TOPOLOGIES = "topology ids went -- 11 00 11 00"
WITNESS = "the traffic witness saw no violation"
LEFT = "the job ended and holds nothing"
CHANGED, REPEATED, TURNED = PHASES[0].operations[0], PHASES[1].operations[0], PHASES[2].operations[0]


def grant_early(run: Run) -> None:
    run.swap(run.event("step.done", CHANGED), run.event("intent.granted", CHANGED))


def never_grant(run: Run) -> None:
    run.events.remove(run.event("intent.granted", REPEATED))


def be_faster_than_light(run: Run) -> None:
    run.waits_ms[TURNED.key][0] = DELAY_MS - 2


def leave_a_change_out(run: Run) -> None:
    for operation in PHASES[4].operations:
        for kind in ("step.started", "step.done", "step.planned"):
            run.events.remove(run.event(kind, operation))


def change_for_a_repeated_use(run: Run) -> None:
    seq = run.event("intent.granted", REPEATED)["seq"]
    step = {"step": 99, "causes": [f"{JOB}/1/{REPEATED.key}"]}
    for part, kind in enumerate(("step.planned", "step.started", "step.done")):
        run.events.append({"seq": seq - 0.9 + part / 10, "kind": kind, "rail": None, "data": step})
    for number, event in enumerate(sorted(run.events, key=lambda e: float(e["seq"]))):
        event["seq"] = number
    run.events.sort(key=lambda event: int(event["seq"]))


def change_for_nobody(run: Run) -> None:
    for kind in ("step.planned", "step.started", "step.done"):
        data = {"step": 99, "causes": ["other/1/dp#0"]}
        run.events.append({"seq": len(run.events) + 1, "kind": kind, "rail": None, "data": data})


def fail_a_step(run: Run) -> None:
    run.event("step.done", TURNED)["kind"] = "step.failed"


def cut_a_running_operation(run: Run) -> None:
    run.swap(run.event("intent.released", REPEATED), run.event("step.started", TURNED))


def show_a_wrong_topology(run: Run) -> None:
    run.topologies[1] = "0x"


def violate(run: Run) -> None:
    run.report["violations"] = [{"detail": "ocs0 moved 1->2 under rank 0"}]


def hide_an_operation(run: Run) -> None:
    run.report["operations"] -= 1


def leave_an_operation_running(run: Run) -> None:
    run.report["active"] = 1


def fail_the_job(run: Run) -> None:
    run.job["state"] = "failed"


def keep_a_lock(run: Run) -> None:
    run.locks_left = 1


PLANTED: list[tuple[Callable[[Run], None], list[str]]] = [
    (grant_early, [GRANTS]),
    (never_grant, [GRANTS]),
    (be_faster_than_light, [LIGHT]),
    (leave_a_change_out, [CHANGES]),
    (change_for_a_repeated_use, [REPEATS]),
    (change_for_nobody, [CHANGES]),
    (fail_a_step, [GRANTS, CHANGES]),
    (cut_a_running_operation, [CUT]),
    (show_a_wrong_topology, [TOPOLOGIES]),
    (violate, [WITNESS]),
    (hide_an_operation, [WITNESS]),
    (leave_an_operation_running, [WITNESS]),
    (fail_the_job, [LEFT]),
    (keep_a_lock, [LEFT]),
]


def test_a_faultless_run_passes_every_check(run: Run) -> None:
    assert run.failed() == []


@pytest.mark.parametrize(("plant", "wanted"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_controller_that_breaks_a_promise_fails_its_check(
    run: Run, plant: Callable[[Run], None], wanted: list[str]
) -> None:
    plant(run)
    assert run.failed() == wanted
