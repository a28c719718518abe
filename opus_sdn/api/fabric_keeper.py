"""The fabric in force, and how another one comes into force while nothing depends on what it changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from opus_sdn.api.documents import FabricAnswer
from opus_sdn.api.former import FormerJobs
from opus_sdn.drivers.base import Driver, SwitchConfigError
from opus_sdn.drivers.registry import open_driver
from opus_sdn.fabric_file import FabricSpec
from opus_sdn.intent.changes import EventAppended
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import CircuitKind, Fabric, Switch
from opus_sdn.reconciler.runtime import Runtime
from opus_sdn.store.base import Store

logger = logging.getLogger(__name__)


class Drivers:
    """The sessions with the switches, which outlast a term: a new one goes on with those of before."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Switch, Driver]] = {}
        self._dropped: list[Driver] = []

    def of(self, switches: Sequence[Switch]) -> dict[str, Driver]:
        """A driver for each of these, opened unless it is there. CoreError `invalid-request` as below."""
        known = {name: driver for name, (switch, driver) in self._open.items() if switch in switches}
        opened = open_drivers(switch for switch in switches if switch.name not in known)
        drivers = {s.name: known[s.name] if s.name in known else opened[s.name] for s in switches}
        self._dropped += [driver for _, driver in self._open.values() if driver not in drivers.values()]
        self.are_now(switches, drivers)
        return drivers

    def are_now(self, switches: Sequence[Switch], drivers: Mapping[str, Driver]) -> None:
        """These are in use from now on; whoever says so has closed the others."""
        self._open = {switch.name: (switch, drivers[switch.name]) for switch in switches}

    async def close(self) -> None:
        """End all sessions; the circuits stay."""
        for driver in (*self._dropped, *(driver for _, driver in self._open.values())):
            try:
                await driver.close()
            except Exception:
                logger.exception("driver did not close")
        self._open.clear()


NO_FABRIC = Fabric((), 0, 1, CircuitKind.DUPLEX, (), (), ())


class FabricKeeper:
    """Holds the declared fabric. `changed` is told of every new one with its drivers.

    `observations` are the stored generations of all switches that there ever were.
    """

    def __init__(
        self,
        runtime: Runtime,
        spec: FabricSpec | None,
        generation: int,
        former: FormerJobs,
        *,
        drivers: Drivers,
        observations: Mapping[str, int],
        changed: Callable[[Fabric, Mapping[str, Driver]], Awaitable[None]] | None = None,
    ) -> None:
        self.spec = spec
        self.generation = generation
        self.document = document_of(spec) if spec is not None else ""
        self._runtime = runtime
        self._former = former
        self._drivers = drivers
        self._observations = dict(observations)
        self._changed = changed
        self._one_at_a_time = asyncio.Lock()

    @property
    def etag(self) -> str:
        """The strong tag of the fabric in force."""
        return f'"{self.generation}"'

    async def put(self, spec: FabricSpec, *, if_match: str | None, dry_run: bool) -> FabricAnswer:
        """Put this fabric in force, or with `dry_run` only say whether that would be possible.

        Raises CoreError when the preconditions do not hold, a port in use would change, a switch's options
        are wrong, or the controller is not ready; the old fabric is then still in force.
        """
        async with self._one_at_a_time:
            document = document_of(spec)
            changed = document != self.document
            self._check_preconditions(if_match, changed)
            if changed:
                fabric, fresh = await asyncio.to_thread(self._build, spec)
                self._require_fits(fabric)
                if not dry_run:
                    await self._put_in_force(spec, document, fabric, fresh)
            elif not dry_run:
                self._runtime.require_ready()
            return FabricAnswer(
                applied=changed and not dry_run,
                changed=changed,
                dry_run=dry_run,
                generation=self.generation,
                hosts=len(spec.host_names()),
                ports=len(spec.host_names()) * spec.gpus_per_host * spec.ports_per_gpu,
                rails=[rail.name for rail in spec.rails],
                switches=[switch.name for switch in spec.switches],
            )

    def _check_preconditions(self, if_match: str | None, changed: bool) -> None:
        if if_match is not None:
            tags = {tag.strip() for tag in if_match.split(",")}
            if self.spec is None or (self.etag not in tags and "*" not in tags):
                there = "there is none yet" if self.spec is None else f"the fabric is at {self.etag}"
                raise CoreError(
                    Problem.PRECONDITION_FAILED,
                    f"If-Match is {if_match!r}, but {there}; read it again and repeat the change on it",
                    etag=self.etag,
                )
        elif self.spec is not None and changed:
            raise CoreError(
                Problem.PRECONDITION_REQUIRED,
                "changing the fabric needs the If-Match header with the ETag of the fabric that was changed: "
                f"{self.etag}",
                etag=self.etag,
            )

    def _require_fits(self, fabric: Fabric) -> None:
        refusal = self._runtime.engine.why_not_fabric(fabric)
        if refusal is not None:
            raise refusal

    def _build(self, spec: FabricSpec) -> tuple[Fabric, dict[str, Driver]]:
        """The core's fabric, and drivers for the switches that are new or changed."""
        fabric = spec.build()
        known = {switch.name: switch for switch in self._runtime.engine.state.fabric.switches}
        return fabric, open_drivers(switch for switch in fabric.switches if known.get(switch.name) != switch)

    async def _put_in_force(
        self, spec: FabricSpec, document: str, fabric: Fabric, fresh: dict[str, Driver]
    ) -> None:
        runtime = self._runtime
        async with runtime.paused():
            self._require_fits(fabric)  # nobody can start a job from here on
            known = runtime.drivers()
            drivers = {s.name: fresh[s.name] if s.name in fresh else known[s.name] for s in fabric.switches}
            generation = await asyncio.to_thread(store_fabric, runtime.store, document, fabric)
            await runtime.record(EventAppended("fabric.changed", data={"generation": generation}))
            engine = runtime.engine
            # A switch may come back after it was gone for a while.
            self._observations |= {name: switch.generation for name, switch in engine.state.switches.items()}
            for job in engine.change_fabric(fabric, self._observations):
                self._former.take_over(job)
            await runtime.use(drivers)
            self._drivers.are_now(fabric.switches, drivers)
            self.spec, self.document, self.generation = spec, document, generation
            if self._changed is not None:
                await self._changed(fabric, drivers)


def document_of(spec: FabricSpec) -> str:
    """The one form in which a fabric is stored, compared and shown."""
    return spec.model_dump_json()


def open_drivers(switches: Iterable[Switch]) -> dict[str, Driver]:
    """A driver for each switch. Raises CoreError `invalid-request` for options that a driver refuses."""
    try:
        return {switch.name: open_driver(switch) for switch in switches}
    except SwitchConfigError as error:
        raise CoreError(Problem.INVALID_REQUEST, str(error), field="switches") from None


def store_fabric(store: Store, document: str, fabric: Fabric) -> int:
    """Store the fabric with the rows that readers of the database look at; its generation."""
    ports = tuple((str(a.port), a.rail, a.switch, a.position) for a in fabric.attachments)
    return store.put_fabric(document, ports, tuple((rail.name, rail.switch) for rail in fabric.rails))
