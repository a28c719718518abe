"""A controller as its own process, for tests that end it. Arguments: settings as JSON, the ready file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from opus_sdn.api.server import StartError, serve
from opus_sdn.settings import Settings

if __name__ == "__main__":
    try:
        serve(Settings(**json.loads(sys.argv[1])), ready_file=Path(sys.argv[2]))
    except StartError as error:
        sys.exit(f"error: {error}")
