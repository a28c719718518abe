"""Ways to look at, hold up and cut off the SQL store from outside, without code of its own for that."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event

_hooks: dict[str, tuple[Callable[..., Any], ...]] = {}


def _relay(name: str) -> None:
    def call(*given: object) -> None:
        for hook in _hooks[name]:
            hook(*given)

    _hooks[name] = ()
    event.listen(Engine, name, call)


# SQLAlchemy's own lists of listeners must not change while a writer thread walks through them: ours may.
for _name in ("connect", "begin", "commit", "before_cursor_execute"):
    _relay(_name)


@contextmanager
def hooked(name: str, hook: Callable[..., Any]) -> Iterator[None]:
    """Have SQLAlchemy call `hook` at its event `name` on every engine."""
    before = _hooks[name]
    _hooks[name] = (*before, hook)
    try:
        yield
    finally:
        _hooks[name] = before


def forked(act: Callable[[], None]) -> int:
    """Run `act` in a forked child that ends without cleaning up; the child's process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        act()
        code = 0
    except BaseException:  # noqa: BLE001 (the child must not run on as a second test session)
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a forked child; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
