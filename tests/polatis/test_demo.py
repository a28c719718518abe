"""Real ranks train through the controller and an emulated Polatis: `make demo-polatis` with fewer steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from opus_sdn.demo.launcher import Zygote
from opus_sdn.demo.polatis import JOBS, PASSWORD_VARIABLE, demonstrate, fabric_of, faults, settled_ids
from opus_sdn.drivers.polatis.numbering import Numbering
from opus_sdn.fabric_file import parse_fabric
from opus_sdn.intent.fabric import CrossConnect


def test_both_rails_of_the_demonstration_sit_on_the_ports_that_they_were_given() -> None:
    fabric = parse_fabric(fabric_of(8008), "demo").build()
    numbering = Numbering.parse("32x32")
    for rail, ingress, egress in (
        ("rail0", range(1, 9), range(33, 41)),
        ("rail1", range(25, 33), range(57, 65)),
    ):
        positions = [a.position for a in fabric.attachments if a.rail == rail]
        wires = [numbering.wire(CrossConnect(position, position)) for position in positions]
        assert wires == list(zip(ingress, egress, strict=True))


@pytest.mark.torch
def test_ranks_learn_the_same_through_a_real_switchs_protocol_and_no_light_is_broken(tmp_path: Path) -> None:
    with Zygote() as zygote:
        reports = demonstrate(zygote, tmp_path / "out", tmp_path / "runs", steps=2)
    assert faults(reports) == []
    for rail in ("rail0", "rail1"):
        assert settled_ids(reports[1], rail) == ["00", "11"]
    assert reports[1].device_operations > 0
    assert reports[1].witness_operations > 0
    # Nothing that the controller wrote has the switch's password in it.
    folder = tmp_path / "out" / JOBS[1]
    password = yaml.safe_load((folder / "emulator.yaml").read_text())["users"][0]["password"]
    for written in (*tmp_path.rglob("*.log"), *tmp_path.rglob("*.jsonl"), *tmp_path.rglob("opus.db*")):
        assert password.encode() not in written.read_bytes(), written
    assert PASSWORD_VARIABLE in (folder / "fabric.yaml").read_text()
