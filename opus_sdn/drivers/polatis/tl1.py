"""TL1 as a Polatis speaks it: the commands, and what stands in their answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from opus_sdn.drivers.base import Persistence, Refusal, TerminalError, TransientError
from opus_sdn.drivers.polatis.options import Credentials, PolatisOptions
from opus_sdn.drivers.polatis.tl1_parser import Answer
from opus_sdn.drivers.polatis.tl1_session import NAME, Tl1Session, refusal
from opus_sdn.drivers.polatis.wire import (
    Identity,
    Numbers,
    Tell,
    WirePort,
    WireTable,
    require_numbers,
    shown,
)

# Power is asked of at most so many ports at once: a device refuses more.
POWER_PORTS_MAX: Final = 256
LABEL: Final = re.compile(r"[A-Za-z0-9_.-]{0,20}")
# How a device without monitors refuses a request for power; every other refusal is a failure.
NO_MONITORS: Final = frozenset({"IIAC", "IDNV", "INUP", "ICNV", "SNVS", "ENEQ", "EQWT"})

_PAIR: Final = re.compile(r"(\d{1,6}),(\d{1,6})")
_VALUE: Final = re.compile(r"(\d{1,6}):(.*)")
_DECIMAL: Final = re.compile(r"[+-]?\d{1,6}(\.\d{1,18})?")


class Tl1Transport:
    """One device over TL1. `tell` hears what the device sends unasked."""

    name = NAME

    def __init__(self, options: PolatisOptions, credentials: Credentials, tell: Tell) -> None:
        self._credentials = credentials
        self._session = Tl1Session(options, credentials, tell)

    async def identify(self) -> Identity:
        """Which device this is. A firmware that does not say its model is known by its size."""
        answer = await self._ask("RTRV-EQPT::SYSTEM:{tag}:::PARAMETER=SIZE;")
        size = next(
            (line.partition("=")[2] for line in answer.lines if line.startswith("SYSTEM:SIZE=")), None
        )
        if size is None:
            raise self._not_understood("RTRV-EQPT", answer.lines)
        network = (await self._session.ask("RTRV-NETYPE:::{tag}:;", writing=False)).lines
        fields = [part.strip() for part in (network[0] if network else "").split(",")]
        model, firmware = (fields[1], fields[3]) if len(fields) >= 4 else ("", "")
        inventory = await self._session.ask("RTRV-INV::OCS:{tag}:;", writing=False)
        serial = re.search(r"\bSN=(\w+)", " ".join(inventory.lines))
        return Identity(model or size, size, firmware, serial[1] if serial else "")

    async def persistence(self) -> Persistence:
        """The boot mode, where this user may see it."""
        answer = await self._session.ask("RTRV-EQPT::BOOT:{tag}:::PARAMETER=MODE;", writing=False)
        text = " ".join(answer.lines).upper()
        if answer.completed and "RESTORE" in text:
            return Persistence.PRESERVED
        if answer.completed and "DARK" in text:
            return Persistence.VOLATILE
        return Persistence.UNKNOWN

    async def table(self) -> WireTable:
        """All cross-connects."""
        answer = await self._ask("RTRV-PATCH:::{tag}:;")
        found: list[Numbers] = []
        for line in self._lines("RTRV-PATCH", answer):
            match = _PAIR.fullmatch(line.strip())
            if match is None:
                raise self._not_understood("RTRV-PATCH", (line,))
            a, b = int(match[1]), int(match[2])
            found.append((min(a, b), max(a, b)))
        held = [number for pair in found for number in pair]
        if len(set(held)) < len(held):
            raise self._not_understood("RTRV-PATCH", ("a port in two circuits",))
        return WireTable(tuple(sorted(found)))

    async def merge(self, pairs: Sequence[Numbers], before: WireTable) -> None:
        """One ENT-PATCH of all of them, lower numbers on the left."""
        for pair in pairs:
            require_numbers(pair)
        if pairs:
            left, right = "&".join(str(a) for a, _ in pairs), "&".join(str(b) for _, b in pairs)
            await self._ask(f"ENT-PATCH::{left},{right}:{{tag}}:;", writing=True)

    async def delete(self, ingresses: Sequence[int], before: WireTable) -> str | None:
        """One DLT-PATCH, each circuit by one of its ports. Never without a port: that would mean all."""
        require_numbers(ingresses)
        if ingresses:
            await self._ask(f"DLT-PATCH::{_listed(ingresses)}:{{tag}}:;", writing=True)
        return None

    async def replace(self, pairs: Sequence[Numbers], before: WireTable) -> None:
        """Remove all others, then make those that are missing: there is no command for both."""
        await self.delete([a for a, b in before.pairs if (a, b) not in pairs], before)
        await self.merge([pair for pair in pairs if pair not in before.pairs], before)

    async def ports(self, total: int, *, labels: bool = False) -> Mapping[int, WirePort]:
        """Shutters of all ports, and labels. TL1 does not tell a failed port from a good one."""
        shutters = dict(self._values(await self._ask(f"RTRV-PORT-SHUTTER::1&&{total:d}:{{tag}}:;")))
        names: dict[int, str] = {}
        if labels:
            answer = await self._session.ask(f"RTRV-PORT-LABEL::1&&{total:d}:{{tag}}:;", writing=False)
            names = dict(self._values(answer)) if answer.completed else {}
        return {
            number: WirePort(enabled=state.upper() == "OPEN", label=names.get(number, ""))
            for number, state in shutters.items()
        }

    async def power(self, numbers: Sequence[int]) -> Mapping[int, float] | None:
        """Power of the ports that are measured, asked in portions."""
        require_numbers(numbers)
        found: dict[int, float] = {}
        for first in range(0, len(numbers), POWER_PORTS_MAX):
            some = numbers[first : first + POWER_PORTS_MAX]
            command = f"RTRV-PORT-POWER::{_listed(some)}:{{tag}}:;"
            answer = await self._session.ask(command, writing=False)
            if not answer.completed and answer.code in NO_MONITORS:
                continue
            if not answer.completed:
                raise refusal(answer, "RTRV-PORT-POWER")
            for number, value in self._values(answer):
                if not _DECIMAL.fullmatch(value):
                    raise self._not_understood("RTRV-PORT-POWER", (value,))
                found[number] = float(value)
        return found or None

    async def shutter(self, numbers: Sequence[int], *, closed: bool) -> None:
        """Operate the shutters (dark), or release them (open)."""
        require_numbers(numbers)
        if numbers:
            verb = "OPR" if closed else "RLS"
            await self._ask(f"{verb}-PORT-SHUTTER::{_listed(numbers)}:{{tag}}:;", writing=True)

    async def label(self, labels: Mapping[int, str]) -> None:
        """Set the labels that have text in one command, delete the empty ones in another."""
        require_numbers(labels)
        for text in labels.values():
            if not LABEL.fullmatch(text):
                raise TerminalError(
                    f"label {shown(text)!r}: over {NAME} at most 20 letters, digits, dots, dashes and "
                    "underscores",
                    Refusal.INVALID,
                )
        named = {number: text for number, text in labels.items() if text}
        if named:
            texts = "&".join(named.values())
            await self._ask(f"ED-PORT-LABEL::{_listed(list(named))}:{{tag}}:::LABEL={texts};", writing=True)
        unnamed = [number for number, text in labels.items() if not text]
        if unnamed:
            await self._ask(f"DLT-PORT-LABEL::{_listed(unnamed)}:{{tag}}:;", writing=True)

    async def renew(self) -> None:
        """Drop the session; the next command logs in again."""
        await self._session.leave()

    async def close(self) -> None:
        """Log out."""
        await self._session.log_out()

    async def _ask(self, command: str, *, writing: bool = False) -> Answer:
        answer = await self._session.ask(command, writing=writing)
        if not answer.completed:
            raise refusal(answer, command.partition(":")[0])
        return answer

    def _lines(self, command: str, answer: Answer) -> tuple[str, ...]:
        """The lines of an answer, which are in quotes; text that is not would be passed over unseen."""
        if answer.code:
            raise self._not_understood(command, (f"{answer.code} outside quotes",))
        return answer.lines

    def _values(self, answer: Answer) -> Iterator[tuple[int, str]]:
        """Port number and value of each line."""
        for line in self._lines("values", answer):
            match = _VALUE.fullmatch(line.strip())
            if match is None:
                raise self._not_understood("values", (line,))
            yield int(match[1]), match[2].strip()

    def _not_understood(self, command: str, lines: Sequence[str]) -> TransientError:
        said = shown(self._credentials.hidden(" | ".join(lines)))
        return TransientError(f"{NAME}: answer to {command} not understood: {said}")


def _listed(numbers: Sequence[int]) -> str:
    """Port numbers as a command has them: runs of three and more as ranges."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return "&".join(f"{run[0]}&&{run[-1]}" if len(run) > 2 else "&".join(map(str, run)) for run in runs)
