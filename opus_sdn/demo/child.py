"""What happens inside a forked rank: its environment, its log, its program, and what it tells the launcher.

A rank leaves by `os._exit` unless asked otherwise: a thread that is stuck in a collective then cannot keep
the process, and 8 interpreter shutdowns are half a second each.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from opus_sdn.demo.frames import write_frame

MAX_TEXT_CHARACTERS: Final = 64 * 1024
_PLAIN: Final = (str, int, float, bool, type(None))
_PR_SET_PDEATHSIG: Final = 1

_channel: int | None = None


@dataclass(frozen=True, slots=True)
class RankSpec:
    """One rank to fork. `arguments` is a pickled (args, kwargs), opened only in the rank itself."""

    rank: int
    target: str
    arguments: bytes
    environment: Mapping[str, str]
    log: str
    stacks: str
    interpreter_exit: bool


@dataclass(frozen=True, slots=True)
class RankError:
    """An exception of a rank, in words: its class may exist only in the rank's process.

    `type` is the qualified name, `bases` those of all its classes, `attributes` its plain-valued ones.
    """

    type: str
    bases: tuple[str, ...]
    text: str
    traceback: str
    attributes: Mapping[str, Any]


def tell(value: object) -> None:
    """Send a picklable value to the launcher's `on_message`; does nothing outside of a launched rank."""
    if _channel is not None:
        write_frame(_channel, pickle.dumps(("note", value)))


def resolve(target: str) -> Callable[..., Any]:
    """The callable that "module:function" names. Raises ValueError, ImportError, AttributeError."""
    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise ValueError(f"target: {target!r}; wanted 'module:function'")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"target: {target!r} is a {type(found).__name__}; wanted a callable")
    return found  # type: ignore[no-any-return]  # a name looked up at run time has no type


def run_rank(spec: RankSpec, channel: int, parent: int) -> int:
    """Be the rank: run its program, send its value or its exception, return the exit status to leave with."""
    global _channel  # noqa: PLW0603  # one rank per process, and `tell` is called from anywhere in it
    _channel = channel
    _die_with(parent)
    os.environ.update(spec.environment)
    _redirect(spec.log)
    faulthandler.enable()  # a crash in C++ code leaves its stacks in the log
    # The file stays open to the end, as faulthandler writes from the signal itself: a rank that is stuck in
    # C++ code still tells where.
    stacks = os.open(spec.stacks, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    try:
        args, kwargs = pickle.loads(spec.arguments)
        payload = pickle.dumps(("value", resolve(spec.target)(*args, **kwargs)))
        write_frame(channel, payload)
    except BaseException as error:  # noqa: BLE001  # whatever ends the program is its result, SystemExit too
        traceback.print_exc()
        write_frame(channel, pickle.dumps(("error", describe(error))))
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def describe(error: BaseException) -> RankError:
    """Put an exception into words that any process can read."""
    lines = "".join(traceback.format_exception(error))
    return RankError(
        type=_qualified(type(error)),
        bases=tuple(_qualified(base) for base in type(error).__mro__[:-1]),
        text=str(error)[:MAX_TEXT_CHARACTERS],
        traceback=lines[-MAX_TEXT_CHARACTERS:],
        attributes={
            name: value
            for name, value in getattr(error, "__dict__", {}).items()
            if isinstance(value, _PLAIN) and not name.startswith("__")
        },
    )


def _qualified(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _die_with(parent: int) -> None:
    """Lead a process group of its own, and get killed when the fork server is, where the system offers it."""
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)


def _redirect(log: str) -> None:
    """Send what the rank prints, C++ included, to its log file."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)
