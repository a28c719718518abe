"""`opus experiment`: the published runs with real ranks on this machine, checked, summarised and swept."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opus_sdn.cli.exits import CliError, ExitCode
from opus_sdn.cli.interrupts import terminated_like_interrupted
from opus_sdn.cli.output import Format, columns, message, print_json, print_line, print_table
from opus_sdn.experiment.cases import CASES, STEPS_DEFAULT, SWEEP_MS, Mode, RunSpec

if TYPE_CHECKING:
    from opus_sdn.demo.launcher import Zygote
    from opus_sdn.experiment.results import RunResult

OUT = Path("build/experiments")
REPEATS_MAX = 100
SWEEP_DEFAULT = ",".join(f"{delay_ms:g}" for delay_ms in SWEEP_MS)

CaseOption = Annotated[str, typer.Option("--case", help=f"The workload: {', '.join(CASES)}.")]
StepsOption = Annotated[int, typer.Option("--steps", help="Training steps of each run.")]
OutOption = Annotated[Path, typer.Option("--out", help="A folder for each run is made below this one.")]
RepeatOption = Annotated[int, typer.Option("--repeat", min=1, max=REPEATS_MAX, help="Runs of each kind.")]
FormatOption = Annotated[Format, typer.Option("-o", "--output", help="How to write the result.")]
LastOption = Annotated[int, typer.Option("--last", min=1, help="Average over so many steps at the end.")]
RunsArgument = Annotated[list[Path], typer.Argument(help="Folders of runs.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        help="Train at the scale of the published experiments, on this machine.", no_args_is_help=True
    )
    for each in (run, check, summarize, sweep, table):
        group.command()(each)
    app.add_typer(group, name="experiment")


def run(
    case: CaseOption,
    mode: Annotated[Mode, typer.Option(help="native: gloo alone; eps: Opus with a switch of 0 ms.")],
    delay_ms: Annotated[float, typer.Option("--delay-ms", help="Of the emulated switches.")] = 0.0,
    steps: StepsOption = STEPS_DEFAULT,
    repeat: RepeatOption = 1,
    trace: Annotated[
        bool, typer.Option("--trace", help="Each rank logs its operations, for `opus trace`.")
    ] = False,
    out: OutOption = OUT,
    form: FormatOption = Format.TABLE,
) -> None:
    """Make a run: all ranks as processes of this machine, one controller, a rail for each GPU slot."""
    spec = _spec(case, mode, delay_ms, steps, trace=trace)
    runs = [
        result for _, result in _make([(spec, number) for number in range(1, repeat + 1)], out, again=True)
    ]
    _show(runs, form)
    _refuse_faults(runs)


def check(
    runs: RunsArgument,
    expected_ranks: Annotated[
        int | None, typer.Option("--expected-ranks", min=1, help="Instead of the case's own number.")
    ] = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """All ranks came to the last step, no time-outs, something was switched; a native run left no trace."""
    found = _load(runs)
    _show(found, form)
    _refuse_faults(found, expected_ranks)


def summarize(runs: RunsArgument, last: LastOption = 5) -> None:
    """Mean step time of each run over its last steps, tab separated."""
    from opus_sdn.experiment.summary import summary_lines

    for line in summary_lines(_load(runs), last):
        print_line(line)


def sweep(
    case: CaseOption,
    delays: Annotated[str, typer.Option("--delay-ms", help="Delays, with commas between.")] = SWEEP_DEFAULT,
    modes: Annotated[str, typer.Option("--mode", help="Modes, with commas between.")] = "on-demand,provision",
    steps: StepsOption = STEPS_DEFAULT,
    repeat: RepeatOption = 1,
    last: LastOption = 5,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Write the two figures here (.png, .pdf, .svg).")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Make runs anew that are there.")] = False,
    out: OutOption = OUT,
) -> None:
    """Step latency and overhead over the switch's delay, as CSV; runs that are there are not made again."""
    from opus_sdn.experiment.sweep import plot, sweep_csv, sweep_specs

    if plot_file is not None and importlib.util.find_spec("matplotlib") is None:
        raise CliError("--plot needs matplotlib: pip install 'opus-sdn[whatif]'", ExitCode.USAGE)
    wanted = []
    try:
        wanted = [
            (spec, number)
            for number in range(1, repeat + 1)
            for spec in sweep_specs(case, _delays(delays), _modes(modes), steps)
        ]
    except ValueError as wrong:
        raise CliError(str(wrong), ExitCode.USAGE) from None
    runs = _make(wanted, out, again=again)
    print_line(sweep_csv(runs, last).rstrip("\n"))
    if plot_file is not None:
        plot(runs, last, plot_file)
        message(f"plot: {plot_file}")
    _refuse_faults([each for _, each in runs])


def table(
    cases: Annotated[
        str, typer.Option("--cases", help="Workloads, with commas between.")
    ] = "prototype8,llama16",
    delay_ms: Annotated[
        float, typer.Option("--delay-ms", help="Of the switches on demand and provisioned.")
    ] = 50.0,
    steps: StepsOption = STEPS_DEFAULT,
    repeat: RepeatOption = 5,
    again: Annotated[bool, typer.Option("--again", help="Make runs anew that are there.")] = False,
    out: OutOption = OUT,
) -> None:
    """Native, eps, on demand and provisioned side by side: medians of several runs, as a Markdown table."""
    from opus_sdn.experiment.summary import table_lines

    specs = [
        _spec(case.strip(), mode, delay_ms if mode in (Mode.ON_DEMAND, Mode.PROVISION) else 0.0, steps)
        for case in cases.split(",")
        for mode in Mode
    ]
    # One of each kind after the other, so that what else the machine does falls on all of them alike.
    runs = [
        each
        for _, each in _make([(spec, n) for n in range(1, repeat + 1) for spec in specs], out, again=again)
    ]
    for line in table_lines(runs):
        print_line(line)
    _refuse_faults(runs)


def _spec(case: str, mode: Mode, delay_ms: float, steps: int, *, trace: bool = False) -> RunSpec:
    try:
        return RunSpec(case, mode, delay_ms, steps, trace)
    except ValueError as wrong:
        raise CliError(str(wrong), ExitCode.USAGE) from None


def _delays(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--delay-ms: {text!r}; wanted numbers with commas between, as 0,10,50") from None


def _modes(text: str) -> list[Mode]:
    known = (Mode.ON_DEMAND, Mode.PROVISION)
    found = [Mode(part.strip()) for part in text.split(",") if part.strip() in set(Mode)]
    if len(found) != len(text.split(",")) or not set(found) <= set(known):
        raise ValueError(f"--mode: {text!r}; wanted {' or '.join(known)}, with a comma between")
    return found


def _load(paths: Sequence[Path]) -> list[RunResult]:
    from opus_sdn.experiment.results import RunFileError, load

    try:
        return [load(path) for path in paths]
    except RunFileError as wrong:
        raise CliError(str(wrong)) from None


def _make(wanted: Sequence[tuple[RunSpec, int]], out: Path, *, again: bool) -> list[tuple[int, RunResult]]:
    """The runs, in the order wanted; those that are there and whole are read."""
    from opus_sdn.experiment.results import FILE, load

    runs: dict[tuple[RunSpec, int], RunResult] = {}
    missing = []
    for spec, number in wanted:
        folder = _folder(out, spec, number)
        if not again and (folder / FILE).exists():
            there = load(folder)
            if there.steps == spec.steps and not there.failures:
                runs[spec, number] = there
                continue
        missing.append((spec, number))
    if missing:
        _require_torch()
        with terminated_like_interrupted(), _zygote() as zygote:
            for spec, number in missing:
                runs[spec, number] = _run(zygote, spec, _folder(out, spec, number))
    return [(number, runs[spec, number]) for spec, number in wanted]


def _folder(out: Path, spec: RunSpec, number: int) -> Path:
    return out / f"{spec.name}-{number}"


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise CliError("training needs torch, which is not installed here: pip install torch, 2.13")


@contextmanager
def _zygote() -> Iterator[Zygote]:
    from opus_sdn.demo.launcher import Zygote

    message("loading torch, once for all ranks")
    with Zygote() as zygote:
        zygote.wait_ready()
        yield zygote


def _run(zygote: Zygote, spec: RunSpec, folder: Path) -> RunResult:
    from opus_sdn.demo.runs import Steps, progress_bars
    from opus_sdn.experiment.runs import run_experiment

    with progress_bars() as progress:
        return run_experiment(zygote, spec, folder, Steps(progress, folder.name, spec.steps))


def _show(runs: Sequence[RunResult], form: Format) -> None:
    from opus_sdn.experiment.checks import faults

    if form is Format.JSON:
        print_json({"runs": [asdict(each) | {"faults": faults(each)} for each in runs]})
        return
    shape = columns(
        run="run",
        ranks=lambda item: f"{item['finished']}/{item['ranks']}",
        step_s="step",
        grants="grants",
        changes="topology_changes",
        time_outs="time_outs",
        result=lambda item: "FAIL" if item["faults"] else "pass",
    )
    rows = [
        asdict(each) | {"finished": each.finished_ranks, "step": each.median_step_s(), "faults": faults(each)}
        for each in runs
    ]
    print_table(rows, shape)


def _refuse_faults(runs: Sequence[RunResult], expected_ranks: int | None = None) -> None:
    from opus_sdn.experiment.checks import differing_losses, faults

    found = [f"{each.run}: {fault}" for each in runs for fault in faults(each, expected_ranks)]
    found += differing_losses(runs)
    if found:
        raise CliError("\n".join(found))
