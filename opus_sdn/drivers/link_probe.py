"""Asks hosts whether a NIC port has its link, with a command of the operator's own, as `ssh` with `cat`."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Mapping

from opus_sdn.intent.fabric import Fabric, Port

PROBE_S = 15.0
AT_ONCE = 16
TEXT_MAX_BYTES = 4096
FIELDS = ("host", "slot", "index", "rail", "nic")
RDMA_ACTIVE = "4:"  # "4: ACTIVE" is what an RDMA port with a link says of its state


class ProbeError(ValueError):
    """A command that cannot be used; the message says what would be right."""


class CommandProbe:
    """Runs a command for each port. Its output is a `carrier` file's (1 or 0) or an RDMA port's `state`.

    `template`: the command, split as a shell would and run without one, with {host}, {slot}, {index}, {rail}
    and {nic} filled in. `nics`: what {nic} is, by port. What fails is told once, to `tell`.
    """

    def __init__(self, template: str, fabric: Fabric, nics: Mapping[str, str]) -> None:
        self._words = _split(template)
        self._rails = {at.port: at.rail for at in fabric.attachments}
        self._nics = nics
        self._turns = asyncio.Semaphore(AT_ONCE)
        self.complaints: dict[Port, str] = {}  # why a port could not be asked, the newest
        if any("{nic}" in word for word in self._words):
            missing = [str(port) for port in self._rails if str(port) not in nics]
            if missing:
                raise ProbeError(f"{{nic}} of {missing[0]} is unknown; name it in the file of --nics")
        for word in self._words:
            self._filled(word, next(iter(self._rails)))

    async def up(self, port: Port) -> bool | None:
        """Whether this port has its link; None when the command failed, and `complaints` says how."""
        words = [self._filled(word, port) for word in self._words]
        async with self._turns:
            code, out, err = await _run(words)
        text = out.decode(errors="replace").strip()
        if code == 0 and (text == "1" or text.startswith(RDMA_ACTIVE)):
            return True
        if code == 0 and (text == "0" or ":" in text):
            return False
        said = err.decode(errors="replace").strip() or text or "nothing"
        self.complaints[port] = f"{words[0]} ended with {code} and said {said[-200:]!r}"
        return None

    def _filled(self, word: str, port: Port) -> str:
        values = {
            "host": port.host,
            "slot": port.slot,
            "index": port.index,
            "rail": self._rails[port],
            "nic": self._nics.get(str(port), ""),
        }
        try:
            return word.format_map(values)
        except (KeyError, IndexError, ValueError, AttributeError) as wrong:
            known = ", ".join(f"{{{name}}}" for name in FIELDS)
            raise ProbeError(f"{word!r} has a field that is unknown ({wrong}); known: {known}") from None


def _split(template: str) -> list[str]:
    try:
        words = shlex.split(template)
    except ValueError as wrong:
        raise ProbeError(f"{template!r} cannot be split: {wrong}") from None
    if not words:
        raise ProbeError("is empty; as 'ssh {host} cat /sys/class/net/{nic}/carrier'")
    return words


async def _run(words: list[str]) -> tuple[int, bytes, bytes]:
    """Exit status and what was written; -1 when it could not be started, or took too long."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
    except OSError as failed:
        return -1, b"", str(failed.strerror).encode()
    try:
        async with asyncio.timeout(PROBE_S):
            out, err = await process.communicate()
    except TimeoutError:
        return -1, b"", f"no answer within {PROBE_S:g} s".encode()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return process.returncode or 0, out[:TEXT_MAX_BYTES], err[-TEXT_MAX_BYTES:]
