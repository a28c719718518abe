"""Coordinates, stages and topology digits of a job's ranks."""

from __future__ import annotations

import pytest

from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.model import Dimension
from opus_sdn.intent.ranks import Layout, check_dimensions, digit_map, digit_of
from tests.intent.worlds import make_spec, places


def dims(**sizes: int) -> tuple[Dimension, ...]:
    """Dimensions in the order of the arguments, outermost first."""
    return tuple(Dimension(name, size) for name, size in sizes.items())


# Row-major: rank = (pp * dp + d) * tp + t for (pp, dp, tp), and so on.
STAGES = [
    (dims(), 4, 1, (0, 0, 0, 0)),
    (dims(dp=4), 4, 1, (0, 0, 0, 0)),
    (dims(pp=4), 4, 4, (0, 1, 2, 3)),
    (dims(pp=2, dp=2), 4, 2, (0, 0, 1, 1)),
    (dims(dp=2, pp=2), 4, 2, (0, 1, 0, 1)),
    (dims(pp=2, dp=2, tp=2), 8, 2, (0, 0, 0, 0, 1, 1, 1, 1)),
    (dims(dp=2, pipeline=2, tp=2), 8, 2, (0, 0, 1, 1, 0, 0, 1, 1)),
]


@pytest.mark.parametrize(("dimensions", "world", "stages", "stage_of"), STAGES)
def test_stages_follow_the_declared_order(
    dimensions: tuple[Dimension, ...], world: int, stages: int, stage_of: tuple[int, ...]
) -> None:
    layout = Layout(dimensions, world)
    assert (layout.stages, layout.stage_of) == (stages, stage_of)


def test_lines_are_the_groups_of_one_dimension() -> None:
    layout = Layout(dims(pp=2, dp=2, tp=2), 8)
    assert layout.lines("pp") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert layout.lines("dp") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert layout.lines("tp") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert layout.lines("ep") == ()


def test_dimensions_multiply_to_the_number_of_ranks() -> None:
    check_dimensions(make_spec(places(4), {"pp": 2, "dp": 2}))
    check_dimensions(make_spec(places(4)))  # nothing declared, nothing to check
    with pytest.raises(CoreError, match="pp=2 x dp=3 multiply to 6, but the job has 4 ranks") as refused:
        check_dimensions(make_spec(places(4), {"pp": 2, "dp": 3}))
    assert refused.value.problem is Problem.INVALID_REQUEST
    assert refused.value.data == {"field": "dimensions"}


DIGITS = [
    (dims(pp=2, dp=2), False, {"pp": 0, "dp": 1}),
    (dims(dp=2, pp=2), False, {"dp": 1, "pp": 0}),
    (dims(pp=2, ep=2, dp=2), False, {"pp": 0, "ep": 2, "dp": 1}),
    (
        dims(dp_replicate=2, dp_shard=2, cp=2, ep=2),
        False,
        {"dp_replicate": 1, "dp_shard": 2, "cp": 3, "ep": 4},
    ),
    (dims(pp=2, ep=2, dp=2), True, {"pp": 0, "ep": 3, "dp": 1}),
    # The published ids leave 2 to the first further dimension and 3 to experts; the next one is 4.
    (dims(cp=2, ep=2, xp=2), True, {"cp": 2, "ep": 3, "xp": 4}),
    (dims(cp=2, xp=2), True, {"cp": 2, "xp": 4}),
]


@pytest.mark.parametrize(("dimensions", "legacy", "wanted"), DIGITS)
def test_digits_of_the_dimensions(
    dimensions: tuple[Dimension, ...], legacy: bool, wanted: dict[str, int]
) -> None:
    assert digit_map(dimensions, legacy) == wanted


@pytest.mark.parametrize(
    ("label", "digit"), [("dp", 1), ("ep", 7), ("pipeline", 0), ("fsdp", 1), ("mesh_x", None)]
)
def test_a_label_that_was_not_declared_falls_back_to_the_usual_names(label: str, digit: int | None) -> None:
    assert digit_of(label, {"dp": 1, "ep": 7}) == digit


@pytest.mark.parametrize(
    ("ranks", "dimension"),
    [
        ((0, 4), "pp"),
        ((3, 7), "pp"),
        ((4, 6), "dp"),
        ((2, 3), "tp"),
        ((4, 0), None),  # against the order
        ((1, 2), None),  # across two lines
        ((0, 2, 4), None),
        ((0, 6), None),
    ],
)
def test_a_group_is_known_by_its_ranks(ranks: tuple[int, ...], dimension: str | None) -> None:
    assert Layout(dims(pp=2, dp=2, tp=2), 8).dimension_of(ranks) == dimension
