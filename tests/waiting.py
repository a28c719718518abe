"""Waiting for conditions, never for times."""

from __future__ import annotations

import threading
from collections.abc import Callable

PATIENCE_S = 60.0  # for what happens within milliseconds on an idle machine; reached only by a hang


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Look again and again until it is so."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        if holds():
            return
        pause.wait(0.01)
    raise AssertionError(f"did not happen in {PATIENCE_S} s: {what}")
