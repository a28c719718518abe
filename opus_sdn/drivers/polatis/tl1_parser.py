"""TL1 output, piece by piece as it comes from the socket, into answers and messages sent unasked.

A block is a header line, a line that says what it is, text lines and a terminator: `;` at its end, `>` when
more blocks of the same answer follow. `;` inside quotes is text. Acknowledgements (`IP 12` and `<`) and
prompts are passed over. A message sent unasked may come in the middle of an answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

BLOCK_MAX_BYTES: Final = 4 * 1024 * 1024
QUOTED_MAX: Final = 4096
PARTIAL_MAX: Final = 8

_HEADER: Final = re.compile(r"^\s*(?P<sid>\S.*?)\s+\d\d-\d\d-\d\d\s+\d\d:\d\d:\d\d\s*$")
_ANSWER: Final = re.compile(r"^M\s+(?P<ctag>\S+)\s+(?P<code>[A-Z]+)\s*$")
_UNASKED: Final = re.compile(r"^(?:\*C|\*\*|\*|A)\s+(?P<atag>\S+)\s*(?P<what>.*)$")
_WITHIN: Final = re.compile(r"^(?:\*C|\*\*|\*|A)\s+\S+\s+REPT\b")
_ACKNOWLEDGED: Final = re.compile(r"^(?:IP|PF|OK|NA|NG|RL)\s+\S+\s*$")


class Tl1SyntaxError(ValueError):
    """Output that is no TL1, or endless; the session is of no use any more."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one command. `lines`: what stood between quotes; `code`: the first bare word."""

    ctag: str
    completion: str
    lines: tuple[str, ...]
    code: str = ""
    sid: str = ""

    @property
    def completed(self) -> bool:
        """Whether the command was carried out."""
        return self.completion == "COMPLD"


@dataclass(frozen=True, slots=True)
class Unasked:
    """A message that answers no command."""

    what: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Aside:
    """A line outside all blocks: a prompt, an echo, or a word about the session."""

    text: str


Found = Answer | Unasked | Aside


@dataclass(slots=True)
class _Block:
    sid: str = ""
    ctag: str | None = None
    completion: str = ""
    unasked: str | None = None
    code: str = ""
    lines: list[str] = field(default_factory=list)

    @property
    def known(self) -> bool:
        return self.ctag is not None or self.unasked is not None


class Tl1Parser:
    """`feed` it what arrives; it gives what has become complete. Of no use after a Tl1SyntaxError."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._quoted = False
        self._escaped = False
        self._size = 0
        self._blocks: list[_Block] = []  # the inner one is a message in the middle of the outer one
        self._partial: dict[str, _Block] = {}  # answers of which more is to come, by ctag
        self._partial_size = 0

    def feed(self, data: bytes) -> list[Found]:
        """Take the next bytes, as few or as many as there are."""
        done: list[Found] = []
        for byte in data:
            self._size += 1
            if self._size > BLOCK_MAX_BYTES:
                raise Tl1SyntaxError(f"a block of more than {BLOCK_MAX_BYTES} bytes")
            if self._quoted:
                self._take_quoted(byte)
            elif byte == 0x22:  # "
                self._quoted = True
                self._line.append(byte)
            elif byte in b"\r\n":
                self._end_line(done)
            elif byte in b";><":
                self._end_line(done)
                found = self._end_block(more=byte == 0x3E) if byte != 0x3C else None
                if found is not None:
                    done.append(found)
            else:
                self._line.append(byte)
        return done

    def _take_quoted(self, byte: int) -> None:
        self._line.append(byte)
        if self._escaped:
            self._escaped = False
        elif byte == 0x5C:  # backslash
            self._escaped = True
        elif byte == 0x22:
            self._quoted = False
        if len(self._line) > QUOTED_MAX and self._quoted:
            raise Tl1SyntaxError(f"text of more than {QUOTED_MAX} bytes without its closing quote")

    def _end_line(self, done: list[Found]) -> None:
        line = self._line.decode(errors="replace").strip()
        self._line.clear()
        if not line or _ACKNOWLEDGED.match(line):
            return
        header = _HEADER.match(line) if '"' not in line else None
        if header is not None:
            self._open(header["sid"])
            return
        if not self._blocks:
            # Prompts and echoes belong to no block, nor do words about the session. Some devices leave the
            # header out before a message sent unasked, and that of the first answer may be cut off.
            if not (_ANSWER.match(line) or _UNASKED.match(line)):
                self._size = 0
                done.append(Aside(_unquoted(line) or line))
                return
            self._open("")
        elif self._blocks[-1].known and _WITHIN.match(line):
            self._open("")
        self._take(self._blocks[-1], line)

    def _open(self, sid: str) -> None:
        """A header begins a block; inside one that has begun in earnest it begins a message within it."""
        if self._blocks and not self._blocks[-1].known:
            self._blocks.pop()
        elif len(self._blocks) >= 2:
            raise Tl1SyntaxError("three blocks within one another")
        self._blocks.append(_Block(sid))

    def _take(self, block: _Block, line: str) -> None:
        if not block.known:
            answer, unasked = _ANSWER.match(line), _UNASKED.match(line)
            if answer is not None:
                block.ctag, block.completion = answer["ctag"], answer["code"]
            elif unasked is not None:
                block.unasked = unasked["what"].strip()
            else:
                raise Tl1SyntaxError(f"neither an answer nor a message: {line[:80]!r}")
            return
        quoted = _unquoted(line)
        if quoted is not None:
            block.lines.append(quoted)
        elif not block.code:
            block.code = line.split(maxsplit=1)[0]

    def _end_block(self, *, more: bool) -> Answer | Unasked | None:
        if not self._blocks or (more and not self._blocks[-1].known):
            return None  # a prompt, or the end of an acknowledgement
        block = self._blocks.pop()
        if not self._blocks:
            self._size = 0
        if block.unasked is not None:
            return Unasked(block.unasked, tuple(block.lines))
        if block.ctag is None:
            return None
        begun = self._partial.setdefault(block.ctag, block)
        if begun is not block:
            begun.lines += block.lines
            begun.code = begun.code or block.code
        self._partial_size += sum(map(len, block.lines))
        if more:
            if len(self._partial) > PARTIAL_MAX or self._partial_size > BLOCK_MAX_BYTES:
                raise Tl1SyntaxError("too much of answers that are not at their end")
            return None
        del self._partial[block.ctag]
        self._partial_size -= sum(map(len, begun.lines))
        return Answer(block.ctag, block.completion, tuple(begun.lines), begun.code, block.sid)


def _unquoted(line: str) -> str | None:
    """The text between the outer quotes; None when there are none."""
    if len(line) < 2 or line[0] != '"' or line[-1] != '"':
        return None
    return re.sub(r"\\(.)", r"\1", line[1:-1])
