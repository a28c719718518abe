"""The Work of an all-to-all on the host."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from opus_sdn.shim.errors import OpusRefusedError
from opus_sdn.shim.torch_all_to_all import HostAllToAll
from tests.waiting import wait_until

pytestmark = pytest.mark.torch


class Exchange:
    """Goes on when the test lets it; raises what it is given."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_end = threading.Event()
        self.error = error

    def run(self, carry: object) -> None:
        assert self.may_end.wait(30.0)
        if self.error is not None:
            raise self.error


def work_of(exchange: Exchange) -> HostAllToAll:
    nothing: Any = None
    return HostAllToAll(exchange, nothing)  # type: ignore[arg-type]


def test_it_goes_on_although_nobody_waits() -> None:
    """A member may wait for an all-reduce first, in which its peer comes only after this one."""
    exchange = Exchange()
    work = work_of(exchange)
    assert not work.is_completed()
    exchange.may_end.set()
    wait_until(work.is_completed, "it is done")
    assert work.wait()


def test_its_error_is_for_whoever_waits() -> None:
    exchange = Exchange(OpusRefusedError("size-mismatch", "split sizes must agree"))
    exchange.may_end.set()
    with pytest.raises(OpusRefusedError, match="split sizes must agree"):
        work_of(exchange).wait()
