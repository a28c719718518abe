"""Opus SDN: the control plane for optical circuit switches in GPU training fabrics.

Ranks of a training job declare which connectivity they need next; the controller points the switches so,
never tears down a circuit that carries traffic, and says when it is so.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("opus-sdn")
except PackageNotFoundError:  # run from a source tree that nobody installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
