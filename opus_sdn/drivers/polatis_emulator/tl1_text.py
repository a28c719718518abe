"""TL1 as text: the commands in a stream of bytes, their parts, lists of ports, and the form of answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

COMMAND_MAX_BYTES = 65_536
PORTS_MAX = 8192  # of one list, ranges written out
BLOCK_LINES = 32  # of output that comes in several blocks
NIL_SID = "( nil )"

_VERB = re.compile(r"[A-Z]+(?:-[A-Z0-9]+)*")
_TID = re.compile(r'[A-Za-z][A-Za-z0-9]*|"[^"]*"')
_CTAG = re.compile(r"[A-Za-z0-9]{1,20}")


class DenialError(Exception):
    """The command was refused; `code` is empty where the device answers with a text alone."""

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class ParseError(DenialError):
    """The command has not the form of one; `ctag` as far as it was found."""

    def __init__(self, code: str, offset: int, ctag: str = "0") -> None:
        super().__init__(code, f"Parse error at offset {offset} in command")
        self.ctag = ctag


class CommandReader:
    """Cuts a stream into commands. A semicolon between quotes ends none."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._quoted = False
        self._too_long = False

    def feed(self, data: bytes) -> list[str | None]:
        """The commands that these bytes complete, without their semicolons; None for a too long one."""
        commands: list[str | None] = []
        for byte in data:
            if byte == 0x3B and not self._quoted:
                commands.append(None if self._too_long else self._buffer.decode("latin-1").strip())
                self._buffer.clear()
                self._too_long = False
                continue
            if byte == 0x22:
                self._quoted = not self._quoted
            if len(self._buffer) < COMMAND_MAX_BYTES:
                self._buffer.append(byte)
                continue
            # What does not end is no command, and its open quote is none: begin again at the next semicolon.
            self._too_long = True
            self._quoted = False
        return commands


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `blocks` follow the ctag: the general block is number 0, data usually in 1 or 2."""

    verb: str
    tid: str
    aid: str
    ctag: str
    blocks: tuple[str, ...]

    def block(self, number: int) -> str:
        """A block's text; empty when it was left out."""
        return self.blocks[number] if number < len(self.blocks) else ""

    def values(self, number: int) -> dict[str, str]:
        """The NAME=VALUE parameters of a block, names in capitals. Raises DenialError."""
        found: dict[str, str] = {}
        for part in self.block(number).split(","):
            if not part.strip():
                continue
            name, mark, value = part.partition("=")
            if not mark:
                raise DenialError("IPNV", f"Unexpected parameter {name.strip()} in block {number}")
            found[name.strip()] = unquoted(value.strip())
        return found


def parse_command(text: str) -> Command:
    """Read one command without its semicolon. Raises ParseError at the field that is none."""
    parts = _split(text)
    verb = re.sub(r"\s*-\s*", "-", parts[0].strip()).upper()
    ctag_text = parts[3].strip() if len(parts) > 3 else ""
    known = ctag_text if _CTAG.fullmatch(ctag_text) else "0"
    if _VERB.fullmatch(verb) is None:
        raise ParseError("IICM", 1, known)
    tid = parts[1].strip() if len(parts) > 1 else ""
    if tid and _TID.fullmatch(tid) is None:
        raise ParseError("IITA", len(parts[0]) + 2, known)
    if known == "0" and ctag_text != "0":
        raise ParseError("IICT", sum(len(part) + 1 for part in parts[:3]) + 1)
    return Command(
        verb, unquoted(tid), parts[2].strip(), ctag_text, tuple(part.strip() for part in parts[4:])
    )


def _split(text: str) -> list[str]:
    """The parts between colons that are not in quotes."""
    parts, quoted = [""], False
    for char in text:
        if char == '"':
            quoted = not quoted
        if char == ":" and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def unquoted(text: str) -> str:
    """The text without the quotes around it."""
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] == '"' else text


def parse_ports(text: str, ports: range) -> list[int]:
    """A list such as `1&2&5` or `1&&8`. Raises DenialError at the first token that is no port."""
    found: list[int] = []
    # Two ampersands make a range of what stands on both sides of them.
    for item in re.split(r"(?<!&)&(?!&)", text):
        first, mark, last = item.partition("&&")
        begin = _port(first, ports)
        end = _port(last, ports) if mark else begin
        if begin > end:
            raise DenialError("IDNV", f"Invalid OXC port: {last.strip()}")
        found += range(begin, end + 1)
        if len(found) > PORTS_MAX:
            raise DenialError("IIAC", f"Too many parameters ({len(found)}/{PORTS_MAX})")
    return found


def _port(token: str, ports: range) -> int:
    token = token.strip()
    if not (token.isascii() and token.isdecimal() and len(token) < 10 and int(token) in ports):
        raise DenialError("IDNV", f"Invalid OXC port: {token}")
    return int(token)


def ports_or_all(text: str, ports: range) -> list[int]:
    """As `parse_ports`; nothing, or ALL, is every port."""
    return list(ports) if text.upper() in ("", "ALL") else parse_ports(text, ports)


def header(sid: str, at: float) -> str:
    """The first line of every message. `at` = seconds since 1970."""
    when = datetime.fromtimestamp(at, UTC).strftime("%y-%m-%d %H:%M:%S")
    return f"\r\n\r\n   {sid or NIL_SID} {when}\r\n"


def quote(line: str) -> str:
    """A line of text as it stands in a message; quotes inside it are escaped."""
    escaped = line.replace("\\", "\\\\").replace('"', '\\"')
    return f'   "{escaped}"\r\n'


def completed(head: str, ctag: str, lines: Sequence[str], *, blocks: bool = False) -> list[str]:
    """The answer to a command that was done, in one block or, when long and so wished, in several."""
    step = BLOCK_LINES if blocks else max(1, len(lines))
    parts = [lines[begin : begin + step] for begin in range(0, max(1, len(lines)), step)]
    ends = [">"] * (len(parts) - 1) + [";"]
    return [
        f"{head}M  {ctag} COMPLD\r\n{''.join(map(quote, part))}{end}"
        for part, end in zip(parts, ends, strict=True)
    ]


def denied(head: str, ctag: str, denial: DenialError) -> str:
    """The answer to a command that was refused."""
    code = f"   {denial.code}\r\n" if denial.code else ""
    return f"{head}M  {ctag} DENY\r\n{code}{quote(denial.text) if denial.text else ''};"


def autonomous(head: str, atag: int, lines: Iterable[str], *, alarm: bool = False) -> str:
    """A message that nobody has asked for."""
    mark, what = ("*C", "REPT ALM EQPT") if alarm else ("A ", "REPT EVT EQPT")
    return f"{head}{mark} {atag} {what}\r\n{''.join(map(quote, lines))};"
