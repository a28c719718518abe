"""A controller of one's own for a demonstration or a test: `opus serve` in a process, on a free port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx

from opus_sdn.shim.witness_client import WitnessClient

START_S: Final = 60.0
STOP_S: Final = 15.0


class ControllerFailedError(RuntimeError):
    """`opus serve` did not become ready; the message ends with what it wrote."""


class Controller:
    """`opus serve` with embedded SQLite, the emulated switch and its traffic witness. A context manager."""

    def __init__(
        self,
        fabric: str,
        folder: Path,
        *,
        runs_dir: Path | None = None,
        environment: Mapping[str, str] | None = None,
        witness: str | None = None,
    ) -> None:
        """`fabric`: YAML text; `folder`: for database and log; `environment`: more `OPUS_SDN_*`.

        `witness`: host:port of a traffic witness elsewhere, where the switches live; None for one of its own.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / "serve.log"
        self._fabric_file, self._ready = folder / "fabric.yaml", folder / "ready.json"
        self._fabric_file.write_text(fabric)
        for stale in (self.log, *folder.glob("opus.db*")):
            stale.unlink(missing_ok=True)
        self._environment = {
            "OPUS_SDN_DATABASE": f"sqlite:///{folder / 'opus.db'}",
            "OPUS_SDN_RUNS_DIR": str(runs_dir or folder / "runs"),
            "OPUS_SDN_WITNESS": str(witness is None).lower(),
            **(environment or {}),
        }
        said = self._start(port=0)
        self.url: str = said["url"]
        self.start: int = said["start"]
        self.witness_address: str = witness or said.get("witness") or ""
        self._client = httpx.Client(base_url=f"{self.url}/api/v1", trust_env=False, timeout=30.0)

    def start_again(self) -> None:
        """After `kill` or `stop`: another process on the same database and port."""
        self.start = self._start(port=int(self.url.rpartition(":")[2]))["start"]

    def _start(self, port: int) -> dict[str, Any]:
        self._ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "opus_sdn.cli", "serve"),
                    *("--fabric", str(self._fabric_file), "--ready-file", str(self._ready)),
                ],
                env=os.environ | self._environment | {"OPUS_SDN_PORT": str(port)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupt at the terminal is for us; we stop it
            )
        return self._wait_ready()

    def _wait_ready(self) -> dict[str, Any]:
        ready, begin = self._ready, time.monotonic()
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() - begin > START_S:
                self.stop()
                raise ControllerFailedError(f"opus serve did not start: {self.log.read_text()[-4000:]}")
            time.sleep(0.02)
        said: dict[str, Any] = json.loads(ready.read_text())
        return said

    def get(self, path: str, **query: Any) -> Any:
        """One GET below /api/v1, decoded."""
        answer = self._client.get(path, params=query)
        answer.raise_for_status()
        return answer.json()

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """One POST below /api/v1, decoded."""
        answer = self.try_post(path, body)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def try_post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """One POST below /api/v1, whatever the answer."""
        return self._client.post(path, json=body)

    def try_put(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """One PUT below /api/v1, whatever the answer."""
        return self._client.put(path, json=body)

    def all(self, path: str, **query: Any) -> list[dict[str, Any]]:
        """Every item of a list, through its cursors."""
        items: list[dict[str, Any]] = []
        while True:
            page = self.get(path, limit=500, **query)
            items += page[path.rpartition("/")[2]]
            if not page.get("next"):
                return items
            query["cursor"] = page["next"]

    def events(self, job: str) -> list[dict[str, Any]]:
        """Every event of a job that is still kept, oldest first."""
        items: list[dict[str, Any]] = []
        query: dict[str, Any] = {"job": job, "limit": 500}
        while True:
            page = self.get("/events", **query)
            if not page["events"]:
                return items
            items += page["events"]
            query["since"] = page["newest"]

    def environment(self, job: str) -> dict[str, str]:
        """What ranks need to find this controller and its witness, if it has one."""
        witness = {"OPUS_WITNESS": self.witness_address} if self.witness_address else {}
        return {"OPUS_CONTROLLER": self.url, "OPUS_JOB": job, **witness}

    def witness(self) -> dict[str, Any]:
        """The traffic witness's report."""
        return dict(WitnessClient(self.witness_address).report())

    def report_death(self, job: str, rank: int, status: int) -> None:
        """As a launcher does: this rank's process is gone."""
        incarnation = self.get(f"/jobs/{job}")["incarnation"]
        how = f"killed by signal {-status}" if status < 0 else f"left with status {status}"
        self.post(f"/jobs/{job}/deaths", {"incarnation": incarnation, "ranks": [rank], "detail": how})

    def kill(self) -> None:
        """As a crash does: SIGKILL."""
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
        self._client.close()
        self.stop()
