"""How a changed state of an intent is recorded: the change and its one event."""

from __future__ import annotations

from opus_sdn.intent.changes import IntentMoved
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.reasons import Because
from opus_sdn.intent.state import CoreState
from opus_sdn.intent.streams import Intent


def record_move(
    state: CoreState,
    job: JobCore,
    intent: Intent,
    kind: str,
    because: Because | None = None,
    **more: object,
) -> None:
    """The change and the one event of an intent's new state."""
    state.ledger.add(IntentMoved(job.spec.name, job.incarnation, intent.stream, intent.n, intent.state))
    data = intent_data(intent)
    if because is not None:
        data |= {"reason": because.reason.value, "detail": because.detail}
    state.ledger.event(kind, job, **data, **more)


def intent_data(intent: Intent) -> dict[str, object]:
    """What names an intent in events."""
    data: dict[str, object] = {"connection": intent.connection.id, "n": intent.n}
    if intent.stream.source is not None:
        data |= {"source": intent.stream.source, "destination": intent.stream.destination}
    return data
