"""The model of a fabric declaration, strict in every type, and how it becomes the core's fabric.

Positions count from 0; a driver converts to its device's own numbers at the wire and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from opus_sdn.fabric_file.hosts import HOSTS_MAX, HostRangeError, expand_hosts
from opus_sdn.fabric_file.wiring import PORTS_MAX, Layout, Misfit, misfits_of, ports_of
from opus_sdn.intent.fabric import Attachment, CircuitKind, DriftPolicy, Fabric, Rail, Switch

KNOWN_DRIVERS = frozenset({"emulated", "polatis"})
POSITIONS_MAX = 65_536
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
NAME_MEANS = "up to 63 letters, digits, dots, dashes and underscores"


def _misfit_error(message: str) -> PydanticCustomError:
    return PydanticCustomError("fabric", "{message}", {"message": message})


def _frozen(value: object) -> object:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _refuse(title: str, misfits: Iterable[Misfit]) -> None:
    """Raise all misfits at once, each at its own path; nothing when there are none."""
    errors = [
        InitErrorDetails(type=_misfit_error(misfit.message), loc=misfit.at, input=None) for misfit in misfits
    ]
    if errors:
        raise ValidationError.from_exception_data(title, errors)


def _plain(value: object) -> object:
    """Refuse what a driver's option cannot be: a mapping, or a number that is none."""
    if isinstance(value, list):
        for item in value:
            _plain(item)
    elif not (value is None or isinstance(value, str | bool | int | float)):
        raise _misfit_error("has a mapping in it; give text, numbers, true, false, or lists of them")
    if isinstance(value, float) and not math.isfinite(value):
        raise _misfit_error(f"is {value}; give a finite number")
    return value


def _whole(value: object) -> object:
    """Refuse `true` and 1.0 where a few whole numbers are allowed: Python takes both for 1."""
    if type(value) is not int:
        raise PydanticCustomError("whole_number", "must be a whole number")
    return value


def _some(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse an empty list. (pydantic's own minimum also counts entries out that are wrong in themselves.)"""
    if not entries:
        raise PydanticCustomError("empty_list", "must have at least one entry")
    return entries


Whole = BeforeValidator(_whole)
Some = AfterValidator(_some)
Name = Annotated[str, Field(pattern=NAME)]
SlotNumber = Annotated[int, Field(ge=0, le=63)]
Position = Annotated[int, Field(ge=0, lt=POSITIONS_MAX)]
Option = Annotated[Any, BeforeValidator(_plain)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class SwitchSpec(_Strict):
    """One optical circuit switch."""

    name: Name = Field(description=f"name of the switch, {NAME_MEANS}")
    driver: str = Field(max_length=63, description="driver that speaks to the switch, as emulated")
    size: int = Field(
        ge=2, le=POSITIONS_MAX, description=f"number of positions, a whole number from 2 to {POSITIONS_MAX}"
    )
    layout: Layout = Field(
        description="layout, sided (ingress fibres to egress fibres) or any_to_any (any to any other)"
    )
    directed: bool = Field(
        False,
        description="declaration that the sides of a position may be joined to different ones: true or false",
    )
    options: dict[str, Option] = Field(
        {}, max_length=64, description="mapping of the driver's own options, as {delay_ms: 50}"
    )

    @field_validator("driver")
    @classmethod
    def _is_known(cls, value: str, info: ValidationInfo) -> str:
        known = (info.context or {}).get("drivers", KNOWN_DRIVERS)
        if value not in known:
            raise _misfit_error(
                f"is {value!r}, which is no driver here; use one of: {', '.join(sorted(known))}"
            )
        return value


class RailSpec(_Strict):
    """GPU slots joined by one switch, and where their ports sit on it.

    With `first_port` the ports fill the positions from there on without gaps: host by host in the order of
    `hosts`, in a host slot by slot as listed here, in a slot port by port. `ports` places single ports
    elsewhere, or all of them when there is no `first_port`.
    """

    name: Name = Field(description=f"name of the rail, {NAME_MEANS}")
    slots: Annotated[tuple[SlotNumber, ...], Some] = Field(
        max_length=64, description="list of GPU slots, whole numbers from 0, as [0]"
    )
    switch: str = Field(max_length=63, description="name of the switch that joins the rail")
    first_port: Position | None = Field(
        None, description="switch position of the rail's first port, a whole number from 0"
    )
    ports: dict[str, Position] = Field(
        {},
        max_length=PORTS_MAX,
        description="mapping of host:slot:port to a switch position, as host0:0:1: 5",
    )
    drift: DriftPolicy = Field(
        DriftPolicy.AUTO,
        description="what to do about changes that somebody else makes on the rail's ports: auto or observe",
    )
    carrier: Literal["ignored", "required"] = Field(
        "ignored",
        description="whether grants wait until the hosts report the links of both ports: ignored or required",
    )


class FabricSpec(_Strict):
    """The whole fabric as declared; `build` gives the core's form of it."""

    version: Annotated[Literal[1], Whole] = Field(1, description="version of this format, 1")
    hosts: Annotated[tuple[str, ...], Some] = Field(
        max_length=HOSTS_MAX,
        description="list of host names or ranges, as ['gpu[000-127]', head1]",
    )
    gpus_per_host: int = Field(
        ge=1, le=64, description="number of GPUs in each host, a whole number from 1 to 64"
    )
    ports_per_gpu: Annotated[Literal[1, 2, 4], Whole] = Field(
        description="number of NIC ports of each GPU: 1, 2 or 4"
    )
    circuit: CircuitKind = Field(description="kind of every circuit: duplex, bidirectional or directed")
    nics_directed: bool = Field(
        False,
        description="declaration that NICs may send to one port and receive from another: true or false",
    )
    switches: Annotated[tuple[SwitchSpec, ...], Some] = Field(
        max_length=4096, description="list of switches, at least one"
    )
    rails: Annotated[tuple[RailSpec, ...], Some] = Field(
        max_length=64, description="list of rails, at least one"
    )

    @field_validator("hosts")
    @classmethod
    def _name_each_host_once(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        misfits: list[Misfit] = []
        first: dict[str, int] = {}
        for number, entry in enumerate(entries):
            try:
                names = expand_hosts(entry)
            except HostRangeError as wrong:
                misfits.append(Misfit((number,), str(wrong)))
                continue
            again = None
            for name in names:
                if name in first:
                    again = again or name
                else:
                    first[name] = number
            if again is not None:
                where = f"hosts[{first[again]}]"
                misfits.append(
                    Misfit((number,), f"names {again!r} again, as {where} does; name each host once")
                )
            if len(first) > HOSTS_MAX:
                misfits.append(Misfit((number,), f"is beyond the {HOSTS_MAX} hosts of a fabric; name fewer"))
                break
        _refuse("hosts", misfits)
        return entries

    @field_validator("switches", "rails")
    @classmethod
    def _name_each_once(cls, entries: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        misfits: list[Misfit] = []
        first: dict[str, int] = {}
        for number, entry in enumerate(entries):
            if first.setdefault(entry.name, number) != number:
                where = f"{info.field_name}[{first[entry.name]}]"
                misfits.append(Misfit((number, "name"), f"is {entry.name!r}, as in {where}; choose another"))
        _refuse(str(info.field_name), misfits)
        return entries

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        _refuse("fabric", misfits_of(self))
        return self

    def host_names(self) -> tuple[str, ...]:
        """All hosts in order, ranges written out."""
        return tuple(name for entry in self.hosts for name in expand_hosts(entry))

    def build(self) -> Fabric:
        """The frozen fabric of the core."""
        hosts = self.host_names()
        return Fabric(
            hosts=hosts,
            gpus_per_host=self.gpus_per_host,
            ports_per_gpu=self.ports_per_gpu,
            circuit_kind=self.circuit,
            switches=tuple(
                Switch(
                    name=switch.name,
                    driver=switch.driver,
                    size=switch.size,
                    sided=switch.layout is Layout.SIDED,
                    options=tuple((key, _frozen(value)) for key, value in sorted(switch.options.items())),
                )
                for switch in self.switches
            ),
            rails=tuple(
                Rail(r.name, index, r.switch, r.slots, r.drift, r.carrier == "required")
                for index, r in enumerate(self.rails)
            ),
            attachments=tuple(
                Attachment(port, rail.name, rail.switch, position)
                for rail in self.rails
                for port, position in ports_of(rail, hosts, self.ports_per_gpu)
                if position is not None
            ),
        )
