"""What a rank is told by its environment, and what it says about a value that cannot be right."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from opus_sdn.intent.model import PortChoice, WorldGroup
from opus_sdn.shim.errors import SettingsError
from opus_sdn.shim.settings import Address, Mode, from_environ, read_token

GOOD = {"OPUS_CONTROLLER": "http://10.0.0.5:8700", "OPUS_JOB": "llama-7b", "LOCAL_RANK": "1"}


def test_the_least_that_a_rank_needs_is_the_controller_a_job_and_its_local_rank() -> None:
    settings = from_environ(GOOD)
    assert settings.mode is Mode.ON_DEMAND
    assert settings.controller == Address(False, "10.0.0.5", 8700)
    assert (settings.job, settings.host, settings.slot) == ("llama-7b", socket.gethostname(), 1)
    assert (settings.dimensions, settings.initial_topology, settings.witness) == ((), None, None)
    assert settings.watchdog


def test_everything_can_be_said() -> None:
    settings = from_environ(
        GOOD
        | {
            "OPUS_MODE": "provision",
            "OPUS_PROFILE_STEPS": "0",
            "OPUS_PHASE_TABLE": "t/rank{rank}.json",
            "OPUS_HOST": "gpu007",
            "OPUS_GPU_SLOT": "5",
            "OPUS_FORCE_DOMAIN": "scale-out",
            "OPUS_DIMENSIONS": "pp=2, dp=4,tp=2",
            "OPUS_WORLD_GROUP": "front-end",
            "OPUS_PORT_CHOICE": "spread",
            "OPUS_WITNESS": "127.0.0.1:8800",
            "OPUS_INITIAL_TOPOLOGY": "01",
            "OPUS_FENCE_S": "2.5",
            "OPUS_WATCHDOG": "0",
            "OPUS_OWNER": "ada",
        }
    )
    assert (settings.host, settings.slot, settings.owner) == ("gpu007", 5, "ada")
    assert (settings.mode, settings.profile_steps) == (Mode.PROVISION, 0)
    assert (settings.phase_table, settings.phase_table_save) == ("t/rank{rank}.json", None)
    assert settings.force_scale_out
    assert settings.dimensions == (("pp", 2), ("dp", 4), ("tp", 2))
    assert (settings.world_group, settings.port_choice) == (WorldGroup.FRONT_END, PortChoice.SPREAD)
    assert (settings.witness, settings.initial_topology) == ("127.0.0.1:8800", "01")
    assert (settings.fence_s, settings.watchdog) == (2.5, False)


def test_without_a_controller_in_the_way_nothing_has_to_be_said() -> None:
    assert from_environ({"OPUS_MODE": "off"}).mode is Mode.OFF


@pytest.mark.parametrize(
    ("address", "tls", "host", "text"),
    [
        ("http://[fd00::5]:8700", False, "fd00::5", "http://[fd00::5]:8700"),
        ("https://controller.example:443/", True, "controller.example", "https://controller.example:443"),
    ],
)
def test_addresses_may_be_names_and_literals_of_both_kinds(
    address: str, tls: bool, host: str, text: str
) -> None:
    found = from_environ(GOOD | {"OPUS_CONTROLLER": address}).controller
    assert found is not None
    assert (found.tls, found.host, str(found)) == (tls, host, text)


@pytest.mark.parametrize(
    ("environ", "host", "slot"),
    [
        ({"SLURMD_NODENAME": "node3"}, "node3", 1),
        ({"SLURMD_NODENAME": "node3", "OPUS_HOST": "gpu3"}, "gpu3", 1),
        ({"OPUS_HOST": "h", "OPUS_GPU_SLOT_MAP": "0:0,1:3"}, "h", 3),
        ({"OPUS_HOST": "h", "OPUS_GPU_SLOT_MAP": "0:0,1:3", "OPUS_GPU_SLOT": "6"}, "h", 6),
    ],
)
def test_the_place_is_what_was_said_most_explicitly(environ: dict[str, str], host: str, slot: int) -> None:
    settings = from_environ(GOOD | environ)
    assert (settings.host, settings.slot) == (host, slot)


WRONG = [
    ("OPUS_PROFILE_STEPS", "2", "use the number of steps to learn from, 3 to 1000, as 5, or 0"),
    ("OPUS_PROFILE_STEPS", "-5", "or 0 to have every operation ask for itself"),
    ("OPUS_MODE", "sometimes", "use one of: off, on-demand, provision"),
    ("OPUS_CONTROLLER", "10.0.0.5:8700", "use http://HOST:PORT"),
    ("OPUS_CONTROLLER", "http://10.0.0.5", "use http://HOST:PORT"),
    ("OPUS_CONTROLLER", "http://10.0.0.5:99999", "use http://HOST:PORT"),
    ("OPUS_CONTROLLER", "http://10.0.0.5:8700/api", "use http://HOST:PORT"),
    ("OPUS_CONTROLLER", "ftp://10.0.0.5:8700", "use http://HOST:PORT"),
    ("OPUS_JOB", "a b", "letters, digits"),
    ("OPUS_JOB", "-x", "a letter or digit first"),
    ("OPUS_JOB", "x" * 129, "at most 128"),
    ("OPUS_GPU_SLOT", "-1", "0 and up"),
    ("OPUS_GPU_SLOT", "one", "0 and up"),
    ("LOCAL_RANK", "x", "or set OPUS_GPU_SLOT"),
    ("OPUS_GPU_SLOT_MAP", "0:0,2:3", "add 1:SLOT"),
    ("OPUS_GPU_SLOT_MAP", "0:0,1:0", "each slot once"),
    ("OPUS_GPU_SLOT_MAP", "1", "LOCAL_RANK:SLOT"),
    ("OPUS_FORCE_DOMAIN", "scale-up", "use scale-out"),
    ("OPUS_DIMENSIONS", "pp=2,pp=2", "each name once"),
    ("OPUS_DIMENSIONS", "pp=0", "NAME=SIZE"),
    ("OPUS_DIMENSIONS", "2", "NAME=SIZE"),
    ("OPUS_WORLD_GROUP", "rails", "use one of: auto, front-end, rail"),
    ("OPUS_PORT_CHOICE", "left", "use one of: standard, spread"),
    ("OPUS_WITNESS", "8800", "use HOST:PORT"),
    ("OPUS_INITIAL_TOPOLOGY", "x1", "one decimal digit per pipeline stage"),
    ("OPUS_FENCE_S", "0", "use seconds from 0.1"),
    ("OPUS_FENCE_S", "nan", "use seconds from 0.1"),
    ("OPUS_ALLOW_TORCH", "yes", "use 1 for yes"),
    ("OPUS_WATCHDOG", "off", "use 1 for yes"),
    ("OPUS_CA_FILE", "/nowhere/ca.pem", "there is no such file"),
]


@pytest.mark.parametrize(("variable", "value", "remedy"), WRONG)
def test_a_value_that_cannot_be_used_is_named_with_what_would_be_right(
    variable: str, value: str, remedy: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        from_environ(GOOD | {variable: value})
    assert str(refused.value).startswith(f"{variable}: is {value!r}; ")
    assert remedy in str(refused.value)


@pytest.mark.parametrize("variable", ["OPUS_CONTROLLER", "OPUS_JOB", "LOCAL_RANK"])
def test_what_is_missing_is_named_with_an_example(variable: str) -> None:
    with pytest.raises(SettingsError, match=f"^{variable}: is not set"):
        from_environ({k: v for k, v in GOOD.items() if k != variable})


def test_a_password_in_the_address_is_refused_without_repeating_it() -> None:
    with pytest.raises(SettingsError) as refused:
        from_environ(GOOD | {"OPUS_CONTROLLER": "http://me:hunter2@host:1"})
    assert "hunter2" not in str(refused.value)


def test_a_token_is_read_from_its_file_and_never_repeated(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("  s3cret-token\n")
    assert read_token(file) == "s3cret-token"
    assert read_token(None) is None
    for content in ("", "two words", "a\nb", "x" * 5000):
        file.write_text(content)
        with pytest.raises(SettingsError, match=re.escape("does not hold a token")) as refused:
            read_token(file)
        assert not content or content not in str(refused.value)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_token(tmp_path / "none")
