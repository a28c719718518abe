"""What is sent to look at a change before it is made."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from opus_sdn.api.operator_schemas import OperatorRequest, PortName
from opus_sdn.api.schemas import NAME_PATTERN, JobRequest
from opus_sdn.fabric_file import FabricSpec


class _Change(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class DrainChange(_Change):
    """No circuit for a port."""

    kind: Literal["drain"]
    port: PortName


class UndrainChange(_Change):
    """A port may be used again."""

    kind: Literal["undrain"]
    port: PortName


class CircuitChange(_Change):
    """A circuit is kept up."""

    kind: Literal["circuit"]
    a: PortName
    b: PortName


class DropChange(_Change):
    """A circuit is kept up no longer."""

    kind: Literal["drop-circuit"]
    circuit: Annotated[str, Field(min_length=1, max_length=700)]


class JobChange(_Change):
    """A job is declared."""

    kind: Literal["job"]
    job: Annotated[str, Field(pattern=NAME_PATTERN)]
    spec: JobRequest


class FabricChange(_Change):
    """Another fabric comes into force."""

    kind: Literal["fabric"]
    fabric: FabricSpec


AnyChange = Annotated[
    DrainChange | UndrainChange | CircuitChange | DropChange | JobChange | FabricChange,
    Field(discriminator="kind", description="What would be done"),
]


class PlanRequest(OperatorRequest):
    """A change to look at, as it would be asked for; `force` is part of it."""

    change: AnyChange
