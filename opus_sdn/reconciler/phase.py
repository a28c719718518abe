"""The phases of the runtime, and what each of them means to who asks."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What the runtime can do now. Only `ready` decides anything."""

    ADOPTING = "adopting"  # the switches are being read
    READY = "ready"
    STORE_FAILED = "store-failed"
    STOPPING = "stopping"
    FOLLOWING = "following"  # another replica decides; what it stores is read


SENTENCES = {
    Phase.ADOPTING: "the controller is reading its switches; ask again in a second",
    Phase.STORE_FAILED: "the controller's store has failed; it is opened again as soon as that works",
    Phase.STOPPING: "the controller is stopping; ask again when it has been started anew",
    Phase.FOLLOWING: "no replica leads at this moment; ask again in a second",
}
