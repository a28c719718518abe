"""The controller as a process: a loopback socket, the HTTP server on it, and an orderly end.

On a signal nobody new is let in, everybody who waits is answered, the device steps in flight end, and the
store is closed: in this order, within seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import uvicorn
import uvloop

from opus_sdn.api import logs
from opus_sdn.api.controller import Controller, OpenStore, StartError
from opus_sdn.settings import Settings
from opus_sdn.store.base import Store

logger = logging.getLogger(__name__)

# Ranks keep their connections, and a checkpoint may lie between two operations.
KEEP_ALIVE_S = 900
# 2,048 ranks and more connect in the same instant.
BACKLOG = 4096
SHUTDOWN_S = 10


@dataclass(frozen=True, slots=True)
class Address:
    """Where a ready controller answers. `witness` = host:port of its traffic witness, if it has one."""

    url: str
    port: int
    start: int
    witness: str | None


class _HttpServer(uvicorn.Server):
    """The HTTP server without its own signal handling: whoever runs it decides when it ends."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # so it is there
        return nullcontext()


async def run(
    settings: Settings,
    *,
    ready: Callable[[Address], None],
    stop: asyncio.Event,
    store: Store | None = None,  # None: the database of the settings
    open_store: OpenStore | None = None,
) -> None:
    """Serve until `stop` is set. `ready` is called once, when the controller grants. Raises StartError."""
    listener = _listen(settings.host, settings.port)
    try:
        controller = await Controller.open(
            settings, address=_url(listener), store=store, open_store=open_store
        )
    except BaseException:
        listener.close()
        raise
    server = _HttpServer(
        uvicorn.Config(
            controller.app,
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
    )
    url = _url(listener)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    starting = asyncio.create_task(_start(controller, url, listener.getsockname()[1], ready))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        starting.cancel()
        controller.refuse_work()
        server.should_exit = True
        await asyncio.wait({serving, starting})
        await controller.close()
    for task in (serving, starting):
        if not task.cancelled():
            task.result()


def serve(settings: Settings, *, ready_file: Path | None = None) -> None:
    """Run a controller in this process until SIGTERM or SIGINT. Raises StartError.

    When it is ready, its URL is written to stdout, and its whole address as JSON to `ready_file`, if given.
    """
    logs.configure(settings.log_level)

    def ready(address: Address) -> None:
        if ready_file is not None:
            _write_whole(ready_file, json.dumps(asdict(address)) + "\n")
        sys.stdout.write(address.url + "\n")
        sys.stdout.flush()

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await run(settings, ready=ready, stop=stop)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@contextmanager
def running(
    settings: Settings, *, store: Store | None = None, open_store: OpenStore | None = None
) -> Iterator[Address]:
    """A controller in a thread of this process, for the time of the block. Raises StartError."""
    found: list[Address] = []
    failed: list[BaseException] = []
    decided = threading.Event()
    ends: list[Callable[[], object]] = []

    def ready(address: Address) -> None:
        found.append(address)
        decided.set()

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        ends.append(lambda: loop.call_soon_threadsafe(stop.set))
        await run(settings, ready=ready, stop=stop, store=store, open_store=open_store)

    def thread() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(main())
        except BaseException as error:  # noqa: BLE001  # handed to the thread that waits
            failed.append(error)
        finally:
            decided.set()

    worker = threading.Thread(target=thread, name="opus-controller")
    worker.start()
    decided.wait()
    try:
        if not found:
            raise failed[0] if failed else StartError("the controller ended before it was ready")
        yield found[0]
    finally:
        if found:
            ends[0]()
        worker.join()
    if failed:
        raise failed[0]


async def _start(controller: Controller, url: str, port: int, ready: Callable[[Address], None]) -> None:
    await controller.start()
    ready(Address(url, port, controller.runtime.engine.state.start, controller.witness_address))


def _listen(host: str, port: int) -> socket.socket:
    """A socket on a loopback address. Small answers are sent at once."""
    name = "127.0.0.1" if host == "localhost" else host
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((name, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(
            f"cannot listen on port {port} of {name}: {error.strerror}; use another port, or 0 for a free one"
        ) from None
    return listener


def _url(listener: socket.socket) -> str:
    name, port = listener.getsockname()[:2]
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _write_whole(path: Path, text: str) -> None:
    """Write a file that readers see complete or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
