"""Start real ranks on this machine, collect what they return, and never wait for them without end.

`Zygote` owns a fork server (`opus_sdn.demo.zygote`), a process of its own because forking is only safe from
one that runs a single thread. It is meant to live long: one for a whole test session or demonstration.
Programs are named "module:function" and run in every rank with the same picklable arguments; RANK,
WORLD_SIZE and LOCAL_RANK are in the environment, and `opus_sdn.demo.world.world` finds the rendezvous there.
No port is ever fixed.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from opus_sdn.demo.child import RankSpec
from opus_sdn.demo.frames import FrameReader, write_frame
from opus_sdn.demo.launch import Launch, LaunchFailedError, OnExit, OnMessage, RankOutcome, ZygoteError

__all__ = ["PRELOAD", "Launch", "LaunchFailedError", "RankOutcome", "Zygote", "ZygoteError"]

PRELOAD: Final = (
    "torch",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torch.optim",
    "torch._dynamo",
    "opus_sdn.demo.train",
)
"""What ranks import sooner or later; imported once in the fork server it costs them nothing. A module named
here must neither start threads nor compute with tensors when imported."""

MAX_WORLD: Final = 1024
_ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_CHUNK_BYTES: Final = 1 << 20


class Zygote:
    """A fork server with torch imported. A context manager; safe to use from several threads."""

    def __init__(
        self, *, preload: Sequence[str] = PRELOAD, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start it and return at once; the first launch waits for its imports (seconds)."""
        self._lock = threading.Lock()
        self._sending = threading.Lock()  # not the one above: the reader must go on while a send is slow
        self._launches: dict[int, Launch] = {}
        self._number = 0
        self._dead: str | None = None
        self._ready = threading.Event()
        self.import_s: float | None = None
        """Seconds that the imports took; None until they are done."""
        self._socket, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "opus_sdn.demo.zygote", str(theirs.fileno()), *preload],
            env={**os.environ, **_ONE_THREAD, "PYTHONPATH": _python_path(), **(environment or {})},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt at the terminal is for us; we stop the ranks
        )
        theirs.close()
        self._reader = threading.Thread(target=self._read, name="zygote-reader", daemon=True)
        self._reader.start()

    def wait_ready(self, timeout_s: float = 300.0) -> float:
        """Wait for the imports; returns the seconds they took. Raises ZygoteError."""
        if not self._ready.wait(timeout_s):
            raise ZygoteError(f"the fork server did not finish its imports within {timeout_s} s")
        if self._dead is not None:
            raise ZygoteError(self._dead)
        assert self.import_s is not None
        return self.import_s

    def launch(
        self,
        target: str,
        world_size: int,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        rank_environment: Callable[[int], Mapping[str, str]] | None = None,
        rendezvous: Literal["file", "tcp"] = "file",
        deadline_s: float = 60.0,
        after_failure_s: float | None = None,
        on_exit: OnExit | None = None,
        on_message: OnMessage | None = None,
        log_dir: Path | None = None,
        interpreter_exit: bool = False,
    ) -> Launch:
        """Fork `world_size` ranks that run `target(*args, **kwargs)`; returns without waiting for them.

        deadline_s: from now; ranks alive then write their stacks and are killed. after_failure_s: what the
        others get, at most, once one rank has failed. on_exit(rank, status): called as soon as a rank has
        died, from another thread; on_message(rank, value): what the rank passed to `child.tell`.
        log_dir: keeps rank<R>.log and rank<R>.stacks there. interpreter_exit: leave by the interpreter's own
        shutdown, as a user's script does, instead of `os._exit`. rendezvous "tcp": rank 0 holds a TCPStore,
        as under torchrun. Raises ValueError, ZygoteError.
        """
        if not 1 <= world_size <= MAX_WORLD:
            raise ValueError(f"world_size: {world_size}; wanted 1 to {MAX_WORLD}")
        if deadline_s <= 0 or (after_failure_s is not None and after_failure_s < 0):
            raise ValueError(
                f"deadline_s: {deadline_s}, after_failure_s: {after_failure_s}; wanted more than 0"
            )
        self.wait_ready()
        scratch = tempfile.TemporaryDirectory(prefix="opus-ranks-")
        folder = log_dir or Path(scratch.name)
        folder.mkdir(parents=True, exist_ok=True)
        arguments = pickle.dumps((tuple(args), dict(kwargs or {})))
        common = {"WORLD_SIZE": str(world_size), **(environment or {})}
        if rendezvous == "file":
            common["LAUNCHER_STORE_FILE"] = str(Path(scratch.name) / "store")
        specs = [
            RankSpec(
                rank=rank,
                target=target,
                arguments=arguments,
                environment={
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    **common,
                    **(rank_environment(rank) if rank_environment else {}),
                },
                log=str(folder / f"rank{rank}.log"),
                stacks=str(folder / f"rank{rank}.stacks"),
                interpreter_exit=interpreter_exit,
            )
            for rank in range(world_size)
        ]
        with self._lock:
            self._number += 1
            number = self._number
            launch = Launch(
                lambda name, *rest: self._send(name, number, *rest),
                target,
                folder,
                scratch,
                world_size,
                on_exit,
                on_message,
            )
            self._launches[number] = launch
        self._send("launch", number, specs, deadline_s, after_failure_s, rendezvous == "tcp")
        return launch

    def run(self, target: str, world_size: int, **options: Any) -> list[Any]:
        """`launch` and wait: what each rank returned. Raises LaunchFailedError; options as for `launch`."""
        return self.launch(target, world_size, **options).values()

    def close(self) -> None:
        """Kill every rank still alive and end the fork server."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(10.0)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, *message: Any) -> None:
        try:
            with self._sending:
                write_frame(self._socket.fileno(), pickle.dumps(message))
        except OSError as error:
            raise ZygoteError(self._dead or f"the fork server is closed: {error}") from error

    def _read(self) -> None:
        """The reader thread: pass on every message until the fork server goes."""
        reader = FrameReader()
        while data := _read_some(self._socket):
            for frame in reader.feed(data):
                name, *rest = pickle.loads(frame)
                if name == "ready":
                    (self.import_s,) = rest
                    self._ready.set()
                else:
                    self._dispatch(name, *rest)
        begin = time.monotonic()
        while self._process.poll() is None and time.monotonic() - begin < 10.0:
            time.sleep(0.01)  # it has closed its end: its status is there in a moment
        self._dead = (
            f"the fork server has ended with status {self._process.returncode}; its own words are on stderr"
        )
        self._ready.set()
        for launch in self._launches.values():
            launch.fail(ZygoteError(self._dead))

    def _dispatch(self, name: str, number: int, *rest: Any) -> None:
        with self._lock:
            launch = self._launches[number]
            if name == "finished":
                del self._launches[number]
        launch.receive(name, *rest)


def _read_some(connection: socket.socket) -> bytes:
    try:
        return connection.recv(_CHUNK_BYTES)
    except OSError:
        return b""


def _python_path() -> str:
    """Let the ranks import whatever this process can: tests run from a source tree that nobody installed."""
    return os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
