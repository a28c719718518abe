"""Every operation of a driver under every fault, on the emulated switch and on a Polatis over each transport.

Whatever happens, a call ends in time, and what it says is true: `applied` is in the device, a transient or
terminal failure has changed nothing, and an ambiguous one is resolved by reading. The circuit that nobody
asked about keeps its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pytest

from opus_sdn.drivers.base import (
    AmbiguousError,
    Applied,
    DriverError,
    PairOutcome,
    Refusal,
    TerminalError,
    TransientError,
)
from opus_sdn.drivers.pairs import PortId
from opus_sdn.intent.fabric import CrossConnect, Side
from tests.drivers.devices import Pairs, pairs
from tests.polatis.worlds import BEFORE, BYSTANDER, SILENCE, World, world

T = TypeVar("T")

IN, OUT = Side.INGRESS, Side.EGRESS
KINDS = ("emulated", "restconf", "tl1")
PATIENCE_S = 20.0  # no call takes as long, on the slowest machine

CHANGES: Mapping[str, tuple[Pairs, Pairs]] = {
    "add": ((), pairs((3, 3), (4, 4))),
    "remove": (pairs((0, 0), (1, 1)), ()),
    "swap": (pairs((0, 0), (1, 1)), pairs((0, 1), (1, 0))),
    "move": (pairs((0, 0), (1, 1)), pairs((3, 0), (0, 4))),
}
READS = ("describe", "read", "ports", "power")
SETTINGS = ("block", "label")
OPERATIONS = (*CHANGES, *READS, *SETTINGS)

FAULTS = (
    "time-out before",
    "time-out after apply",
    "partial batch",
    "wrong answer",
    "reset",
    "reboot empty",
    "reboot with an old table",
    "port failed",
    "slow tuning",
    "foreign writer",
    "session limit",
    "idle logout",
    "remote lock",
    "protocol disabled with the socket open",
)


SILENT = ("time-out before", "time-out after apply", "protocol disabled with the socket open")


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask a healthy device; a machine that is too busy for the short time-out is asked again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await ask()
            except TransientError as busy:
                if "no answer" not in busy.detail and "cannot connect" not in busy.detail:
                    raise


def why_not(kind: str, operation: str, fault: str) -> str | None:
    """Why this cell of the matrix cannot be; None when it can."""
    changing, reading = operation in CHANGES, operation in READS
    if fault == "time-out after apply" and reading:
        return "reading applies nothing"
    if fault == "partial batch" and not changing:
        return "only a change of the table is a batch"
    if fault == "slow tuning" and not changing and kind != "emulated":
        return "nothing is tuned"
    if fault == "remote lock" and reading:
        return "the lock leaves reading free; shown with the changes"
    if kind == "emulated":
        if fault in ("idle logout", "protocol disabled with the socket open"):
            return "a call within one process has no login and no socket"
        wrapped = fault not in ("reboot empty", "reboot with an old table", "port failed", "foreign writer")
        if wrapped and not changing and operation != "read":
            return "the fault wrapper strikes changes and readings of the table"
        if operation == "read" and fault in ("time-out before", "wrong answer", "reset"):
            return "a reading within one process is neither lost nor garbled"
    if kind == "restconf" and fault == "idle logout":
        return "every request brings its own credentials"
    return None


CELLS = [(k, o, f) for k in KINDS for o in OPERATIONS for f in FAULTS]
APPLICABLE = [cell for cell in CELLS if why_not(*cell) is None]


@dataclass(frozen=True)
class Outcome:
    """How the call ended."""

    value: object = None
    error: DriverError | None = None

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}" if self.error else repr(self.value)


async def call(w: World, operation: str) -> Outcome:
    """Make the call. Anything but an answer or one of the three failures, in time, fails the test."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            if operation in CHANGES:
                remove, add = CHANGES[operation]
                return Outcome(await w.driver.apply(remove, add, 1))
            if operation == "power":
                return Outcome(await w.driver.power([PortId(OUT, 0), PortId(OUT, 2)]))
            if operation == "block":
                return Outcome(await w.driver.block([PortId(IN, 5)], blocked=True))
            if operation == "label":
                return Outcome(await w.driver.label({PortId(IN, 5): "rail0-nic5"}))
            return Outcome(await getattr(w.driver, operation)())
        except (TransientError, TerminalError, AmbiguousError) as error:
            return Outcome(error=error)


def test_every_cell_is_either_shown_or_explained() -> None:
    left_out = {cell: why_not(*cell) for cell in CELLS if cell not in APPLICABLE}
    assert all(left_out.values())
    assert len(CELLS) == len(KINDS) * 10 * 14
    assert len(APPLICABLE) > 250


@pytest.mark.parametrize(("kind", "operation", "fault"), APPLICABLE)
def test_what_a_driver_says_is_true_whatever_goes_wrong(kind: str, operation: str, fault: str) -> None:
    async def main() -> None:
        # An answer that is lost is waited for in vain; one that has to come may take its time.
        silent = fault in SILENT or (fault == "wrong answer" and operation in READS)
        options = dict(SILENCE) if silent else {}
        if fault == "time-out after apply" and not _goes_in_parts(kind, operation):
            options["readback_s"] = 10.0
        async with world(kind, **options) as w:
            if operation != "describe":
                # So that the fault meets the call, not the search for the device.
                await patiently(w.driver.describe)
            await w.strike(fault, writing=operation not in READS)
            before = w.table
            outcome = await call(w, operation)
            _claims_are_true(w, operation, fault, before, outcome)
            _is_as_wanted(kind, operation, fault, outcome)
            if fault not in ("reboot empty",):
                assert BYSTANDER in w.table, "a circuit was displaced that nobody asked about"
            await w.heal()
            if kind == "restconf" or kind == "tl1":
                await _same_in_the_end(w, operation, fault)

    asyncio.run(main())


def _claims_are_true(
    w: World, operation: str, fault: str, before: frozenset[CrossConnect], outcome: Outcome
) -> None:
    unchanged = not w.blocked(PortId(IN, 5)) and w.label(PortId(IN, 5)) == ""
    if isinstance(outcome.error, TransientError | TerminalError):
        assert w.table == before, f"something was changed by a call that failed with {outcome}"
        assert unchanged
        return
    if outcome.error is not None:
        return
    if isinstance(outcome.value, Applied) and fault != "wrong answer":
        for result in outcome.value.pairs:
            there = result.pair in w.table
            if result.outcome in (PairOutcome.APPLIED, PairOutcome.DISPLACED):
                assert there is not result.removed, result
            if result.outcome is PairOutcome.CONNECTED_DARK:
                assert there, result
            if result.outcome is PairOutcome.FAILED:
                assert there is result.removed, result
    if operation == "read":
        assert getattr(outcome.value, "matching") == w.table  # noqa: B009
    if operation == "block":
        assert w.blocked(PortId(IN, 5))
    if operation == "label":
        assert w.label(PortId(IN, 5)) == "rail0-nic5"


def _is_as_wanted(  # noqa: C901  # one case for each fault
    kind: str, operation: str, fault: str, outcome: Outcome
) -> None:
    """The one right end of the cell."""
    error, value = outcome.error, outcome.value
    changing, reading = operation in CHANGES, operation in READS
    remove, add = CHANGES.get(operation, ((), ()))
    match fault:
        case "time-out before" | "reset":
            assert isinstance(error, AmbiguousError) if not reading else _is_transient_or_fine(outcome), (
                outcome
            )
        case "time-out after apply":
            if kind == "emulated":
                assert isinstance(error, AmbiguousError)
            elif changing:
                partly = _goes_in_parts(kind, operation)
                assert isinstance(error, AmbiguousError) if partly else _is_complete(value), outcome
            else:
                assert error is None, outcome
        case "partial batch":
            if kind == "emulated":
                assert isinstance(error, AmbiguousError)
            else:
                assert isinstance(value, Applied), outcome
        case "wrong answer":
            if kind == "emulated":
                assert isinstance(value, Applied)
            elif reading:
                assert _is_transient_or_fine(outcome), outcome
            elif changing:
                assert isinstance(value, Applied), outcome
            else:
                assert error is None, outcome
        case "reboot empty" | "reboot with an old table" | "foreign writer" if changing and remove:
            assert isinstance(error, TerminalError), outcome
            assert error.reason is Refusal.ABSENT
        case "foreign writer" if operation == "add":
            assert isinstance(error, TerminalError), outcome
            assert error.reason is Refusal.WOULD_DISPLACE
            assert error.displaced == pairs((3, 0))
        case "port failed" if operation in ("add", "move"):
            assert isinstance(value, Applied)
            dark = {r.pair for r in value.pairs if r.outcome is PairOutcome.CONNECTED_DARK}
            assert dark == {pair for pair in add if pair.ingress == 3}
        case "session limit":
            # A setting may have gone into the ending session before that was noticed.
            open_end = isinstance(error, AmbiguousError) and operation in SETTINGS
            assert open_end or isinstance(error, TransientError), outcome
        case "remote lock":
            assert isinstance(error, TerminalError), outcome
            assert error.reason is Refusal.LOCKED
        case "protocol disabled with the socket open":
            # Every write is preceded by reading, which gets no answer.
            assert isinstance(error, TransientError), outcome
        case _:
            if operation == "power" and kind == "emulated":
                assert isinstance(error, TerminalError)
                assert error.reason is Refusal.UNSUPPORTED
            elif changing:
                assert _is_complete(value), outcome
            else:
                assert error is None, outcome


def _goes_in_parts(kind: str, operation: str) -> bool:
    """Removals go first, over RESTCONF one by one: after a lost answer the rest is not sent."""
    return operation == "move" or (kind, operation) == ("restconf", "remove")


def _is_complete(value: object) -> bool:
    return isinstance(value, Applied) and value.shortfall() is None


def _is_transient_or_fine(outcome: Outcome) -> bool:
    """A reading whose first try was lost may be answered at the second."""
    return outcome.error is None or isinstance(outcome.error, TransientError)


async def _same_in_the_end(w: World, operation: str, fault: str) -> None:
    """Once the fault is over, reading tells the truth, and asking for the rest completes the change."""
    seen = await patiently(w.driver.read)
    assert seen.matching == w.table
    remove, add = CHANGES.get(operation, ((), ()))
    if fault in ("foreign writer", "reboot empty", "reboot with an old table"):
        return
    left = tuple(pair for pair in remove if pair in seen.matching and pair not in add)
    missing = tuple(pair for pair in add if pair not in seen.matching)
    applied = await patiently(lambda: w.driver.apply(left, missing, 2, expect_revision=seen.revision))
    assert applied.shortfall() is None
    assert w.table == (set(BEFORE) - set(remove)) | set(add)
