"""RESTCONF's writes to the table of circuits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opus_sdn.drivers.polatis_emulator.device import Actor, Device
from opus_sdn.drivers.polatis_emulator.http import Answer
from opus_sdn.drivers.polatis_emulator.judge import Busy, Edit, Pair
from opus_sdn.drivers.polatis_emulator.restconf_wire import (
    HttpProblem,
    Segment,
    as_list,
    malformed,
    not_found,
    whole_number,
)

CONTAINER = "cross-connects"
PAIRS_MAX = 8192


class Circuits:
    """Answers POST, PUT, PATCH and DELETE below `cross-connects`."""

    def __init__(self, device: Device) -> None:
        self._device = device

    async def write(
        self,
        method: str,
        path: tuple[Segment, ...],
        body: dict[str, Any] | None,
        actor: Actor,
        guard: Callable[[], None],
    ) -> Answer:
        """Make one change. `guard` is called when the change is about to happen."""
        name = self._device.spec.pair_list
        if len(path) > 2 or (len(path) == 2 and path[1].name != name):
            raise not_found()
        key = path[1].key if len(path) == 2 else None
        if method == "DELETE":
            return await self._delete(key, actor, guard)
        pairs = self._pairs(body or {}, name)
        if method == "POST":
            if len(path) == 2:
                raise HttpProblem(405, "operation-not-supported", "POST to a list is not possible")
            if not pairs:
                raise HttpProblem(400, "missing-element", f"missing element: {name}")
            await self._device.write(actor, Edit(pairs, busy=Busy.CREATE), guard=guard)
            where = f"/api/data/optical-switch:{CONTAINER}/{name}={pairs[0][0]}"
            return Answer(201, headers={"location": where})
        # Whether a busy egress port is taken from its circuit is not known of the real device.
        moving = Busy.DISPLACE if self._device.faults.displace else Busy.MOVE
        if key is None:
            was_empty = not self._device.table
            clear = method == "PUT"
            await self._device.write(actor, Edit(pairs, clear=clear, busy=moving), guard=guard)
            return Answer(201 if clear and was_empty else 204)
        return await self._one(method, key, pairs, actor, moving, guard)

    async def _one(
        self,
        method: str,
        key: str,
        pairs: tuple[Pair, ...],
        actor: Actor,
        busy: Busy,
        guard: Callable[[], None],
    ) -> Answer:
        if len(pairs) != 1 or str(pairs[0][0]) != key:
            raise HttpProblem(400, "invalid-value", "the key in the message body and the URI differ")
        there = pairs[0][0] in self._device.table
        if method == "PATCH" and not there:
            raise not_found()
        await self._device.write(actor, Edit(pairs, busy=busy), guard=guard)
        return Answer(204 if there else 201)

    async def _delete(self, key: str | None, actor: Actor, guard: Callable[[], None]) -> Answer:
        if key is None:
            await self._device.write(actor, Edit(clear=True), guard=guard)
            return Answer(204)
        if not key.isdecimal() or int(key) not in self._device.table:
            raise not_found()
        await self._device.write(actor, Edit(disconnect=(int(key),)), guard=guard)
        return Answer(204)

    def _pairs(self, body: dict[str, Any], name: str) -> tuple[Pair, ...]:
        """The circuits of a body: a list, or one; in the container or not."""
        if CONTAINER in body:
            inside: object = body[CONTAINER]
            if inside == "":  # an empty element
                return ()
            if not isinstance(inside, dict):
                raise malformed(f"{CONTAINER} is not an object")
            body = inside
        unknown = [member for member in body if member.rpartition(":")[2] != name]
        if unknown:
            raise HttpProblem(400, "unknown-element", f"unknown element: {unknown[0]}")
        entries = [entry for value in body.values() for entry in as_list(value)]
        if len(entries) > PAIRS_MAX:
            raise HttpProblem(400, "invalid-value", f"more than {PAIRS_MAX} entries")
        return tuple(self._pair(entry) for entry in entries)

    @staticmethod
    def _pair(entry: object) -> Pair:
        if not isinstance(entry, dict):
            raise malformed("an entry is not an object")
        leaves = {str(leaf).rpartition(":")[2]: value for leaf, value in entry.items()}
        unknown = [leaf for leaf in leaves if leaf not in ("ingress", "egress")]
        if unknown:
            raise HttpProblem(400, "unknown-element", f"unknown element: {unknown[0]}")
        for leaf in ("ingress", "egress"):
            if leaf not in leaves:
                raise HttpProblem(400, "missing-element", f"missing element: {leaf}")
        return whole_number(leaves["ingress"], "ingress"), whole_number(leaves["egress"], "egress")
