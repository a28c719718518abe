"""`opus agent`, also `opus-agent`: speaks for all ranks of this host."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from opus_sdn.cli.exits import CliError, ExitCode
from opus_sdn.cli.output import message

PATH_BYTES_MAX = 107  # what a Unix socket's address holds


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(agent)


def agent(
    path: Annotated[
        Path | None, typer.Option("--socket", help="Where ranks find it: their OPUS_AGENT, and the default.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log what is passed on.")] = False,
) -> None:
    """Serve this host's ranks over a Unix socket: their news in few requests, their deaths told at once.

    The controllers are those of OPUS_CONTROLLER. Optional: ranks without OPUS_AGENT speak for themselves.
    """
    from opus_sdn.agent.server import Agent
    from opus_sdn.agent.upstream import Upstream
    from opus_sdn.shim.errors import SettingsError
    from opus_sdn.shim.settings import controllers_in

    where = path or Path(os.environ.get("OPUS_AGENT", ""))
    if where == Path() or len(os.fsencode(where)) > PATH_BYTES_MAX:
        raise CliError(
            f"--socket: is {str(where)!r}; name a path of at most {PATH_BYTES_MAX} bytes, as "
            "/run/user/1000/opus-agent.sock",
            ExitCode.USAGE,
        )
    if not hasattr(os, "pidfd_open"):
        raise CliError("the agent needs Linux: nothing else says when another's process has ended")
    try:
        addresses = controllers_in(os.environ)
    except SettingsError as wrong:
        raise CliError(str(wrong), ExitCode.USAGE) from None
    level = logging.DEBUG if verbose else logging.WARNING
    logging.basicConfig(level=level, stream=sys.stderr, format="%(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    host = os.environ.get("OPUS_HOST") or os.environ.get("SLURMD_NODENAME") or socket.gethostname()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        async with Upstream(addresses, os.environ.get("OPUS_CA_FILE") or None) as upstream:
            ready = asyncio.Event()
            running = asyncio.ensure_future(Agent(where, upstream, host).run(ready))
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, running.cancel)
            waiting = asyncio.ensure_future(ready.wait())
            await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
            if ready.is_set():
                message(f"ready on {where}; ranks: OPUS_AGENT={where}")
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await running

    try:
        asyncio.run(serve())
    except OSError as failed:
        raise CliError(f"{where}: {failed.strerror or failed}") from None
