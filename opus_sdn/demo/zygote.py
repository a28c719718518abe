"""The fork server: imports torch once, then forks ranks on command. Started by `opus_sdn.demo.launcher`.

A rank that starts by itself needs seconds of imports; forked from here it starts in milliseconds. The
process stays single-threaded and does no arithmetic: a child of a process with a running thread pool hangs
in its first matrix product.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from opus_sdn.demo.child import RankSpec, run_rank
from opus_sdn.demo.frames import FrameReader, write_frame

STACKS_GRACE_S: Final = 1.0
"""How long a rank may take to write its stacks before it is killed."""
_CHUNK_BYTES: Final = 1 << 20


@dataclass(slots=True)
class _Rank:
    rank: int
    pid: int
    pipe: int
    hung: bool = False
    closed: bool = False
    status: int | None = None
    reader: FrameReader = field(default_factory=FrameReader)


@dataclass(slots=True)
class _Run:
    ranks: dict[int, _Rank]
    deadline: float
    after_failure_s: float | None
    dumped: bool = False

    def alive(self) -> Iterator[_Rank]:
        return (one for one in self.ranks.values() if one.status is None)


class _Server:
    """The loop of the fork server. Everything happens on its one thread."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._commands = FrameReader()
        self._runs: dict[int, _Run] = {}
        self._wake, wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler the wake-up pipe stays silent
        signal.set_wakeup_fd(wake_write)

    def serve(self) -> int:
        """Work until the launcher closes its end; then kill what is left. In a child: returns its status."""
        while True:
            for fd in self._ready():
                if fd == self._wake:
                    with suppress(BlockingIOError):
                        os.read(self._wake, _CHUNK_BYTES)
                elif fd != self._control.fileno():
                    self._drain(fd)
                else:
                    status = self._read_commands()
                    if status is not None:
                        return status
            self._reap()
            self._enforce(time.monotonic())

    def tell(self, *message: object) -> None:
        """Send one message to the launcher; if it is gone, its closed socket is noticed by the next read."""
        with suppress(BrokenPipeError, ConnectionResetError):
            write_frame(self._control.fileno(), pickle.dumps(message))

    def _ready(self) -> list[int]:
        poll = select.poll()  # made anew each time: epoll state would be shared with the forked ranks
        pipes = (one.pipe for _, _, one in self._live() if not one.closed)
        for fd in (self._control.fileno(), self._wake, *pipes):
            poll.register(fd, select.POLLIN)
        due = min((run.deadline for run in self._runs.values()), default=None)
        wait_ms = None if due is None else max(0.0, due - time.monotonic()) * 1000 + 1
        return [fd for fd, _ in poll.poll(wait_ms)]

    def _live(self) -> list[tuple[int, _Run, _Rank]]:
        return [(number, run, one) for number, run in self._runs.items() for one in run.alive()]

    def _read_commands(self) -> int | None:
        data = self._control.recv(_CHUNK_BYTES)
        if not data:
            for _, _, one in self._live():
                _kill_group(one.pid)
            return 0
        for frame in self._commands.feed(data):
            name, number, *rest = pickle.loads(frame)
            if name == "launch":
                status = self._launch(number, *rest)
                if status is not None:
                    return status
            elif number in self._runs:
                self._command(self._runs[number], name, *rest)
        return None

    def _command(self, run: _Run, name: str, *rest: Any) -> None:
        if name == "kill":
            rank, signal_number = rest
            one = run.ranks[rank]
            if one.status is None:
                os.kill(one.pid, signal_number)
        else:
            run.deadline = time.monotonic()

    def _launch(
        self,
        number: int,
        specs: Sequence[RankSpec],
        deadline_s: float,
        after_failure_s: float | None,
        listen: bool,
    ) -> int | None:
        """Fork all ranks of a run. Returns a status only in a child that is to leave by the interpreter."""
        store = _listen() if listen else None
        run = _Run({}, time.monotonic() + deadline_s, after_failure_s)
        self._runs[number] = run
        parent = os.getpid()
        for spec in specs:
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                status = self._in_child(spec, writing, reading, parent, store)
                if spec.interpreter_exit:
                    return status
                os._exit(status)
            os.close(writing)
            os.set_blocking(reading, False)
            run.ranks[spec.rank] = _Rank(spec.rank, pid, reading)
        if store is not None:
            store.close()
        self.tell("started", number, {one.rank: one.pid for one in run.ranks.values()})
        return None

    def _in_child(
        self, spec: RankSpec, writing: int, reading: int, parent: int, store: socket.socket | None
    ) -> int:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (reading, self._wake, *(one.pipe for _, _, one in self._live())):
            os.close(fd)
        self._control.close()
        if store is not None:
            os.environ["MASTER_ADDR"], port = store.getsockname()
            os.environ["MASTER_PORT"] = str(port)
            if spec.rank == 0:
                os.environ["LAUNCHER_STORE_FD"] = str(store.detach())
            else:
                store.close()
        return run_rank(spec, writing, parent)

    def _drain(self, fd: int) -> None:
        for number, _, one in self._live():
            if one.pipe == fd:
                self._forward(number, one)

    def _forward(self, number: int, one: _Rank) -> bool:
        """Pass on what the rank has written; True while there was something."""
        try:
            data = os.read(one.pipe, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        for frame in one.reader.feed(data):
            self.tell("frame", number, one.rank, frame)
        one.closed = not data  # a closed pipe is always ready to be read: polling it on would spin
        return not one.closed

    def _reap(self) -> None:
        for number, run, one in self._live():
            pid, status = os.waitpid(one.pid, os.WNOHANG)
            if not pid:
                continue
            while self._forward(number, one):
                pass
            os.close(one.pipe)
            one.status = os.waitstatus_to_exitcode(status)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(one.pid, signal.SIGKILL)  # processes that the rank itself started
            self.tell("exited", number, one.rank, one.status, one.hung)
            if one.status != 0 and run.after_failure_s is not None:
                run.deadline = min(run.deadline, time.monotonic() + run.after_failure_s)
            if not any(run.alive()):
                del self._runs[number]
                self.tell("finished", number)

    def _enforce(self, now: float) -> None:
        """At the deadline every living rank writes its stacks; a moment later it is killed."""
        for run in self._runs.values():
            if now < run.deadline:
                continue
            for one in run.alive():
                if run.dumped:
                    _kill_group(one.pid)
                else:
                    one.hung = True
                    os.kill(one.pid, signal.SIGUSR1)
            run.deadline = now + STACKS_GRACE_S
            run.dumped = True


def _listen() -> socket.socket:
    """A listening socket on a free loopback port, for the store of rank 0: nobody else can take it."""
    store = socket.create_server(("127.0.0.1", 0))
    store.set_inheritable(True)
    return store


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):  # a rank that has not made its group yet
        os.kill(pid, signal.SIGKILL)


def _preload(modules: Sequence[str]) -> float:
    """Import what every rank needs; returns the seconds it took."""
    begin = time.monotonic()
    for name in modules:
        importlib.import_module(name)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # the ranks share these pages; their collector must not write to them
    return time.monotonic() - begin


def main(arguments: Sequence[str]) -> int:
    """`python -m opus_sdn.demo.zygote FD MODULE...`: serve the launcher that holds the other end of FD."""
    control = socket.socket(fileno=int(arguments[0]))
    server = _Server(control)
    server.tell("ready", _preload(arguments[1:]))
    return server.serve()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
