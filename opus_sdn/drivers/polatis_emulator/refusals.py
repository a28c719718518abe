"""Why the device refuses, whichever protocol asked; each door says it in its own words."""

from __future__ import annotations

from enum import Enum, auto


class Why(Enum):
    """The kinds of refusal."""

    BAD_PORT = auto()  # no port has this number
    SAME_SIDE = auto()  # the two ports cannot be joined
    DUPLICATE = auto()  # one request uses a port twice
    IN_USE = auto()  # a port is in another circuit
    EXISTS = auto()  # the entry is there already
    FORBIDDEN = auto()  # this user may not
    LOCKED = auto()  # locked at the touchscreen
    MODULE = auto()  # the optical module failed
    MODIFIED = auto()  # not the revision that was expected


class RefusalError(Exception):
    """The request was refused; `ports` are those it was refused for, as far as it has to do with ports."""

    def __init__(self, why: Why, detail: str, *ports: int) -> None:
        super().__init__(detail)
        self.why = why
        self.detail = detail
        self.ports = ports
