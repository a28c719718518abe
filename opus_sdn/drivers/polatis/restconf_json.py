"""Decoding of what RESTCONF answers. Tolerant of form, strict in content; never takes nonsense for "empty".

Seen or to be expected: module prefixes or none, a list or its single entry, no body for an empty table,
decimals as text or as numbers, the list of circuits called `pairs` by old firmware.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from opus_sdn.drivers.polatis.wire import Identity, Numbers, WirePort, shown

PAIR_NAMES = ("pair", "pairs")
_TAG = re.compile(r"<[^>]{0,200}>")


class UnreadableError(ValueError):
    """An answer that makes no sense; the message says what was expected."""


def decoded(body: bytes) -> Any:
    """JSON, or UnreadableError."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise UnreadableError(f"no JSON: {shown(body[:400].decode(errors='replace'))!r}") from None


def member(value: Any, *names: str) -> Any:
    """The member of an object under one of these names, with or without a module's prefix; None if absent."""
    if not isinstance(value, dict):
        raise UnreadableError(f"wanted an object with {' or '.join(names)}, got {type(value).__name__}")
    for key, found in value.items():
        if key.rpartition(":")[2] in names:
            return found
    return None


def entries(value: Any) -> list[dict[str, Any]]:
    """A list of objects, of which a single one may stand alone; nothing is an empty list."""
    if value is None:
        return []
    found = value if isinstance(value, list) else [value]
    for entry in found:
        if not isinstance(entry, dict):
            raise UnreadableError(f"wanted a list of objects, got one of {type(entry).__name__}")
    return found


def pairs_of(body: bytes) -> tuple[tuple[Numbers, ...], str | None]:
    """The circuits of a `cross-connects` answer, and what its list is called (None when it is not there)."""
    if not body.strip():
        return (), None
    document = decoded(body)
    container = member(document, "cross-connects")
    if container is None:
        if document != {}:
            raise UnreadableError(f"wanted cross-connects, got {shown(', '.join(map(str, document)))}")
        container = {}
    if not isinstance(container, dict):
        raise UnreadableError(f"cross-connects is {type(container).__name__}; wanted an object")
    name = next((n for n in PAIR_NAMES if any(key.rpartition(":")[2] == n for key in container)), None)
    if name is None and container:
        raise UnreadableError(
            f"cross-connects has {shown(', '.join(map(str, container)))}; wanted pair or pairs"
        )
    found: list[Numbers] = []
    for entry in entries(member(container, name) if name else None):
        ingress, egress = whole(member(entry, "ingress")), whole(member(entry, "egress"))
        found.append((min(ingress, egress), max(ingress, egress)))
    held = [number for pair in found for number in pair]
    if len(set(held)) < len(held):
        raise UnreadableError("cross-connects has a port in two circuits")
    return tuple(sorted(found)), name


def identity_of(body: bytes) -> Identity:
    """Who the device is."""
    known = member(decoded(body), "product-information")
    model = member(known, "model-name")
    if not isinstance(model, str):
        raise UnreadableError("product-information has no model-name")
    return Identity(model, model, str(member(known, "software-version")), str(member(known, "serial-number")))


def ports_of(body: bytes) -> dict[int, WirePort]:
    """State and label of every port; a list, or the container around it."""
    found: dict[int, WirePort] = {}
    for entry in _port_entries(body, "port-config"):
        status = member(entry, "status", "port-state")
        label = member(entry, "label")
        found[whole(member(entry, "port-id"))] = WirePort(
            enabled=status in (None, "ENABLED", "PC_ENABLED", "PO_ENABLED"),
            failed=status in ("FAILED", "PO_FAILED"),
            label=label if isinstance(label, str) else "",
        )
    return found


def power_of(body: bytes) -> dict[int, float]:
    """dBm by port number, of those that are measured."""
    return {
        whole(member(entry, "port-id")): decimal(member(entry, "power"))
        for entry in _port_entries(body, "opm-power")
    }


def whole(value: Any) -> int:
    """A whole number, which RFC 7951 writes as one and others as text."""
    if type(value) is int:
        return value
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,9}", value):
        return int(value)
    raise UnreadableError(f"wanted a whole number, got {shown(repr(value))}")


def decimal(value: Any) -> float:
    """A decimal, which RFC 7951 writes as text and others as a number."""
    if type(value) in (int, float) and abs(value) < 1e6:
        return float(value)
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,6}(\.[0-9]{1,18})?", value):
        return float(value)
    raise UnreadableError(f"wanted a decimal, got {shown(repr(value))}")


def complaint_of(body: bytes) -> tuple[str, str]:
    """Tag and message of an error answer, in whichever form it comes; empty where there are none.

    For people: what an answer means is decided by its status.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return "", shown(_TAG.sub(" ", body[:4000].decode(errors="replace")))
    try:
        errors = entries(member(member(document, "errors"), "error"))
        first: Mapping[str, Any] = errors[0] if errors else {}
        return shown(str(member(first, "error-tag") or "")), shown(str(member(first, "error-message") or ""))
    except UnreadableError:
        return "", shown(str(document))


def _port_entries(body: bytes, container: str) -> list[dict[str, Any]]:
    if not body.strip():
        return []
    document = decoded(body)
    inner = member(document, container)
    return entries(member(document if inner is None else inner, "port"))
