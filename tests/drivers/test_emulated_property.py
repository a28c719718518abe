"""Whatever is asked of the emulated switch, it holds a matching."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from opus_sdn.drivers.base import TerminalError, TransientError
from opus_sdn.drivers.emulated import Transition
from opus_sdn.intent.fabric import CrossConnect
from tests.drivers.devices import device

SIZE = 6
position = st.integers(0, SIZE - 1)
pair = st.builds(CrossConnect, position, position)
# Now and then a pair that is absent or out of range.
stranger = st.lists(st.builds(CrossConnect, st.integers(-1, SIZE), st.integers(-1, SIZE)), max_size=1)
seldom = st.integers(0, 4).flatmap(lambda n: stranger if n == 0 else st.just([]))


class SwitchMachine(RuleBasedStateMachine):
    """Random requests, begun and finished in any order; a second, plain opinion judges their end state."""

    sided = True

    def __init__(self) -> None:
        super().__init__()
        full = [(i, SIZE - 1 - i) for i in range(SIZE if self.sided else SIZE // 2)]
        self.device = device(*full, size=SIZE, sided=self.sided, max_inflight=3)
        self.table = set(self.device.table)
        self.accepted: list[Transition] = []
        self.started: list[Transition] = []

    def ends(self, some: CrossConnect) -> list[tuple[str, int]]:
        names = ("in", "out") if self.sided else ("any", "any")
        return list(zip(names, some, strict=True))

    def is_matching(self, table: list[CrossConnect]) -> bool:
        return all(count == 1 for count in Counter(e for p in table for e in self.ends(p)).values())

    def verdict(self, remove: list[CrossConnect], add: list[CrossConnect]) -> str:
        """`wrong`, `later` or `fine`, from the words of the contract alone."""
        asked = remove + add
        if any(not 0 <= end < SIZE for p in asked for end in p) or len(set(asked)) != len(asked):
            return "wrong"
        if not self.is_matching(remove) or not self.is_matching(add):
            return "wrong"
        moving = {e for t in self.accepted + self.started for p in t.remove + t.add for e in self.ends(p)}
        if moving & {e for p in asked for e in self.ends(p)}:
            return "later"
        if not set(remove) <= self.table or not self.is_matching([*(self.table - set(remove)), *add]):
            return "wrong"
        return "later" if len(self.accepted) + len(self.started) >= 3 else "fine"

    @rule(data=st.data(), add=st.lists(pair, max_size=3), absent=seldom, outside=seldom)
    def ask(
        self,
        data: st.DataObject,
        add: list[CrossConnect],
        absent: list[CrossConnect],
        outside: list[CrossConnect],
    ) -> None:
        present = (
            st.lists(st.sampled_from(sorted(self.table)), unique=True, max_size=2)
            if self.table
            else st.just([])
        )
        self.request(data.draw(present) + absent, add + outside)

    @rule(data=st.data(), add=seldom)
    def permute(self, data: st.DataObject, add: list[CrossConnect]) -> None:
        """Re-point pairs that are there among themselves, which only the end state can justify."""
        if len(self.table) > 1:
            remove = data.draw(
                st.lists(st.sampled_from(sorted(self.table)), unique=True, min_size=2, max_size=4)
            )
            egresses = data.draw(st.permutations([p.egress for p in remove]))
            again = [CrossConnect(p.ingress, to) for p, to in zip(remove, egresses, strict=True)]
            self.request(remove, again + add)

    def request(self, remove: list[CrossConnect], add: list[CrossConnect]) -> None:
        if not self.sided:
            remove, add = ([CrossConnect(*sorted(p)) for p in some] for some in (remove, add))
        wanted = self.verdict(remove, add)
        if wanted == "fine":
            self.accepted.append(self.device.accept(remove, add, 1))
            return
        before = self.state()
        with pytest.raises(TransientError if wanted == "later" else TerminalError):
            self.device.accept(remove, add, 1)
        assert self.state() == before

    def state(self) -> tuple[object, ...]:
        return self.device.table, self.device.moving, self.device.revision, self.device.inflight

    @rule(data=st.data())
    def begin_to_move(self, data: st.DataObject) -> None:
        if self.accepted:
            transition = self.accepted.pop(data.draw(st.integers(0, len(self.accepted) - 1)))
            self.device.start(transition)
            self.table -= set(transition.remove)
            self.started.append(transition)

    @rule()
    def come_to_rest_all(self) -> None:
        while self.started:
            self.finish(0)

    @rule(data=st.data())
    def come_to_rest(self, data: st.DataObject) -> None:
        if self.started:
            self.finish(data.draw(st.integers(0, len(self.started) - 1)))

    def finish(self, index: int) -> None:
        transition = self.started.pop(index)
        self.device.finish(transition)
        self.table |= set(transition.add)

    @invariant()
    def the_table_is_a_matching_and_the_one_expected(self) -> None:
        assert self.device.table == self.table
        assert self.is_matching(list(self.table))
        assert all(self.device.is_lit(p) for p in self.table)


class AnyToAnyMachine(SwitchMachine):
    """The same without sides, where each position is one terminal."""

    sided = False


quick = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestSwitchWithSides = SwitchMachine.TestCase
TestSwitchWithSides.settings = quick
TestSwitchWithoutSides = AnyToAnyMachine.TestCase
TestSwitchWithoutSides.settings = quick
