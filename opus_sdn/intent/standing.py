"""What operators and launchers have told and what holds until it is withdrawn, as the core keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

from opus_sdn.intent.fabric import Circuit, Port, Terminal
from opus_sdn.intent.model import JobSpec
from opus_sdn.intent.reasons import Because


@dataclass(frozen=True, slots=True)
class Told:
    """Who told something, when, and as which directive. `force`: it goes before locks."""

    number: int
    at: float
    by: str
    detail: str = ""
    force: bool = False


@dataclass(slots=True)
class Drain:
    """A port gets no circuit, and what is idle on it is taken down. `because`: why something is left."""

    told: Told
    port: Port
    switch: str
    terminals: tuple[Terminal, ...]
    because: Because | None = None

    @property
    def key(self) -> str:
        """Its name as the cause of a device step."""
        return f"directive/drain/{self.port}"


@dataclass(slots=True)
class ManualCircuit:
    """A circuit that is kept up for nobody's job. `because`: why it is not up.

    `once`: it is not made again should somebody else take it down, as its rail is only observed.
    """

    told: Told
    circuit: Circuit
    once: bool = False
    because: Because | None = None
    seen: bool = field(default=False)  # it was up

    @property
    def key(self) -> str:
        """Its name as the cause of a device step."""
        return f"directive/circuit/{self.circuit.id}"

    @property
    def switch(self) -> str:
        """The switch that it is on."""
        return self.circuit.switch

    @property
    def terminals(self) -> tuple[Terminal, ...]:
        """What it holds exclusively."""
        return self.circuit.terminals


@dataclass(slots=True)
class QueuedJob:
    """A job that waits for its ports, and why."""

    told: Told
    spec: JobSpec
    because: Because


@dataclass(frozen=True, slots=True)
class Bar:
    """Why a terminal is closed to every circuit but, perhaps, one."""

    because: Because
    circuit: Circuit | None = None
