"""Real ranks hold runs of several operations, leave them, and say ahead where they go.

The controller is real, its emulated switch takes time for each change, and a traffic witness sees everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.demo.controller import Controller
from opus_sdn.demo.launcher import LaunchFailedError, Zygote
from opus_sdn.demo.shapes import Shape, TrainConfig
from opus_sdn.fabric_file import generate_fabric
from tests.shim.test_training_on_opus import dimensions, train, what_was_learned

DEADLINE_S = 180.0
STEPS = 9  # five to learn, the others on a table

pytestmark = pytest.mark.torch

StartController = Callable[..., Controller]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartController]:
    """Start a controller for one test."""
    started: list[Controller] = []

    def start_one(**fabric: Any) -> Controller:
        started.append(Controller(generate_fabric(**fabric), tmp_path / f"controller{len(started)}"))
        return started[-1]

    yield start_one
    for controller in started:
        controller.stop()


def run(
    ranks: Zygote, controller: Controller, program: str, world: int, *args: Any, gpus: int = 1, **more: str
) -> list[Any]:
    return ranks.run(
        f"tests.shim.run_programs:{program}",
        world,
        args=("opus", *args),
        environment=controller.environment("job") | more,
        rank_environment=lambda rank: {
            "OPUS_HOST": f"host{rank // gpus}",
            "OPUS_GPU_SLOT": str(rank % gpus),
        },
        deadline_s=DEADLINE_S,
    )


def granted(controller: Controller, job: str = "job") -> list[dict[str, Any]]:
    return [event["data"] for event in controller.events(job) if event["kind"] == "intent.granted"]


def lengths(controller: Controller, job: str = "job") -> list[int]:
    return [run["length"] for run in granted(controller, job)]


def grants_beside_long_runs(controller: Controller, job: str = "job") -> list[Any]:
    """Grants to a rank that held a run of several operations at that moment, in the order of the events."""
    members = {c["id"]: set(c["ranks"]) for c in controller.all("/connections", job=job)}
    held: dict[str, set[int]] = {}
    found = []
    for event in controller.events(job):
        data = event["data"]
        connection = data.get("connection")
        if event["kind"] == "intent.granted":
            ranks = members[connection]
            found += [(other, connection) for other, others in held.items() if ranks & others]
            if data["length"] > 1:
                held[connection] = ranks
        elif event["kind"] == "intent.released":
            held.pop(connection, None)
    return found


@pytest.mark.parametrize(
    ("reshard", "ring_grants"),
    # Of some 40 and 16 operations of the rings a step: the figures of closed runs for this schedule, and one
    # more for each ring where parameters are kept, as gradients are clipped here and losses averaged.
    [(True, 16), (False, 6 + 2)],
    ids=["reshard", "keep"],
)
def test_c1_an_interleaved_schedule_with_receives_ahead_of_its_gathers_finishes_on_few_grants(
    ranks: Zygote, start: StartController, reshard: bool, ring_grants: int
) -> None:
    """A run over the union of the members' switches would deadlock here: a receive is waited for inside."""
    shape = Shape(pp=2, dp=2, tp=1, gpus_per_host=1)
    config = TrainConfig(shape, "Interleaved1F1B", reshard, steps=STEPS, microbatches=2, layers=8)
    controller = start(hosts=4, gpus_per_host=1, delay_ms=2)
    environment = controller.environment("job") | dimensions(shape)
    through_opus = what_was_learned(train(ranks, config, "opus", environment))
    assert through_opus == what_was_learned(train(ranks, config, "gloo", {}))
    runs: dict[str, list[tuple[int, int]]] = {"ranks-0-1.0": [], "ranks-2-3.0": []}
    for run in granted(controller):
        if run["connection"] in runs:
            runs[run["connection"]].append((run["n"], run["length"]))
    in_two_steps = 0
    for ring in runs.values():
        total = sum(length for _, length in ring)
        in_two_steps += sum(n >= total - 2 * round(total / STEPS) for n, _ in ring)
    assert in_two_steps <= 2 * ring_grants
    assert grants_beside_long_runs(controller) == []
    assert controller.witness()["violations"] == []


def test_c2_a_run_that_tensor_parallelism_would_close_in_a_circle_finishes(
    ranks: Zygote, start: StartController
) -> None:
    controller = start(hosts=3, gpus_per_host=2, ports_per_gpu=1, delay_ms=2)
    places = [("host0", 0), ("host0", 1), ("host1", 0), ("host1", 1), ("host2", 0)]
    found = ranks.run(
        "tests.shim.run_programs:coupled_by_tensor_parallelism",
        5,
        args=("opus", STEPS),
        environment=controller.environment("job"),
        rank_environment=lambda rank: {"OPUS_HOST": places[rank][0], "OPUS_GPU_SLOT": str(places[rank][1])},
        deadline_s=DEADLINE_S,
    )
    assert len(found) == 5
    assert controller.witness()["violations"] == []


def test_c7_no_message_is_granted_in_the_middle_of_a_run_of_its_ends(
    ranks: Zygote, start: StartController
) -> None:
    controller = start(hosts=3, gpus_per_host=1, delay_ms=2)
    assert run(ranks, controller, "ring_and_messages", 3, STEPS) == [1.0] * 3
    assert grants_beside_long_runs(controller) == []
    assert controller.witness()["violations"] == []


@pytest.mark.parametrize("who", [(0, 1), (0,)], ids=["all members", "one member"])
def test_c4_members_that_turn_to_messages_in_the_middle_of_a_run_leave_it_and_go_on(
    ranks: Zygote, start: StartController, who: tuple[int, ...]
) -> None:
    """One port each: the messages need what the run holds. The member that stays has not gone ahead yet."""
    controller = start(hosts=4, gpus_per_host=1, ports_per_gpu=1, delay_ms=2)
    found = run(ranks, controller, "leaves_a_run", 4, STEPS, who, True)
    assert found[0] == [8.0 * (2 * step + 1) for step in range(STEPS)], "the sum of both, doubled three times"
    assert found[0] == found[1]
    assert 4 in lengths(controller), "it was in a run"
    kinds = [event["kind"] for event in controller.events("job")]
    assert "run.cut" in kinds
    assert controller.witness()["violations"] == []


def test_c4_a_member_that_leaves_behind_one_that_has_gone_ahead_ends_the_job_with_the_reason(
    ranks: Zygote, start: StartController
) -> None:
    """The other one's operation is on its device and waits for this one; its circuit cannot be taken away."""
    controller = start(hosts=4, gpus_per_host=1, ports_per_gpu=1, delay_ms=2)
    with pytest.raises(LaunchFailedError) as failed:
        run(ranks, controller, "leaves_a_run", 4, STEPS, (0,), False)
    told = [one.error.text for one in failed.value.outcomes if one.error is not None]
    assert len(told) == 4
    assert all(text.startswith("run-deviation: ") for text in told), told
    assert len(set(told)) == 1, "one cause for all"
    assert controller.witness()["violations"] == []


@pytest.mark.parametrize("mode", ["on-demand", "provision"])
def test_an_evaluation_every_third_step_drops_the_table_and_changes_no_loss(
    ranks: Zygote, start: StartController, mode: str
) -> None:
    """Eight steps alike; then evaluations, of which the third is part of a table again."""
    controller = start(hosts=4, gpus_per_host=1, ports_per_gpu=1, delay_ms=2)
    found = run(ranks, controller, "evaluates", 4, 24, 3, 9, OPUS_DIMENSIONS="pp=2,dp=2", OPUS_MODE=mode)
    plain = ranks.run("tests.shim.run_programs:evaluates", 4, args=("gloo", 24, 3, 9), deadline_s=DEADLINE_S)
    assert [one["losses"] for one in found] == [one["losses"] for one in plain]
    for one in found:
        said = one["said"]
        assert said["tables_learned"] >= 2, "the step, and the cycle of three with its evaluation"
        assert said["tables_dropped"] >= 1
        assert said["follows_a_table"]
        assert said["operations_in_longer_runs"] > said["longer_runs"] > 0
        assert (said["hints"] > 0) == (mode == "provision")
    assert grants_beside_long_runs(controller) == []
    assert controller.witness()["violations"] == []


def test_data_parallel_steps_become_one_run_each_and_change_no_loss(
    ranks: Zygote, start: StartController
) -> None:
    """C++ takes a future of every operation of a run; nobody waits for them in Python."""
    controller = start(hosts=3, gpus_per_host=1, delay_ms=2)
    found = run(ranks, controller, "distributed_data_parallel", 3, 12, OPUS_DIMENSIONS="dp=3")
    plain = ranks.run(
        "tests.shim.run_programs:distributed_data_parallel", 3, args=("gloo", 12), deadline_s=DEADLINE_S
    )
    assert [one["losses"] for one in found] == [one["losses"] for one in plain]
    for one in found:
        assert one["said"]["follows_a_table"]
        assert one["said"]["longer_runs"] == 12 - 6, (
            "the second step rebuilds the buckets; four more are learned"
        )
    assert controller.get("/jobs/job")["device_steps"] == 1
    assert controller.witness()["violations"] == []


def test_a_table_that_was_saved_is_followed_from_the_second_step_of_the_next_run_on(
    ranks: Zygote, start: StartController, tmp_path: Path
) -> None:
    controller = start(hosts=4, gpus_per_host=1, ports_per_gpu=1, delay_ms=2)
    files = str(tmp_path / "tables" / "rank{rank}.json")
    shape = {"OPUS_DIMENSIONS": "pp=2,dp=2"}
    run(ranks, controller, "evaluates", 4, 6, 3, 99, OPUS_PHASE_TABLE_SAVE=files, **shape)
    again = {"OPUS_PHASE_TABLE": files, "OPUS_PROFILE_STEPS": "0", "OPUS_JOB": "again", **shape}
    for one in run(ranks, controller, "evaluates", 4, 3, 3, 99, **again):
        said = one["said"]
        assert (said["tables_learned"], said["tables_dropped"], said["follows_a_table"]) == (0, 0, True)
        assert said["longer_runs"] > 0
    with pytest.raises(LaunchFailedError, match="cannot be read"):
        run(ranks, controller, "evaluates", 4, 3, 3, 99, OPUS_PHASE_TABLE=f"{tmp_path}/none", OPUS_JOB="no")


# --- steady state, and hiding


def test_in_the_steady_state_a_step_asks_as_often_as_its_waits_demand_and_moves_nothing_that_stays(
    ranks: Zygote, start: StartController
) -> None:
    """Four operations of one ring, step after step: one grant a step, and no device operation at all."""
    controller = start(hosts=4, gpus_per_host=1, ports_per_gpu=1, delay_ms=2)
    run(ranks, controller, "leaves_a_run", 4, STEPS, (), True)
    assert lengths(controller) == [1] * 4 * 5 + [4] * (STEPS - 5)
    assert controller.get("/jobs/job")["device_steps"] == 1, "the first one made the circuit"


DELAY_MS = 50.0
OVERHEAD_MS = 10.0
TRIES = 4


@pytest.mark.parametrize("pause_ms", [0, 30, 100])
@pytest.mark.parametrize("mode", ["on-demand", "provision"])
def test_a_change_is_hidden_as_far_as_the_computation_before_it_reaches(
    ranks: Zygote, start: StartController, mode: str, pause_ms: int
) -> None:
    """Exposed: the whole of a change on demand, and with hints what the computation leaves of it.

    All by the controller's clock: what a change took, from its plan to its end, with whatever a busy machine
    adds to the 50 ms of the switch; and a computation from the release of what was before to the last
    arrival. A quarter of the changes have to fit, as in the others somebody waited for a processor.
    """
    controller = start(hosts=4, gpus_per_host=1, ports_per_gpu=1, delay_ms=DELAY_MS)
    for attempt in range(TRIES):
        job = f"job{attempt}"
        run(ranks, controller, "alternates", 4, 5 + 8, pause_ms / 1000, OPUS_MODE=mode, OPUS_JOB=job)
        changes = changes_of(controller, job)[-16:]
        wrong = sorted(abs(one.exposed_ms - one.due_ms(hinted=mode == "provision")) for one in changes)
        if wrong[len(wrong) // 4] <= OVERHEAD_MS:
            break
    assert wrong[len(wrong) // 4] <= OVERHEAD_MS, changes
    assert all(one.took_ms >= DELAY_MS for one in changes)
    if mode == "on-demand":
        assert all(one.exposed_ms >= DELAY_MS for one in changes), "nothing moves before it is asked for"
    assert controller.witness()["violations"] == []


@dataclass(frozen=True)
class Change:
    """One change of topology. Of the connections that change together, the first complete one counts."""

    took_ms: float
    computed_ms: float
    exposed_ms: float

    def due_ms(self, *, hinted: bool) -> float:
        """What should be exposed of it."""
        return max(0.0, self.took_ms - self.computed_ms) if hinted else self.took_ms


def changes_of(controller: Controller, job: str) -> list[Change]:
    """The changes of a job that alternates between rows and columns."""
    found: dict[int, Change] = {}
    over: dict[int, float] = {}  # phase -> when all of it was released
    planned: dict[str, float] = {}
    took_ms = 0.0
    for event in controller.events(job):
        data = event["data"]
        at_ms = datetime.fromisoformat(event["at"]).timestamp() * 1000
        if event["kind"] == "step.planned":
            planned[data["step"]] = at_ms
        elif event["kind"] == "step.done":
            took_ms = at_ms - planned[data["step"]]
        elif event["kind"] in ("intent.granted", "intent.released"):
            phase = 2 * data["n"] + (data["connection"] in ("ranks-0-2.0", "ranks-1-3.0"))
            if event["kind"] == "intent.released":
                over[phase] = at_ms
            elif phase not in found and phase - 1 in over:
                exposed_ms = data["exposed_wait_ms"]
                computed_ms = at_ms - exposed_ms - over[phase - 1]
                found[phase] = Change(took_ms, computed_ms, exposed_ms)
    return [found[phase] for phase in sorted(found)]
