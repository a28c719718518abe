"""The only place of the controller that reads a clock. Everything else is given a `Clock`."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since 1970 that never go back."""


def steady_clock() -> Clock:
    """A clock that starts at the machine's time and then counts monotonically.

    Setting the machine's time while jobs run must neither expire every deadline nor hold them all.
    """
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset
