"""What operators are answered: what holds because they said so, what waits, and what was taken away."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from opus_sdn.api.documents import Document, Page, ReasonDocument, Time
from opus_sdn.intent import fabric_views, views
from opus_sdn.intent.directives import Holder
from opus_sdn.reconciler.runs import rfc3339


class DirectiveDocument(Document):
    """Something that an operator has told and that holds until it is taken back."""

    kind: Annotated[str, Field(description="drain: a port gets no circuit; circuit: one is kept up")]
    name: Annotated[str, Field(description="The port, or the circuit")]
    rail: str
    switch: str
    by: str
    detail: str
    force: bool
    since: Time
    done: Annotated[bool, Field(description="The port is dark, or the circuit is up")]
    reason: Annotated[ReasonDocument | None, Field(description="Why it is not done yet; null while it moves")]

    @classmethod
    def of(cls, view: fabric_views.DirectiveView) -> DirectiveDocument:
        return cls(
            kind=view.kind.value,
            name=view.name,
            rail=view.rail,
            switch=view.switch,
            by=view.told.by,
            detail=view.told.detail,
            force=view.told.force,
            since=rfc3339(view.told.at),
            done=view.done,
            reason=ReasonDocument.of(view.because) if view.because is not None else None,
        )


class DirectivePage(Page):
    """Directives in order of kind and name."""

    directives: list[DirectiveDocument]


class QueuedDocument(Document):
    """A job that waits for its ports. Declaring it again with the same nonce tells when it runs."""

    job: str
    owner: str
    state: Annotated[str, Field(description="Always queued")] = "queued"
    position: Annotated[int, Field(description="How many jobs were queued before it")]
    since: Time
    world_size: int
    reason: ReasonDocument

    @classmethod
    def of(cls, view: views.QueuedView) -> QueuedDocument:
        return cls(
            job=view.job,
            owner=view.owner,
            position=view.position,
            since=rfc3339(view.since),
            world_size=view.world_size,
            reason=ReasonDocument.of(view.because),
        )


class QueuePage(Page):
    """Queued jobs, first come first."""

    queue: list[QueuedDocument]


class HolderDocument(Document):
    """One rank's hold on a run."""

    job: str
    rank: int
    connection: str
    n: int
    no: Annotated[int, Field(description="Grant number of the rank")]


class ReleasedDocument(Document):
    """The locks that were taken away."""

    released: list[HolderDocument]

    @classmethod
    def of(cls, holders: tuple[Holder, ...]) -> ReleasedDocument:
        return cls(released=[HolderDocument.model_validate(holder) for holder in holders])
