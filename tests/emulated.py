"""Emulated switches in a process of their own, which outlive every controller of a test."""

from __future__ import annotations

import copy
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opus_sdn.shim.witness_client import WitnessClient
from tests.waiting import PATIENCE_S, wait_until


@dataclass(frozen=True)
class EmulatedSwitches:
    """`fabric` = the one given, with the address of the process in its switches; `witness` = host:port."""

    fabric: dict[str, Any]
    witness: str

    def report(self) -> dict[str, Any]:
        """What the traffic witness has seen."""
        client = WitnessClient(self.witness)
        try:
            return client.report()
        finally:
            client.close()


@contextmanager
def emulated_switches(declared: Mapping[str, Any], folder: Path) -> Iterator[EmulatedSwitches]:
    """Run the emulated switches of this fabric document for the time of the block."""
    ready, file = folder / "emulator.json", folder / "emulated-fabric.yaml"
    ready.unlink(missing_ok=True)
    file.write_text(json.dumps(declared))  # JSON is YAML
    command = ["-m", "opus_sdn.cli", "emulator", "switches", "--fabric", str(file), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, *command, "--ready-file", str(ready)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, "the emulator listens")
        assert ready.exists(), process.communicate()
        addresses = json.loads(ready.read_text())
        fabric = copy.deepcopy(dict(declared))
        for switch in fabric["switches"]:
            if switch["driver"] == "emulated":
                switch["options"] = {**switch.get("options", {}), "address": addresses["address"]}
        yield EmulatedSwitches(fabric, addresses["witness"])
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=PATIENCE_S)[1] is not None
    assert process.returncode == 0
