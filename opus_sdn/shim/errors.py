"""Everything the shim raises. All are RuntimeErrors: programs that catch torch's own errors catch them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class OpusError(RuntimeError):
    """Base of all errors of the shim."""


class SettingsError(OpusError):
    """An `OPUS_*` variable that cannot be used; the message names it, its value and what would be right."""


class UnsupportedTorchError(OpusError):
    """The installed torch was never tried with this backend; nothing of it was touched."""


class ForkedProcessError(OpusError):
    """A process forked from a rank used the rank's session. Only the rank itself may speak for it."""


class ControllerUnavailableError(OpusError):
    """Nobody answered at the controller's address, or what came back was no answer of the controller."""


class ControllerError(OpusError):
    """The controller refused a request: its problem type, HTTP status, sentence and further fields."""

    def __init__(self, problem: str, status: int, detail: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{problem}: {detail}")
        self.problem = problem
        self.status = status
        self.detail = detail
        self.data = dict(data or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.status, self.detail, self.data)


class OpusRefusedError(OpusError):
    """One operation cannot be done over circuits; others still can. `problem` is a stable name."""

    def __init__(self, problem: str, detail: str) -> None:
        super().__init__(f"{problem}: {detail}")
        self.problem = problem
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.detail)


class OpusInitError(OpusError):
    """The job could not start; every rank of it gets this same error. `problem` is a stable name."""

    def __init__(self, problem: str, detail: str) -> None:
        super().__init__(f"{problem}: {detail}")
        self.problem = problem
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.detail)


class OpusJobFailed(OpusError):  # noqa: N818 - a state of the job that programs wait for, named as they say it
    """The job's incarnation has ended; every rank gets the same cause. `rank` = whose fault, if known."""

    def __init__(
        self,
        problem: str,
        detail: str,
        rank: int | None,
        incarnation: int,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{problem}: {detail} (incarnation {incarnation})")
        self.problem = problem
        self.detail = detail
        self.rank = rank
        self.incarnation = incarnation
        self.data = dict(data or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem, self.detail, self.rank, self.incarnation, self.data)

    def again(self) -> OpusJobFailed:
        """A fresh copy: one exception object raised in several threads would mix their tracebacks."""
        return OpusJobFailed(self.problem, self.detail, self.rank, self.incarnation, self.data)
