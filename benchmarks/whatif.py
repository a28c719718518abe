"""How long replays take: whole processes from a cold start, both engines side by side, sweeps, and how it
grows.

`python -m benchmarks.whatif [--skip-exact] [--only-growth] [--plot FILE.svg]`. The published program takes
0.50 s and 60 MB for 8 ranks, 9 s and 269 MB for 128, 52 s and 1.06 GB for 512 (C++, optimised, two cores).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.growth import measure, plot
from benchmarks.traces import widen
from opus_sdn.whatif import Mode, load_step, make_scenario, points, read_schedules, sweep
from opus_sdn.whatif.peer.exact import ExactEngine
from opus_sdn.whatif.peer.fast import FastEngine

DATA = Path(__file__).resolve().parent.parent / "tests" / "whatif" / "data"
ROUNDS = 3
DELAYS = [0.0, 10.0, 50.0, 100.0, 250.0, 500.0, 750.0, 1000.0]


def unpacked(case: str, folder: Path) -> Path:
    """A published case as plain files."""
    made = folder / case
    (made / "et").mkdir(parents=True)
    with tarfile.open(DATA / case / "workload_et.tar.xz") as archive:
        archive.extractall(made / "et", filter="data")
    for name in ("workload.json", "system.json"):
        (made / name).write_bytes((DATA / case / name).read_bytes())
    packed = DATA / case / "schedules.txt.xz"
    unpack = "import lzma,sys,pathlib;pathlib.Path(sys.argv[2]).write_bytes(lzma.open(sys.argv[1]).read())"
    subprocess.run([sys.executable, "-c", unpack, packed, made / "schedules.txt"], check=True)
    return made


def inputs(case: Path) -> list[str]:
    """The arguments that name a case's files."""
    names = {
        "--et": "et",
        "--groups": "workload.json",
        "--system": "system.json",
        "--schedules": "schedules.txt",
    }
    return [part for flag, name in names.items() for part in (flag, str(case / name))]


def cold(case: Path) -> dict[str, float]:
    """A whole `opus whatif replay` process: the best of some rounds, and the largest memory."""
    command = [sys.executable, "-m", "opus_sdn.cli", "whatif", "replay", *inputs(case)]
    walls, cpus, memory = [], [], 0.0
    for _ in range(ROUNDS):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        process = subprocess.Popen([*command, "--delay-ms", "10", "-o", "json"], stdout=subprocess.DEVNULL)
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0
        walls.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        memory = max(memory, used.ru_maxrss / 1024)
    return {"wall_s": round(min(walls), 2), "cpu_s": round(min(cpus), 2), "memory_mb": round(memory)}


def both_engines(case: Path) -> dict[str, float]:
    """Seconds of CPU of the fast and the exact engine on one loaded step."""
    step = load_step(case / "et", case / "workload.json", case / "system.json")
    scenario = make_scenario(step, read_schedules(case / "schedules.txt"), delay_ns=10e6)
    fast = min(seconds(lambda: FastEngine(scenario).run()) for _ in range(ROUNDS))
    exact = seconds(lambda: ExactEngine(scenario).run())
    return {"fast_s": round(fast, 2), "exact_s": round(exact, 2), "exact_to_fast": round(exact / fast, 1)}


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds, without the collector's."""
    gc.collect()
    gc.disable()
    began = time.process_time()
    work()
    took = time.process_time() - began
    gc.enable()
    return took


def sixteen_points(case: Path) -> float:
    """Wall seconds of a sweep over eight delays and two modes, loading included."""
    began = time.perf_counter()
    step = load_step(case / "et", case / "workload.json", case / "system.json")
    found = sweep(
        step, read_schedules(case / "schedules.txt"), points(DELAYS, [Mode.ON_DEMAND, Mode.PROVISION])
    )
    assert len(found) == 16
    return round(time.perf_counter() - began, 2)


def tell(text: str) -> None:
    """A line for people."""
    print(text, file=sys.stderr, flush=True)


def times(folder: Path, *, skip_exact: bool) -> dict[str, Any]:
    """Whole processes, a sweep, and the two engines side by side."""
    found: dict[str, Any] = {"cold_start": {}, "engines": {}}
    tell("unpacking and widening ...")
    cases = {8: unpacked("dp2pp2tp2", folder), 128: unpacked("dp4pp4tp8_llama", folder)}
    cases[512] = widen(cases[128], folder / "wide", dp=4, pp=4, factor=4)
    for ranks, case in cases.items():
        tell(f"{ranks} ranks from a cold start, {ROUNDS} rounds ...")
        found["cold_start"][ranks] = cold(case)
        tell(f"  {found['cold_start'][ranks]}")
    tell("a sweep of 16 points, 128 ranks ...")
    found["sweep_16_points_128_ranks_s"] = sixteen_points(cases[128])
    tell(f"  {found['sweep_16_points_128_ranks_s']} s")
    for ranks in (128,) if skip_exact else (128, 512):
        tell(f"both engines, {ranks} ranks ...")
        found["engines"][ranks] = both_engines(cases[ranks])
        tell(f"  {found['engines'][ranks]}")
    return found


def best(work: Callable[[], object]) -> float:
    """CPU seconds, the least of some rounds."""
    return round(min(seconds(work) for _ in range(ROUNDS)), 4)


def main() -> int:
    """Everything as JSON on stdout, progress on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--skip-exact", action="store_true", help="leave out the exact engine on 512 ranks")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the growth into this SVG file")
    parser.add_argument("--only-growth", action="store_true", help="measure nothing else")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="opus-bench-") as name:
        folder = Path(name)
        if not given.only_growth:
            found |= times(folder, skip_exact=given.skip_exact)
        tell("growth ...")
        found["growth"] = measure(folder, best, tell=tell)
    if given.plot is not None:
        given.plot.write_text(plot(found["growth"]), encoding="utf-8")
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
