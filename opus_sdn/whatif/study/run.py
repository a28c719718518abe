"""Runs a study: the sweep, the advice, the sensitivity and the cost, as one document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.study.alternatives import alternatives, compare
from opus_sdn.whatif.study.gaps import transitions
from opus_sdn.whatif.study.inputs import moved_by_inputs
from opus_sdn.whatif.study.limits import Limit, changes_of, find_limit
from opus_sdn.whatif.study.prepare import Job, Prepared, prepare, refusals_of
from opus_sdn.whatif.study.runs import OPUS, Done, Runs, Setting
from opus_sdn.whatif.study.schema import Study

MAX_HOSTS_WITH_ADVICE = 512  # beyond these the advice, some fifty steps, would take hours


SWEPT = ("switch_ms", "control_ms", "link_up_ms", "scale_out_gbps")
JOBS_SWEPT = ("dp", "microbatches")


def run_study(
    study: Study, file: Path | str = "study", *, jobs: int | None = None, done: Done | None = None
) -> dict[str, Any]:
    """Everything that the study asks for. `done(finished, all)` is called after each part.

    The document has `study`, `workload`, `headlines` (a row for each mode at the study's own setting),
    `sweeps` (rows by input), `windows`, `advice`, `sensitivity`, `cost` and `notes`. Raises InputError.
    """
    prepared = prepare(study, file)
    # Whatever may be refused is looked at before minutes go into the sweep.
    cost = _cost_document(study, prepared, file)
    others = _other_jobs(study, prepared.job, file)
    runs = Runs(prepared, reference=study.reference, options=study.options, jobs=jobs)
    setting = setting_of(study)
    modes = [Mode(name) for name in study.modes]
    ask = study.advice
    gpus = prepared.job.parallelism.ranks
    small = gpus // prepared.job.parallelism.tp <= MAX_HOSTS_WITH_ADVICE
    progress = _Progress(done, _parts(study, prepared, len(modes), ask is not None and small))
    wanted = {name: list(_settings(study, setting, name)) for name in SWEPT}
    everything = [setting, *(each for settings in wanted.values() for each in settings)]
    runs.replay_all([(each, mode, study.semantics) for each in everything for mode in modes], progress.within)
    progress.add(len(everything) * len(modes))
    headlines = [runs.step(setting, mode, study.semantics) for mode in modes]
    found: dict[str, Any] = {
        "title": study.title or f"{prepared.workload.model.name} on {gpus} GPUs",
        "study": study.model_dump(mode="json"),
        "workload": _workload_document(prepared),
        "reference": study.reference,
        "headlines": [step.row() for step in headlines],
        "sweeps": {
            name: [runs.step(each, mode, study.semantics).row() for each in settings for mode in modes]
            for name, settings in wanted.items()
            if settings
        }
        | _swept_jobs(study, runs, others, progress),
        "windows": [
            asdict(each) | {"lengths_ms": list(each.lengths_ms)} for each in transitions(prepared, setting)
        ],
        "advice": None,
        "sensitivity": None,
        "cost": cost,
        "notes": _notes(study, prepared, small),
    }
    if ask is not None and small:
        found["advice"] = _advice(study, runs, setting, modes, progress)
        if ask.sensitivity:
            moved = moved_by_inputs(runs, setting, modes[-1], progress.step)
            found["sensitivity"] = {"mode": modes[-1].value, "rows": [asdict(each) for each in moved]}
    found["steps_simulated"] = runs.count
    progress.end()
    return found


def setting_of(study: Study) -> Setting:
    """The fabric as the study has it."""
    fabric = study.fabric
    return Setting(fabric.switch_ms, fabric.control_ms, fabric.link_up_ms, fabric.latency_ns)


def _settings(study: Study, setting: Setting, name: str) -> Iterator[Setting]:
    for value in sorted(set(getattr(study.sweep, name))):
        changed: dict[str, Any] = {name: value}
        yield replace(setting, **changed)


def _other_jobs(study: Study, job: Job, file: Path | str) -> list[tuple[str, int, Prepared]]:
    """The jobs that `sweep` names beside the study's own: the input, its value, the job."""
    found = []
    for name in JOBS_SWEPT:
        for value in sorted(set(getattr(study.sweep, name))):
            try:
                with refusals_of(file):
                    found.append((name, value, _changed(job, name, value).prepared()))
            except InputError as error:
                why = f"then {error.field} is {error.value!r}: {error.why}"
                raise InputError(why, file=file, field=f"sweep.{name}", value=value) from None
    return found


def _swept_jobs(
    study: Study, runs: Runs, others: list[tuple[str, int, Prepared]], progress: _Progress
) -> dict[str, list[dict[str, Any]]]:
    """The steps of these jobs on the study's fabric. Takes them out of the list, as steps are large."""
    setting, modes = setting_of(study), [Mode(name) for name in study.modes]
    found: dict[str, list[dict[str, Any]]] = {}
    while others:
        name, value, prepared = others.pop(0)
        other = Runs(prepared, reference=study.reference, options=study.options, jobs=runs.jobs)
        other.replay_all([(setting, mode, study.semantics) for mode in modes])
        rows = [other.step(setting, mode, study.semantics).row() for mode in modes]
        found.setdefault(name, []).extend({name: value} | row for row in rows)
        progress.add(len(modes))
    return found


def _changed(job: Job, name: str, value: int) -> Job:
    if name == "dp":
        return replace(job, parallelism=replace(job.parallelism, dp=value))
    return replace(job, batch=replace(job.batch, microbatches=value))


def _advice(
    study: Study, runs: Runs, setting: Setting, modes: list[Mode], progress: _Progress
) -> dict[str, Any]:
    ask = study.advice
    assert ask is not None
    limits: list[Limit] = []
    for mode in modes:
        limits.append(find_limit(runs, setting, mode, ask.overhead_percent, ask.largest_ms))
        progress.step()
    mode, limit = modes[-1], limits[-1]
    delays = [setting.delay_ms]
    if limit.over_ms and limit.over_ms != setting.delay_ms:
        delays.append(limit.over_ms)
    return {
        "semantics": OPUS,
        "overhead_percent": ask.overhead_percent,
        "limits": [_limit_document(each, setting) for each in limits],
        "changes_now": [asdict(change) for change in changes_of(runs, setting, mode)],
        "alternatives": [asdict(outcome) for outcome in compare(runs, setting, mode, delays, progress.step)]
        if ask.alternatives
        else [],
        "alternatives_mode": mode.value,
    }


def _limit_document(limit: Limit, setting: Setting) -> dict[str, Any]:
    return asdict(limit) | {
        "changes": [asdict(change) for change in limit.changes],
        "largest_switch_ms": limit.switch_ms(setting),
        "largest_link_up_ms": limit.link_up_ms(setting),
        "control_ms": setting.control_ms,
        "says": _says(limit, setting),
    }


def _says(limit: Limit, setting: Setting) -> str:
    percent, switch, link = limit.overhead_percent, limit.switch_ms(setting), limit.link_up_ms(setting)
    if limit.largest_ms is None:
        at = f"{limit.at_zero_percent:.2f} %" if limit.at_zero_percent is not None else "without an end"
        return f"{limit.mode}: no switch is fast enough for {percent:g} %: at 0 ms the overhead is {at}"
    if limit.over_ms is None:
        return f"{limit.mode}: under {percent:g} % at every delay up to {limit.largest_ms:g} ms"
    fits = (
        f"{limit.mode}: under {percent:g} % while optics and link-up together take at most "
        f"{limit.largest_ms:.4g} ms (at {limit.over_ms:.4g} ms it is more)"
    )
    return "; ".join(
        [
            fits,
            f"a switch of {switch:.4g} ms with {setting.link_up_ms:g} ms of link-up"
            if switch
            else f"with {setting.link_up_ms:g} ms of link-up no switch is fast enough",
            f"{link:.4g} ms of link-up on a switch of {setting.switch_ms:g} ms"
            if link
            else f"a switch of {setting.switch_ms:g} ms leaves no time for link-up",
        ]
    )


def _workload_document(prepared: Prepared) -> dict[str, Any]:
    workload, job = prepared.workload, prepared.job
    plan = job.parallelism
    return {
        "model": workload.model.name,
        "accelerator": job.gpu.name,
        "accelerator_source": job.gpu.source,
        "gpus": plan.ranks,
        "hosts": plan.ranks // plan.tp,
        "parallelism": asdict(plan),
        "batch": asdict(job.batch),
        "preset": job.preset,
        "efficiency": workload.efficiency,
        "operations": sum(len(each.graph) for each in workload.programs) * plan.ranks // plan.pp,
        "bytes_per_dimension": workload.bytes_per_dimension(),
        "compute_ms_of_a_rank_per_stage": [ns / 1e6 for ns in workload.compute_ns(job.gpu)],
        "scale_out_gbps": job.scale_out_gbps,
        "scale_up_gbps": job.scale_up_gbps,
    }


def _cost_document(study: Study, prepared: Prepared, file: Path | str) -> dict[str, Any] | None:
    if study.cost is None:
        return None
    from opus_sdn.whatif.cost.prices import PriceFile, merged, system_prices
    from opus_sdn.whatif.cost.report import cost_document

    prices_file = None if study.cost.prices is None else Path(file).parent / study.cost.prices
    prices = system_prices(study.cost.system, prices_file)
    plan = prepared.job.parallelism
    # The job's own hosts are what is priced, whatever those of the price set hold.
    prices = merged(prices, PriceFile(gpus_per_host=plan.tp))
    return cost_document(plan.ranks, prices)


def _notes(study: Study, prepared: Prepared, small: bool) -> list[str]:
    found = [
        f"overhead is over the reference {study.reference}: "
        + {
            "static": "every link of every topology is up all the time, and nobody asks for any",
            "peer-0ms": "the published simulator's on-demand rules with switches that take no time",
            "ideal": "static links of the same total bandwidth, scale-up included, spread by the square "
            "root of the traffic; far faster than static where one dimension has most of it",
        }[study.reference],
        f"compute is a roofline at {prepared.workload.efficiency:g} of the peak: {prepared.job.gpu.source}",
    ]
    if study.semantics != OPUS and study.advice is not None:
        found.append("advice and sensitivity are of our own controller (semantics opus)")
    if study.advice is not None and not small:
        found.append(f"no advice: it is given for at most {MAX_HOSTS_WITH_ADVICE} hosts")
    return found


def _parts(study: Study, prepared: Prepared, modes: int, advice: bool) -> int:
    """What a run consists of, for its progress: steps of the sweep, then limits, alternatives, inputs."""
    sweep = study.sweep
    points = 1 + sum(len(set(getattr(sweep, name))) for name in (*SWEPT, *JOBS_SWEPT))
    count = points * modes
    if advice and study.advice is not None:
        count += modes
        count += sum(1 for _ in alternatives(prepared.job)) if study.advice.alternatives else 0
        count += 10 if study.advice.sensitivity else 0
    return count


class _Progress:
    """Counts the parts of a run and tells them on."""

    def __init__(self, done: Done | None, total: int) -> None:
        self._done, self._total, self._count, self._told = done, total, 0, 0

    def within(self, finished: int, _: int) -> None:
        """Some of the part that runs are finished."""
        self._tell(self._count + finished)

    def add(self, parts: int) -> None:
        """So many parts are finished."""
        self._count += parts
        self._tell(self._count)

    def step(self) -> None:
        """One more part is finished."""
        self.add(1)

    def end(self) -> None:
        """All is done."""
        self._tell(self._total)

    def _tell(self, count: int) -> None:
        self._told = max(
            self._told, min(count, self._total)
        )  # a part may turn out smaller than it was taken for
        if self._done is not None:
            self._done(self._told, self._total)
