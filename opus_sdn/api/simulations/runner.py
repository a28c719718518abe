"""Runs one simulation in a process of its own and listens to it; the event loop only ever waits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

from opus_sdn.api.simulations.simulation import Simulation
from opus_sdn.intent.errors import Failure, Problem
from opus_sdn.settings import MIB, Settings

CHILD = "opus_sdn.api.simulations.child"
RESULT_MAX_BYTES = 16 * MIB

Outcome = bytes | Failure | None  # a result, why there is none, or: it was stopped


async def run(simulation: Simulation, settings: Settings) -> Outcome:
    """Run it to its end, to the time limit or until it is stopped; then nothing is left of its process."""
    folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="opus-simulation-"))
    try:
        process = await _start(simulation, settings, folder)
        try:
            return await _outcome(process, simulation, settings.simulation_s_max)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    except OSError as error:
        return Failure(Problem.INTERNAL, f"the process of the simulation could not be started: {error}")
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _start(simulation: Simulation, settings: Settings, folder: Path) -> Process:
    arguments = (str(folder), str(settings.traces_dir or ""), str(settings.simulation_memory_max_bytes))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", CHILD, *arguments),
        stdin=simulation.body,
        stdout=PIPE,
        stderr=DEVNULL,
        start_new_session=True,  # Ctrl-C in a terminal is for the controller, which ends its simulations
    )


async def _outcome(process: Process, simulation: Simulation, limit_s: float) -> Outcome:
    listening = asyncio.create_task(_listen(process, simulation))
    stopping = asyncio.create_task(simulation.stop.wait())
    try:
        await asyncio.wait({listening, stopping}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if simulation.stop.is_set():
            return None
        if listening.done():
            return listening.result()
        why = f"it took longer than {limit_s:g} s (setting simulation_s_max)"
        return Failure(Problem.LIMIT_EXCEEDED, why, data={"limit_s": limit_s})
    finally:
        for task in (listening, stopping):
            task.cancel()
        await asyncio.wait({listening, stopping})


async def _listen(process: Process, simulation: Simulation) -> bytes | Failure:
    """Read what the process says, as `child` says it."""
    assert process.stdout is not None
    while line := await process.stdout.readline():
        answer = json.loads(line)
        if "progress" in answer:
            progress = answer["progress"]
            simulation.phase, simulation.done, simulation.points = (
                progress["phase"],
                progress["done"],
                progress["points"],
            )
        elif "failed" in answer:
            failed = answer["failed"]
            return Failure(Problem(failed["problem"]), failed["detail"], data=failed["data"])
        elif "crashed" in answer:
            raise RuntimeError(answer["crashed"])
        elif answer["done"] > RESULT_MAX_BYTES:
            size = answer["done"]
            why = f"the result has {size} bytes, the limit is {RESULT_MAX_BYTES}: ask for fewer points"
            return Failure(Problem.LIMIT_EXCEEDED, why, data={"limit_bytes": RESULT_MAX_BYTES})
        else:
            return await process.stdout.readexactly(answer["done"])
    code = await process.wait()
    how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
    return Failure(Problem.INTERNAL, f"the process of the simulation {how} and said nothing")
