"""The command line as processes: how `serve` starts and ends, and how the history is followed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from opus_sdn.api.server import running
from opus_sdn.settings import Settings, load_settings
from tests.cli.conftest import Opus, opus_process

ENDS_S = 30  # how long a process may take to end, on a machine that is busy with everything else


def serve_in(folder: Path, *more: object) -> list[object]:
    """The arguments of a controller that keeps everything in this folder."""
    return ["serve", "--port", 0, "--database", f"sqlite:///{folder}/opus.db", "--runs-dir", folder, *more]


def settings_in(folder: Path, fabric_file: Path | None = None) -> Settings:
    """The settings of such a controller, to run it in this process."""
    database = f"sqlite:///{folder}/opus.db"
    return load_settings(port=0, database=database, runs_dir=folder, fabric_file=fabric_file)


def url_of(process: subprocess.Popen[str]) -> str:
    """Where a controller answers, once it grants."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def fabric_in(folder: Path, opus: Opus) -> Path:
    file = folder / "fabric.yaml"
    assert opus("fabric", "generate", "--gpus-per-host", 1, "--delay-ms", 0, "-o", file).code == 0
    return file


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_controller_that_is_told_to_stop_ends_cleanly(
    tmp_path: Path, opus: Opus, number: signal.Signals
) -> None:
    ready = tmp_path / "ready.json"
    more = ["--fabric", fabric_in(tmp_path, opus), "--witness", "--ready-file", ready]
    with opus_process(*serve_in(tmp_path, *more)) as process:
        url = url_of(process)
        told = json.loads(ready.read_text())
        assert told["url"] == url
        assert httpx.get(f"{url}/readyz", trust_env=False).json()["ready"] is True
        host, _, port = told["witness"].rpartition(":")
        socket.create_connection((host, int(port)), timeout=10).close()
        assert opus("get", "rails", "--controller", url).lines[1].split()[0] == "rail0"

        process.send_signal(number)
        out, err = process.communicate(timeout=ENDS_S)
        assert (process.returncode, out) == (0, "")
        assert "Traceback" not in err
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/livez", trust_env=False)


def test_a_second_controller_on_the_same_database_or_port_says_so_and_ends(tmp_path: Path) -> None:
    with running(settings_in(tmp_path)) as first:
        for more, wanted in [
            ([], f"error: database {tmp_path}/opus.db is in use by process {os.getpid()}: "),
            (["--port", first.port], f"error: cannot listen on port {first.port} of 127.0.0.1: "),
        ]:
            with opus_process(*serve_in(tmp_path, *more)) as second:
                out, err = second.communicate(timeout=ENDS_S)
            assert (second.returncode, out) == (1, "")
            assert err.splitlines()[-1].startswith(wanted)
            assert "Traceback" not in err


def test_a_database_address_that_is_none_stops_the_start_and_is_not_shown(tmp_path: Path) -> None:
    with opus_process(*serve_in(tmp_path, "--database", "postgresql://ann:secret@db:port/opus")) as process:
        out, err = process.communicate(timeout=ENDS_S)
    assert (process.returncode, out) == (1, "")
    assert err.splitlines()[-1].startswith("error: database address is not an SQLAlchemy URL: use sqlite:///")
    assert "a bug" not in err
    assert "secret" not in err


def test_a_fabric_file_that_is_wrong_stops_the_start_with_its_faults(tmp_path: Path) -> None:
    faulty = tmp_path / "faulty.yaml"
    faulty.write_text("version: 1\nhosts: 3\n")
    with opus_process(*serve_in(tmp_path, "--fabric", faulty)) as process:
        out, err = process.communicate(timeout=ENDS_S)
    assert (process.returncode, out) == (1, "")
    assert f"error: {faulty}:2: hosts: is 3; " in err
    assert "Traceback" not in err


def test_the_history_is_followed_until_ctrl_c(tmp_path: Path, opus: Opus) -> None:
    with running(settings_in(tmp_path, fabric_file=fabric_in(tmp_path, opus))) as server:
        url, api = server.url, f"{server.url}/api/v1"
        with opus_process("events", "--follow", "--kind", "job", "-o", "json", "--controller", url) as reader:
            assert reader.stdout is not None
            for name in ("one", "two"):
                body = {"owner": "o", "nonce": "n", "placement": [{"rank": 0, "host": "host0", "slot": 0}]}
                started = httpx.put(f"{api}/jobs/{name}", json=body, trust_env=False)
                assert started.status_code == 201
                event = json.loads(reader.stdout.readline())
                assert (event["kind"], event["job"]) == ("job.started", name)
                httpx.delete(f"{api}/jobs/{name}?incarnation=1", trust_env=False).raise_for_status()
                assert json.loads(reader.stdout.readline())["kind"] == "job.ended"
            reader.send_signal(signal.SIGINT)
            out, err = reader.communicate(timeout=ENDS_S)
            assert (reader.returncode, out, err) == (130, "", "")
