"""With the published semantics every finish and every reconfiguration equals the published one, to the ns."""

from __future__ import annotations

import csv
import io
import lzma

import pytest

from opus_sdn.whatif.engine import replay
from opus_sdn.whatif.errors import CannotFinishError
from opus_sdn.whatif.inputs.hints import derive_hints
from opus_sdn.whatif.peer.replay import Memo
from opus_sdn.whatif.scenario import Mode
from tests.whatif.cases import DATA, EIGHT, EXPECTED, LLAMA, MICROBATCHES, published_hints, scenario, step

# What the published logs call the modes.
LOGGED = {Mode.ON_DEMAND: "baseline", Mode.PROVISION: "provisioning"}
EXPECTED_KEY = {Mode.ON_DEMAND: "on_demand", Mode.PROVISION: "provisioned"}

RUNS = [
    pytest.param(
        case,
        mode,
        int(delay.removesuffix("ms")),
        id=f"{case}-{mode}-{delay}",
    )
    for case, expected in EXPECTED.items()
    for delay in expected["runs"]
    for mode in (Mode.ON_DEMAND, Mode.PROVISION)
]


@pytest.fixture(scope="module")
def memo() -> Memo:
    """What replays share, so that this module takes seconds."""
    return Memo()


@pytest.mark.parametrize(("case", "mode", "delay_ms"), RUNS)
def test_every_published_run_is_reproduced(case: str, mode: Mode, delay_ms: int, memo: Memo) -> None:
    hints = published_hints(case, delay_ms) if mode is Mode.PROVISION else None
    result = replay(scenario(case, mode, delay_ms, hints), memo=memo)
    expected, key = EXPECTED[case], f"{LOGGED[mode]}_{delay_ms}ms"
    run = expected["runs"][f"{delay_ms}ms"][EXPECTED_KEY[mode]]
    assert (result.finish_ns, result.finish_ns_per_rank[0]) == (run["last_rank"], run["rank_0"])
    if key in expected.get("per_rank_finish_ns", {}):
        assert result.finish_ns_per_rank == expected["per_rank_finish_ns"][key]
    if key in expected.get("reconfigurations", {}):
        assert [list(found) for found in result.reconfigurations] == expected["reconfigurations"][key]


# Milliseconds, as far as they are told; None where the published program hangs. Provisioned with the hints
# of 10 ms, which fit worse the further the delay is from that.
MICROBATCHED_MS = {
    Mode.ON_DEMAND: {1: 808.3, 50: None, 100: None, 250: 7209.4, 500: 13709.4, 1000: 26709.4},
    Mode.PROVISION: {1: 846.1, 50: None, 100: 3958.5, 250: 9329.1, 500: 18079.1, 1000: 35579.1},
}


@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize(
    ("mode", "delay_ms", "wanted_ms"),
    [(mode, delay_ms, ms) for mode, runs in MICROBATCHED_MS.items() for delay_ms, ms in runs.items()],
)
def test_microbatches_take_or_hang_as_published_at_other_delays_too(
    mode: Mode, delay_ms: int, wanted_ms: float | None, exact: bool
) -> None:
    hints = published_hints(MICROBATCHES, 10) if mode is Mode.PROVISION else None
    try:
        found = round(replay(scenario(MICROBATCHES, mode, delay_ms, hints), exact=exact).finish_ns / 1e6, 1)
    except CannotFinishError:
        found = None
    assert found == wanted_ms


@pytest.mark.parametrize("case", EXPECTED)
def test_the_static_reference_is_the_published_one(case: str) -> None:
    assert replay(scenario(case, Mode.STATIC)).finish_ns == EXPECTED[case]["static"]
    assert (
        replay(scenario(case, Mode.STATIC, name="schedules-collapsed")).finish_ns == EXPECTED[case]["static"]
    )


def test_the_ideal_reference_is_the_published_one() -> None:
    result = replay(scenario(LLAMA, Mode.IDEAL, name="schedules_baseline"))
    assert result.finish_ns == EXPECTED[LLAMA]["ideal"]


@pytest.mark.parametrize("bandwidth", EXPECTED[LLAMA]["bandwidth_sweep_10ms_rank_0"])
def test_the_bandwidth_sweep_is_the_published_one(bandwidth: str, memo: Memo) -> None:
    name = "schedules" if bandwidth == "50" else f"schedules_bw{bandwidth}"
    expected = EXPECTED[LLAMA]["bandwidth_sweep_10ms_rank_0"][bandwidth]
    for key, mode, delay_ms in (
        ("eps_0ms_sys0", Mode.ON_DEMAND, 0),
        ("baseline_sys0", Mode.ON_DEMAND, 10),
        ("provisioning_sys0", Mode.PROVISION, 10),
    ):
        result = replay(scenario(LLAMA, mode, delay_ms, name=name), memo=memo)
        assert (key, result.finish_ns_per_rank[0]) == (key, expected[key])


@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
def test_requests_are_rejected_and_votes_waited_for_as_often_as_published(exact: bool) -> None:
    on_demand = replay(scenario(EIGHT, Mode.ON_DEMAND, 10), exact=exact).details
    provisioned = replay(scenario(EIGHT, Mode.PROVISION, 10), exact=exact).details
    assert (on_demand["rejected_requests"], provisioned["rejected_requests"]) == (2, 5)
    assert on_demand["vote_waits"] == 198


@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize(("mode", "short"), [(Mode.ON_DEMAND, "np"), (Mode.PROVISION, "pv")])
@pytest.mark.parametrize("delay_ms", [0, 10])
def test_every_node_starts_and_ends_when_the_published_timeline_says(
    mode: Mode, short: str, delay_ms: int, exact: bool
) -> None:
    hints = published_hints(EIGHT, delay_ms) if mode is Mode.PROVISION else None
    result = replay(scenario(EIGHT, mode, delay_ms, hints), exact=exact)
    with lzma.open(DATA / EIGHT / f"timeline_{short}_{delay_ms}ms.csv.xz", "rt") as packed:
        wanted = {
            (int(row["rank"]), int(row["node_id"])): [int(row["start_ns"]), int(row["end_ns"])]
            for row in csv.DictReader(io.StringIO(packed.read()))
        }
    assert {
        (rank.rank, node): times
        for rank in step(EIGHT).trace.ranks
        for node, *times in zip(
            rank.graph.ids, result.started_ns[rank.rank], result.ended_ns[rank.rank], strict=True
        )
    } == wanted


@pytest.mark.parametrize(
    ("case", "delay_ms"), [(EIGHT, 10), (LLAMA, 10), (LLAMA, 100), (MICROBATCHES, 0), (MICROBATCHES, 10)]
)
def test_hints_derived_from_the_on_demand_run_are_the_published_ones(
    case: str, delay_ms: int, memo: Memo
) -> None:
    result = replay(scenario(case, Mode.ON_DEMAND, delay_ms), memo=memo)
    assert result.finished_communications is not None
    assert derive_hints(result.finished_communications) == published_hints(case, delay_ms)


@pytest.mark.parametrize("delay_ms", [0, 1, 10, 50])
def test_the_fast_path_needs_no_help_on_the_published_runs_without_microbatches(
    delay_ms: int, memo: Memo
) -> None:
    for case in (EIGHT, LLAMA):
        for mode in (Mode.ON_DEMAND, Mode.PROVISION):
            result = replay(scenario(case, mode, delay_ms), memo=memo)
            assert (case, mode, result.details["engine"]) == (case, mode, "fast")
