"""What is answered about a change that was looked at."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from opus_sdn.api.documents import CrossConnectDocument, Document, Page, ReasonDocument, Time
from opus_sdn.api.plan_schemas import AnyChange


class PlannedStepDocument(Document):
    """One device transaction that the change would cause at once."""

    switch: str
    remove: list[CrossConnectDocument]
    add: list[CrossConnectDocument]


class BlockedDocument(Document):
    """What could not be done at once, and why."""

    what: Annotated[str, Field(description="A circuit, or a cross-connect as ingress->egress")]
    reason: ReasonDocument


class RefusalDocument(Document):
    """The problem with which the change would be refused now."""

    type: str
    detail: str
    data: dict[str, object]


class ParentDocument(Document):
    """On what the plan was made. It is stale as soon as one of these has moved on."""

    fabric: Annotated[int, Field(description="Generation of the fabric")]
    switches: Annotated[dict[str, int], Field(description="Observed generation of each switch concerned")]


class ChangePlanDocument(Document):
    """A change that was looked at. Applied while its parent is current, it does exactly this."""

    id: str
    by: str
    detail: str
    force: bool
    change: AnyChange
    made_at: Time
    expires_at: Time
    applied_at: Time | None
    parent: ParentDocument
    steps: list[PlannedStepDocument]
    disturbed: Annotated[list[str], Field(description="Circuits that would go, or be nobody's any more")]
    blocked: list[BlockedDocument]
    refusal: RefusalDocument | None


class ChangePlanPage(Page):
    """Changes that were looked at, oldest first."""

    plans: list[ChangePlanDocument]
