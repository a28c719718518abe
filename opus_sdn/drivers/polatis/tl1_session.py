"""One TL1 session over TCP: commands with tags of their own, answers by tag, messages sent unasked apart."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from opus_sdn.drivers.base import DriverError, Refusal, TerminalError, TransientError
from opus_sdn.drivers.polatis.options import Credentials, PolatisOptions
from opus_sdn.drivers.polatis.tl1_parser import Answer, Aside, Found, Tl1Parser, Tl1SyntaxError, Unasked
from opus_sdn.drivers.polatis.wire import PortBusyError, Tell, lost, says_locked, shown

NAME: Final = "TL1"
READ_BYTES: Final = 65_536
# What can be said to a device between quotes or without them; it has no way to escape what ends a command.
_SAFE: Final = re.compile(r"[ -~]*")
_UNSAFE: Final = re.compile(r'[";:,&=]')

# What is wrong with the command itself, so that it is useless to send it again.
_INVALID: Final = frozenset({"ICNV", "IIAC", "IICT", "IITA", "IDNV", "IPMS", "IPNV", "IDMS", "IPEX", "IDRG"})
_UNAUTHORISED: Final = frozenset({"PICC", "PIUC", "PIUI", "PIFC"})
_BUSY_FOR_NOW: Final = frozenset({"SROF", "SARB", "SABT", "SWFA", "RSOF"})
_NOT_LOGGED_IN: Final = "not logged in"
_LOGGED_IN_ALREADY: Final = "already logged in"


class Tl1Session:
    """Connects and logs in with the first command. One command at a time; for one event loop.

    A session that fails in any way is left behind, so that a late answer can never be taken for another one
    and what is asked next is ordered after it.
    """

    def __init__(self, options: PolatisOptions, credentials: Credentials, tell: Tell) -> None:
        self._options = options
        self._credentials = credentials
        self._tell = tell
        self._tags: Iterator[int] = itertools.count(1)
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self.sid = ""

    async def ask(self, command: str, *, writing: bool) -> Answer:
        """Send one command, with `{tag}` where its tag belongs, and wait for its answer, refusals included.

        A session that the device has logged out is logged in again, and the command sent once more: it was
        not carried out.
        """
        if self._writer is None:
            await self._log_in()
        answer = await self._exchange(command, writing=writing)
        if not answer.completed and _says(answer, _NOT_LOGGED_IN):
            await self.leave()
            await self._log_in()
            answer = await self._exchange(command, writing=writing)
        return answer

    async def leave(self) -> None:
        """Drop the connection, without a word to the device. The next command opens another one."""
        listener, writer = self._listener, self._writer
        self._listener = self._writer = None
        if listener is not None:
            listener.cancel()
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError, TimeoutError):
                async with asyncio.timeout(self._options.connect_timeout_s):
                    await writer.wait_closed()

    async def log_out(self) -> None:
        """End the session in order, as devices have few of them."""
        if self._writer is not None:
            with contextlib.suppress(DriverError):
                await self._exchange(f"CANC-USER::{quoted(self._credentials.user)}:{{tag}}:;", writing=False)
        await self.leave()

    async def _log_in(self) -> None:
        options, credentials = self._options, self._credentials
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                reader, self._writer = await asyncio.open_connection(options.bare_host, options.tl1_port)
        except (OSError, TimeoutError) as error:
            raise TransientError(f"{NAME}: cannot connect: {shown(str(error)) or 'no answer'}") from None
        self._listener = asyncio.get_running_loop().create_task(self._listen(reader, self._writer))
        command = f"ACT-USER::{quoted(credentials.user)}:{{tag}}::{quoted(credentials.password)};"
        answer = await self._exchange(command, writing=False, shown_as="ACT-USER")
        if answer.completed or _says(answer, _LOGGED_IN_ALREADY):
            self.sid = answer.sid
            return
        await self.leave()
        if answer.code in _BUSY_FOR_NOW or _says(answer, "session"):
            raise TransientError(f"{NAME}: no session: {_words(answer)}", 1.0)
        raise TerminalError(
            f"{NAME}: login refused: {_words(answer)}; user or password is wrong", Refusal.UNAUTHORISED
        )

    async def _exchange(self, command: str, *, writing: bool, shown_as: str | None = None) -> Answer:
        verb = shown_as or command.partition(":")[0]
        tag = str(next(self._tags))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[tag] = future
        try:
            async with asyncio.timeout(self._options.timeout_s):
                assert self._writer is not None
                self._writer.write(command.replace("{tag}", tag).encode("ascii"))
                await self._writer.drain()
                return await future
        except TimeoutError:
            await self.leave()
            raise lost(
                f"{NAME}: connected, but no answer to {verb} within {self._options.timeout_s:g} s",
                writing=writing,
            ) from None
        except (OSError, _SessionEndedError) as error:
            await self.leave()
            raise lost(f"{NAME}: {verb}: {shown(str(error))}", writing=writing) from None
        except asyncio.CancelledError:
            await self.leave()
            raise
        finally:
            del self._waiting[tag]

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hand on what arrives until the connection ends; who waits then is told why."""
        parser = Tl1Parser()
        why = "the device ended the session"
        try:
            while data := await reader.read(READ_BYTES):
                for block in parser.feed(data):
                    self._take(block)
        except OSError as error:
            why = f"the session broke: {error}"
        except Tl1SyntaxError as error:
            why = f"answer not understood: {self._credentials.hidden(str(error))}"
        finally:
            writer.close()
            if self._writer is writer:
                self._writer = None
                self._listener = None
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(_SessionEndedError(why))

    def _take(self, block: Found) -> None:
        hidden = self._credentials.hidden
        if isinstance(block, Aside):
            if _NOT_LOGGED_IN in block.text.lower():  # no answer in form, but all that comes
                self._refuse_waiting(block.text)
            return
        if isinstance(block, Unasked):
            self._tell(hidden("; ".join(block.lines) or block.what))
            return
        if not block.completed:  # its text is for people
            block = replace(block, code=hidden(block.code), lines=tuple(map(hidden, block.lines)))
        future = self._waiting.get(block.ctag)
        if future is not None and not future.done():
            future.set_result(block)

    def _refuse_waiting(self, text: str) -> None:
        for tag, future in self._waiting.items():
            if not future.done():
                future.set_result(Answer(tag, "DENY", (text,)))


class _SessionEndedError(Exception):
    """The connection is gone while an answer was awaited."""


def refusal(answer: Answer, command: str) -> DriverError:
    """The failure that a DENY means."""
    said = f"{NAME}: {command}: {_words(answer)}"
    text = " ".join(answer.lines).lower()
    if says_locked(text):
        return TerminalError(f"{said}; locked at the device, reading only", Refusal.LOCKED)
    if "in use" in text:
        return PortBusyError(said, Refusal.WOULD_DISPLACE)
    if answer.code in _BUSY_FOR_NOW:
        return TransientError(said)
    if answer.code in _UNAUTHORISED or (answer.code == "SRCN" and "group" in text):
        return TerminalError(f"{said}; the user may not do this", Refusal.UNAUTHORISED)
    if answer.code in _INVALID:
        return TerminalError(said, Refusal.INVALID)
    return TerminalError(said, Refusal.REFUSED)


def quoted(text: str) -> str:
    """A value as a command holds it: in quotes where it has characters that would divide the command."""
    if not _SAFE.fullmatch(text) or '"' in text:
        raise TerminalError(
            f"{NAME} cannot carry {len(text)} characters with quotes or non-ASCII ones", Refusal.INVALID
        )
    return f'"{text}"' if _UNSAFE.search(text) or " " in text else text


def _says(answer: Answer, what: str) -> bool:
    return any(what in line.lower() for line in answer.lines)


def _words(answer: Answer) -> str:
    return shown(" ".join([answer.completion, answer.code, *answer.lines]))
