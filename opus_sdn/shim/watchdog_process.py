"""The process that ends a rank which cannot end itself. Run as a file, with the standard library alone.

Arguments: the descriptor of a page with one double, the rank's process, and how often to look, in seconds.
The double is the moment, on the machine's monotonic clock, at which the rank must be gone if it has not moved
it on. A rank that is stopped (SIGSTOP, a debugger) moves nothing on. What stops this
process as well, such as a frozen container, is outside its reach: it ends the rank as soon as both go on.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import sys
import time


def main(page_descriptor: int, rank: int, look_every_s: float) -> None:
    """Watch until the rank has ended, or end it."""
    handle = os.pidfd_open(rank)  # not the number, which may be given to another process
    if os.getppid() != rank:
        return
    page = mmap.mmap(page_descriptor, 8, prot=mmap.PROT_READ)
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    while True:
        (due,) = struct.unpack("d", page[:8])
        left_s = due - time.monotonic()
        if left_s <= 0:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            sys.stderr.write(
                f"opus: killed process {rank}: it held circuits, had no answer from its controller and did "
                "not stop its own device work in time, as a stopped process cannot\n"
            )
            return
        if ended.poll(1 + min(left_s, look_every_s) * 1000):
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
