"""What of the history also belongs into the log of the process: things that somebody has to look at."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from opus_sdn.intent.changes import Change, EventAppended

logger = logging.getLogger(__name__)

# Names that a log record has for itself; logging refuses them.
TAKEN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
LEVELS = {
    "circuit.lost": logging.WARNING,
    "circuit.restored": logging.INFO,
    "intent.stalled": logging.WARNING,
    "plan.refused": logging.ERROR,
    "switch.away": logging.WARNING,
    "switch.back": logging.INFO,
    "switch.contended": logging.WARNING,
    "switch.drifted": logging.WARNING,
}


def write(changes: Iterable[Change]) -> None:
    """Log those of these stored changes that are such events: the kind, and its data as key and value."""
    for change in changes:
        level = LEVELS.get(change.kind) if isinstance(change, EventAppended) else None
        if level is not None:
            assert isinstance(change, EventAppended)
            known = {"job": change.job, "rail": change.rail, "switch": change.switch, **change.data}
            about = {name: value for name, value in known.items() if value is not None and name not in TAKEN}
            logger.log(level, change.kind, extra=about)
