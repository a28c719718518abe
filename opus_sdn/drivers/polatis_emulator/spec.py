"""What an emulated switch is: model, firmware, users, optics. Fixed from its start on; faults are apart."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from opus_sdn.drivers.polatis_emulator.layout import PortLayout

USERS_MAX = 64
PAIR_SINCE = "2017-08-04"  # the module revision that renamed the list `pairs` to `pair`

Milliseconds = Annotated[float, Field(ge=0, le=600_000, allow_inf_nan=False)]
Decibels = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
PortNumber = Annotated[int, Field(ge=1, le=4096)]


class Strict(BaseModel):
    """Base of everything that comes from a file or over the side door."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Group(StrEnum):
    """What a user may do: everything; circuits and ports; look."""

    ADMIN = "admin"
    USER = "user"
    VIEW = "view"


class StartupMode(StrEnum):
    """What is there after a loss of power: the last table, or nothing."""

    PRESERVE = "preserve"
    VOLATILE = "volatile"


class Monitors(StrEnum):
    """Which ports measure optical power."""

    EGRESS = "egress"
    ALL = "all"
    NONE = "none"


class UserSpec(Strict):
    """One login of the device."""

    name: str = Field(pattern=r"^[!-~]{1,32}$")
    password: str = Field(min_length=1, max_length=64, repr=False)
    group: Group = Group.ADMIN


class SubSwitchSpec(Strict):
    """Ports that only the users named may configure."""

    name: str = Field(pattern=r"^[!-~]{1,64}$")
    ports: tuple[PortNumber, ...] = Field(min_length=1, max_length=4096)
    users: tuple[str, ...] = Field(max_length=USERS_MAX)


class PortGroupSpec(Strict):
    """Ports that are connected together, in order, with those of another group."""

    name: str = Field(pattern=r"^[!-~]{1,64}$")
    ports: tuple[PortNumber, ...] = Field(min_length=1, max_length=4096)


class EmulatorSpec(Strict):
    """One switch. Times in milliseconds, light in dBm and dB.

    `switch_ms` is what the optics take; `control_ms` what the management card takes for every request before
    that (firmware of 2016 to 2019 was seen to take about a second).
    """

    size: str = Field("", description="32x32, 16x08, 32xCC; by default what the model name says, else 32x32")
    model: str = Field("", max_length=64, description="model name; by default one of that size")
    serial: str = Field("2000", pattern=r"^[!-~]{1,32}$")
    firmware: str = Field("6.7.3.9", pattern=r"^[!-~]{1,64}$")
    yang_revision: str = Field("2018-03-22", pattern=r"^\d{4}-\d{2}-\d{2}$")
    sid: str = Field("", max_length=20, description="system identifier of TL1; empty while unset")
    users: tuple[UserSpec, ...] = Field(
        # What such a switch is delivered with.
        (UserSpec(name="admin", password="root"),),  # noqa: S106
        min_length=1,
        max_length=USERS_MAX,
    )
    subswitches: tuple[SubSwitchSpec, ...] = Field((), max_length=64)
    groups: tuple[PortGroupSpec, ...] = Field((), max_length=1024)
    startup_mode: StartupMode = StartupMode.PRESERVE
    monitors: Monitors | None = Field(None, description="which ports measure; by default as the model says")
    switch_ms: Milliseconds = 25.0
    control_ms: Milliseconds = 0.0
    reboot_ms: Milliseconds = Field(60_000.0, description="how long the management card takes to come back")
    link_up_ms: Milliseconds = Field(0.0, description="from the light to the link of emulated NICs")
    source_dbm: Decibels = Field(0.0, description="light that goes into every port")
    loss_db: Annotated[float, Field(ge=0, le=60)] = 1.0
    loss_spread_db: Annotated[float, Field(ge=0, le=10)] = Field(
        0.2, description="how much the loss differs from path to path"
    )
    sessions_max: Annotated[int, Field(ge=1, le=1024)] = Field(16, description="sessions of each protocol")
    initial: tuple[tuple[PortNumber, PortNumber], ...] = Field(
        (), max_length=4096, description="circuits that are there at the first start"
    )

    @field_validator("size")
    @classmethod
    def _is_size(cls, value: str) -> str:
        if value:
            PortLayout.parse(value)
        return value

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        layout = self.layout
        if self.model and PortLayout.of_model(self.model) != layout:
            raise ValueError(
                f"model is {self.model!r}, which is not of size {self.size}; leave out one of them"
            )
        last = layout.ports[-1]
        for name, ports in [(f"subswitches {s.name}", s.ports) for s in self.subswitches] + [
            (f"groups {g.name}", g.ports) for g in self.groups
        ]:
            wrong = [port for port in ports if port not in layout.ports]
            if wrong:
                raise ValueError(f"{name}: port {wrong[0]} is not there; {layout} has ports 1 to {last}")
        names = [user.name for user in self.users]
        if len(set(names)) < len(names):
            raise ValueError("users: the same name stands twice")
        held = [port for pair in self.initial for port in pair]
        if len(set(held)) < len(held):
            raise ValueError("initial: a port stands in two circuits")
        for first, second in self.initial:
            if first not in layout.ports or second not in layout.ports or not layout.joinable(first, second):
                raise ValueError(f"initial: {first} and {second} cannot be joined on {layout}")
        return self

    @property
    def layout(self) -> PortLayout:
        """The port numbers that this size has."""
        if self.size:
            return PortLayout.parse(self.size)
        return PortLayout.of_model(self.model) if self.model else PortLayout(32, 32)

    @property
    def size_text(self) -> str:
        """The size as the device writes it, padding kept."""
        return self.size or str(self.layout)

    @property
    def model_name(self) -> str:
        """The model name that the device answers with."""
        return self.model or f"N-OST-{self.size_text}-LA1-DMHNS"

    @property
    def monitored(self) -> Monitors:
        """Which ports measure: as told, else as the name says (I- has none, -801 measures on both sides)."""
        if self.monitors is not None:
            return self.monitors
        if self.model_name.startswith("I-"):
            return Monitors.NONE
        return Monitors.ALL if self.model_name.endswith("-801") else Monitors.EGRESS

    @property
    def pair_list(self) -> str:
        """What the list of circuits is called in this firmware's model."""
        return "pair" if self.yang_revision >= PAIR_SINCE else "pairs"
