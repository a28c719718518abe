"""RESTCONF's forms: resource paths, bodies in JSON and XML, and error documents in every style seen."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from opus_sdn.drivers.polatis_emulator.faults import Faults

JSON_TYPE = "application/yang-data+json"
XML_TYPE = "application/yang-data+xml"
NAMESPACES = {
    "optical-switch": "http://www.polatis.com/yang/optical-switch",
    "polatis-switch": "http://www.polatis.com/yang/polatis-switch",
    "ietf-yang-library": "urn:ietf:params:xml:ns:yang:ietf-yang-library",
    "ietf-restconf": "urn:ietf:params:xml:ns:yang:ietf-restconf",
}
COLLECTION = "http://tail-f.com/ns/restconf/collection/1.0"
DEPTH_MAX = 16

_SEGMENT = re.compile(r"(?:([A-Za-z][\w.-]*):)?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)


class HttpProblem(Exception):  # noqa: N818 - an answer of the protocol, which happens to be none of the good ones
    """Ends a request with an error document."""

    def __init__(self, status: int, tag: str, message: str, path: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.tag = tag
        self.message = message
        self.path = path


def not_found() -> HttpProblem:
    """The answer for whatever is not there."""
    return HttpProblem(404, "invalid-value", "uri keypath not found")


def malformed(message: str) -> HttpProblem:
    """The answer for a body that is none."""
    return HttpProblem(400, "malformed-message", message)


@dataclass(frozen=True, slots=True)
class Segment:
    """One step of a resource path: `module:name=key`; what is not given is None."""

    module: str | None
    name: str
    key: str | None


def parse_path(path: str) -> tuple[Segment, ...]:
    """The steps below `/api/data/`."""
    segments = []
    for part in path.strip("/").split("/"):
        found = _SEGMENT.fullmatch(part)
        if found is None:
            raise not_found()
        module, name, key = found.groups()
        segments.append(Segment(module, name, None if key is None else unquote(key)))
    return tuple(segments)


def local(name: str) -> str:
    """A member's name without its module."""
    return name.rpartition(":")[2]


def parse_body(body: bytes, content_type: str) -> dict[str, Any]:
    """The members of a body, names without modules. XML becomes the same form, every value a text."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind.endswith("xml"):
        return _parse_xml(body)
    if not kind.endswith("json"):
        raise HttpProblem(415, "malformed-message", "unsupported media type")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise malformed("malformed JSON") from None
    if not isinstance(document, dict) or not document:
        raise malformed("a JSON object with a member was expected")
    return {local(name): value for name, value in document.items()}


def _parse_xml(body: bytes) -> dict[str, Any]:
    # Without declarations there are no entities, and so nothing that could grow or reach out.
    if b"<!" in body:
        raise malformed("declarations are not accepted")
    try:
        root = ET.fromstring(body)  # noqa: S314 - see above
        return {_tag(root): _value(root)}
    except (ET.ParseError, RecursionError, ValueError):
        raise malformed("malformed XML") from None


def _tag(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _value(element: ET.Element, depth: int = 0) -> Any:
    if depth > DEPTH_MAX:
        raise ValueError
    if not len(element):
        return (element.text or "").strip()
    value: dict[str, Any] = {}
    for child in element:
        name, inner = _tag(child), _value(child, depth + 1)
        if name not in value:
            value[name] = inner
        elif isinstance(value[name], list):
            value[name].append(inner)
        else:
            value[name] = [value[name], inner]
    return value


def as_list(value: Any) -> list[Any]:
    """A list that a client may have written as its only entry."""
    return value if isinstance(value, list) else [value]


def whole_number(value: object, leaf: str) -> int:
    """A number from JSON, or from the text of XML."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise HttpProblem(400, "invalid-value", f'"{value}" is not a valid value for leaf {leaf}')
    return value


def decimal(value: object, leaf: str) -> float:
    """A decimal: a text by the rules, a number from clients that do not know them."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if abs(number) < 1e6:
            return number
    raise HttpProblem(400, "invalid-value", f'"{value}" is not a valid value for leaf {leaf}')


def write_json(module: str, name: str, value: Any, *, prefixed: bool) -> bytes:
    """A body with one member."""
    return json.dumps({f"{module}:{name}" if prefixed else name: value}, separators=(",", ":")).encode()


def write_xml(module: str, name: str, value: Any) -> bytes:
    """The same as XML; several entries of a list come in a collection."""
    namespace = NAMESPACES.get(module, module)
    if isinstance(value, list):
        inner = "".join(_element(local(name), entry, namespace) for entry in value)
        return f'<collection xmlns="{COLLECTION}">{inner}</collection>'.encode()
    return _element(local(name), value, namespace).encode()


def _element(name: str, value: Any, namespace: str = "") -> str:
    xmlns = f' xmlns="{namespace}"' if namespace else ""
    return f"<{name}{xmlns}>{_inner(value)}</{name}>"


def _inner(value: Any) -> str:
    if isinstance(value, dict):
        parts = []
        for member, inner in value.items():
            module, _, plain = member.rpartition(":")
            parts += [_element(plain, entry, NAMESPACES.get(module, "")) for entry in as_list(inner)]
        return "".join(parts)
    if isinstance(value, bool):
        return "true" if value else "false"
    return escape(str(value))


def write_error(problem: HttpProblem, faults: Faults, url: str) -> tuple[bytes, str]:
    """An error document and its media type, in the style of this firmware or of what stands before it."""
    error: dict[str, str] = {"error-type": "application", "error-tag": problem.tag}
    if problem.path:
        error["error-path"] = problem.path
    error["error-message"] = problem.message
    match faults.errors:
        case "ietf":
            return json.dumps({"ietf-restconf:errors": {"error": [error]}}).encode(), JSON_TYPE
        case "confd":
            old = {"error-message": problem.message, "error-urlpath": url, "error-tag": problem.tag}
            return json.dumps({"errors": {"error": [old]}}).encode(), JSON_TYPE
        case "xml":
            return _element("errors", {"error": [error]}, NAMESPACES["ietf-restconf"]).encode(), XML_TYPE
        case "html":
            page = f"<html><head><title>{problem.status}</title></head><body><h1>Error</h1></body></html>"
            return page.encode(), "text/html"
    return b"", ""
