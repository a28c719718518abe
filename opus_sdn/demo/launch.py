"""A run of forked ranks: how each one ended, and the handle to wait for, signal and stop them."""

from __future__ import annotations

import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opus_sdn.demo.child import RankError

MAX_LOG_CHARACTERS: Final = 16 * 1024

OnExit = Callable[[int, int], None]
OnMessage = Callable[[int, Any], None]


class ZygoteError(RuntimeError):
    """The fork server could not be started, or died."""


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """How one rank ended.

    `status` is its exit code, or minus the signal that ended it. `hung`: it was alive at the deadline;
    `stacks` then holds the python stacks of all its threads. `log` is the tail of what it printed.
    """

    rank: int
    status: int
    value: Any
    error: RankError | None
    hung: bool
    stacks: str
    log: str

    @property
    def ok(self) -> bool:
        """Whether the program returned and the process left with status 0."""
        return self.status == 0 and self.error is None and not self.hung

    def __str__(self) -> str:
        if self.ok:
            return f"rank {self.rank}: returned"
        if self.hung:
            return f"rank {self.rank}: still running at the deadline\n{self.stacks or '(it wrote no stacks)'}"
        if self.error is not None:
            return f"rank {self.rank}: {self.error.type}: {self.error.text}\n{self.error.traceback}"
        what = f"killed by signal {-self.status}" if self.status < 0 else f"left with status {self.status}"
        return f"rank {self.rank}: {what}\n{self.log}"


class LaunchFailedError(RuntimeError):
    """At least one rank did not return; the message says which ones and how, hung ranks with their stacks."""

    def __init__(self, target: str, outcomes: Sequence[RankOutcome]) -> None:
        self.outcomes = tuple(outcomes)
        bad = [one for one in self.outcomes if not one.ok]
        hung = [one.rank for one in bad if one.hung]
        head = f"{target}: {len(bad)} of {len(self.outcomes)} ranks failed"
        if hung:
            head += f"; hung at the deadline: {hung}"
        super().__init__("\n".join([head, *map(str, bad)]))


class Launch:
    """A run in progress. Made by `Zygote.launch`, usable from any thread."""

    def __init__(
        self,
        send: Callable[..., None],
        target: str,
        folder: Path,
        scratch: tempfile.TemporaryDirectory[str],
        world_size: int,
        on_exit: OnExit | None,
        on_message: OnMessage | None,
    ) -> None:
        self.target = target
        self.world_size = world_size
        self._send = send
        self._folder = folder
        self._scratch = scratch
        self._on_exit = on_exit
        self._on_message = on_message
        self._changed = threading.Condition()
        self._pids: dict[int, int] = {}
        self._results: dict[int, tuple[str, Any]] = {}
        self._exits: dict[int, tuple[int, bool]] = {}
        self._outcomes: tuple[RankOutcome, ...] | None = None
        self._broken: BaseException | None = None

    @property
    def pids(self) -> Mapping[int, int]:
        """Process ids by rank, once all are forked."""
        with self._changed:
            return dict(self._pids)

    @property
    def finished(self) -> bool:
        """Whether every rank has ended."""
        with self._changed:
            return self._outcomes is not None or self._broken is not None

    def wait_started(self, timeout_s: float = 60.0) -> Mapping[int, int]:
        """Wait until every rank is forked; returns the process ids. Raises TimeoutError, ZygoteError."""
        self._wait(lambda: bool(self._pids), timeout_s, "fork its ranks")
        return self.pids

    def kill(self, rank: int, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal to one rank; nothing happens if it has ended already."""
        self._check_rank(rank)
        self._send("kill", rank, int(signal_number))

    def stop(self) -> None:
        """Bring the deadline forward to now: living ranks write their stacks and are killed."""
        self._send("stop")

    def wait(self, timeout_s: float | None = None) -> tuple[RankOutcome, ...]:
        """Wait for all ranks to end, however they do, and return their outcomes in rank order.

        The run's own deadline ends it; `timeout_s` is for those who want to look earlier (TimeoutError).
        Raises ZygoteError when the fork server dies, and whatever a callback raised.
        """
        self._wait(lambda: self._outcomes is not None, timeout_s, "end")
        assert self._outcomes is not None
        return self._outcomes

    def values(self) -> list[Any]:
        """Wait and return what the program returned, by rank. Raises LaunchFailedError."""
        outcomes = self.wait()
        if not all(one.ok for one in outcomes):
            raise LaunchFailedError(self.target, outcomes)
        return [one.value for one in outcomes]

    def _wait(self, done: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: done() or self._broken is not None, timeout_s):
                left = sorted(set(range(self.world_size)) - set(self._exits))
                raise TimeoutError(f"{self.target}: did not {what} within {timeout_s} s; ranks alive: {left}")
            if self._broken is not None:
                raise self._broken

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank: {rank}; wanted 0 to {self.world_size - 1}")

    def receive(self, name: str, *rest: Any) -> None:
        """Take in one message of the fork server; for the `Zygote`, on its reader thread."""
        match name:
            case "started":
                self._set(lambda: self._pids.update(rest[0]))
            case "frame":
                rank, frame = rest
                kind, value = pickle.loads(frame)
                if kind != "note":
                    self._set(lambda: self._results.__setitem__(rank, (kind, value)))
                elif self._on_message is not None:
                    self._call(self._on_message, rank, value)
            case "exited":
                rank, status, hung = rest
                if self._on_exit is not None:
                    self._call(self._on_exit, rank, status)
                self._set(lambda: self._exits.__setitem__(rank, (status, hung)))
            case _:
                self._finish()

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            callback(*args)
        except BaseException as error:  # noqa: BLE001  # belongs to whoever waits, not to the reader thread
            self.fail(error)

    def _set(self, change: Callable[[], object]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()

    def _finish(self) -> None:
        outcomes = tuple(self._outcome(rank) for rank in range(self.world_size))
        self._scratch.cleanup()
        self._set(lambda: setattr(self, "_outcomes", outcomes))

    def fail(self, error: BaseException) -> None:
        """Let everybody who waits raise `error`; for the `Zygote`."""
        with self._changed:
            self._broken = self._broken or error
            self._changed.notify_all()

    def _outcome(self, rank: int) -> RankOutcome:
        status, hung = self._exits[rank]
        kind, value = self._results.get(rank, ("nothing", None))
        return RankOutcome(
            rank=rank,
            status=status,
            value=value if kind == "value" else None,
            error=value if kind == "error" else None,
            hung=hung,
            stacks=_read(self._folder / f"rank{rank}.stacks") if hung else "",
            log=_read(self._folder / f"rank{rank}.log")[-MAX_LOG_CHARACTERS:],
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
