"""HTTP to the controller over connections that break, answers that are none, and forks."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from opus_sdn.shim.client import ANSWER_MAX_BYTES, ControllerClient
from opus_sdn.shim.errors import ControllerError, ControllerUnavailableError, SettingsError
from opus_sdn.shim.settings import Address
from tests.shim.scripted_server import Deed, ScriptedServer, answer, raw


def client_of(server: ScriptedServer, **options: object) -> ControllerClient:
    return ControllerClient(Address(False, "127.0.0.1", server.port), **options)  # type: ignore[arg-type]


def close_silently(link: socket.socket, request: bytes) -> bool:
    return False


def test_one_connection_serves_one_request_after_the_other() -> None:
    with ScriptedServer(answer(b'{"a": 1}')) as server:
        client = client_of(server)
        assert [client.request("GET", "/x") for _ in range(5)] == [{"a": 1}] * 5
        assert server.connections == 1


def test_requests_of_several_threads_do_not_wait_for_each_other() -> None:
    together = threading.Barrier(3)

    def deed(link: socket.socket, request: bytes) -> bool:
        together.wait(10)  # all three have to be here before any of them is answered
        return answer()(link, request)

    with ScriptedServer(deed) as server:
        client = client_of(server)
        threads = [threading.Thread(target=client.request, args=("GET", "/x"), daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


def test_a_request_is_one_piece_with_its_body_and_asks_for_no_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with ScriptedServer(answer()) as server:
        client_of(server, token="s3cret").request("POST", "/api/v1/x", {"n": 1})
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /api/v1/x HTTP/1.1\r\n")
    assert b"\r\nHost: 127.0.0.1:%d\r\n" % server.port in head
    assert b"\r\nAuthorization: Bearer s3cret" in head
    assert body == b'{"n":1}'


@pytest.mark.parametrize("first", [answer(keep=False), answer(head=b"Connection: close\r\n", keep=False)])
def test_a_connection_that_was_closed_while_it_was_idle_is_replaced_without_a_word(first: Deed) -> None:
    with ScriptedServer(first, answer(b'{"second": true}')) as server:
        client = client_of(server)
        client.request("GET", "/x")
        assert client.request("GET", "/x") == {"second": True}
        assert server.connections == 2


def test_a_kept_connection_that_breaks_under_a_request_is_replaced_once() -> None:
    with ScriptedServer(answer(), close_silently, answer(b'{"again": true}')) as server:
        client = client_of(server)
        client.request("GET", "/x")
        assert client.request("POST", "/x", {}) == {"again": True}
        assert (server.connections, len(server.requests)) == (2, 3)


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        (close_silently, "did not answer GET /x"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}"), "did not answer GET /x"),
        (raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "did not answer GET /x"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"), "no JSON object"),
        (answer(b"<html>welcome</html>"), "no JSON object"),
        (answer(b"[1, 2]"), "no JSON object"),
        (answer(b"\xff\xfe"), "no JSON object"),
        (answer(b"bad gateway", status=502), "status 502"),
    ],
)
def test_what_is_no_answer_of_the_controller_is_said_to_be_none(deed: Deed, said: str) -> None:
    with ScriptedServer(deed) as server, pytest.raises(ControllerUnavailableError, match=said) as failed:
        client_of(server, token="s3cret").request("GET", "/x")
    assert f"127.0.0.1:{server.port}" in str(failed.value)
    assert "s3cret" not in str(failed.value)


def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    def flood(link: socket.socket, request: bytes) -> bool:
        link.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        piece = b" " * (1 << 20)
        for _ in range(ANSWER_MAX_BYTES // len(piece) + 8):
            link.sendall(piece)
        return False

    with ScriptedServer(flood) as server, pytest.raises(ControllerUnavailableError, match="more than"):
        client_of(server).request("GET", "/x")


def test_a_server_that_says_nothing_is_given_up_after_the_time_allowed() -> None:
    def think(link: socket.socket, request: bytes) -> bool:
        return server.over.wait(30)

    with ScriptedServer(think) as server:
        with pytest.raises(ControllerUnavailableError, match="timed out"):
            client_of(server).request("GET", "/x", timeout_s=0.05)
        assert len(server.requests) == 1  # it may still be working on it: the caller decides


def test_a_refusal_carries_the_problems_own_words() -> None:
    problem = (
        b'{"type": "urn:opus-sdn:problem:unknown-place", "title": "Unknown place", "status": 422, '
        b'"detail": "host x is not there", "instance": "/api", "request_id": "r1", "host": "x"}'
    )
    with ScriptedServer(answer(problem, status=422)) as server, pytest.raises(ControllerError) as refused:
        client_of(server).request("PUT", "/x", {})
    error = refused.value
    assert (error.problem, error.status, error.detail) == ("unknown-place", 422, "host x is not there")
    assert error.data == {"request_id": "r1", "host": "x"}


def test_a_controller_that_is_not_ready_yet_is_asked_again_and_a_refusal_is_not() -> None:
    not_ready = answer(b'{"type": "urn:opus-sdn:problem:not-ready"}', status=503)
    with ScriptedServer(not_ready, not_ready, answer(b'{"ready": true}')) as server:
        assert client_of(server).request("GET", "/x", retry_s=30) == {"ready": True}
    with ScriptedServer(answer(b"{}", status=409)) as server:
        with pytest.raises(ControllerError, match="http-409"):
            client_of(server).request("GET", "/x", retry_s=30)
        assert len(server.requests) == 1


def test_an_absent_controller_is_waited_for_as_long_as_was_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    client = ControllerClient(Address(False, "127.0.0.1", port))
    begin = time.monotonic()
    with pytest.raises(ControllerUnavailableError, match="refused"):
        client.request("GET", "/x", retry_s=0.3)
    assert time.monotonic() - begin >= 0.3


def test_a_forked_child_has_none_of_its_parents_connections_and_makes_its_own() -> None:
    with ScriptedServer(answer(b'{"a": 1}')) as server:
        client = client_of(server)
        client.request("GET", "/parent")
        own = client.connection()
        own.send("GET", "/long-poll", None, 5.0)
        parents = {_inode(c.fileno()) for c in (*client._idle, own)}
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            shared = len(parents & {_inode(int(fd.name)) for fd in Path("/proc/self/fd").iterdir()})
            os.write(writing, repr((shared, client.request("GET", "/child"))).encode())
            os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        assert os.read(reading, 1000) == b"(0, {'a': 1})"
        os.close(reading)
        assert own.receive() == (200, b'{"a": 1}')
        assert client.request("GET", "/parent") == {"a": 1}
        assert server.connections == 3  # pool, long poll, child


def _inode(descriptor: int) -> str:
    """What a descriptor of this process stands for."""
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return ""


def test_with_a_certificate_authority_only_its_controller_is_talked_to(
    certificate: tuple[ssl.SSLContext, Path], tmp_path: Path
) -> None:
    context, public = certificate
    with ScriptedServer(answer(b'{"tls": true}'), tls=context) as server:
        address = Address(True, "127.0.0.1", server.port)
        assert ControllerClient(address, ca_file=public).request("GET", "/x") == {"tls": True}
        with pytest.raises(ControllerUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            ControllerClient(address).request("GET", "/x")
    no_certificate = tmp_path / "nothing.pem"
    no_certificate.write_text("nothing")
    with pytest.raises(SettingsError, match="OPUS_CA_FILE"):
        ControllerClient(address, ca_file=no_certificate)
