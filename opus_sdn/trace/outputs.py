"""The six files of a window analysis, under the names that the published artifact gives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from opus_sdn.trace.model import Recording
from opus_sdn.trace.windows import (
    PERCENTILES,
    UTILISATION_MS,
    Window,
    by_pair,
    costs,
    summaries,
    utilisation,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAPS: Final = "trace_timing_gap.txt"
GAP_MODEL: Final = "timing_gap_model.txt"
COMM_MODEL: Final = "comm_gap_model.txt"
CDF_COMBINED: Final = "transition_cdf_combined.png"
CDF_PER_PAIR: Final = "transition_cdf_per_pair.png"
CDF_SUMMARY: Final = "transition_cdf_summary.txt"
TEXTS: Final = (GAPS, GAP_MODEL, COMM_MODEL, CDF_SUMMARY)
PLOTS: Final = (CDF_COMBINED, CDF_PER_PAIR)
ABSENT: Final = "-"


def write_outputs(
    recording: Recording, found: Sequence[Window], folder: Path, *, plots: bool = True
) -> list[Path]:
    """All six files, or the four texts. The plots need matplotlib. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        GAPS: gap_lines(found),
        GAP_MODEL: gap_model_lines(found),
        COMM_MODEL: comm_model_lines(recording),
        CDF_SUMMARY: summary_lines(recording, found),
    }
    for name, lines in texts.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    if plots:
        plot_cdfs(found, folder)
    return [folder / name for name in (*TEXTS, *(PLOTS if plots else ()))]


def gap_lines(found: Sequence[Window]) -> Iterable[str]:
    """Every measured window: rank, pair, when it ended on the run's clock, and its size."""
    begin = min((window.at for window in found), default=0)
    yield "rank\ttransition\tat_ms\twindow_ms"
    for window in sorted(found, key=lambda one: (one.rank, one.at)):
        at = (window.at - begin) / 1e6
        yield f"{window.rank}\t{window.pair}\t{at:.3f}\t{window.size / 1e6:.6f}"


def gap_model_lines(found: Sequence[Window]) -> Iterable[str]:
    """Per pair the window if all ranks ran alike (what a rank itself leaves), beside the measured one."""
    yield "transition\tcount\tmodel_ms\tmeasured_ms"
    for pair, members in by_pair(found).items():
        model = median(window.own for window in members) / 1e6
        measured = median(window.size for window in members) / 1e6
        yield f"{pair}\t{len(members)}\t{model:.6f}\t{measured:.6f}"


def comm_model_lines(recording: Recording) -> Iterable[str]:
    """Per dimension and kind what an operation takes: measured, and as overhead plus bytes over bandwidth."""
    yield "dimension\tkind\tcount\tbytes\ttook_us\toverhead_us\tGBps"
    for cost in costs(recording):
        overhead = ABSENT if cost.overhead_us is None else f"{cost.overhead_us:.3f}"
        gbps = ABSENT if cost.gbps is None else f"{cost.gbps:.6f}"
        yield (
            f"{cost.dimension}\t{cost.kind}\t{cost.count}\t{cost.bytes_median}\t{cost.took_us_median:.3f}"
            f"\t{overhead}\t{gbps}"
        )


def summary_lines(recording: Recording, found: Sequence[Window]) -> Iterable[str]:
    """Counts and percentiles per pair and of all, then utilisation at the published latencies."""
    head = ["transition", "count", *(f"p{share}_ms" for share in PERCENTILES), "at_least_1ms", "overlapping"]
    yield "\t".join(head)
    for one in summaries(found):
        values = [f"{value:.6f}" for value in one.percentiles]
        yield "\t".join([one.pair, str(one.count), *values, f"{one.at_least_1_ms:.4f}", str(one.overlapping)])
    yield ""
    yield "latency_ms\tutilisation"
    for delay_ms in UTILISATION_MS:
        share = utilisation(recording, found, delay_ms * 1_000_000)
        yield f"{delay_ms}\t{ABSENT if share is None else f'{share:.4f}'}"


def plot_cdfs(found: Sequence[Window], folder: Path) -> None:
    """The share of windows below a size: all in one panel, and a panel for each pair."""
    from matplotlib.figure import Figure

    pairs = by_pair(found)
    combined = Figure(figsize=(5.0, 3.6), layout="constrained")
    axes = combined.subplots()
    for pair, members in pairs.items():
        _cdf(axes, members, pair)
    if len(pairs) > 1:
        _cdf(axes, list(found), "all", color="black", linestyle="--")
    if pairs:
        axes.legend(fontsize="small")
    axes.set_ylabel("share of windows")
    combined.savefig(folder / CDF_COMBINED, dpi=150)
    columns = min(3, max(1, len(pairs)))
    rows = -(-max(1, len(pairs)) // columns)
    separate = Figure(figsize=(4.0 * columns, 3.0 * rows), layout="constrained")
    panels = separate.subplots(rows, columns, squeeze=False).flat
    for panel, (pair, members) in zip(panels, pairs.items(), strict=False):
        _cdf(panel, members, pair)
        panel.set_title(f"{pair} ({len(members)})", fontsize="small")
    separate.savefig(folder / CDF_PER_PAIR, dpi=150)


def _cdf(axes: Axes, members: Sequence[Window], label: str, **how: Any) -> None:
    """On a scale that is straight up to 1 ms and logarithmic beyond, as windows may be negative."""
    sizes = sorted(window.size / 1e6 for window in members)
    shares = [(place + 1) / len(sizes) for place in range(len(sizes))]
    axes.step(sizes, shares, where="post", label=label, **how)
    axes.set_xscale("symlog", linthresh=1.0)
    axes.set_xlabel("window, ms")
    axes.set_ylim(0, 1)
    axes.grid(visible=True, alpha=0.3)
