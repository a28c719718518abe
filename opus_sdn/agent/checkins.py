"""Puts the check-ins of groups that a host's ranks make at the same time into one request.

Ranks of a host are members of the same groups and say the same of them, so each group is said once.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, Final

from opus_sdn.agent.arrivals import OK, Send
from opus_sdn.agent.upstream import Answer, UpstreamGoneError

LINGER_S: Final = 0.002
GROUPS_MAX: Final = 4096


@dataclass(slots=True)
class _Batch:
    send: Send
    incarnation: int
    bodies: list[tuple[list[dict[str, Any]], asyncio.Future[Answer]]] = field(default_factory=list)


class CheckIns:
    """The check-ins under way."""

    def __init__(self) -> None:
        self._batches: dict[tuple[object, ...], _Batch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, key: tuple[object, ...], body: dict[str, Any], send: Send) -> Answer:
        """A rank's check-in, answered with the groups it named. Raises UpstreamGoneError."""
        loop = asyncio.get_running_loop()
        whole = (*key, body["incarnation"])
        batch = self._batches.get(whole)
        if batch is None:
            batch = self._batches[whole] = _Batch(send, body["incarnation"])
            loop.call_later(LINGER_S, self._flush, whole)
        answer: asyncio.Future[Answer] = loop.create_future()
        batch.bodies.append((body["groups"], answer))
        return await answer

    def _flush(self, key: tuple[object, ...]) -> None:
        task = asyncio.ensure_future(self._exchange(self._batches.pop(key)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _exchange(self, batch: _Batch) -> None:
        said: dict[str, dict[str, Any]] = {}
        agree = all(
            said.setdefault(str(group.get("name")), group) == group
            for groups, _ in batch.bodies
            for group in groups
        )
        if len(batch.bodies) == 1 or not agree or len(said) > GROUPS_MAX:
            await asyncio.gather(*(self._alone(batch, groups, answer) for groups, answer in batch.bodies))
            return
        try:
            whole = await batch.send(_body(batch, list(said.values())), 0.0)
        except UpstreamGoneError as gone:
            for _, answer in batch.bodies:
                if not answer.done():
                    answer.set_exception(gone)
            return
        if whole.status != OK:
            await asyncio.gather(*(self._alone(batch, groups, answer) for groups, answer in batch.bodies))
            return
        found = json.loads(whole.body)
        by_name = {group["name"]: group for group in found["groups"]}
        for groups, answer in batch.bodies:
            own = {**found, "groups": [by_name[group["name"]] for group in groups]}
            if not answer.done():
                answer.set_result(Answer(whole.status, whole.content_type, json.dumps(own).encode()))

    @staticmethod
    async def _alone(batch: _Batch, groups: list[dict[str, Any]], answer: asyncio.Future[Answer]) -> None:
        try:
            found = await batch.send(_body(batch, groups), 0.0)
        except UpstreamGoneError as gone:
            if not answer.done():
                answer.set_exception(gone)
        else:
            if not answer.done():
                answer.set_result(found)


def is_check_in(body: object) -> bool:
    """Whether it is a check-in as shims make it."""
    return (
        isinstance(body, dict)
        and set(body) == {"incarnation", "groups"}
        and isinstance(body["groups"], list)
        and all(isinstance(group, dict) for group in body["groups"])
    )


def _body(batch: _Batch, groups: list[dict[str, Any]]) -> bytes:
    return json.dumps({"incarnation": batch.incarnation, "groups": groups}, separators=(",", ":")).encode()
