"""Whatever comes from the wire: an answer, or one of the typed failures; never a hang, never a crash."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import Iterator

import httpcore
import httpx
import pytest

from opus_sdn.drivers.base import DriverError
from opus_sdn.drivers.polatis.options import Credentials, PolatisOptions
from opus_sdn.drivers.polatis.restconf import RestconfTransport
from opus_sdn.drivers.polatis.tl1_parser import Answer, Found, Tl1Parser, Tl1SyntaxError, Unasked
from opus_sdn.drivers.polatis.tl1_session import refusal
from opus_sdn.drivers.polatis.wire import WireTable
from tests.polatis.scripted_tl1 import Connection, ScriptedTl1, answer, tl1_to, unasked

ROUNDS = 10_000
SEED = 20_261_130

LABEL = 'a;b>c<d \\" end'
STREAM = b"".join(
    [
        answer("1", "COMPLD"),
        answer("2", "COMPLD", *(f"{i},{i + 48}" for i in range(1, 9)), sid="( nil )"),
        b"IP 3\r\n<",
        unasked("Port 1 disabled"),
        answer("3", "DENY", "Invalid OXC port: 100", code="IDNV", sid="Rack 7-b"),
        unasked("49:LOS,MN,NSA", what="REPT ALM EQPT").replace(b"A  7", b"*C 8"),
        answer("4", "COMPLD", f"1:{LABEL}", "2:", sid="OCS"),
        answer("5", "COMPLD", "1,49")[:-1] + b">",
        answer("5", "COMPLD", "2,50") + b"\r\n> ",
    ]
)
WANTED: list[Answer | Unasked] = [
    Answer("1", "COMPLD", (), "", "OCS"),
    Answer("2", "COMPLD", tuple(f"{i},{i + 48}" for i in range(1, 9)), "", "( nil )"),
    Unasked("REPT EVT EQPT", ("Port 1 disabled",)),
    Answer("3", "DENY", ("Invalid OXC port: 100",), "IDNV", "Rack 7-b"),
    Unasked("REPT ALM EQPT", ("49:LOS,MN,NSA",)),
    Answer("4", "COMPLD", ('1:a;b>c<d " end', "2:"), "", "OCS"),
    Answer("5", "COMPLD", ("1,49", "2,50"), "", "OCS"),
]


def pieces(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """The same bytes, cut anywhere."""
    at = 0
    while at < len(data):
        size = chance.choice((1, 1, 2, 3, 7, 40, 300))
        yield data[at : at + size]
        at += size


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Cut off, with bytes changed, put in, taken out and repeated, or garbage from the start."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(6):
            case 0:
                del found[at:]
            case 1 if at < len(found):
                found[at] = chance.choice((*b'";><:\r\n\\{}[],', chance.randrange(256)))
            case 2:
                found[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(20)))
            case 3:
                del found[at : at + chance.randrange(40)]
            case 4:
                found[at:at] = found[: chance.randrange(60)]
            case _:
                found[at:at] = chance.choice(
                    (b'"' * 9, b";;;", b"\x00" * 4, b"M  1 COMPLD", b"9" * 400, b"[" * 300)
                )
    return bytes(found)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 1_000_000])
def test_a_tl1_stream_means_the_same_however_it_is_cut(size: int) -> None:
    parser = Tl1Parser()
    found = [b for at in range(0, len(STREAM), size) for b in parser.feed(STREAM[at : at + size])]
    assert found == WANTED


def test_a_tl1_stream_means_the_same_at_every_random_cut() -> None:
    chance = random.Random(SEED)
    for _ in range(ROUNDS):
        parser = Tl1Parser()
        assert [block for piece in pieces(STREAM, chance) for block in parser.feed(piece)] == WANTED


def test_tl1_that_was_cut_off_or_garbled_gives_answers_or_the_typed_error() -> None:
    chance = random.Random(SEED)
    parsed = refused = 0
    for _ in range(ROUNDS):
        parser = Tl1Parser()
        try:
            for piece in pieces(damaged(STREAM, chance), chance):
                for block in parser.feed(piece):
                    assert isinstance(block, Found)
                    if isinstance(block, Answer):
                        assert isinstance(refusal(block, "X"), DriverError)
                    parsed += 1
        except Tl1SyntaxError:
            refused += 1
    assert parsed > ROUNDS
    assert refused > ROUNDS / 100


BODIES = [
    b'{"optical-switch:cross-connects":{"pair":[{"ingress":1,"egress":13},{"ingress":5,"egress":9}]}}',
    b'{"optical-switch:port":[{"port-id":1,"status":"ENABLED","label":"a"},{"port-id":2,"status":"FAILED"}]}',
    b'{"optical-switch:port":[{"port-id":9,"power":"-12.34"},{"port-id":10,"power":-60.0}]}',
    b'{"optical-switch:product-information":{"serial-number":"2","model-name":"N-8x8","software-version":"6"}}',
    b'{"ietf-restconf:errors":{"error":[{"error-tag":"data-exists","error-message":"object exists"}]}}',
    b"<errors><error><error-tag>data-exists</error-tag></error></errors>",
    b"",
]
STATUSES = (200, 200, 200, 200, 201, 204, 304, 400, 401, 403, 404, 409, 412, 500, 503, 504, 299, 599)


def strange(chance: random.Random) -> object:
    """JSON of no use: any value in the place of any other."""
    choices: list[object] = [None, True, -1, 1.5, 10**30, "x", "", "-12.34", [], {}, [[]], {"port": 7}]
    document = json.loads(chance.choice(BODIES[:5]))
    node, keys = document, []
    while isinstance(node, dict | list) and node and chance.random() < 0.8:
        key = chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))
        keys.append((node, key))
        node = node[key]
    if keys:
        parent, key = keys[-1]
        parent[key] = chance.choice(choices)
    return document


def test_restconf_answers_of_any_kind_give_a_value_or_a_typed_failure() -> None:
    chance = random.Random(SEED)
    ends = {"value": 0, "failure": 0}

    def respond(_: httpx.Request) -> httpx.Response:
        match chance.randrange(4):
            case 0:
                body = json.dumps(strange(chance)).encode()
            case 1:
                body = chance.choice(BODIES)
            case _:
                body = damaged(chance.choice(BODIES), chance)
        mark = chance.choice((b"1-2", b"", b'"x"', "é".encode(), b"x" * 500))
        headers = [] if chance.random() < 0.7 else [(b"etag", mark)]
        return httpx.Response(chance.choice(STATUSES), content=body, headers=headers)

    async def main() -> None:
        options = PolatisOptions(host="ocs.example", password_env="X")
        transport = RestconfTransport(options, Credentials("u", "p"), http=httpx.MockTransport(respond))
        calls = (
            transport.identify,
            transport.table,
            lambda: transport.ports(16),
            lambda: transport.power([9, 10]),
            transport.persistence,
            lambda: transport.merge([(1, 9)], WireTable((), "1-2")),
            lambda: transport.delete([1, 2], WireTable((), "1-2")),
            lambda: transport.replace([(1, 9)], WireTable(())),
        )
        for _ in range(ROUNDS):
            try:
                await chance.choice(calls)()
                ends["value"] += 1
            except DriverError:
                ends["failure"] += 1

    asyncio.run(main())
    assert min(ends.values()) > ROUNDS / 10, ends


HTTP = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/yang-data+json\r\netag: 1516-992899-224835\r\n"
    b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    + b"%x\r\n%s\r\n0\r\n\r\n"
    % (len(BODIES[0]), BODIES[0])
)


class CutAnywhere(httpcore.AsyncMockBackend):
    """Every connection answers with the same bytes, cut otherwise each time."""

    def __init__(self, data: bytes, chance: random.Random) -> None:
        super().__init__([])
        self._data, self._chance = data, chance

    async def connect_tcp(self, *_: object, **__: object) -> httpcore.AsyncNetworkStream:
        return httpcore.AsyncMockStream(list(pieces(self._data, self._chance)))


def test_a_restconf_answer_means_the_same_at_every_random_cut() -> None:
    async def main() -> None:
        http = httpx.AsyncHTTPTransport()
        http._pool = httpcore.AsyncConnectionPool(network_backend=CutAnywhere(HTTP, random.Random(SEED)))
        options = PolatisOptions(host="ocs.example", password_env="X")
        transport = RestconfTransport(options, Credentials("u", "p"), http=http)
        for _ in range(ROUNDS):
            assert await transport.table() == WireTable(((1, 13), (5, 9)), "1516-992899-224835")

    asyncio.run(main())


def test_garbled_http_on_a_real_socket_gives_a_value_or_a_typed_failure() -> None:
    chance = random.Random(SEED)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces(damaged(HTTP, chance), chance):
                writer.write(piece)
            await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        options = PolatisOptions(
            host="127.0.0.1",
            password_env="X",
            restconf_port=server.sockets[0].getsockname()[1],
            timeout_s=2.0,
        )
        transport = RestconfTransport(options, Credentials("u", "p"), context=ssl.create_default_context())
        for _ in range(400):
            try:
                async with asyncio.timeout(20):
                    await transport.table()
            except DriverError:
                pass
        await transport.close()
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def test_garbled_tl1_on_a_real_socket_gives_a_value_or_a_typed_failure() -> None:
    chance = random.Random(SEED)
    ends = {"value": 0, "failure": 0}

    async def table(tag: str, connection: Connection) -> None:
        whole = answer(tag, "COMPLD", "1,49", "2,50")
        for piece in pieces(whole if chance.random() < 0.2 else damaged(whole, chance), chance):
            connection.writer.write(piece)
        if chance.random() < 0.7:  # most devices hang up at some time
            connection.writer.close()

    async def main() -> None:
        async with tl1_to(ScriptedTl1(RTRV_PATCH=table), timeout_s=0.05) as transport:
            for _ in range(400):
                try:
                    async with asyncio.timeout(20):
                        await transport.table()
                    ends["value"] += 1
                except DriverError:
                    ends["failure"] += 1

    asyncio.run(main())
    assert min(ends.values()) > 20, ends


@pytest.mark.parametrize("data", [b'"' + b"x" * 5000, b"x" * (5 * 1024 * 1024)])
def test_text_without_end_is_not_gathered_for_ever(data: bytes) -> None:
    with pytest.raises(Tl1SyntaxError):
        Tl1Parser().feed(b"\r\n   OCS 26-11-30 12:00:00\r\nM  1 COMPLD\r\n" + data)


def test_answers_without_end_are_not_gathered_for_ever() -> None:
    parser = Tl1Parser()
    endless = b"".join(answer(str(tag), "COMPLD", "1,49")[:-1] + b">" for tag in range(100))
    with pytest.raises(Tl1SyntaxError):
        parser.feed(endless)
    header = b"\r\n   OCS 26-11-30 12:00:00\r\nM  1 COMPLD\r\n"
    with pytest.raises(Tl1SyntaxError):
        Tl1Parser().feed(header * 9)
    parser = Tl1Parser()
    more = answer("1", "COMPLD", *["x" * 4000] * 250)[:-1] + b">"  # a megabyte, and another one follows
    for _ in range(4):
        parser.feed(more)
    with pytest.raises(Tl1SyntaxError):
        parser.feed(more)
