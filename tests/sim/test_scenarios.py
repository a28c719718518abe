"""Counterexamples by name that need more than one rail, or a whole controller, to be seen."""

from __future__ import annotations

import pytest

from opus_sdn.drivers.faults import FaultKind
from tests.intent import programs
from tests.intent.modes import Mode
from tests.intent.simulator import Simulation
from tests.sim.faults import Faults, Kind
from tests.sim.world import LEASE_S, World

SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_c18_two_rings_that_need_both_rails_are_served_in_one_order_on_both(seed: int) -> None:
    Simulation(programs.c18(), seed, Mode.drawn(seed)).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_c18_with_one_rail_slow_away_or_restarted_both_rings_are_served_all_the_same(seed: int) -> None:
    slow = Faults(
        300,
        device=((FaultKind.SLOW, 0.3), (FaultKind.TRANSIENT, 0.2)),
        moments=((30, Kind.AWAY), (60, Kind.KILL), (120, Kind.AWAY)),
    )
    world = World(programs.c18(), seed, slow).run()
    assert all(run.well for run in world.fleet.runs)


@pytest.mark.parametrize("seed", SEEDS)
def test_three_jobs_on_one_switch_keep_to_their_own_ports_and_none_waits_for_long(seed: int) -> None:
    """Ports by the witness and the books (I8), overtaking by count, at every step of every order."""
    Simulation(programs.side_by_side(seed, 3), seed, Mode.drawn(seed)).run()


@pytest.mark.parametrize("seed", range(8))
def test_three_jobs_on_one_switch_do_all_their_work_whatever_is_drained_or_killed(seed: int) -> None:
    moments = ((40, Kind.DRAIN), (60, Kind.KILL), (90, Kind.DRAIN), (130, Kind.DRAIN), (170, Kind.STOP))
    world = World(programs.side_by_side(seed, 3), seed, Faults(300, moments=moments)).run()
    assert len(world.fleet.runs) == 3
    assert all(run.well for run in world.fleet.runs)


def test_a_controller_that_stood_still_for_longer_than_a_lease_ends_no_job_that_has_only_waited() -> None:
    def course(world: World) -> None:
        world.begin()
        world.play(lambda: bool(world.fleet.runs[0].ranks))
        world.fleet.freeze()
        world.play_for(world.time + 7.0)
        assert world.process is not None
        world.process.pause()
        world.play_for(world.time + 1.5 * LEASE_S)
        world.process.resume()
        world.play_for(world.time + LEASE_S)
        world.fleet.thaw()
        world.play(lambda: world.fleet.over, until=world.time + 100.0)

    world = World(programs.c12(), 1, Faults()).run(course)
    assert all(run.well for run in world.fleet.runs)
