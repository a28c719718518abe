"""One rank of the self-test: the session that a training rank has, without torch and without a GPU."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from opus_sdn.intent.model import Grant, Stream
from opus_sdn.selftest.scenario import Operation
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.errors import ControllerError, OpusError, OpusJobFailed
from opus_sdn.shim.session import RankSession
from opus_sdn.shim.witness_client import WitnessClient, WitnessError

GRANT_S_MAX = 8.0  # a change takes 20 ms; a machine that needs longer than this is no test of ours
LEAVE_S = 3.0
TRAFFIC_MS = 2.0


class SelftestError(Exception):
    """The self-test cannot go on; the message says what did not happen."""


class Rank:
    """A rank that asks, waits, tells the witness of its traffic, and releases. One thread at a time."""

    def __init__(
        self, client: ControllerClient, witness: str, job: str, incarnation: int, start: int, number: int
    ) -> None:
        self.number = number
        self._outcomes: queue.SimpleQueue[Grant | Exception] = queue.SimpleQueue()
        self._witness = WitnessClient(witness)
        self._session = RankSession(
            client,
            job,
            incarnation,
            start,
            number,
            on_grant=self._outcomes.put,
            on_failed=self._failed,
            on_refused=self._refused,
        )

    def perform(self, operation: Operation, circuits: Sequence[str]) -> float:
        """Do this rank's part of an operation. Returns how long the grant took, in milliseconds.

        Raises SelftestError when it does not come, or when it is not this one.
        """
        asked_at = time.monotonic()
        self._session.arrive(operation.stream, operation.n, blocking=True)
        self._await(operation)
        waited_ms = (time.monotonic() - asked_at) * 1e3
        name = f"{operation.key}@{self.number}"
        try:
            self._witness.begin(name, circuits, self.number)
            linger_ms = operation.linger_ms[operation.ranks.index(self.number)]
            time.sleep((TRAFFIC_MS + linger_ms) / 1e3)
            self._witness.end(name)
        except WitnessError as failed:
            raise SelftestError(f"rank {self.number}: {failed}") from None
        self._session.release(operation.stream, operation.n)
        return waited_ms

    def stop(self) -> None:
        """End whatever `perform` waits for."""
        self._outcomes.put(SelftestError(f"rank {self.number}: interrupted"))

    def close(self, *, in_order: bool = True) -> None:
        """Leave the job; not `in_order`: without much waiting for an answer, as after a failure."""
        self._session.close(LEAVE_S if in_order else 0.0)
        self._witness.close()

    def _await(self, operation: Operation) -> None:
        try:
            outcome = self._outcomes.get(timeout=GRANT_S_MAX)
        except queue.Empty:
            raise SelftestError(
                f"rank {self.number}: no grant of {operation.key} within {GRANT_S_MAX:g} s"
            ) from None
        if isinstance(outcome, SelftestError):
            raise outcome
        if isinstance(outcome, Exception):
            raise SelftestError(f"rank {self.number}: {operation.key}: {outcome}")
        if (outcome.stream, outcome.n) != (operation.stream, operation.n):
            raise SelftestError(
                f"rank {self.number}: asked for {operation.key} and was granted {outcome.stream}#{outcome.n}"
            )

    def _failed(self, failure: OpusJobFailed) -> None:
        self._outcomes.put(failure)

    def _refused(self, stream: Stream, n: int, error: ControllerError) -> None:
        self._outcomes.put(OpusError(f"{stream}#{n} was refused: {error}"))


def together(programs: Sequence[Callable[[], None]]) -> None:
    """Run the programs at the same time, one thread each, and raise the first error of any."""
    errors: list[Exception] = []

    def guarded(program: Callable[[], None]) -> None:
        try:
            program()
        except Exception as error:  # noqa: BLE001 - raised again in the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(program,), daemon=True) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise SelftestError(str(errors[0]) or repr(errors[0])) from errors[0]
