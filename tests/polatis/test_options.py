"""A Polatis in the fabric file: every wrong option is refused with what would be right; no secret is held."""

from __future__ import annotations

from pathlib import Path

import pytest

from opus_sdn.drivers.base import SwitchConfigError
from opus_sdn.drivers.polatis.driver import PolatisDriver
from opus_sdn.drivers.polatis.options import Credentials, PolatisOptions, credentials_of
from opus_sdn.drivers.polatis.restconf import base_url
from opus_sdn.drivers.registry import open_driver
from opus_sdn.intent.fabric import Switch

GOOD: dict[str, object] = {"host": "ocs0.example", "password_env": "OPUS_TEST_SECRET"}


def switch(**options: object) -> Switch:
    return Switch("ocs0", "polatis", 32, True, tuple(options.items()))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"host": None}, "option host is None"),
        ({"host": "a b"}, "option host is 'a b'"),
        ({"transport": "netconf"}, "option transport is 'netconf'"),
        ({"restconf_port": 0}, "option restconf_port is 0"),
        ({"restconf_port": "8008"}, "option restconf_port is '8008'"),
        ({"tl1_port": 70000}, "option tl1_port is 70000"),
        ({"timeout_s": -1}, "option timeout_s is -1"),
        ({"timout_s": 1}, "did you mean 'timeout_s'"),
        ({"password_file": "x"}, "both given; give exactly one"),
        ({"password_env": None}, "neither given"),
        ({"ca_file": "x.pem"}, "ca_file is given without tls: true"),
        ({"tls": True, "transport": "tl1"}, "option tls is true with transport: tl1, which has no TLS"),
        ({"light_threshold_dbm": -100}, "light_threshold_dbm is -100"),
    ],
)
def test_a_wrong_option_is_named_with_its_value(changes: dict[str, object], says: str) -> None:
    given = {k: v for k, v in (GOOD | changes).items() if not (k == "password_env" and v is None)}
    with pytest.raises(SwitchConfigError) as refused:
        PolatisOptions.of(switch(**given))
    assert says in str(refused.value)
    assert str(refused.value).startswith("switch ocs0: option")


def test_a_missing_host_is_asked_for() -> None:
    with pytest.raises(SwitchConfigError, match="option host is missing; give the name or address"):
        PolatisOptions.of(switch(password_env="X"))


def test_a_password_in_the_file_is_refused_without_repeating_it() -> None:
    with pytest.raises(SwitchConfigError, match="password_file") as refused:
        PolatisOptions.of(switch(host="h", password="Zq8-kept-secret"))
    assert "Zq8" not in str(refused.value)


def test_whole_numbers_are_as_good_as_decimals() -> None:
    options = PolatisOptions.of(switch(**GOOD, timeout_s=2, settle_s=0, light_threshold_dbm=-30))
    assert (options.timeout_s, options.settle_s, options.light_threshold_dbm) == (2.0, 0.0, -30.0)


@pytest.mark.parametrize(
    ("host", "tls", "url"),
    [
        ("ocs0.example", False, "http://ocs0.example:8008"),
        ("192.0.2.7", True, "https://192.0.2.7:8008"),
        ("2001:db8::7", False, "http://[2001:db8::7]:8008"),
        ("[2001:db8::7]", True, "https://[2001:db8::7]:8008"),
    ],
)
def test_names_and_addresses_of_both_kinds_are_taken(host: str, tls: bool, url: str) -> None:
    assert str(base_url(PolatisOptions.of(switch(**GOOD | {"host": host, "tls": tls})))) == url


def test_the_secret_comes_from_a_variable_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPUS_TEST_SECRET", "one")
    assert credentials_of("ocs0", PolatisOptions.of(switch(**GOOD))) == Credentials("admin", "one")
    file = tmp_path / "secret"
    file.write_text("two words\n")
    options = PolatisOptions.of(switch(host="h", user="opus", password_file=str(file)))
    assert credentials_of("ocs0", options) == Credentials("opus", "two words")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\xff\xfe", "not text"),
        (b"a\x00b", "cannot be sent"),
    ],
)
def test_a_secret_that_is_not_there_is_said_before_anything_is_sent(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SwitchConfigError, match=says):
        open_driver(switch(host="h", password_file=str(file)))


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPUS_TEST_SECRET", raising=False)
    with pytest.raises(SwitchConfigError, match="OPUS_TEST_SECRET, which is not set"):
        open_driver(switch(**GOOD))


def test_a_file_without_certificates_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPUS_TEST_SECRET", "x")
    (tmp_path / "ca.pem").write_text("none")
    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(SwitchConfigError, match="holds no certificates"):
            open_driver(switch(**GOOD, tls=True, ca_file=str(tmp_path / name)))


def test_credentials_show_their_user_only() -> None:
    assert "Zq8" not in repr(Credentials("opus", "Zq8-kept-secret"))
    assert Credentials("admin", "root").are_default
    assert not Credentials("admin", "rooted").are_default


def test_the_registry_knows_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPUS_TEST_SECRET", "x")
    assert isinstance(open_driver(switch(**GOOD)), PolatisDriver)
