"""A fabric file is read exactly, or refused with the line, what is wrong there and what would be right."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path

import pytest
from pydantic import ValidationError

from opus_sdn.fabric_file import (
    FabricFileError,
    FabricSpec,
    generate_fabric,
    load_fabric,
    parse_fabric,
)
from opus_sdn.fabric_file.hosts import HostRangeError, expand_hosts
from opus_sdn.intent.fabric import CircuitKind, CrossConnect, DriftPolicy, Port

BASE = """\
version: 1
hosts:
  - host[0-3]
gpus_per_host: 2
ports_per_gpu: 2
circuit: duplex
switches:
  - name: ocs0
    driver: emulated
    size: 16
    layout: sided
    options: {delay_ms: 50}
rails:
  - name: rail0
    slots: [0]
    switch: ocs0
    first_port: 0
  - name: rail1
    slots: [1]
    switch: ocs0
    first_port: 8
"""


def edited(*pairs: str) -> str:
    """BASE with each old text replaced by the new one where it first occurs."""
    text = BASE
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def faults_of(text: str) -> list[tuple[int, str, str]]:
    with pytest.raises(FabricFileError) as refused:
        parse_fabric(text, "fabric.yaml")
    for line, fault in zip(str(refused.value).splitlines(), refused.value.faults, strict=True):
        assert line.startswith(f"fabric.yaml:{fault.line}: ")
    return [(fault.line, fault.where, fault.message) for fault in refused.value.faults]


# --- what is read


@pytest.mark.parametrize("hosts", [1, 2, 4, 13, 512])
@pytest.mark.parametrize(("gpus", "rails"), [(1, 1), (2, 1), (2, 2), (8, 8), (8, 2)])
@pytest.mark.parametrize("ports", [1, 2, 4])
@pytest.mark.parametrize("switches", ["per-rail", "shared"])
def test_a_generated_fabric_places_every_port_where_the_rule_says(
    hosts: int, gpus: int, rails: int, ports: int, switches: str
) -> None:
    text = generate_fabric(
        hosts=hosts, gpus_per_host=gpus, ports_per_gpu=ports, rails=rails, switches=switches, circuit="duplex"
    )
    fabric = parse_fabric(text, "generated").build()

    assert fabric.hosts == tuple(f"host{number}" for number in range(hosts))
    assert len(fabric.attachments) == hosts * gpus * ports
    assert len(fabric.switches) == (1 if switches == "shared" else rails)
    per_rail = gpus // rails
    for host, slot, index in product(range(hosts), range(gpus), range(ports)):
        rail, in_rail = divmod(slot, per_rail)
        found = fabric.attachment(Port(f"host{host}", slot, index))
        assert found.rail == f"rail{rail}"
        assert found.switch == ("ocs0" if switches == "shared" else f"ocs{rail}")
        first = rail * hosts * per_rail * ports if switches == "shared" else 0
        assert found.position == first + (host * per_rail + in_rail) * ports + index
    for switch in fabric.switches:
        used = sorted(a.position for a in fabric.attachments if a.switch == switch.name)
        assert used == list(range(len(used)))  # no position twice, none left out
        assert switch.size == max(2, len(used))


@pytest.mark.parametrize("kind", list(CircuitKind))
def test_each_kind_of_circuit_is_generated_with_the_switch_it_needs(kind: CircuitKind) -> None:
    fabric = parse_fabric(generate_fabric(circuit=kind), "generated").build()
    assert fabric.circuit_kind is kind
    assert {switch.sided for switch in fabric.switches} == {kind is not CircuitKind.BIDIRECTIONAL}


def test_the_same_arguments_generate_the_same_text() -> None:
    assert generate_fabric(hosts=7, delay_ms=0.5) == generate_fabric(hosts=7, delay_ms=0.5)


def test_a_generated_fabric_of_4096_gpus_is_short_enough_to_read() -> None:
    assert len(generate_fabric(hosts=512, gpus_per_host=8, ports_per_gpu=2).splitlines()) < 80


def test_emulated_switches_get_the_delays_they_were_generated_with() -> None:
    fabric = parse_fabric(generate_fabric(delay_ms=12.5, control_ms=3), "generated").build()
    assert [dict(switch.options) for switch in fabric.switches] == [{"delay_ms": 12.5, "control_ms": 3}] * 2


def test_a_generated_polatis_is_to_be_told_where_it_is_and_never_its_password() -> None:
    fabric = parse_fabric(generate_fabric(driver="polatis"), "generated").build()
    assert dict(fabric.switch("ocs1").options) == {
        "host": "ocs1",
        "user": "admin",
        "password_file": "ocs1.password",
    }


@pytest.mark.parametrize(
    ("argument", "value", "says"),
    [
        ("hosts", 0, "hosts is 0"),
        ("gpus_per_host", 65, "gpus-per-host is 65"),
        ("ports_per_gpu", 3, "ports-per-gpu is 3"),
        ("rails", 3, "rails is 3"),
        ("switches", "each", "switches is 'each'; use per-rail or shared"),
        ("driver", "palantir", "driver is 'palantir'; use emulated or polatis"),
        ("circuit", "simplex", "circuit is 'simplex'; use duplex or bidirectional or directed"),
        ("delay_ms", -1, "delay-ms is -1"),
        ("control_ms", float("nan"), "control-ms is nan"),
        ("size", 4, "give the switch a size of 8"),
        ("host_prefix", "a b", "no host name"),
    ],
)
def test_generate_names_the_argument_that_is_wrong(argument: str, value: object, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        generate_fabric(**{argument: value})  # type: ignore[arg-type]  # one argument of any kind


def test_slots_that_rails_cannot_share_out_evenly_are_refused_by_generate() -> None:
    with pytest.raises(ValueError, match="rails is 3, which does not divide gpus-per-host 4"):
        generate_fabric(gpus_per_host=4, rails=3)


def test_two_rails_share_one_switch() -> None:
    fabric = parse_fabric(BASE, "fabric.yaml").build()
    assert fabric.attachment(Port("host3", 0, 1)).position == 7
    assert fabric.attachment(Port("host0", 1, 0)).position == 8
    circuit = fabric.circuit(Port("host0", 1, 1), Port("host1", 1, 0))
    assert circuit.switch == "ocs0"
    assert set(circuit.cross_connects) == {CrossConnect(9, 10), CrossConnect(10, 9)}


def test_one_host_with_two_gpus_on_one_rail_is_a_fabric() -> None:
    fabric = parse_fabric(generate_fabric(hosts=1, gpus_per_host=2, rails=1), "generated").build()
    assert fabric.hosts == ("host0",)
    assert fabric.rails[0].slots == (0, 1)
    assert fabric.rail_of("host0", 0) == fabric.rail_of("host0", 1)


def test_a_rail_may_say_that_its_grants_wait_for_the_links_of_the_nics() -> None:
    text = edited("    first_port: 8", "    first_port: 8\n    carrier: required")
    fabric = parse_fabric(text, "fabric.yaml").build()
    assert [fabric.awaits_carrier(rail.name) for rail in fabric.rails] == [False, True]


def test_a_rail_may_say_that_drift_is_only_to_be_reported() -> None:
    text = edited("    first_port: 8", "    first_port: 8\n    drift: observe")
    fabric = parse_fabric(text, "fabric.yaml").build()
    assert [rail.drift for rail in fabric.rails] == [DriftPolicy.AUTO, DriftPolicy.OBSERVE]
    assert fabric.observed_only("ocs0") == frozenset(range(8, 16))


def test_single_ports_may_be_placed_apart_from_the_rule() -> None:
    text = edited(
        "size: 16", "size: 32", "first_port: 8", 'first_port: 8\n    ports: {host2:1:1: 31, "host0:1:0": 30}'
    )
    fabric = parse_fabric(text, "fabric.yaml").build()
    positions = {str(a.port): a.position for a in fabric.attachments if a.rail == "rail1"}
    assert positions == {
        "host0:1:0": 30,
        "host0:1:1": 9,
        "host1:1:0": 10,
        "host1:1:1": 11,
        "host2:1:0": 12,
        "host2:1:1": 31,
        "host3:1:0": 14,
        "host3:1:1": 15,
    }


def test_all_ports_may_be_named_one_by_one() -> None:
    names = [f"host{host}:1:{port}" for host, port in product(range(4), range(2))]
    listed = "".join(f"\n      {name}: {15 - number}" for number, name in enumerate(names))
    fabric = parse_fabric(edited("first_port: 8", f"ports:{listed}"), "fabric.yaml").build()
    assert [fabric.attachment(Port.parse(name)).position for name in names] == list(range(15, 7, -1))


def test_an_option_may_be_a_list_and_stays_unchangeable() -> None:
    text = edited("{delay_ms: 50}", "{initial: [[0, 3], [3, 0]], label: no}")
    switch = parse_fabric(text, "fabric.yaml").build().switches[0]
    assert dict(switch.options) == {"initial": ((0, 3), (3, 0)), "label": "no"}
    hash(switch)


@pytest.mark.parametrize("name", ["no", "on", "yes", "007", "0x10", "1_000", "2026-11-30", "null0"])
def test_a_host_may_be_named_like_what_yaml_readers_take_for_something_else(name: str) -> None:
    spec = parse_fabric(edited("host[0-3]", name), "fabric.yaml")
    assert spec.host_names() == (name,)


@pytest.mark.parametrize(
    ("entry", "hosts"),
    [
        ("login", ("login",)),
        ("gpu[8-11]", ("gpu8", "gpu9", "gpu10", "gpu11")),
        ("gpu[08-11]", ("gpu08", "gpu09", "gpu10", "gpu11")),
        ("gpu[000-002].rack1", ("gpu000.rack1", "gpu001.rack1", "gpu002.rack1")),
        ("n[1-2,7,9-10]", ("n1", "n2", "n7", "n9", "n10")),
        ("n[0-0]", ("n0",)),
    ],
)
def test_host_ranges_read_as_cluster_tools_write_them(entry: str, hosts: tuple[str, ...]) -> None:
    assert expand_hosts(entry) == hosts


@pytest.mark.parametrize(
    "entry",
    [
        "n[3-1]",
        "n[1-]",
        "n[]",
        "n[1,,2]",
        "n[1][2]",
        "n[1",
        "n1]",
        "n[a-c]",
        "n[-1]",
        "",
        "a b",
        "-n",
        "n-",
        "a" * 254,
    ],
)
def test_what_is_no_host_range_is_refused(entry: str) -> None:
    with pytest.raises(HostRangeError, match="is "):
        expand_hosts(entry)


def test_a_host_range_cannot_be_used_to_fill_the_memory() -> None:
    with pytest.raises(HostRangeError, match="more than 65536 hosts"):
        expand_hosts("n[0-999999999]")
    assert faults_of(edited("host[0-3]", "a[1-40000]\n  - b[1-40000]"))[0][:2] == (4, "hosts[1]")


def test_file_and_request_body_are_the_same_model() -> None:
    spec = parse_fabric(BASE, "fabric.yaml")
    assert FabricSpec.model_validate_json(spec.model_dump_json()) == spec
    assert FabricSpec.model_validate_json(spec.model_dump_json()).build() == spec.build()


def test_a_request_body_is_refused_with_every_fault_and_its_path() -> None:
    body = json.loads(parse_fabric(BASE, "fabric.yaml").model_dump_json())
    body["rails"][0]["switch"] = "ocs7"
    body["rails"][1]["first_port"] = 9
    with pytest.raises(ValidationError) as refused:
        FabricSpec.model_validate_json(json.dumps(body))
    errors = {error["loc"]: error["msg"] for error in refused.value.errors()}
    assert set(errors) == {("rails", 0, "switch"), ("rails", 1, "first_port")}
    assert "known: ocs0" in errors["rails", 0, "switch"]


def test_load_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "fabric.yaml"
    path.write_text(BASE, encoding="utf-8")
    assert load_fabric(path) == parse_fabric(BASE, "fabric.yaml").build()


# --- what is refused: the line, the path and the remedy

WRONG = {
    "hosts is a boolean": (edited("hosts:\n  - host[0-3]", "hosts: true"), 2, "hosts", "is true"),
    "a host is a number": (edited("host[0-3]", "7"), 3, "hosts[0]", "is 7"),
    "no hosts": (edited("\n  - host[0-3]", " []"), 2, "hosts", "list of host names"),
    "a host twice": (
        edited("host[0-3]", "host[0-3]\n  - host2"),
        4,
        "hosts[1]",
        "names 'host2' again, as hosts[0]",
    ),
    "a host twice in one range": (edited("host[0-3]", "host[0-3,2]"), 3, "hosts[0]", "name each host once"),
    "a number in quotes": (edited("gpus_per_host: 2", 'gpus_per_host: "4"'), 4, "gpus_per_host", 'is "4"'),
    "a boolean for a number": (
        edited("gpus_per_host: 2", "gpus_per_host: true"),
        4,
        "gpus_per_host",
        "is true",
    ),
    "a fraction for a count": (
        edited("gpus_per_host: 2", "gpus_per_host: 2.0"),
        4,
        "gpus_per_host",
        "whole number",
    ),
    "no GPUs": (edited("gpus_per_host: 2", "gpus_per_host: 0"), 4, "gpus_per_host", "from 1 to 64"),
    "three ports": (edited("ports_per_gpu: 2", "ports_per_gpu: 3"), 5, "ports_per_gpu", "1, 2 or 4"),
    "true ports": (edited("ports_per_gpu: 2", "ports_per_gpu: true"), 5, "ports_per_gpu", "1, 2 or 4"),
    "a version of true": (edited("version: 1", "version: true"), 1, "version", "is true"),
    "another version": (edited("version: 1", "version: 2"), 1, "version", "version of this format, 1"),
    "unknown circuit": (edited("duplex", "simplex"), 6, "circuit", "duplex, bidirectional or directed"),
    "duplex on an any-to-any switch": (
        edited("layout: sided", "layout: any_to_any"),
        11,
        "switches[0].layout",
        "write layout: sided, or circuit: bidirectional",
    ),
    "bidirectional on a sided switch": (
        edited("duplex", "bidirectional"),
        11,
        "switches[0].layout",
        "write layout: any_to_any, or circuit: duplex or directed",
    ),
    "directed, undeclared by the switch": (
        edited("duplex", "directed\nnics_directed: true"),
        9,
        "switches[0].directed",
        "write directed: true if it does, else circuit: duplex",
    ),
    "directed, undeclared by the NICs": (
        edited("duplex", "directed", "layout: sided", "layout: sided\n    directed: true"),
        1,
        "nics_directed",
        "write nics_directed: true if they do, else circuit: duplex",
    ),
    "no switches": (
        BASE.replace(BASE[BASE.index("switches:") : BASE.index("rails:")], "switches: []\n"),
        7,
        "switches",
        "list of switches",
    ),
    "unknown driver": (edited("emulated", "palantir"), 9, "switches[0].driver", "is 'palantir'"),
    "a switch too small to be one": (edited("size: 16", "size: 1"), 10, "switches[0].size", "from 2 to"),
    "unknown layout": (edited("sided", "round"), 11, "switches[0].layout", "sided (ingress"),
    "a misspelt key": (edited("layout:", "layuot:"), 11, "switches[0].layuot", "did you mean layout?"),
    "an unknown key": (
        edited("circuit:", "colour: red\ncircuit:"),
        6,
        "colour",
        "known here: version, hosts",
    ),
    "a mapping as option": (
        edited("50", "{a: 1}"),
        12,
        "switches[0].options.delay_ms",
        "has a mapping in it",
    ),
    "an endless option": (edited("50", "1e999"), 12, "switches[0].options.delay_ms", "is inf"),
    "a switch name twice": (
        edited("rails:", "  - {name: ocs0, driver: emulated, size: 2, layout: sided}\nrails:"),
        13,
        "switches[1].name",
        "is 'ocs0', as in switches[0]",
    ),
    "a name that is no name": (edited("rail1", '"rail 1"'), 18, "rails[1].name", 'is "rail 1"'),
    "a rail name twice": (edited("rail1", "rail0"), 18, "rails[1].name", "is 'rail0', as in rails[0]"),
    "slots is no list": (edited("[1]", "1"), 19, "rails[1].slots", "list of GPU slots"),
    "a slot beyond the GPUs": (edited("[1]", "[1, 2]"), 19, "rails[1].slots[1]", "slots end at 1"),
    "a slot on two rails": (edited("[1]", "[0, 1]"), 19, "rails[1].slots[0]", "on rail 'rail0' already"),
    "a slot twice on a rail": (edited("[1]", "[1, 1]"), 19, "rails[1].slots[1]", "on rail 'rail1' already"),
    "a slot on no rail": (
        edited("gpus_per_host: 2", "gpus_per_host: 3"),
        13,
        "rails",
        "leave out GPU slots 2",
    ),
    "an unknown switch": (edited("switch: ocs0", "switch: ocs9"), 16, "rails[0].switch", "known: ocs0"),
    "rails overlap": (
        edited("first_port: 8", "first_port: 7", "size: 16", "size: 20"),
        21,
        "rails[1].first_port",
        "where host3:0:1 of rail 'rail0' is; two ports never share a position: write first_port: 8",
    ),
    "rails overlap and the switch is full": (
        edited("first_port: 8", "first_port: 0", "size: 16", "size: 12"),
        21,
        "rails[1].first_port",
        "write first_port: 8 and give the switch a size of 16, or use another switch",
    ),
    "a rail beyond its switch": (
        edited("size: 16", "size: 15"),
        21,
        "rails[1].first_port",
        "reach position 15, but switch 'ocs0' ends at 14; give the switch a size of 16",
    ),
    "no positions at all": (edited("    first_port: 8\n", ""), 18, "rails[1]", "add first_port: 8"),
    "a negative position": (edited("first_port: 8", "first_port: -8"), 21, "rails[1].first_port", "is -8"),
    "one port of the map overlaps": (
        edited("first_port: 8", "first_port: 8\n    ports:\n      host0:1:0: 3"),
        23,
        "rails[1].ports.host0:1:0",
        "where host1:0:1 of rail 'rail0' is",
    ),
    "one port of the map is beyond": (
        edited("first_port: 8", "first_port: 8\n    ports:\n      host0:1:0: 16"),
        23,
        "rails[1].ports.host0:1:0",
        "positions of switch 'ocs0' are 0 to 15",
    ),
    "one port of the map does not exist": (
        edited("first_port: 8", "first_port: 8\n    ports:\n      host0:1:2: 16"),
        23,
        "rails[1].ports.host0:1:2",
        "slot 1 and port 0 or 1",
    ),
    "the map leaves ports out": (
        edited("first_port: 8", "ports:\n      host0:1:0: 9"),
        21,
        "rails[1].ports",
        "leaves out host0:1:1, host1:1:0",
    ),
    "a map of text": (
        edited("first_port: 8", "first_port: 8\n    ports:\n      host0:1:0: left"),
        23,
        "rails[1].ports.host0:1:0",
        'is "left"',
    ),
    "more ports than a fabric has": (
        edited("host[0-3]", "host[0-65535]", "ports_per_gpu: 2", "ports_per_gpu: 4"),
        2,
        "hosts",
        "a fabric has at most 262144",
    ),
    "a key twice": (edited("circuit: duplex", "hosts: [a]\ncircuit: duplex"), 6, "hosts", "first in line 2"),
    "an alias without an anchor": (
        edited("first_port: 8", "first_port: *x"),
        21,
        "rails[1].first_port",
        "YAML alias *x",
    ),
    "an alias": (
        edited("first_port: 8", "first_port: &x 8\n    ports: *x"),
        22,
        "rails[1].ports",
        "YAML alias *x",
    ),
    "a tag": (edited("first_port: 8", "first_port: !!int 8"), 21, "rails[1].first_port", "YAML tag"),
    "a list as key": (edited("version: 1", "? [a]\n: 1"), 1, "", "a list or a mapping as a key"),
    "not YAML": (edited("[0]", "[0"), 16, "", "not YAML"),
    "a tab": (edited("  - host[0-3]", "\t- host[0-3]"), 3, "", "not YAML"),
    "two documents": (BASE + "---\na: 1\n", 22, "", "another document"),
    "a control character": (edited("duplex", "dup\x07lex"), 6, "", "character U+0007"),
    "nested without end": ("hosts: " + "[" * 5000, 0, "", "nested deeper than"),
    "nested too deep": ("hosts: " + "[" * 40 + "]" * 40, 1, "hosts[0]", "nested deeper than"),
    "empty": ("# nothing\n", 1, "", "opus fabric generate"),
    "a list": ("- a\n", 1, "", "write a mapping with hosts, gpus_per_host"),
    "a rail that is none": (
        edited("rails:\n", "rails:\n  - 5\n"),
        14,
        "rails[0]",
        "write a mapping with name, slots",
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_file_is_refused_with_its_line_and_the_remedy(name: str) -> None:
    text, line, where, says = WRONG[name]
    with pytest.raises(FabricFileError) as refused:
        parse_fabric(text, "fabric.yaml")
    found = [(fault.line, fault.where) for fault in refused.value.faults if says in fault.message]
    assert found == [(line, where)], str(refused.value)
    prefix = f"fabric.yaml:{line}: " if line else "fabric.yaml: "
    assert any(text.startswith(prefix) and says in text for text in str(refused.value).splitlines())


@pytest.mark.parametrize(
    ("field", "line"),
    [("hosts", 1), ("gpus_per_host", 1), ("ports_per_gpu", 1), ("circuit", 1), ("rails", 1)],
)
def test_a_missing_field_is_named_with_what_it_is(field: str, line: int) -> None:
    lines = BASE.splitlines(keepends=True)
    start = next(number for number, text in enumerate(lines) if text.startswith(f"{field}:"))
    end = next((n for n in range(start + 1, len(lines)) if not lines[n].startswith(" ")), len(lines))
    faults = faults_of("".join(lines[:start] + lines[end:]))
    assert [(at, where) for at, where, _ in faults] == [(line, field)]
    assert f"add {field}: the " in faults[0][2]


def test_every_fault_of_a_file_is_reported_at_once_in_the_order_of_its_lines() -> None:
    text = edited(
        "host[0-3]",
        "host[3-0]",
        "gpus_per_host: 2",
        "gpus_per_host: yes",
        "circuit: duplex",
        "circuit: duplex\ncircuit: duplex",
        "driver: emulated",
        "driver: none",
        "    first_port: 8",
        "    first_prot: 8",
    )
    assert [(line, where) for line, where, _ in faults_of(text)] == [
        (3, "hosts[0]"),
        (4, "gpus_per_host"),
        (7, "circuit"),
        (10, "switches[0].driver"),
        (22, "rails[1].first_prot"),
    ]


def test_thousands_of_faults_are_counted_and_not_all_printed() -> None:
    ports = "".join(f"\n      nowhere:{number}:0: 1" for number in range(2000))
    with pytest.raises(FabricFileError) as refused:
        parse_fabric(edited("first_port: 8", f"first_port: 8\n    ports:{ports}"), "fabric.yaml")
    assert len(refused.value.faults) == 2000
    assert len(str(refused.value).splitlines()) == 51
    assert str(refused.value).endswith("and 1950 more faults")


def test_a_driver_that_the_caller_knows_is_accepted() -> None:
    text = edited("driver: emulated", "driver: palantir")
    assert parse_fabric(text, "fabric.yaml", drivers={"palantir"}).switches[0].driver == "palantir"
    assert faults_of(text)


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        (None, 0, "cannot be read: No such file or directory"),
        (b"version: 1\nhosts: [\xff]\n", 2, "is not UTF-8 text"),
        (b"#" * (32 * 1024 * 1024 + 1), 0, "is larger than 33554432 bytes"),
    ],
)
def test_a_file_that_cannot_be_read_says_so(
    tmp_path: Path, content: bytes | None, line: int, says: str
) -> None:
    path = tmp_path / "fabric.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FabricFileError) as refused:
        load_fabric(path)
    assert [(fault.line, says in fault.message) for fault in refused.value.faults] == [(line, True)]
    assert str(path) in str(refused.value)
