"""The course of the self-test: start, declare, play round after round, look at what happened, clean up."""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from opus_sdn import __version__
from opus_sdn.selftest.checks import Check, History, check_all
from opus_sdn.selftest.controller import ControllerProcess
from opus_sdn.selftest.rank import Rank, SelftestError, together
from opus_sdn.selftest.scenario import (
    DELAY_MS,
    DIMENSIONS,
    GROUPS,
    HOSTS,
    JOB,
    OPERATIONS,
    RAIL,
    ROUNDS,
    Phase,
)
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.errors import OpusError
from opus_sdn.shim.wire import PREFIX, connection_path, job_path, read_circuits, read_job
from opus_sdn.shim.witness_client import WitnessClient, WitnessError

Say = Callable[[str], None]
EVENTS_PAGE = 500
HISTORY_S_MAX = 5.0
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """One phase as it was played: the longest wait for a grant, and how many device steps it took."""

    title: str
    changes: bool
    topology: str
    longest_wait_ms: float
    device_steps: int


@dataclass(frozen=True, slots=True)
class Report:
    """What came out."""

    ok: bool
    version: str
    seconds: float
    delay_ms: float
    checks: tuple[Check, ...]
    phases: tuple[PhaseResult, ...]
    topologies: tuple[str, ...]
    witness_violations: int

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)


def run_selftest(say: Say) -> Report:
    """Play the scenario once; `say` gets a line for people at every step.

    Raises SelftestError when it could not be played to its end. Whatever happens, the controller and its
    folder are gone afterwards.
    """
    began_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="opus-selftest-") as folder:
        say(f"starting a controller with one emulated switch of {DELAY_MS:g} ms")
        with ControllerProcess(Path(folder)) as controller:
            say(f"controller ready at {controller.url} after {time.monotonic() - began_at:.1f} s")
            try:
                play = _Play(controller)
                play.all_rounds(say)
                checks, phases, violations = play.judge()
            except (OpusError, WitnessError) as failed:
                raise SelftestError(str(failed)) from failed
        ended = Check(
            "the controller stopped cleanly", controller.exit_code == 0, f"exit code {controller.exit_code}"
        )
    checks = (*checks, ended)
    return Report(
        ok=all(check.ok for check in checks),
        version=__version__,
        seconds=round(time.monotonic() - began_at, 3),
        delay_ms=DELAY_MS,
        checks=checks,
        phases=phases,
        topologies=tuple(play.topologies),
        witness_violations=violations,
    )


class _Play:
    """One run of the scenario against one controller."""

    def __init__(self, controller: ControllerProcess) -> None:
        self._client = controller.client()
        self._witness = controller.witness
        self._lock = threading.Lock()
        self._waits_ms: dict[str, list[float]] = {}
        self.incarnation, self._start = self._declare()
        self._circuits = {
            operation.key: read_circuits(
                self._client.request("GET", connection_path(JOB, operation.stream.connection))
            )
            for operation in OPERATIONS
        }
        self.topologies = [self._topology()]

    def all_rounds(self, say: Say) -> None:
        """Play every round. The ranks leave at the end; when something fails they are stopped."""
        say(f"job {JOB} declared: {HOSTS} ranks, pipeline 2 x data 2, topology {self.topologies[0]}")
        ranks: list[Rank] = []
        try:
            for number in range(HOSTS):
                rank = Rank(self._client, self._witness, JOB, self.incarnation, self._start, number)
                ranks.append(rank)
            for phases in ROUNDS:
                together([partial(self._one_rank, rank, phases) for rank in ranks])
                self.topologies.append(self._topology())
                for phase in phases:
                    say(f"{phase.title}: granted after {self._longest_ms(phase):.0f} ms at most")
                say(f"topology {self.topologies[-1]}")
        except BaseException:
            for rank in ranks:
                rank.stop()
                rank.close(in_order=False)
            raise
        for rank in ranks:
            rank.close()

    def judge(self) -> tuple[tuple[Check, ...], tuple[PhaseResult, ...], int]:
        """All checks, the phases as they were, and the number of violations that the witness counted."""
        history = self._history()
        witness = WitnessClient(self._witness)
        report = witness.report()
        witness.close()
        job = self._client.request("GET", job_path(JOB))
        locks = self._client.request("GET", f"{PREFIX}/locks")["locks"]
        self._client.close()
        checks = check_all(history, self._waits_ms, self.topologies, report, job, len(locks))
        results = tuple(
            PhaseResult(
                phase.title,
                phase.changes,
                phase.topology,
                round(self._longest_ms(phase), 3),
                len(history.steps_for(phase)),
            )
            for phases in ROUNDS
            for phase in phases
        )
        return checks, results, len(report["violations"])

    def _declare(self) -> tuple[int, int]:
        body = {
            "owner": "selftest",
            "nonce": uuid.uuid4().hex,
            "placement": [{"rank": rank, "host": f"host{rank}", "slot": 0} for rank in range(HOSTS)],
            "dimensions": [{"name": name, "size": size} for name, size in DIMENSIONS],
            "deadline_s": 60.0,
        }
        job = read_job(self._client.request("PUT", job_path(JOB), body))
        groups = [
            {"name": name, "ranks": list(ranks), "dimension": name.partition("-")[0], "ordinal": 0}
            for name, ranks in GROUPS.items()
        ]
        self._client.request(
            "POST", job_path(JOB, "groups"), {"incarnation": job.incarnation, "groups": groups}
        )
        return job.incarnation, job.start

    def _one_rank(self, rank: Rank, phases: Sequence[Phase]) -> None:
        """One rank's part of a round: its operation of every phase, one after the other."""
        for phase in phases:
            for operation in phase.operations:
                if rank.number in operation.ranks:
                    waited_ms = rank.perform(operation, self._circuits[operation.key])
                    with self._lock:
                        self._waits_ms.setdefault(operation.key, []).append(waited_ms)

    def _longest_ms(self, phase: Phase) -> float:
        return max(max(self._waits_ms[operation.key]) for operation in phase.operations)

    def _topology(self) -> str:
        rail = self._client.request("GET", f"{PREFIX}/rails/{RAIL}")
        return str(rail["topology"][JOB])

    def _history(self) -> History:
        """The whole history, once it says that the job has ended: it is written a little after the fact."""
        give_up_at = time.monotonic() + HISTORY_S_MAX
        while True:
            events = read_events(self._client)
            if any(event["kind"] == "job.ended" for event in events) or time.monotonic() > give_up_at:
                return History.of(events, self.incarnation)
            time.sleep(LOOK_S)


def read_events(client: ControllerClient) -> list[Mapping[str, Any]]:
    """Every event of a controller, page by page."""
    events: list[Mapping[str, Any]] = []
    since = 0
    while True:
        page = client.request("GET", f"{PREFIX}/events?since={since}&limit={EVENTS_PAGE}")
        events += page["events"]
        since = page["newest"]
        if len(page["events"]) < EVENTS_PAGE:
            return events
