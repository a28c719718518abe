"""The `torch.backends` entry point: makes the backend name `opus` known, and does nothing else.

torch calls it at the end of `import torch`, in launchers and agents too, so it starts no thread, reads no
setting and never raises. What the backend needs is imported when a process group is made.
"""

from __future__ import annotations

import logging
from typing import Any

BACKEND = "opus"
DEVICES = ["cpu", "cuda"]

log = logging.getLogger(__name__)


def register() -> None:
    """Register the backend with torch; harmless when repeated. Call it where autoload is switched off."""
    try:
        import torch.distributed as dist

        if dist.is_available() and BACKEND not in dist.Backend.backend_list:
            dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=list(DEVICES))
    except Exception as failed:  # noqa: BLE001 - an exception here would make `import torch` fail
        log.debug("backend opus not registered: %r", failed)


def _create(options: Any, backend_options: Any) -> Any:
    """Called by torch for every new process group of this backend, on its members."""
    from opus_sdn.shim.torch_backend import create

    return create(options, backend_options)
