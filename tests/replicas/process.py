"""A controller as its own process, whose switches are a device in the test's process.

Arguments: settings as JSON, the ready file, the device's socket.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import MappingProxyType

from opus_sdn.api.server import StartError, serve
from opus_sdn.drivers import registry
from opus_sdn.settings import Settings
from tests.replicas.switch import SharedSwitchDriver

if __name__ == "__main__":
    registry.DRIVERS = MappingProxyType({"emulated": lambda _switch: SharedSwitchDriver(sys.argv[3])})
    try:
        serve(Settings(**json.loads(sys.argv[1])), ready_file=Path(sys.argv[2]))
    except StartError as error:
        sys.exit(f"error: {error}")
