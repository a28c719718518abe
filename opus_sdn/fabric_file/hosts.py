"""Ranges of host names, as cluster tools write them: `gpu[000-127]` and `node[1-3,7]`."""

from __future__ import annotations

import re

HOSTS_MAX = 65_536

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_RANGES = re.compile(r"([^\[\]]*)\[([0-9,-]+)\]([^\[\]]*)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class HostRangeError(ValueError):
    """A host entry that names no hosts; the text says why and what would."""


def expand_hosts(entry: str) -> tuple[str, ...]:
    """The hosts that one entry of the list names, in order. Raises HostRangeError.

    A number with leading zeros gives its width to the whole range: `gpu[08-10]` is gpu08, gpu09, gpu10.
    """
    if "[" not in entry and "]" not in entry:
        return (_checked(entry, entry),)
    parts = _RANGES.fullmatch(entry)
    if parts is None:
        raise HostRangeError(
            f"is {entry!r}, which is no host range; write one pair of brackets, as gpu[000-127]"
        )
    before, ranges, after = parts.groups()
    spans = [_span(text, entry) for text in ranges.split(",")]
    if sum(last - first + 1 for first, last, _ in spans) > HOSTS_MAX:
        raise HostRangeError(f"is {entry!r}, which is more than {HOSTS_MAX} hosts; name fewer")
    return tuple(
        _checked(f"{before}{number:0{width}d}{after}", entry)
        for first, last, width in spans
        for number in range(first, last + 1)
    )


def _span(text: str, entry: str) -> tuple[int, int, int]:
    """First number, last number and width in digits of one part of a range."""
    found = _RANGE.fullmatch(text)
    first, last = (found[1], found[2] or found[1]) if found else ("1", "0")
    if int(last) < int(first):
        raise HostRangeError(f"is {entry!r}, where {text!r} is no range; write low-high, as 0-3")
    return int(first), int(last), len(first) if first.startswith("0") else 1


def _checked(name: str, entry: str) -> str:
    if not _NAME.fullmatch(name):
        shown = repr(name) if name == entry else f"{entry!r}, which gives {name!r}"
        raise HostRangeError(
            f"is {shown}, which is no host name; use up to 253 letters, digits, dots, dashes and underscores"
        )
    return name
