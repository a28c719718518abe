"""The cabling check of day one: every port of a rail is connected once, and looked at from both ends.

A circuit of two ports is made, its light measured where the switch can, and the link of both NICs awaited
where somebody can read it; then it is taken down again. Nothing that is connected already is touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

from opus_sdn.drivers.base import (
    AmbiguousError,
    Driver,
    DriverError,
    PairOutcome,
    TerminalError,
    TransientError,
)
from opus_sdn.drivers.pairs import PortId, displaced_by, ports_of, text
from opus_sdn.intent.fabric import Circuit, CrossConnect, Fabric, Port, Rail
from opus_sdn.intent.model import Place
from opus_sdn.intent.routing import LEFT, RIGHT, link

T = TypeVar("T")

ATTEMPTS = 3
DARK_BELOW_DBM = -40.0
LOOK_S = (0.02, 0.5)
PORTS_NAMED = 4


class Verdict(StrEnum):
    """What became of one pair of ports."""

    OK = "ok"
    DARK = "dark"  # connected, and no light comes out
    NO_LINK = "no-link"  # light, as far as it can be measured, but a NIC has no link
    MISWIRED = "miswired"  # another NIC than the declared one has the link
    BUSY = "busy"  # its ports are in other circuits, which were left alone
    FAILED = "failed"  # the switch did not make it
    UNKNOWN = "unknown"  # could not be looked at


@dataclass(frozen=True, slots=True)
class Planned:
    """Two ports to be connected, with all that the switch has to hold for it."""

    rail: str
    switch: str
    a: Port
    b: Port
    pairs: tuple[CrossConnect, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """What was seen. `power_dbm` by the port whose light was measured; `links`: None where unknown."""

    planned: Planned
    verdict: Verdict
    detail: str = ""
    power_dbm: Mapping[Port, float] = field(default_factory=dict)
    links: Mapping[Port, bool | None] = field(default_factory=dict)


class LinkProbe(Protocol):
    """Somebody who can say whether a NIC port has its link."""

    async def up(self, port: Port) -> bool | None:
        """Whether it has; None when that cannot be found out."""
        ...


def plan_rail(fabric: Fabric, rail: Rail) -> tuple[Planned, ...]:
    """Each port of a rail in one pair: right of a GPU to left of the next one, in a circle over the rail.

    With one port per GPU two neighbours are a pair; the last of an odd number meets the first once more.
    """
    places = [Place(host, slot) for slot in rail.slots for host in fabric.hosts if fabric.has_gpu(host, slot)]
    if fabric.ports_per_gpu == 1:
        last = [] if len(places) % 2 == 0 else [(places[-1], places[0])]
        joined = [*zip(places[0:-1:2], places[1::2], strict=True), *last]
    else:
        joined = list(zip(places, places[1:] + places[:1], strict=True))
    found: dict[frozenset[Port], list[Circuit]] = {}
    for first, second in joined:
        if first == second and fabric.ports_per_gpu == 1:
            continue
        for circuit in link(fabric, first, RIGHT, second, LEFT):
            found.setdefault(frozenset((circuit.a, circuit.b)), []).append(circuit)
    return tuple(
        Planned(
            rail.name,
            rail.switch,
            circuits[0].a,
            circuits[0].b,
            tuple(pair for circuit in circuits for pair in circuit.cross_connects),
        )
        for circuits in found.values()
    )


class SwitchCheck:
    """Checks pairs on one switch, one after the other. `link_s`: how long NICs may take for their link."""

    def __init__(
        self, fabric: Fabric, name: str, driver: Driver, probe: LinkProbe | None, link_s: float
    ) -> None:
        self._fabric = fabric
        self._switch = fabric.switch(name)
        self._driver = driver
        self._probe = probe
        self._link_s = link_s
        self._measures = False
        self._up_before: frozenset[Port] = frozenset()

    async def run(self, planned: Sequence[Planned], tell: Callable[[Checked], None]) -> list[Checked]:
        """Check all; `tell` is called with each. When cancelled, what was made is taken down first."""
        try:
            self._measures = (await self._driver.describe()).power
        except DriverError as error:
            results = [Checked(pair, Verdict.FAILED, error.detail) for pair in planned]
            for result in results:
                tell(result)
            return results
        self._up_before = await self._ports_up()
        results = []
        for pair in planned:
            results.append(await self._check(pair))
            tell(results[-1])
        return results

    async def _check(self, planned: Planned) -> Checked:
        try:
            matching = (await self._driver.read()).matching
        except DriverError as error:
            return Checked(planned, Verdict.UNKNOWN, error.detail)
        there = set(planned.pairs) & matching
        held = displaced_by(matching, (), planned.pairs, sided=self._switch.sided)
        if there or held:
            named = ", ".join(map(text, sorted({*there, *held})))
            return Checked(planned, Verdict.BUSY, f"{named} is connected; nothing was changed")
        try:
            return await self._connect_and_look(planned)
        finally:
            await asyncio.shield(self._take_down(planned))

    async def _connect_and_look(self, planned: Planned) -> Checked:
        dark: dict[CrossConnect, str] = {}
        try:
            applied = await _patiently(lambda: self._driver.apply((), planned.pairs, 0))
        except AmbiguousError as error:
            if not set(planned.pairs) <= await self._matching():
                return Checked(planned, Verdict.UNKNOWN, error.detail)
        except (TerminalError, TransientError) as error:
            return Checked(planned, Verdict.FAILED, error.detail)
        else:
            outcomes = {result.pair: result for result in applied.pairs if not result.removed}
            wrong = [o for o in outcomes.values() if o.outcome in (PairOutcome.FAILED, PairOutcome.UNKNOWN)]
            if wrong:
                return Checked(planned, Verdict.FAILED, applied.shortfall() or "")
            dark = {
                pair: found.reason or "no light"
                for pair, found in outcomes.items()
                if found.outcome is PairOutcome.CONNECTED_DARK
            }
        power = await self._power(planned)
        words = [self._dark_words(pair, why) for pair, why in sorted(dark.items())]
        if not dark:  # a driver that was told not to look for light
            faint = {port: dbm for port, dbm in power.items() if dbm < DARK_BELOW_DBM}
            words = [f"no light from {port}: {dbm:.2f} dBm" for port, dbm in sorted(faint.items())]
        if words:
            links = await self._links((planned.a, planned.b))
            return Checked(planned, Verdict.DARK, "; ".join(words), power, links)
        return await self._look_at_links(planned, power)

    async def _look_at_links(self, planned: Planned, power: Mapping[Port, float]) -> Checked:
        if self._probe is None:
            how = "" if power else "neither light nor link can be seen here: connected is all that is known"
            return Checked(planned, Verdict.OK if power else Verdict.UNKNOWN, how, power)
        links = await self._awaited((planned.a, planned.b))
        if all(links.values()):
            return Checked(planned, Verdict.OK, "", power, links)
        down = [port for port, up in links.items() if up is False]
        if not down:
            unknown = ", ".join(str(port) for port, up in links.items() if up is None)
            return Checked(planned, Verdict.UNKNOWN, f"the probe cannot tell of {unknown}", power, links)
        words = f"no link at {' and '.join(map(str, down))} within {self._link_s:g} s"
        others = sorted((await self._ports_up()) - self._up_before - {planned.a, planned.b})
        if others:
            named = ", ".join(map(str, others[:PORTS_NAMED]))
            return Checked(planned, Verdict.MISWIRED, f"{words}; it came up at {named}", power, links)
        early = [str(port) for port in (planned.a, planned.b) if port in self._up_before]
        if early:
            words += f"; {', '.join(early)} had a link before anything was connected"
        return Checked(planned, Verdict.NO_LINK, words, power, links)

    async def _take_down(self, planned: Planned) -> None:
        """Remove what is there of it. A failure is left to be seen in the next reading."""
        try:
            there = (await self._driver.read()).matching
            left = tuple(pair for pair in planned.pairs if pair in there)
            if left:
                await _patiently(lambda: self._driver.apply(left, (), 0))
        except DriverError:
            return

    async def _matching(self) -> frozenset[CrossConnect]:
        """The table; nothing when it cannot be read."""
        try:
            return (await self._driver.read()).matching
        except DriverError:
            return frozenset()

    async def _power(self, planned: Planned) -> dict[Port, float]:
        """What comes out at both ends, by the port whose transmitter it is."""
        if not self._measures:
            return {}
        senders: dict[PortId, Port] = {}
        for pair in planned.pairs:
            ingress, egress = ports_of(pair, sided=self._switch.sided)
            senders[egress] = self._port(ingress)
            if not self._switch.sided:
                senders[ingress] = self._port(egress)
        try:
            found = await self._driver.power(senders.keys())
        except DriverError:
            return {}
        return {senders[port]: dbm for port, dbm in found.items() if port in senders}

    def _dark_words(self, pair: CrossConnect, why: str) -> str:
        ingress, egress = ports_of(pair, sided=self._switch.sided)
        sender, receiver = self._port(ingress), self._port(egress)
        return f"no light from {sender} to {receiver} ({text(pair)}): {why}"

    def _port(self, port: PortId) -> Port:
        found = self._fabric.port_at(self._switch.name, port.position)
        assert found is not None  # a plan has ports of the fabric only
        return found

    async def _links(self, ports: Collection[Port]) -> dict[Port, bool | None]:
        if self._probe is None:
            return {}
        found = await asyncio.gather(*(self._probe.up(port) for port in ports))
        return dict(zip(ports, found, strict=True))

    async def _awaited(self, ports: Collection[Port]) -> dict[Port, bool | None]:
        """The links, once they are up or have had their time. What cannot be found out is not waited for."""
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + self._link_s, LOOK_S[0]
        while True:
            links = await self._links(ports)
            if False not in links.values() or loop.time() >= until:
                return links
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S[1])

    async def _ports_up(self) -> frozenset[Port]:
        """The ports of this switch that have a link now."""
        mine = [at.port for at in self._fabric.attachments if at.switch == self._switch.name]
        return frozenset(port for port, up in (await self._links(mine)).items() if up)


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Call, and again after the advised time while nothing was changed. Raises as the last call did."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await call()
        except TransientError as error:
            await asyncio.sleep(error.retry_after_s)
    return await call()


def by_switch(planned: Iterable[Planned]) -> dict[str, list[Planned]]:
    """The pairs of each switch, to be checked one after the other; switches do not wait for each other."""
    found: dict[str, list[Planned]] = {}
    for pair in planned:
        found.setdefault(pair.switch, []).append(pair)
    return found
