"""Light is not yet a link: a controller, an emulated Polatis with NICs, and the probes of two hosts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from opus_sdn.demo.controller import Controller as ServedController
from opus_sdn.demo.launcher import Zygote
from opus_sdn.demo.results import expected_values
from opus_sdn.drivers.polatis_emulator.process import EmulatorProcess
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.link_settings import LinkSource
from opus_sdn.shim.links import LinkProbe
from opus_sdn.shim.settings import Address
from tests.api.world import Controller, controller, job, wait_until

PASSWORD_VARIABLE = "OPUS_TEST_CARRIER_PASSWORD"
LINK_UP_MS = 600


def fabric(restconf_port: int, carrier: str) -> dict[str, Any]:
    """Two hosts on one rail of an 8x8 Polatis."""
    return {
        "version": 1,
        "hosts": ["h0", "h1"],
        "gpus_per_host": 1,
        "ports_per_gpu": 2,
        "circuit": "duplex",
        "switches": [
            {
                "name": "ocs0",
                "driver": "polatis",
                "size": 8,
                "layout": "sided",
                "options": {
                    "host": "127.0.0.1",
                    "restconf_port": restconf_port,
                    "transport": "restconf",
                    "user": "opus",
                    "password_env": PASSWORD_VARIABLE,
                },
            }
        ],
        "rails": [{"name": "rail0", "slots": [0], "switch": "ocs0", "first_port": 0, "carrier": carrier}],
    }


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatorProcess]:
    """An 8x8 whose NICs take a while from light to link."""
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    config, cabling = tmp_path / "emulator.yaml", tmp_path / "cabling.yaml"
    config.write_text(yaml.safe_dump({"users": [{"name": "opus", "password": "secret"}]}))
    cabling.write_text(yaml.safe_dump(fabric(1, "required")))
    ports = [word for door in ("restconf", "tl1", "page") for word in (f"--{door}-port", "0")]
    arguments = (
        "--size",
        "8x8",
        "--switch-ms",
        "2",
        "--link-up-ms",
        str(LINK_UP_MS),
        "--config",
        str(config),
    )
    plugged = ("--fabric", str(cabling), "--switch", "ocs0", "--nics", str(tmp_path / "nics"))
    with EmulatorProcess(tmp_path / "emulator", *arguments, *plugged, *ports) as process:
        yield process


class Hosts:
    """The probes of two hosts, which read the emulated NICs."""

    def __init__(self, opus: Controller, nics: Path) -> None:
        host, _, port = opus.address.url.removeprefix("http://").rpartition(":")
        self.clients = [ControllerClient(Address(False, host, int(port))) for _ in range(2)]
        self.probes = [
            LinkProbe(
                client,
                "j",
                1,
                rank,
                {i: LinkSource(f"nic0p{i}", f"class/net/nic0p{i}/carrier", rdma=False) for i in (0, 1)},
                nics / f"h{rank}",
            )
            for rank, client in enumerate(self.clients)
        ]

    def close(self) -> None:
        with ThreadPoolExecutor(2) as closing:
            list(closing.map(lambda probe: probe.close(), self.probes))
        for client in self.clients:
            client.close()


def granted(opus: Controller, rank: int) -> list[dict[str, Any]]:
    return list(opus.say(rank)["grants"])


def begin(opus: Controller) -> None:
    opus.declare()
    opus.check_in("g", [0, 1])
    for rank in (0, 1):
        opus.arrive(rank, "g", 0)


def reason(opus: Controller) -> str | None:
    (intent,) = opus.get("/intents")["intents"]
    return intent["reason"]["code"] if intent["reason"] else None


def test_a_grant_waits_until_both_nics_have_their_link_and_the_time_is_measured(
    tmp_path: Path, device: EmulatorProcess
) -> None:
    port = int(device.restconf_url.rpartition(":")[2])
    with controller(tmp_path, declared=fabric(port, "required")) as opus:
        begin(opus)
        hosts = Hosts(opus, tmp_path / "nics")
        try:
            wait_until(lambda: granted(opus, 0), "the grant")
        finally:
            hosts.close()
        (event,) = opus.get("/events", kind="intent.granted")["events"]
        assert event["data"]["phases_ms"]["carrier"] > 0
        rail = opus.get("/rails/rail0")
        assert rail["carrier"] == "required"
        assert rail["link_up"]["times"] >= 1
        assert rail["link_up"]["worst_s"] > 0
        answer = opus.put("/jobs/j", job(nonce="2", retry_budget={"timeout": 1, "retry": 0}))
        assert answer.status_code == 201
        (warned,) = opus.get("/events", kind="job.retry-budget")["events"]
        assert warned["rail"] == "rail0"
        assert warned["data"]["retry_budget_s"] < warned["data"]["link_up_s"]


def test_a_nic_that_never_gets_its_link_is_named_and_the_phase_that_failed_too(
    tmp_path: Path, device: EmulatorProcess
) -> None:
    device.ask("PATCH", "/emulator/faults", {"dead_links": ["h1:0:0"]})
    port = int(device.restconf_url.rpartition(":")[2])
    with controller(tmp_path, declared=fabric(port, "required"), carrier_s=1.0) as opus:
        begin(opus)
        hosts = Hosts(opus, tmp_path / "nics")
        try:
            wait_until(lambda: opus.get("/events", kind="intent.stalled")["events"], "the stall")
        finally:
            hosts.close()
        stalled = opus.get("/events", kind="intent.stalled")["events"][-1]["data"]
        assert (stalled["phase"], stalled["reason"]) == ("carrier", "carrier")
        assert "h1:0:0: nic0p0 has no carrier" in stalled["detail"]
        assert granted(opus, 0) == []


def test_where_grants_do_not_wait_a_transport_that_gives_up_too_soon_is_refused(
    tmp_path: Path, device: EmulatorProcess
) -> None:
    port = int(device.restconf_url.rpartition(":")[2])
    with controller(tmp_path, declared=fabric(port, "ignored")) as opus:
        begin(opus)
        hosts = Hosts(opus, tmp_path / "nics")
        try:
            wait_until(lambda: granted(opus, 0), "the grant, without the links")
            wait_until(lambda: opus.get("/rails/rail0")["link_up"], "the measurement")
        finally:
            hosts.close()
        answer = opus.put("/jobs/j", job(nonce="2", retry_budget={"timeout": 1, "retry": 0}))
        assert answer.status_code == 409
        assert answer.json()["type"] == "urn:opus-sdn:problem:retry-budget"
        assert answer.json()["rail"] == "rail0"
        assert (
            opus.put("/jobs/j", job(nonce="3", retry_budget={"timeout": 22, "retry": 7})).status_code == 201
        )


def test_a_broken_port_is_named_and_used_again_once_it_is_mended(
    tmp_path: Path, device: EmulatorProcess
) -> None:
    device.ask("PATCH", "/emulator/faults", {"failed_ports": [2]})
    port = int(device.restconf_url.rpartition(":")[2])
    with controller(tmp_path, declared=fabric(port, "required"), light_s=0.5, observe_s=0.3) as opus:
        begin(opus)
        wait_until(lambda: reason(opus) == "port-failed", "the reason")
        wait_until(lambda: opus.get("/events", kind="intent.stalled")["events"], "the stall")
        stalled = opus.get("/events", kind="intent.stalled")["events"][-1]["data"]
        assert stalled["phase"] == "light"
        assert "ingress 1 of ocs0 has failed" in stalled["detail"]
        assert granted(opus, 0) == []
        hosts = Hosts(opus, tmp_path / "nics")
        try:
            device.ask("PATCH", "/emulator/faults", {"failed_ports": []})
            wait_until(lambda: granted(opus, 0), "the grant once the port is mended")
        finally:
            hosts.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("opus-links")]


@pytest.mark.torch
def test_real_ranks_report_their_links_and_are_granted_once_both_are_up(
    tmp_path: Path, device: EmulatorProcess
) -> None:
    """Two ranks on two hosts; what they reduce is the closed form."""
    cabling = fabric(int(device.restconf_url.rpartition(":")[2]), "required")

    def environment(rank: int) -> dict[str, str]:
        return {
            "OPUS_HOST": f"h{rank}",
            "LOCAL_RANK": "0",
            "OPUS_LINKS": "0=nic0p0,1=nic0p1",
            "OPUS_LINK_SYSFS": str(tmp_path / "nics" / f"h{rank}"),
            "NCCL_IB_TIMEOUT": "14",
        }

    with (
        Zygote() as zygote,
        ServedController(yaml.safe_dump(cabling), tmp_path / "serve", witness=device.witness_address) as opus,
    ):
        results = zygote.run(
            "opus_sdn.demo.two_ranks:run",
            2,
            args=("opus", 3),
            environment=opus.environment("ranks") | {"OPUS_DIMENSIONS": "dp=2"},
            rank_environment=environment,
            deadline_s=120.0,
        )
        assert [result.values for result in results] == [expected_values(3)] * 2
        granted = [event for event in opus.events("ranks") if event["kind"] == "intent.granted"]
        assert granted[0]["data"]["phases_ms"]["carrier"] > 0
        assert opus.get("/rails/rail0")["link_up"]["times"] >= 1
        assert opus.witness()["violations"] == []
