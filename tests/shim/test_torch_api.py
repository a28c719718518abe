"""The backend as programs see it: what plain gloo gives is what `opus` gives, or a refusal by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opus_sdn.demo.controller import Controller
from opus_sdn.demo.deadlock_cases import CASES
from opus_sdn.demo.launcher import Zygote
from opus_sdn.demo.results import expected_values
from opus_sdn.fabric_file import generate_fabric, parse_fabric
from tests.shim.small_controller import SmallController, a_fabric

PROGRAMS = "tests.shim.rank_programs"
TWO_RANKS = "opus_sdn.demo.two_ranks:run"
DEADLINE_S = 60.0

pytestmark = pytest.mark.torch


def run(
    ranks: Zygote,
    controller: SmallController | Controller | None,
    program: str,
    *args: object,
    world: int = 4,
    gpus: int = 1,
    **environment: str,
) -> list[Any]:
    """Run a program on `world` ranks, `gpus` on each host; what each returned."""
    joined = {
        "OPUS_JOB": "job",
        "OPUS_DIMENSIONS": f"dp={world}",
        **({"OPUS_CONTROLLER": controller.url} if controller is not None else {}),
        **environment,
    }
    return ranks.run(
        program if ":" in program else f"{PROGRAMS}:{program}",
        world,
        args=args,
        environment=joined,
        rank_environment=places(gpus),
        deadline_s=DEADLINE_S,
    )


def places(gpus: int) -> Callable[[int], dict[str, str]]:
    return lambda rank: {"OPUS_HOST": f"host{rank // gpus}", "OPUS_GPU_SLOT": str(rank % gpus)}


SUM_OVER_RANKS = [60.0, 64.0, 68.0, 72.0]  # of k + 10 * rank, over four ranks


def test_groups_of_the_same_ranks_are_told_apart_in_any_order(ranks: Zygote) -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        found = run(ranks, controller, "groups_of_the_same_ranks", "opus")
    sums = [30.0, 33.0, 36.0, 39.0]
    assert found == [[[2 * one for one in sums], sums]] * 3 + [[]]


def test_what_circuits_cannot_carry_is_refused_by_name_and_the_group_stays_usable(ranks: Zygote) -> None:
    with SmallController(a_fabric(gpus=2)) as controller:
        # Rail 0 joins ranks 0 and 2, rail 1 ranks 1 and 3; ranks 0 and 1 share a host. No grid, and 2 and 3
        # share no rail.
        found = ranks.run(
            f"{PROGRAMS}:refusals",
            4,
            args=("opus",),
            environment={"OPUS_CONTROLLER": controller.url, "OPUS_JOB": "job", "OPUS_DIMENSIONS": "dp=4"},
            rank_environment=lambda r: {"OPUS_HOST": f"host{(0, 0, 1, 2)[r]}", "OPUS_GPU_SLOT": str(r % 2)},
            deadline_s=DEADLINE_S,
        )
    wanted = {
        "all_to_all": "not-supported",
        "fc all_to_all": "not-supported",
        "receive from any": "receive-from-any",
        "across rails": "unroutable",
        "coalescing": "not-supported",
    }
    for rank, said in enumerate(found):
        for name, problem in wanted.items():
            if name == "across rails" and rank not in (2, 3):
                assert said[name] == "worked"
            else:
                assert (said[name]["type"], said[name]["problem"]) == ("OpusRefusedError", problem), name
            assert said[f"after {name}"] == SUM_OVER_RANKS


def test_tags_out_of_order_end_the_job_with_one_cause(ranks: Zygote) -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        found = run(ranks, controller, "tags_out_of_order", "opus")
    assert len({said["text"] for said in found}) == 1
    assert {(said["type"], said["problem"]) for said in found} == {("OpusJobFailed", "tag-order")}


def test_an_all_to_all_whose_sizes_disagree_is_one_error_on_all_ranks(ranks: Zygote) -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        found = run(ranks, controller, "sizes_that_disagree", "opus", world=2)
    # Rank 0 sends itself 1 and rank 1 two elements; rank 1 sends each 1 and 2, and expects as much.
    words = "all-to-all: member 0 of the group sends 2 elements to member 1, which expects 1;"
    assert len({said["text"] for said in found}) == 1
    assert words in found[0]["text"]
    assert {said["problem"] for said in found} == {"size-mismatch"}
    assert [said["after"] for said in found] == [[10.0, 12.0, 14.0, 16.0]] * 2


def test_a_wrong_call_raises_what_gloo_raises_and_the_group_stays_usable(ranks: Zygote) -> None:
    plain = run(ranks, None, "wrong_arguments", "gloo")
    with SmallController(a_fabric(gpus=1)) as controller:
        assert run(ranks, controller, "wrong_arguments", "opus") == plain
    assert plain[0]["error"]["text"]


def test_inside_a_host_everything_passes_and_nobody_is_asked(ranks: Zygote) -> None:
    with SmallController(a_fabric(gpus=2)) as controller:
        found = run(ranks, controller, "inside_a_host", "opus", gpus=2)
        assert controller.job_grants("job") == 0
    for rank, said in enumerate(found):
        low, high = rank // 2 * 2, rank // 2 * 2 + 1
        assert said["all_to_all"] == [10.0 * low + rank % 2, 10.0 * high + rank % 2]
        assert said["any"] == ([high, high] if rank % 2 == 0 else [0.0, low])
        assert said["futures"] == [2.0, 2.0, True]


@pytest.mark.parametrize(("force", "grants"), [("scale-out", 5), ("", 0)])
def test_ranks_of_one_host_ask_only_when_they_are_told_to(ranks: Zygote, force: str, grants: int) -> None:
    one_rail = parse_fabric(generate_fabric(hosts=1, gpus_per_host=2, rails=1), "generated").build()
    with SmallController(one_rail) as controller:
        found = run(ranks, controller, TWO_RANKS, "opus", world=2, gpus=2, OPUS_FORCE_DOMAIN=force)
        assert found[0].values == found[1].values == expected_values(5)
        assert controller.job_grants("job") == grants
        assert controller.engine.state.jobs["job"].topology_changes == (1 if grants else 0)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("delay_s", [0.0, 0.02])
def test_programs_that_a_careless_gate_deadlocks_finish(ranks: Zygote, name: str, delay_s: float) -> None:
    case = CASES[name]
    # A ring of three needs two ports per GPU; for the others one port makes the conflict.
    ports = 2 if any(len(group) > 2 for group in case.groups.values()) else 1
    with SmallController(a_fabric(gpus=1, ports=ports)) as controller:
        controller.delay_s = delay_s
        found = run(
            ranks, controller, "opus_sdn.demo.deadlock_programs:run", name, "opus", world=len(case.expected)
        )
        assert controller.job_grants("job") > 0
    assert found == list(case.expected)


def test_a_forked_child_is_refused_and_spoils_nothing(ranks: Zygote) -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        found = run(ranks, controller, "forks", "opus", world=2)
    assert found == [{"child": "ForkedProcessError", "batches": [0, 1, 2, 3], "after": 2.0}] * 2


def test_one_process_may_join_several_times_and_each_is_an_incarnation(ranks: Zygote) -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        assert run(ranks, controller, "joins_again", "opus", 3, world=2) == [[1.0, 3.0, 5.0]] * 2
        assert controller.engine.state.jobs["job"].incarnation == 3


@pytest.mark.parametrize("how", ["destroyed", "left as it is", "not waited for"])
def test_programs_end_with_status_0_however_they_end(ranks: Zygote, how: str) -> None:
    with SmallController(a_fabric(gpus=3)) as controller:
        launches = [
            ranks.launch(
                f"{PROGRAMS}:leaves_without_destroying",
                2,
                args=("opus", how),
                environment={
                    "OPUS_CONTROLLER": controller.url,
                    "OPUS_JOB": f"job{number}",
                    "OPUS_DIMENSIONS": "dp=2",
                },
                rank_environment=lambda rank, number=number: {  # type: ignore[misc]
                    "OPUS_HOST": f"host{rank}",
                    "OPUS_GPU_SLOT": str(number),
                },
                deadline_s=DEADLINE_S,
                interpreter_exit=True,
            )
            for number in range(3)
        ]
        for launch in launches:
            assert launch.values() == [2.0, 2.0]
            for outcome in launch.wait():
                assert "terminate called" not in outcome.log
