"""The cabling check of day one, on an emulated Polatis with NICs, whose real cabling may be another one."""

from __future__ import annotations

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.drivers.cabling import plan_rail
from opus_sdn.drivers.polatis_emulator import EmulatorProcess
from opus_sdn.fabric_file import generate_fabric, parse_fabric
from tests.cli.conftest import Opus, opus_process

PASSWORD_VARIABLE = "OPUS_TEST_VERIFY_PASSWORD"


def fabric(restconf_port: int, ports: dict[str, int] | None = None) -> str:
    """Four hosts with one GPU, two ports each, on positions 0 to 7; `ports` sit elsewhere."""
    elsewhere = ", ".join(f"{port}: {position}" for port, position in (ports or {}).items())
    return f"""
version: 1
hosts: ["h[0-3]"]
gpus_per_host: 1
ports_per_gpu: 2
circuit: duplex
switches:
- name: ocs
  driver: polatis
  size: 8
  layout: sided
  options: {{host: 127.0.0.1, transport: restconf, restconf_port: {restconf_port}, user: admin,
             password_env: {PASSWORD_VARIABLE}, settle_s: 0, light_s: 0.2}}
rails:
- {{name: rail0, slots: [0], switch: ocs, first_port: 0, ports: {{{elsewhere}}}}}
"""


class Site:
    """A switch with NICs on it, and the fabric file of whoever checks it."""

    def __init__(self, folder: Path, *arguments: str, really: dict[str, int] | None = None) -> None:
        folder.mkdir(exist_ok=True)
        cabling = folder / "really.yaml"
        cabling.write_text(fabric(1, really))
        self.nics = folder / "nics"
        self.switch = EmulatorProcess(
            folder,
            *("--size", "8x8", "--switch-ms", "0", "--restconf-port", "0", "--tl1-port", "0"),
            *("--page-port", "0", "--fabric", str(cabling), "--nics", str(self.nics), *arguments),
        )
        self.file = folder / "fabric.yaml"
        self.file.write_text(fabric(int(self.switch.restconf_url.rpartition(":")[2])))
        self.probe = f"cat {self.nics}/{{host}}/class/net/nic{{slot}}p{{index}}/carrier"

    def connected(self) -> list[tuple[int, int]]:
        """The circuits that the switch holds."""
        circuits = self.switch.ask("GET", "/emulator")["circuits"]
        return [(circuit["ingress"], circuit["egress"]) for circuit in circuits]


@pytest.fixture(autouse=True)
def _password(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "root")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site that is cabled as declared."""
    made = Site(tmp_path / "site")
    yield made
    made.switch.stop()


def verdicts(document: Any) -> dict[str, str]:
    """Verdict by pair of ports."""
    return {"-".join(pair["ports"]): pair["verdict"] for pair in document["pairs"]}


RING = ("h0:0:1-h1:0:0", "h1:0:1-h2:0:0", "h2:0:1-h3:0:0", "h0:0:0-h3:0:1")


def test_a_fabric_that_is_cabled_as_declared_has_light_and_links_everywhere(opus: Opus, site: Site) -> None:
    ran = opus("fabric", "verify", site.file, "--probe", site.probe, "-o", "json")
    assert ran.code == 0, ran.err
    assert verdicts(ran.json) == dict.fromkeys(RING, "ok")
    first = ran.json["pairs"][0]
    assert first["links"] == {"h0:0:1": True, "h1:0:0": True}
    assert first["light_dbm"] == pytest.approx({"h0:0:1": -1.0, "h1:0:0": -1.0}, abs=0.2)
    assert first["cross_connects"] == [[1, 2], [2, 1]]
    assert site.connected() == []
    assert "all 4 pairs are as they must be" in ran.err


def test_without_a_probe_light_is_what_is_checked(opus: Opus, site: Site) -> None:
    site.switch.ask("PATCH", "/emulator/faults", {"source_dbm": {"2": -60.0}, "dead_links": ["h3:0:0"]})
    ran = opus("fabric", "verify", site.file, "-o", "json")
    assert ran.code == 1
    assert verdicts(ran.json) == dict.fromkeys(RING, "ok") | {RING[0]: "dark"}
    # Position 1 is ingress port 2: the transmitter of h0's right port.
    assert re.match(r"no light from h0:0:1 to h1:0:0 \(1->2\): ", ran.json["pairs"][0]["detail"])
    assert ran.json["pairs"][0]["light_dbm"]["h0:0:1"] < -50 < ran.json["pairs"][0]["light_dbm"]["h1:0:0"]
    assert site.connected() == []


def test_a_link_that_stays_down_is_named_after_its_time(opus: Opus, site: Site) -> None:
    site.switch.ask("PATCH", "/emulator/faults", {"dead_links": ["h1:0:0"]})
    # The links of a circuit that was there before are nobody's mistake.
    site.switch.ask("POST", "/emulator/circuits", {"connect": [[6, 15], [7, 14]]})
    ran = opus("fabric", "verify", site.file, "--probe", site.probe, "--link-s", "0.3", "-o", "json")
    assert verdicts(ran.json) == dict.fromkeys(RING, "ok") | {RING[0]: "no-link", RING[2]: "busy"}
    assert ran.json["pairs"][0]["detail"] == "no link at h1:0:0 within 0.3 s"


def test_two_fibres_that_are_swapped_are_found_by_the_nics_that_answer(opus: Opus, tmp_path: Path) -> None:
    swapped = Site(tmp_path / "site", really={"h1:0:0": 4, "h2:0:0": 2})
    try:
        assert opus("fabric", "verify", swapped.file).code == 0  # light alone cannot know whose it is
        ran = opus(
            "fabric", "verify", swapped.file, "--probe", swapped.probe, "--link-s", "0.3", "-o", "json"
        )
        assert verdicts(ran.json) == dict.fromkeys(RING, "ok") | dict.fromkeys(RING[:2], "miswired")
        assert ran.json["pairs"][0]["detail"] == "no link at h1:0:0 within 0.3 s; it came up at h2:0:0"
        assert ran.json["pairs"][1]["detail"] == "no link at h2:0:0 within 0.3 s; it came up at h1:0:0"
    finally:
        swapped.switch.stop()


def test_circuits_that_are_there_are_left_alone(opus: Opus, site: Site) -> None:
    there = [(2, 11), (3, 10), (4, 16)]
    site.switch.ask("POST", "/emulator/circuits", {"connect": there})
    ran = opus("fabric", "verify", site.file, "-o", "json")
    found = verdicts(ran.json)
    assert found == {RING[0]: "busy", RING[1]: "busy", RING[2]: "ok", RING[3]: "busy"}
    assert "1->2, 2->1 is connected" in ran.json["pairs"][0]["detail"]
    assert site.connected() == there
    asked = [entry["request"] for entry in site.switch.ask("GET", "/emulator/requests")]
    assert not any(re.search(r"=(2|3|4)$", request) for request in asked if request.startswith("DELETE"))


def test_a_switch_that_refuses_or_is_not_there_fails_every_pair(opus: Opus, site: Site) -> None:
    site.switch.ask("PATCH", "/emulator/faults", {"remote_lock": True})
    ran = opus("fabric", "verify", site.file, "-o", "json")
    assert set(verdicts(ran.json).values()) == {"failed"}
    assert "locked" in ran.json["pairs"][0]["detail"]
    site.switch.stop()
    ran = opus("fabric", "verify", site.file, "-o", "json")
    assert (ran.code, set(verdicts(ran.json).values())) == (1, {"failed"})


def test_a_probe_that_fails_is_unknown_and_says_how(opus: Opus, site: Site) -> None:
    ran = opus("fabric", "verify", site.file, "--probe", "cat /nowhere/{host}", "-o", "json")
    assert set(verdicts(ran.json).values()) == {"unknown"}
    assert re.search(r"8 ports could not be asked; h\d:0:\d: cat ended with 1 and said .*/nowhere/h", ran.err)


def test_names_of_nics_come_from_a_file(opus: Opus, site: Site, tmp_path: Path) -> None:
    nics = tmp_path / "nics.yaml"
    nics.write_text("".join(f"h{host}:0:{index}: nic0p{index}\n" for host in range(4) for index in (0, 1)))
    probe = f"cat {site.nics}/{{host}}/class/net/{{nic}}/carrier"
    assert opus("fabric", "verify", site.file, "--probe", probe, "--nics", nics).code == 0
    nics.write_text("h0:0:0: nic0p0\n")
    ran = opus("fabric", "verify", site.file, "--probe", probe, "--nics", nics)
    assert (ran.code, site.connected()) == (2, [])
    assert "{nic} of h0:0:1 is unknown; name it in the file of --nics" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rail", "rail7"), "--rail is 'rail7'; the fabric has rail0"),
        (("--probe", "cat {hots}"), "'{hots}' has a field that is unknown"),
        (("--probe", ""), "as 'ssh {host} cat /sys/class/net/{nic}/carrier'"),
        (("--probe", "cat '"), "cannot be split"),
        (("--nics", "x"), "--nics is for --probe"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_asked(
    opus: Opus, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    file = tmp_path / "fabric.yaml"
    file.write_text(fabric(1))
    ran = opus("fabric", "verify", file, *arguments)
    assert ran.code == 2
    assert said in ran.err


def test_an_interrupted_check_takes_down_what_it_had_connected(site: Site) -> None:
    site.switch.ask("PATCH", "/emulator/faults", {"dead_links": ["h1:0:0"]})
    command = ("fabric", "verify", site.file, "--probe", site.probe, "--link-s", "600")
    with opus_process(*command) as process:
        deadline = time.monotonic() + 60
        while site.connected() != [(2, 11), (3, 10)]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert process.returncode == 130
    assert site.connected() == []


def test_the_controllers_own_emulated_switch_shows_neither_light_nor_links(
    opus: Opus, tmp_path: Path
) -> None:
    file = tmp_path / "fabric.yaml"
    file.write_text(generate_fabric(hosts=2, gpus_per_host=1, delay_ms=0))
    ran = opus("fabric", "verify", file, "-o", "json")
    assert ran.code == 1
    assert {pair["verdict"] for pair in ran.json["pairs"]} == {"unknown"}
    assert json.dumps(ran.json).count("connected is all that is known") == 2


@pytest.mark.parametrize(
    ("hosts", "gpus", "ports", "circuit", "rails", "pairs"),
    [
        (4, 1, 2, "duplex", 1, 4),
        (2, 1, 2, "duplex", 1, 2),
        (1, 1, 2, "duplex", 1, 1),
        (4, 2, 4, "duplex", 1, 16),
        (4, 1, 1, "duplex", 1, 2),
        (4, 1, 2, "directed", 1, 4),
        (4, 1, 2, "bidirectional", 1, 4),
    ],
)
def test_a_plan_has_every_port_of_a_rail_once(
    hosts: int, gpus: int, ports: int, circuit: str, rails: int, pairs: int
) -> None:
    text = generate_fabric(
        hosts=hosts, gpus_per_host=gpus, ports_per_gpu=ports, rails=rails, circuit=circuit, delay_ms=0
    )
    made = parse_fabric(text, "test").build()
    plan = plan_rail(made, made.rails[0])
    seen = Counter(port for planned in plan for port in (planned.a, planned.b))
    assert seen == Counter(at.port for at in made.attachments)
    assert len(plan) == pairs
    assert all(len(planned.pairs) == (1 if circuit == "bidirectional" else 2) for planned in plan)


def test_an_odd_number_of_single_ports_is_checked_by_one_of_them_twice() -> None:
    text = generate_fabric(hosts=3, gpus_per_host=1, ports_per_gpu=1, delay_ms=0)
    made = parse_fabric(text, "test").build()
    ends = [(planned.a.host, planned.b.host) for planned in plan_rail(made, made.rails[0])]
    assert ends == [("host0", "host1"), ("host0", "host2")]
