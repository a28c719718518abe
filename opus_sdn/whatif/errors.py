"""What the what-if engine can refuse, and what it says when a step cannot finish."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class WhatIfError(Exception):
    """The base of everything that this package raises on purpose."""


class InputError(WhatIfError):
    """An input that cannot be used: which file, node and field, the value there, and why it will not do."""

    def __init__(
        self,
        why: str,
        *,
        file: Path | str,
        node: int | None = None,
        field: str | None = None,
        value: object = None,
    ) -> None:
        self.why = why
        self.file = str(file)
        self.node = node
        self.field = field
        self.value = value
        super().__init__(str(self))

    def __reduce__(self) -> tuple[partial[InputError], tuple[()]]:
        """An exception that cannot be unpickled breaks the pool that it came from."""
        given = partial(
            InputError, self.why, file=self.file, node=self.node, field=self.field, value=self.value
        )
        return given, ()

    def __str__(self) -> str:
        parts = [self.file]
        if self.node is not None:
            parts.append(f"node {self.node}")
        if self.field is not None:
            shown = _REPR.repr(self.value)
            if len(shown) > SHOWN_CHARACTERS:
                shown = shown[:SHOWN_CHARACTERS] + "..."
            parts.append(self.field if self.value is None else f"{self.field} is {shown}")
        return ": ".join([", ".join(parts), self.why])


SHOWN_CHARACTERS = 80  # of a value in a message: a broken file may put megabytes into one


class _Repr(reprlib.Repr):
    """What is shown of a value: lists within lists, as YAML's references make them, are cut while written."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = 2 * SHOWN_CHARACTERS
        self.maxlist = self.maxdict = self.maxtuple = SHOWN_CHARACTERS // 3

    def repr_int(self, x: int, level: int) -> str:
        """Python writes out no integer of thousands of digits."""
        return f"an integer of {x.bit_length()} bits" if x.bit_length() > 256 else repr(x)


_REPR = _Repr()


@dataclass(frozen=True, slots=True)
class Wait:
    """One edge of a wait-for cycle: `rank` cannot go on with `operation` before `waits_for` has moved."""

    rank: int
    operation: str
    connection: str
    waits_for: int | None
    reason: str

    def __str__(self) -> str:
        whom = "nobody" if self.waits_for is None else f"rank {self.waits_for}"
        return f"rank {self.rank} waits for {whom}: {self.operation} on {self.connection}: {self.reason}"


class CannotFinishError(WhatIfError):
    """The replayed step hangs: `cycle` is a circle of waits, or the chain to where nothing can move."""

    def __init__(self, time_ns: int, unfinished: int, cycle: tuple[Wait, ...]) -> None:
        self.time_ns = time_ns
        self.unfinished = unfinished
        self.cycle = cycle
        super().__init__(str(self))

    def __reduce__(self) -> tuple[type[CannotFinishError], tuple[int, int, tuple[Wait, ...]]]:
        return CannotFinishError, (self.time_ns, self.unfinished, self.cycle)

    def __str__(self) -> str:
        what = f"nothing moves after {self.time_ns} ns, {self.unfinished} ranks are unfinished"
        return "\n".join([f"the step cannot finish: {what}", *(f"  {wait}" for wait in self.cycle)])


class WorkerLostError(WhatIfError):
    """A process of a sweep has ended in the middle of its work, as one does that is killed for its memory."""
