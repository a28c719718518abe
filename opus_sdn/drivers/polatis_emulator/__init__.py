"""An emulated optical switch that speaks RESTCONF and TL1 on real sockets, faults included."""

from __future__ import annotations

from opus_sdn.drivers.polatis_emulator.emulator import Kept, PolatisEmulator
from opus_sdn.drivers.polatis_emulator.faults import Door, Faults, ForeignWriter, ReplyFault, ReplyKind
from opus_sdn.drivers.polatis_emulator.process import EmulatorFailedError, EmulatorProcess
from opus_sdn.drivers.polatis_emulator.spec import (
    EmulatorSpec,
    Group,
    Monitors,
    PortGroupSpec,
    StartupMode,
    SubSwitchSpec,
    UserSpec,
)

__all__ = [
    "Door",
    "EmulatorFailedError",
    "EmulatorProcess",
    "EmulatorSpec",
    "Faults",
    "ForeignWriter",
    "Group",
    "Kept",
    "Monitors",
    "PolatisEmulator",
    "PortGroupSpec",
    "ReplyFault",
    "ReplyKind",
    "StartupMode",
    "SubSwitchSpec",
    "UserSpec",
]
