"""Requests to the controllers, as the ranks would send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

import httpx

from opus_sdn.shim.settings import Address

ANSWER_S: Final = 10.0  # beyond the wait that a request asks for
CONNECTIONS_MAX: Final = 256
PASSED_ON: Final = ("authorization", "content-type", "accept", "x-request-id", "idempotency-key")


class Answer(NamedTuple):
    """What came back."""

    status: int
    content_type: str
    body: bytes


class UpstreamGoneError(ConnectionError):
    """The controller did not answer. The rank must not get an answer either: silence is what it counts."""


class Upstream:
    """Kept connections to all controllers that ranks may name. An async context manager."""

    def __init__(self, addresses: Sequence[Address], ca_file: str | None = None) -> None:
        self._urls = {str(address).partition("//")[2]: str(address) for address in addresses}
        limits = httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX)
        self._client = httpx.AsyncClient(trust_env=False, limits=limits, verify=ca_file or True)

    def knows(self, authority: str) -> bool:
        """Whether host:port is one of the controllers."""
        return authority in self._urls

    async def send(
        self,
        authority: str,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        wait_s: float = 0.0,
    ) -> Answer:
        """One exchange. Raises UpstreamGoneError."""
        passed_on = {name: value for name, value in headers.items() if name in PASSED_ON}
        try:
            answer = await self._client.request(
                method,
                self._urls[authority] + target,
                headers=passed_on,
                content=body or None,
                timeout=httpx.Timeout(wait_s + ANSWER_S, connect=ANSWER_S),
            )
        except httpx.HTTPError as failed:
            raise UpstreamGoneError(f"{authority}: {type(failed).__name__}: {failed}") from None
        return Answer(answer.status_code, answer.headers.get("content-type", ""), answer.content)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()
