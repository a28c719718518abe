"""The emulator's own port: a page for people, and a side door for faults, restarts and foreign changes.

Anybody may look. Nobody is asked who he is, therefore only this machine may change anything, and only with
JSON, which a page of some other site cannot send from a browser.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs

from pydantic import Field, ValidationError

from opus_sdn.drivers.polatis_emulator.faults import Faults, ReplyFault
from opus_sdn.drivers.polatis_emulator.files import check
from opus_sdn.drivers.polatis_emulator.http import Answer, Request
from opus_sdn.drivers.polatis_emulator.page_html import write_page
from opus_sdn.drivers.polatis_emulator.refusals import RefusalError
from opus_sdn.drivers.polatis_emulator.spec import Milliseconds, PortNumber, Strict

if TYPE_CHECKING:
    from opus_sdn.drivers.polatis_emulator.emulator import PolatisEmulator

REQUESTS_SHOWN = 50
_HTML = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
_JSON = {"content-type": "application/json", "cache-control": "no-store"}


class _Reboot(Strict):
    kept: Literal["light", "saved", "old", "nothing"] = "light"
    ms: Milliseconds | None = None


class _Circuits(Strict):
    connect: tuple[tuple[PortNumber, PortNumber], ...] = Field((), max_length=4096)
    disconnect: tuple[PortNumber, ...] = Field((), max_length=4096)


class Page:
    """Answers on the emulator's own port."""

    def __init__(self, emulator: PolatisEmulator) -> None:
        self._emulator = emulator
        self._writes: dict[tuple[str, str], Callable[[bytes], Awaitable[object]]] = {
            ("PATCH", "/emulator/faults"): self._change_faults,
            ("PUT", "/emulator/faults"): self._replace_faults,
            ("POST", "/emulator/replies"): self._add_reply,
            ("PUT", "/emulator/replies"): self._replace_replies,
            ("POST", "/emulator/reboot"): self._reboot,
            ("POST", "/emulator/circuits"): self._circuits,
        }

    async def answer(self, request: Request) -> Answer:
        """One request."""
        if request.method in ("GET", "HEAD"):
            return self._show(request)
        act = self._writes.get((request.method, request.path))
        if act is None:
            known = ", ".join(f"{method} {path}" for method, path in self._writes)
            return _said(404, {"error": f"{request.method} {request.path} is not possible; known: {known}"})
        if not ipaddress.ip_address(request.peer).is_loopback:
            return _said(403, {"error": "faults are set from the emulator's own machine only"})
        if not request.headers.get("content-type", "").lower().startswith("application/json"):
            return _said(415, {"error": "content-type must be application/json"})
        try:
            return _said(200, await act(request.body))
        except (ValidationError, ValueError) as wrong:
            return _said(422, {"error": str(wrong)})
        except RefusalError as refusal:
            return _said(409, {"error": refusal.detail})

    def _show(self, request: Request) -> Answer:
        if request.path == "/":
            return Answer(200, write_page(self._emulator).encode(), _HTML)
        shown: dict[str, Callable[[], object]] = {
            "/emulator": self._state,
            "/emulator/faults": lambda: self._emulator.faults.model_dump(mode="json"),
            "/emulator/replies": self._replies,
            "/emulator/requests": lambda: [_asked(entry) for entry in self._emulator.requests],
        }
        if request.path in shown:
            return _said(200, shown[request.path]())
        if request.path == "/emulator/light":
            return self._light(request)
        return _said(
            404, {"error": f"{request.path} is not there; known: /, {', '.join(shown)}, /emulator/light"}
        )

    def _state(self) -> dict[str, Any]:
        emulator, device = self._emulator, self._emulator.device
        return {
            "model": emulator.spec.model_name,
            "size": emulator.spec.size_text,
            "restconf": emulator.restconf_url,
            "tl1": emulator.tl1_address,
            "witness": emulator.witness_address,
            "circuits": [
                {"ingress": a, "egress": b, "lit": device.optics.is_lit(b)} for a, b in device.table.items()
            ],
            "moving": sorted(device.optics.moving),
            "faults": emulator.faults.model_dump(mode="json", exclude_defaults=True),
            "replies": self._replies(),
            "sessions": [
                {"protocol": s.protocol, "user": s.user, "address": s.address} for s in emulator.sessions
            ],
            "clock": device.clock(),
        }

    def _light(self, request: Request) -> Answer:
        """Times without light of one port; `clock` is now, on the same clock."""
        query = parse_qs(request.query)
        try:
            port, since = int(query["port"][0]), float(query.get("since", ["-inf"])[0])
        except (KeyError, ValueError):
            return _said(
                422, {"error": "port is wanted, and since in seconds of the clock: ?port=33&since=12.5"}
            )
        if port not in self._emulator.spec.layout.ports:
            return _said(404, {"error": f"port {port} is not there"})
        dark = [{"begin": gap.begin, "end": gap.end} for gap in self._emulator.light.dark(port, since)]
        return _said(200, {"port": port, "dark": dark, "clock": self._emulator.device.clock()})

    def _replies(self) -> list[Any]:
        return [fault.model_dump(mode="json") for fault in self._emulator.script.due]

    async def _change_faults(self, body: bytes) -> object:
        changes = json.loads(body)
        if not isinstance(changes, dict):
            raise ValueError('an object of faults is wanted, as {"remote_lock": true}')
        merged = self._emulator.faults.model_dump(mode="json") | changes
        await self._emulator.set_faults(check(Faults, merged, "faults"))
        return self._emulator.faults.model_dump(mode="json")

    async def _replace_faults(self, body: bytes) -> object:
        await self._emulator.set_faults(Faults.model_validate_json(body, strict=True))
        return self._emulator.faults.model_dump(mode="json")

    async def _add_reply(self, body: bytes) -> object:
        self._emulator.script.add(ReplyFault.model_validate_json(body, strict=True))
        return self._replies()

    async def _replace_replies(self, body: bytes) -> object:
        entries = json.loads(body)
        if not isinstance(entries, list):
            raise ValueError("a list of reply faults is wanted; [] forgets all")
        faults = [check(ReplyFault, entry, "replies") for entry in entries]
        self._emulator.script.clear()
        for fault in faults:
            self._emulator.script.add(fault)
        return self._replies()

    async def _reboot(self, body: bytes) -> object:
        wanted = _Reboot.model_validate_json(body or b"{}", strict=True)
        await self._emulator.reboot(wanted.kept, wanted.ms)
        return self._state()

    async def _circuits(self, body: bytes) -> object:
        wanted = _Circuits.model_validate_json(body, strict=True)
        done = await self._emulator.foreign(connect=wanted.connect, disconnect=wanted.disconnect)
        return {"removed": done.removed, "added": done.added, "displaced": done.displaced}


def _asked(entry: Any) -> dict[str, object]:
    return {
        "at": entry.at,
        "door": entry.door,
        "user": entry.user,
        "request": entry.request,
        "answer": entry.answer,
    }


def _said(status: int, document: object) -> Answer:
    return Answer(status, json.dumps(document).encode() + b"\n", _JSON)
