"""Several requests under way at once from one thread, each on a kept connection of its own."""

from __future__ import annotations

import select
import time
from dataclasses import dataclass
from typing import Any

from opus_sdn.shim.client import BROKEN, Connection, ControllerClient, decode, encode, unavailable
from opus_sdn.shim.conversation import Letter
from opus_sdn.shim.errors import ControllerError, ControllerUnavailableError


@dataclass(slots=True, eq=False)
class Exchange:
    """One request that has not been answered."""

    connection: Connection
    letter: Letter
    sent_at: float
    expires_at: float
    is_poll: bool
    on_kept_connection: bool  # a break may only mean that the connection had been idle for too long


class Exchanges:
    """The requests of one session. `answer_s` is what an answer may take beyond the wait asked for."""

    def __init__(self, client: ControllerClient, path: str, answer_s: float) -> None:
        self._client = client
        self._path = path
        self._answer_s = answer_s
        self._spare: list[Connection] = []
        self.under_way: list[Exchange] = []

    def send(self, letter: Letter, body: dict[str, Any], wait_s: float) -> ControllerUnavailableError | None:
        """Send a request that may wait for its answer; the error when that failed already."""
        while self._spare and self._spare[-1].address != self._client.address:
            self._spare.pop().close()
        connection = self._spare.pop() if self._spare else self._client.connection()
        if connection.must_warm_up:
            wait_s = 0.0
        sent_at = time.monotonic()
        kept = connection.used
        try:
            connection.send("POST", self._path, encode({**body, "wait_s": wait_s}), self._answer_s)
        except BROKEN as failed:
            connection.close()
            if kept:
                return self.send(letter, body, wait_s)
            return self._useless(connection, unavailable(connection.address, "a rank's news", failed))
        expires_at = sent_at + wait_s + self._answer_s
        self.under_way.append(Exchange(connection, letter, sent_at, expires_at, wait_s > 0, kept))
        return None

    def wait(self, wake: int, until: float) -> list[Exchange]:
        """Sleep until the descriptor `wake` or an answer is readable, at the latest until `until`."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        by_descriptor = {exchange.connection.fileno(): exchange for exchange in self.under_way}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        timeout_ms = max(0.0, (until - time.monotonic()) * 1000)
        ready = poll.poll(timeout_ms + 1)  # poll(2) rounds down; waking early would be a busy loop
        return [by_descriptor[descriptor] for descriptor, _ in ready if descriptor in by_descriptor]

    def receive(self, exchange: Exchange) -> dict[str, Any]:
        """Read a readable answer. Raises ControllerError, or ControllerUnavailableError when it is none."""
        self.under_way.remove(exchange)
        try:
            status, body = exchange.connection.receive()
        except BROKEN as failed:
            exchange.connection.close()
            absent = unavailable(exchange.connection.address, "a rank's news", failed)
            raise self._useless(exchange.connection, absent) from None
        self._spare.append(exchange.connection)
        try:
            return decode(exchange.connection.address, "a rank's news", status, body)
        except (ControllerError, ControllerUnavailableError) as failed:
            self._client.passes(failed, exchange.connection.address)
            raise

    def overdue(self, now: float) -> list[Exchange]:
        """Take out the requests whose answer should have come; a late one would answer the next request."""
        late = [exchange for exchange in self.under_way if now >= exchange.expires_at]
        for exchange in late:
            self.under_way.remove(exchange)
            exchange.connection.close()
            self._client.where.useless(exchange.connection.address)
        return late

    def _useless(
        self, connection: Connection, failed: ControllerUnavailableError
    ) -> ControllerUnavailableError:
        self._client.where.useless(connection.address)
        return failed

    def close(self) -> None:
        """Drop everything that is under way and close all connections."""
        for connection in (*(exchange.connection for exchange in self.under_way), *self._spare):
            connection.close()
        self.under_way.clear()
        self._spare.clear()
