"""Windows between phases, on runs whose gaps are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from opus_sdn.trace.model import Recording
from opus_sdn.trace.outputs import PLOTS, TEXTS, write_outputs
from opus_sdn.trace.windows import (
    costs,
    percentile,
    phases,
    scale_out_dimensions,
    stall_ns,
    summaries,
    utilisation,
    windows,
)
from tests.trace.runs import recording, two_by_two


def sizes(run: Recording) -> dict[tuple[int, str], list[float]]:
    found: dict[tuple[int, str], list[float]] = {}
    for window in windows(run):
        found.setdefault((window.rank, window.pair), []).append(window.size / 1e6)
    return found


def test_a_window_goes_from_the_last_end_of_a_phase_to_the_slowest_start_of_the_next() -> None:
    assert sizes(two_by_two()) == {
        (0, "dp -> pp"): [14 - 10],
        (0, "pp -> dp"): [30 - 17],
        (1, "dp -> pp"): [11 - 10],
        (1, "pp -> dp"): [30 - 19],
        (2, "dp -> pp"): [14 - 5],
        (2, "pp -> dp"): [18 - 17],
        (3, "dp -> pp"): [11 - 5],
        (3, "pp -> dp"): [18 - 19],  # the receiver is not through with the message yet
    }


def test_of_several_operations_of_the_next_phase_the_first_to_be_complete_counts() -> None:
    run = recording(
        {
            0: [
                ("allreduce", "a", (0, 1), 0, 10),
                ("allreduce", "b", (0, 1), 11, 40),
                ("broadcast", "b", (0, 1), 12, 41),
            ],
            1: [
                ("allreduce", "a", (0, 1), 0, 10),
                ("allreduce", "b", (0, 1), 30, 40),
                ("broadcast", "b", (0, 1), 31, 41),
            ],
        }
    )
    # one group carries both dimensions here, which changes nothing: the slowest start of the first is at 30
    assert sizes(run) == {(0, "a -> b"): [20], (1, "a -> b"): [20]}


def test_phases_are_the_longest_sequences_of_one_dimension_and_barriers_belong_to_none() -> None:
    line = [
        ("allreduce", "dp", (0, 1), 0, 1),
        ("barrier", "pp", (0, 1), 1, 2),
        ("allreduce", "dp", (0, 1), 2, 3),
        ("send", "pp", (0, 1), 3, 4),
        ("allreduce", "tp", (0, 1), 4, 5),
        ("send", "pp", (0, 1), 5, 6),
    ]
    run = recording({0: line})
    assert [(phase.dimension, len(phase.acts)) for phase in phases(run.ranks[0].acts, ["dp", "pp"])] == [
        ("dp", 2),
        ("pp", 2),
    ]


def test_dimensions_that_needed_no_grant_are_left_out_where_some_did() -> None:
    gated, free = two_by_two(), recording({0: [("allreduce", "tp", (0, 1), 0, 1)]}, gated=False)
    assert scale_out_dimensions(free) == ["tp"]
    mixed = replace(gated, ranks=(*gated.ranks, free.ranks[0]))
    assert scale_out_dimensions(mixed) == ["dp", "pp"]


def test_the_summary_counts_windows_of_a_millisecond_and_those_that_overlap() -> None:
    pairs = {one.pair: one for one in summaries(windows(two_by_two()))}
    assert list(pairs) == ["dp -> pp", "pp -> dp", "all"]
    assert (pairs["dp -> pp"].count, pairs["dp -> pp"].at_least_1_ms, pairs["dp -> pp"].overlapping) == (
        4,
        1,
        0,
    )
    assert (pairs["pp -> dp"].count, pairs["pp -> dp"].at_least_1_ms, pairs["pp -> dp"].overlapping) == (
        4,
        0.75,
        1,
    )


@pytest.mark.parametrize(("share", "want"), [(0, 1), (25, 2), (50, 3), (90, 4.6), (100, 5)])
def test_percentiles_are_interpolated_between_the_nearest_values(share: float, want: float) -> None:
    assert percentile([1, 2, 3, 4, 5], share) == pytest.approx(want)


def test_a_change_stalls_a_rank_for_what_its_windows_do_not_hide() -> None:
    # rank 0 has windows of 4 and 13 ms, rank 3 of 6 and -1 ms
    stalls = stall_ns(windows(two_by_two()), 10_000_000)
    assert (stalls[0], stalls[3]) == (6_000_000, 4_000_000 + 10_000_000)


def test_utilisation_is_the_published_quotient() -> None:
    run = recording(
        {
            0: [("allreduce", "a", (0, 1), 0, 10), ("allreduce", "b", (0, 1), 90, 100)],
            1: [("allreduce", "a", (0, 1), 0, 10), ("allreduce", "b", (0, 1), 90, 100)],
        }
    )
    found = windows(run)
    waiting = 2 * 9.9
    assert utilisation(run, found, 0) == pytest.approx((100 - waiting) / 100)
    assert utilisation(run, found, 180_000_000) == pytest.approx((100 - waiting) / (100 + 100))


def test_costs_are_a_line_of_overhead_and_bandwidth_through_what_was_measured() -> None:
    lines = []
    for place, size in enumerate((1_000_000, 2_000_000, 4_000_000)):
        took = 0.5 + size / 1e9 * 1e3  # half a ms, and 1 GB/s
        lines.append((size, ("allreduce", "dp", (0, 1), 100 * place, 100 * place + took)))
    ranks = [recording({rank: [line for _, line in lines]}).ranks[0] for rank in (0, 1)]
    acts = [
        replace(r, acts=tuple(replace(a, size=s) for a, (s, _) in zip(r.acts, lines, strict=True)))
        for r in ranks
    ]
    (cost,) = costs(Recording("", 2, tuple(acts)))
    assert (cost.count, cost.bytes_median) == (3, 2_000_000)
    assert (cost.overhead_us, cost.gbps) == (pytest.approx(500), pytest.approx(1.0))


def test_the_six_outputs_have_the_published_names(tmp_path: Path) -> None:
    run = two_by_two()
    write_outputs(run, windows(run), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "trace_timing_gap.txt",
        "timing_gap_model.txt",
        "comm_gap_model.txt",
        "transition_cdf_combined.png",
        "transition_cdf_per_pair.png",
        "transition_cdf_summary.txt",
    }
    for name in PLOTS:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    gaps = [line.split("\t") for line in (tmp_path / TEXTS[0]).read_text().splitlines()]
    assert gaps[0] == ["rank", "transition", "at_ms", "window_ms"]
    assert gaps[1] == ["0", "dp -> pp", "3.000", "4.000000"]
    model = [line.split("\t") for line in (tmp_path / TEXTS[1]).read_text().splitlines()]
    # what ranks 0 to 3 leave themselves after the all-gather: 5, 1, 8 and -1 ms, of which the middle is 3
    assert model[1] == ["dp -> pp", "4", "3.000000", "5.000000"]
