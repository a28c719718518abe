"""Whatever is sent to the HTTP door, the switch answers the next client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random

from opus_sdn.drivers.polatis_emulator import PolatisEmulator
from opus_sdn.drivers.polatis_emulator.restconf_wire import HttpProblem, parse_body, parse_path
from tests.emulator.clients import JSON, TABLE, XML, asynchronous, pair_list, switch

ROUNDS = 10_000
CONNECTIONS = 300
BODY = json.dumps(pair_list((1, 9), (2, 10))).encode()
XML_BODY = b"<cross-connects><pair><ingress>1</ingress><egress>9</egress></pair></cross-connects>"


def spoiled(rng: random.Random, whole: bytes) -> bytes:
    """The bytes cut, some changed, some doubled, or others altogether."""
    match rng.randrange(4):
        case 0:
            return whole[: rng.randrange(len(whole) + 1)]
        case 1:
            changed = bytearray(whole)
            for _ in range(rng.randrange(1, 8)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            return bytes(changed)
        case 2:
            cut = rng.randrange(len(whole))
            return whole[:cut] + whole[rng.randrange(len(whole)) :]
    return rng.randbytes(rng.randrange(64))


def test_no_body_and_no_path_is_answered_with_anything_but_a_problem() -> None:
    rng = random.Random(8_040)
    for _ in range(ROUNDS):
        kind, whole = rng.choice([(JSON, BODY), (XML, XML_BODY)])
        with contextlib.suppress(HttpProblem):
            assert isinstance(parse_body(spoiled(rng, whole), kind), dict)
        with contextlib.suppress(HttpProblem):
            assert parse_path(spoiled(rng, b"optical-switch:cross-connects/pair=12").decode("latin-1"))


def test_deep_nesting_is_a_problem_and_no_crash() -> None:
    for body, kind in ((b"[" * 100_000, JSON), (b"<a>" * 100_000, XML), (b"<a>" * 50 + b"</a>" * 50, XML)):
        with contextlib.suppress(HttpProblem):
            raise AssertionError(parse_body(body, kind))


@asynchronous
async def test_spoiled_requests_end_their_own_connection_at_most() -> None:
    async with switch(initial=((1, 9),)) as (emulator, restconf, _):
        rng = random.Random(9_110)
        whole = (
            b"PATCH /api/data/optical-switch:cross-connects/pair HTTP/1.1\r\nhost: x\r\n"
            b"authorization: Basic YWRtaW46cm9vdA==\r\ncontent-type: application/yang-data+json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
        )
        for _ in range(CONNECTIONS):
            await send(emulator, spoiled(rng, whole))
        assert (await restconf.ask("GET", TABLE)).status_code in (200, 204)
        held = [port for pair in emulator.table.items() for port in pair]
        assert len(set(held)) == len(held)


async def send(emulator: PolatisEmulator, data: bytes) -> None:
    """One connection that says this, hangs up, and takes whatever comes back."""
    host, port = emulator.restconf_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    writer.write_eof()
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(30):
            await reader.read()
    writer.close()
