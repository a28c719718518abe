"""Plain clients of the emulated switch's doors, which know no more of the protocols than what stands here."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx

from opus_sdn.drivers.polatis_emulator import EmulatorSpec, PolatisEmulator, UserSpec

JSON = "application/yang-data+json"
XML = "application/yang-data+xml"
TABLE = "/api/data/optical-switch:cross-connects"
PAIRS = f"{TABLE}/pair"
PATIENCE_S = 30.0  # of tests that wait for something that must come
SILENCE_S = 0.15  # how long is long enough to say that nothing comes

USERS = (
    UserSpec(name="admin", password="root"),
    UserSpec(name="ops", password="ops-word", group="user"),
    UserSpec(name="eye", password="eye-word", group="view"),
)


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that is a coroutine on a loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


def spec(size: str = "8x8", **more: Any) -> EmulatorSpec:
    """A quick switch: no optical and no control time unless told."""
    return EmulatorSpec.model_validate(
        {"size": size, "switch_ms": 0.0, "loss_spread_db": 0.0, "users": USERS} | more
    )


class Restconf:
    """RESTCONF with one user."""

    def __init__(self, emulator: PolatisEmulator, user: str = "admin", password: str = "root") -> None:
        self._client = httpx.AsyncClient(
            base_url=emulator.restconf_url, auth=(user, password), trust_env=False, timeout=PATIENCE_S
        )

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        """One request; `body` is sent as JSON, or as XML when it is a text."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named.setdefault("accept", JSON)
        if isinstance(body, str):
            return await self._client.request(
                method, path, content=body, headers={"content-type": XML, **named}
            )
        if body is None:
            return await self._client.request(method, path, headers=named)
        return await self._client.request(method, path, json=body, headers={"content-type": JSON, **named})

    async def patch(self, *pairs: tuple[int, int]) -> int:
        """Merge these circuits; the status."""
        return (await self.ask("PATCH", PAIRS, pair_list(*pairs))).status_code

    async def close(self) -> None:
        await self._client.aclose()


def pair_list(*pairs: tuple[int, int]) -> dict[str, Any]:
    """A body with these circuits."""
    return {"optical-switch:pair": [{"ingress": a, "egress": b} for a, b in pairs]}


class Tl1:
    """A TL1 connection that reads messages as a person would: up to the semicolon outside quotes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.unasked: list[str] = []
        self._text = ""

    async def send(self, text: str) -> None:
        """Send this and wait for nothing."""
        self.writer.write(text.encode())
        await self.writer.drain()

    async def message(self, within_s: float = PATIENCE_S) -> str:
        """The next message, up to its end. Raises TimeoutError, and EOFError when the connection is over."""
        async with asyncio.timeout(within_s):
            while (end := _end(self._text)) < 0:
                data = await self.reader.read(65_536)
                if not data:
                    raise EOFError
                self._text += data.decode()
        message, self._text = self._text[: end + 1], self._text[end + 1 :]
        return message

    async def ask(self, command: str) -> str:
        """A command and its answer; what comes unasked before it is kept apart."""
        await self.send(command)
        while True:
            answer = await self.message()
            if re.search(r"^M  ", answer, re.MULTILINE):
                return answer
            self.unasked.append(answer)

    async def lines(self, command: str) -> list[str]:
        """The text lines of an answer that must be COMPLD."""
        answer = await self.ask(command)
        assert " COMPLD" in answer, answer
        return re.findall(r'^   "(.*)"\r$', answer, re.MULTILINE)

    async def denied(self, command: str) -> tuple[str, str]:
        """Code and text of an answer that must be DENY; what is missing is empty."""
        answer = await self.ask(command)
        assert " DENY" in answer, answer
        code = re.search(r"^   ([A-Z]{4})\r$", answer, re.MULTILINE)
        text = re.search(r'^   "(.*)"\r$', answer, re.MULTILINE)
        return code.group(1) if code else "", text.group(1) if text else ""

    async def close(self) -> None:
        self.writer.close()


def _end(text: str) -> int:
    quoted = False
    for index, char in enumerate(text):
        quoted ^= char == '"' and text[index - 1] != "\\"
        if char in ";>" and not quoted:
            return index
    return -1


async def open_tl1(emulator: PolatisEmulator, user: str = "admin", password: str = "root") -> Tl1:
    """A session; without a user nobody is logged in."""
    host, _, port = emulator.tl1_address.rpartition(":")
    tl1 = Tl1(*await asyncio.open_connection(host, int(port)))
    if user:
        assert " COMPLD" in await tl1.ask(f"ACT-USER::{user}:1::{password};")
    return tl1


@asynccontextmanager
async def switch(size: str = "8x8", **more: Any) -> AsyncIterator[tuple[PolatisEmulator, Restconf, Tl1]]:
    """A quick switch with a client at each door."""
    async with PolatisEmulator(spec(size, **more)) as emulator:
        restconf, tl1 = Restconf(emulator), await open_tl1(emulator)
        try:
            yield emulator, restconf, tl1
        finally:
            await restconf.close()
            await tl1.close()


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until this is so."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = condition()
            if (await found) if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.005)
