"""The controller dies before and after every commit and every call of a driver: nothing that was answered is
lost, no circuit goes from under traffic, and the jobs go on by themselves.

`make test` takes some of the points; OPUS_TEST_SCALE=20, as `make soak` has it, takes all of them.
"""

from __future__ import annotations

import os

import pytest

from opus_sdn.store.memory import MemoryStore
from tests.crash.conftest import OpenStore
from tests.crash.matrix import POINTS, SCENARIOS, die_at, points_of

SCALE = int(os.environ.get("OPUS_TEST_SCALE", "1"))
EVERY = max(1, 20 // SCALE)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_controller_that_dies_at_any_point_costs_nobody_anything(
    scenario: str, open_store: OpenStore, request: pytest.FixtureRequest
) -> None:
    points = points_of(scenario, MemoryStore)
    assert {point.kind for point in points} == set(POINTS)
    first = len(request.node.name) % EVERY  # others on each database
    deaths = 0
    for point in points[first::EVERY]:
        world = die_at(point, open_store)
        deaths += world.died_at is not None
        assert all(run.well for run in world.fleet.runs), f"{point}: a job has failed"
        world.disk.store.close()
    assert deaths >= len(points[first::EVERY]) - 1, "the points are not those that a run comes to"
