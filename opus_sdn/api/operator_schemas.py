"""What operators send: who they are, why, and whether it goes before locks and running jobs."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from opus_sdn.intent.directives import Operator

PortName = Annotated[str, Field(min_length=5, max_length=300, description="Port, as host:slot:index")]


class OperatorRequest(BaseModel):
    """Who asks for it, and why; both stand in the event that it leaves."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    by: Annotated[str, Field(min_length=1, max_length=128, description="Who asks for it")]
    detail: Annotated[str, Field(max_length=4096, description="Why, for whoever reads it later")] = ""
    force: Annotated[
        bool, Field(description="Goes before locks and running jobs: traffic may be cut. Audited")
    ] = False

    def operator(self) -> Operator:
        """The core's form."""
        return Operator(self.by, self.detail, self.force)


class DrainRequest(OperatorRequest):
    """No circuit for a port from now on."""


class UndrainRequest(OperatorRequest):
    """A port may be used again."""


class CircuitRequest(OperatorRequest):
    """A circuit between two ports of one rail, kept up until it is taken back."""

    a: PortName
    b: PortName
