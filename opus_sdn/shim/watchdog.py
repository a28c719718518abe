"""A rank's watchdog: what keeps the promise that an unanswered rank has stopped, when the rank cannot.

The controller gives a silent rank's circuits to others once its lease is over, because its shim has aborted
unfinished device work before that. A process that is stopped aborts nothing, and goes on transmitting where
it was when it is continued. So a second process, which is not stopped with it, kills it in time.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path

END_S = 2.0
PROGRAM = Path(__file__).with_name("watchdog_process.py")

log = logging.getLogger(__name__)


class Watchdog:
    """Watches this process from the call of `start` to `close`. Cheap to move on: one write to memory."""

    def __init__(self, page: mmap.mmap, process: subprocess.Popen[bytes]) -> None:
        self._page = page
        self._process = process

    @classmethod
    def start(cls, look_every_s: float) -> Watchdog | None:
        """Start it; None, with a warning, on a machine that cannot have one."""
        try:
            descriptor = os.memfd_create("opus-watchdog")
        except (AttributeError, OSError) as failed:
            log.warning("no watchdog on this machine: a stopped rank is not ended error=%s", failed)
            return None
        try:
            os.ftruncate(descriptor, 8)
            page = mmap.mmap(descriptor, 8)
            page[:8] = struct.pack("d", math.inf)
            process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(PROGRAM)),
                    *(str(descriptor), str(os.getpid()), str(look_every_s)),
                ],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # what stops the rank's process group must not stop it
            )
        except OSError as failed:
            log.warning("no watchdog: a stopped rank is not ended error=%s", failed)
            return None
        finally:
            os.close(descriptor)
        return cls(page, process)

    def end_at(self, moment: float) -> None:
        """This process must be gone at this moment of the monotonic clock, unless it says another one."""
        self._page[:8] = struct.pack("d", moment)

    def rest(self) -> None:
        """Nothing of this process can do harm any more."""
        self.end_at(math.inf)

    def close(self) -> None:
        """End the watching."""
        self.rest()
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
