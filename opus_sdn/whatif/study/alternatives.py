"""What other ports, other schedules and another order of the reductions would change: each one simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.study.gaps import overlapping
from opus_sdn.whatif.study.prepare import Job
from opus_sdn.whatif.study.runs import Runs, Setting
from opus_sdn.whatif.workload.plan import DATAFLOW, INTERLEAVED, ONE_F_ONE_B, PHYSICAL, SCHEDULES

PATIENCE_MS = 200


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step with one thing changed, at one delay. `refused`: why it was not simulated, or cannot finish.

    `gain_percent`: how much shorter than as studied; `reference_ms`: its own reference. `overlapping`, of
    other schedules: between how many phases on a stage's rails there is no time at all.
    """

    name: str
    delay_ms: float
    step_ms: float | None
    reference_ms: float | None
    overhead_percent: float | None
    gain_percent: float | None
    refused: str | None = None
    overlapping: int | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """One change: of the controller's options, or of the job."""

    name: str
    options: Mapping[str, object]
    change: Callable[[Job], Job] | None = None
    mode: Mode | None = None  # instead of the studied one
    halved: bool = False  # the bandwidth of every link


def alternatives(job: Job) -> Iterator[Alternative]:
    """What is tried for this job."""
    if job.parallelism.dp * job.parallelism.cp == 2:
        yield Alternative("rings on the ports that no pipeline link needs", {"port_choice": "spread"})
    yield Alternative(
        "rings on one port of each GPU (directed circuits)",
        {"port_choice": "one-port", "circuit": "directed"},
    )
    yield Alternative("a second pair of ports per GPU, used with the first", {"ports_per_gpu": 4})
    if job.parallelism.cp == job.parallelism.ep == 1:
        name = "a second pair of ports per GPU, one for rings and one for messages"
        yield Alternative(name, {}, mode=Mode.STATIC)  # nothing is ever moved: all links are up at once
        name = "one topology for the whole job: rings and messages have half of every port each"
        yield Alternative(name, {}, mode=Mode.STATIC, halved=True)
    yield Alternative("reductions behind the last message", {"defer_reductions": True})
    yield Alternative(f"reductions yield to messages for {PATIENCE_MS} ms", {"ring_patience_ms": PATIENCE_MS})
    own = job.parallelism.schedule or ONE_F_ONE_B
    for schedule in SCHEDULES if job.parallelism.pp > 1 and job.preset == PHYSICAL else ():
        if schedule not in (DATAFLOW, own):
            yield Alternative(f"schedule {schedule}", {}, _scheduled(schedule))


def _scheduled(schedule: str) -> Callable[[Job], Job]:
    virtual = 2 if schedule == INTERLEAVED else 1
    return lambda job: replace(
        job, parallelism=replace(job.parallelism, schedule=schedule, virtual_stages=virtual)
    )


def compare(
    runs: Runs, setting: Setting, mode: Mode, delays_ms: list[float], done: Callable[[], None]
) -> list[Outcome]:
    """Every alternative at each of the delays, the step as studied first. `done()` after each."""
    found: list[Outcome] = []
    studied = {delay: runs.step(_at(setting, delay), mode) for delay in delays_ms}
    for delay, step in studied.items():
        found.append(
            Outcome("as studied", delay, step.step_ms, step.reference_ms, step.overhead_percent, 0.0)
        )
    for alternative in alternatives(runs.prepared.job):
        try:
            other = _runs_of(runs, alternative)
            count = None if other is runs else overlapping(other.prepared, setting)
            outcomes = [
                replace(
                    _outcome(other, alternative, _at(setting, delay), delay, mode, studied[delay].step_ms),
                    overlapping=count,
                )
                for delay in delays_ms
            ]
        except InputError as error:
            outcomes = [Outcome(alternative.name, 0.0, None, None, None, None, _shortly(error))]
        found += outcomes
        done()
    return found


def _runs_of(runs: Runs, alternative: Alternative) -> Runs:
    if alternative.change is None:
        return runs
    prepared = alternative.change(runs.prepared.job).prepared()
    return Runs(prepared, reference=runs.reference, options=runs.options)


def _outcome(
    runs: Runs, alternative: Alternative, setting: Setting, delay: float, mode: Mode, studied_ms: float | None
) -> Outcome:
    if alternative.halved:
        return _halved(runs, alternative, setting, delay, studied_ms)
    step = runs.step(setting, alternative.mode or mode, options=alternative.options)
    gain = _gain(step.step_ms, studied_ms)
    why = "the step cannot finish" if step.stuck else None
    return Outcome(alternative.name, delay, step.step_ms, step.reference_ms, step.overhead_percent, gain, why)


def _halved(
    runs: Runs, alternative: Alternative, setting: Setting, delay: float, studied_ms: float | None
) -> Outcome:
    """All links up at half the bandwidth, against the reference at all of it."""
    gbps = setting.scale_out_gbps or runs.prepared.job.scale_out_gbps
    step = runs.step(replace(setting, scale_out_gbps=gbps / 2), Mode.STATIC).step_ms
    reference = runs.reference_ms(setting)
    over = None if step is None else 100 * (step / reference - 1)
    return Outcome(alternative.name, delay, step, reference, over, _gain(step, studied_ms))


def _gain(step_ms: float | None, studied_ms: float | None) -> float | None:
    """How much shorter than as studied, in per cent."""
    return None if step_ms is None or studied_ms is None else 100 * (1 - step_ms / studied_ms)


def _at(setting: Setting, delay_ms: float) -> Setting:
    return replace(setting, switch_ms=delay_ms, link_up_ms=0.0)


def _shortly(error: InputError) -> str:
    return f"{error.field} {error.value}: {error.why}" if error.field else error.why
