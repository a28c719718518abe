"""`opus trace`: record what ranks communicate, read profiler traces, and what follows from either."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opus_sdn.cli.exits import CliError, ExitCode
from opus_sdn.cli.interrupts import terminated_like_interrupted
from opus_sdn.cli.output import Format, columns, message, print_json, print_table

if TYPE_CHECKING:
    from opus_sdn.trace.model import Recording

DEFAULT = Path("build/trace")
SHARE = "{:.0%}".format

TracesArgument = Annotated[
    list[Path],
    typer.Argument(help="A folder of recorded or profiler traces, or profiler files: one for each rank."),
]
DimensionsOption = Annotated[
    str | None,
    typer.Option(
        "--dimensions",
        help="Those that use the switches, with commas between; else what needed grants, or all.",
    ),
]
GroupOption = Annotated[
    list[str] | None,
    typer.Option("--group", help="Profiler traces: KIND=DIMENSION, as all-reduce=dp. May be repeated."),
]
FormatOption = Annotated[Format, typer.Option("-o", "--output", help="How to write the result.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(help="Record and study what ranks communicate.", no_args_is_help=True)
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
    group.command(context_settings=settings)(record)
    group.command("import")(import_)
    for each in (windows, compile_, export):
        group.command(each.__name__.rstrip("_"))(each)
    app.add_typer(group, name="trace")


def record(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", help="Each rank writes a file into this folder.")] = DEFAULT,
) -> None:
    """Run a training command (behind `--`) whose ranks with backend opus log their operations."""
    command = (
        [argument for argument in context.args if argument != "--"]
        if context.args[:1] == ["--"]
        else context.args
    )
    if not command:
        raise CliError(
            "no command; write it behind --, as `opus trace record -- torchrun train.py`", ExitCode.USAGE
        )
    before = _files(out)
    try:
        with terminated_like_interrupted():
            code = subprocess.run(
                command, env=os.environ | {"OPUS_TRACE_DIR": str(out.resolve())}, check=False
            ).returncode
    except OSError as failed:
        raise CliError(f"{command[0]}: cannot be run: {failed.strerror}", ExitCode.USAGE) from None
    written = _files(out) - before
    message(f"{len(written)} ranks recorded their operations in {out}")
    if code:
        raise CliError(f"{command[0]}: ended with status {code}", ExitCode.REFUSED)
    if not written:
        raise CliError('no rank recorded anything: init_process_group("opus"), and OPUS_MODE not off?')


def import_(
    traces: TracesArgument,
    out: Annotated[
        Path, typer.Option("--out", help="For a file of each rank, as `record` makes them.")
    ] = DEFAULT,
    groups: GroupOption = None,
) -> None:
    """Read traces of PyTorch's profiler (Chrome's JSON, also gzipped) and keep them as recorded ones."""
    from opus_sdn.trace.recorded import write_recorded

    recording = _load(traces, groups)
    write_recorded(recording, out)
    count = sum(len(rank.acts) for rank in recording.ranks)
    message(f"{count} operations of {len(recording.ranks)} ranks in {out}")


def windows(
    traces: TracesArgument,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the six files of the analysis here.")
    ] = None,
    dimensions: DimensionsOption = None,
    groups: GroupOption = None,
    plots: Annotated[bool, typer.Option("--plots/--no-plots", help="The two plots among the files.")] = True,
    form: FormatOption = Format.TABLE,
) -> None:
    """The time between phases in which a fabric could change unnoticed: measured, modelled, distributed."""
    from opus_sdn.trace.outputs import write_outputs
    from opus_sdn.trace.windows import PERCENTILES, summaries
    from opus_sdn.trace.windows import windows as measure

    recording = _load(traces, groups)
    found = measure(recording, _names(recording, dimensions))
    if not found:
        raise CliError(f"{recording.name}: no rank goes from one dimension to another; see --dimensions")
    if out is not None:
        if plots and importlib.util.find_spec("matplotlib") is None:
            raise CliError(
                "plots need matplotlib: pip install 'opus-sdn[whatif]', or --no-plots", ExitCode.USAGE
            )
        for path in write_outputs(recording, found, out, plots=plots):
            message(f"wrote {path}")
    rows = [asdict(one) for one in summaries(found)]
    if form is Format.JSON:
        print_json(
            {
                "name": recording.name,
                "notes": list(recording.notes),
                "percentiles": PERCENTILES,
                "pairs": rows,
            }
        )
        return
    shape: dict[str, str | Callable[[dict[str, Any]], object]] = {
        "transition": "pair",
        "windows": "count",
        **{f"p{share}_ms": _percentile(place) for place, share in enumerate(PERCENTILES)},
        "1_ms_or_more": lambda row: SHARE(row["at_least_1_ms"]),
        "overlapping": "overlapping",
    }
    print_table(rows, columns(**shape))


def compile_(
    traces: TracesArgument,
    prefix: Annotated[str, typer.Option("--prefix", help="Files are called PREFIX_RANK: COMM_PATTERN_PATH.")],
    dimensions: DimensionsOption = None,
    groups: GroupOption = None,
) -> None:
    """Write each rank's phases in the published table format."""
    from opus_sdn.trace.compiled import compile_tables, write_tables

    recording = _load(traces, groups)
    tables = compile_tables(recording, _names(recording, dimensions))
    write_tables(tables, prefix)
    message(f"{sum(map(len, tables.values()))} phases of {len(tables)} ranks in {prefix}_*")


def export(
    traces: TracesArgument,
    out: Annotated[Path, typer.Option("--out", help="For traces, groups, machine and topologies.")],
    scale_out_gbps: Annotated[float, typer.Option("--scale-out-gbps", min=1e-6, help="GB/s (2^30).")] = 50.0,
    scale_up_gbps: Annotated[float, typer.Option("--scale-up-gbps", min=1e-6, help="GB/s (2^30).")] = 450.0,
    groups: GroupOption = None,
) -> None:
    """Write the run as Chakra traces with what else `opus whatif replay` needs."""
    from opus_sdn.trace.chakra import export as write
    from opus_sdn.trace.model import TraceError

    recording = _load(traces, groups)
    try:
        done = write(recording, out, scale_out_gbps=scale_out_gbps, scale_up_gbps=scale_up_gbps)
    except TraceError as wrong:
        raise CliError(str(wrong)) from None
    if done.dropped:
        message(f"{done.dropped} operations left out: not all who took part have recorded them")
    message(f"{done.nodes} nodes of {len(recording.ranks)} ranks in {out}; to replay them:")
    message(
        f"opus whatif replay --semantics opus --et {out} --groups {out}/workload.json "
        f"--system {out}/system.json --schedules {out}/schedules.txt --delay-ms 10"
    )


def _percentile(place: int) -> Callable[[dict[str, Any]], object]:
    return lambda row: row["percentiles"][place]


def _files(folder: Path) -> set[tuple[str, int]]:
    return {(path.name, path.stat().st_mtime_ns) for path in folder.glob("*.opus.jsonl")}


def _load(traces: list[Path], groups: list[str] | None) -> Recording:
    """Recorded files where a folder has them, else what the profiler wrote."""
    from opus_sdn.shim.recorder import SUFFIX
    from opus_sdn.trace.chrome import chrome_files, read_chrome
    from opus_sdn.trace.model import TraceError
    from opus_sdn.trace.recorded import MAKE_ONE, read_recorded

    told = dict(_told(text) for text in groups or [])
    missing = [path for path in traces if not path.exists()]
    if missing:
        raise CliError(f"{missing[0]}: there is no such file or folder; {MAKE_ONE}")
    try:
        if len(traces) == 1 and traces[0].is_dir():
            if any(traces[0].glob(f"*{SUFFIX}")):
                recording = read_recorded(traces[0])
            else:
                recording = read_chrome(chrome_files(traces[0]), traces[0].resolve().name, told)
        else:
            recording = read_chrome(traces, traces[0].resolve().parent.name, told)
    except TraceError as wrong:
        raise CliError(str(wrong)) from None
    for note in recording.notes:
        message(note)
    return recording


def _told(text: str) -> tuple[str, str]:
    kind, equals, dimension = text.partition("=")
    if not equals or not kind or not dimension:
        raise CliError(f"--group: {text!r}; wanted KIND=DIMENSION, as all-reduce=dp", ExitCode.USAGE)
    return kind, dimension


def _names(recording: Recording, dimensions: str | None) -> list[str] | None:
    if dimensions is None:
        return None
    wanted = [name.strip() for name in dimensions.split(",")]
    known = {act.dimension for act in recording.acts()}
    strange = [name for name in wanted if name not in known]
    if strange:
        raise CliError(
            f"--dimensions: {strange[0]!r} is not among those of the trace: {', '.join(sorted(known))}",
            ExitCode.USAGE,
        )
    return wanted
