"""Watches the carrier of this GPU's NIC ports and tells the controller when it comes and goes.

A switch moves its mirrors in milliseconds; a NIC may take seconds after that until its link is up. What the
kernel says of the port is read from sysfs: `carrier` of a network interface, `state` of an RDMA port.
Only changes are told, and now and then the same again, for the controller keeps this in memory only.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.errors import ControllerError, ControllerUnavailableError
from opus_sdn.shim.link_settings import LinkSource
from opus_sdn.shim.wire import job_path

LOOK_S = 0.1
TELL_AGAIN_S = 10.0
ANSWER_S = 5.0
STOP_S = 2.0
TEXT_MAX_BYTES = 256
RDMA_ACTIVE = "4"  # "4: ACTIVE" in sysfs; others are down, or still training

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkState:
    """One NIC port. `detail`: what sysfs said, for people."""

    up: bool
    detail: str


def read_link(sysfs: Path, source: LinkSource) -> LinkState:
    """Whether a port has carrier now. What cannot be read is not up, and the detail says why."""
    path = sysfs / source.path
    try:
        with path.open("rb") as file:
            text = file.read(TEXT_MAX_BYTES).decode("ascii", errors="replace").strip()
    except OSError as failed:
        if failed.errno == errno.EINVAL:  # the kernel's answer for an interface that was taken down
            return LinkState(False, f"{source.name} is administratively down")
        return LinkState(False, f"{source.path} cannot be read: {failed.strerror}")
    if source.rdma:
        return LinkState(text.partition(":")[0].strip() == RDMA_ACTIVE, f"{source.name} is {text!r}")
    return LinkState(text == "1", f"{source.name} has {'carrier' if text == '1' else 'no carrier'}")


class LinkProbe:
    """A thread that looks at the ports of one rank. Starts at once; `close` ends it."""

    def __init__(
        self,
        client: ControllerClient,
        job: str,
        incarnation: int,
        rank: int,
        sources: Mapping[int, LinkSource],
        sysfs: Path,
    ) -> None:
        self._client = client
        self._path = job_path(job, "links")
        self._body = {"incarnation": incarnation, "rank": rank}
        self._sources = dict(sources)
        self._sysfs = sysfs
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"opus-links-{rank}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        told: dict[int, bool] = {}
        told_at = float("-inf")
        while not self._stop.is_set():
            seen = {index: read_link(self._sysfs, source) for index, source in self._sources.items()}
            ups = {index: state.up for index, state in seen.items()}
            if (ups != told or time.monotonic() - told_at >= TELL_AGAIN_S) and self._tell(seen):
                told, told_at = ups, time.monotonic()
            self._stop.wait(LOOK_S)

    def _tell(self, seen: Mapping[int, LinkState]) -> bool:
        """Whether the controller has taken it; else it is told again at the next look."""
        ports = [
            {"index": index, "up": state.up, "detail": state.detail} for index, state in sorted(seen.items())
        ]
        try:
            self._client.request("POST", self._path, {**self._body, "ports": ports}, timeout_s=ANSWER_S)
        except ControllerUnavailableError as absent:
            log.info("link state not told error=%s", absent)
            return False
        except ControllerError as refused:
            # The job is over, or the controller has begun anew and will be told when the session goes on.
            log.info("link state refused error=%s", refused)
            return False
        return True
