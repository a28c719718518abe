"""A rank without torch, as a process: it holds what it is granted, and transmits until it is told to stop.

Argument: JSON. It says on stdout what happens to it, one word a line, and ends when its stdin does.
"""

from __future__ import annotations

import json
import sys
import threading

from opus_sdn.intent.model import Grant, Stream
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.errors import OpusJobFailed
from opus_sdn.shim.session import RankSession
from opus_sdn.shim.settings import Address
from opus_sdn.shim.watchdog import Watchdog
from opus_sdn.shim.witness_client import WitnessClient


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def main() -> None:
    told = json.loads(sys.argv[1])
    witness = WitnessClient(told["witness"])
    transmitting: list[str] = []
    failed = threading.Event()

    def granted(grant: Grant) -> None:
        name = f"{told['job']}/{grant.stream}#{grant.n}/{told['rank']}"
        witness.begin(name, told["circuits"], told["rank"])
        transmitting.append(name)
        say("granted")

    def fail(cause: OpusJobFailed) -> None:
        for name in transmitting:  # the device work is aborted
            witness.end(name)
        say(cause.problem)
        failed.set()

    session = RankSession(
        ControllerClient(Address(False, "127.0.0.1", told["port"])),
        told["job"],
        1,
        told["start"],
        told["rank"],
        on_grant=granted,
        on_failed=fail,
        on_refused=lambda *_: say("refused"),
        fence_s=told["fence_s"],
        watchdog=Watchdog.start(told["fence_s"] / 8) if told["watchdog"] else None,
    )
    session.arrive(Stream(told["connection"]), 0)
    ended = threading.Thread(target=sys.stdin.read, daemon=True)
    ended.start()
    while ended.is_alive() and not failed.is_set():
        failed.wait(0.05)
    session.close()
    say("left")


if __name__ == "__main__":
    main()
