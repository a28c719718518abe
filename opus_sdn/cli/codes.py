"""Exit codes that scripts can rely on."""

from __future__ import annotations

from enum import IntEnum

from opus_sdn.cli import INTERRUPTED


class ExitCode(IntEnum):
    """What a command's exit code says."""

    OK = 0
    REFUSED = 1  # asked and refused, looked and found wrong, checked and failed
    USAGE = 2  # a flag, an argument or a setting that cannot be used; nothing was asked
    UNAVAILABLE = 3  # nobody answers at the controller's address, or it is no controller
    CANNOT_FINISH = 3  # the same number for `opus whatif`, which asks no controller: the replayed step hangs
    INTERRUPTED = INTERRUPTED  # Ctrl-C
