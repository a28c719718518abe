"""Running the command line, in this process or as one of its own, and a real controller for it to talk to."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.cli import main

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its stdout as one JSON document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """Its stdout by line."""
        return self.out.splitlines()


Opus = Callable[..., Ran]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of whoever runs the tests reaches them; processes find the package that is tested."""
    for name in list(os.environ):
        if name.startswith("OPUS_") or name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def opus(capfd: pytest.CaptureFixture[str]) -> Opus:
    """Run `opus` with these arguments in this process."""

    def run(*arguments: object) -> Ran:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        code = ended.value.code
        assert isinstance(code, int)
        return Ran(code, out, err)

    return run


# Shells start background jobs with the interrupt ignored, and children inherit that: a test run may be one.
INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from opus_sdn.cli import main
main()
"""


@contextmanager
def opus_process(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`opus` as a process, for as long as the block lasts."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def closed_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
