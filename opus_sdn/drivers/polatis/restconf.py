"""RESTCONF as a Polatis speaks it, over httpx: one request at a time in, one decision by status out."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx

from opus_sdn.drivers.base import DriverError, Persistence, Refusal, TerminalError, TransientError
from opus_sdn.drivers.polatis.options import Credentials, PolatisOptions
from opus_sdn.drivers.polatis.restconf_json import (
    PAIR_NAMES,
    UnreadableError,
    complaint_of,
    decoded,
    identity_of,
    member,
    pairs_of,
    ports_of,
    power_of,
)
from opus_sdn.drivers.polatis.wire import (
    ChangedError,
    Identity,
    Numbers,
    PortBusyError,
    WirePort,
    WireTable,
    lost,
    require_numbers,
    says_locked,
    shown,
)

MEDIA: Final = "application/yang-data+json"
DATA: Final = "/api/data/"
CIRCUITS: Final = DATA + "optical-switch:cross-connects"
ANSWER_MAX_BYTES: Final = 4 * 1024 * 1024
RETRY_AFTER_MAX_S: Final = 60.0
# From this release on the published module has the list `pair`; before it `pairs`. Asked for only where the
# device itself shows neither name.
PAIR_SINCE: Final = (6, 6)
# An entity tag that can be sent back. Real ones have no quotes.
MARK: Final = re.compile(r"[!-~]{1,128}")
LABEL: Final = re.compile(r"[ -~]{0,128}")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    etag: str | None
    retry_after_s: float


class RestconfTransport:
    """One device over RESTCONF. `context`: whom to trust. `http`: None for a real connection."""

    name = "RESTCONF"

    def __init__(
        self,
        options: PolatisOptions,
        credentials: Credentials,
        *,
        context: ssl.SSLContext | bool = True,
        http: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._options = options
        self._credentials = credentials
        self._http = http
        self._context = context
        self._client = self._open()
        self._list: str | None = None  # what this firmware calls the list of circuits
        self._preconditions = True  # whether the device understands its own ETags in If-Match

    async def identify(self) -> Identity:
        """Which device this is; finds out how its firmware names things too."""
        identity = await self._identity()
        await self.table()
        if self._list is None:
            self._list = await self._list_by_asking(identity.firmware)
        return identity

    async def persistence(self) -> Persistence:
        """The start-up mode, where this user may see it."""
        answer = await self._ask("GET", DATA + "optical-switch:system-config/polatis-switch:startup-mode")
        modes = {"MODE_PRESERVE": Persistence.PRESERVED, "MODE_VOLATILE": Persistence.VOLATILE}
        if answer.status != 200:
            return Persistence.UNKNOWN
        mode = self._read(lambda body: member(decoded(body), "startup-mode"), answer)
        return modes.get(str(mode).rpartition(":")[2], Persistence.UNKNOWN)

    async def table(self) -> WireTable:
        """All cross-connects."""
        answer = await self._ask("GET", CIRCUITS)
        if answer.status == 404:
            # Firmware that has no circuits may say so; but so do a proxy, and a device that is not up yet.
            await self._identity()
            return WireTable((), answer.etag)
        self._require_success(answer, writing=False)
        pairs, name = self._read(pairs_of, answer)
        self._list = name or self._list
        return WireTable(pairs, answer.etag)

    async def merge(self, pairs: Sequence[Numbers], before: WireTable) -> None:
        """One PATCH of the list: entries replace those of the same ingress, others stay."""
        for pair in pairs:
            require_numbers(pair)
        if pairs:
            name = self._list_name()
            body = {name: [{"ingress": a, "egress": b} for a, b in pairs]}
            answer = await self._ask_if("PATCH", f"{DATA}cross-connects/{name}", body, before.etag)
            self._require_success(answer, writing=True)

    async def delete(self, ingresses: Sequence[int], before: WireTable) -> str | None:
        """One DELETE for each entry: there is no request for several.

        Each is made only if the table is as the former left it, lest a circuit goes that somebody else made.
        """
        require_numbers(ingresses)
        name, mark = self._list_name(), before.etag
        for turn, ingress in enumerate(ingresses):
            try:
                answer = await self._ask_if("DELETE", f"{CIRCUITS}/{name}={ingress:d}", None, mark)
            except ChangedError as error:
                if turn == 0:
                    raise
                made = f"after {turn} of {len(ingresses)} removals were made"
                raise TransientError(f"{error.detail}, {made}", 0.0) from None
            mark = answer.etag
            if answer.status != 404:
                self._require_success(answer, writing=True)
        return mark

    async def replace(self, pairs: Sequence[Numbers], before: WireTable) -> None:
        """PUT of the whole container; DELETE of it where nothing is to be left."""
        for pair in pairs:
            require_numbers(pair)
        entries = [{"ingress": a, "egress": b} for a, b in pairs]
        body = {"optical-switch:cross-connects": {self._list_name(): entries}}
        method = "PUT" if pairs else "DELETE"
        answer = await self._ask_if(method, CIRCUITS, body if pairs else None, before.etag)
        self._require_success(answer, writing=True)

    async def ports(self, total: int, *, labels: bool = False) -> Mapping[int, WirePort]:
        """All ports, labels included, in one request."""
        return self._read(ports_of, await self._get(DATA + "optical-switch:port-config/port"))

    async def power(self, numbers: Sequence[int]) -> Mapping[int, float] | None:
        """All measured ports, in one request; a device that lists none has no monitors."""
        answer = await self._ask("GET", DATA + "optical-switch:opm-power/port")
        if answer.status in (204, 404):
            return None
        self._require_success(answer, writing=False)
        found = self._read(power_of, answer)
        return {number: found[number] for number in numbers if number in found} if found else None

    async def shutter(self, numbers: Sequence[int], *, closed: bool) -> None:
        """One call for all of them."""
        require_numbers(numbers)
        if numbers:
            body = {"optical-switch:input": {"port-disab" if closed else "port-enab": list(numbers)}}
            answer = await self._ask("POST", "/api/operations/optical-switch:port-set-state", body)
            self._require_success(answer, writing=True)

    async def label(self, labels: Mapping[int, str]) -> None:
        """One PATCH for each port."""
        require_numbers(labels)
        for text in labels.values():
            if not LABEL.fullmatch(text):
                raise TerminalError(
                    f"label {shown(text)!r}: at most 128 printable ASCII characters", Refusal.INVALID
                )
        for number, text in labels.items():
            path = f"{DATA}optical-switch:port-config/port={number:d}"
            self._require_success(await self._ask("PATCH", path, {"port": {"label": text}}), writing=True)

    async def renew(self) -> None:
        """Close all connections."""
        former, self._client = self._client, self._open()
        await former.aclose()

    async def close(self) -> None:
        """Close all connections for good."""
        await self._client.aclose()

    def _open(self) -> httpx.AsyncClient:
        options = self._options
        return httpx.AsyncClient(
            base_url=base_url(options),
            auth=(self._credentials.user, self._credentials.password),
            headers={"Accept": MEDIA, "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(options.timeout_s, connect=options.connect_timeout_s),
            # The device has few sessions. Idle ones end before the device ends them, lest a write meets that.
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=2.0),
            verify=self._context,
            follow_redirects=False,  # the credentials are for this host only
            trust_env=False,
            transport=self._http,
        )

    def _list_name(self) -> str:
        if self._list is None:
            raise TerminalError(
                "the firmware shows neither `pair` nor `pairs` as its list of circuits; nothing is written",
                Refusal.WRONG_DEVICE,
            )
        return self._list

    async def _list_by_asking(self, firmware: str) -> str | None:
        """The list's name on an empty switch, where the table cannot show it; None when it stays unknown."""
        known = [
            name for name in PAIR_NAMES if (await self._ask("GET", f"{CIRCUITS}/{name}")).status in (200, 204)
        ]
        if len(known) == 1:
            return known[0]
        release = re.match(r"(\d+)\.(\d+)", firmware)
        if release is None:
            return None
        return "pair" if (int(release[1]), int(release[2])) >= PAIR_SINCE else "pairs"

    async def _identity(self) -> Identity:
        return self._read(identity_of, await self._get(DATA + "optical-switch:product-information"))

    async def _get(self, path: str) -> _Answer:
        answer = await self._ask("GET", path)
        self._require_success(answer, writing=False)
        return answer

    async def _ask_if(self, method: str, path: str, body: object | None, mark: str | None) -> _Answer:
        """Write if the state is still the one with this mark, as far as the device can tell."""
        guard = mark if self._preconditions else None
        answer = await self._ask(method, path, body, if_match=guard)
        if guard is not None and answer.status in (400, 412):
            if answer.status == 412 and (await self.table()).etag != guard:
                raise ChangedError("the table was changed by somebody else since it was read")
            answer = await self._ask(method, path, body)
            # The condition held and was refused nevertheless: this firmware does not take its own marks.
            self._preconditions = answer.status >= 400
        return answer

    async def _ask(
        self, method: str, path: str, body: object | None = None, *, if_match: str | None = None
    ) -> _Answer:
        """One request and its whole answer. Reads are tried twice: an idle connection may have ended."""
        writing = method != "GET"
        headers = {"If-Match": if_match} if if_match is not None else {}
        if body is not None:
            headers["Content-Type"] = MEDIA
        for attempt in (1, 2):
            try:
                async with asyncio.timeout(self._options.timeout_s):
                    return await self._exchange(method, path, body, headers)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                raise TransientError(f"{self.name}: cannot connect: {self._said(error)}") from None
            except (TimeoutError, httpx.TimeoutException):
                await self.renew()
                raise lost(
                    f"{self.name}: connected, but no answer to {method} within {self._options.timeout_s:g} s",
                    writing=writing,
                ) from None
            except (httpx.HTTPError, UnreadableError) as error:
                await self.renew()
                if writing or attempt == 2:
                    raise lost(f"{self.name}: {method}: {self._said(error)}", writing=writing) from None
            except asyncio.CancelledError:
                # Whoever gave this up will read next: on a connection of its own, behind what is under way.
                await self.renew()
                raise
        raise AssertionError("unreachable: the second attempt returns or raises")

    async def _exchange(
        self, method: str, path: str, body: object | None, headers: dict[str, str]
    ) -> _Answer:
        extra: dict[str, Any] = {} if body is None else {"json": body}
        async with self._client.stream(method, path, headers=headers, **extra) as answer:
            taken = bytearray()
            async for piece in answer.aiter_bytes():
                taken += piece
                if len(taken) > ANSWER_MAX_BYTES:
                    raise UnreadableError(f"an answer of more than {ANSWER_MAX_BYTES} bytes")
            framed = "content-length" in answer.headers or "transfer-encoding" in answer.headers
            if method == "GET" and answer.status_code == 200 and not taken and not framed:
                # Where the connection ends the answer, one that was lost looks like an empty one.
                raise UnreadableError("an answer that ended before it began")
            mark = answer.headers.get("etag", "")
            return _Answer(
                answer.status_code,
                bytes(taken),
                mark if MARK.fullmatch(mark) else None,
                _retry_after_s(answer.headers),
            )

    def _read(self, decode: Callable[[bytes], _T], answer: _Answer) -> _T:
        try:
            return decode(answer.body)
        except UnreadableError as error:
            said = self._credentials.hidden(str(error))
            raise TransientError(f"{self.name}: answer not understood: {said}") from None

    def _require_success(self, answer: _Answer, *, writing: bool) -> None:
        if answer.status in (200, 201, 202, 204):
            return
        raise self._failure(answer, writing=writing)

    def _said(self, error: Exception) -> str:
        return shown(self._credentials.hidden(str(error))) or type(error).__name__

    def _failure(self, answer: _Answer, *, writing: bool) -> DriverError:
        """The failure that a status means; tag and message are for people, but for locks, which share one."""
        tag, message = complaint_of(self._credentials.hidden(answer.body.decode(errors="replace")).encode())
        said = (
            f"{self.name}: status {answer.status}"
            + (f" {tag}" if tag else "")
            + (f": {message}" if message else "")
        )
        locked = says_locked(f"{tag} {message}")
        match answer.status:
            case 401:
                return TerminalError(f"{said}; user or password is wrong", Refusal.UNAUTHORISED)
            case 403 | 409 | 423 if locked:
                return TerminalError(f"{said}; locked at the device, reading only", Refusal.LOCKED)
            case 403:
                return TerminalError(f"{said}; the user may not do this", Refusal.UNAUTHORISED)
            case 409:
                return PortBusyError(said, Refusal.WOULD_DISPLACE)
            case 429 | 500 | 503:
                return TransientError(said, answer.retry_after_s)
            case 502 | 504:
                return lost(f"{said} (from a proxy)", writing=writing)
            case 400 | 404 | 405 | 406 | 412 | 413 | 415:
                return TerminalError(said, Refusal.INVALID)
            case _:
                return TerminalError(said, Refusal.REFUSED)


def base_url(options: PolatisOptions) -> httpx.URL:
    """Where the device's RESTCONF is. Raises httpx.InvalidURL."""
    host = f"[{options.bare_host}]" if ":" in options.bare_host else options.bare_host
    return httpx.URL(f"{'https' if options.tls else 'http'}://{host}:{options.restconf_port}")


def _retry_after_s(headers: httpx.Headers) -> float:
    """How long to wait, in seconds; a date, or nothing, counts as 1."""
    text = headers.get("retry-after", "")
    return min(float(text), RETRY_AFTER_MAX_S) if re.fullmatch(r"[0-9]{1,6}", text) else 1.0
