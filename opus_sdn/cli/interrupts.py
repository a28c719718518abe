"""Commands that start processes end them on SIGTERM too."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: what it started has to be stopped, its folder removed."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
