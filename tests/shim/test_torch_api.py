"""The backend as programs see it: what plain gloo gives is what `opus` gives, or a refusal by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.demo.controller import Controller
from opus_sdn.demo.deadlock_cases import CASES
from opus_sdn.demo.launcher import Zygote
from opus_sdn.demo.results import expected_values
from opus_sdn.fabric_file import generate_fabric, parse_fabric
from opus_sdn.intent.changes import JobState
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


@pytest.fixture(scope="module")
def plain(ranks: Zygote) -> list[dict[str, Any]]:
    """What plain gloo gives for every call."""
    return ranks.run(f"{PROGRAMS}:api_matrix", 4, args=("gloo",), deadline_s=DEADLINE_S)


SUM_OVER_RANKS = [60.0, 64.0, 68.0, 72.0]  # of k + 10 * rank, over four ranks


def corrected(plain: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the one all-reduce that torch loses on plain gloo, after a coalescing that was refused."""
    return [calls | {"after a refused coalescing": SUM_OVER_RANKS} for calls in plain]


@pytest.mark.parametrize("backend", ["opus", "cpu:opus,cuda:opus"])
def test_every_call_gives_what_plain_gloo_gives(
    ranks: Zygote, plain: list[dict[str, Any]], backend: str
) -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        found = run(ranks, controller, "api_matrix", backend)
        grants = controller.job_grants("job")
        assert controller.engine.state.jobs["job"].state is JobState.ENDED
    assert found == corrected(plain)
    assert grants > 60  # it was not bypassed


def test_through_the_real_controller_no_operation_meets_a_missing_or_a_moving_circuit(
    ranks: Zygote, plain: list[dict[str, Any]], tmp_path: Path
) -> None:
    fabric = generate_fabric(hosts=4, gpus_per_host=1, delay_ms=5)
    with Controller(fabric, tmp_path) as controller:
        found = run(ranks, controller, "api_matrix", "opus", OPUS_WITNESS=controller.witness_address)
        report = controller.witness()
        assert controller.get("/jobs/job")["state"] == "ended"
    assert found == corrected(plain)
    assert (report["violations"], report["active"]) == ([], 0)
    assert report["operations"] > 200


def test_with_mode_off_no_controller_is_needed_and_nothing_changes(
    ranks: Zygote, plain: list[dict[str, Any]]
) -> None:
    assert run(ranks, None, "api_matrix", "opus", OPUS_MODE="off") == corrected(plain)


def test_what_circuits_cannot_carry_is_refused_by_name_and_the_group_stays_usable(ranks: Zygote) -> None:
    with SmallController(a_fabric(gpus=2)) as controller:
        # Hosts 0, 1, 0, 1 and slots 0, 0, 1, 1: rails join the ring of all, but not ranks 0 and 3.
        found = ranks.run(
            f"{PROGRAMS}:refusals",
            4,
            args=("opus",),
            environment={"OPUS_CONTROLLER": controller.url, "OPUS_JOB": "job", "OPUS_DIMENSIONS": "dp=4"},
            rank_environment=lambda r: {"OPUS_HOST": f"host{r % 2}", "OPUS_GPU_SLOT": str(r // 2)},
            deadline_s=DEADLINE_S,
        )
    wanted = {
        "all_to_all": "not-supported",
        "fc all_to_all": "not-supported",
        "receive from any": "receive-from-any",
        "across the ring": "unroutable",
        "coalescing": "not-supported",
    }
    for rank, said in enumerate(found):
        for name, problem in wanted.items():
            if name == "across the ring" and rank not in (0, 3):
                assert said[name] == "worked"
            else:
                assert (said[name]["type"], said[name]["problem"]) == ("OpusRefusedError", problem), name
            assert said[f"after {name}"] == SUM_OVER_RANKS


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
