"""Replays of one job under settings of its fabric, each one once, however often it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from opus_sdn.whatif.engine import Step as Inputs
from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.schedules import Schedules
from opus_sdn.whatif.report import Document
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.study.prepare import Prepared
from opus_sdn.whatif.sweeps import Point, Worker, sweep
from opus_sdn.whatif.workload.models import STUDY

OPUS, PEER = "opus", "peer"
STATIC, PEER_0MS, IDEAL = "static", "peer-0ms", "ideal"
Done = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """How the fabric is: what re-pointing a circuit takes, and its bandwidth (None: the job's own)."""

    switch_ms: float
    control_ms: float
    link_up_ms: float
    latency_ns: float
    scale_out_gbps: float | None = None

    @property
    def delay_ms(self) -> float:
        """From the moment the optics begin to move until the link carries traffic."""
        return self.switch_ms + self.link_up_ms


@dataclass(frozen=True, slots=True)
class Step:
    """One replayed step against its reference. Times in ms; `step_ms` None: it cannot finish (`stuck`).

    `document` is of `one_rail` that stands for all, or of all ranks."""

    setting: Setting
    mode: str
    semantics: str
    step_ms: float | None
    reference_ms: float
    exposed_ms: float
    exposures: int
    utilisation: float | None
    stuck: str | None
    document: Document
    one_rail: bool

    @property
    def overhead_percent(self) -> float | None:
        """What it is longer than the reference."""
        return None if self.step_ms is None else 100 * (self.step_ms / self.reference_ms - 1)

    def row(self) -> dict[str, Any]:
        """As a line of a table; names carry units."""
        return {
            "semantics": self.semantics,
            "mode": self.mode,
            "switch_ms": self.setting.switch_ms,
            "control_ms": self.setting.control_ms,
            "link_up_ms": self.setting.link_up_ms,
            "scale_out_gbps": self.setting.scale_out_gbps,
            "step_ms": self.step_ms,
            "reference_ms": self.reference_ms,
            "overhead_percent": self.overhead_percent,
            "exposed_ms": self.exposed_ms,
            "exposures": self.exposures,
            "compute_utilisation": self.utilisation,
            "cannot_finish": self.stuck,
        }


class Runs:
    """Replays one prepared job. `options` are those of the semantics `opus`."""

    def __init__(
        self, prepared: Prepared, *, reference: str, options: Mapping[str, object], jobs: int | None = None
    ) -> None:
        self.prepared = prepared
        self.reference = reference
        self.options = dict(options)
        self.count = 0  # replays so far
        self.jobs = jobs
        self._found: dict[Point, Document] = {}
        self._ideal: dict[float | None, Document] = {}
        self._workers: dict[bool, Worker] = {}

    def replay_all(self, settings: Iterable[tuple[Setting, Mode, str]], done: Done | None = None) -> None:
        """Replay these ahead, in processes, so that `step` has them at hand."""
        wanted: dict[Point, None] = {}
        for setting, mode, semantics in settings:
            wanted[self._point(setting, mode, semantics, self.options)] = None
            if self.reference != IDEAL:
                wanted[self._reference_point(setting, semantics)] = None
        missing = [point for point in wanted if point not in self._found]
        finished = 0

        def within(count: int, _: int) -> None:
            if done is not None:
                done(finished + count, len(missing))

        for one_rail in (True, False):
            points = [point for point in missing if self._on_one_rail(point) is one_rail]
            if points:
                documents = sweep(*self._inputs(one_rail), points, jobs=self.jobs, done=within)
                self._found |= zip(points, documents, strict=True)
                finished += len(points)
        self.count += len(missing)

    def _on_one_rail(self, point: Point) -> bool:
        """Whether one rail stands for all: our own controller decides, and no file says who is where."""
        return point.semantics == OPUS and not any(name in ("fabric", "job") for name, _ in point.options)

    def _inputs(self, one_rail: bool) -> tuple[Inputs, Schedules]:
        return self.prepared.rail if one_rail else self.prepared.everything

    def step(
        self,
        setting: Setting,
        mode: Mode,
        semantics: str = OPUS,
        options: Mapping[str, object] | None = None,
    ) -> Step:
        """One step. `options` are added to the study's."""
        given = self.options | dict(options or {})
        deferred = given.get("defer_reductions") is True and semantics == OPUS and mode is not Mode.STATIC
        if deferred:  # another order of operations, whose own static step comes with the bound
            given["lower_bound"] = True
        point = self._point(setting, mode, semantics, given)
        found = self._document(point)
        reference = self.reference_ms(setting, semantics)
        if deferred and self.reference == STATIC and found["finish_ns"] is not None:
            reference = found["details"]["static_ns"] / 1e6
        finish = found["finish_ns"]
        return Step(
            setting=replace(
                setting, scale_out_gbps=setting.scale_out_gbps or self.prepared.job.scale_out_gbps
            ),
            mode=mode.value,
            semantics=semantics,
            step_ms=None if finish is None else finish / 1e6,
            reference_ms=reference,
            exposed_ms=found.get("exposed_delay_ns", 0) / 1e6,
            exposures=len(found.get("exposures", ())),
            utilisation=found.get("compute_utilisation"),
            stuck=found.get("cannot_finish"),
            document=found,
            one_rail=self._on_one_rail(point),
        )

    def reference_ms(self, setting: Setting, semantics: str = OPUS) -> float:
        """The reference step at the setting's bandwidth and latency, in ms."""
        if self.reference == IDEAL:
            return self._ideal_ms(setting, semantics)
        found = self._document(self._reference_point(setting, semantics))["finish_ns"]
        if found is None:
            why = "the step cannot finish in this reference"
            raise InputError(why, file=STUDY, field="reference", value=self.reference)
        return float(found) / 1e6

    def _ideal_ms(self, setting: Setting, semantics: str) -> float:
        gbps = setting.scale_out_gbps
        if gbps not in self._ideal:
            point = Point(0.0, Mode.IDEAL, semantics, None, setting.latency_ns)
            worker = Worker(self.prepared.everything[0], self.prepared.ideal(gbps))
            self._ideal[gbps] = worker.answer(point)
        return float(self._ideal[gbps]["finish_ns"]) / 1e6

    def _document(self, point: Point) -> Document:
        if point not in self._found:
            one_rail = self._on_one_rail(point)
            if one_rail not in self._workers:
                self._workers[one_rail] = Worker(*self._inputs(one_rail))
            self._found[point] = self._workers[one_rail].answer(point)
            self.count += 1
        return self._found[point]

    def _reference_point(self, setting: Setting, semantics: str) -> Point:
        if self.reference == PEER_0MS:
            return Point(0.0, Mode.ON_DEMAND, PEER, setting.scale_out_gbps, setting.latency_ns)
        return self._point(setting, Mode.STATIC, semantics, {})

    def _point(self, setting: Setting, mode: Mode, semantics: str, options: Mapping[str, object]) -> Point:
        gbps, latency = setting.scale_out_gbps, setting.latency_ns
        if mode is Mode.STATIC:
            return Point(0.0, mode, semantics, gbps, latency)
        if semantics == PEER:  # its one delay is all that passes
            return Point(setting.delay_ms + setting.control_ms, mode, semantics, gbps, latency)
        given = {"control_ms": setting.control_ms, "lower_bound": False} | dict(options)
        return Point(setting.delay_ms, mode, semantics, gbps, latency, tuple(sorted(given.items())))
