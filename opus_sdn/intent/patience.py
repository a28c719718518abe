"""Rings that leave their ports to messages for a while, because nobody waits for them.

Pipelines with microbatches send over ports that the rings of their gradients need too. A ring that came
between two microbatches would hold up the whole pipeline, and gain nothing: its result is needed at the end.
"""

from __future__ import annotations

from opus_sdn.intent.changes import IntentState
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import Connection, CoreSettings, Pattern
from opus_sdn.intent.order import overdue
from opus_sdn.intent.streams import Intent

MICROBATCHES = 2  # messages of one stream that are on their way at once


def patient_until(job: JobCore, intent: Intent, now: float, settings: CoreSettings) -> float | None:
    """Until when a complete ring leaves its ports to messages; None when it does not, or no longer.

    Only where nothing is lost by it: no member's host waits for it, or for what comes behind it in its
    stream, no step for it has begun, and it is not overdue. Messages that are on their way are waited for as
    long as the bound on overtaking allows, others for `ring_patience_s`.
    """
    if intent.connection.pattern is not Pattern.RING or intent.state is not IntentState.COMPLETE:
        return None
    if overdue(intent, now, settings) or job.streams[intent.stream].is_waited_for():
        return None
    patience_s = settings.overtake_s if _alternates(job, intent.connection) else settings.ring_patience_s
    until = intent.complete_at + min(patience_s, settings.overtake_s)
    return until if now < until else None


def _alternates(job: JobCore, ring: Connection) -> bool:
    """Whether messages are on their way to ports of a ring that it shares with several microbatches.

    A message is on its way when one of its ends has arrived. Of a ring that once saw several of one stream
    the last is awaited too. Only ranks that hint are known to say at once that their host waits.
    """
    if not job.hints_heard:
        return False
    awaited = [stream.half_arrived() for stream in job.messages_against(ring)]
    if max(awaited, default=0) >= MICROBATCHES:
        job.alternating.add(ring.id)
    return any(awaited) and ring.id in job.alternating
