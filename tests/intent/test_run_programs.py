"""Programs that could be stuck or unsafe with runs of several operations, by name and by chance.

Ranks read off their programs what they may offer (`offers.py`); dreamers believe now and then in longer runs,
and leave them. The counterexamples are those of the protocol: C1 to C4 and C7.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from opus_sdn.intent import cutting
from opus_sdn.intent.errors import Problem
from opus_sdn.intent.model import ArrivalState, CutRequest
from opus_sdn.intent.streams import HeldRun, Intent, StreamState
from tests.intent import programs
from tests.intent.modes import Mode
from tests.intent.offers import Table, by_closed, by_quiet, honest, uncoupled, union
from tests.intent.operations import Scenario, ends_without_controller
from tests.intent.running_rank import ranks_with
from tests.intent.schedules import Shape, drawn, training
from tests.intent.simulator import Simulation
from tests.intent.traffic import Finish
from tests.intent.virtual_switch import ViolationError

SCALE = float(os.environ.get("OPUS_TEST_SCALE", "1"))
IN_ORDER = Mode(finish=Finish.OP, in_order=True)
CALM = Mode(finish=Finish.EAGER, overtake_s=1e9)


def seeds(count: int, first: int = 0) -> range:
    return range(first, first + max(1, round(count * SCALE)))


def play(scenario: Scenario, seed: int, mode: Mode | None = None, table: Table = honest) -> Simulation:
    """A run with honest tables: it ends well, and nobody has to leave a run."""
    run = Simulation(scenario, seed, mode, rank_class=ranks_with(table)).run()
    assert run.failures == [None] * len(run.failures)
    assert run.watch.cuts == 0
    return run


def dream(scenario: Scenario, seed: int, mode: Mode | None = None) -> Simulation:
    """A run in which tables are wrong: it ends well, or at once with the one cause that is allowed."""
    run = Simulation(scenario, seed, mode, rank_class=ranks_with(dream=seed)).run()
    for failure in run.failures:
        assert failure is None or failure.problem is Problem.RUN_DEVIATION, failure
    assert run.watch.cuts or run.failures[0] is None
    return run


def lengths(runs: Iterable[Simulation]) -> set[int]:
    return {length for run in runs for length in run.watch.lengths}


TABLES = {"closed": by_closed, "quiet": by_quiet, "both": honest}


@pytest.mark.parametrize("table", TABLES)
def test_c1_an_irecv_waited_for_inside_a_run_ends_the_run(table: str) -> None:
    for seed in seeds(25):
        play(programs.c1(), seed, table=TABLES[table])


@pytest.mark.parametrize("table", TABLES)
def test_c2_collectives_inside_a_host_count_as_waits_and_quiet_ranks_are_immune(table: str) -> None:
    for seed in seeds(25):
        play(programs.c2(), seed, table=TABLES[table])
        play(programs.c2_mixed(), seed, table=TABLES[table])


def test_c3_a_member_without_a_table_makes_runs_shorter_and_breaks_nothing() -> None:
    for seed in seeds(25):
        scenario = programs.by_chance(seed)
        someone = seed % len(scenario.jobs[0].programs)

        def table(job: object, rank: int, at: int, idle: bool, someone: int = someone) -> tuple[int, int]:
            return (1, 1) if rank == someone else honest(job, rank, at, idle)  # type: ignore[arg-type]

        play(scenario, seed, table=table)


def test_c4_members_that_leave_their_runs_end_well_or_all_at_once_with_the_cause() -> None:
    runs = [dream(programs.c12(), seed) for seed in seeds(60)]
    ended = {run.failures[0].problem if run.failures[0] else None for run in runs if run.watch.cuts}
    assert ended == {None, Problem.RUN_DEVIATION}, "both ways were seen"


@pytest.mark.parametrize("table", TABLES)
def test_c7_no_grant_comes_in_the_middle_of_a_run_on_in_order_devices(table: str) -> None:
    runs = [play(programs.c7(), seed, IN_ORDER, TABLES[table]) for seed in seeds(25)]
    assert table == "quiet" or 2 in lengths(runs)


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_property_programs_by_chance_are_safe_and_end_with_runs(first: int) -> None:
    runs = []
    for seed in seeds(40, first * max(1, round(SCALE))):
        assert all(ends_without_controller(job) for job in programs.by_chance(seed).jobs)
        runs.append(play(programs.by_chance(seed), seed))
        runs.append(dream(programs.by_chance(seed), seed))
    assert max(lengths(runs)) > 2
    assert any(run.watch.cuts for run in runs)


def test_property_programs_by_chance_are_safe_and_end_with_runs_on_in_order_devices() -> None:
    for seed in seeds(40):
        mode = replace(Mode.drawn(seed), in_order=True, copies=0.3, repeats=3, lost=0.2)
        play(programs.by_chance(seed), seed, mode)
        dream(programs.by_chance(seed), seed, mode)


def test_property_training_runs_by_chance_are_safe_and_end_with_runs() -> None:
    for seed in seeds(16):
        play(training(drawn(seed)), seed)
        dream(training(drawn(seed)), seed)


def test_a_rank_that_dies_while_runs_are_held_and_cut_ends_the_job_for_all_with_one_cause() -> None:
    for seed in seeds(40):
        victim = seed % 4
        shape = replace(drawn(seed), pp=2, dp=2)
        death = (victim, 10 + 3 * (seed % 40))
        run = Simulation(training(shape), seed, death=death, rank_class=ranks_with(dream=seed)).run()
        told = {str(failure) for rank, failure in enumerate(run.failures) if rank != victim}
        assert len(told) == 1


# Ring grants of one step as counted for torch's own schedules, 2 data-parallel replicas, 2 layers a stage:
# operations, grants by `closed`, grants by `quiet`.
FIGURES = [
    (Shape("interleaved", pp=2, batches=2, layers=2), (40, 16, 25)),
    (Shape("interleaved", pp=4, batches=4, layers=2), (144, 66, 100)),
    (Shape("zbv", pp=4, batches=4, layers=2), (144, 60, 93)),
]


@pytest.mark.parametrize(("shape", "figures"), FIGURES, ids=[f"{s.schedule}-{s.pp}" for s, _ in FIGURES])
def test_a_step_needs_no_more_grants_than_the_same_shape_did_when_runs_were_found(
    shape: Shape, figures: tuple[int, int, int]
) -> None:
    tables: list[Table] = [lambda *_: (1, 1), by_closed, by_quiet]
    grants = [sum(play(training(shape), 1, CALM, table).watch.lengths.values()) for table in tables]
    assert grants[0] == figures[0]
    assert grants[1] <= figures[1]
    assert grants[2] <= figures[2]
    both = sum(play(training(shape), 1, CALM).watch.lengths.values())
    assert both <= min(grants)


@pytest.mark.parametrize("pp", [2, 4])
def test_parameters_that_are_kept_are_gathered_once_and_reduced_once_for_each_chunk(pp: int) -> None:
    """One grant for the gathers of a chunk and one for its reductions, on each of pp rings; 2 chunks."""
    shape = Shape("interleaved", pp=pp, batches=pp, layers=2, reshard=False)
    run = play(training(shape), 1, CALM)
    assert sum(run.watch.lengths.values()) == pp * 2 * 2
    assert sum(length * times for length, times in run.watch.lengths.items()) == pp * 2 * 2 * 2


# --- planted bugs


def naive_mix(patch: pytest.MonkeyPatch) -> None:
    """Each member's better offer counts, whichever it is."""

    def offered(self: Intent) -> int:
        return min(max(a.arrival.closed, a.arrival.quiet) for a in self.arrived.values())

    patch.setattr(Intent, "offered", property(offered))


def no_exclusion(patch: pytest.MonkeyPatch) -> None:
    """Members of a held run may be granted anything else."""
    patch.setattr(cutting, "why_held_back", lambda job, intent: None)


def cut_at_the_least(patch: pytest.MonkeyPatch) -> None:
    """The run ends after the member that is furthest behind."""
    decide = cutting._decide

    def least(state: object, job: object, stream: object, run: HeldRun, said: cutting.Cutting) -> None:
        if all(rank in said.issued for rank in run.holders):
            said.issued = dict.fromkeys(said.issued, min(said.issued.values()))
        decide(state, job, stream, run, said)  # type: ignore[arg-type]

    patch.setattr(cutting, "_decide", least)


def first_answer_decides(patch: pytest.MonkeyPatch) -> None:
    """The run is cut where the first member has left it, without asking the others."""
    decide = cutting._decide

    def first(state: object, job: object, stream: object, run: HeldRun, said: cutting.Cutting) -> None:
        for rank in run.holders:
            said.issued.setdefault(rank, 1)
        decide(state, job, stream, run, said)  # type: ignore[arg-type]

    patch.setattr(cutting, "_decide", first)


def nobody_is_told(patch: pytest.MonkeyPatch) -> None:
    """The end of the run is decided and not said."""
    requests = cutting.requests_for

    def questions(*given: object) -> tuple[CutRequest, ...]:
        return tuple(request for request in requests(*given) if request.length is None)  # type: ignore[arg-type]

    patch.setattr(cutting, "requests_for", questions)


def marks_stay(patch: pytest.MonkeyPatch) -> None:
    """What nobody has called of a cut run counts as granted."""

    def shorten(self: StreamState, run: HeldRun, length: int) -> None:
        run.length = length

    patch.setattr(StreamState, "shorten", shorten)


def deviation_unseen(patch: pytest.MonkeyPatch) -> None:
    """Whoever is behind and blocked is waited for."""
    patch.setattr(cutting, "look_behind", lambda job: None)


def covered_arrivals_stay_open(patch: pytest.MonkeyPatch) -> None:
    """An arrival that a longer run covers is not answered as granted."""
    standing = StreamState.standing

    def only_first(self: StreamState, rank: int, n: int) -> ArrivalState | None:
        held = any(run.n < n < run.n + run.length for run in self.held.values())
        return ArrivalState.OPEN if held else standing(self, rank, n)

    patch.setattr(StreamState, "standing", only_first)


def honestly(
    make: Callable[[int], Scenario], mode: Mode | None = None, table: Table = honest
) -> Callable[[], object]:
    return lambda: [Simulation(make(s), s, mode, rank_class=ranks_with(table)).run() for s in range(60)]


def dreaming(make: Callable[[int], Scenario], mode: Mode | None = None) -> Callable[[], object]:
    return lambda: [dream(make(s), s, mode) for s in range(60)]


NOTHING: Callable[[pytest.MonkeyPatch], None] = lambda patch: None  # noqa: E731
MUTANTS = {
    "union of issues": (NOTHING, honestly(lambda _: programs.c1(), table=union), "stuck"),
    "hosts couple nobody": (NOTHING, honestly(lambda _: programs.c2(), table=uncoupled), "stuck"),
    "naive mix": (naive_mix, honestly(lambda _: programs.c2_mixed()), "stuck"),
    "no exclusion": (no_exclusion, honestly(lambda _: programs.c7(), IN_ORDER), "C7"),
    "cut at the least": (cut_at_the_least, dreaming(programs.by_chance), None),
    "first answer decides": (first_answer_decides, dreaming(programs.by_chance), None),
    "nobody is told": (nobody_is_told, dreaming(programs.by_chance), "stuck"),
    "marks stay": (marks_stay, dreaming(programs.by_chance), None),
    "deviation unseen": (deviation_unseen, dreaming(lambda _: programs.c12()), "stuck"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, runs, rule = MUTANTS[name]
    plant(monkeypatch)
    with pytest.raises(ViolationError) as caught:
        runs()
    assert rule in (None, caught.value.rule)
