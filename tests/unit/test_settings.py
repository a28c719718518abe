"""Settings come from flags, environment, file and defaults; a wrong one is named with its origin."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.settings import Settings, SettingsError, load_settings


@pytest.fixture(autouse=True)
def no_settings_of_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("OPUS_SDN_"):
            monkeypatch.delenv(name)


def config(folder: Path, text: str) -> Path:
    path = folder / "opus.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_anything_given_the_documented_defaults_hold() -> None:
    assert load_settings().model_dump() == {
        "host": "127.0.0.1",
        "port": 8700,
        "database": "sqlite:///opus.db",
        "fabric_file": None,
        "runs_dir": Path("runs"),
        "log_level": "info",
        "lease_s": 30,
        "fence_s": 15,
        "abort_s": 5,
        "step_deadline_s": 5,
        "observe_s": 30,
        "install_s": 10,
        "light_s": 10,
        "carrier_s": 60,
        "run_length_max": 4096,
        "overtake_max": 8,
        "overtake_ms": 250,
        "ring_patience_ms": 0,
        "wait_s_max": 60,
        "events_kept_max": 1_000_000,
        "events_kept_days": 90,
        "jobs_kept_max": 10_000,
        "steps_kept_max": 10_000,
        "store_queue_max": 16_384,
        "store_reconnect_s": 10,
        "leader_ttl_s": 3,
        "advertise": None,
        "rank_body_max_bytes": 262_144,
        "operator_body_max_bytes": 33_554_432,
        "traces_dir": None,
        "simulations_running_max": 1,
        "simulations_queued_max": 16,
        "simulations_kept_max": 32,
        "simulation_s_max": 600,
        "simulation_memory_max_bytes": 2_147_483_648,
        "witness": False,
    }


def test_a_flag_beats_the_environment_that_beats_the_file_that_beats_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config(tmp_path, "port = 1\novertake_max = 1\nlease_s = 90\n")
    monkeypatch.setenv("OPUS_SDN_PORT", "2")
    monkeypatch.setenv("OPUS_SDN_OVERTAKE_MAX", "2")
    settings = load_settings(path, port=3, overtake_max=None)
    assert (settings.port, settings.overtake_max, settings.lease_s, settings.fence_s) == (3, 2, 90, 15)


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.8.9.10", "127.8.9.10"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("0:0:0:0:0:0:0:1", "0:0:0:0:0:0:0:1"),
        ("LocalHost", "localhost"),
    ],
)
def test_the_controller_may_listen_on_loopback(given: str, host: str) -> None:
    assert load_settings(host=given).host == host


@pytest.mark.parametrize(
    "given", ["0.0.0.0", "::", "", "10.0.0.1", "example.org", "localhost.example.org", "[::]", "127.1"]
)
def test_listening_anywhere_else_is_refused_while_there_are_no_tokens(given: str) -> None:
    with pytest.raises(
        SettingsError, match=r"--host: is .* no access tokens .* use 127.0.0.1, ::1 or localhost"
    ):
        load_settings(host=given)


WRONG = {
    "unknown key": ("prot = 1", "prot: unknown setting; did you mean 'port'?"),
    "unknown key like nothing": ("zzz = 1", "zzz: unknown setting; known: host, port"),
    "boolean for a number": ("port = true", "port: is true, which is not a number"),
    "boolean for seconds": ("lease_s = true", "lease_s: is true, which is not a number"),
    "text for a number": ('lease_s = "x"', "lease_s: is 'x': input should be a valid number"),
    "port too high": ("port = 65536", "port: is 65536: input should be less than or equal to 65535"),
    "negative count": (
        "overtake_max = -1",
        "overtake_max: is -1: input should be greater than or equal to 0",
    ),
    "no time at all": ("step_deadline_s = 0", "step_deadline_s: is 0: input should be greater than 0"),
    "endless time": ("wait_s_max = inf", "wait_s_max: is inf: input should be"),
    "number for a switch": ("witness = 2", "witness: is 2: input should be a valid boolean"),
    "unknown level": (
        'log_level = "loud"',
        "log_level: is 'loud': input should be 'debug', 'info', 'warning' or 'error'",
    ),
    "tiny body": (
        "rank_body_max_bytes = 1",
        "rank_body_max_bytes: is 1: input should be greater than or equal to 1024",
    ),
    "not TOML": ("port: 8700", "is not TOML"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_value_in_the_file_is_named_with_file_and_key(tmp_path: Path, name: str) -> None:
    text, says = WRONG[name]
    path = config(tmp_path, text)
    with pytest.raises(SettingsError) as refused:
        load_settings(path)
    assert str(refused.value).startswith(f"{path}: {says}")


def test_a_wrong_value_in_the_environment_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPUS_SDN_PORT", "many")
    with pytest.raises(SettingsError, match=r"^OPUS_SDN_PORT: is 'many': "):
        load_settings()


def test_all_faults_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPUS_SDN_ABORT_S", "soon")
    with pytest.raises(SettingsError) as refused:
        load_settings(config(tmp_path, "prot = 1"), host="10.0.0.1")
    lines = str(refused.value).splitlines()
    assert {line.split(": ")[0] for line in lines} == {
        "--host",
        "OPUS_SDN_ABORT_S",
        str(tmp_path / "opus.toml"),
    }


def test_a_lock_is_never_reclaimed_before_a_cut_off_rank_has_surely_stopped() -> None:
    with pytest.raises(SettingsError, match="lease_s is 20, which is not more than fence_s"):
        load_settings(lease_s=20)
    assert load_settings(lease_s=20.5).lease_s == 20.5


@pytest.mark.parametrize(
    "url", ["postgres://me:secret@host/opus", "sqlite://", "secret", "mysql:///secret", "sqlite:opus.db"]
)
def test_an_unsupported_database_is_refused_without_repeating_its_address(url: str) -> None:
    with pytest.raises(SettingsError, match="use sqlite:///PATH") as refused:
        load_settings(database=url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("text", ['["postgresql://me:secret@host/opus"]', "7"])
def test_a_database_of_the_wrong_type_is_refused_without_repeating_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        SettingsError, match=r"database: is \*\*\*: input should be a valid string"
    ) as refused:
        load_settings(config(tmp_path, f"database = {text}\n"))
    assert "secret" not in str(refused.value)


def test_a_missing_file_is_an_error_and_not_the_defaults(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file or directory"):
        load_settings(tmp_path / "absent.toml")


def test_settings_cannot_be_changed_after_they_were_checked() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().__setattr__("host", "0.0.0.0")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"leader_ttl_s": 5}, "may take 2 x leader_ttl_s + step_deadline_s = 15 s, but ranks stop"),
        ({"step_deadline_s": 9}, "use a leader_ttl_s below 3"),
        ({"advertise": "db.example:8700"}, "advertise: is 'db.example:8700'; use http://HOST:PORT"),
    ],
)
def test_replicas_take_over_before_ranks_stop_their_work(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(said)):
        load_settings(database="postgresql://opus@/opus", **given)
    if "advertise" not in given:
        load_settings(**given)  # one process alone has nobody to take over from it


def test_postgresql_is_a_database_too() -> None:
    url = "postgresql://opus:secret@db.example/opus?sslmode=require"
    assert load_settings(database=url).database == url


def test_printing_settings_does_not_show_the_database_address() -> None:
    assert "opus.db" not in repr(Settings())
