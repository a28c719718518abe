"""Published figures from our own generator: where values are published, ours are these."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.figures import FIGURES, Figure, f04, f12, f13, f14, f15, minimal, run_figure
from opus_sdn.whatif.figures.latency import MODES
from opus_sdn.whatif.figures.replays import OPUS, PEER, STATIC, at
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.study.prepare import job_of
from opus_sdn.whatif.study.schema import read_study
from opus_sdn.whatif.workload import Workload

STUDIES = Path(__file__).parents[2] / "examples" / "studies"


@cache
def quick(number: str) -> Figure:
    return run_figure(number, quick=True, jobs=1)


def promises(figure: Figure) -> list[str]:
    """What was compared and found too far off; at least one value is."""
    assert any(compared.within is not None for compared in figure.comparison)
    return [compared.what for compared in figure.comparison if compared.holds is False]


@pytest.mark.parametrize("number", ["minimal", "4", "12"])
def test_published_values_are_met(number: str) -> None:
    figure = quick(number)
    assert promises(figure) == []
    assert figure.number == number
    json.dumps(figure.document())


def test_the_minimal_example_is_compared_with_all_that_is_published() -> None:
    figure = quick("minimal")
    assert [compared.published for compared in figure.comparison] == [
        62.2416,
        62.2436,
        62.2616,
        62.3416,
        62.2415,
        62.2505,
        62.2905,
    ]
    assert {compared.within for compared in figure.comparison} == {0.001}


def test_figure_12_is_met_at_all_delays() -> None:
    points = [at(delay, mode, PEER) for delay in f12.DELAYS_MS for mode in MODES]
    times = f12.case().times_s(points, jobs=1)
    for mode in MODES:
        for delay, published in zip(f12.DELAYS_MS, f12.PUBLISHED_S[mode], strict=True):
            assert times[at(delay, mode, PEER)] == pytest.approx(published, rel=0.005)


def test_the_headline_of_figure_12_is_5_31_per_cent_and_ours_is_less_than_half() -> None:
    found = {compared.what: compared for compared in quick("12").comparison}
    peer = found["overhead at 100 ms, provisioned, over static (peer)"]
    ours = found["overhead at 100 ms, provisioned, over static (opus)"].ours
    assert peer.ours == pytest.approx(5.31, abs=0.005)
    assert ours is not None
    assert 0 < ours < 5.31 / 2


def test_one_rail_of_figure_12_takes_as_long_as_the_whole_step_does() -> None:
    """Of replays of all 128 ranks: static, on demand and provisioned at 10 ms."""
    wanted = [STATIC, *(at(10, mode, OPUS) for mode in MODES)]
    times = f12.case().times_s(wanted, jobs=1)
    assert [round(time or 0, 3) for time in times.values()] == [11.931, 11.990, 11.945]


def test_the_steps_of_figure_13_get_longer_with_the_delay() -> None:
    """512 GPUs: one rail of our own controller; a provisioned one hides more."""
    delays = (0.0, 10.0, 100.0)
    points = {mode: [at(delay, mode, OPUS) for delay in delays] for mode in MODES}
    times = f13.case().times_s([STATIC, *(point for own in points.values() for point in own)], jobs=1)
    static = times[STATIC]
    assert static is not None
    on_demand, provisioned = ([times[point] for point in points[mode]] for mode in MODES)
    assert on_demand[0] == provisioned[0] == pytest.approx(static)
    assert static < provisioned[1] < on_demand[1] < on_demand[2]  # type: ignore[operator]
    assert on_demand[2] - on_demand[1] == pytest.approx(6 * 0.09, rel=0.02)  # type: ignore[operator]


@pytest.mark.parametrize("placement", ["rail", "rails"])
@pytest.mark.parametrize("gpus", [256, 512])
def test_experts_of_figure_14_are_replayed_on_one_rail_and_on_all(gpus: int, placement: str) -> None:
    case = f14.case(gpus, placement)
    plan = case.workload.parallelism
    assert plan.ranks == gpus
    assert plan.experts_on_rail == plan.dp
    assert plan.ep == (plan.dp if placement == "rail" else plan.dp * plan.tp)
    times = case.times_s([STATIC, at(10, Mode.PROVISION, OPUS)], jobs=1)
    static, provisioned = times.values()
    assert static is not None
    assert provisioned is not None
    assert static <= provisioned


def test_experts_on_all_rails_need_no_tensor_traffic_for_their_tokens() -> None:
    """What goes over rails is as much; inside hosts, tokens move once instead of being gathered."""
    one, all_of_them = (f14.case(256, place).workload.bytes_per_dimension() for place in ("rail", "rails"))
    assert one["ep"] == all_of_them["ep"]
    assert one["tp"] > all_of_them["tp"]


def test_throughput_of_figure_15_grows_with_data_parallelism() -> None:
    for system in f15.SYSTEMS:
        times = [system.case(dp).times_s([STATIC], jobs=1)[STATIC] for dp in (2, 4, 8)]
        assert all(a is not None and b is not None and a > b for a, b in pairwise(times))


def test_figure_4_counts_windows_that_overlap() -> None:
    figure = quick("4")
    shares = {panel.title: panel for panel in figure.panels}["Windows of schedules with overlap"]
    by_name = {series.name: dict(zip(shares.ticks, series.y, strict=True)) for series in shares.series}
    overlap = by_name["phases overlap"]
    assert overlap["interleaved"] > overlap["1F1B"]  # type: ignore[operator]
    assert any("interleaved" in note and "overlap" in note for note in figure.notes)


def test_figure_5_reaches_16384_gpus_and_delays_cost_more_there() -> None:
    figure = quick("5")
    kept = {series.name: series.y for series in figure.panels[1].series}
    assert list(kept) == ["2048 GPUs", "4096 GPUs", "8192 GPUs", "16384 GPUs"]
    for values in kept.values():
        assert list(values) == sorted(values, reverse=True)  # type: ignore[type-var]
    assert kept["16384 GPUs"][-1] < kept["2048 GPUs"][-1]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("study", "workload"),
    [
        ("figure4", f04.mixture),
        ("figure5", lambda: f04.strong_scaling(16)[0]),
        ("figure12", lambda: f12.case().workload),
        ("figure13", lambda: f13.case().workload),
        ("figure14-256-rail", lambda: f14.case(256, "rail").workload),
        ("figure14-512-rails", lambda: f14.case(512, "rails").workload),
        ("minimal", lambda: minimal.case().workload),
    ],
)
def test_the_study_of_a_figure_is_about_its_job(study: str, workload: Callable[[], Workload]) -> None:
    file = STUDIES / f"{study}.yaml"
    job, wanted = job_of(read_study(file), file), workload()
    assert (job.model, job.batch, job.preset) == (wanted.model, wanted.batch, wanted.preset)
    named = (job.parallelism.schedule or "1f1b", wanted.parallelism.schedule or "1f1b")
    assert named[0] == named[1]
    assert replace(job.parallelism, schedule=None) == replace(wanted.parallelism, schedule=None)


def test_the_mixture_of_figure_4_is_that_of_the_profiled_run() -> None:
    plan = f04.mixture().parallelism
    assert (plan.ranks, plan.dp, plan.pp, plan.tp, plan.ep) == (256, 8, 8, 4, 32)


def test_an_unknown_figure_is_refused_with_those_known() -> None:
    with pytest.raises(InputError, match="12"):
        run_figure("99")
    assert {"minimal", "4", "5", "12", "13", "14", "15"} <= set(FIGURES)
