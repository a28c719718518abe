"""Writes what a rank did to a file of its own, and how far its clock is from the controller's.

One JSON document a line, so that a rank that is killed leaves all lines but the last: first `format`, then
`what` (a kind of operation, numbered), `op` (an operation: what it is, and its moments), `clock` (a question
for the controller's time) and `lost` (records that were overwritten before they could be written). Moments
are ns of the rank's monotonic clock, 0 where nothing was seen.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from opus_sdn.shim.operations import Follower, Operation, What

FORMAT: Final = "opus-trace"
VERSION: Final = 1
SUFFIX: Final = ".opus.jsonl"
MOMENTS: Final = ("called", "arrived", "granted", "issued", "wait_begin", "wait_end", "finished")
PAUSE_S: Final = 0.5  # the log holds 65,536 operations
CLOCK_EVERY_S: Final = 5.0
CLOCK_QUESTIONS: Final = 5  # in a row: the fastest answer says most
FILE_BYTES_MAX: Final = 1 << 30
CLOCK_PATH: Final = "/clock"

log = logging.getLogger(__name__)


class Asking(Protocol):
    """What a recorder needs of the client."""

    def request(self, method: str, path: str, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Ask, and return the answer's JSON object."""


def describe(what: What) -> dict[str, Any]:
    """What a trace says of a kind of operation."""
    return {
        "kind": what.kind,
        "group": what.group,
        "description": what.description,
        "dimension": what.dimension,
        "ranks": what.ranks,
        "gated": what.connection is not None,
        "peer": what.peer,
    }


class Recorder:
    """Follows one rank's operations from a thread of its own until `close`. Never raises into the program."""

    def __init__(
        self,
        folder: Path,
        head: Mapping[str, Any],
        follower: Follower,
        client: Asking,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`head` names job, incarnation, rank, world, host. Raises OSError when the file cannot be made."""
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{head['job']}.{head['incarnation']}.{head['rank']}{SUFFIX}"
        self.path = folder / name
        self._file = self.path.open("w", encoding="utf-8")
        self._follower, self._client, self._clock = follower, client, clock
        self._numbers: dict[tuple[object, ...], int] = {}
        self._written = self._lost = 0
        self._over = threading.Event()
        self._write({"format": FORMAT, "version": VERSION, **head})
        self._thread = threading.Thread(target=self._run, name=f"opus-trace-{head['rank']}", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is left. Operations that have not finished are written as they are."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            due = 0.0
            while not self._over.is_set():
                if time.monotonic() >= due:
                    self._ask_the_time()
                    due = time.monotonic() + CLOCK_EVERY_S
                self._take(unfinished_too=False)
                self._over.wait(PAUSE_S)
            self._take(unfinished_too=True)
            self._ask_the_time()
        except OSError as failed:
            log.warning("the trace ends here path=%s error=%s", self.path, failed)
        finally:
            self._file.close()

    def _take(self, *, unfinished_too: bool) -> None:
        for operation in self._follower.take(unfinished_too):
            self._write({"op": self._line(operation)})
        if self._follower.lost > self._lost:
            self._lost = self._follower.lost
            self._write({"lost": self._lost})
        self._file.flush()

    def _line(self, operation: Operation) -> list[Any]:
        """Number, what, n, bytes, failed, and the moments in the order of `MOMENTS`."""
        moments = [getattr(operation, f"{moment}_ns") for moment in MOMENTS]
        return [
            operation.number,
            self._what(operation.what),
            operation.n,
            operation.bytes,
            int(operation.failed),
            *moments,
        ]

    def _what(self, what: What) -> int:
        fields = describe(what)
        name = tuple(fields.values())  # records of one kind may be several objects
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._numbers)
            self._write({"what": number, **fields, "ranks": list(what.ranks)})
        return number

    def _ask_the_time(self) -> None:
        """The controller's clock stood between the two moments around the answer; it may be away just now."""
        for _ in range(CLOCK_QUESTIONS):
            asked = self._clock()
            try:
                answer = self._client.request("GET", CLOCK_PATH, timeout_s=1.0)
                said = int(answer["unix_us"])
            except Exception as failed:  # noqa: BLE001 - a trace without this question is a trace still
                log.debug("the controller's time is not known error=%s", failed)
                return
            self._write({"clock": [asked, self._clock(), said]})

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":")) + "\n"
        self._written += len(text)
        if self._written > FILE_BYTES_MAX:
            raise OSError(f"a trace may have {FILE_BYTES_MAX} bytes")
        self._file.write(text)
