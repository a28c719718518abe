"""The command line `opus`: for people at a prompt, and for scripts that read its output and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

INTERRUPTED = 130


def agent() -> NoReturn:
    """The command `opus-agent`: `opus agent` under a name of its own, for unit files and process lists."""
    main(["agent", *sys.argv[1:]])


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command with `arguments`, by default those of the process, and exit with its code."""
    try:
        # Inside, so that Ctrl-C ends the command without a traceback from its first moment on.
        given = list(sys.argv[1:] if arguments is None else arguments)
        if given[:1] == ["whatif"]:
            # Done before the machinery of the other commands would be loaded.
            from opus_sdn.cli.whatif import run
        else:
            from opus_sdn.cli.app import run
        code = run(given)
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)
