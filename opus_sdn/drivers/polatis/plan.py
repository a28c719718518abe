"""What one transaction means for the table: what is written, what is in the way, what came of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from opus_sdn.drivers.base import ConflictMode, PairOutcome, PairResult, Refusal, TerminalError
from opus_sdn.drivers.pairs import displaced_by, place, ports_of, text
from opus_sdn.drivers.polatis.numbering import Numbering, NumberingError
from opus_sdn.drivers.polatis.wire import Numbers
from opus_sdn.intent.fabric import CrossConnect

Matching = frozenset[CrossConnect]


@dataclass(frozen=True, slots=True)
class Plan:
    """One transaction, judged by its end state.

    `gone` = pairs that are to be absent afterwards, `displaced` those of them that only the mode removes.
    `delete` = ingress numbers whose entries vanish; other entries of `gone` are overwritten by `merge`.
    """

    add: tuple[CrossConnect, ...]
    gone: Matching
    displaced: Matching
    delete: tuple[int, ...]
    merge: tuple[Numbers, ...]
    overwrite: tuple[Numbers, ...] | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.delete and not self.merge

    @property
    def asked(self) -> int:
        """How many pairs the result will speak of."""
        return len(self.add) + len(self.gone)

    def reached(self, table: Matching) -> bool:
        """Whether this table is what was asked for, as far as it was."""
        return table.issuperset(self.add) and not (self.gone & table)

    def missing(self, table: Matching) -> int:
        """How many pairs of the transaction are not as asked for."""
        return len(set(self.add) - table) + len(self.gone & table)


def make_plan(
    numbering: Numbering,
    before: Matching,
    remove: tuple[CrossConnect, ...],
    add: tuple[CrossConnect, ...],
    mode: ConflictMode,
) -> Plan:
    """Judge a whole request before anything is sent. Raises TerminalError, naming pairs and ports."""
    removed, added = _normal(numbering, "remove", remove), _normal(numbering, "add", add)
    both = sorted(set(removed) & set(added))
    if both:
        raise TerminalError(
            f"{', '.join(map(text, both))} in remove and in add; leave a pair out of both to keep it",
            Refusal.INVALID,
        )
    if mode is ConflictMode.OVERWRITE:
        gone = before - set(added)
        displaced = gone - set(removed)
    else:
        absent = [pair for pair in removed if pair not in before]
        if absent:
            raise TerminalError(f"remove: not there: {', '.join(map(text, absent))}", Refusal.ABSENT)
        in_the_way = displaced_by(before, removed, added, sided=numbering.sided)
        if in_the_way and mode is ConflictMode.SAFE:
            raise TerminalError(
                _refusal(numbering, before, added, in_the_way), Refusal.WOULD_DISPLACE, in_the_way
            )
        displaced = frozenset(in_the_way)
        gone = displaced.union(removed)
    merge = tuple(numbering.wire(pair) for pair in added if pair not in before)
    overwritten = {ingress for ingress, _ in merge}
    delete = sorted(numbering.wire(pair)[0] for pair in gone)
    return Plan(
        added,
        gone,
        displaced,
        tuple(number for number in delete if number not in overwritten),
        merge,
        tuple(sorted(map(numbering.wire, added))) if mode is ConflictMode.OVERWRITE else None,
    )


def results_of(
    plan: Plan,
    before: Matching,
    after: Matching,
    dark: Mapping[CrossConnect, str],
    *,
    why: str | None = None,
    unseen: str | None = None,
) -> Iterator[PairResult]:
    """What became of each pair, from the table before and after.

    `why` = what the device said went wrong; `unseen` = why nobody could look for light. A circuit that
    vanished though nobody asked for it is reported too, with a reason.
    """
    for pair in sorted(plan.gone):
        if pair in after:
            yield PairResult(
                pair, PairOutcome.FAILED, removed=True, reason=why or "still there when read back"
            )
        else:
            outcome = PairOutcome.DISPLACED if pair in plan.displaced else PairOutcome.APPLIED
            yield PairResult(pair, outcome, removed=True)
    for pair in plan.add:
        if pair not in after:
            yield PairResult(pair, PairOutcome.FAILED, reason=why or "not there when read back")
        elif unseen is not None:
            yield PairResult(pair, PairOutcome.UNKNOWN, reason=unseen)
        elif pair in dark:
            yield PairResult(pair, PairOutcome.CONNECTED_DARK, reason=dark[pair])
        else:
            yield PairResult(pair, PairOutcome.APPLIED)
    for pair in sorted(before - after - plan.gone):
        yield PairResult(
            pair,
            PairOutcome.DISPLACED,
            removed=True,
            reason="gone at the same time, and nobody here asked for it",
        )


def _normal(numbering: Numbering, verb: str, pairs: tuple[CrossConnect, ...]) -> tuple[CrossConnect, ...]:
    """Every pair in its one form, and no port twice."""
    found: list[CrossConnect] = []
    users: dict[object, CrossConnect] = {}
    for pair in pairs:
        try:
            found.append(numbering.pair(*numbering.wire(pair)))
        except NumberingError as error:
            raise TerminalError(f"{verb}: {text(pair)}: {error}", Refusal.INVALID) from None
        for port in ports_of(found[-1], sided=numbering.sided):
            if port in users:
                raise TerminalError(
                    f"{verb}: {text(users[port])} and {text(pair)} both use {place(port)}; "
                    "each may be named once",
                    Refusal.INVALID,
                )
            users[port] = found[-1]
    return tuple(found)


def _refusal(
    numbering: Numbering,
    before: Matching,
    add: tuple[CrossConnect, ...],
    in_the_way: tuple[CrossConnect, ...],
) -> str:
    """Which port of which add is held by whom."""
    holder = {port: pair for pair in in_the_way for port in ports_of(pair, sided=numbering.sided)}
    parts = [
        f"add {text(pair)}: {place(port)} is held by {text(holder[port])}"
        for pair in add
        if pair not in before
        for port in ports_of(pair, sided=numbering.sided)
        if port in holder
    ]
    return "; ".join(parts[:8]) + "; remove that in the same request to replace it"
