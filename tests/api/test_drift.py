"""Circuits that somebody else made or took down, as the API shows them: the same reason everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.api import fabric_keeper
from opus_sdn.drivers.emulated import EmulatedDriver, EmulatedSwitch
from opus_sdn.drivers.registry import open_driver
from opus_sdn.intent.fabric import CrossConnect, Side, Switch, Terminal
from tests.api.world import PATIENCE_S, PREFIX, Controller, controller, fabric, job, wait_until

# Three hosts of two ports: right of h0 (1) to left of h1 (2) is the ring of ranks 0 and 1; 6, 7 are no ports.
RING = [(1, 2), (2, 1)]


def wider(**rail: Any) -> dict[str, Any]:
    """A fabric on a switch with two positions more than it has ports."""
    declared = fabric(hosts=3)
    declared["switches"][0]["size"] = 8
    declared["rails"][0] |= rail
    return declared


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[EmulatedSwitch]:
    """The emulated switches of controllers of this process, newest last."""
    found: list[EmulatedSwitch] = []

    def opened(switch: Switch) -> Any:
        driver = open_driver(switch)
        assert isinstance(driver, EmulatedDriver)
        found.append(driver.device)
        return driver

    monkeypatch.setattr(fabric_keeper, "open_driver", opened)
    return found


@pytest.fixture
def opus(tmp_path: Path, devices: list[EmulatedSwitch]) -> Iterator[Controller]:
    """A controller that looks at its switch on demand only, and a job of two ranks with a ring."""
    with controller(tmp_path, declared=wider(), observe_s=3600) as made:
        made.declare()
        made.check_in("dp", "world")
        yield made


def somebody(device: EmulatedSwitch, remove: Iterable[Any] = (), add: Iterable[Any] = ()) -> None:
    """Somebody else changes the switch."""
    change = device.accept(
        [CrossConnect(*pair) for pair in remove], [CrossConnect(*pair) for pair in add], epoch=0
    )
    device.start(change)
    device.finish(change)


def observe(opus: Controller) -> Any:
    answer = opus.http.post(f"{PREFIX}/switches/ocs0/observe")
    assert answer.status_code == 200, answer.text
    return answer.json()


def without_since(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name != "since"} for item in items]


def why_failed(opus: Controller) -> str | None:
    """What the API says of the left port of h1."""
    return next(port["failed"] for port in opus.get("/ports")["ports"] if port["port"] == "h1:0:0")


def hold_ring(opus: Controller) -> None:
    opus.arrive(0, "dp", 0)
    opus.arrive(1, "dp", 0, wait_s=30)


def test_foreign_circuits_are_shown_with_their_kind_and_left_alone(
    opus: Controller, devices: list[EmulatedSwitch]
) -> None:
    somebody(devices[-1], add=[(4, 5), (0, 6), (7, 7)])
    shown = observe(opus)
    assert without_since(shown["foreign"]) == [
        {"ingress": 0, "egress": 6, "kind": "mixed"},
        {"ingress": 4, "egress": 5, "kind": "own-ports"},
        {"ingress": 7, "egress": 7, "kind": "outside"},
    ]
    assert shown == opus.get("/switches/ocs0")
    rail = opus.get("/rails/rail0")
    assert (rail["drift"], rail["reason"]) == ("auto", None)
    assert without_since(rail["foreign"]) == without_since(shown["foreign"])[:2]
    (told,) = opus.get("/events", kind="switch.drifted")["events"]
    assert told["data"]["appeared"] == [[0, 6], [4, 5], [7, 7]]
    assert devices[-1].counters.applies == 1, "nobody needed their ports"


def test_a_circuit_lost_under_a_lock_is_an_alarm_on_its_job(
    opus: Controller, devices: list[EmulatedSwitch]
) -> None:
    hold_ring(opus)
    somebody(devices[-1], remove=RING, add=[(1, 6)])
    observe(opus)
    (alarm,) = without_since(opus.get("/jobs/j")["alarms"])
    assert alarm == {"circuit": "h0:0:1--h1:0:0", "rail": "rail0", "switch": "ocs0", "ranks": [0, 1]}
    assert [len(each["alarms"]) for each in opus.get("/jobs")["jobs"]] == [1]
    assert opus.get("/jobs/j")["state"] == "running"
    (lost,) = opus.get("/events", kind="circuit.lost", job="j")["events"]
    assert lost["data"]["ranks"] == [0, 1]
    somebody(devices[-1], remove=[(1, 6)])
    observe(opus)
    wait_until(lambda: opus.get("/jobs/j")["alarms"] == [], "the circuit is made again")
    assert opus.get("/events", kind="circuit.restored")["events"]


def test_a_rank_that_waits_for_news_is_told_of_an_alarm_at_once(
    opus: Controller, devices: list[EmulatedSwitch]
) -> None:
    hold_ring(opus)
    poll = opus.later(opus.say, 0, last_grant=1, wait_s=60)
    wait_until(lambda: opus.http.get("/readyz").status_code == 200, "the poll stands")
    somebody(devices[-1], remove=RING, add=[(1, 6)])
    observe(opus)
    (alarm,) = poll.result(PATIENCE_S)["alarms"] or opus.say(0, last_grant=1)["alarms"]
    assert without_since([alarm]) == [{"circuit": "h0:0:1--h1:0:0", "switch": "ocs0"}]


def test_why_a_rail_is_held_up_is_the_same_in_every_place(
    tmp_path: Path, devices: list[EmulatedSwitch]
) -> None:
    declared = wider(drift="observe")
    declared["switches"][0]["options"]["initial"] = [[1, 4], [4, 1]]
    with controller(tmp_path, declared=declared, install_s=0.05) as opus:
        opus.declare()
        opus.check_in("dp", "world")
        opus.arrive(0, "dp", 0)
        opus.arrive(1, "dp", 0)
        wait_until(lambda: opus.get("/events", kind="intent.stalled")["events"], "it is stalled")
        said = (
            "1->4 of ocs0 is in the way, somebody else made it, and the rail's drift policy is observe: "
            "whoever made it has to remove it, or the policy has to become auto"
        )
        (intent,) = opus.get("/intents")["intents"]
        reason = {"code": "foreign", "detail": said, "data": {"switch": "ocs0", "position": 1}}
        assert (intent["state"], intent["reason"]) == ("stalled", reason)
        for place in ("/rails/rail0", "/switches/ocs0"):
            shown = opus.get(place)
            assert (shown["reason"], shown["stalled"]) == (reason, [intent["id"]])
        (event,) = opus.get("/events", kind="intent.stalled")["events"]
        assert (event["data"]["reason"], event["data"]["detail"]) == ("foreign", said)
        answer = opus.arrive(0, "dp", 0)
        assert answer["arrivals"][0]["reason"] == reason
        assert devices[-1].counters.applies == 0
        somebody(devices[-1], remove=[(1, 4), (4, 1)])
        observe(opus)
        wait_until(lambda: opus.get("/locks")["locks"], "it is granted")
        assert opus.get("/rails/rail0")["reason"] is None


def test_somebody_who_keeps_undoing_is_named(opus: Controller, devices: list[EmulatedSwitch]) -> None:
    hold_ring(opus)
    for _ in range(2):
        wait_until(lambda: set(RING) <= set(devices[-1].table), "the ring is up")
        somebody(devices[-1], remove=RING)
        shown = observe(opus)
    assert [(pair["ingress"], pair["egress"], pair["times"]) for pair in shown["contended"]] == [
        (1, 2, 2),
        (2, 1, 2),
    ]
    assert len(opus.get("/events", kind="switch.contended")["events"]) == 2


def test_a_switch_that_is_not_there_cannot_be_read(opus: Controller) -> None:
    for answer in (
        opus.http.post(f"{PREFIX}/switches/ocs9/observe"),
        opus.http.get(f"{PREFIX}/switches/ocs9"),
    ):
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:opus-sdn:problem:not-found")
        assert answer.json()["detail"] == "there is no switch 'ocs9'; known switches: ocs0"


def test_after_a_restart_it_is_known_whose_circuits_are_whose_and_nothing_is_done_to_the_device(
    tmp_path: Path, devices: list[EmulatedSwitch]
) -> None:
    declared = wider()
    declared["switches"][0]["options"]["initial"] = [*map(list, RING), [0, 3], [6, 7]]
    for start in (1, 2):
        with controller(tmp_path, declared=declared if start == 1 else None, durable=True) as opus:
            opus.http.post(f"{PREFIX}/switches/ocs0/observe")  # answered when it is adopted
            told = opus.get("/events", kind="switch.adopted")["events"][-1]["data"]
            # The ring was somebody else's until a rank used it.
            assert told["foreign_count"] == (4 if start == 1 else 2)
            assert (told.get("appeared"), told.get("vanished")) == ((None, None) if start == 1 else ([], []))
            assert opus.put("/jobs/j", job(nonce=str(start))).status_code in (200, 201)
            opus.check_in("dp", "world", incarnation=start)
            opus.arrive(0, "dp", 0, incarnation=start)
            opus.arrive(1, "dp", 0, incarnation=start, wait_s=30)
            assert devices[-1].counters.applies == 0
            opus.http.delete(f"{PREFIX}/jobs/j", params={"incarnation": start})


def test_a_port_that_fails_is_the_reason_of_what_waits_in_every_place(
    opus: Controller, devices: list[EmulatedSwitch]
) -> None:
    port = Terminal("ocs0", Side.EGRESS, 2)
    devices[-1].fail([port])
    wait_until(lambda: observe(opus) and why_failed(opus), "the ports were read")
    before = devices[-1].counters.applies
    opus.arrive(0, "dp", 0)
    opus.arrive(1, "dp", 0)
    wait_until(lambda: opus.get("/intents")["intents"][0]["reason"]["code"] == "port-failed", "it is told")
    (waits,) = opus.get("/intents")["intents"]
    assert waits["reason"]["detail"] == "port h1:0:0: egress 2 of ocs0 has failed"
    (arrival,) = opus.arrive(0, "dp", 0)["arrivals"]
    assert arrival["reason"] == waits["reason"]
    assert opus.get("/events", kind="port.failed")["events"][0]["data"]["count"] == 1
    assert devices[-1].counters.applies == before
    devices[-1].fail([port], failed=False)
    wait_until(lambda: observe(opus) and not why_failed(opus), "it was mended")
    wait_until(lambda: opus.get("/locks")["locks"], "it goes on")
