"""An emulated switch in a process of its own, for demonstrations and tests. Standard library only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_S = 60.0
STOP_S = 10.0
ASK_S = 60.0


class EmulatorFailedError(RuntimeError):
    """The process did not become ready, or refused; the message ends with what it said."""


class EmulatorProcess:
    """`opus emulator polatis` with these arguments, on free ports. A context manager.

    `folder` holds its log. `restconf_url`, `tl1_address`, `page_url` and `witness_address` say where it is.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "emulator.log"
        ready = folder / "emulator-ready.json"
        ready.unlink(missing_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*_command(), *arguments, "--ready-file", str(ready)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(os.environ),
                start_new_session=True,
            )
        said = self._wait_ready(ready)
        self.restconf_url: str = said["restconf"]
        self.tl1_address: str = said["tl1"]
        self.page_url: str = said["page"]
        self.witness_address: str = said["witness"]

    def ask(self, method: str, path: str, document: object = None) -> Any:
        """One request to the side door: `ask("PATCH", "/emulator/faults", {"remote_lock": True})`."""
        body = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(  # noqa: S310 - the address is that of our own process
            self.page_url + path, body, {"Content-Type": "application/json"}, method=method
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=ASK_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            raise EmulatorFailedError(f"{method} {path}: {refused.read().decode(errors='replace')}") from None

    def kill(self) -> None:
        """As a loss of power does: nothing is written any more."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Ask it to end, and wait; its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_ready(self, ready: Path) -> dict[str, str]:
        begin = time.monotonic()
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() - begin > START_S:
                self.stop()
                raise EmulatorFailedError(f"no emulator: {self.log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.02)
        said: dict[str, str] = json.loads(ready.read_text())
        return said


def _command() -> Sequence[str]:
    return sys.executable, "-m", "opus_sdn.cli", "emulator", "polatis"
