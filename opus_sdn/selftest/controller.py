"""A real controller for the time of the self-test: a process of its own, in a folder made for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from opus_sdn.fabric_file import generate_fabric
from opus_sdn.selftest.rank import SelftestError
from opus_sdn.selftest.scenario import DELAY_MS, HOSTS
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.settings import Address

START_S_MAX = 30.0
STOP_S_MAX = 10.0
LOOK_S = 0.01
LOG_LINES = 5


class ControllerProcess:
    """`opus serve` on a free port, with one emulated switch and the traffic witness. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "controller.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.witness = ""
        self.exit_code: int | None = None

    def __enter__(self) -> ControllerProcess:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    def client(self) -> ControllerClient:
        """A client of this controller."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return ControllerClient(Address(False, parts.hostname, parts.port))

    def stop(self) -> None:
        """Tell it to stop, wait until it has, and make it when it does not."""
        if self._process is None or self.exit_code is not None:
            return
        self._process.terminate()
        try:
            self.exit_code = self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.exit_code = self._process.wait()

    def _start(self) -> None:
        fabric = self._folder / "fabric.yaml"
        fabric.write_text(generate_fabric(hosts=HOSTS, gpus_per_host=1, delay_ms=DELAY_MS), encoding="utf-8")
        ready = self._folder / "ready.json"
        command = [sys.executable, "-m", "opus_sdn.cli", "serve", "--port", "0", "--host", "127.0.0.1"]
        command += ["--fabric", str(fabric), "--database", f"sqlite:///{self._folder / 'opus.db'}"]
        command += ["--runs-dir", str(self._folder / "runs"), "--witness", "--ready-file", str(ready)]
        # The settings of a controller that this machine may run are none of ours.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPUS_")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=environment
            )
        address = self._wait_for(ready, self._process)
        self.url, self.witness = address["url"], address["witness"]

    def _wait_for(self, ready: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        give_up_at = time.monotonic() + START_S_MAX
        while not ready.exists():
            self.exit_code = process.poll()
            if self.exit_code is not None or time.monotonic() > give_up_at:
                what = "is not ready" if self.exit_code is None else f"ended with code {self.exit_code}"
                raise SelftestError(
                    f"the controller {what} after {START_S_MAX:g} s at most; it said: {self.last_words()}"
                )
            time.sleep(LOOK_S)
        address: dict[str, Any] = json.loads(ready.read_text(encoding="utf-8"))
        return address

    def last_words(self) -> str:
        """The last lines of its log."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(lines[-LOG_LINES:]) or "nothing"
