"""The line protocol of the traffic witness, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from opus_sdn.drivers import witness_server
from opus_sdn.drivers.emulated import EmulatedSwitch
from opus_sdn.drivers.witness import TrafficWitness
from opus_sdn.drivers.witness_server import LINE_MAX_BYTES, WitnessServer, _Connection
from tests.drivers.devices import change, device, fabric, pairs

CIRCUIT = "h0:0:1--h1:0:0"
LIT = pairs((1, 2), (2, 1))
PATIENCE_S = 20.0


class Peer:
    """A client without manners: sends any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, line: bytes | dict[str, object]) -> Any:
        self.writer.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> Any:
        return json.loads(await self.reader.readuntil(b"\n"))


class Served:
    """A device, its witness and the address where it is served."""

    def __init__(self, ocs: EmulatedSwitch, witness: TrafficWitness, address: str) -> None:
        self.device = ocs
        self.witness = witness
        self.address = address
        self.peers: list[Peer] = []

    async def peer(self) -> Peer:
        host, port = self.address.rsplit(":", 1)
        peer = Peer(*await asyncio.open_connection(host.strip("[]"), int(port), limit=2**24))
        self.peers.append(peer)
        return peer

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - what a test waits for has no event of its own
            await asyncio.sleep(0.005)


Story = Callable[[Served], Awaitable[None]]
Serve = Callable[[Story], None]


async def play(story: Story) -> None:
    ocs = device(*LIT)
    witness = TrafficWitness(fabric(), [ocs])
    server = WitnessServer(witness)
    served = Served(ocs, witness, await server.start())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await story(served)
    finally:
        for peer in served.peers:
            peer.writer.close()
        await server.close()


@pytest.fixture(params=["asyncio", "uvloop"])
def serve(request: pytest.FixtureRequest) -> Serve:
    """Run a story against a server, on either of the loops that a controller may have."""
    factory = asyncio.new_event_loop
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop").new_event_loop

    def run(story: Story) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(play(story))

    return run


def begin(op_id: str = "a", **changed: object) -> dict[str, object]:
    return {"op": "begin", "id": op_id, "circuits": [CIRCUIT], "rank": 0, **changed}


def test_traffic_and_changes_are_reported_over_the_wire(serve: Serve) -> None:
    async def story(served: Served) -> None:
        peer = await served.peer()
        assert await peer.ask(begin(rank=6)) == {"ok": True}
        change(served.device, LIT)
        assert await peer.ask({"op": "end", "id": "a"}) == {"ok": True}
        report = await peer.ask({"op": "report"})
        assert (report["operations"], report["active"]) == (1, 0)
        (violation,) = report["violations"]
        assert violation["kind"] == "change-under-traffic"
        assert violation["ranks"] == [6]

    serve(story)


BAD_LINES: list[tuple[bytes | dict[str, object], list[str]]] = [
    (b"\n", ["JSON"]),
    (b"begin\n", ["JSON"]),
    (b"\xff\xfe\n", ["JSON"]),
    (b"[" * 5000 + b"\n", ["JSON"]),
    (b"[]\n", ["object"]),
    (b"null\n", ["object"]),
    ({}, ["op"]),
    ({"op": "stop"}, ["'stop'", "begin"]),
    ({"op": "begin"}, ["id"]),
    (begin(rank="0"), ["rank", "integer", "'0'"]),
    (begin(rank=False), ["rank", "integer", "False"]),
    (begin(rank=-1), ["rank", "-1"]),
    (begin(rank=2**40), ["rank"]),
    (begin(op_id=""), ["id", "1 character"]),
    (begin(op_id="x" * 257), ["id", "256 characters"]),
    (begin(circuits=CIRCUIT), ["circuits", "array"]),
    (begin(circuits=[1]), ["circuits.0", "string"]),
    (begin(circuits=["h7:0:0--h8:0:0"]), ["'h7:0:0--h8:0:0' is unknown"]),
    (begin(more=1), ["more", "not permitted"]),
    ({"op": "end", "id": "a"}, ["'a' is not active"]),
    ({"op": "report", "id": "a"}, ["id", "not permitted"]),
]


@pytest.mark.parametrize(("line", "words"), BAD_LINES)
def test_bad_input_is_answered_and_the_connection_goes_on(
    serve: Serve, line: bytes | dict[str, object], words: list[str]
) -> None:
    async def story(served: Served) -> None:
        peer = await served.peer()
        answer = await peer.ask(line)
        assert answer["ok"] is False
        for word in words:
            assert word in answer["error"]
        assert served.witness.operations == 0
        assert await peer.ask(begin()) == {"ok": True}

    serve(story)


def test_requests_may_come_in_any_pieces_and_are_answered_in_order(serve: Serve) -> None:
    async def story(served: Served) -> None:
        peer = await served.peer()
        for byte in json.dumps(begin()).encode() + b"\n":
            peer.writer.write(bytes([byte]))
            await peer.writer.drain()
        assert await peer.answer() == {"ok": True}
        peer.writer.write(b'{"op":"report"}\n{"op":"end","id":"a"}\n{"op":"report"}\n')
        assert (await peer.answer())["active"] == 1
        assert await peer.answer() == {"ok": True}
        assert (await peer.answer())["active"] == 0

    serve(story)


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_a_line_that_is_too_long_is_answered_and_ends_the_connection(serve: Serve, ending: bytes) -> None:
    async def story(served: Served) -> None:
        peer = await served.peer()
        answer = await peer.ask(b"x" * (LINE_MAX_BYTES + 1) + ending)
        assert answer == {"ok": False, "error": f"the line is longer than {LINE_MAX_BYTES} bytes"}
        assert await peer.reader.read() == b""
        assert await (await served.peer()).ask(begin()) == {"ok": True}

    serve(story)


def test_a_line_of_the_greatest_length_is_taken(serve: Serve) -> None:
    async def story(served: Served) -> None:
        line = json.dumps(begin()).encode()
        peer = await served.peer()
        assert await peer.ask(line + b" " * (LINE_MAX_BYTES - len(line)) + b"\n") == {"ok": True}

    serve(story)


def test_a_connection_takes_its_operations_with_it(serve: Serve) -> None:
    async def story(served: Served) -> None:
        dying, living = await served.peer(), await served.peer()
        await dying.ask(begin("a"))
        await living.ask(begin("b"))
        dying.writer.transport.abort()
        await served.until(lambda: served.witness.active == 1)
        change(served.device, LIT)
        report = await living.ask({"op": "report"})
        assert report["abandoned"] == 1
        assert [violation["operations"] for violation in report["violations"]] == [["b"]]

    serve(story)


def test_an_operation_belongs_to_the_connection_that_began_it(serve: Serve) -> None:
    async def story(served: Served) -> None:
        owner, other = await served.peer(), await served.peer()
        await owner.ask(begin())
        assert "not active on this connection" in (await other.ask({"op": "end", "id": "a"}))["error"]
        assert "is active already" in (await other.ask(begin()))["error"]
        assert await owner.ask({"op": "end", "id": "a"}) == {"ok": True}
        assert await other.ask(begin()) == {"ok": True}
        for op_id in "bcdef":
            await owner.ask(begin(op_id))
            await owner.ask({"op": "end", "id": op_id})
        await owner.ask(begin("z"))
        owner.writer.close()
        await served.until(lambda: served.witness.active == 1)
        assert served.witness.abandoned == 1
        assert await other.ask({"op": "end", "id": "a"}) == {"ok": True}

    serve(story)


def test_connections_are_limited(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_server, "CONNECTIONS_MAX", 1)

    async def story(served: Served) -> None:
        first = await served.peer()
        await first.ask(begin())
        second = await served.peer()
        assert (await second.answer())["error"] == "1 connections are open, which is the most"
        assert await second.reader.read() == b""
        assert (await first.ask({"op": "report"}))["active"] == 1
        first.writer.close()
        await served.until(lambda: served.witness.active == 0)
        assert await (await served.peer()).ask(begin("b")) == {"ok": True}

    serve(story)


def test_a_client_that_asks_and_does_not_read_gets_all_its_answers_in_the_end(serve: Serve) -> None:
    async def story(served: Served) -> None:
        peer = await served.peer()
        for number in range(100):
            await peer.ask(begin(f"{number}" + "x" * 200, circuits=["h2:0:1--h3:0:0"]))
        answers = 60  # of about 50 kB each: more than the buffer of one connection holds
        peer.writer.write(b'{"op":"report"}\n' * answers)
        for _ in range(answers):
            assert (await peer.answer())["active"] == 100

    serve(story)


class StuckTransport(asyncio.Transport):
    """A transport whose client reads nothing: full after every write."""

    def __init__(self, protocol: _Connection) -> None:
        super().__init__()
        self.protocol = protocol
        self.answers = 0
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.answers += 1
        self.protocol.pause_writing()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False


def test_answers_do_not_pile_up_for_a_client_that_does_not_read() -> None:
    connection = _Connection(TrafficWitness(fabric(), []), set())
    transport = StuckTransport(connection)
    connection.connection_made(transport)
    connection.data_received(b'{"op":"report"}\n' * 3)
    for answered in (1, 2, 3):
        assert (transport.answers, transport.reading) == (answered, False)
        connection.resume_writing()
    assert (transport.answers, transport.reading) == (3, True)


def test_it_listens_on_loopback_only() -> None:
    witness = TrafficWitness(fabric(), [])
    for host in ("0.0.0.0", "192.0.2.1", "::"):
        with pytest.raises(ValueError, match="right would be a loopback address"):
            WitnessServer(witness, host)


def test_a_server_that_was_never_started_can_be_closed() -> None:
    asyncio.run(WitnessServer(TrafficWitness(fabric(), [])).close())


def test_closing_the_server_ends_the_connections() -> None:
    async def main() -> None:
        witness = TrafficWitness(fabric(), [device(*LIT)])
        server = WitnessServer(witness)
        served = Served(device(), witness, await server.start())
        peer = await served.peer()
        await peer.ask(begin())
        await server.close()
        await served.until(lambda: witness.active == 0)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await peer.answer()
        peer.writer.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
