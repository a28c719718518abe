"""The traffic witness on the emulated switch: it sees the light of the device and what ranks report."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.drivers.polatis_emulator import PolatisEmulator
from opus_sdn.fabric_file import parse_fabric
from opus_sdn.intent.fabric import Fabric
from tests.emulator.clients import asynchronous, switch, until


def fabric(layout: str = "sided", circuit: str = "duplex", size: int = 32) -> Fabric:
    """Two hosts with two rails on one switch: positions 0 to 3, and from 24 on."""
    return parse_fabric(
        f"""
version: 1
hosts: [h0, h1]
gpus_per_host: 2
ports_per_gpu: 2
circuit: {circuit}
switches:
- {{name: ocs, driver: emulated, size: {size}, layout: {layout}}}
rails:
- {{name: rail0, slots: [0], switch: ocs, first_port: 0}}
- {{name: rail1, slots: [1], switch: ocs, first_port: 24}}
""",
        "test",
    ).build()


async def tell(address: str, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    """What the witness answers to these lines, over one connection that then ends."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answers = []
    for request in requests:
        writer.write(json.dumps(request).encode() + b"\n")
        answers.append(json.loads(await reader.readline()))
    writer.close()
    return answers


def begin(circuit: str, op: str = "a") -> dict[str, Any]:
    return {"op": "begin", "id": op, "circuits": [circuit], "rank": 0}


REPORT = {"op": "report"}
# h0's right port is on position 1, h1's left one on position 2; on the second rail 25 and 26.
FIRST, FIRST_PAIRS = "h0:0:1--h1:0:0", ((2, 35), (3, 34))
SECOND, SECOND_PAIRS = "h0:1:1--h1:1:0", ((26, 59), (27, 58))


async def kinds_seen(emulator: PolatisEmulator) -> list[str]:
    (report,) = await tell(emulator.witness_address, REPORT)
    return [violation["kind"] for violation in report["violations"]]


@asynchronous
async def test_traffic_over_both_directions_of_a_circuit_on_either_rail_is_no_violation() -> None:
    async with switch("32x32", initial=FIRST_PAIRS + SECOND_PAIRS) as (emulator, restconf, _):
        address = await emulator.watch_traffic(fabric())
        answers = await tell(address, begin(FIRST), begin(SECOND, "b"), {"op": "end", "id": "a"}, REPORT)
        assert answers[:3] == [{"ok": True}] * 3
        assert answers[3]["violations"] == []
        assert answers[3]["operations"] == 2
        await restconf.patch((2, 36))  # nobody is there any more
        assert await kinds_seen(emulator) == []


@asynchronous
async def test_traffic_over_half_a_circuit_or_a_shut_port_is_one() -> None:
    async with switch("32x32", initial=(*FIRST_PAIRS[:1], *SECOND_PAIRS)) as (emulator, _, tl1):
        address = await emulator.watch_traffic(fabric())
        await tell(address, begin(FIRST))
        assert await kinds_seen(emulator) == ["traffic-over-missing-circuit"]
        await tl1.lines("OPR-PORT-SHUTTER::26:1:;")
        await tell(address, begin(SECOND))
        assert await kinds_seen(emulator) == ["traffic-over-missing-circuit"] * 2


@pytest.mark.parametrize("act", ["move", "delete", "shut", "fail", "power", "foreign"])
@asynchronous
async def test_whatever_darkens_a_circuit_under_traffic_is_one(act: str) -> None:
    async with switch("32x32", initial=FIRST_PAIRS + SECOND_PAIRS) as (emulator, restconf, tl1):
        address = await emulator.watch_traffic(fabric())
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(json.dumps(begin(FIRST)).encode() + b"\n")
        await reader.readline()
        await restconf.patch((26, 58), (27, 59))  # the other rail may do what it likes
        assert await kinds_seen(emulator) == []
        match act:
            case "move":
                await restconf.patch((2, 34), (3, 35))
            case "delete":
                await tl1.lines("DLT-PATCH::2:1:;")
            case "shut":
                await tl1.lines("OPR-PORT-SHUTTER::35:1:;")
            case "fail":
                await emulator.set_faults(failed_ports=(34,))
            case "power":
                await emulator.reboot("saved", ms=0.0)
            case "foreign":
                await emulator.foreign(connect=[(9, 35)])
        assert set(await kinds_seen(emulator)) == {"change-under-traffic"}
        writer.close()


@asynchronous
async def test_a_bidirectional_circuit_is_one_connection_without_sides() -> None:
    async with switch("32xCC", initial=((2, 3),)) as (emulator, _, _tl1):
        address = await emulator.watch_traffic(fabric("any_to_any", "bidirectional"), "ocs")
        await tell(address, begin(FIRST))
        assert await kinds_seen(emulator) == []
        await tell(address, begin(SECOND))
        assert await kinds_seen(emulator) == ["traffic-over-missing-circuit"]


@asynchronous
async def test_a_fabric_that_does_not_fit_the_device_is_refused() -> None:
    async with switch("32x32") as (emulator, _, _tl1):
        with pytest.raises(ValueError, match="right would be sided"):
            await emulator.watch_traffic(fabric("any_to_any", "bidirectional"))
        with pytest.raises(ValueError, match="right would be one of the fabric's: ocs"):
            await emulator.watch_traffic(fabric(), "other")


def links(folder: Path) -> dict[str, bool]:
    """What the files say of the links, by host and NIC port."""
    return {
        f"{file.parts[-5]}:{file.parts[-2]}": file.read_text() == "1\n" for file in folder.rglob("carrier")
    }


@asynchronous
async def test_a_link_comes_up_some_time_after_the_light_and_goes_with_it(tmp_path: Path) -> None:
    async with switch("32x32", link_up_ms=40.0, initial=(FIRST_PAIRS[0],)) as (emulator, _, tl1):
        emulator.plug_nics(fabric(), tmp_path)
        assert len(links(tmp_path)) == 8
        assert not any(links(tmp_path).values())
        # Light into h1's left port only: a link needs what comes in, whatever goes out.
        await until(lambda: [name for name, up in links(tmp_path).items() if up] == ["h1:nic0p0"])
        since = emulator.device.clock()
        await emulator.foreign(connect=[FIRST_PAIRS[1]])
        assert not links(tmp_path)["h0:nic0p1"]
        await until(lambda: links(tmp_path)["h0:nic0p1"])
        assert emulator.device.clock() - since > 0.035
        await tl1.lines("OPR-PORT-SHUTTER::35:1:;")
        assert not links(tmp_path)["h1:nic0p0"]
        await emulator.set_faults(extra_loss_db={3: 40.0})
        assert not links(tmp_path)["h0:nic0p1"]
