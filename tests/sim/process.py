"""One life of the controller in the simulated world: the production controller on a loop that can be cut off.

Requests go through its whole application, below the sockets. A life ends by a kill (its loop is not turned
any more), by a stop in order, or not at all; a paused one is turned again later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI

from opus_sdn.api import app
from opus_sdn.api.controller import Controller, StartError
from opus_sdn.drivers import registry
from opus_sdn.drivers.base import Driver
from opus_sdn.intent.fabric import Switch
from opus_sdn.reconciler import runtime
from opus_sdn.reconciler.runtime import Runtime
from opus_sdn.settings import Settings
from tests.sim.loop import SimLoop
from tests.sim.store import SimStore

Reply = Callable[[int, bytes], None]
HEADERS = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]


class Request:
    """One request that the process has read. `gone` is called when its client hangs up."""

    def __init__(self, method: str, path: str, body: bytes, reply: Reply, broken: Callable[[], None]) -> None:
        self.method, self.path, self.body = method, path, body
        self.reply = reply
        self.broken = broken
        self.done = False
        self.hung_up: asyncio.Future[None] | None = None
        self.is_gone = False

    def gone(self) -> None:
        """The client has closed the connection."""
        self.is_gone = True
        if self.hung_up is not None and not self.hung_up.done():
            self.hung_up.set_result(None)


class Process:
    """One start of the controller. `turn` whenever something may have happened."""

    def __init__(
        self,
        number: int,
        settings: Settings,
        open_store: Callable[[], SimStore],
        now: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.number = number
        self.store: SimStore | None = None
        self._open_store = open_store
        self.loop = SimLoop(now)
        self.controller: Controller | None = None
        self.alive = True
        self.listens = False
        self.paused = False
        self.failed: BaseException | None = None
        self._settings = settings
        offset = wall() - now()  # the machine's time is read once, at the start
        self._clock = lambda: now() + offset
        self._requests: dict[Request, None] = {}  # in order: a set has another one in every run
        self._tasks: set[asyncio.Task[None]] = set()
        self._unread: list[Request] = []
        self._spawn(self._boot())

    # --- for the world

    def turn(self) -> None:
        """Let everything run that can run now."""
        if not self.alive or self.paused:
            return
        self.loop.turn()
        if self.failed is not None:
            raise self.failed

    def next_timer(self) -> float | None:
        """When the process has something to do by itself."""
        return self.loop.next_timer() if self.alive and not self.paused else None

    def take(self, request: Request) -> None:
        """A request has come over the network."""
        if not self.alive or not self.listens:
            request.broken()
            return
        if self.paused:
            self._unread.append(request)
            return
        self._requests[request] = None
        self._spawn(self._serve(request))

    def pause(self) -> None:
        """Stop the process where it stands; the kernel goes on taking connections."""
        self.paused = True

    def resume(self) -> None:
        """Let the process go on, with all that has come meanwhile."""
        self.paused = False
        self.turn()  # timers that are due run before anything of a socket that was read is looked at
        unread, self._unread = self._unread, []
        for request in unread:
            self.take(request)

    def kill(self, *, at_once: bool = False) -> None:
        """SIGKILL: nothing of this process ever runs again; who was connected notices."""
        self.alive = self.listens = False
        self.loop.dead = True
        if self.store is not None:
            self.store.die(at_once=at_once)
        for request in (*self._requests, *self._unread):
            request.broken()
        self._requests.clear()
        self._unread.clear()

    def stop(self, ended: Callable[[], None]) -> None:
        """SIGTERM: the controller closes; `ended` is called when it has."""
        self.listens = False
        self._spawn(self._close(ended))

    def bury(self) -> None:
        """At the end of the world: let go of what never ran to its end, without a word."""
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False
            task.get_coro().close()
        self.loop._ready.clear()
        self.loop._scheduled.clear()
        self.loop.close()

    @property
    def runtime(self) -> Runtime | None:
        """The production runtime of the newest term, once it is there."""
        return self.controller.runtime if self.controller is not None else None

    # --- inside

    def _spawn(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StartError):
            self.kill()  # it ends with a message, and whoever supervises it starts another one
        elif error is not None:
            self.failed = self.failed or error

    async def _boot(self) -> None:
        controller = await Controller.open(self._settings, open_store=self._opened, clock=self._clock)
        self.controller = controller
        self.listens = True
        await controller.start()

    def _opened(self) -> SimStore:
        self.store = self._open_store()
        return self.store

    async def _close(self, ended: Callable[[], None]) -> None:
        assert self.controller is not None
        await self.controller.close()
        self.alive = False
        for request in (*self._requests, *self._unread):
            request.broken()
        self._requests.clear()
        ended()

    async def _serve(self, request: Request) -> None:
        status, body = 0, b""

        async def receive() -> dict[str, Any]:
            if not request.done:
                request.done = True
                return {"type": "http.request", "body": request.body, "more_body": False}
            request.hung_up = self.loop.create_future()
            if request.is_gone:
                request.hung_up.set_result(None)
            await request.hung_up
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status, body
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                body += message.get("body", b"")

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "path": request.path,
            "raw_path": request.path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": HEADERS,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8700),
        }
        assert self.controller is not None
        await self.controller.app(scope, receive, send)
        if status >= 500 and status != 503:
            raise AssertionError(f"{request.method} {request.path} was answered {status}: {body!r}")
        self._requests.pop(request, None)
        request.reply(status, body)


@cache
def settings_of(**more: float) -> Settings:
    """Settings for a controller that writes no files. Read once: the environment is looked at for each."""
    return Settings(database="sqlite:///sim.db", runs_dir=Path("runs"), **more)


@contextmanager
def simulated(open_driver: Callable[[Switch], Driver]) -> Iterator[None]:
    """In the block the switches are the world's, nothing is written to files, and routes are made once."""
    known, files, routes = registry.DRIVERS, runtime.RunFiles, app.routes_only
    registry.DRIVERS = MappingProxyType({**known, "emulated": open_driver})
    runtime.RunFiles = _NoFiles
    app.routes_only = _routes_only
    try:
        yield
    finally:
        registry.DRIVERS, runtime.RunFiles, app.routes_only = known, files, routes


_made = cache(app.routes_only)


def _routes_only() -> FastAPI:
    """An application with the same routes and handlers; making them takes longer than most runs."""
    fresh = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    fresh.router.routes = list(_made().router.routes)
    fresh.exception_handlers = dict(_made().exception_handlers)
    return fresh


class _NoFiles:
    def __init__(self, *_: object) -> None:
        pass

    async def run(self) -> None:
        pass

    async def finish(self) -> None:
        pass
