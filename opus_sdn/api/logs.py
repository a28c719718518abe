"""Log lines of the process: time, level, a constant message, and the values as key=value, on stderr."""

from __future__ import annotations

import json
import logging
import sys

from opus_sdn.reconciler.runs import rfc3339

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class KeyValueFormatter(logging.Formatter):
    """One line per record; a traceback, if any, follows it."""

    def format(self, record: logging.LogRecord) -> str:
        values = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        words = [f"{name}={_word(value)}" for name, value in values.items()]
        line = " ".join(
            (rfc3339(record.created), record.levelname.lower(), record.name, record.getMessage(), *words)
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _word(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and not any(c in text for c in ' "=') else json.dumps(text)


def configure(level: str) -> None:
    """Send all log lines of the process at or above `level` to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, root.level))
