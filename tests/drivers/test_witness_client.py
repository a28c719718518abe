"""The client by which a rank tells the witness of its traffic."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from opus_sdn.shim import witness_client
from opus_sdn.shim.witness_client import WitnessClient, WitnessError
from tests.drivers.devices import change, pairs
from tests.drivers.witness_in_thread import PATIENCE_S, RunningWitness, running_witness

CIRCUIT = "h0:0:1--h1:0:0"
LIT = pairs((1, 2), (2, 1))


@pytest.fixture
def served() -> Iterator[RunningWitness]:
    with running_witness(*LIT) as served:
        yield served


@pytest.fixture
def client(served: RunningWitness) -> Iterator[WitnessClient]:
    client = WitnessClient(served.address, timeout_s=PATIENCE_S)
    yield client
    client.close()


def test_a_change_between_begin_and_end_is_a_violation_and_after_it_none(
    served: RunningWitness, client: WitnessClient
) -> None:
    client.begin("a", [CIRCUIT], 3)
    served.call(lambda: change(served.device, LIT[:1]))
    client.end("a")
    served.call(lambda: change(served.device, LIT[1:]))
    report = client.report()
    assert [(v["kind"], v["ranks"]) for v in report["violations"]] == [("change-under-traffic", [3])]
    assert (report["operations"], report["active"]) == (1, 0)


def test_a_refusal_of_the_witness_is_an_error_with_its_words(client: WitnessClient) -> None:
    with pytest.raises(WitnessError, match="refused begin: circuit 'h9:0:0--h1:0:0' is unknown"):
        client.begin("a", ["h9:0:0--h1:0:0"], 0)
    with pytest.raises(WitnessError, match="refused end: operation 'a' is not active"):
        client.end("a")
    client.begin("a", [CIRCUIT], 0)


def test_nothing_is_connected_before_there_is_something_to_say() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        client = WitnessClient(f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(BlockingIOError):
            listener.accept()
        client.close()


@pytest.mark.parametrize(
    "address",
    ["", "8701", "localhost", ":8701", "localhost:", "localhost:0", "localhost:65536", "h:-1", "[]:1"],
)
def test_an_address_that_is_none_is_refused_at_once(address: str) -> None:
    with pytest.raises(ValueError, match="right would be host:port"):
        WitnessClient(address)


def test_an_absent_witness_is_an_error_and_not_a_hang() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(WitnessError, match=f"127.0.0.1:{port}: no answer to begin"):
        WitnessClient(f"127.0.0.1:{port}").begin("a", [], 0)


@pytest.mark.parametrize("answer", [b"", b"nonsense\n", b"[]\n", b"\xff\n"])
def test_a_wrong_answer_is_an_error_and_the_next_request_connects_anew(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = WitnessClient(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=PATIENCE_S)

        def serve() -> None:
            for reply in (answer, b'{"ok":true}\n'):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(reply)

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        with pytest.raises(WitnessError, match="no answer to end"):
            client.end("a")
        client.end("a")
        server.join(PATIENCE_S)
        client.close()


def test_an_answer_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_client, "ANSWER_MAX_BYTES", 1000)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = WitnessClient(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=PATIENCE_S)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"x" * 1001)
                connection.recv(65_536)
                connection.recv(65_536)

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        with pytest.raises(WitnessError, match="the answer is longer than 1000 bytes"):
            client.report()
        server.join(PATIENCE_S)
        assert not server.is_alive()


def test_an_interrupted_request_leaves_no_answer_behind(
    served: RunningWitness, client: WitnessClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(received: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.begin("a", [CIRCUIT], 0)
    served.wait_until(lambda: served.witness.active == 0)
    assert client.report()["abandoned"] == 1


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = WitnessClient(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.05)
        with pytest.raises(WitnessError, match="timed out"):
            client.begin("a", [], 0)
        late, _ = listener.accept()
        late.sendall(b'{"ok":true}\n')
        with pytest.raises(WitnessError, match="timed out"):
            client.begin("b", [], 0)
        second, _ = listener.accept()
        late.close()
        second.close()
        client.close()


def test_many_threads_share_one_client(served: RunningWitness, client: WitnessClient) -> None:
    errors: list[Exception] = []

    def work(rank: int) -> None:
        try:
            for n in range(25):
                client.begin(f"{rank}:{n}", [CIRCUIT], rank)
                client.end(f"{rank}:{n}")
        except WitnessError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert errors == []
    report = client.report()
    assert (report["operations"], report["active"], report["abandoned"]) == (200, 0, 0)


def in_child(work: Callable[[], None]) -> int:
    """Fork, run `work` in the child, and return its exit code: 0 when nothing was raised."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_has_a_connection_of_its_own(served: RunningWitness, client: WitnessClient) -> None:
    client.begin("parent", [CIRCUIT], 0)

    def work() -> None:
        client.begin("child", [CIRCUIT], 1)

    assert in_child(work) == 0
    # The child's exit ends what the child began, and nothing else.
    served.wait_until(lambda: served.witness.active == 1)
    assert served.call(served.witness.report)["abandoned"] == 1
    client.end("parent")
    assert client.report()["active"] == 0


def test_a_forked_child_does_not_keep_its_parents_connection_open(
    served: RunningWitness, client: WitnessClient
) -> None:
    client.begin("parent", [CIRCUIT], 0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)  # until the parent says so, like a data loader that outlives its rank
        os._exit(0)
    os.close(reading)
    try:
        client.close()
        served.wait_until(lambda: served.witness.active == 0)
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def test_a_child_forked_while_a_request_is_under_way_is_not_locked_out(served: RunningWitness) -> None:
    client = WitnessClient(served.address, timeout_s=PATIENCE_S)
    holding, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with client._lock:
            holding.set()
            forked.wait(PATIENCE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert holding.wait(PATIENCE_S)
    free = in_child(lambda: os._exit(0 if client._lock.acquire(timeout=1) else 1)) == 0
    forked.set()
    holder.join(PATIENCE_S)
    client.close()
    assert free


def test_the_client_needs_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import opus_sdn.shim.witness_client; "
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.split() == ["opus_sdn"]
