"""When a job ends badly: every rank gets the same error with the same cause, and nobody hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from opus_sdn.demo.launcher import Launch, LaunchFailedError, RankOutcome, Zygote
from opus_sdn.intent.changes import JobState
from opus_sdn.intent.model import CoreSettings
from opus_sdn.shim.client import ControllerClient
from opus_sdn.shim.errors import ControllerError
from opus_sdn.shim.settings import Address
from opus_sdn.shim.wire import job_path
from tests.shim.small_controller import SmallController, a_fabric
from tests.waiting import wait_until

PROGRAMS = "tests.shim.rank_programs"
KINDS = ("collective", "message", "inside a host", "future")
VICTIM = 1
# A silent rank is lost after 3 s; ranks heed their fence after 1.5 s.
BRISK = CoreSettings(lease_s=3.0, fence_s=1.5, abort_s=0.2, fault_grace_s=1.2)

pytestmark = pytest.mark.torch


def client_of(controller: SmallController) -> ControllerClient:
    return ControllerClient(Address(False, "127.0.0.1", controller.port))


def launch(
    ranks: Zygote,
    url: str,
    program: str,
    *args: object,
    gpus: int = 1,
    on_exit: Callable[[int, int], None] | None = None,
    on_message: Callable[[int, Any], None] | None = None,
    running: list[Launch] | None = None,
    each: Callable[[int], dict[str, str]] = lambda rank: {},
    **environment: str,
) -> tuple[RankOutcome, ...]:
    """Run a program on four ranks, two on each host where it needs neighbours; how each one ended."""
    joined = {
        "OPUS_JOB": "job",
        "OPUS_DIMENSIONS": "dp=4",
        "OPUS_CONTROLLER": url,
        "OPUS_FENCE_S": "1.5",
        "OPUS_INIT_S": "1",
        **environment,
    }
    started = ranks.launch(
        f"{PROGRAMS}:{program}",
        4,
        args=args,
        environment=joined,
        rank_environment=lambda rank: {
            "OPUS_HOST": f"host{rank // gpus}",
            "OPUS_GPU_SLOT": str(rank % gpus),
            **each(rank),
        },
        on_exit=on_exit,
        on_message=on_message,
        deadline_s=60.0,
    )
    if running is not None:
        running.append(started)
    return started.wait()


def fail_in_the_middle(
    ranks: Zygote,
    controller: SmallController,
    kind: str,
    manner: str,
    vouched: bool = True,
    timeout_s: float = 30.0,
    **environment: str,
) -> list[dict[str, Any]]:
    """What the survivors say of a rank that departs while they do `kind`; none of them may hang."""
    client = client_of(controller)
    running: list[Launch] = []

    def on_exit(rank: int, status: int) -> None:
        if manner == "stopped" and rank != VICTIM:
            running[0].kill(VICTIM)  # it would never end by itself
        if vouched and status < 0:
            report = {"incarnation": 1, "ranks": [rank], "detail": f"killed by signal {-status}"}
            client.request("POST", job_path("job", "deaths"), report)

    outcomes = launch(
        ranks,
        controller.url,
        "until_it_fails",
        "opus",
        kind,
        VICTIM,
        manner,
        timeout_s,
        gpus=2 if kind == "inside a host" else 1,
        on_exit=on_exit,
        running=running,
        **environment,
    )
    survivors = [outcome for outcome in outcomes if outcome.rank != VICTIM]
    assert all(outcome.ok for outcome in survivors), "\n".join(map(str, survivors))
    assert all("terminate called" not in outcome.log for outcome in outcomes)
    return [outcome.value for outcome in survivors]


def assert_same_cause(
    said: list[dict[str, Any]], kind: str, problem: str, rank: int | None, words: str
) -> None:
    """All ranks raised one error, again and again, and were left without a thread of the shim."""
    causes = {again["text"] for one in said for again in one["again"]}
    assert len(causes) == 1
    (cause,) = causes
    assert words in cause
    for one in said:
        assert [again["type"] for again in one["again"]] == ["OpusJobFailed"] * 2
        assert [again["problem"] for again in one["again"]] == [problem] * 2
        assert [again["rank"] for again in one["again"]] == [rank] * 2
        assert one["threads"] == []
        if kind == "future" and one["type"] == "RuntimeError":
            assert f"OpusJobFailed: {cause}" in one["text"]  # all that C++ futures carry
        else:
            assert (one["type"], one["text"], one["rank"]) == ("OpusJobFailed", cause, rank)


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_rank_is_named_to_all_others_whatever_they_do(ranks: Zygote, kind: str) -> None:
    with SmallController(a_fabric()) as controller:
        said = fail_in_the_middle(ranks, controller, kind, "killed")
        assert_same_cause(said, kind, "rank-lost", VICTIM, "rank 1 died: killed by signal 9")


@pytest.mark.parametrize("kind", ["collective", "inside a host"])
def test_a_killed_rank_for_which_nobody_vouches_is_named_when_its_silence_is(
    ranks: Zygote, kind: str
) -> None:
    with SmallController(a_fabric(), BRISK) as controller:
        said = fail_in_the_middle(ranks, controller, kind, "killed", vouched=False)
        assert_same_cause(said, kind, "rank-lost", VICTIM, "rank 1 has been silent for")


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_raises_and_leaves_takes_the_others_along(ranks: Zygote, kind: str) -> None:
    with SmallController(a_fabric()) as controller:
        said = fail_in_the_middle(ranks, controller, kind, "raises")
        assert_same_cause(said, kind, "rank-lost", VICTIM, "left the job")


def test_a_rank_that_aborts_says_so_to_all(ranks: Zygote) -> None:
    with SmallController(a_fabric()) as controller:
        said = fail_in_the_middle(ranks, controller, "collective", "aborts")
        assert_same_cause(said, "collective", "aborted", VICTIM, "rank 1 aborted the job")
        streams = controller.engine.state.jobs["job"].streams.values()
        wait_until(lambda: not any(stream.held for stream in streams), "nothing is held any more")


def test_a_hung_rank_is_named_at_the_deadline(ranks: Zygote) -> None:
    with SmallController(a_fabric()) as controller:
        said = fail_in_the_middle(ranks, controller, "collective", "hangs", timeout_s=3.0)
        assert_same_cause(said, "collective", "deadline-exceeded", None, "ranks 1 have not arrived")


def test_a_stopped_rank_is_told_from_one_in_a_long_checkpoint(ranks: Zygote) -> None:
    """The first is silent and lost after its lease; the second speaks, and is only missed at the deadline."""
    with SmallController(a_fabric(), BRISK) as controller:
        said = fail_in_the_middle(ranks, controller, "collective", "stopped", vouched=False)
        assert_same_cause(said, "collective", "rank-lost", VICTIM, "rank 1 has been silent for 3 s")
    with SmallController(a_fabric(), BRISK) as controller:
        said = fail_in_the_middle(ranks, controller, "collective", "hangs", timeout_s=5.0)
        assert_same_cause(said, "collective", "deadline-exceeded", None, "ranks 1 have not arrived")
    (heard,) = {again["heard"] for one in said for again in one["again"]}
    assert heard[0] == VICTIM
    assert heard[1] < BRISK.lease_s


def test_a_requeued_job_may_start_on_other_hosts_while_nobody_knows_what_became_of_the_old_one(
    ranks: Zygote,
) -> None:
    """As Slurm does: same job name, no report of the dead; their circuits are free for the new life."""
    with SmallController(a_fabric()) as controller:

        def requeued(restarts: int) -> Launch:
            return ranks.launch(
                f"{PROGRAMS}:all_reduces",
                2,
                args=("opus", 10_000 if restarts == 0 else 3),
                environment={
                    "OPUS_CONTROLLER": controller.url,
                    "OPUS_JOB": "job",
                    "OPUS_DIMENSIONS": "dp=2",
                    "SLURM_JOB_ID": "17",
                    "SLURM_RESTART_COUNT": str(restarts),
                },
                rank_environment=lambda rank: {
                    "SLURMD_NODENAME": f"host{(rank + restarts) % 4}",
                    "OPUS_GPU_SLOT": "0",
                },
                deadline_s=60.0,
            )

        first = requeued(0)
        wait_until(lambda: "job" in controller.engine.state.jobs and controller.job_grants("job") > 5, "work")
        first.stop()
        first.wait()
        assert requeued(1).values() == [[1.0, 3.0, 5.0]] * 2
        job = controller.engine.state.jobs["job"]
        assert (job.incarnation, [place.host for place in job.spec.placement]) == (2, ["host1", "host2"])
        assert job.state is JobState.ENDED


def test_with_mode_off_a_killed_rank_ends_the_others_as_gloo_does(ranks: Zygote) -> None:
    outcomes = launch(
        ranks, "http://127.0.0.1:1", "until_it_fails", "opus", "collective", VICTIM, "killed", OPUS_MODE="off"
    )
    for outcome in outcomes:
        assert not outcome.hung
        if outcome.rank != VICTIM:
            assert outcome.value["type"] == "RuntimeError"
            assert "Connection" in outcome.value["text"]


def test_in_mode_provision_a_killed_rank_is_named_to_all_others(ranks: Zygote) -> None:
    with SmallController(a_fabric()) as controller:
        said = fail_in_the_middle(ranks, controller, "collective", "killed", OPUS_MODE="provision")
        assert_same_cause(said, "collective", "rank-lost", VICTIM, "rank 1 died: killed by signal 9")


def test_after_a_failure_the_job_starts_anew_and_the_old_life_can_do_nothing(ranks: Zygote) -> None:
    with SmallController(a_fabric()) as controller:
        fail_in_the_middle(ranks, controller, "collective", "killed")
        # The launcher's restart count begins at zero again: every variable is as it was.
        outcomes = launch(ranks, controller.url, "initialises", "opus")
        assert [outcome.value for outcome in outcomes] == ["opus"] * 4
        assert controller.engine.state.jobs["job"].incarnation == 2
        news = {"incarnation": 1, "seen_start": 1, "wait_s": 0, "ranks": [{"rank": 0, "last_grant": 0}]}
        with pytest.raises(ControllerError) as refused:
            client_of(controller).request("POST", job_path("job", "arrivals"), news)
        assert refused.value.problem == "stale-incarnation"


def test_a_controller_that_goes_away_ends_the_job_on_every_rank(ranks: Zygote) -> None:
    with SmallController(a_fabric()) as controller:
        going = threading.Event()

        def on_message(rank: int, value: Any) -> None:
            if value == "going":
                controller.mangle = lambda method, path: "drop"
                going.set()

        outcomes = launch(
            ranks,
            controller.url,
            "until_it_fails",
            "opus",
            "collective",
            -1,
            "",
            5.0,
            on_message=on_message,
        )
    assert going.is_set()
    assert all(outcome.ok for outcome in outcomes), "\n".join(map(str, outcomes))
    for outcome in outcomes:
        assert (outcome.value["type"], outcome.value["problem"]) == (
            "OpusJobFailed",
            "controller-unreachable",
        )
        assert outcome.value["threads"] == []


# --- what keeps a job from starting


def errors(outcomes: tuple[RankOutcome, ...]) -> list[tuple[str, str]]:
    return [
        (outcome.error.type.rpartition(".")[2], outcome.error.text)
        for outcome in outcomes
        if outcome.error is not None
    ]


def assert_all_raise(outcomes: tuple[RankOutcome, ...], problem: str, words: str) -> None:
    found = errors(outcomes)
    assert len(found) == 4
    assert len(set(found)) == 1, found
    kind, text = found[0]
    assert kind == "OpusInitError"
    assert text.startswith(f"{problem}: ")
    assert words in text


def test_without_a_controller_every_rank_says_so(ranks: Zygote) -> None:
    with SmallController() as gone:
        pass
    outcomes = launch(ranks, gone.url, "initialises", "opus")
    assert_all_raise(outcomes, "controller-unreachable", "start the controller, or correct OPUS_CONTROLLER")


@pytest.mark.parametrize(
    ("each", "words"),
    [
        (
            {"OPUS_HOST": "gpu9"},
            "rank 2 is placed on host 'gpu9' slot 0, which is not there: the fabric has hosts host0, ",
        ),
        ({"OPUS_GPU_SLOT": "7"}, "host host2 has GPU slots 0 to 1"),
    ],
)
def test_an_unknown_place_is_refused_with_the_known_ones(
    ranks: Zygote, each: dict[str, str], words: str
) -> None:
    with SmallController(a_fabric()) as controller:
        outcomes = launch(
            ranks, controller.url, "initialises", "opus", each=lambda rank: each if rank == 2 else {}
        )
        assert controller.engine.state.jobs == {}
    assert_all_raise(outcomes, "unknown-place", words)


@pytest.mark.parametrize("rank_at_fault", [0, 2])
@pytest.mark.parametrize(
    ("each", "words"),
    [
        ({"OPUS_GPU_SLOT": "first"}, "OPUS_GPU_SLOT: is 'first'"),
        ({"OPUS_TOKEN_FILE": "/nowhere"}, "OPUS_TOKEN_FILE: is '/nowhere'"),
    ],
)
def test_a_bad_setting_of_one_rank_is_every_ranks_error(
    ranks: Zygote, rank_at_fault: int, each: dict[str, str], words: str
) -> None:
    with SmallController(a_fabric()) as controller:
        outcomes = launch(
            ranks,
            controller.url,
            "initialises",
            "opus",
            each=lambda rank: each if rank == rank_at_fault else {},
        )
        assert controller.engine.state.jobs == {}
    assert_all_raise(outcomes, "invalid-settings", f"rank {rank_at_fault}: {words}")


@pytest.mark.parametrize("rank_at_fault", [0, 2])
def test_ranks_with_different_modes_do_not_wait_for_each_other(ranks: Zygote, rank_at_fault: int) -> None:
    with SmallController(a_fabric()) as controller:
        outcomes = launch(
            ranks,
            controller.url,
            "initialises",
            "opus",
            each=lambda rank: {"OPUS_MODE": "off"} if rank == rank_at_fault else {},
        )
    gated = [outcome for outcome in outcomes if outcome.rank != rank_at_fault]
    assert {kind for kind, _ in errors(tuple(gated))} == {"OpusInitError"}
    assert all("OPUS_MODE is off on this rank" in text for _, text in errors(tuple(gated)))


def test_a_torch_that_was_never_tried_is_refused_unless_that_is_wished(ranks: Zygote) -> None:
    with SmallController(a_fabric()) as controller:
        outcomes = launch(ranks, controller.url, "pretends_another_torch", "opus", "2.17.1")
        found = errors(outcomes)
        assert [kind for kind, _ in found] == ["UnsupportedTorchError"] * 4
        assert "torch is 2.17.1; backend opus was tried with 2.13.* only" in found[0][1]
        assert controller.requests == []
        outcomes = launch(
            ranks, controller.url, "pretends_another_torch", "opus", "2.17.1", OPUS_ALLOW_TORCH="1"
        )
        assert [outcome.value for outcome in outcomes] == ["opus"] * 4


def test_another_torch_on_one_rank_is_every_ranks_error(ranks: Zygote) -> None:
    with SmallController(a_fabric()) as controller:
        outcomes = launch(ranks, controller.url, "pretends_another_torch", "opus", "2.17.1", 2)
    found = errors(outcomes)
    kinds = [kind for kind, _ in found]
    assert kinds == ["OpusInitError", "OpusInitError", "UnsupportedTorchError", "OpusInitError"]
    assert all(
        "rank 2: torch is 2.17.1; backend opus was tried with" in text for text in (found[0][1], found[3][1])
    )


def test_the_launcher_is_told_what_failed(ranks: Zygote) -> None:
    with SmallController(a_fabric()) as controller, pytest.raises(LaunchFailedError, match="OpusInitError"):
        ranks.run(
            f"{PROGRAMS}:initialises",
            1,
            args=("opus",),
            environment={"OPUS_CONTROLLER": controller.url, "OPUS_JOB": "job", "OPUS_HOST": "nowhere"},
            deadline_s=30.0,
        )
