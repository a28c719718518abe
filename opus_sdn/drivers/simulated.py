"""An emulated switch on a virtual clock: the same device, whose delays pass when somebody says so.

For simulations that own the time. It takes what the emulated driver takes and refuses what that refuses, so
that a plan which a device would not carry out is found out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from opus_sdn.drivers.emulated import EmulatedSwitch, Transition
from opus_sdn.intent.fabric import CrossConnect, Switch

NS_PER_MS = 1_000_000


class Phase(Enum):
    """Where a change is."""

    CONTROL = "control"  # the device has taken the request; nothing moves yet
    OPTICS = "optics"  # the mirrors move
    DONE = "done"


@dataclass(slots=True)
class Change:
    """One change on its way; `due_ns` is when its phase ends."""

    transition: Transition
    phase: Phase
    due_ns: int


class SimulatedSwitch:
    """One device. `begin` a change, then `advance` it whenever its `due_ns` has come, until it is done."""

    def __init__(self, switch: Switch) -> None:
        self._now_ns = 0
        self.device = EmulatedSwitch(switch, clock=lambda: self._now_ns / 1e9)
        options = self.device.options
        self.control_ns = round(options.control_ms * NS_PER_MS)
        self.delay_ns = round(options.delay_ms * NS_PER_MS)

    @property
    def is_full(self) -> bool:
        """Whether the device takes no further change before one is done."""
        return self.device.inflight >= self.device.options.max_inflight

    def begin(
        self, now_ns: int, remove: tuple[CrossConnect, ...], add: tuple[CrossConnect, ...], epoch: int
    ) -> Change:
        """Hand a request to the device. Raises the driver failures of `EmulatedSwitch.accept`."""
        self._now_ns = now_ns
        transition = self.device.accept(remove, add, epoch)
        change = Change(transition, Phase.CONTROL, now_ns + self.control_ns)
        if not self.control_ns:
            self.advance(now_ns, change)
        return change

    def advance(self, now_ns: int, change: Change) -> None:
        """The change's time has come: the mirrors begin to move, or stand."""
        self._now_ns = now_ns
        if change.phase is Phase.CONTROL:
            self.device.start(change.transition)
            change.phase, change.due_ns = Phase.OPTICS, now_ns + self.delay_ns
        elif change.phase is Phase.OPTICS:
            self.device.finish(change.transition)
            change.phase = Phase.DONE
