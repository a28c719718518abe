"""`python -m tests.sim 42` shows a seed's whole log; `python -m tests.sim 0:10000` runs many."""

from __future__ import annotations

import argparse
import sys
import time

from tests.sim.pool import met_by, play_all
from tests.sim.seeds import world_of

EVERY_S = 5.0


def show(seed: int) -> int:
    """One seed, with all that happens on stdout; how it broke, if it did, on stderr."""
    world = world_of(seed, keep_log=True)
    try:
        world.run()
    finally:
        _out(*world.trace)
    _say(f"seed {seed}: {world.steps} steps, log {world.digest}")
    return 0


def many(first: int, last: int, store: str, processes: int | None) -> int:
    """A range of seeds; the failures on stdout, the course on stderr."""
    began = said = time.monotonic()
    outcomes, failed = [], 0
    for outcome in play_all(range(first, last), store, processes):
        outcomes.append(outcome)
        if outcome.failure is not None:
            failed += 1
            _out(f"seed {outcome.seed}:\n{outcome.failure}")
        if time.monotonic() - said > EVERY_S:
            said = time.monotonic()
            _say(f"{len(outcomes)} of {last - first} seeds, {failed} failed")
    steps = sum(outcome.steps for outcome in outcomes)
    _out(f"{len(outcomes)} seeds, {steps} steps, {failed} failed, {time.monotonic() - began:.0f} s")
    _out(*(f"  {name}: {times}" for name, times in sorted(met_by(outcomes).items())))
    return min(failed, 1)


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seeds", help="one seed, or first:last for a range without its end")
    parser.add_argument("--store", choices=("memory", "sqlite"), default="memory")
    parser.add_argument("--processes", type=int, help="by default one for each core")
    given = parser.parse_args()
    first, colon, last = given.seeds.partition(":")
    if not colon:
        return show(int(first))
    return many(int(first), int(last), given.store, given.processes)


def _out(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
