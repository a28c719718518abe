"""The probe of a rank's NIC ports: what it reads of sysfs, when it tells the controller, its settings."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from opus_sdn.intent.model import RetryBudget
from opus_sdn.shim import links
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.errors import SettingsError
from opus_sdn.shim.link_settings import LinkSource
from opus_sdn.shim.links import LinkProbe, LinkState, read_link
from opus_sdn.shim.settings import Address, from_environ
from tests.shim.scripted_server import ScriptedServer, answer
from tests.shim.test_rank_settings import GOOD

NET = LinkSource("eth2", "class/net/eth2/carrier", rdma=False)
RDMA = LinkSource("rdma:mlx5_0/1", "class/infiniband/mlx5_0/ports/1/state", rdma=True)
PATIENCE_S = 20.0


def write(sysfs: Path, source: LinkSource, text: str) -> None:
    path = sysfs / source.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("source", "text", "wanted"),
    [
        (NET, "1\n", LinkState(True, "eth2 has carrier")),
        (NET, "0\n", LinkState(False, "eth2 has no carrier")),
        (NET, "", LinkState(False, "eth2 has no carrier")),
        (RDMA, "4: ACTIVE\n", LinkState(True, "rdma:mlx5_0/1 is '4: ACTIVE'")),
        (RDMA, "2: INIT\n", LinkState(False, "rdma:mlx5_0/1 is '2: INIT'")),
        (RDMA, "1: DOWN\n", LinkState(False, "rdma:mlx5_0/1 is '1: DOWN'")),
        (RDMA, "x" * 9999, LinkState(False, f"rdma:mlx5_0/1 is {'x' * 256!r}")),
    ],
)
def test_a_link_is_what_the_kernel_says_of_it(
    tmp_path: Path, source: LinkSource, text: str, wanted: LinkState
) -> None:
    write(tmp_path, source, text)
    assert read_link(tmp_path, source) == wanted


def test_a_port_that_is_not_there_is_not_up_and_says_why(tmp_path: Path) -> None:
    state = read_link(tmp_path, NET)
    assert not state.up
    assert "class/net/eth2/carrier cannot be read: No such file" in state.detail


def test_an_interface_that_was_taken_down_is_called_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernel answers the reading of its carrier with EINVAL then."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(Path, "open", refuse)
    assert read_link(tmp_path, NET) == LinkState(False, "eth2 is administratively down")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0=eth2", ((0, NET),)),
        (
            "1=rdma:mlx5_0/1, 0=eth2",
            ((0, NET), (1, RDMA)),
        ),
        ("", ()),
    ],
)
def test_ports_are_named_by_interface_or_rdma_device(text: str, wanted: object) -> None:
    assert from_environ(GOOD | {"OPUS_LINKS": text}).links == wanted


@pytest.mark.parametrize(
    "text",
    [
        "eth2",
        "4=eth2",
        "x=eth2",
        "0=eth2,0=eth3",
        "0=",
        "0=../../etc/passwd",
        "0=rdma:mlx5_0",
        "0=rdma:../x/1",
        "0=a b",
    ],
)
def test_a_port_that_makes_no_sense_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match=r"OPUS_LINKS: is .*; use PORT=INTERFACE"):
        from_environ(GOOD | {"OPUS_LINKS": text})


def test_sysfs_may_be_elsewhere_but_must_be_there(tmp_path: Path) -> None:
    assert from_environ(GOOD).sysfs == Path("/sys")
    assert from_environ(GOOD | {"OPUS_LINK_SYSFS": str(tmp_path)}).sysfs == tmp_path
    with pytest.raises(SettingsError, match="OPUS_LINK_SYSFS"):
        from_environ(GOOD | {"OPUS_LINK_SYSFS": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, None),
        ({"NCCL_IB_TIMEOUT": "14"}, RetryBudget(14, 7)),
        ({"NCCL_IB_TIMEOUT": "18", "NCCL_IB_RETRY_CNT": "3"}, RetryBudget(18, 3)),
        ({"NCCL_IB_RETRY_CNT": "3"}, None),
        ({"NCCL_IB_TIMEOUT": "99"}, None),
        ({"NCCL_IB_TIMEOUT": "soon"}, None),
    ],
)
def test_the_retry_budget_is_what_the_transport_was_told(environ: dict[str, str], wanted: object) -> None:
    assert from_environ(GOOD | environ).retry_budget == wanted


def test_the_controller_is_told_at_first_at_every_change_and_again_when_it_did_not_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "TELL_AGAIN_S", float("inf"))
    write(tmp_path, NET, "0")
    refused = json.dumps(
        {"type": "urn:opus-sdn:problem:not-ready", "status": 503, "detail": "later"}
    ).encode()
    with ScriptedServer(answer(refused, 503), answer(b"", 204), answer(b"", 204)) as server:
        client = ControllerClient(Address(False, "127.0.0.1", server.port))
        probe = LinkProbe(client, "job", 3, 5, {1: NET}, tmp_path)
        _wait(lambda: len(server.requests) == 2)
        write(tmp_path, NET, "1")
        _wait(lambda: len(server.requests) == 3)
        probe.close()
        client.close()
    told = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]
    assert all(request.startswith(b"POST /api/v1/jobs/job/links ") for request in server.requests)
    assert told[0] == told[1]
    assert told[1] == {
        "incarnation": 3,
        "rank": 5,
        "ports": [{"index": 1, "up": False, "detail": "eth2 has no carrier"}],
    }
    assert told[2]["ports"] == [{"index": 1, "up": True, "detail": "eth2 has carrier"}]


def test_the_same_is_told_again_from_time_to_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller may have been started anew."""
    monkeypatch.setattr(links, "TELL_AGAIN_S", 0.0)
    write(tmp_path, NET, "1")
    with ScriptedServer(answer(b"", 204)) as server:
        client = ControllerClient(Address(False, "127.0.0.1", server.port))
        probe = LinkProbe(client, "job", 3, 5, {1: NET}, tmp_path)
        _wait(lambda: len(server.requests) >= 3)
        probe.close()
        client.close()
    assert len(set(server.requests)) == 1


def _wait(holds: object) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if holds():  # type: ignore[operator]
            return
        pause.wait(0.01)
    raise AssertionError("did not happen")
