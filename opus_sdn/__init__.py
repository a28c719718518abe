"""Opus SDN: the control plane for optical circuit switches in GPU training fabrics.

Ranks of a training job declare which connectivity they need next; the controller points the switches so,
never tears down a circuit that carries traffic, and says when it is so.
"""

from __future__ import annotations

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """`__version__`, looked up when asked for: reading installed metadata takes tens of milliseconds."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("opus-sdn")
    except PackageNotFoundError:  # run from a source tree that nobody installed
        return "0+unknown"
