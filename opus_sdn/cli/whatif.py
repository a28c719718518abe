"""`opus whatif`: replays a training step offline, once or over a range of delays, bandwidths and modes.

Its arguments are parsed by argparse: the machinery of the other commands takes longer to load than a replay
of eight ranks does.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from opus_sdn.cli import whatif_cost, whatif_figure, whatif_study
from opus_sdn.cli.codes import ExitCode
from opus_sdn.whatif.engine import DERIVE, SEMANTICS, Step, load_step, make_scenario, replay
from opus_sdn.whatif.errors import CannotFinishError, InputError, WorkerLostError
from opus_sdn.whatif.inputs.hints import Hints, read_hints
from opus_sdn.whatif.inputs.network import DEFAULT_LATENCY_NS, read_network
from opus_sdn.whatif.inputs.schedules import read_schedules
from opus_sdn.whatif.report import Document, document
from opus_sdn.whatif.scenario import Mode

OUTPUTS = ("table", "json", "csv")
DEBUG = "--debug"

# What a table or a CSV line shows of a replay.
COLUMNS = (
    "semantics",
    "mode",
    "delay_ms",
    "latency_ns",
    "finish_ns",
    "step_ms",
    "exposed_delay_ns",
    "reconfigurations",
    "wall_s",
)


class _UsageError(Exception):
    """An argument that cannot be used."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message}; `{self.prog} --help` lists what is possible")


def run(arguments: list[str]) -> int:
    """Run `opus whatif ...`; returns its exit code. Errors are lines on stderr."""
    debug = DEBUG in arguments
    collecting = gc.isenabled()
    gc.disable()  # a replay makes millions of small tuples and hardly any cycles
    try:
        given = _parser().parse_args([a for a in arguments[1:] if a != DEBUG])
        command: Callable[[argparse.Namespace], None] = given.command
        command(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return ExitCode.REFUSED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except (_UsageError, InputError) as error:
        return _end(error, ExitCode.USAGE, debug)
    except CannotFinishError as error:
        return _end(error, ExitCode.CANNOT_FINISH, debug)
    except WorkerLostError as error:
        return _end(error, ExitCode.REFUSED, debug)
    except SystemExit as ended:  # the help was printed
        return int(ended.code or ExitCode.OK)
    finally:
        if collecting:
            gc.enable()
    return ExitCode.OK


def _end(error: Exception, code: ExitCode, debug: bool) -> int:
    from opus_sdn.cli.output import message

    if debug:
        traceback.print_exception(error)
    for line in str(error).splitlines():
        message(line, error=True)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="opus whatif",
        description="Replay a training step offline: how long it takes on a fabric, and which delays show.",
        epilog=f"Exit codes: 0 done; {ExitCode.USAGE:d} an argument or input that cannot be used; "
        f"{ExitCode.CANNOT_FINISH:d} the step cannot finish (who waits for whom is on stderr); "
        f"{ExitCode.INTERRUPTED:d} interrupted.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    once = commands.add_parser("replay", help="Replay the step once.", allow_abbrev=False)
    _add_inputs(once)
    once.add_argument("--delay-ms", type=_number, help="what re-pointing a link takes")
    once.add_argument("--latency-ns", type=_number, help=f"of a link; {DEFAULT_LATENCY_NS} by default")
    once.add_argument(
        "--hints",
        metavar=f"FILE|{DERIVE}",
        help="when ranks ask ahead of their need; `derive`: from an on-demand replay, by the published rule",
    )
    once.add_argument("--semantics", choices=SEMANTICS, default="peer", help="whose rules (default: peer)")
    once.add_argument(
        "--mode",
        type=Mode,
        choices=list(Mode),
        help="who asks for circuits, and when; on-demand by default, provision with --hints",
    )
    _add_options(once)
    once.add_argument("--exact", action="store_true", help="event by event: slow, oracle of the fast path")
    once.add_argument(
        "--timeline", type=Path, metavar="FILE", help="write a Chrome trace, which Perfetto opens"
    )
    once.set_defaults(command=_replay)

    many = commands.add_parser("sweep", help="Replay the step for every combination.", allow_abbrev=False)
    _add_inputs(many)
    many.add_argument("--delay-ms", type=_numbers, required=True, help="numbers, separated by commas")
    many.add_argument("--latency-ns", type=_numbers, help="numbers, separated by commas")
    many.add_argument(
        "--bandwidth-gbps",
        type=_numbers,
        help="of every link that can be switched, in GB/s; several by commas",
    )
    many.add_argument(
        "--mode", type=_modes, default=[Mode.ON_DEMAND], help=", ".join(Mode) + "; several by commas"
    )
    many.add_argument(
        "--semantics", type=_semantics, default=["peer"], help=", ".join(SEMANTICS) + "; several by commas"
    )
    _add_options(many)
    many.add_argument("--jobs", type=_positive, help="processes; by default one for each processor")
    many.add_argument("--dask", metavar="tcp://HOST:PORT", help="replay on the workers of this Dask cluster")
    many.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="keep finished points here, and go on with what is missing",
    )
    many.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the step time over the delay")
    many.set_defaults(command=_sweep)
    whatif_study.add_to(commands)
    whatif_figure.add_to(commands)
    whatif_cost.add_to(commands)
    return parser


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    for flag, metavar, what in (
        ("--et", "WHERE", "Chakra traces: a folder, an archive, or the prefix of <prefix>.<rank>.et"),
        ("--groups", "FILE", "communicators: JSON, group -> ranks in ring order"),
        ("--system", "FILE", "the machine: JSON of the published simulator"),
        ("--schedules", "FILE", "the topologies: bandwidth of every link; may be .xz"),
    ):
        parser.add_argument(flag, type=Path, required=True, metavar=metavar, help=what)
    parser.add_argument("--network", type=Path, metavar="FILE", help="delay and latency, where no flag says")
    parser.add_argument("-o", "--output", choices=OUTPUTS, default="table", help="how to write the result")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the semantics `opus`, as hold=true or ring_patience_ms=200; may be repeated",
    )


def _option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1e15:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return value


def _numbers(text: str) -> list[float]:
    return [_number(part) for part in text.split(",")]


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no count from 1 on")
    return value


def _modes(text: str) -> list[Mode]:
    try:
        return [Mode(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; modes are {', '.join(Mode)}") from None


def _semantics(text: str) -> list[str]:
    found = text.split(",")
    for name in found:
        if name not in SEMANTICS:
            raise argparse.ArgumentTypeError(f"{name!r}; semantics are {', '.join(SEMANTICS)}")
    return found


def _replay(given: argparse.Namespace) -> None:
    step = load_step(given.et, given.groups, given.system)
    delay_ms, latency_ns = _times(given.network, given.delay_ms, given.latency_ns, step)
    if given.semantics == "opus" and given.hints not in (None, DERIVE):
        from opus_sdn.cli.output import message

        message("--hints: the semantics `opus` read the order off the traces; the file is for `peer`")
    mode, hints = _mode(given.mode, given.hints, step)
    scenario = make_scenario(
        step,
        read_schedules(given.schedules),
        mode=mode,
        delay_ns=delay_ms * 1e6,
        latency_ns=latency_ns,
        hints=hints,
        options=dict(given.option),
    )
    result = replay(scenario, semantics=given.semantics, exact=given.exact)
    if given.timeline is not None:
        from opus_sdn.whatif.timeline import write_timeline

        write_timeline(step.trace, result, given.timeline)
    found = document(scenario, result)
    if given.output == "json":
        _write_json(found)
    else:
        _write_rows([found], given.output, COLUMNS)


def _times(
    network: Path | None, delay_ms: float | None, latency_ns: float | None, step: Step
) -> tuple[float, float]:
    """The flags, else what the network file says, else the published latency."""
    file_delay_ms: float | None = None
    file_latency_ns = DEFAULT_LATENCY_NS
    if network is not None:
        found = read_network(network)
        ranks = len(step.trace.ranks)
        if found.ranks != ranks:
            raise InputError(
                f"the trace has {ranks} ranks", file=network, field="npus_count", value=found.ranks
            )
        file_delay_ms, file_latency_ns = found.delay_ns / 1e6, found.latency_ns
    delay = file_delay_ms if delay_ms is None else delay_ms
    if delay is None:
        raise _UsageError("--delay-ms: say what re-pointing a link takes, here or in --network")
    return delay, file_latency_ns if latency_ns is None else latency_ns


def _mode(mode: Mode | None, hints: str | None, step: Step) -> tuple[Mode, Hints | None]:
    """The mode, by default the one that the hints are for; and the hints that were read."""
    if mode is None:
        mode = Mode.ON_DEMAND if hints is None else Mode.PROVISION
    if hints is not None and mode is not Mode.PROVISION:
        raise _UsageError(f"--hints go with --mode {Mode.PROVISION}, not with --mode {mode}")
    if hints is None or hints == DERIVE:
        return mode, None
    return mode, read_hints(Path(hints), len(step.trace.ranks))


def _sweep(given: argparse.Namespace) -> None:
    from opus_sdn.whatif.sweeps import points, sweep

    step = load_step(given.et, given.groups, given.system)
    latencies = given.latency_ns or [_times(given.network, 0.0, None, step)[1]]
    wanted = points(
        given.delay_ms,
        given.mode,
        given.semantics,
        given.bandwidth_gbps or [None],
        latencies,
        dict(given.option),
    )
    schedules = read_schedules(given.schedules)
    if given.plot is not None:
        from opus_sdn.whatif.page.plots import require_matplotlib

        require_matplotlib()
    with _progress(given.journal) as done:
        found = sweep(
            step, schedules, wanted, jobs=given.jobs, journal=given.journal, dask=given.dask, done=done
        )
    if given.plot is not None:
        from opus_sdn.whatif.page.files import write_text
        from opus_sdn.whatif.page.plots import draw
        from opus_sdn.whatif.page.sweep import delay_panels

        write_text(given.plot, draw(delay_panels(found)))
    if given.output == "json":
        _write_json(found)
    else:
        _write_rows(found, given.output, (*COLUMNS[:4], "bandwidth_gbps", *COLUMNS[4:]))


@contextmanager
def _progress(journal: Path | None) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr with the time that is left, for people; when interrupted, what is done already."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("replaying")
        finished = (0, 0)

        def done(count: int, total: int) -> None:
            nonlocal finished
            finished = (count, total)
            bar.update(task, completed=count, total=total)

        try:
            yield done
        except KeyboardInterrupt:
            from opus_sdn.cli.output import message

            kept = (
                f"kept in {journal}: the same command goes on"
                if journal
                else "lost: --journal would keep them"
            )
            message(f"interrupted: {finished[0]} of {finished[1]} points are done, and {kept}")
            raise


def _write_json(found: object) -> None:
    sys.stdout.write(json.dumps(found) + "\n")


def _write_rows(found: Sequence[Document], output: str, names: Sequence[str]) -> None:
    rows = [_row(one, names) for one in found]
    if output == "csv":
        import csv

        writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        from opus_sdn.cli.output import columns, print_table

        print_table(rows, columns(**{name: name for name in names}))


def _row(found: Document, names: Sequence[str]) -> dict[str, Any]:
    row = {name: found.get(name) for name in names}
    if found["finish_ns"] is None:
        row["finish_ns"] = "cannot finish"
    else:
        row["reconfigurations"] = len(found["reconfigurations"])
    return row
