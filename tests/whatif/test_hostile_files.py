"""Archives, schedules and YAML made to exhaust memory, time or doubles are refused before they do."""

from __future__ import annotations

import json
import lzma
import os
import pickle
import tarfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from benchmarks.traces import ALL_GATHER, COLLECTIVE, SYSTEM, Node, Shape, encode, make_step
from opus_sdn.whatif.engine import load_step, make_scenario, replay
from opus_sdn.whatif.errors import CannotFinishError, InputError, Wait
from opus_sdn.whatif.inputs import schedules as schedules_module
from opus_sdn.whatif.inputs.hints import read_hints
from opus_sdn.whatif.inputs.network import read_network
from opus_sdn.whatif.inputs.schedules import parse_schedules, read_schedules
from opus_sdn.whatif.inputs.system import read_system
from opus_sdn.whatif.trace import files, load
from opus_sdn.whatif.trace.load import build_trace, load_trace
from opus_sdn.whatif.trace.model import Group

SHAPE = Shape(dp=2, pp=2, tp=1, layers=1)
GROUPS = tuple(Group(name, tuple(ranks)) for name, ranks in SHAPE.groups().items())
HERE = Path("schedules.txt")
MIB = 1 << 20


@contextmanager
def at_most(mebibytes: int) -> Iterator[None]:
    """What happens inside needs no more memory than that at any time."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < mebibytes * MIB, f"{peak / MIB:.0f} MiB"


def members() -> list[tuple[tarfile.TarInfo, bytes]]:
    found = []
    for rank in range(SHAPE.ranks):
        content = encode(SHAPE.nodes(rank))
        member = tarfile.TarInfo(f"deep/er/t.{rank}.et")
        member.size = len(content)
        found.append((member, content))
    return found


def packed(path: Path, found: list[tuple[tarfile.TarInfo, bytes]], how: str = "w:xz") -> Path:
    with tarfile.open(path, how, format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
        for member, content in found:
            archive.addfile(member, BytesIO(content))
    return path


PACKINGS = [("a.tar", ""), ("a.tar.xz", "xz"), ("a.tar.gz", "gz"), ("a.tar.bz2", "bz2"), ("a.tar", "xz")]


@pytest.mark.parametrize(("name", "how"), PACKINGS)
def test_archives_are_read_however_they_are_packed(tmp_path: Path, name: str, how: str) -> None:
    assert len(load_trace(packed(tmp_path / name, members(), f"w:{how}"), GROUPS).ranks) == SHAPE.ranks


def test_names_and_links_in_an_archive_reach_nothing_outside_it(tmp_path: Path) -> None:
    found = members()
    found[0][0].name = "../../../../etc/t.0.et"
    found[1][0].name = "/etc/t.1.et"
    link = tarfile.TarInfo("t.2.et")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    path = packed(tmp_path / "a.tar.xz", [(link, b""), *found])
    assert len(load_trace(path, GROUPS).ranks) == SHAPE.ranks
    assert list(tmp_path.iterdir()) == [path]


def test_an_archive_whose_headers_unpack_to_a_flood_is_refused(tmp_path: Path) -> None:
    flooded = tarfile.TarInfo("t.0.et")
    flooded.pax_headers = {"comment": "x" * 64 * MIB}
    path = packed(tmp_path / "a.tar.xz", [(flooded, b"")])
    assert path.stat().st_size < MIB
    with at_most(16), pytest.raises(InputError, match=r"the headers of a member may have 65536 bytes"):
        load_trace(path, GROUPS)


def test_an_archive_of_very_many_members_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_MEMBERS", 20_000)
    path = tmp_path / "a.tar.xz"
    empty = tarfile.TarInfo("nothing").tobuf()
    path.write_bytes(lzma.compress(empty * 30_000, preset=0))
    with at_most(16), pytest.raises(InputError, match="may have 20000 members"):
        load_trace(path, GROUPS)


def test_an_archive_that_unpacks_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_ARCHIVE_BYTES", 8 * MIB)
    filler = tarfile.TarInfo("filler")
    filler.size = 16 * MIB
    path = packed(tmp_path / "a.tar.xz", [(filler, bytes(16 * MIB)), *members()])
    with pytest.raises(InputError, match="unpacked"):
        load_trace(path, GROUPS)


def test_a_member_that_says_it_is_larger_than_a_trace_can_be_is_refused(tmp_path: Path) -> None:
    huge = tarfile.TarInfo("t.0.et")
    huge.size = files.MAX_FILE_BYTES + 1
    path = tmp_path / "a.tar"
    path.write_bytes(huge.tobuf() + bytes(10_240))
    with pytest.raises(InputError, match="a rank's trace may have"):
        load_trace(path, GROUPS)


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t.0.et")
    with pytest.raises(InputError, match="a plain file"):
        load_trace(tmp_path, GROUPS)
    (tmp_path / "t.0.et").unlink()
    (tmp_path / "t.0.et").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="a plain file"):
        load_trace(tmp_path, GROUPS)


def test_a_trace_of_very_many_tiny_nodes_is_refused_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MAX_NODES_OF_RANK", 1_000)
    content = b"\x00" + b"\x02\x18\x01" * 1_000_000  # metadata nodes
    with at_most(1), pytest.raises(InputError, match="at most 1000 nodes of a rank"):
        build_trace([(0, "t.0.et", content)], ())


@pytest.mark.parametrize("flood", [b"\n", b"0 0\n", b"0 "], ids=["empty lines", "rows", "one long line"])
def test_schedules_that_unpack_to_a_flood_are_refused(
    flood: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules_module, "MAX_LINES", 1 << 16)
    monkeypatch.setattr(schedules_module, "MAX_LINE_BYTES", 1 << 16)
    path = tmp_path / "schedules.txt.xz"
    with lzma.open(path, "wb", preset=0) as file:
        file.write(b"BW 0\n")
        for _ in range(64):
            file.write(flood * (MIB // len(flood)))
    with at_most(16), pytest.raises(InputError, match=r"at most 65536 lines of 65536 bytes"):
        read_schedules(path)


def test_rows_that_all_differ_are_kept_up_to_a_number_of_bandwidths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules_module, "MAX_CELLS", 100)
    rows = "\n".join(" ".join(str(1 + i) for _ in range(20)) for i in range(20))
    with pytest.raises(InputError, match="100 bandwidths together"):
        parse_schedules(BytesIO(f"BW 0\n{rows}\nEND\n".encode()), HERE)


@pytest.mark.parametrize("gbps", ["1e-320", "1e308", "1e-7"])
def test_bandwidths_that_no_link_has_are_refused(gbps: str) -> None:
    with pytest.raises(InputError, match=r"from 1e-06 to 1e\+09"):
        parse_schedules(BytesIO(f"BW 0\n0 {gbps}\n1 0\nEND\n".encode()), HERE)
    found = parse_schedules(BytesIO(b"BW 0\n0 1\n1 0\nEND\n"), HERE)
    with pytest.raises(InputError, match="bandwidth_gbps"):
        found.with_switched(float(gbps))


def test_a_topology_id_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(InputError, match="ids below 4096"):
        parse_schedules(BytesIO(b"BW " + b"9" * 5000 + b"\n"), HERE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("local-mem-bw", 10**400),
        ("local-mem-bw", 5e-324),
        ("peak-perf", 1e-300),
        ("peak-perf", 1e308),
        ("endpoint-delay", 10**20),
        ("preferred-dataset-splits", 10**9),
        ("roofline-enabled", 2),
    ],
)
def test_machines_that_doubles_cannot_hold_are_refused(field: str, value: float, tmp_path: Path) -> None:
    file = tmp_path / "system.json"
    file.write_text(json.dumps(SYSTEM | {field: value}))
    with pytest.raises(InputError) as refused:
        read_system(file)
    assert refused.value.field == field
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("value", ["1.0e+300", "-1", ".inf", ".nan", "1" + "0" * 400, "0x" + "f" * 9999])
@pytest.mark.parametrize("field", ["latency", "reconfig_time", "npus_count"])
def test_networks_that_doubles_cannot_hold_are_refused(field: str, value: str, tmp_path: Path) -> None:
    file = tmp_path / "network.yml"
    given = {"npus_count": "8", "latency": "1", "reconfig_time": "1"} | {field: value}
    file.write_text("".join(f"{name}: [{number}]\n" for name, number in given.items()))
    with pytest.raises(InputError) as refused:
        read_network(file)
    assert refused.value.field == field
    assert len(str(refused.value)) < 300


def test_lists_of_lists_by_reference_are_not_written_out(tmp_path: Path) -> None:
    """Nine levels of ten references are ten lines of YAML, and a gigabyte when written out."""
    levels = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi"))  # noqa: B905
    file = tmp_path / "file.yml"
    file.write_text(f"a: &a [x]\n{levels}npus_count: *i\n")
    with at_most(40), pytest.raises(InputError, match="npus_count"):
        read_network(file)
    file.write_text(f"a: &a [x]\n{levels}".replace("a: &a", "0: &a"))
    with at_most(40), pytest.raises(InputError, match="rank 0"):
        read_hints(file, 8)


def test_delays_and_latencies_beyond_any_device_are_refused(tmp_path: Path) -> None:
    made = make_step(SHAPE, tmp_path)
    step = load_step(made / "et", made / "workload.json", made / "system.json")
    found = read_schedules(made / "schedules.txt")
    for delay_ns, latency_ns in (
        (1e18, 1),
        (float("nan"), 1),
        (-1, 1),
        (1, 1e12),
        (1, float("nan")),
        (1, -1),
    ):
        with pytest.raises(InputError, match="it must lie between 0 and"):
            make_scenario(step, found, delay_ns=delay_ns, latency_ns=latency_ns)


def test_the_longest_step_that_can_be_asked_for_is_replayed_alike_by_both_engines(tmp_path: Path) -> None:
    made = make_step(SHAPE, tmp_path)
    (made / "system.json").write_text(json.dumps(SYSTEM | {"local-mem-bw": 1e-6, "peak-perf": 1e-6}))
    (made / "schedules.txt").write_text((made / "schedules.txt").read_text().replace("50.000000", "1e-6"))
    step = load_step(made / "et", made / "workload.json", made / "system.json")
    scenario = make_scenario(step, read_schedules(made / "schedules.txt"), delay_ns=600e9, latency_ns=1e9)
    fast, exact = replay(scenario), replay(scenario, exact=True)
    assert fast.finish_ns_per_rank == exact.finish_ns_per_rank
    assert fast.finish_ns > 1e15


def test_a_shard_that_cannot_be_cut_into_the_machines_chunks_is_named(tmp_path: Path) -> None:
    made = make_step(SHAPE, tmp_path)
    nodes = SHAPE.nodes(0)
    attributes: dict[str, int | str] = {"comm_size": 5, "comm_type": ALL_GATHER, "pg_name": "1"}
    for rank in (0, 1):
        nodes = [*SHAPE.nodes(rank), Node(999, COLLECTIVE, "small", (), attributes)]
        (made / "et" / f"workload.{rank}.et").write_bytes(encode(nodes))
    load_step(made / "et", made / "workload.json", made / "system.json")
    (made / "system.json").write_text(json.dumps(SYSTEM | {"preferred-dataset-splits": 8}))
    with pytest.raises(InputError, match="in 8 chunks") as refused:
        load_step(made / "et", made / "workload.json", made / "system.json")
    assert (refused.value.node, refused.value.field, refused.value.value) == (999, "comm_size", 5)


def test_a_dark_link_is_named_rather_than_receives_that_were_posted_early(tmp_path: Path) -> None:
    shape = Shape(dp=2, pp=2, tp=2, layers=1)
    made = make_step(shape, tmp_path)
    (made / "schedules.txt").write_text((made / "schedules.txt").read_text().replace("450.000000", "0"))
    step = load_step(made / "et", made / "workload.json", made / "system.json")
    with pytest.raises(CannotFinishError) as stuck:
        replay(make_scenario(step, read_schedules(made / "schedules.txt")))
    assert "the link from rank 0 to rank 2 is dark" in str(stuck.value)


def test_errors_come_back_whole_from_other_processes() -> None:
    refused = InputError("why", file="file", node=3, field="field", value=[1])
    stuck = CannotFinishError(7, 2, (Wait(0, "send", "pair 0 -> 1", None, "dark"),))
    for error in (refused, stuck):
        back = pickle.loads(pickle.dumps(error))
        assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))


def test_io_errors_inside_an_archive_name_it(tmp_path: Path) -> None:
    path = packed(tmp_path / "a.tar.gz", members(), "w:gz")
    path.write_bytes(path.read_bytes()[:-200] + b"\xff" * 200)
    with pytest.raises(InputError) as refused:
        load_trace(path, GROUPS)
    assert refused.value.file.startswith(str(path))
