"""A row of ranks with a ring between each two neighbours: the smallest job whose needs exclude each other."""

from __future__ import annotations

from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.model import Stream
from opus_sdn.intent.reasons import Reason
from tests.intent.bench import Bench
from tests.intent.worlds import group, make_fabric, make_spec, places

AB, BC, CD = Stream("ab"), Stream("bc"), Stream("cd")
GROUPS = (group("ab", 0, 1), group("bc", 1, 2), group("cd", 2, 3))


def row() -> Bench:
    """Four ranks in a row, one port each at positions 0 to 3 of six."""
    bench = Bench(make_fabric(4, ports=1))
    bench.observe()
    bench.job(make_spec(places(4), {"dp": 4}), *GROUPS)
    bench.play()
    return bench


def pairs(*ends: tuple[int, int]) -> set[CrossConnect]:
    """Both cross-connects of circuits between positions."""
    return {CrossConnect(*p) for i, j in ends for p in ((i, j), (j, i))}


def why(bench: Bench, rank: int) -> tuple[Reason, str]:
    """Why the first open arrival of a rank waits."""
    because = bench.answer(rank).arrivals[0].because
    assert because is not None
    return because.reason, because.detail


def plan_ab_over_bc(bench: Bench) -> None:
    """The circuit of bc is up and idle; a step that takes it down for ab is planned."""
    bench.lit["ocs0"] = pairs((1, 2))
    bench.observe()
    bench.arrive(AB, 0, 0, 1)
    bench.pump()
    assert len(bench.planned) == 1
